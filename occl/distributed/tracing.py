"""Traces: what each rank does in each operation (docs/tracing.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from occl import _C


@contextmanager
def trace(path: str | os.PathLike[str], *, max_bytes: int = 64 << 20) -> Iterator[Path]:
    """Records what this process does in each operation that is called inside the ``with`` block.

    Each process writes a file of its own into the directory ``path``, which it makes where needed; the value
    of the ``with`` is the path of that file. ``occl report path`` shows the files of all
    ranks together. Call it on all ranks: the others can only guess what a rank did that did not record.

    Args:
        path: a directory. Ranks of several hosts may use one that they share, or each its own whose files are
            brought together later.
        max_bytes: about how large the file becomes. After that new operations replace the oldest.

    Raises:
        ArgumentError: this process records a trace already, for instance because of ``OCCL_TRACE``.
        OSError: the directory cannot be made or written.
    """
    directory = Path(path).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(f"trace: cannot write into {directory}")
    made = Path(_C._start_trace(str(directory), max_bytes))
    try:
        yield made
    finally:
        _C._stop_trace()
