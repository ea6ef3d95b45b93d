"""For all tests: plugins, the order of the files, and C++ programs that are built before their tests."""

import contextlib
from collections.abc import Generator

import pytest
import torch

import torch_occl  # noqa: F401  (makes the device for all tests)
from tests.support import cpp_build

pytest_plugins = ["tests.support.thinning", "tests.support.tables", "pytester"]

FIRST = ("test_cpp.py", "test_distributed.py")
"""The files that take longest: processes that share the files of a run end together if these come first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in FIRST)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Compiles before the guard against tests that hang begins to count, however slow the compiler is."""
    if getattr(item, "originalname", "") in ("test_cpp", "test_no_kept_input_breaks_a_target"):
        params = item.callspec.params  # type: ignore[attr-defined]
        with contextlib.suppress(RuntimeError):  # the test will show it
            cpp_build.build(params["mode"], params["source"])
    return (yield)


@pytest.fixture(scope="session")
def pytorch_compiles() -> None:
    """For tests in which `torch.compile` or `torch.utils.cpp_extension.load` runs a compiler."""
    if " " in torch.__file__:
        pytest.skip(f"PyTorch hands its compiler paths without quotes, and lies in {torch.__file__!r}")
