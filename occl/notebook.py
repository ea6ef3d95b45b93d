"""Ranks for a function of a notebook, or of a script's main program: `launch`.

The ranks are forked from this process, so they have what the notebook has defined. They are the processes of
`occl.testing`, with its reports.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from occl.testing import child
from occl.testing.child import Descriptors
from occl.testing.options import OF_GROUP, Options
from occl.testing.outcomes import WrongUse, too_many_processes
from occl.testing.rank import make_group, set_variables
from occl.testing.team import Team

NO_LIMIT = 30 * 24 * 3600.0
"""Seconds that a function may take, unless its caller says otherwise."""
TIMEOUT = 1800.0
"""Seconds after which an operation of the default group gives up, as in PyTorch."""

Task = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]
_task: Task | None = None
"""In a rank: what it runs."""


def launch(
    function: Callable[..., Any],
    ranks: int = 2,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    backend: str | None = "occl",
    limit: float | None = None,
) -> list[Any]:
    """Runs a function in several ranks on this host, for a notebook, and returns their results.

    The ranks are forked from this process, so the function may be defined in a notebook's cell, and use what
    other cells have defined. In each rank the default group is made, and the variables ``RANK``,
    ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR`` and so on are set as torchrun does. Each rank computes
    with one thread. What the ranks print appears at once, with their numbers. A rank that raises or dies ends
    all of them.

    Args:
        function: called as ``function(*args, **kwargs)`` in each rank; lambdas and closures work too.
        ranks: how many.
        args, kwargs: of the function.
        backend: of the default group; None if the function makes the group, with ``init_process_group()``.
        limit: seconds that it may take.

    Returns:
        What it returned on each rank, in rank order, which must be picklable.

    Raises:
        occl.testing.WrongUse: this process cannot be forked, or is a rank; the text says what to do.
        occl.testing.RanksFailed: a rank has raised or died, or they have not ended in time. The text has the
            traceback of each rank.
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int):
        raise WrongUse(f"launch: the number of ranks must be an integer, not {ranks!r}")
    group_timeout = TIMEOUT if limit is None else min(TIMEOUT, OF_GROUP * limit)
    options = Options(ranks, "cpu", backend, backend is not None, limit or NO_LIMIT, group_timeout)
    if why := why_not():
        raise WrongUse(f"launch: {why}")
    task = (function, tuple(args), dict(kwargs or {}))
    with tempfile.TemporaryDirectory(prefix="occl-launch-") as folder:
        store, port = f"{folder}/store", free_port()
        with Team(ThisProcess(task), ranks, limit=options.limit, live=True, once=True) as team:
            return team.run(run, store=store, port=port, options=options)


def why_not() -> str:
    """Why ranks cannot be forked from this process, and what to do; "" if they can."""
    import torch
    import torch.distributed as dist

    again = "restart the kernel, and call launch before that, or put the program into a file for torchrun"
    if dist.is_initialized():
        return "this process is a rank of a process group itself: call destroy_process_group() first"
    if accelerator := torch.accelerator.current_accelerator():
        module = torch.get_device_module(accelerator)
        if getattr(module, "is_initialized", bool)():
            return (
                f"this process has used the device {accelerator.type}, which no forked process can: {again}"
            )
    if any(name.startswith("pt_autograd") for name in threads()):
        return (
            "this process has run a backward pass while it had a device, so that PyTorch started threads "
            f"which a forked process lacks: {again}"
        )
    return ""


def threads() -> list[str]:
    """The names of this process's threads."""
    return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


class ThisProcess:
    """A source of ranks (`occl.testing.launch.Source`): forks them from the process that runs."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def make(self, given: Sequence[Descriptors]) -> list[int]:
        pids: list[int] = []
        sys.stdout.flush()
        sys.stderr.flush()
        for own in given:
            try:
                with warnings.catch_warnings():  # of threads of the notebook's kernel, which the rank lacks
                    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
                    pid = os.fork()
            except OSError as error:
                for started in pids:
                    os.kill(started, 9)
                    self.reap(started)
                raise WrongUse(f"launch: {too_many_processes(error)}") from error
            if pid == 0:
                self.be_rank(own, {fd for each in given for fd in each} - {*own})
            pids.append(pid)
        return pids

    def be_rank(self, own: Descriptors, others: set[int]) -> None:
        """Does not return."""
        global _task
        try:
            _task = self.task
            for fd in others:
                os.close(fd)
            sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
            # Those of a notebook write to its kernel, and not to descriptors.
            sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
            sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
            child.work(own)
        finally:  # never into the code of the process that it was forked from
            os._exit(1)

    def reap(self, pid: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def close(self) -> None:
        """Nothing: this process has started nothing beside the ranks."""


def run(rank: int, world_size: int, device: str, *, store: str, port: int, options: Options) -> Any:
    """In a rank: the task.

    Raises:
        Described: it raised; with the traceback from the task's code on.
    """
    import torch

    assert _task is not None
    torch.set_num_threads(1)  # the parent's threads of OpenMP are not here, and would be waited for
    set_variables(rank, world_size)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    function, args, kwargs = _task
    try:
        if options.group:
            make_group(rank, options, torch.device(device), store)
        return function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 KeyboardInterrupt and SystemExit are the caller's business too
        trace = error.__traceback__.tb_next if error.__traceback__ else None  # without this function
        lines = traceback.format_exception(type(error), error, trace or error.__traceback__)
        raise child.Described(raised=f"{type(error).__name__}: {error}", traceback="".join(lines)) from None
