"""What a test asks for, in the mark ``ranks`` or in a call of ``run_ranks``, and what cannot be."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from occl.testing.outcomes import WrongUse

MOST_RANKS = 256

DEFAULT_LIMIT = 60.0
"""Seconds that a test may take."""

OF_GROUP = 0.8
"""The part of a test's limit after which an operation of its group gives up. An operation that waits for a
rank then ends with the backend's own error, which says more than a stack does."""


@dataclass(frozen=True)
class Options:
    """How ranks are made, for one test."""

    world_size: int
    device: str = "cpu"
    """The device type, or a device with its index, which then is that of all ranks."""
    backend: str | None = None
    """None: what PyTorch has as the default for the device type."""
    group: bool = True
    """Whether the default group is made."""
    limit: float = DEFAULT_LIMIT
    """Seconds that the test may take."""
    timeout: float | None = None
    """Seconds that an operation of the default group may take; None: `OF_GROUP` of the limit."""
    start: str = "fork"
    """``"fork"``: from a warm process; ``"spawn"``: fresh interpreters."""
    keep: bool = False
    """Whether the ranks stay for the next test that asks for the same, while all goes well."""

    def __post_init__(self) -> None:
        size = self.world_size
        if isinstance(size, bool) or not isinstance(size, int):
            raise WrongUse(f"the number of ranks must be an integer, not {size!r}: write ranks(2)")
        if not 1 <= size <= MOST_RANKS:
            raise WrongUse(f"there can be 1 to {MOST_RANKS} ranks, not {size}")
        for name, kinds, wanted in (
            ("device", str, 'a string, such as "cpu"'),
            ("backend", str | None, 'a string, such as "gloo"'),
            ("group", bool, "True or False"),
            ("keep", bool, "True or False"),
        ):
            if not isinstance(value := getattr(self, name), kinds):
                raise WrongUse(f"{name} must be {wanted}, not {value!r}")
        for name in ("limit", "timeout"):
            value = getattr(self, name)
            if value is None and name == "timeout":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise WrongUse(f"{name} must be a number of seconds above 0, not {value!r}")
        if self.start not in ("fork", "spawn"):
            raise WrongUse(f'start must be "fork" or "spawn", not {self.start!r}')

    @property
    def group_timeout(self) -> float:
        return OF_GROUP * self.limit if self.timeout is None else self.timeout


NAMES = tuple(field.name for field in fields(Options))


def sizes(args: tuple[Any, ...]) -> list[Any]:
    """The numbers of ranks that a mark asks for: one, several, or none, where the test has ``world_size``.

    Raises:
        WrongUse: the mark has more than one argument without a name, or an empty list.
    """
    if len(args) > 1:
        raise WrongUse(f"several numbers of ranks are given as a list: ranks({list(args)!r})")
    if args and isinstance(args[0], list | tuple):
        if not args[0]:
            raise WrongUse("the list of numbers of ranks is empty: write ranks([1, 2])")
        return list(args[0])
    return list(args)


def from_mark(
    args: tuple[Any, ...], given: Mapping[str, Any], of_test: Mapping[str, Any], limit: float
) -> Options:
    """The options of a test.

    Args:
        args, given: the arguments of the mark.
        of_test: values that the test has for names of options, by parametrization or by fixtures of its
            project. They hold where the mark says nothing.
        limit: the limit, if the mark says nothing.

    Raises:
        WrongUse: the mark is wrong; the text says what to write.
    """
    for name in given:
        if name not in NAMES:
            close = difflib.get_close_matches(name, NAMES, 1)
            hint = f"did you mean {close[0]}=?" if close else f"it knows {', '.join(NAMES[1:])}"
            raise WrongUse(f"there is no option {name}=: {hint}")
    options = {"limit": limit} | dict(of_test) | dict(given)
    asked = sizes(args)
    if asked and "world_size" in given:
        raise WrongUse("the number of ranks is there twice: leave out world_size=")
    if len(asked) == 1:
        options["world_size"] = asked[0]
    if "world_size" not in options:
        raise WrongUse("the number of ranks is missing: write ranks(2), or parametrize world_size")
    return Options(**options)
