"""Rules, and the cases that each of them has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from occl.conformance.tensors import COMPLEX, FLOATS, INTEGERS

API = "distributed/distributed_c10d.py"
BACKEND = "include/torch/csrc/distributed/c10d/Backend.hpp"
GROUP = "include/torch/csrc/distributed/c10d/ProcessGroup.hpp"
WORK = "include/torch/csrc/distributed/c10d/Work.hpp"

KINDS = {"floating": FLOATS, "complex": COMPLEX, "integer": INTEGERS}
"""Words that stand for several types."""

DEVICE = "device="
"""What the word begins with that stands for the type of the device."""


@dataclass(frozen=True)
class Source:
    """Where PyTorch says what a rule checks: a file of the installed wheel, and a text in it."""

    file: str
    """Below the folder of ``torch``."""
    text: str

    @property
    def line(self) -> int:
        """The number of the line that has the text, from 1.

        Raises:
            LookupError: there is none: this PyTorch says it elsewhere.
        """
        for number, line in enumerate(_lines(self.file), 1):
            if self.text in line:
                return number
        raise LookupError(f"torch/{self.file} has no line with {self.text!r}")

    def __str__(self) -> str:
        return f"torch/{self.file}:{self.line}"


@cache
def _lines(file: str) -> list[str]:
    return (Path(torch.__file__).parent / file).read_text().splitlines()


@cache
def virtual_methods() -> frozenset[str]:
    """The names of the virtual methods of ``c10d::Backend`` in the installed PyTorch."""
    found = re.findall(r"\bvirtual\s+[^;{]*?(\w+)\s*\(", "\n".join(_lines(BACKEND)))
    return frozenset(found) - {"Backend"}


def python(name: str) -> Source:
    """The function of ``torch.distributed`` with this name, whose docstring says it."""
    return Source(API, f"def {name}(")


def backend(name: str) -> Source:
    """The method of ``c10d::Backend`` with this name."""
    return Source(BACKEND, f" {name}(")


Body = Callable[..., None]


@dataclass(frozen=True)
class Rule:
    """One thing that a backend must do. ``operation`` and ``name`` together are unique."""

    operation: str
    """What it is about: an operation, or a feature. Capabilities are declared by this word."""
    name: str
    statement: str
    source: Source
    body: Body
    """Runs on every rank, with a `Rank` and the case's values by name."""
    cases: tuple[Mapping[str, str], ...] = ({},)
    refuses: bool = False
    """Whether the backend must refuse: an exception on every rank that calls."""
    own: bool = False
    """Whether it takes processes of its own, because it ends the group."""
    timeout: float | None = None
    """Seconds that an operation of the group may take; None: longer than a case may."""
    methods: tuple[str, ...] = ()
    """The methods of ``c10d::Backend`` that it is about. If PyTorch has none of them, there are no cases."""
    accelerator: bool = False
    """Whether it is only for devices that have streams."""
    ranks: int = 2
    """The fewest ranks that it needs."""
    synchronous: bool = False
    """Whether nothing is in flight when one of its calls raises on every rank."""

    @property
    def applies(self) -> bool:
        """Whether the installed PyTorch has what it is about: not every version has every method."""
        return not self.methods or not virtual_methods().isdisjoint(self.methods)


@dataclass(frozen=True)
class Case:
    """A rule with values for its parameters."""

    rule: Rule
    values: tuple[tuple[str, str], ...]
    device: str = "cpu"
    """The type of the device."""

    @property
    def name(self) -> str:
        chosen = "-".join(value for _, value in self.values)
        return f"{self.rule.operation}:{self.rule.name}" + (f"[{chosen}]" if chosen else "")

    @property
    def words(self) -> frozenset[str]:
        """What a declaration can name it by."""
        own = {self.rule.operation, self.rule.name, *(value for _, value in self.values)}
        own.add(f"{DEVICE}{self.device}")
        return frozenset(own | {kind for kind, types in KINDS.items() if own & set(types)})


RULES: dict[tuple[str, str], Rule] = {}


def add(rule: Rule) -> None:
    """Enters a rule. Two of one name are an error of this package."""
    assert (rule.operation, rule.name) not in RULES, (rule.operation, rule.name)
    RULES[rule.operation, rule.name] = rule


def rule(
    operation: str, name: str, statement: str, source: Source, **options: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Enters the decorated function as the body of a rule."""

    def enter(body: Callable[..., None]) -> Callable[..., None]:
        add(Rule(operation, name, statement, source, body, **options))
        return body

    return enter


def over(**values: Iterable[str]) -> tuple[Mapping[str, str], ...]:
    """Cases: every combination of these values."""
    found: list[dict[str, str]] = [{}]
    for name, choices in values.items():
        found = [{**case, name: choice} for case in found for choice in choices]
    return tuple(found)


def cases(device: str, size: int, quick: bool = False) -> list[Case]:
    """All cases for a device type and a number of ranks, of the rules that apply to the installed PyTorch.

    Args:
        quick: whether to take, of each rule, only as many as it takes for every value to appear.
    """
    found = []
    for each in RULES.values():
        if (each.accelerator and device == "cpu") or each.ranks > size or not each.applies:
            continue
        chosen = [tuple(values.items()) for values in each.cases]
        found += [Case(each, values, device) for values in (_few(chosen) if quick else chosen)]
    return found


def _few(cases: list[tuple[tuple[str, str], ...]]) -> list[tuple[tuple[str, str], ...]]:
    seen: set[tuple[str, str]] = set()
    stay = []
    for case in cases:
        if not case or set(case) - seen:
            stay.append(case)
            seen |= set(case)
    return stay
