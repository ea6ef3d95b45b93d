"""Finds the processes of this user that have groups, and reads what the system says of each.

A process keeps its control region open as a descriptor, and /proc/PID/fd shows it by the memfd's name. The
kernel lets another process open it by the rules for reading a process: the same user, and not set-user-id.
This module opens it for reading, and reads with pread, which cannot fault where a region has a hole or ends.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from occl import stacks
from occl.tools.top import records
from occl.tools.top.layout import OtherVersion, Unreadable

REGION = "/memfd:occl-control (deleted)"
PROC = Path("/proc")
STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits for a device",
    "T": "is stopped (SIGSTOP, or Ctrl-Z)",
    "t": "is stopped by a debugger",
    "X": "has exited",
    "I": "sleeps",
}


NO_PROC = "Without /proc, top finds no processes: mount it (mount -t proc proc /proc)."


def is_mounted() -> bool:
    return (PROC / "self").exists()


class NotShown(Exception):
    """A sentence: why a process that the user named cannot be shown."""


@dataclass
class Process:
    pid: int
    started: str  # `stacks.started`
    fd: int
    host: str
    exited: bool = False

    def read(self, offset: int, count: int) -> bytes:
        try:
            return os.pread(self.fd, count, offset)
        except (OSError, OverflowError, ValueError) as error:
            raise Unreadable(f"its memory cannot be read at {offset}: {error}") from error

    def state(self) -> str:
        """The letter of its state; ``X`` if it has exited."""
        if not self.exited:
            try:
                fields = stacks.status(self.pid)
                self.exited = fields[19] != self.started or fields[0] in "ZX"
                if not self.exited:
                    return fields[0]
            except (OSError, IndexError):
                self.exited = True
        return "X"

    def doing(self) -> str:
        """A clause: "is stopped (SIGSTOP, or Ctrl-Z)", "sleeps (futex_wait_queue)"."""
        state = self.state()
        said = STATES.get(state, "is in the state " + state)
        with contextlib.suppress(OSError):
            wchan = (PROC / str(self.pid) / "wchan").read_text().strip()
            if state in "SD" and wchan not in ("", "0"):
                said += f" ({wchan})"
        return said

    def stack(self) -> list[str]:
        """What `stacks.of` returns, or raises."""
        try:
            return stacks.of(_own_pid(self.pid), self.started)
        except OSError:  # it has just ended
            return []

    def close(self) -> None:
        os.close(self.fd)


def _own_pid(pid: int) -> int:
    """The pid of a process as it sees itself: its namespace may number it in another way."""
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid


def regions(pid: int) -> Iterator[int]:
    """Descriptors, open for reading, of the control regions that a process has open."""
    folder = PROC / str(pid) / "fd"
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if os.readlink(folder / name) == REGION:
                yield os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)


def attach(pid: int) -> Process | None:
    """The process, if it has a region of its own: a forked child holds its parent's.

    Raises `OtherVersion` and OSError.
    """
    problem: OtherVersion | None = None
    for fd in regions(pid):
        process = Process(pid, "", fd, "")
        try:
            own, _, _, host, _ = records.header(process.read)
            if own == _own_pid(pid):
                return Process(pid, stacks.started(pid), fd, host)
        except OtherVersion as other:
            problem = other
        except (Unreadable, IndexError):
            pass
        except OSError:
            os.close(fd)
            raise
        os.close(fd)
    if problem:
        raise problem
    return None


def named(pid: int) -> Process:
    """The process that the user asked for. Raises `NotShown`."""
    if not is_mounted():
        raise NotShown(NO_PROC)
    try:
        owner = (PROC / str(pid)).stat().st_uid
    except (OSError, OverflowError):
        raise NotShown(f"There is no process {pid} on this host.") from None
    try:
        process = attach(pid)
    except OtherVersion as other:
        raise NotShown(f"Process {pid} {other}: run top of the torch_occl that it uses.") from None
    except PermissionError:
        raise NotShown(
            f"Process {pid} belongs to {_user(owner)}, and its memory can only be read as that user."
            if owner != os.geteuid()
            else f"Process {pid} does not let itself be read: it has changed its user, or is not dumpable."
        ) from None
    except (OSError, IndexError):
        raise NotShown(f"Process {pid} has just ended.") from None
    if process is None:
        raise NotShown(f"Process {pid} has no group of torch_occl.")
    return process


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


class Processes:
    """Those that have been found. One that exits stays until `forget`."""

    def __init__(self, pids: Iterable[int] = (), with_own: bool = False) -> None:
        self.without = () if with_own else (os.getpid(),)
        self.chosen = {pid: named(pid) for pid in pids}
        self.known: dict[int, Process] = dict(self.chosen)
        self.problems: dict[int, str] = {}

    def look(self) -> list[Process]:
        """All that are there now, and those that have exited since."""
        if not self.chosen:
            self._find()
        return [*self.known.values()]

    def _find(self) -> None:
        self.problems = {}
        if not is_mounted():
            self.problems[0] = NO_PROC
            return
        for name in os.listdir(PROC):
            if not name.isdecimal() or (pid := int(name)) in self.without:
                continue
            known = self.known.get(pid)
            if known and (known.exited or known.state() != "X"):
                continue
            try:
                if (PROC / name).stat().st_uid == os.geteuid() and (found := attach(pid)):
                    if known:
                        known.close()
                    self.known[pid] = found
            except OtherVersion as other:
                self.problems[pid] = f"Process {pid} {other}."
            except (OSError, IndexError):  # it has just ended
                continue

    def forget(self, pid: int) -> None:
        self.known.pop(pid).close()
