"""What the tests of the doctor share."""

import pytest

from tests.doctor.running import document


@pytest.fixture(scope="session")
def healthy() -> dict:
    """The whole report of this machine."""
    return document()


@pytest.fixture(scope="session")
def described() -> dict:
    """The report of this machine without the self-test, which takes many seconds."""
    return document("--no-test")
