"""For all tests: plugins, the order of the files, and C++ programs that are built before their tests."""

from collections.abc import Generator
from contextlib import closing, suppress

import pytest
import torch

import torch_occl  # noqa: F401  (makes the device for all tests)
from occl.testing.launch import ForkServer
from tests.support import cpp_build, ranks
from tests.support.interpreter import Scripts

pytest_plugins = ["tests.support.tables", "tests.support.thinning", "tests.support.shards", "pytester"]

FIRST = ("test_cpp.py", "test_conformance.py", "test_distributed.py", "test_example_gpt.py")
"""Files that take long, some of them in CI: workers that share files end together if these come first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in FIRST)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Compiles before the guard against tests that hang begins to count, however slow the compiler is."""
    if getattr(item, "originalname", "") in ("test_cpp", "test_no_kept_input_breaks_a_target"):
        params = item.callspec.params  # type: ignore[attr-defined]
        with suppress(RuntimeError):  # the test will show it
            cpp_build.build(params["mode"], params["source"])
    return (yield)


@pytest.fixture(scope="session")
def warm() -> Generator[ForkServer]:
    """The warm process whose clones the pools of ranks have."""
    with closing(ranks.warm()) as server:
        yield server


@pytest.fixture(scope="session")
def scripts() -> Generator[Scripts]:
    """Runs scripts as fresh interpreters would that have imported torch."""
    scripts = Scripts()
    with closing(scripts.source):
        yield scripts


@pytest.fixture(scope="session")
def pytorch_compiles() -> None:
    """For tests in which `torch.compile` or `torch.utils.cpp_extension.load` runs a compiler."""
    if " " in torch.__file__:
        pytest.skip(f"PyTorch hands its compiler paths without quotes, and lies in {torch.__file__!r}")
