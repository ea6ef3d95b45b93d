"""PyTorch's flight recorder for groups of ``occl``: the last operations of this process.

The variables that PyTorch reads switch it on (``docs/profiling.md``), and it writes a file by itself when an
operation fails. The functions here are for programs that want a dump at another moment:

    signal.signal(signal.SIGUSR2, lambda *_: torch_occl.flight_recorder.write())
"""

from __future__ import annotations

import json
import pickle
from typing import Any, cast

from torch._C import _distributed_c10d

from occl import _C, compat, registration
from occl.distributed import long_waits

__all__ = ["dump", "write"]


def dump(*, collectives: bool = True, stacks: bool = True, only_active: bool = False) -> bytes:
    """What ``torch._C._distributed_c10d._dump_fr_trace`` returns for other backends: a pickled dictionary.

    It also has ``waits``: what this process waits for, in the sentences of ``occl top``. The status of a
    group that has failed has its ``error``.

    Args:
        collectives: with the entries of operations, messages too.
        stacks: with the Python stack of each call, if it was recorded.
        only_active: without operations that have completed.
    """
    return pickle.dumps(_ours(collectives, stacks, only_active))


def write() -> bool:
    """Writes the file that an error would write. False if nothing is recorded."""
    return _C._write_flight_recorder()


def _ours(collectives: bool, stacks: bool, only_active: bool) -> dict[str, Any]:
    ours: dict[str, Any] = pickle.loads(_C._dump_flight_recorder(collectives, stacks, only_active))
    return ours | {"waits": long_waits.sentences()}


def _both(collectives: bool, stacks: bool, only_active: bool, backend: str) -> dict[str, Any]:
    """What PyTorch's own recorder has (of Gloo's groups, say) and what ours has, in the order of time.

    For occl it is ours alone: PyTorch's would have the same calls, if a program attached it to a group.
    """
    ours = _ours(collectives, stacks, only_active)
    if backend in registration.NAMES:
        return ours
    of_backend = compat.recorder_of(backend)
    theirs: dict[str, Any] = pickle.loads(_theirs(collectives, stacks, only_active, **of_backend))
    if backend != "gloo":
        return theirs
    for group, status in ours["pg_status"].items():
        theirs["pg_status"][f"occl {group}"] = status
    theirs["pg_config"] |= ours["pg_config"]
    theirs["waits"] = ours["waits"]
    if collectives:
        entries = [*theirs.get("entries", []), *ours.get("entries", [])]
        theirs["entries"] = sorted(entries, key=lambda entry: cast("int", entry["time_created_ns"]))
    return theirs


_c10d: Any = _distributed_c10d  # whose stub lacks these functions
_theirs = _c10d._dump_fr_trace
_reset_theirs = getattr(_c10d, "_reset_fr_trace", None)  # from 2.15 on


def _dump_fr_trace(
    includeCollectives: bool = True,
    includeStackTraces: bool = True,
    onlyActive: bool = False,
    backend: str = "gloo",
) -> bytes:
    return pickle.dumps(_both(includeCollectives, includeStackTraces, onlyActive, backend))


def _dump_fr_trace_json(
    includeCollectives: bool = True, onlyActive: bool = False, backend: str = "gloo"
) -> bytes:
    return json.dumps(_both(includeCollectives, False, onlyActive, backend)).encode()


def _dump_fr_trace_file(
    rank: int,
    includeCollectives: bool = True,
    includeStackTraces: bool = False,
    onlyActive: bool = False,
    backend: str = "gloo",
) -> None:
    _C._write_trace_file(rank, _dump_fr_trace(includeCollectives, includeStackTraces, onlyActive, backend))


def _reset_fr_trace(backend: str = "gloo") -> None:
    if backend in ("gloo", *registration.NAMES):
        _C._forget_flight_recorder()
    if _reset_theirs:
        _reset_theirs(backend)


def answer_for_pytorch() -> None:
    """PyTorch's own functions include our entries from now on. Idempotent."""
    for ours in (_dump_fr_trace, _dump_fr_trace_json, _dump_fr_trace_file, _reset_fr_trace):
        if hasattr(_c10d, ours.__name__):
            setattr(_c10d, ours.__name__, ours)
