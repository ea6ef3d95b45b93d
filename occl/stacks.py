"""Python stacks that processes show each other: what a rank does that others wait for.

A thread sleeps until another process of the same user asks, and then reads the stack of the main thread.
There is no signal. It needs the interpreter's lock: a process does not answer while a call outside Python
keeps that. Between two questions the thread has a task of its own (occl/distributed/long_waits.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

FRAMES = 32
"""The innermost ones of a stack are shown: those of a debugger, which may be 20, and some of the program."""
PATIENCE = 0.3
"""Seconds to wait for an answer. A thread gets the interpreter's lock in 10 ms, unless a call keeps it."""

_listener: socket.socket | None = None


class NoAnswer(Exception):
    """The process would answer, but something keeps its interpreter's lock."""


def status(pid: int | str) -> list[str]:
    """Of a process the fields of /proc/PID/stat, from the state on."""
    return Path("/proc", str(pid), "stat").read_text(errors="replace").rpartition(")")[2].split()


def started(pid: int | str) -> str:
    """When a process started, in clock ticks since the boot. Pids are used again; both together are not."""
    return status(pid)[19]


def _address(pid: int, start: str) -> str:
    """In the abstract namespace: there is no file, and the name ends with the process."""
    return f"\0torch_occl stack of process {pid} {start}"


def own() -> list[str]:
    """The frames of this process's main thread, the innermost first: ``step (train.py:12)``."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return []
    found = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=FRAMES, lookup_lines=False)
    return [f"{it.name} ({Path(it.filename).name}:{it.lineno})" for it in found]


def answer(task: Callable[[], float]) -> None:
    """From now on this process shows its stack to others of its user, if it gets a thread and a socket.

    Args:
        task: what the thread does besides, again and again. Returns the seconds until the next time.
    """
    global _listener
    if _listener is not None:
        return
    with contextlib.ExitStack() as unless_it_answers, contextlib.suppress(OSError, RuntimeError):
        listener = unless_it_answers.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(_address(os.getpid(), started("self")))
        listener.listen()
        arguments = listener, task
        threading.Thread(target=_serve, args=arguments, name="torch_occl stacks", daemon=True).start()
        _listener = listener
        unless_it_answers.pop_all()


def hurry() -> None:
    """Has the thread do its task now."""
    if _listener is None:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.connect(_listener.getsockname())


def _forget_parent() -> None:
    """A forked child has no such thread, and must not keep its parent's name."""
    global _listener
    if _listener is not None:
        _listener.close()
        _listener = None


os.register_at_fork(after_in_child=_forget_parent)


def _serve(listener: socket.socket, task: Callable[[], float]) -> None:
    with contextlib.suppress(OSError):  # no descriptors are left
        while True:
            if not select.select([listener], [], [], task())[0]:
                continue
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError):  # it has gone
                _, user, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                if user in (0, os.geteuid()):
                    client.sendall("\n".join(own()).encode(errors="replace"))


def of(pid: int, start: str) -> list[str]:
    """The frames that a process shows; none if it shows nothing, or is not reached. Raises `NoAnswer`.

    Args:
        pid: as that process sees itself.
        start: `started` of it.
    """
    said = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(PATIENCE)
        try:
            asking.connect(_address(pid, start))
            while part := asking.recv(1 << 16):
                said += part
        except TimeoutError:
            raise NoAnswer from None
        except OSError:
            return []
    return said.decode(errors="replace").splitlines()
