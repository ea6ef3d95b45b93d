"""Coverage in the ranks: measured where the pytest process measures, and added to what it has measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

SETTINGS = (
    "run:branch",
    "run:include",
    "run:omit",
    "run:source",
    "run:source_pkgs",
    "run:concurrency",
    "run:plugins",
    "run:relative_files",
    "run:context",
    "report:exclude_lines",
)


@dataclass(frozen=True)
class Settings:
    """How the pytest process measures."""

    file: str | None
    """Its configuration file."""
    options: tuple[tuple[str, Any], ...]


def settings() -> Settings | None:
    """Of this process, or None if it measures nothing."""
    coverage = sys.modules.get("coverage")
    current = None if coverage is None else coverage.Coverage.current()
    if current is None:
        return None
    options = tuple((name, current.get_option(name)) for name in SETTINGS)
    return Settings(current.config.config_file, options)


@contextmanager
def measured(wanted: Settings | None, tell: Callable[[str, object], None]) -> Iterator[None]:
    """In a rank: measures what runs in the ``with`` statement, and tells it to the pytest process."""
    if wanted is None:
        yield
        return
    import coverage

    measuring = coverage.Coverage(data_file=None, config_file=wanted.file or False)
    for name, value in wanted.options:
        measuring.set_option(name, value)
    measuring.start()
    try:
        yield
    finally:
        measuring.stop()
        tell("coverage", measuring.get_data().dumps())


def add(told: bytes) -> None:
    """In the pytest process: adds what a rank has told."""
    import coverage

    data = coverage.CoverageData(no_disk=True)
    data.loads(told)
    current = coverage.Coverage.current()
    if current is not None:
        current.get_data().update(data)
