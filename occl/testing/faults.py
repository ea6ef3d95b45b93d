"""What the fixture ``faults`` plans: which rank is struck, how, and at which of its calls."""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from occl.testing import intercept
from occl.testing.outcomes import WrongUse

ANY = "any"
"""The name that stands for all operations."""

RANDOM = ("kill", "stop", "late", "oom")
"""The kinds that `Faults.random` chooses from, if it is not told."""


@dataclass(frozen=True)
class Fault:
    """One fault. Its text is the call that plans it."""

    kind: str
    """``"kill"``, ``"stop"``, ``"late"``, ``"delay"``, ``"oom"`` or ``"cut"``."""
    ranks: tuple[int, ...]
    """The rank that is struck; of a cut, the ranks on one side of it."""
    operation: str
    """A name of `intercept.NAMES`, or `ANY`."""
    number: int
    """Of the operation's calls on this rank since the fault was planned, from 1; of a delay: the first."""
    seconds: float = 0.0
    """Of late and delay."""
    seed: int | None = None
    """What it was drawn from."""

    def __str__(self) -> str:
        ranks = f"ranks={list(self.ranks)}" if self.kind == "cut" else f"rank={self.ranks[0]}"
        seconds = f", seconds={self.seconds:g}" if self.kind in ("late", "delay") else ""
        when = f'of="{self.operation}"' if self.kind == "delay" else f'at="{self.operation}#{self.number}"'
        return f"faults.{self.kind}({ranks}{seconds}, {when})"

    @property
    def rank(self) -> int:
        """The rank that is struck."""
        return self.ranks[0]

    def strikes(self, rank: int) -> bool:
        """Whether this rank has something to do for it: of a cut, every rank has."""
        return self.kind == "cut" or rank in self.ranks

    def check(self, size: int) -> None:
        """Raises WrongUse if a rank is not below the world size."""
        for rank in self.ranks:
            if rank >= size:
                raise WrongUse(f"{self}: there is no rank {rank} among {size} ranks, which count from 0")
        if self.kind == "cut" and len(self.ranks) == size:
            raise WrongUse(f"{self}: all ranks are on one side; leave out those on the other side")


