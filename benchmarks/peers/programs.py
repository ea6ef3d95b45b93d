"""Contenders that are programs of their own, one process for each rank.

Each process connects to the rank of this benchmark that has its number, and does what that rank tells it, in
the same turns as the contenders inside of this process (``benchmarks/peers/peer.h`` has the other end).
"""

import argparse
import contextlib
import ctypes.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from occl.bench import worker
from tests.support.mpi import AS_ROOT

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "benchmarks" / "peers"
BUILD = ROOT / "build" / "peers"
OBJECTS = ROOT / "build" / f"objects-{sys.implementation.cache_tag}" / "csrc"
INTEL = ROOT / ".peers"
"""The virtual environment that ``benchmarks/peers/install.sh`` makes."""
MPIEXEC = "bin/mpiexec.hydra"
START_TIMEOUT = 60.0
"""Seconds that a program has to start, on all ranks."""
ANSWER_TIMEOUT = 300.0
"""Seconds that a program has to answer a command."""


class PeerError(RuntimeError):
    """A program failed, or gave a wrong result."""


@dataclass(frozen=True)
class Program:
    """A program of ``benchmarks/peers`` and how its processes are started."""

    name: str
    target: str = ""
    """What the Makefile builds, if there is no ``command``."""
    missing: Callable[[], str] = lambda: ""
    """What it lacks on this machine; empty if it can be built and run."""
    arguments: tuple[str, ...] = ()
    launcher: Callable[[int], list[str]] | None = None
    """(number of ranks) to the command that launches all of them; None starts the program once for each."""
    around: Callable[[int], tuple[list[str], list[str]]] = lambda rank: ([], [])
    """(rank) to what stands before its command and behind its arguments, without a launcher."""
    environment: dict[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    """What starts it, in place of a program that is built."""

    def start(self, address: str, ranks: int) -> list[subprocess.Popen]:
        """Starts all ranks. ``address``: where each finds its harness; its output goes to ADDRESS.log."""
        command = [*(self.command or [str(BUILD / self.target)]), address]
        if self.launcher:
            commands = [[*self.launcher(ranks), *command, *self.arguments]]
        else:
            each = [(rank, *self.around(rank)) for rank in range(ranks)]
            commands = [
                [*before, *command, str(rank), str(ranks), *self.arguments, *behind]
                for rank, before, behind in each
            ]
        with Path(f"{address}.log").open("ab") as log:
            return [
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=os.environ | self.environment,
                )
                for command in commands
            ]


def lacks_tools(*tools: str) -> str:
    return ", ".join(tool for tool in tools if not shutil.which(tool))


def lacks_files(*files: Path) -> str:
    return ", ".join(str(file) for file in files if not file.exists())


def lacks_objects() -> str:
    """The programs of occl link what the extension was built from."""
    return lacks_files(OBJECTS / "coll/group/group.o")


def lacks_oneccl() -> str:
    files = lacks_files(INTEL / "lib/ccl/cpu/lib/libccl.a", INTEL / "lib/libintlc.so.5", INTEL / MPIEXEC)
    return files or ("" if ctypes.util.find_library("hwloc") else "libhwloc")


def with_intel(ranks: int) -> list[str]:
    return [str(INTEL / MPIEXEC), "-n", str(ranks)]


def oversubscribe(ranks: int) -> list[str]:
    return ["--oversubscribe"] if ranks > len(os.sched_getaffinity(0)) else []


# No library gets settings for binding its processes: users do not set any.
INTEL_ENVIRONMENT = {
    "I_MPI_ROOT": str(INTEL),
    "I_MPI_FABRICS": "shm",
    "CCL_ROOT": str(INTEL),
    "CCL_LOG_LEVEL": "error",
    "FI_PROVIDER_PATH": str(INTEL / "lib"),
}

PROGRAMS = {
    program.name: program
    for program in [
        Program("core-dev", "core", lacks_objects, ("mapped",)),
        Program("core-cpu", "core", lacks_objects, ("heap",)),
        Program("c++-dev", "backend", lacks_objects, ("dev",)),
        Program("c++-cpu", "backend", lacks_objects, ("cpu",)),
        Program(
            "openmpi",
            "openmpi",
            lambda: lacks_tools("mpicxx.openmpi", "mpirun.openmpi"),
            launcher=lambda n: ["mpirun.openmpi", *oversubscribe(n), "-n", str(n)],
            environment=AS_ROOT,
        ),
        Program(
            "mpich",
            "mpich",
            lambda: lacks_tools("mpicxx.mpich", "mpirun.mpich"),
            launcher=lambda n: ["mpirun.mpich", "-n", str(n)],
        ),
        Program(
            "intelmpi",
            "intelmpi",
            lambda: lacks_files(INTEL / "include/mpi.h", INTEL / "lib/libmpi.so", INTEL / MPIEXEC),
            launcher=with_intel,
            environment=INTEL_ENVIRONMENT,
        ),
        Program("oneccl", "oneccl", lacks_oneccl, ("auto", "auto"), with_intel, INTEL_ENVIRONMENT),
        Program("roofline-cached", "roofline", arguments=("cached",)),
        Program("roofline-streaming", "roofline", arguments=("streaming",)),
    ]
}


