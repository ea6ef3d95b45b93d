"""A forked child of the test's process, and what processes leave in /dev/shm."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path


def in_forked_child(body: Callable[[], object]) -> str:
    """What ``body`` returns in a forked child of this process, or the traceback of its exception, as text."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(write, str(body()).encode())
        except BaseException:  # noqa: BLE001 the parent shows it
            os.write(write, traceback.format_exc().encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return text


def in_dev_shm() -> list[Path]:
    """What lies in /dev/shm, but for what other libraries put there in tests that run beside this one."""
    others = ("torch_", "sem.", "vader_", "mpich_", "Intel_MPI", "ccl-", "psm")
    return sorted(path for path in Path("/dev/shm").iterdir() if not path.name.startswith(others))
