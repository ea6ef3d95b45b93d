"""The processes of the harness: a zygote that has imported everything, and the ranks that it forks.

Forking is sound because the zygote has exactly one thread (it looks, before each fork, and refuses otherwise)
and has made no process group, so no lock is held and no engine runs that a child would miss.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import pickle
import signal
import socket
import sys
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

_parent: Connection | None = None


class EndInterpreter(BaseException):
    """From a body: this rank's interpreter ends now, with this status, as at the end of a script."""


def tell(message) -> None:
    """From a body: sends a message that the test receives with ``Team.hear(rank)``."""
    _parent.send(("told", message))


def listen():
    """From a body: waits for what the test sends with ``Team.say(rank, message)``."""
    return _parent.recv()


def join(rank: int, world_size: int, device: str, *, store: str, timeout: float) -> None:
    """The body that every other one runs after: makes the default group."""
    import torch.distributed as dist

    dist.init_process_group(
        "occl",
        store=dist.FileStore(store, world_size),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout),
    )


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def _threads() -> list[str]:
    return [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


class Zygote:
    """Answers requests until its socket closes, then ends its children and itself."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.workers: set[int] = set()
        _prctl(PR_SET_CHILD_SUBREAPER, 1)  # what a killed rank leaves behind becomes a child of ours
        # The last one is what DistributedDataParallel imports when the first one is made.
        for name in (
            "pytest",
            "torch.distributed.tensor",
            "torch.nn.parallel",
            "torch_occl._C",
            "torch._dynamo",
        ):
            importlib.import_module(name)

    def serve(self) -> None:
        while True:
            request, fds, _, _ = socket.recv_fds(self.control, 1 << 16, 253)
            if not request:
                break
            name, *args = pickle.loads(request)
            try:
                answer = getattr(self, name)(fds, *args)
            except Exception:  # noqa: BLE001 whatever it is, the test shows it
                answer = RuntimeError(f"in the zygote:\n{traceback.format_exc()}")
            self.control.send(pickle.dumps(answer))
        for pid in _children():
            os.kill(pid, signal.SIGKILL)

    def warm_up(self, fds: list[int], module: str, function: str) -> None:
        """Calls a function once, for all workers that are forked from now on."""
        getattr(importlib.import_module(module), function)()

    def fork(self, fds: list[int]) -> list[int]:
        """One worker for each pair (pipe, log) of descriptors; returns their process ids."""
        if len(threads := _threads()) != 1:
            raise RuntimeError(f"the zygote has several threads, forking it is not sound: {threads}")
        sys.stdout.flush()
        sys.stderr.flush()
        pids = []
        for pipe, log in zip(fds[::2], fds[1::2], strict=True):
            pid = os.fork()
            if pid == 0:
                for fd in fds:
                    if fd not in (pipe, log):
                        os.close(fd)
                self.control.close()
                _work(pipe, log)
            pids.append(pid)
        for fd in fds:
            os.close(fd)
        self.workers.update(pids)
        return pids

    def reap(self, fds: list[int], pid: int) -> int:
        """The wait status of a worker that has ended, or is about to."""
        self.workers.discard(pid)
        return os.waitpid(pid, 0)[1]

    def strays(self, fds: list[int]) -> list[tuple[int, str]]:
        """Processes that ended workers have left behind: (pid, command line)."""
        left = []
        for pid in _children():
            if pid not in self.workers and os.waitpid(pid, os.WNOHANG)[0] == 0:
                left.append((pid, Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")))
        return left


def _work(pipe: int, log: int) -> None:
    """The life of a worker. Never returns."""
    global _parent
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit "ignored"
    faulthandler.enable(2)
    faulthandler.register(signal.SIGUSR1, file=2)  # the test asks where a rank is that does not finish
    _parent = Connection(pipe)
    while True:
        try:
            job = _parent.recv()
        except EOFError:
            os._exit(0)
        _parent.send(_run(**job))
        sys.stdout.flush()
        sys.stderr.flush()


def _run(module: str, name: str, path: list[str], args: tuple, params: dict) -> tuple:
    """What the body returned or raised, as a message."""
    sys.path[:] = path
    try:
        result = getattr(importlib.import_module(module), name)(*args, **params)
        message = ("returned", result)
        pickle.dumps(message)
    except EndInterpreter as end:
        sys.exit(end.args[0])
    except BaseException as error:  # noqa: BLE001 KeyboardInterrupt and SystemExit are the test's business too
        message = ("raised", f"{type(error).__name__}: {error}", traceback.format_exc())
    return message


def main(fd: int) -> None:
    Zygote(socket.socket(fileno=fd)).serve()
