"""One pytest session: its warm processes, and how it runs a function in ranks."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from occl.testing import coverage, modules, serialize, worker
from occl.testing.debugger import TERMINAL
from occl.testing.fault_report import Course
from occl.testing.faults import Fault
from occl.testing.launch import Clone, ForkServer, Spawned, environment
from occl.testing.options import Options
from occl.testing.outcomes import Outcome, RanksFailed, WrongUse
from occl.testing.pool import Pool
from occl.testing.team import Team

PRELOAD = ("torch.distributed.tensor", "torch.nn.parallel", "torch._dynamo")
"""What most tests of distributed code import sooner or later: an optimizer's first step imports dynamo."""

MOST_CLONES = 4
"""Warm processes that stay. Each has imported one test module, and tests come module by module."""

OF_TEST = "PYTEST_CURRENT_TEST"
"""The variable that pytest changes before each test. Kept ranks get its value with each test."""

NO_LIMIT = 7 * 24 * 3600.0
"""Seconds for debugging a rank."""


@dataclass
class Ended:
    """How a function has ended on all ranks."""

    outcomes: list[Outcome]
    """In rank order; none if some ranks have not ended in time."""
    printed: dict[int, str]
    """By rank; empty where it was shown live."""
    report: str
    """What went wrong, or ""."""
    course: Course
    left: str = ""
    """What it has left behind in kept ranks, or ""."""

    def results(self) -> list[Any]:
        """What it returned, in rank order.

        Raises:
            RanksFailed: it did not return on every rank.
        """
        if self.report:
            raise RanksFailed(self.report, self.printed)
        return [o.result for o in self.outcomes]


@dataclass
class Showing:
    """How the session shows what happens in ranks."""

    style: str = "auto"
    locals: bool = False
    live: bool = False
    debugged: int | None = None
    """The rank that gets the terminal."""


class Session:
    """To be closed."""

    def __init__(self, preload: Sequence[str], showing: Showing) -> None:
        self.preload = tuple(preload)
        self.showing = showing
        self._first: ForkServer | None = None
        self._pools: dict[object, Pool[Clone | Spawned]] = {}

    @property
    def first(self) -> ForkServer:
        """The first warm process, which is started when a test needs it."""
        if self._first is None:
            self._first = ForkServer(("torch.distributed", *self.preload))
        return self._first

    def run(
        self,
        module: ModuleType,
        name: str,
        arguments: Mapping[str, object],
        wanted: Sequence[str],
        options: Options,
        conftests: Sequence[ModuleType] = (),
        faults: Sequence[Fault] = (),
    ) -> Ended:
        """Runs a function in new ranks, or in those that an earlier test has left fit for it.

        Args:
            module, name: where it is, and its qualified name there.
            arguments: those that are the same in all ranks.
            wanted: the names of those that each rank has its own of.
            conftests: modules that the ranks import first.
            faults: those that are planned for these ranks.

        Raises:
            WrongUse: it cannot run, or has returned what this process cannot rebuild; the text says why.
        """
        for fault in faults:
            fault.check(options.world_size)
        place = _place((*conftests, module), options)
        debugged = self.showing.debugged
        if debugged is not None and debugged >= options.world_size:
            debugged = None
        if debugged is not None:
            options = replace(options, limit=NO_LIMIT, timeout=NO_LIMIT, keep=False)
        call = worker.Call(
            place,
            module.__name__,
            name,
            serialize.packed(arguments),
            tuple(wanted),
            options,
            self.first.new_file(),
            self.showing.style,
            self.showing.locals,
            debugged,
            coverage.settings(),
            tuple(faults),
        )
        course = Course(faults)
        pool = self._pool(place, options)
        try:
            with self._team(pool, place, options) as team:
                team.start(worker.run, options.device, limit=options.limit, sent=pickle.dumps(call))
                if debugged is not None:
                    team.give(debugged, TERMINAL)
                try:
                    outcomes = team.finish()
                except RanksFailed as error:
                    _take(team, course)
                    return Ended([], error.outputs, error.report, course)
                _take(team, course)
                printed, text, left = team.printed(), team.report(), _left(outcomes)
                if not team.well or course.planned or left:
                    team.close()
                for outcome in outcomes:
                    outcome.result = _rebuilt(outcome)
                failed = any(outcome.failed for outcome in outcomes)
                wrong = [text] * failed + [course.missed(options.world_size)]
                return Ended(outcomes, printed, "\n".join(filter(None, wrong)), course, left)
        finally:
            if isinstance(pool.source, Clone):
                pool.source.ask("sweep")

    def _team(
        self, pool: Pool[Clone | Spawned], place: worker.Place, options: Options
    ) -> AbstractContextManager[Team]:
        def make() -> Team:
            return Team(pool.source, options.world_size, live=self.showing.live, once=True)

        if not options.keep:
            return make()
        group = (options.backend, options.group_timeout) if options.group else None
        environment = tuple(item for item in place.environment if item[0] != OF_TEST)
        return pool.lend((options.world_size, options.device, group, environment), make)

    def _pool(self, place: worker.Place, options: Options) -> Pool[Clone | Spawned]:
        """The warm process that has imported the test's modules, with the teams that it has forked."""
        key = (options.start, place.sources, place.dev)
        pool = self._pools.pop(key, None)
        if pool is None:
            while len(self._pools) >= MOST_CLONES:
                self._pools.pop(next(iter(self._pools))).close()
            source = Spawned() if options.start == "spawn" else self._clone(place, options)
            pool = Pool(source)
        self._pools[key] = pool  # the last one is the one that was used last
        return pool

    def _clone(self, place: worker.Place, options: Options) -> Clone:
        clone = self.first.clone()
        prepare = (worker.prepare.__module__, worker.prepare.__name__)
        try:
            clone.ask("warm_up", *prepare, place, timeout=options.limit)
        except TimeoutError:
            clone.kill()
            raise WrongUse(
                f"The warm process has not imported {place.sources[-1].file} in {options.limit:g} s. "
                "Let the import wait for nothing, or raise the limit."
            ) from None
        except BaseException:
            clone.close()
            raise
        return clone

    def close(self) -> None:
        """Ends the ranks and the warm processes."""
        for pool in self._pools.values():
            pool.close()
        if self._first is not None:
            self._first.close()


def _take(team: Team, course: Course) -> None:
    """Takes what the ranks have told beside their results."""
    for messages in team.heard.values():
        for kind, content in map(pickle.loads, messages):
            if kind == "coverage":
                coverage.add(content)
            else:
                course.take(kind, content)


def _left(outcomes: Sequence[Outcome]) -> str:
    """What the ranks have left behind: what the first one says that has left anything."""
    return next((o.result[1] for o in outcomes if o.result and o.result[1]), "")


def _place(imported: Sequence[ModuleType], options: Options) -> worker.Place:
    found = (source for module in imported for source in modules.sources(module))
    return worker.Place(
        tuple(dict.fromkeys(found)),
        tuple(sys.path),
        str(Path.cwd()),
        tuple(environment().items()),
        options.device.partition(":")[0] == "dev",
    )


def _rebuilt(outcome: Outcome) -> Any:
    """What the function returned, which `worker.run` has pickled."""
    if outcome.failed or outcome.intended:
        return None
    try:
        return pickle.loads(outcome.result[0])
    except Exception as error:  # any, of any class's own code
        raise WrongUse(
            f"What rank {outcome.rank} returned cannot be rebuilt in the pytest process "
            f"({type(error).__name__}: {error}). Return plain data or CPU tensors: tensor.cpu()."
        ) from error
