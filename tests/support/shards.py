"""Plugin of pytest that runs one part of the tests: ``--shard 2/3`` the second of three.

Files stay whole. Each goes to the shard that has the fewest cases so far, the longest file first, so every
run finds the same parts.
"""

from __future__ import annotations

from collections import Counter

import pytest


def shard(value: str) -> tuple[int, int]:
    """Of a text such as 2/3."""
    number, _, of = value.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise ValueError(f"--shard takes a part of several, such as 2/3, not {value!r}")
    return int(number), int(of)


def parts(cases: Counter[str], of: int) -> list[set[str]]:
    """Files with their numbers of cases, in as many sets of nearly equally many cases."""
    found: list[set[str]] = [set() for _ in range(of)]
    sizes = [0] * of
    for file, number in sorted(cases.items(), key=lambda item: (-item[1], item[0])):
        least = sizes.index(min(sizes))
        found[least].add(file)
        sizes[least] += number
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", type=shard, metavar="N/M", help="run the N-th of M parts of the tests")


@pytest.hookimpl(trylast=True)  # after marks have left cases out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("shard", None) is None:
        return
    number, of = config.getoption("shard")
    chosen = parts(Counter(str(item.path) for item in items), of)[number - 1]
    config.hook.pytest_deselected(items=[item for item in items if str(item.path) not in chosen])
    items[:] = [item for item in items if str(item.path) in chosen]
