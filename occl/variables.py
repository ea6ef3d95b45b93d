"""The environment variables of occl: their names and legal values, and what those say that Python reads.

The extension reads most of them itself, and refuses a wrong value only where it needs it. So all are checked
here when PyTorch or the package is imported, by the extension's rules and in its words.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[str], Any]
"""Takes what a variable is set to, which is not empty, and returns what that means.

Raises ValueError if it means nothing; the text continues the variable's name.
"""


def _one_of(*legal: str, says: str) -> Check:
    """A check that takes capital letters for small ones."""

    def checked(value: str) -> str:
        if value.lower() not in legal:
            raise _wrong(value, says)
        return value.lower()

    return checked


def _share_cpu(value: str) -> int:
    if not (value.isdecimal() and len(value) < 19):  # what 64 bits hold
        raise _wrong(value, "0, 1, or the least number of bytes to share")
    return int(value)


def _stuck_after(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e6:
        raise _wrong(value, "a number of seconds, or 0 for no notice")
    return seconds


def _device_count(value: str) -> int:
    if not re.fullmatch(r"[ \t-\r]*[+-]?0*[0-9]{1,2}", value) or not 1 <= int(value) <= 64:
        raise ValueError(f" must be a number from 1 to 64, not {_quoted(value)}")
    return int(value)


def _memory_fraction(value: str) -> float:
    number = re.fullmatch(r"[ \t-\r]*(\+?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)", value)
    if not number or not 0 < float(number[1]) <= 1:
        raise ValueError(f" must be a number above 0 and at most 1, not {_quoted(value)}")
    return float(number[1])


def _inter_node(value: str) -> str:
    if value not in ("ucx", "tcp", "gloo"):
        raise ValueError(f" is {_quoted(value)}: it must be ucx, tcp or gloo")
    return value


def _isa(value: str) -> str:
    """The extension also refuses those that this processor does not have."""
    if value not in ("avx512", "avx2", "neon_bf16", "baseline"):
        raise ValueError(
            f" is {_quoted(value)}: it must be avx512, avx2 or baseline; on aarch64 neon_bf16 or baseline"
        )
    return value


def _node(value: str) -> str:
    if not re.fullmatch(r"[!-~](?:[ -~]{0,61}[!-~])?", value):
        raise ValueError(
            f" is {_quoted(value)}: set it to at most 63 printable ASCII characters without spaces at the "
            "ends, or unset it"
        )
    return value


def _topology(value: str) -> str:
    part = "[0-9]{1,6}(-[0-9]{1,6})?"
    right, least = bool(re.fullmatch(f"{part}(,{part})*", value)), 0
    for ends in value.split(",") if right else ():
        low, _, high = ends.partition("-")
        right &= least <= int(low) <= int(high or low)
        least = int(high or low) + 1
    if not right:
        raise ValueError(
            f' is {_quoted(value)}, but must list the ranks of each domain in order, like "0-31,32-63"'
        )
    return value


TUNINGS = (
    "one_shot_bytes",
    "direct_bytes",
    "two_level_bytes",
    "slot_bytes",
    "area_bytes",
    "streaming_bytes",
    "ring_bytes",
    "eager_bytes",
    "unasked_bytes",
    "both_ends_bytes",
    "far_ns",
)
"""What ``OCCL_TUNING`` can set (csrc/coll/plan/tuning.cpp)."""


def _tuning(value: str) -> dict[str, int]:
    numbers = {}
    for item in value.removesuffix(",").split(","):
        name, _, number = item.partition("=")
        if not re.fullmatch("0*[0-9]{1,20}", number) or int(number) >= 1 << 64:
            why = f"{_quoted(item)} is not a name and a number of bytes, as in slot_bytes=262144"
        elif name not in TUNINGS:
            why = f"there is no tuning named {_quoted(name)}: use {', '.join(TUNINGS)}"
        else:
            numbers[name] = int(number)
            continue
        raise ValueError(f"={_quoted(value)}: {why}")
    return numbers


CHECKS: Mapping[str, Check] = {
    "OCCL_DEVICE": _one_of("0", "1", says="0, 1 or empty"),
    "OCCL_IN_PLACE_OF": _one_of("gloo", says="gloo, the only backend that occl replaces, or empty"),
    "OCCL_QUIET": _one_of("0", "1", says="0, 1 or empty"),
    "OCCL_SHARE_CPU": _share_cpu,
    "OCCL_STUCK_AFTER": _stuck_after,
    "OCCL_DEVICE_COUNT": _device_count,
    "OCCL_MEMORY_FRACTION": _memory_fraction,
    "OCCL_INTER_NODE": _inter_node,
    "OCCL_ISA": _isa,
    "OCCL_NODE": _node,
    "OCCL_TOPOLOGY": _topology,
    "OCCL_TRACE": str,  # a directory, which each process makes where it can
    "OCCL_TUNING": _tuning,
}
NAMES = tuple(CHECKS)
"""Every variable that the package reads (docs/environment.md)."""
WITHOUT = {
    "OCCL_IN_PLACE_OF": "occl does not take the place of Gloo, and ",
    "OCCL_SHARE_CPU": "CPU tensors are not shared, and ",
}
"""What a wrong value does to a program that never imports torch_occl, beside what a warning says of all."""
OF_TESTS = "OCCL_TEST_"
"""Variables of the project's own tests begin like this."""

