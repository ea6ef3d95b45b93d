"""The test's handles of the harness's processes: the zygote and its children."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tests.support import worker


@dataclass
class Outcome:
    """How a body ended on one rank."""

    rank: int
    result: object = None
    raised: str = ""  # "ValueError: no such root"
    traceback: str = ""
    died: str = ""  # "killed by SIGKILL"

    @property
    def failed(self) -> bool:
        return bool(self.raised or self.died)


class ZygoteClient:
    """Starts the zygote and talks to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        run = f"from {worker.__name__} import main; main({theirs.fileno()})"
        code = f"import sys; sys.path[:] = {sys.path!r}; {run}"
        settings = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
        settings["PYTHONWARNINGS"] = "ignore::FutureWarning"  # PyTorch renames its functions
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            env=os.environ | settings,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for pytest, which then closes the socket
        )
        theirs.close()
        self.socket = ours
        self.directory = tempfile.TemporaryDirectory(prefix="occl-test-")
        self.files = 0

    def new_file(self) -> str:
        """The name of a file that does not exist yet; all of them go with the zygote."""
        self.files += 1
        return f"{self.directory.name}/{self.files}"

    def ask(self, *request, fds: tuple[int, ...] = ()):
        socket.send_fds(self.socket, [pickle.dumps(request)], fds)
        reply = self.socket.recv(1 << 16)
        if not reply:
            raise RuntimeError(f"the zygote has ended with status {self.process.wait()}")
        answer = pickle.loads(reply)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.socket.close()
        self.process.wait()
        self.directory.cleanup()


class Member:
    """One rank's process, its pipe and its output."""

    def __init__(self, rank: int, pipe: socket.socket) -> None:
        self.rank = rank
        self.name = f"rank {rank}"  # in texts
        self.pipe = Connection(pipe.detach())
        self.log = os.memfd_create(f"output of rank {rank}")
        self.pid = 0
        self.pidfd = -1
        self.status: int | None = None

    def output(self) -> str:
        size = os.fstat(self.log).st_size
        return os.pread(self.log, 1 << 16, max(0, size - (1 << 16))).decode(errors="replace")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """By descriptor: it cannot hit another process that has got the same number since."""
        if self.status is None:
            signal.pidfd_send_signal(self.pidfd, number)


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
