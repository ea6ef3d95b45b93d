"""What every collective must give, to the bit, computed with nothing but numpy and PyTorch's conversions.

The definition (invariant I2): contributions are combined in rank order; float16, bfloat16 and float8 in
float32, with one rounding at the end; AVG divides the sum; AVG of integers is the mean truncated toward zero;
a NaN stays NaN.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from occl.conformance.tensors import (
    COMPLEX,
    FLOATS,
    MOVABLE,
    REDUCIBLE,
    bits,
    difference,
    guards_broken,
    place,
    room,
)

__all__ = ["COMPLEX", "FLOATS", "MOVABLE", "REDUCIBLE", "bits", "place", "room"]

NAN_BITS = {
    "float16": 0x7E00,
    "bfloat16": 0x7FC0,
    "float8_e4m3fn": 0x7F,
    "float8_e5m2": 0x7F,
    "float8_e4m3fnuz": 0x80,
    "float8_e5m2fnuz": 0x80,
}
"""The one NaN that reductions produce."""

LARGEST = {"float8_e4m3fn": 448.0}
"""What larger values become: PyTorch's conversion does it from 2.13 on, and gave NaN before."""

PERIOD = 65521  # a prime: repetitions of the data fall on no boundary of an algorithm


@functools.cache
def offered() -> dict[str, list[str]]:
    """The reductions of each type, from the table in docs/reductions.md."""
    text = (Path(__file__).parents[2] / "docs" / "reductions.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if "|" in line
    ]
    names = rows[0][1:-1]
    return {
        row[0]: [op for op, cell in zip(names, row[1:-1], strict=True) if cell == "yes"] for row in rows[2:]
    }


def ops_for(dtype: str) -> list[str]:
    """The reductions that torch.distributed lets through for a type."""
    return [op for op in offered()[dtype] if not (op == "PRODUCT" and dtype in COMPLEX)]


def factor_of(rank: int) -> float:
    """What PREMUL_SUM multiplies this rank's contribution by."""
    return (rank + 1) / 3


def reduce_op(op: str, rank: int):
    if op == "PREMUL_SUM":
        return dist._make_nccl_premul_sum(factor_of(rank))
    return getattr(dist.ReduceOp, op)


@functools.cache
def _pattern(dtype: str) -> torch.Tensor:
    """PERIOD elements: plausible values, all kinds of bits between them, and the special ones."""
    t = getattr(torch, dtype)
    size = t.itemsize
    random = np.random.default_rng(size)
    if dtype == "bool":
        return torch.from_numpy(random.integers(0, 2, PERIOD).astype(bool))
    bits = torch.from_numpy(random.integers(0, 256, PERIOD * size, dtype=np.uint8)).view(t)
    if dtype not in FLOATS or size == 1:
        return bits if dtype not in COMPLEX else torch.view_as_complex(_pattern_of_components(dtype))
    plausible = torch.from_numpy(random.standard_normal(PERIOD) * 2.0 ** random.integers(-8, 8, PERIOD)).to(t)
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, 6e-8, 1.0], dtype=t)
    values = torch.where(torch.from_numpy(random.random(PERIOD) < 0.2), bits, plausible)
    values[::97] = special.repeat(PERIOD)[: len(values[::97])]
    return values


def _pattern_of_components(dtype: str) -> torch.Tensor:
    values = _pattern("float32" if dtype == "complex64" else "float64")
    return torch.stack([values, values.flip(0)], dim=1).contiguous()