_warned = False


def device() -> str:
    """``OCCL_DEVICE``: "0", "1", or "" if it is not set or wrong."""
    return str(_value("OCCL_DEVICE", ""))


def in_place_of() -> str:
    """``OCCL_IN_PLACE_OF``: "gloo", or "" if it is not set or wrong."""
    return str(_value("OCCL_IN_PLACE_OF", ""))


def quiet() -> bool:
    """``OCCL_QUIET``: whether nothing is said about Gloo's place. A wrong value says no."""
    return bool(_value("OCCL_QUIET", "0") == "1")


def least_shared() -> int:
    """``OCCL_SHARE_CPU``: 0, 1, or the size in bytes from which CPU tensors are shared; 0 if it is wrong."""
    return int(_value("OCCL_SHARE_CPU", 0))


def stuck_after() -> float:
    """``OCCL_STUCK_AFTER``: seconds of a wait after which the program says what it waits for; 0: never.

    Raises:
        ValueError: it is not such a number.
    """
    if text := _why_wrong("OCCL_STUCK_AFTER", os.environ):
        raise ValueError(text)
    return float(_value("OCCL_STUCK_AFTER", 30.0))


def wrong(environment: Mapping[str, str]) -> dict[str, str]:
    """Our variables that have wrong values, each with a text that names it, its value and the legal ones.

    What depends on the processor or on the group, only the extension knows.
    """
    return {name: text for name in CHECKS if (text := _why_wrong(name, environment))}


def _why_wrong(name: str, environment: Mapping[str, str]) -> str:
    """That text for one variable; empty if its value is right or it is not set."""
    if value := environment.get(name):
        try:
            CHECKS[name](value)
        except ValueError as error:
            return f"{name}{error}"
    return ""


def check() -> None:
    """Raises ValueError, which has the text of each, if variables have wrong values."""
    if texts := wrong(os.environ).values():
        raise ValueError("; ".join(texts))


def unknown(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that begin as ours do and that nothing reads, each with what was probably meant."""
    found = {}
    for name in sorted(environment):
        if name.startswith("OCCL_") and name not in NAMES and not name.startswith(OF_TESTS):
            import difflib

            close = difflib.get_close_matches(name, NAMES, 1, cutoff=0.75)  # OCCL_X is near none
            found[name] = f"did you mean {close[0]}?" if close else f"there are {', '.join(NAMES)}"
    return found


def warn() -> None:
    """Warns once in a job of wrong values, and of variables that nothing reads: rank 0 does, or torchrun,
    whose ranks have its environment."""
    global _warned
    if _warned or os.environ.get("RANK", "0") != "0" or "TORCHELASTIC_RUN_ID" in os.environ:
        return
    _warned = True
    for name, text in wrong(os.environ).items():
        follows = f"{WITHOUT.get(name, '')}import torch_occl will fail"
        warnings.warn(f"{follows}: {text}", RuntimeWarning, stacklevel=3)
    for name, meant in unknown(os.environ).items():
        warnings.warn(f"torch_occl does not know the variable {name}, and ignores it: {meant}", stacklevel=3)


def _value(name: str, otherwise: Any) -> Any:
    """What a variable means, or this if it is not set or wrong."""
    value = os.environ.get(name)
    return CHECKS[name](value) if value and not _why_wrong(name, os.environ) else otherwise


def _wrong(value: str, says: str) -> ValueError:
    return ValueError(f"={value!r}: it must be {says}")


def _quoted(value: str) -> str:
    """As it is, but for characters that no text can have."""
    return '"' + re.sub(r"[^\n -~\x80-\ud7ff\ue000-\U0010ffff]", "?", value) + '"'
