"""The environment variables of occl: their names, and the values of those that Python reads."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

NAMES = (
    "OCCL_DEVICE",
    "OCCL_IN_PLACE_OF",
    "OCCL_QUIET",
    "OCCL_SHARE_CPU",
    "OCCL_STUCK_AFTER",
    "OCCL_DEVICE_COUNT",
    "OCCL_MEMORY_FRACTION",
    "OCCL_INTER_NODE",
    "OCCL_ISA",
    "OCCL_NODE",
    "OCCL_TOPOLOGY",
    "OCCL_TRACE",
    "OCCL_TUNING",
)
"""Every variable that the package reads (docs/environment.md)."""
OF_TESTS = "OCCL_TEST_"
"""Variables of the project's own tests begin like this."""

_warned = False


def device() -> str:
    """``OCCL_DEVICE``: "0", "1", or "" if it is not set.

    Raises:
        ValueError: it is something else.
    """
    return _one_of("OCCL_DEVICE", ("", "0", "1"), "0, 1 or empty")


def in_place_of() -> str:
    """``OCCL_IN_PLACE_OF``: "gloo", or "" if it is not set.

    Raises:
        ValueError: it is something else.
    """
    return _one_of("OCCL_IN_PLACE_OF", ("", "gloo"), "gloo, the only backend that occl replaces, or empty")


def quiet() -> bool:
    """``OCCL_QUIET``: whether nothing is said about Gloo's place.

    Raises:
        ValueError: it is neither 0, 1 nor empty.
    """
    return _one_of("OCCL_QUIET", ("", "0", "1"), "0, 1 or empty") == "1"


def least_shared() -> int:
    """``OCCL_SHARE_CPU``: 0, 1, or the size in bytes from which CPU tensors are shared.

    Raises:
        ValueError: it is no number.
    """
    value = os.environ.get("OCCL_SHARE_CPU") or "0"
    if not value.isdecimal():
        raise _wrong("OCCL_SHARE_CPU", value, "0, 1, or the least number of bytes to share")
    return int(value)


def stuck_after() -> float:
    """``OCCL_STUCK_AFTER``: seconds of a wait after which the program says what it waits for; 0: never.

    Raises:
        ValueError: it is not such a number.
    """
    value = os.environ.get("OCCL_STUCK_AFTER") or "30"
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e6:
        raise _wrong("OCCL_STUCK_AFTER", value, "a number of seconds, or 0 for no notice")
    return seconds


def unknown(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that begin as ours do and that nothing reads, each with what was probably meant."""
    found = {}
    for name in sorted(environment):
        if name.startswith("OCCL_") and name not in NAMES and not name.startswith(OF_TESTS):
            import difflib

            close = difflib.get_close_matches(name, NAMES, 1, cutoff=0.75)  # OCCL_X is near none
            found[name] = f"did you mean {close[0]}?" if close else f"there are {', '.join(NAMES)}"
    return found


def warn_of_unknown() -> None:
    """Warns once in a job of variables that nothing reads: rank 0 does, or torchrun, whose ranks have its
    environment."""
    global _warned
    if _warned or os.environ.get("RANK", "0") != "0" or "TORCHELASTIC_RUN_ID" in os.environ:
        return
    _warned = True
    for name, meant in unknown(os.environ).items():
        warnings.warn(f"torch_occl does not know the variable {name}, and ignores it: {meant}", stacklevel=3)


def _one_of(name: str, legal: tuple[str, ...], says: str) -> str:
    value = os.environ.get(name, "")
    if value.lower() not in legal:
        raise _wrong(name, value, says)
    return value.lower()


def _wrong(name: str, value: str, says: str) -> ValueError:
    return ValueError(f"{name}={value!r}: it must be {says}")
