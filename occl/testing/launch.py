"""The handles of the test's process: warm processes, spawned ranks, and one rank."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from occl.testing import forkserver
from occl.testing.child import Descriptors
from occl.testing.outcomes import WrongUse, too_many_processes

PACKAGE = Path(__file__).parents[1].parent
"""The folder in which occl lies."""

NOT_OURS = ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")
"""Variables that would make a new interpreter measure coverage by itself: the ranks are told to."""


THREADS = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
"""What torchrun sets too: ranks that each use all cores only get in each other's way."""


def environment() -> dict[str, str]:
    """The variables of this process as its ranks should have them."""
    return {name: value for name, value in (THREADS | os.environ).items() if name not in NOT_OURS}


def _start(code: str, fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """A fresh interpreter that finds modules where this one does, and occl.testing.

    It is given a program, not ``-m``, because that would look for the package before ``sys.path`` is set, and
    be the ``__main__`` and ``sys.argv`` that a rank's code sees.
    """
    path = [*sys.path, str(PACKAGE)]
    begin = f"import sys; sys.path[:] = {path!r}; "
    return subprocess.Popen(
        [sys.executable, "-c", begin + code],
        pass_fds=fds,
        env=environment(),
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for pytest, which then closes the sockets
    )


class Source(Protocol):
    """Where ranks come from."""

    def make(self, given: Sequence[Descriptors]) -> list[int]:
        """Starts a rank for each; returns their process ids.

        Raises:
            WrongUse: the system or the warm process refuses, and the text says why.
        """

    def reap(self, pid: int) -> int:
        """Waits for the end of a rank: its exit status, or minus the signal that killed it."""

    def close(self) -> None:
        """Ends what the source has started beside the ranks."""


class Warm:
    """A warm process, seen from the test's: what is common to the first one and its clones."""

    def __init__(self, ours: socket.socket) -> None:
        self.socket = ours

    def ask(self, *request: object, fds: tuple[int, ...] = (), timeout: float | None = None) -> Any:
        """What the warm process answers to a method's name and arguments.

        Raises:
            WrongUse: it refuses, and the text says why.
            RuntimeError: it has failed or ended.
            TimeoutError: it has not answered within `timeout` seconds.
        """
        self.socket.settimeout(timeout)
        socket.send_fds(self.socket, [pickle.dumps(request)], fds)
        reply = self.socket.recv(1 << 20)
        if not reply:
            raise RuntimeError("the warm process has ended")
        answer = pickle.loads(reply)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def make(self, given: Sequence[Descriptors]) -> list[int]:
        """Forks a rank for each."""
        most = forkserver.MOST_DESCRIPTORS // len(Descriptors._fields)
        pids: list[int] = []
        for i in range(0, len(given), most):
            pids += self.ask("fork", fds=tuple(fd for each in given[i : i + most] for fd in each))
        return pids

    def reap(self, pid: int) -> int:
        status: int = self.ask("reap", pid)
        return status

    def close(self) -> None:
        self.socket.close()


class ForkServer(Warm):
    """Starts the first warm process, which has imported the modules ``preload``, and talks to it."""

    def __init__(self, preload: Sequence[str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours)
        with theirs:
            run = (
                f"from occl.testing import forkserver; forkserver.main({theirs.fileno()}, {list(preload)!r})"
            )
            self.process = _start(run, [theirs.fileno()])
        self.directory = tempfile.TemporaryDirectory(prefix="occl-test-")
        self.files = 0

    def new_file(self) -> str:
        """The name of a file that does not exist yet; all of them go with the process."""
        self.files += 1
        return f"{self.directory.name}/{self.files}"

    def clone(self) -> Clone:
        """Another warm process, which has imported what this one has."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            return Clone(ours, self, self.ask("clone", fds=(theirs.fileno(),)))

    def close(self) -> None:
        super().close()
        self.process.wait()
        self.directory.cleanup()


class Clone(Warm):
    """A warm process that was forked from the first one."""

    def __init__(self, ours: socket.socket, parent: ForkServer, pid: int) -> None:
        super().__init__(ours)
        self.parent, self.pid = parent, pid

    def new_file(self) -> str:
        """As that of the first one, with which the files go."""
        return self.parent.new_file()

    def close(self) -> None:
        super().close()
        self.parent.reap(self.pid)

    def kill(self) -> None:
        """Ends it without waiting for what it is doing."""
        os.kill(self.pid, signal.SIGKILL)  # it has not been reaped, so the number is still its own
        self.close()


class Spawned:
    """Fresh interpreters."""

    def __init__(self) -> None:
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def make(self, given: Sequence[Descriptors]) -> list[int]:
        for each in given:
            run = f"from occl.testing import child; child.work(child.Descriptors{tuple(each)!r})"
            try:
                process = _start(run, each)
            except OSError as error:
                raise WrongUse(too_many_processes(error)) from error
            self.processes[process.pid] = process
        return list(self.processes)[-len(given) :]

    def reap(self, pid: int) -> int:
        return self.processes.pop(pid).wait()

    def close(self) -> None:
        """Nothing: a fresh interpreter is a rank."""


class Member:
    """One rank's process: its pipe, its output, and its stacks when it is asked for them."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.pid = 0
        self.pidfd = -1
        self.exitcode: int | None = None
        self.shown = self.begun = 0
        opened: list[int] = []
        try:
            opened += (end.detach() for end in socket.socketpair())
            opened += os.pipe()
            opened.append(os.memfd_create(f"output of rank {rank}"))
            opened.append(os.memfd_create(f"stacks of rank {rank}"))
        except OSError:
            for fd in opened:
                os.close(fd)
            raise
        ours, theirs, self.bell, ring, self.log, self.stacks = opened
        self.pipe = Connection(ours)
        self.given = Descriptors(theirs, self.log, self.stacks, ring)

    def begin(self, pid: int) -> None:
        """The process is there, and has the descriptors that were for it."""
        self.let_go()
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)

    def let_go(self) -> None:
        """Closes what is only for the rank."""
        os.close(self.given.pipe)
        os.close(self.given.bell)

    def mark_output(self) -> None:
        """What the rank has written so far is no part of its output any more."""
        self.begun = os.fstat(self.log).st_size

    def output(self) -> str:
        """What the rank has written to stdout and stderr since `mark_output`: the last 64 KiB."""
        size = os.fstat(self.log).st_size
        return os.pread(self.log, 1 << 16, max(self.begun, size - (1 << 16))).decode(errors="replace")

    def new_lines(self, *, last: bool = False) -> list[str]:
        """The lines that the rank has written since the last call. ``last``: also one without an end."""
        new = os.pread(self.log, os.fstat(self.log).st_size - self.shown, self.shown)
        whole = len(new) if last else new.rfind(b"\n") + 1
        self.shown += whole
        return new[:whole].decode(errors="replace").splitlines()

    def ask_for_stacks(self) -> None:
        """Makes the rank write what all of its threads are doing."""
        self.kill(signal.SIGUSR1)

    def stacks_written(self, patience: float) -> str:
        """What it has written; "" if it is stopped, or writes nothing within `patience` seconds."""
        wait([self.bell, self.pidfd], timeout=0 if self.state() == "T" else patience)
        return os.pread(self.stacks, 1 << 20, 0).decode(errors="replace")

    def state(self) -> str:
        """Of the main thread, in the kernel's letters: "S" sleeps, "T" was stopped by a signal."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def kill(self, number: int = signal.SIGKILL) -> None:
        """By descriptor: it cannot hit another process that has got the same number since."""
        if self.exitcode is None:
            signal.pidfd_send_signal(self.pidfd, number)

    def close(self) -> None:
        """Closes all that is here. The process must have ended."""
        for fd in (self.pidfd, self.log, self.stacks, self.bell):
            if fd >= 0:
                os.close(fd)
        self.pipe.close()
        self.pidfd = -1
