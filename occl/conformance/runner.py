"""Cases, run in ranks from pytest's process, and their verdicts."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass

from occl.conformance import device, rank_api
from occl.conformance.capabilities import Capabilities
from occl.conformance.catalog import Case
from occl.testing.launch import ForkServer, Source, Spawned
from occl.testing.outcomes import Outcome, RanksFailed, WrongUse
from occl.testing.pool import Pool
from occl.testing.team import Team

NEVER = 100
"""Unless a rule has a timeout, that of operations is the limit of a case times this: what waits hangs."""

STARTING = 120.0
"""Seconds that ranks may take to make the default group."""


@dataclass
class Ended:
    """How a case has ended."""

    verdict: str
    text: str
    seconds: float


@dataclass(frozen=True)
class Asked:
    """What the user has asked for."""

    backend: str
    device: str
    size: int
    limit: float
    capabilities: Capabilities

    @property
    def imports(self) -> list[str]:
        return list(self.capabilities.imports)


class Runner:
    """Runs cases, each in the ranks of the one before while all goes well. To be closed."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.pool = Pool(ForkServer(("pytest", "torch.distributed")))
        self.ranks_from: Source = Spawned() if asked.capabilities.start == "spawn" else self.pool.source
        self.backend_class = ""
        """Of the backend, with its module, once there are ranks."""
        prepare = (rank_api.prepare.__module__, rank_api.prepare.__name__)
        try:
            self.pool.source.ask("warm_up", *prepare, asked.backend, asked.device, asked.imports)
            self.device_defects = self._device_defects()
        except BaseException:
            self.pool.close()
            raise

    def close(self) -> None:
        self.pool.close()

    def _device_defects(self) -> list[str]:
        try:
            return device.defects(
                lambda: Team(self.ranks_from, 1),
                self.asked.device,
                STARTING,
                backend=self.asked.backend,
                imports=self.asked.imports,
            )
        except RanksFailed as error:
            raise WrongUse(f"the device cannot be used: {error}") from None

    def _ready(self, timeout: float) -> AbstractContextManager[Team]:
        """Ranks with a default group whose operations have this timeout."""

        def enter(team: Team) -> None:
            try:
                self.backend_class, *_ = team.run(
                    rank_api.enter,
                    self.asked.device,
                    limit=STARTING,
                    backend=self.asked.backend,
                    imports=self.asked.imports,
                    store=self.pool.source.new_file(),
                    timeout=timeout,
                )
            except RanksFailed as error:
                raise WrongUse(f"the ranks cannot make their default group: {error}") from None

        return self.pool.lend("cases", lambda: Team(self.ranks_from, self.asked.size), enter)

    def run(self, case: Case, expected: str) -> Ended:
        """Runs a case.

        Args:
            expected: the verdict that leaves the ranks fit for the next case.

        Raises:
            WrongUse: the ranks cannot be made; the text says why.
        """
        rule = case.rule
        begin = time.monotonic()
        if rule.own:
            self.pool.drop()
        with self._ready(rule.timeout or NEVER * self.asked.limit) as team:
            what = {"operation": rule.operation, "name": rule.name, "values": dict(case.values)}
            team.start(rank_api.run_case, self.asked.device, limit=self.asked.limit, **what)
            try:
                outcomes: list[Outcome | None] = list(team.finish())
                late, printed = "", team.printed()
            except RanksFailed as error:
                outcomes, late, printed = list(team.running.values()), error.report, error.outputs
            victims = {self.asked.size - 1} if rule.operation == "death" else set()
            stacks = {rank: device.crash(text) for rank, text in printed.items()}
            ended = Ended(*_verdict(outcomes, late, victims, stacks), time.monotonic() - begin)
            as_it_should = ended.verdict in (expected, "untested")
            if rule.own or late or not as_it_should or _interrupted(outcomes, rule.synchronous):
                team.close()
        return ended


def _interrupted(outcomes: list[Outcome | None], synchronous: bool) -> bool:
    """Whether a body ended at a call that raised and may have left others in flight."""
    raised = [outcome is not None and bool(outcome.raised) for outcome in outcomes]
    return any(raised) and not (synchronous and all(raised))


def _verdict(
    outcomes: list[Outcome | None], late: str, victims: set[int], stacks: dict[int, str]
) -> tuple[str, str]:
    """Of all ranks: a crash counts most, then a failure of the suite, then a wrong result, then a rank that
    waits, then a refusal. A rule counts as tested if a rank has tested it."""
    found: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome is None:
            continue
        if outcome.died:
            verdict, text = "crashes", "\n".join(filter(None, [outcome.died, stacks.get(outcome.rank)]))
            if outcome.rank in victims:
                verdict, text = "refuses", ""
        elif outcome.raised.startswith(rank_api.OWN):
            verdict, text = "error", outcome.raised
        elif outcome.raised:
            verdict, text = "refuses", outcome.raised
        else:
            verdict, text = outcome.result
        found.setdefault(verdict, []).append(f"rank {outcome.rank}: {text}" if text else "")
    for verdict in ("crashes", "error", "wrong"):
        if verdict in found:
            return verdict, next(filter(None, found[verdict]), "")
    if late:
        return "hangs", late
    if "refuses" in found:
        return "refuses", next(filter(None, found["refuses"]), "")
    if "untested" in found and "works" not in found:
        return "untested", next(filter(None, found["untested"]), "")
    return "works", ""
