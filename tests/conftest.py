"""Compiles the C++ tests in the background while other tests mostly wait, and says what was left out."""

import os
import signal
from collections import Counter
from collections.abc import Sequence

import pytest

import torch_occl  # noqa: F401  (makes the device for all tests)
from tests.support import cpp_build

BUILD = pytest.StashKey()
LEFT_OUT: Counter[str] = Counter()
"""Tests of the long matrices that were not asked for, by folder."""


def pytest_collection_finish(session: pytest.Session) -> None:
    if (
        not session.config.option.collectonly
        and sum(item.path.name == "test_cpp.py" for item in session.items) > 9
    ):
        session.config.stash[BUILD] = cpp_build.build_all_in_background()


def pytest_unconfigure(config: pytest.Config) -> None:
    if build := config.stash.get(BUILD, None):
        if build.poll() is None:
            os.killpg(build.pid, signal.SIGTERM)
        build.wait()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("full"):
            LEFT_OUT[item.path.relative_to(cpp_build.ROOT / "tests").parts[0]] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LEFT_OUT:
        folders = ", ".join(f"{count} of {folder}" for folder, count in LEFT_OUT.most_common())
        terminalreporter.write_line(
            f"left out: {LEFT_OUT.total()} tests of the long matrices ({folders}); `make test-all` runs them"
        )
