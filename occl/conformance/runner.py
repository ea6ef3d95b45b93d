"""The ranks that run cases, seen from pytest's process: kept from case to case while all goes well."""

from __future__ import annotations

import time
from dataclasses import dataclass

from occl.conformance import rank_api
from occl.conformance.capabilities import Capabilities
from occl.conformance.catalog import Case
from occl.testing.launch import ForkServer, Source, Spawned
from occl.testing.outcomes import Outcome, RanksFailed, WrongUse
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


class Ranks:
    """To be closed."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.forkserver = ForkServer(("pytest", "torch.distributed"))
        self.team: Team | None = None
        try:
            prepare = (rank_api.prepare.__module__, rank_api.prepare.__name__)
            self.forkserver.ask("warm_up", *prepare, asked.backend, asked.device, asked.imports)
        except BaseException:
            self.forkserver.close()
            raise

    def close(self) -> None:
        self._drop()
        self.forkserver.close()

    def _drop(self) -> None:
        if self.team is not None:
            self.team.close()
            self.team = None

    def _ready(self, timeout: float) -> Team:
        """Ranks with a default group whose operations have this timeout.

        Raises:
            RanksFailed: they cannot make the group.
            WrongUse: the system refuses them.
        """
        source: Source = Spawned() if self.asked.capabilities.start == "spawn" else self.forkserver
        self.team = Team(source, self.asked.size)
        self.team.run(
            rank_api.enter,
            limit=STARTING,
            backend=self.asked.backend,
            device=self.asked.device,
            imports=self.asked.imports,
            store=self.forkserver.new_file(),
            timeout=timeout,
        )
        return self.team

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
            self._drop()
        try:
            team = self.team or self._ready(rule.timeout or NEVER * self.asked.limit)
        except RanksFailed as error:
            self._drop()
            raise WrongUse(f"the ranks cannot make their default group: {error}") from None
        what = {"operation": rule.operation, "name": rule.name, "values": dict(case.values)}
        team.start(rank_api.run_case, limit=self.asked.limit, **what)
        try:
            outcomes: list[Outcome | None] = list(team.finish())
            late = ""
        except RanksFailed as error:
            outcomes, late = list(team.running.values()), error.report
        victims = {self.asked.size - 1} if rule.operation == "death" else set()
        ended = Ended(*_verdict(outcomes, late, victims), time.monotonic() - begin)
        if (
            rule.own
            or late
            or ended.verdict != expected
            or not team.alive
            or _interrupted(outcomes, rule.synchronous)
        ):
            self._drop()
        return ended


def _interrupted(outcomes: list[Outcome | None], synchronous: bool) -> bool:
    """Whether a body ended at a call that raised and may have left others in flight."""
    raised = [outcome is not None and bool(outcome.raised) for outcome in outcomes]
    return any(raised) and not (synchronous and all(raised))


def _verdict(outcomes: list[Outcome | None], late: str, victims: set[int]) -> tuple[str, str]:
    """Of all ranks: a crash counts most, then a wrong result, then a rank that waits, then a refusal."""
    found: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome is None:
            continue
        if outcome.died:
            verdict, text = ("refuses", "") if outcome.rank in victims else ("crashes", outcome.died)
        elif outcome.raised:
            verdict, text = "refuses", outcome.raised
        else:
            verdict, text = outcome.result
        found.setdefault(verdict, []).append(f"rank {outcome.rank}: {text}" if text else "")
    for verdict in ("crashes", "wrong"):
        if verdict in found:
            return verdict, next(filter(None, found[verdict]), "")
    if late:
        return "hangs", late
    if "refuses" in found:
        return "refuses", next(filter(None, found["refuses"]), "")
    return "works", ""
