"""Whether a value is the same on all ranks, to the last bit."""

from __future__ import annotations

import ctypes
import hashlib
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


def assert_same_on_all_ranks(value: object, group: dist.ProcessGroup | None = None) -> None:
    """Fails on every rank unless all ranks have the same value. All ranks of the group must call it.

    Tensors must have the same shape, type and bits: NaN equals NaN, and 0.0 differs from -0.0. Their devices
    may differ. Dictionaries, lists and tuples are compared item by item, other values by type and ``==``.

    Args:
        value: a tensor, plain data, or dictionaries, lists and tuples of these.
        group: the default group, if not given.

    Raises:
        AssertionError: they differ. The text names the first rank that differs from the group's first rank,
            and the first element.
        TypeError: a tensor is sparse or distributed.
        ValueError: there is no group.
    """
    __tracebackhide__ = True
    import torch.distributed as dist

    if not dist.is_initialized():
        raise ValueError(
            "assert_same_on_all_ranks needs a group: let the mark make one, or call init_process_group"
        )
    leaves = dict(_leaves(value, ""))
    mine = [(place, _kind(leaf), _digest(leaf)) for place, leaf in leaves.items()]
    theirs: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(theirs, mine, group=group)
    found = _first_difference(theirs)
    if found is None:
        return
    rank, place, what = found
    first, other = (
        dist.get_global_rank(group, number) if group is not None else number for number in (0, rank)
    )
    where = f" at {place}" if place else ""
    if what:
        raise AssertionError(f"rank {other} differs from rank {first}{where}: {what}")
    contents: list[Any] = [None] * len(theirs)
    dist.all_gather_object(contents, _content(leaves[place]), group=group)
    detail = _detail(leaves[place], contents[0], contents[rank])
    raise AssertionError(f"rank {other} differs from rank {first}{where}{detail.format(other, first)}")


def _leaves(value: object, place: str) -> Iterator[tuple[str, object]]:
    """Each leaf, with the subscripts that lead to it."""
    if isinstance(value, dict):
        yield f"{place}.keys()" if place else ".keys()", sorted(map(repr, value))
        for key in sorted(value, key=repr):
            yield from _leaves(value[key], f"{place}[{key!r}]")
    elif type(value) in (list, tuple):
        yield f"len({place})", len(value)  # type: ignore[arg-type]
        for i, item in enumerate(value):  # type: ignore[arg-type, var-annotated]
            yield from _leaves(item, f"{place}[{i}]")
    else:
        yield place, value


def _plain(leaf: object) -> torch.Tensor | None:
    """A tensor, or an array of NumPy, as a tensor in the CPU's memory; None for anything else."""
    import torch

    if hasattr(leaf, "__array_interface__") and not isinstance(leaf, torch.Tensor):
        leaf = torch.as_tensor(leaf)
    if not isinstance(leaf, torch.Tensor):
        return None
    if leaf.layout != torch.strided or hasattr(leaf, "full_tensor"):
        raise TypeError(
            "assert_same_on_all_ranks compares dense tensors: pass tensor.to_dense() of a sparse one, and "
            "tensor.to_local() or tensor.full_tensor() of a DTensor"
        )
    return leaf.detach().resolve_conj().resolve_neg().cpu().contiguous()


def _kind(leaf: object) -> str:
    tensor = _plain(leaf)
    if tensor is None:
        return type(leaf).__name__
    return f"a tensor of {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _bytes(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""


def _digest(leaf: object) -> object:
    """Equal where the leaf is; small where the leaf is a tensor."""
    tensor = _plain(leaf)
    if tensor is not None:
        return hashlib.sha256(_bytes(tensor)).digest()
    return pickle.dumps(leaf) if isinstance(leaf, float) else leaf


def _first_difference(theirs: list[list[tuple[str, str, object]]]) -> tuple[int, str, str] | None:
    """The first rank that differs from rank 0: (rank, place, what differs if not the bits)."""
    for rank, mine in enumerate(theirs):
        for first, other in zip(theirs[0], mine, strict=False):
            if first == other:
                continue
            if first[0] != other[0]:
                return rank, "", f"it has {other[0] or 'a value'} where the other has {first[0] or 'a value'}"
            if first[1] != other[1]:
                return rank, first[0], f"{other[1]}, and not {first[1]}"
            return rank, first[0], ""
    return None


def _content(leaf: object) -> object:
    tensor = _plain(leaf)
    return leaf if tensor is None else _bytes(tensor)


def _detail(leaf: object, first: Any, other: Any) -> str:
    """What differs, with two places for the numbers of the ranks."""
    import torch

    tensor = _plain(leaf)
    if tensor is None:
        return f": {_escaped(other)} on rank {{}}, {_escaped(first)} on rank {{}}"
    size = tensor.element_size()
    differ = [i for i in range(0, len(first), size) if first[i : i + size] != other[i : i + size]]
    at = differ[0]
    index: list[int] = []
    rest = at // size
    for length in reversed(tensor.shape):
        index.insert(0, rest % length)
        rest //= length
    values = []
    for content in (other, first):
        bits = content[at : at + size]
        number = torch.frombuffer(bytearray(bits), dtype=tensor.dtype)[0].item()
        values.append(f"{_escaped(number)} (0x{bits[::-1].hex()})")
    return (
        f", element {index}: {values[0]} on rank {{}}, {values[1]} on rank {{}} "
        f"({len(differ)} of {tensor.numel()} elements differ)"
    )


def _escaped(value: object) -> str:
    return repr(value).replace("{", "{{").replace("}", "}}")