def contribution(dtype: str, rank: int, count: int, salt: int = 0, first: int = 0) -> torch.Tensor:
    """What a rank contributes, from its element `first` on: the same on every rank that asks."""
    pattern = _pattern(dtype)
    begin = (rank * 7919 + salt * 104729 + first) % PERIOD
    size, data = pattern.dtype.itemsize, pattern.view(torch.uint8)
    if begin + count > PERIOD:
        data = data.repeat(-(-(begin + count) // PERIOD))
    return data[begin * size : (begin + count) * size].clone().view(pattern.dtype)


def reduced(inputs: list[torch.Tensor], op: str) -> torch.Tensor:
    """The combination of all ranks' inputs, in rank order."""
    t = inputs[0].dtype
    with np.errstate(all="ignore"):
        if inputs[0].numel() == 0:
            return torch.empty(0, dtype=t)
        if t.is_complex:
            reals = [torch.view_as_real(x).reshape(-1) for x in inputs]
            if op != "PRODUCT":
                return reduced(reals, op).view(t)
            product = _complex_product([r.reshape(-1, 2).numpy() for r in reals])
            return torch.from_numpy(_canonical(product).reshape(-1)).view(t)
        if not t.is_floating_point:
            return torch.from_numpy(_reduced_integers([x.numpy() for x in inputs], op))
        widened = [(x if t.itemsize >= 4 else x.float()).numpy() for x in inputs]
        result = _reduced_floats(widened, op)
        return torch.from_numpy(_canonical(result)) if t.itemsize >= 4 else _narrowed(result, t)


def _narrowed(values: np.ndarray, t: torch.dtype) -> torch.Tensor:
    """PyTorch's rounding; but its NaNs have bits that depend on the instruction set."""
    lies, name = {1: torch.uint8, 2: torch.int16}[t.itemsize], str(t).removeprefix("torch.")
    if name in LARGEST:
        values = np.clip(values, -LARGEST[name], LARGEST[name])  # keeps NaN
    result = torch.from_numpy(values).to(t)
    nan = NAN_BITS[name]
    return torch.where(result.float().isnan(), torch.tensor(nan, dtype=lies), result.view(lies)).view(t)


def _canonical(values: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(values), values.dtype.type(np.nan), values)


def _reduced_floats(inputs: list[np.ndarray], op: str) -> np.ndarray:
    t = inputs[0].dtype.type
    if op == "PREMUL_SUM":
        inputs = [x * t(factor_of(rank)) for rank, x in enumerate(inputs)]
    acc = inputs[0]
    for x in inputs[1:]:
        if op == "PRODUCT":
            acc = acc * x
        elif op == "MIN":
            acc = np.where((acc <= x) | np.isnan(acc), acc, x)
        elif op == "MAX":
            acc = np.where((acc >= x) | np.isnan(acc), acc, x)
        else:
            acc = acc + x
    return acc / t(len(inputs)) if op == "AVG" else acc


def _complex_product(inputs: list[np.ndarray]) -> np.ndarray:
    acc = inputs[0]
    for x in inputs[1:]:
        a, b, c, d = acc[..., 0], acc[..., 1], x[..., 0], x[..., 1]
        acc = np.stack([a * c - b * d, a * d + b * c], axis=-1)
    return acc


def _reduced_integers(inputs: list[np.ndarray], op: str) -> np.ndarray:
    t = inputs[0].dtype
    if op == "AVG":
        wide = np.uint64 if t == np.uint64 else np.int64  # narrower sums do not wrap
        total = sum((x.astype(wide) for x in inputs[1:]), inputs[0].astype(wide))
        n = wide(len(inputs))
        floor = total // n
        return (floor + ((total % n != 0) & (total < 0))).astype(t)
    names = {
        "MIN": "minimum",
        "MAX": "maximum",
        "BAND": "bitwise_and",
        "BOR": "bitwise_or",
        "BXOR": "bitwise_xor",
    }
    names |= {"SUM": "add", "PRODUCT": "multiply"}  # of bool: or, and
    return functools.reduce(getattr(np, names[op]), inputs)


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor, *what) -> None:
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, (actual, expected, what)
    found = difference(actual, expected)
    assert not found, f"{what}: {found}"


def assert_guards(tensor: torch.Tensor) -> None:
    """Nothing around the tensor has been written."""
    found = guards_broken(tensor)
    assert not found, found
