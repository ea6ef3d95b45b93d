"""What the fixture ``run_ranks`` gives to a test."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from occl.testing.options import Options
from occl.testing.outcomes import WrongUse
from occl.testing.session import Ended

_Run = Callable[[ModuleType, str, Mapping[str, object], Sequence[str], Options, bool], Ended]


class RunRanks:
    """Runs functions in ranks: a new group of processes for each call, unless they are kept."""

    def __init__(self, run: _Run, limit: float) -> None:
        self._run, self._limit = run, limit

    def __call__(
        self,
        function: Callable[..., Any],
        world_size: int = 2,
        *,
        params: Mapping[str, object] | None = None,
        device: str = "cpu",
        backend: str | None = None,
        group: bool = True,
        limit: float | None = None,
        timeout: float | None = None,
        start: str = "fork",
        keep: bool = False,
        check: bool = True,
    ) -> list[Any]:
        """Runs a function in every rank, with the default group made.

        Args:
            function: a function of a module. Of ``rank``, ``world_size`` and ``device`` it gets those that
                it has as arguments.
            world_size: the number of ranks.
            params: further arguments, which must be picklable.
            device, backend, group, limit, timeout, start, keep: as those of the mark ``ranks``.
            check: whether a rank that raises or dies fails the test. If not, each result is an
                `occl.testing.Outcome`, which says how that rank ended.

        Returns:
            The results in rank order.

        Raises:
            occl.testing.RanksFailed: a rank has raised or died, unless a fault was to end it, the ranks
                have not ended in time, or a fault has not come to pass.
            occl.testing.WrongUse: it cannot run; the text says what to do.
        """
        __tracebackhide__ = True
        asked = Options(
            world_size, device, backend, group, self._limit if limit is None else limit, timeout, start, keep
        )
        name = getattr(function, "__qualname__", repr(function))
        module = sys.modules.get(getattr(function, "__module__", None) or "")
        if "<" in name or module is None:
            raise WrongUse(
                f"run_ranks: {name} cannot be found by name in another process. Make it a function at the "
                "top of a module, and give what it needs as params={...}."
            )
        arguments = dict(params or {})
        signature = inspect.signature(function)
        own = [
            n for n in ("rank", "world_size", "device") if n in signature.parameters and n not in arguments
        ]
        try:
            signature.bind(**arguments, **dict.fromkeys(own))
        except TypeError as error:
            raise WrongUse(
                f"run_ranks: {name}{signature} does not fit its arguments: {error}. A rank gives rank, "
                "world_size and device; everything else comes from params={...}."
            ) from None
        ended = self._run(module, name, arguments, own, asked, check)
        if not check and ended.outcomes and not ended.course.missed(world_size):
            return ended.outcomes
        return ended.results()
