"""Thins long matrices, compiles the C++ tests while other tests mostly wait, and says what was left out."""

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

import torch_occl  # noqa: F401  (makes the device for all tests)
from tests.support import cpp_build

pytest_plugins = ["tests.support.thinning"]

BUILD = pytest.StashKey()
LEFT_OUT: Counter[str] = Counter()
"""Tests of the long matrices that were not asked for, by folder."""


def program_of(item: pytest.Item) -> tuple[str, Path] | None:
    """The mode and the source of the C++ program that a test runs."""
    if getattr(item, "originalname", "") not in ("test_cpp", "test_no_kept_input_breaks_a_target"):
        return None
    return item.callspec.params["mode"], item.callspec.params["source"]  # type: ignore[attr-defined]


def pytest_collection_finish(session: pytest.Session) -> None:
    programs = [program for item in session.items if (program := program_of(item))]
    if len(programs) > 1 and not session.config.option.collectonly:
        session.config.stash[BUILD] = cpp_build.build_in_background(programs)


def end_background(config: pytest.Config) -> None:
    if build := config.stash.get(BUILD, None):
        if build.poll() is None:
            os.killpg(build.pid, signal.SIGTERM)
        build.wait()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Compiles before the guard against tests that hang begins to count, however slow the compiler is."""
    if program := program_of(item):
        end_background(item.config)  # from here on it is waited for
        with contextlib.suppress(RuntimeError):  # the test will show it
            cpp_build.build(*program)
    return (yield)


def pytest_unconfigure(config: pytest.Config) -> None:
    end_background(config)


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
