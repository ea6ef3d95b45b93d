"""A plugin of pytest that leaves out cases of long matrices: it marks them ``full``.

Of a test function with more than `FEW` cases, as many stay as it takes for every two values of two parameters
to meet that meet in any case (pairwise testing). A function with one parameter keeps all its cases, and so
does one with two parameters that are combined freely. Which cases stay depends only on the parameters.

Where each case starts an interpreter, which takes seconds, the test names the cases that stay: `first`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations

import pytest

FEW = 8


def first(cases: Iterable[object], stay: int = 1) -> list[object]:
    """Cases for `parametrize`: the first `stay` run by default, the others are marked `full`."""
    return [
        case
        if at < stay
        else pytest.param(*(case if isinstance(case, tuple) else [case]), marks=pytest.mark.full)
        for at, case in enumerate(cases)
    ]


def pairs_of(case: Mapping[str, Hashable]) -> set[tuple[Hashable, ...]]:
    """What two parameters of a case say, for each two of them; for a single parameter what it says."""
    said = sorted(case.items(), key=lambda item: item[0])
    return set(combinations(said, 2)) or {tuple(said)}


def chosen(cases: Sequence[Mapping[str, Hashable]]) -> list[int]:
    """The places of cases that together have every pair: each time the first of those with most new ones."""
    left = {at: pairs_of(case) for at, case in enumerate(cases)}
    found = []
    while left:
        best = max(left, key=lambda at: len(left[at]))
        found.append(best)
        seen = left.pop(best)
        left = {at: rest for at, pairs in left.items() if (rest := pairs - seen)}
    return sorted(found)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    functions = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and not item.get_closest_marker("full"):
            functions[item.path, item.originalname].append(item)  # type: ignore[attr-defined]
    for cases in functions.values():
        if len(cases) > FEW:
            said = [{name: repr(value) for name, value in case.callspec.params.items()} for case in cases]
            stay = set(chosen(said))
            for at, case in enumerate(cases):
                if at not in stay:
                    case.add_marker("full")
