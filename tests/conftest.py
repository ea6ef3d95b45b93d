"""Compiles the C++ tests in the background, while other tests mostly wait."""

import os
import signal

import pytest

import torch_occl  # noqa: F401  (makes the device for all tests)
from tests.support import cpp_build

BUILD = pytest.StashKey()


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
