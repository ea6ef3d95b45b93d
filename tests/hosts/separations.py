"""What can keep processes of one machine apart: namespaces, users and restrictions.

Bodies apply a separation to their own process before they make a group: by its name, in `SEPARATIONS`. All of
them need root; a kernel that refuses one raises OSError.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults import limits

CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
PR_SET_DUMPABLE = 4
OTHER_USER = 12345

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: int | bytes | None) -> None:
    """A function of the C library. Raises OSError where the kernel refuses."""
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def nothing() -> None:
    """Stays where the test's process is."""


def pid() -> None:
    """Process numbers of its own, for the children that this process forks."""
    call("unshare", CLONE_NEWPID)


def ipc() -> None:
    """System V memory and message queues of its own."""
    call("unshare", CLONE_NEWIPC)


def uts(name: str = "elsewhere") -> None:
    """A host name of its own."""
    call("unshare", CLONE_NEWUTS)
    socket.sethostname(name)


def without_shm() -> None:
    """Mounts of its own, without /dev/shm."""
    limits.small_shared_folder("absent")


def hidden_proc() -> None:
    """A /proc that shows a process only to its own user."""
    limits.own_mounts()
    call("mount", b"proc", b"/proc", b"proc", 0, b"hidepid=2")


def users(outside: int = 0) -> None:
    """A user namespace in which root is the user ``outside`` of the machine."""
    if outside:
        os.setgroups([])
        os.setresgid(outside, outside, outside)
        os.setresuid(outside, outside, outside)
        call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # a change of user takes the right to write one's own maps
    call("unshare", CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {outside} 1")
    Path("/proc/self/gid_map").write_text(f"0 {outside} 1")


def users_of_another() -> None:
    users(OTHER_USER)


def user() -> None:
    """Another user."""
    os.setgroups([])
    os.setresgid(OTHER_USER, OTHER_USER, OTHER_USER)
    os.setresuid(OTHER_USER, OTHER_USER, OTHER_USER)


def undumpable() -> None:
    """No process without privileges may trace this one, or read its memory through /proc."""
    call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)


def network() -> None:
    """Network interfaces and abstract sockets of its own: only loopback, and that is down."""
    call("unshare", CLONE_NEWNET)


def container() -> None:
    """What a container has of its own if it runs in the host's network."""
    ipc()
    uts("container")
    without_shm()


SEPARATIONS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        nothing, pid, ipc, uts, without_shm, limits.without_proc, limits.read_only_files, hidden_proc, users,
        users_of_another, user, undumpable, network, container,
    )
}  # fmt: skip


@contextmanager
def in_child() -> Iterator[bool]:
    """Forks: yields True in the child, whose end is that of the process, and False in the parent after it."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        if status:
            raise ChildProcessError(f"the child ended with status {status}")
        yield False
        return
    with contextlib.suppress(BaseException):
        yield True
        os._exit(0)
    os._exit(1)


def need(name: str) -> None:
    """Skips the test where this machine does not allow a separation."""
    if reason := why_not(name):
        pytest.skip(reason)


def why_not(name: str) -> str:
    """Why this machine does not allow a separation, as a sentence; empty if it does."""
    if os.geteuid() != 0:
        return "Separations need root."
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            SEPARATIONS[name]()
        except OSError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as answer:
        reason = answer.read()
    return f"This machine refuses the separation {name!r}: {reason}." if reason else ""
