"""One thread computes: with several, PyTorch's libraries may share work out differently from call to call."""

from tests.support.threads import one_thread  # noqa: F401
