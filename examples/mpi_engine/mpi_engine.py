"""Groups of occl whose messages between nodes go over MPI.

    import mpi_engine

    mpi_engine.init_process_group()     # instead of torch.distributed.init_process_group("occl")
    ...
    mpi_engine.finalize()               # after destroy_process_group()

``python examples/mpi_engine/mpi_engine.py`` compiles the engine. Otherwise its first use on each host does.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import torch.distributed as dist
from torch.utils import cpp_extension

from torch_occl import ProcessGroupOCCL


@functools.cache
def build(verbose: bool = False) -> ModuleType:
    """Compiles ``engine.cpp`` with the flags of ``mpicxx``, where that has not been done yet.

    Raises:
        RuntimeError: there is no Open MPI, or the compiler failed.
    """
    if not shutil.which("mpicxx"):
        raise RuntimeError("mpicxx is missing: install Open MPI with its headers (Debian: libopenmpi-dev)")

    def flags(kind: str) -> list[str]:
        shown = subprocess.run(["mpicxx", f"--showme:{kind}"], check=True, capture_output=True, text=True)
        return shown.stdout.split()

    return cpp_extension.load(
        "occl_mpi_engine",
        str(Path(__file__).with_name("engine.cpp")),
        extra_cflags=flags("compile"),
        extra_ldflags=flags("link"),
        verbose=verbose,
    )


_engines: list[dist.Backend] = []


def engine() -> dist.Backend:
    """A new engine, which connects all ranks of the job: every rank must call this.

    Each has an MPI communicator of its own. A default group needs a new one, because messages that an earlier
    group has left behind would reach it otherwise.
    """
    _engines.append(build().Engine())
    return _engines[-1]


dist.Backend.register_backend("mpi_engine", lambda store, rank, size, timeout: engine(), devices="cpu")


def init_process_group(**arguments) -> None:
    """Makes the default group: occl, with MPI between its nodes.

    Args:
        arguments: of ``torch.distributed.init_process_group``, except for the backend, its options, the rank
            and the number of ranks. Without ``store`` and ``init_method``, MASTER_ADDR and MASTER_PORT say
            where the ranks meet.
    """
    between = engine()
    os.environ.setdefault("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))
    dist.init_process_group(
        "occl",
        rank=between.rank(),
        world_size=between.size(),
        pg_options=ProcessGroupOCCL.Options(inter_node=between),
        **arguments,
    )


def close() -> int:
    """Ends the engines, and gives up their messages. Takes 0.3 seconds at most for each engine.

    Returns:
        The number of messages that MPI goes on working on, because a peer has died or does not answer.
    """
    left = 0
    while _engines:
        left += _engines.pop().close()
    return left


def finalize() -> None:
    """Ends the engines and MPI. Every rank must call it: mpirun takes an end without it for a failure.

    Raises:
        RuntimeError: a message has not ended. MPI could then wait for it forever.
    """
    if left := close():
        raise RuntimeError(f"{left} messages over MPI have not ended, so MPI_Finalize could wait forever")
    build().finalize()


if __name__ == "__main__":
    build(verbose=True)
