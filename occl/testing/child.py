"""The life of a rank: a process that runs the functions it is told, one after the other.

It is forked from a warm process (``forkserver.py``), or started on its own (``launch.Spawned``).
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from io import TextIOWrapper
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

_parent: Connection | None = None


class Descriptors(NamedTuple):
    """What a rank gets of the process that asked for it."""

    pipe: int
    """Both ways: functions to run, and how they ended."""
    output: int
    """Becomes stdout and stderr."""
    stacks: int
    """A file for the stacks of all threads, written on SIGUSR1."""
    bell: int
    """The write end of a pipe: a byte comes when the stacks have been written."""


class Described(BaseException):
    """From a function: it ends as it would with an exception, described by these fields of `Outcome`."""

    def __init__(self, **fields: str | None) -> None:
        self.fields = fields


class EndInterpreter(BaseException):
    """From a function: this rank's interpreter ends now, with this status, as at the end of a script."""


def tell(message: object) -> None:
    """From a function: sends a message that the test receives with ``Team.hear(rank)``."""
    assert _parent is not None, "tell() is for functions that a Team runs"
    _parent.send(("told", message))


def announce(signal_name: str, why: str) -> None:
    """From a function: the signal that this process is about to send itself is intended, and why."""
    assert _parent is not None, "announce() is for functions that a Team runs"
    _parent.send(("announced", (signal_name, why)))


def listen() -> Any:
    """From a function: waits for what the test sends with ``Team.say(rank, message)``."""
    assert _parent is not None, "listen() is for functions that a Team runs"
    return _parent.recv()


def receive(number: int) -> list[int]:
    """From a function: takes as many descriptors as the test's process gives with ``Team.give``."""
    assert _parent is not None, "receive() is for functions that a Team runs"
    with socket.socket(fileno=os.dup(_parent.fileno())) as pipe:
        return socket.recv_fds(pipe, 1, number)[1]


def prctl(option: int, value: int) -> None:
    """Raises OSError where the kernel refuses."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def work(given: Descriptors) -> NoReturn:
    """The life of a rank: ends with the process."""
    global _parent
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(given.output, 1)
    os.dup2(given.output, 2)
    os.close(given.output)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # a rank that is killed flushes nothing
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit "ignored"
    _answer_with_stacks(given.stacks, given.bell)
    _make_thread_pool_anew()
    _parent = Connection(given.pipe)
    while True:
        try:
            job = has_returned_and_waits_for_its_next_call(_parent)
        except EOFError:
            os._exit(0)
        once = job.pop("once")
        message = _run(**job)
        sys.stdout.flush()
        sys.stderr.flush()
        _parent.send(message)
        if once and _failed(message):
            os._exit(1)


def has_returned_and_waits_for_its_next_call(parent: Connection) -> dict[str, Any]:
    """Its name is for readers of the stack that is shown where other ranks wait for this one."""
    calls = select.poll()
    calls.register(parent.fileno(), select.POLLIN)
    calls.poll()  # in no other function, so that the stack begins here
    job: dict[str, Any] = parent.recv()
    return job


def _make_thread_pool_anew() -> None:
    """If the warm process has used PyTorch's thread pool, this process has it without its threads.

    PyTorch replaces it at its first use here, without a lock. The first use would be autograd's, by one
    thread for each device of an accelerator at once, which can end the process ("Invalid thread pool!").
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(torch.get_num_threads())


def _answer_with_stacks(stacks: int, bell: int) -> None:
    """SIGUSR1 writes all stacks, whatever the threads are doing; then the wakeup descriptor gets a byte.

    faulthandler calls the handler that was there before, and it is the C part of Python's that writes the
    byte: at once, even where the interpreter never comes to run the Python part.
    """
    faulthandler.enable(2)
    os.set_blocking(bell, False)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
    faulthandler.register(signal.SIGUSR1, file=stacks, chain=True)


def find(module: str, name: str) -> Callable[..., Any]:
    """The function with this qualified name."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def _failed(message: tuple[str, Any]) -> bool:
    """Whether it raised, other than to be skipped: ranks that all skip may still need each other before."""
    kind, content = message
    return kind == "raised" and content.get("skipped") is None and content.get("xfailed") is None


def _run(
    module: str, name: str, path: list[str], args: tuple[Any, ...], params: dict[str, Any]
) -> tuple[str, Any]:
    """What the function returned or raised, as a message."""
    sys.path[:] = path
    try:
        message: tuple[str, Any] = ("returned", find(module, name)(*args, **params))
        pickle.dumps(message)
    except EndInterpreter as end:
        sys.exit(end.args[0])
    except Described as described:
        message = ("raised", described.fields)
    except BaseException as error:  # noqa: BLE001 KeyboardInterrupt and SystemExit are the test's business too
        raised = f"{type(error).__name__}: {error}"
        message = ("raised", {"raised": raised, "traceback": traceback.format_exc()})
    return message
