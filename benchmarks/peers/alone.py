"""A rank of one contender from Python, alone in its process: it answers as the programs of this folder do.

    python -m benchmarks.peers.alone ADDRESS RANK SIZE CONTENDER

The other end is ``programs.Connection``; ``peer.h`` is the same for the programs in C++.
"""

import ctypes
import gc
import mmap
import socket
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from occl.bench.contenders import EVERY, options_of
from occl.bench.gate import Gate
from occl.bench.measure import Arena, Data, Round
from occl.bench.operations import OPERATIONS, Operation


def shared_counters(path: Path, ranks: int) -> Any:
    """Memory for the gates of all ranks."""
    size = ranks * ctypes.sizeof(ctypes.c_int64)
    with path.open("a+b") as file:
        file.truncate(size)  # all ranks make it as long
        return (ctypes.c_int64 * ranks).from_buffer(mmap.mmap(file.fileno(), size))


def operation_of(kind: str, dtype: str, contender: str) -> Operation | None:
    """None if there is none, or not for the contender's tensors."""
    for it in OPERATIONS:
        if it.kind == kind and str(it.dtype) == f"torch.{dtype}":
            return it if EVERY[contender].mapped or not it.mapped else None
    return None


class Task:
    """What "prepare" asks for."""

    def __init__(self, contender: str, operation: Operation, whole: int, calls: int) -> None:
        self.operation = operation
        self.arena = Arena(operation, contender, dist.group.WORLD, whole, calls)
        self.data = Data.of(operation, whole, calls)

    def run(self, gate: Gate, number: int, calls: int) -> float:
        """Seconds of this rank. Raises WrongResult."""
        return self.arena.run(gate, Round(self.operation, self.data, number), calls)


def main() -> None:
    address, rank, ranks, contender = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    store = dist.FileStore(f"{address}.store", ranks)
    backend, options = EVERY[contender].backend, options_of(contender)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, pg_options=options)
    gate = Gate(shared_counters(Path(f"{address}.gate"), ranks), rank)
    gc.disable()  # a collection in a timed section would be noise
    task: Task | None = None
    with socket.socket(socket.AF_UNIX) as harness:
        harness.connect(f"{address}.{rank}")
        harness.sendall(f"ready torch {torch.__version__}\n".encode())
        for line in harness.makefile():
            command, *words = line.split()
            if command == "run":
                answer = f"seconds {task.run(gate, *map(int, words)):.9e}"
            elif operation := operation_of(*words[:2], contender):
                task = None  # its memory first
                task = Task(contender, operation, *map(int, words[2:]))
                answer = "ok"
            else:
                answer = "unsupported"
            harness.sendall(f"{answer}\n".encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
