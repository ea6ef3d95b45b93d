"""Plugin of pytest that leaves cases out of `make test`: it marks them ``full``, some of them ``matrix`` too.

Matrices are thinned by pairs. Of a test function with more than `FEW` cases, as many stay as it takes for
every two values of two parameters to meet that meet in any case (pairwise testing). A function with one
parameter keeps all its cases, and so does one with two parameters that are combined freely. The others are
marked ``matrix``: CI leaves them out too. Cases that are ``full`` already are thinned for CI in the same way.

Tests that a change of the core can hardly alter, and many that start processes, are left to CI (`TO_CI`).
Files of which no case stays are not even imported, unless a path asks for them.

Which cases stay depends only on the parameters. Cases that ``-k`` or a node id (``::``) asks for all stay.

Where each case starts an interpreter, which takes seconds, the test names the cases that stay: `first`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import pytest

from tests.support.cpp_build import ROOT
from tests.support.tables import left_out

FEW = 8
BY_DEFAULT = "not full"
"""The marks that pytest is told to select in pyproject.toml."""

TO_CI = {
    "tests/device/test_opinfo.py": None,
    "tests/device/test_training.py": 3,
    "tests/distributed/test_leaving.py": 3,
    "tests/distributed/test_ways_to_groups.py": 5,
    "tests/shared_cpu/test_modules.py": None,
    "tests/shared_cpu/test_operators.py": None,
    "tests/replicas/*.py": 20,
    "tests/test_example_*.py": None,
    "tests/upstream/*.py": None,
}
"""Of each test function in these files, the first case and every n-th after it stay. None: no case stays."""


def first(cases: Iterable[object], stay: int = 1, ci: int | None = None) -> list[object]:
    """Cases for `parametrize`: the first `stay` run by default, the others are marked `full`.

    Args:
        ci: Those after so many are marked `matrix` too.
    """

    def marked(at: int, case: object) -> object:
        if at < stay:
            return case
        marks = [pytest.mark.full] + [pytest.mark.matrix] * (ci is not None and at >= ci)
        return pytest.param(*(case if isinstance(case, tuple) else [case]), marks=marks)

    return [marked(at, case) for at, case in enumerate(cases)]


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


def asked(config: pytest.Config) -> bool:
    """Whether ``-k`` or a node id asks for tests: then nothing of them is left out."""
    return bool(config.option.keyword) or any("::" in arg for arg in config.args)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--most-cases", type=int, metavar="N", help="of each test function, from first to last")


def thinned(cases: list[pytest.Item], stay: set[int]) -> list[pytest.Item]:
    """The cases at these places. The others get their marks."""
    for at, case in enumerate(cases):
        if at not in stay:
            case.add_marker("full")
            case.add_marker("matrix")
    return [cases[at] for at in sorted(stay)]


def spread(cases: int, most: int) -> set[int]:
    """The places of up to `most` cases, from the first to the last."""
    most = min(cases, most)
    return {at * (cases - 1) // max(most - 1, 1) for at in range(most)}


def of_ci(path: Path) -> list[int | None]:
    """What `TO_CI` says about a file."""
    file = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return [every for pattern, every in TO_CI.items() if file.match(pattern)]


def everything(config: pytest.Config) -> bool:
    """Whether no path narrows the run."""
    whole = {config.rootpath, *(config.rootpath / path for path in config.getini("testpaths"))}
    return all((config.invocation_params.dir / arg).resolve() in whole for arg in config.args)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.option.markexpr != BY_DEFAULT or asked(config) or not everything(config):
        return None
    if None not in of_ci(collection_path):
        return None
    left_out(config)["files"] += 1
    return True


def pytest_configure(config: pytest.Config) -> None:
    """A test that is asked for by its node id runs, whatever its marks."""
    if config.option.markexpr == BY_DEFAULT and config.args and all("::" in arg for arg in config.args):
        config.option.markexpr = ""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if asked(config) and config.option.markexpr in (BY_DEFAULT, ""):
        return
    functions = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("matrix"):
            full = item.get_closest_marker("full") is not None
            functions[item.path, item.nodeid.partition("[")[0], full].append(item)
    for (path, *_), cases in functions.items():
        if len(cases) > FEW:
            said = [{name: repr(value) for name, value in case.callspec.params.items()} for case in cases]  # type: ignore[attr-defined]
            cases = thinned(cases, set(chosen(said)))
        if most := config.getoption("most_cases", None):
            cases = thinned(cases, spread(len(cases), most))
        for every in of_ci(path):
            for at, case in enumerate(cases):
                if every is None or at % every:
                    case.add_marker("full")