class Faults:
    """The fixture ``faults``. Each method plans a fault; the docs (docs/testing.md) say what each does.

    Every rank of a marked test must call a method alike, as it calls a collective. In pytest's process, a
    call is for the next ``run_ranks``. A rank's calls are counted from there on.

    Args:
        seed: of random faults.
        test: the name of the test; with one seed, tests of other names have other random faults.
        add: takes a planned fault, and raises WrongUse if it cannot be.
        size: the number of ranks, where it is known.
    """

    def __init__(self, seed: int, test: str, add: Callable[[Fault], None], size: int | None = None) -> None:
        self._seed, self._test, self._add, self._size = seed, test, add, size
        self._drawn = 0

    def __reduce__(self) -> Any:
        from occl.testing import inject

        return inject.faults, (self._seed, self._test)

    def kill(self, rank: int, *, at: str) -> Fault:
        """The rank's process ends by SIGKILL when it is about to make this call."""
        return self._plan("kill", [rank], at)

    def stop(self, rank: int, *, at: str) -> Fault:
        """The rank's process stops by SIGSTOP when it is about to make this call. It ends with the test."""
        return self._plan("stop", [rank], at)

    def late(self, rank: int, seconds: float, *, at: str) -> Fault:
        """The rank makes this call `seconds` later."""
        return self._plan("late", [rank], at, seconds)

    def delay(self, rank: int, seconds: float, *, of: str = ANY) -> Fault:
        """The rank makes every call of this operation, or of all, `seconds` later."""
        if isinstance(of, str) and "#" in of:
            raise WrongUse(
                f"faults.delay: of={of!r} names one call, and a delay is of all: use faults.late(rank, "
                "seconds, at=...), or leave out the number"
            )
        return self._plan("delay", [rank], f"{of}#1" if isinstance(of, str) else of, seconds)

    def oom(self, rank: int, *, at: str) -> Fault:
        """The rank's call raises what its device raises where there is no memory, and is not made."""
        return self._plan("oom", [rank], at)

    def cut(self, ranks: Sequence[int], *, at: str) -> Fault:
        """No byte comes through TCP between these ranks and the others from this call of each rank on.

        The ranks wait for each other at this call, so that the cut is at one place of the program.
        """
        if isinstance(ranks, int) or not isinstance(ranks, Sequence) or not ranks:
            raise WrongUse(f"faults.cut: the ranks on one side are a list, such as [2, 3], not {ranks!r}")
        return self._plan("cut", ranks, at)

    def random(
        self,
        *,
        within: int,
        kinds: Sequence[str] = RANDOM,
        ranks: Sequence[int] | None = None,
        seed: int | None = None,
    ) -> Fault:
        """Plans one of ``kinds``, for one of ``ranks``, at one of its first ``within`` calls.

        Args:
            within: how many calls of any operations each of the ranks makes, at least.
            kinds: ``"kill"``, ``"stop"``, ``"late"`` (by up to a second), ``"oom"``.
            ranks: all, if not given.
            seed: of this fault, instead of that of the run, which the report of a failing test shows and
                pytest's option ``--faults-seed`` sets.

        Returns:
            The fault: its ``kind``, ``rank`` and ``number``.
        """
        if isinstance(within, bool) or not isinstance(within, int) or within < 1:
            raise WrongUse(f"faults.random: within must be a number of calls from 1, not {within!r}")
        for kind in kinds:
            if kind not in RANDOM:
                raise WrongUse(f"faults.random: there is no kind {kind!r}: choose of {', '.join(RANDOM)}")
        if ranks is None and self._size is None:
            raise WrongUse("faults.random: say which ranks may be struck: ranks=range(3)")
        if not kinds or (ranks is not None and not len(ranks)):
            raise WrongUse("faults.random: there is nothing to choose from: kinds or ranks are empty")
        chosen = self._seed if seed is None else seed
        draw = random.Random(f"{chosen} {self._test} {self._drawn}" if seed is None else seed)
        self._drawn += seed is None
        kind, number = draw.choice(list(kinds)), draw.randint(1, within)
        rank = draw.choice(list(range(self._size or 0) if ranks is None else ranks))
        seconds = round(draw.uniform(0.01, 1), 2) if kind == "late" else 0.0
        return self._plan(kind, [rank], f"{ANY}#{number}", seconds, seed=chosen)

    def _plan(
        self, kind: str, ranks: Sequence[int], at: object, seconds: float = 0.0, *, seed: int | None = None
    ) -> Fault:
        for rank in ranks:
            if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
                raise WrongUse(f"faults.{kind}: a rank is a number from 0, not {rank!r}")
        if kind in ("late", "delay") and (
            isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0
        ):
            raise WrongUse(f"faults.{kind}: seconds must be a number above 0, not {seconds!r}")
        operation, number = _parsed(kind, at)
        fault = Fault(kind, tuple(dict.fromkeys(ranks)), operation, number, seconds, seed)
        if self._size is not None:
            fault.check(self._size)
        self._add(fault)
        return fault


def _parsed(kind: str, at: object) -> tuple[str, int]:
    """``"all_reduce#3"``: the operation and the number of its call."""
    found = re.fullmatch(r"(\w+)#(\d+)", at) if isinstance(at, str) else None
    if found is None:
        raise WrongUse(
            f'faults.{kind}: write the call as "all_reduce#3", the third all_reduce of the rank, or as '
            f'"{ANY}#3", its third call of any operation; not {at!r}'
        )
    name, number = found[1], int(found[2])
    if name != ANY and name not in intercept.NAMES:
        known = [ANY, *intercept.NAMES]
        of_ours = {"isend": "send", "irecv": "recv", "all_gather_object": "all_gather"}.get(name)
        close = [of_ours] if of_ours else difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"it is one of {', '.join(known)}"
        raise WrongUse(f"faults.{kind}: there is no operation {name!r}; {hint}")
    if number < 1:
        raise WrongUse(f'faults.{kind}: calls are counted from 1: write at="{name}#1" for the first one')
    return name, number
