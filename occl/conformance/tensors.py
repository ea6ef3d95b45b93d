"""Tensors that a test sends and receives: which types, where they lie, and whether they are the same."""

from __future__ import annotations

import torch

SMALL_FLOATS = ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
FLOATS = ["float32", "float64", *SMALL_FLOATS]
COMPLEX = ["complex64", "complex128"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
REDUCIBLE = [*FLOATS, *COMPLEX, *INTEGERS, "bool"]
MOVABLE = [*REDUCIBLE, "float8_e8m0fnu", "float4_e2m1fn_x2"]

GUARD = 0xA5
"""The byte that surrounds tensors, and that a place for a result holds."""


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor, in the order of its elements, on the CPU."""
    flat = tensor.cpu().contiguous().reshape(-1)
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)  # the stride of one element may be any


def difference(actual: torch.Tensor, expected: torch.Tensor) -> str:
    """How many bits differ, and where; "" if none do. Shapes are the caller's to compare."""
    a, e = bits(actual), bits(expected)
    if torch.equal(a, e):
        return ""
    wrong = (a != e).view(-1, actual.dtype.itemsize).any(dim=1).nonzero().view(-1)
    i = int(wrong[0])
    size = actual.dtype.itemsize
    got, want = (x[i * size : (i + 1) * size].flip(0).tolist() for x in (a, e))
    return (
        f"{len(wrong)} of {len(a) // size} elements differ, the first is [{i}]: "
        f"0x{bytes(got).hex()} where 0x{bytes(want).hex()} is expected; the last is [{int(wrong[-1])}]"
    )


def place(values: torch.Tensor, device: torch.device | str, offset: int = 0, step: int = 1) -> torch.Tensor:
    """These values on the device, as a view with guard bytes around it.

    Args:
        values: one-dimensional, on the CPU.
        offset: elements of the buffer before the first value.
        step: 1, or the distance of two values in the buffer, in elements.
    """
    size = values.dtype.itemsize
    count = values.numel()
    end = offset + max(0, count - 1) * step + min(count, 1)
    buffer = torch.full(((end + 5) * size,), GUARD, dtype=torch.uint8)
    if count:
        buffer[offset * size : end * size].as_strided((count, size), (step * size, 1)).copy_(
            values.reshape(-1).view(torch.uint8).view(count, size)
        )
    return buffer.to(device).view(values.dtype)[offset:end:step]


def room(dtype: str, count: int, device: torch.device | str, offset: int = 0, step: int = 1) -> torch.Tensor:
    """A place for a result, filled with what no result is."""
    t = getattr(torch, dtype)
    return place(
        torch.full((count * t.itemsize,), GUARD, dtype=torch.uint8).view(t), device, offset, step=step
    )


def guards_broken(tensor: torch.Tensor) -> str:
    """Whether bytes around a tensor of `place` or `room` were written, or between its elements; "" if not."""
    size = tensor.dtype.itemsize
    count, step = tensor.numel(), tensor.stride(0) if tensor.dim() else 1
    everything = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).cpu()
    guards = torch.ones(everything.numel(), dtype=torch.bool)
    if count:
        guards.as_strided((count, size), (step * size, 1), tensor.storage_offset() * size).fill_(False)
    written = (everything[guards] != GUARD).nonzero()
    if not len(written):
        return ""
    at = int(guards.nonzero()[written[0]])
    return f"byte {at} of the buffer was written, and the tensor begins at {tensor.storage_offset() * size}"
