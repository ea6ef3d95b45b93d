"""What ranks contribute, and what a reduction of it is.

PyTorch leaves open in which order a backend combines contributions, and how often it rounds. So the values
are such that every order gives the same bits: small whole numbers, whose sums and products the type holds
exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from occl.conformance.tensors import COMPLEX, FLOATS, INTEGERS

ARITHMETIC = ("SUM", "AVG", "PRODUCT", "PREMUL_SUM")
ORDER = ("MIN", "MAX")
BITWISE = ("BAND", "BOR", "BXOR")
REDUCTIONS = (*ARITHMETIC, *ORDER, *BITWISE)

_EXACT = {"float8_e4m3fn": 16, "float8_e4m3fnuz": 16, "float8_e5m2": 8, "float8_e5m2fnuz": 8, "bfloat16": 256}
"""The whole numbers that a type holds exactly, up to this one, where that is less than a thousand."""


def reductions_of(dtype: str) -> tuple[str, ...]:
    """The reductions that have a meaning for a type in ``torch.distributed``."""
    if dtype in FLOATS:
        return (*ARITHMETIC, *ORDER)
    if dtype in COMPLEX:
        return ("SUM", "AVG", "PREMUL_SUM")  # all_reduce refuses the others (`supports_complex`)
    if dtype == "bool":
        return ("SUM", "PRODUCT", *ORDER, *BITWISE)
    return ("SUM", "AVG", "PRODUCT", *ORDER, *BITWISE)


def meaningless_reductions() -> list[tuple[str, str]]:
    """Pairs of a type and a reduction that every backend must refuse."""
    return [(dtype, op) for dtype in ("float32", "bfloat16") for op in BITWISE] + [
        ("complex64", op) for op in (*ORDER, *BITWISE)
    ]


def factor_of(rank: int) -> float:
    """What PREMUL_SUM multiplies this rank's contribution by."""
    return 2.0 if rank % 2 else 1.0


def reduce_op(name: str, rank: int) -> dist.ReduceOp:
    """The reduction, as ``torch.distributed`` takes it."""
    if name == "PREMUL_SUM":
        made: dist.ReduceOp = dist._make_nccl_premul_sum(factor_of(rank))
        return made
    found: dist.ReduceOp = getattr(dist.ReduceOp, name)
    return found


def _most(dtype: str) -> int:
    if dtype in FLOATS or dtype in COMPLEX:
        return _EXACT.get(dtype, 1000)
    return min(1000, torch.iinfo(getattr(torch, dtype)).max)


def _whole(dtype: str, reduction: str, at: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """A rank's values as int64, for the elements with the numbers ``at``."""
    signed = dtype in FLOATS or dtype in COMPLEX or dtype.startswith("int")
    if reduction == "PRODUCT":
        values = torch.where((at + rank) % size == 0, 2, 1)
        return torch.where((at + rank) % 3 == 0, -values, values) if signed else values
    most = _most(dtype)
    if reduction in ORDER:
        share, unit, ranks = most, 1, size
    else:
        # A mean is a whole number where each contribution is a multiple of the world size.
        unit = size if reduction == "AVG" else 2 if reduction == "PREMUL_SUM" else 1
        ranks = min(size, most // unit)  # so many contribute to an element, the others 0
        share = max(1, most // (unit * ranks)) if ranks else 0
        unit = size if reduction == "AVG" else 1
    values = (at * 7919 + rank * 17) % (2 * share + 1) - share
    values = torch.where((at + rank) % size < ranks, values * unit, 0)
    return values if signed else values.abs()


def contribution(
    dtype: str, reduction: str, count: int, rank: int, size: int, block: int = 0
) -> torch.Tensor:
    """What a rank contributes: the same on every rank that asks.

    Args:
        reduction: "" if the values are only moved; they are random bits then.
        block: which of the rank's inputs, where it has several.
    """
    t = getattr(torch, dtype)
    if not reduction or reduction in BITWISE or dtype == "bool":
        generator = torch.Generator().manual_seed(1000 * rank + block)
        raw = torch.randint(0, 256, (count * t.itemsize,), generator=generator, dtype=torch.uint8)
        return (raw % 2 if dtype == "bool" else raw).view(t)
    at = torch.arange(count) + 7 * block
    values = _whole(dtype, reduction, at, rank, size)
    if dtype in COMPLEX:
        return torch.complex(values.double(), values.flip(0).double()).to(t)
    return values.double().to(t) if dtype in FLOATS else values.to(t)


def reduced(inputs: Sequence[torch.Tensor], dtype: str, reduction: str) -> torch.Tensor:
    """What the contributions of all ranks become, given in rank order."""
    t = getattr(torch, dtype)
    if reduction in BITWISE or dtype == "bool":
        return _bitwise([x.view(torch.uint8) for x in inputs], reduction).view(t)
    exact = torch.complex128 if dtype in COMPLEX else torch.float64 if dtype in FLOATS else torch.int64
    parts = torch.stack([x.to(exact) for x in inputs])
    if reduction == "PREMUL_SUM":
        factors = torch.tensor([factor_of(rank) for rank in range(len(inputs))], dtype=torch.float64)
        return (parts * factors[:, None]).sum(0).to(t)
    if reduction == "AVG":
        total = parts.sum(0)
        return (total // len(inputs) if dtype in INTEGERS else total / len(inputs)).to(t)
    if reduction == "PRODUCT":
        return parts.prod(0).to(t)
    if reduction in ORDER:
        return (parts.amin(0) if reduction == "MIN" else parts.amax(0)).to(t)
    return parts.sum(0).to(t)


def _bitwise(inputs: Sequence[torch.Tensor], reduction: str) -> torch.Tensor:
    """Of bytes. For bool SUM and MAX are "or", PRODUCT and MIN are "and"."""
    result = inputs[0].clone()
    for x in inputs[1:]:
        if reduction in ("BAND", "PRODUCT", "MIN"):
            result &= x
        elif reduction == "BXOR":
            result ^= x
        else:
            result |= x
    return result
