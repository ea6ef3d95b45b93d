"""Checks of arguments. Each raises before anything has been changed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from numbers import Integral
from typing import Any

import torch

OPS = ("sum", "mean")


def check_op(call: str, op: str) -> None:
    if op not in OPS:
        raise ValueError(f"{call}: op must be one of {', '.join(OPS)}, not {op!r}")


def check_list(call: str, elements: Any, what: str) -> list[Any]:
    """Returns ``elements`` as a list. A tensor is refused, although iterating over it gives tensors."""
    if isinstance(elements, (torch.Tensor, str)) or not isinstance(elements, Iterable):
        raise TypeError(f"{call}: expected a list of {what}, got {type(elements).__name__}")
    return list(elements)


def check_kind(call: str, name: str, value: Any, kind: type, what: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{call}: {name} is not {what} but {type(value).__name__}")


def check_tensors(call: str, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the list if it holds at least one tensor and only dense ones."""
    if isinstance(tensors, torch.Tensor):
        raise TypeError(f"{call}: expected a list of tensors, one for each device, got one tensor")
    tensors = list(tensors)
    if not tensors:
        raise ValueError(f"{call}: the list of tensors is empty")
    for i, tensor in enumerate(tensors):
        check_kind(call, f"element {i}", tensor, torch.Tensor, "a tensor")
        if tensor.layout != torch.strided:
            raise ValueError(f"{call}: tensor {i} is {tensor.layout}; only dense tensors are combined")
    return tensors


def check_alike(
    call: str,
    tensors: Sequence[torch.Tensor],
    name: str = "tensor",
    numbers: Sequence[int] | None = None,
    dims_from: int = 0,
) -> None:
    """Checks that all have one dtype, and one shape from dimension ``dims_from`` on.

    The error names the first tensor that differs from tensor 0. ``numbers``: what the error calls the
    tensors; by default, their positions in the list.
    """
    numbers = range(len(tensors)) if numbers is None else numbers
    first, reference = tensors[0], f"{name} {numbers[0]}"
    for i, tensor in zip(numbers, tensors, strict=True):
        if tensor.shape[dims_from:] != first.shape[dims_from:]:
            raise ValueError(
                f"{call}: {name} {i} has shape {list(tensor.shape)}, and {reference} {list(first.shape)}"
            )
        if tensor.dtype != first.dtype:
            raise ValueError(f"{call}: {name} {i} is {tensor.dtype}, and {reference} {first.dtype}")


def check_writable(call: str, name: str, tensor: torch.Tensor) -> None:
    """Checks that no two elements share memory, as they do in an expanded tensor."""
    if torch._debug_has_internal_overlap(tensor) == 1:
        raise ValueError(f"{call}: elements of {name} share memory (it is expanded): it cannot be written to")


def check_apart(call: str, tensors: Sequence[torch.Tensor], root: int | None = None) -> None:
    """Checks that tensors which are written share no memory, because each is written while others are read.

    The ``root`` is only read. Tensors whose extents overlap count as sharing memory, except those that
    interleave like ``t[::2]`` and ``t[1::2]``.
    """
    for i, tensor in enumerate(tensors):
        if i != root:
            check_writable(call, f"tensor {i}", tensor)
    spans = sorted((*_span(tensor), i) for i, tensor in enumerate(tensors) if tensor.numel())
    if all(end <= begin for (_, end, _), (begin, _, _) in pairwise(spans)):
        return
    for (begin, end, i), (other, _, j) in combinations(spans, 2):
        if other < end and not _interleave(tensors[i], tensors[j], other - begin):
            raise ValueError(f"{call}: tensors {min(i, j)} and {max(i, j)} share memory")


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The address of the first byte, and the address one past the last byte."""
    extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + extent * tensor.element_size()


def _interleave(a: torch.Tensor, b: torch.Tensor, distance: int) -> bool:
    steps = [step for t in (a, b) for n, step in zip(t.shape, t.stride(), strict=True) if n > 1]
    size, period = a.element_size(), math.gcd(*steps) * a.element_size()
    return period > 0 and size <= distance % period <= period - size


def check_root(call: str, root: int, n: int) -> None:
    check_kind(call, "root", root, Integral, "an integer")
    if not 0 <= root < n:
        raise ValueError(f"{call}: there is no root {root} among {n}")


def check_replicas(call: str, param_replicas: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Returns the lists of parameters if there is at least one, and all have the same shapes and dtypes."""
    replicas = check_list(call, param_replicas, "lists of parameters")
    replicas = [check_list(call, parameters, "parameters for each replica") for parameters in replicas]
    if not replicas:
        raise ValueError(f"{call}: there are no replicas")
    for i, parameters in enumerate(replicas):
        if len(parameters) != len(replicas[0]):
            raise ValueError(
                f"{call}: replica {i} has {len(parameters)} parameters, and replica 0 {len(replicas[0])}"
            )
    if not replicas[0]:
        raise ValueError(f"{call}: the replicas have no parameters")
    for index, copies in enumerate(zip(*replicas, strict=True)):
        for copy in copies:
            check_kind(call, f"parameter {index}", copy, torch.Tensor, "a tensor")
        check_alike(f"{call}: parameter {index}", copies, "replica")
    tied: list[dict[int, int]] = [{} for _ in replicas]
    for index, copies in enumerate(zip(*replicas, strict=True)):
        firsts = [first.setdefault(id(p), index) for first, p in zip(tied, copies, strict=True)]
        if len(set(firsts)) > 1:
            i = firsts.index(min(firsts))
            raise ValueError(
                f"{call}: parameter {index} of replica {i} is its parameter {firsts[i]} too; "
                "this is not so in all replicas"
            )
    return replicas
