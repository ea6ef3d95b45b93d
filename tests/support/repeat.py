"""A plugin of pytest that runs each test as often as OCCL_TEST_TIMES says: ``-p tests.support.repeat``."""

import copy
import os

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    repeated = []
    for item in items:
        for _ in range(int(os.environ["OCCL_TEST_TIMES"])):
            again = copy.copy(item)
            again._initrequest()  # type: ignore[attr-defined]  # fixtures of its own, as for every function
            repeated.append(again)
    items[:] = repeated
