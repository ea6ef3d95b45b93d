"""The warm process: it has imported everything that tests need, and forks the ranks.

Forking is sound because the process has exactly one thread (it looks, before each fork, and refuses
otherwise) and has made no process group, so no lock is held and no engine runs that a child would miss.
A thread that a handler of fork has started does not count, because the handler starts it in the next child
as well: the runtime of ThreadSanitizer has one.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Container
from pathlib import Path
from typing import NoReturn

from occl.testing import child
from occl.testing.outcomes import WrongUse, too_many_processes

MOST_DESCRIPTORS = 252
"""A message carries at most 253 (SCM_MAX_FD), and a rank takes four."""


class ForkRefused(WrongUse):
    """A process could not be forked; the text says why, and what to do."""


def _threads() -> dict[int, str]:
    """The ids and names of all threads but the main one."""
    python = {thread.native_id: thread.name for thread in threading.enumerate()}
    tasks = {int(task.name): task / "comm" for task in Path("/proc/self/task").iterdir()}
    return {t: python.get(t) or comm.read_text().strip() for t, comm in tasks.items() if t != os.getpid()}


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _fork(started_by_fork: Container[int] = ()) -> int:
    """What `os.fork` returns.

    Raises:
        ForkRefused: this process has threads other than these, or the system allows no other process.
    """
    if threads := sorted(name for thread, name in _threads().items() if thread not in started_by_fork):
        raise ForkRefused(
            f"The warm process has other threads ({', '.join(threads)}), so forking it is not sound. "
            "Something that is imported has started them: start them in the test, or use start='spawn'."
        )
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        return os.fork()
    except OSError as error:
        raise ForkRefused(too_many_processes(error)) from error


class Server:
    """Answers requests until its socket closes, then ends its children and itself."""

    def __init__(self, control: socket.socket, started_by_fork: Container[int] = ()) -> None:
        self.control = control
        self.started_by_fork = started_by_fork
        self.children: set[int] = set()
        # What a killed rank leaves behind becomes a child of ours.
        child.prctl(child.PR_SET_CHILD_SUBREAPER, 1)

    def serve(self) -> None:
        while True:
            request, fds, _, _ = socket.recv_fds(self.control, 1 << 20, 253)
            if not request:
                break
            name, *args = pickle.loads(request)
            try:
                answer = getattr(self, name)(fds, *args)
            except WrongUse as error:
                answer = error
            except Exception:  # noqa: BLE001 whatever it is, the test shows it
                answer = RuntimeError(f"in the warm process:\n{traceback.format_exc()}")
            self.control.send(pickle.dumps(answer))
        for pid in _children():
            os.kill(pid, signal.SIGKILL)

    def warm_up(self, fds: list[int], module: str, function: str, *args: object) -> None:
        """Calls a function once, for all processes that are forked from now on."""
        child.find(module, function)(*args)

    def fork(self, fds: list[int]) -> list[int]:
        """One rank for every four descriptors; returns their process ids."""
        size = len(child.Descriptors._fields)
        pids: list[int] = []
        try:
            for given in (child.Descriptors(*fds[i : i + size]) for i in range(0, len(fds), size)):
                if (pid := _fork(self.started_by_fork)) == 0:
                    for fd in {*fds, self.control.detach()} - set(given):
                        os.close(fd)
                    child.work(given)
                pids.append(pid)
        except ForkRefused:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            pids.clear()
            raise
        finally:  # not in a rank, which does not come here
            if self.control.fileno() >= 0:
                for fd in fds:
                    os.close(fd)
        self.children.update(pids)
        return pids

    def clone(self, fds: list[int]) -> int:
        """Another warm process, which answers to this socket; returns its process id."""
        if (pid := _fork(self.started_by_fork)) == 0:
            self.control.close()
            child.prctl(child.PR_SET_PDEATHSIG, signal.SIGKILL)
            _serve(fds[0])
        os.close(fds[0])
        self.children.add(pid)
        return pid

    def reap(self, fds: list[int], pid: int) -> int:
        """How a child has ended that has ended, or is about to: its exit status, or minus a signal."""
        self.children.discard(pid)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def strays(self, fds: list[int]) -> list[tuple[int, str]]:
        """Processes that ended ranks have left behind: (pid, command line)."""
        left = []
        for pid in _children():
            if pid not in self.children and os.waitpid(pid, os.WNOHANG)[0] == 0:
                left.append((pid, Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")))
        return left

    def sweep(self, fds: list[int]) -> None:
        """Ends what ended ranks have left behind."""
        for pid, _ in self.strays(fds):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _serve(fd: int) -> NoReturn:
    """A clone's life. It must never return into the code of the process that it was forked from."""
    clone = os.getpid()
    try:
        Server(socket.socket(fileno=fd), started_by_fork=_threads()).serve()
    except BaseException:
        if os.getpid() != clone:
            raise  # in a rank, whose interpreter ends so
        traceback.print_exc()  # no other process is left to show it
        os._exit(1)
    os._exit(0)


def main(fd: int, preload: list[str]) -> None:
    """A warm process that has imported these modules, and answers to this socket."""
    for name in preload:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a rank would write to every object of these modules, and so copy its page
    Server(socket.socket(fileno=fd)).serve()