def prepare(names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Builds what can be built. Returns the names of programs that can run, and why the others cannot."""
    names = list(names)
    missing = {name: lacking for name in names if (lacking := PROGRAMS[name].missing())}
    if names and not SOURCES.is_dir():
        missing = dict.fromkeys(names, f"{SOURCES} (peers are built from a checkout)")
    elif names and (lacking := lacks_tools("make", os.environ.get("CXX", "g++").split()[0])):
        missing = dict.fromkeys(names, lacking)
    BUILD.mkdir(parents=True, exist_ok=True)
    for target in dict.fromkeys(PROGRAMS[name].target for name in names if name not in missing):
        if failure := build(target):
            missing |= {
                name: f"it does not build: {failure}" for name in names if PROGRAMS[name].target == target
            }
    return [name for name in names if name not in missing], missing


def build(target: str) -> str:
    """Brings a program up to date. Returns the first error, or nothing."""
    # What make looks at is named from its own folder, because a checkout's path may contain spaces.
    out, objects = (os.path.relpath(folder, SOURCES) for folder in (BUILD, OBJECTS))
    variables = {"OUT": out, "OBJECTS": objects, "INTEL": INTEL, "TORCH": Path(torch.__file__).parent}
    command = ["make", "-s", "-C", str(SOURCES), *(f"{name}={value}" for name, value in variables.items())]
    made = subprocess.run(
        [*command, f"{out}/{target}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if not made.returncode:
        return ""
    lines = made.stdout.splitlines()
    return next((line for line in lines if "error" in line or "undefined" in line), lines[-1])


class Connection:
    """This rank's end of the conversation with its process of one program."""

    def __init__(self, name: str, address: str, rank: int) -> None:
        self.name = name
        self.version = ""
        self._log = Path(f"{address}.log")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{address}.{rank}")
        self._listener.listen(1)
        self._listener.settimeout(0.1)
        self._socket: socket.socket | None = None
        self._lines: Iterator[str] = iter(())

    def accept(self, started: list[subprocess.Popen]) -> bool:
        """Whether the process has come. ``started``: what this rank started; it may have ended early."""
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and not any(process.poll() for process in started):
            with contextlib.suppress(TimeoutError):
                self._socket, _ = self._listener.accept()
                self._socket.settimeout(ANSWER_TIMEOUT)
                self._lines = iter(self._socket.makefile("r"))
                self.version = self._answer("ready")
                return True
        return False

    def prepare(self, operation: str, dtype: str, whole: int, calls: int) -> bool:
        """Makes the buffers and calls of a task. Returns whether the library has such an operation."""
        self._say(f"prepare {operation} {dtype} {whole} {calls}")
        return self._answer("ok", "unsupported") == "ok"

    def run(self, round_: int, calls: int) -> float:
        """Seconds that this rank took for ``calls`` calls. Raises PeerError if a result is wrong."""
        self._say(f"run {round_} {calls}")
        return float(self._answer("seconds"))

    def close(self) -> None:
        """The process ends when it reads this."""
        if self._socket:
            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        self._listener.close()

    def trouble(self, what: str) -> PeerError:
        output = self._log.read_text(errors="replace").strip() if self._log.exists() else ""
        return PeerError(f"{self.name} {what}. It said: {output[-1500:] or 'nothing'}")

    def _say(self, command: str) -> None:
        try:
            self._socket.sendall(f"{command}\n".encode())
        except OSError as error:
            raise self.trouble("ended") from error

    def _answer(self, *expected: str) -> str:
        """The rest of the answer's line, or its word where there is no more."""
        try:
            line = next(self._lines, "")
        except OSError as error:
            raise self.trouble(f"did not answer: {error}") from error
        word, _, rest = line.strip().partition(" ")
        if word not in expected:
            raise self.trouble("ended")
        return rest or word


@contextlib.contextmanager
def started(
    names: Iterable[str], folder: Path, rank: int, ranks: int, programs: Mapping[str, Program] = PROGRAMS
) -> Iterator[dict[str, Connection]]:
    """Runs the programs with these names, and gives the connections of this rank.

    A collective call: the first rank starts them. What does not start everywhere is left out, and the first
    rank says so.
    """
    connections: dict[str, Connection] = {}
    processes: list[subprocess.Popen] = []
    try:
        for name in names:
            address = str(folder / name)
            connection = Connection(name, address, rank)
            dist.barrier()  # all are listening
            new = programs[name].start(address, ranks) if rank == 0 else []
            processes += new
            came = torch.tensor([float(connection.accept(new))])
            dist.all_reduce(came, dist.ReduceOp.MIN)
            if came.item():
                connections[name] = connection
                continue
            connection.close()
            if rank == 0:
                print(f"left out: {connection.trouble('does not start')}", flush=True)
        yield connections
    finally:
        for connection in connections.values():
            with contextlib.suppress(OSError):
                connection.close()
        stop(processes)


def work(rank: int, options: argparse.Namespace, folder: str, counters: Any) -> None:
    """What each rank does: the benchmark of the package, with these programs."""
    worker.work(rank, options, folder, counters, started)


def stop(processes: list[subprocess.Popen], grace: float = 10.0) -> None:
    """Waits for the processes to end by themselves, and ends those that do not."""
    deadline = time.monotonic() + grace
    for process in processes:
        try:
            process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.terminate()  # launchers end their ranks then
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
