"""What a vendor declares about a backend: a file in TOML (docs/conformance.md)."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from occl.conformance.catalog import DEVICE, KINDS, RULES, Case
from occl.testing.outcomes import WrongUse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

DECLARED = Path(__file__).parent / "declared"
"""The files of backends that PyTorch or this package has."""

VERDICTS = ("works", "refuses", "wrong", "hangs", "crashes", "untested", "error")

KEYS = {"import": list, "start": str, "not_supported": list, "known": list}


@dataclass(frozen=True)
class Pattern:
    """Some cases: for each item those that have (or, if negated, do not have) one of its words."""

    items: tuple[tuple[bool, frozenset[str]], ...]

    def matches(self, case: Case) -> bool:
        words = case.words
        return all(negated != bool(one_of & words) for negated, one_of in self.items)


@dataclass(frozen=True)
class Known:
    """Cases that are known to end in another way than they should."""

    cases: Pattern
    verdicts: frozenset[str]
    """Several where it is left to chance."""
    reason: str


@dataclass(frozen=True)
class Capabilities:
    """What a file declares; without one, everything is supported."""

    imports: tuple[str, ...] = ()
    """Modules that every rank imports first: what registers the backend and the device."""
    start: str = "fork"
    """``"fork"``, or ``"spawn"`` if the imports start threads."""
    not_supported: tuple[Pattern, ...] = ()
    known: tuple[Known, ...] = ()

    def supports(self, case: Case) -> bool:
        """Whether the case must work."""
        return not any(pattern.matches(case) for pattern in self.not_supported)

    def expected(self, case: Case) -> str:
        """The verdict that the case must have."""
        return "works" if not case.rule.refuses and self.supports(case) else "refuses"

    def known_of(self, case: Case) -> Known | None:
        """What the file knows about a case."""
        return next((known for known in self.known if known.cases.matches(case)), None)


def vocabulary() -> set[str]:
    """All words that a declaration can have."""
    words = set(KINDS)
    for rule in RULES.values():
        words |= {rule.operation, rule.name}
        for values in rule.cases:
            words |= set(values.values())
    return words


def load(path: Path | None, backend: str) -> Capabilities:
    """The capabilities in a file; without one, those that this package declares for a backend of that name.

    Raises:
        WrongUse: the file cannot be read, or declares what there is not; the text says what to write.
    """
    if path is None:
        path = DECLARED / f"{backend}.toml"
        if not path.exists():
            return Capabilities()
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WrongUse(f"--capabilities {path}: the file cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise WrongUse(f"--capabilities {path}: the file is not in UTF-8, as TOML is.") from None
    except (WrongUse, tomllib.TOMLDecodeError) as error:
        raise WrongUse(f"--capabilities {path}: {error}") from None


def parse(text: str) -> Capabilities:
    """As `load`, of the content of a file."""
    content = tomllib.loads(text)
    for key, value in content.items():
        if key not in KEYS:
            raise WrongUse(f"there is no key {key!r}{_hint(key, KEYS)}; the keys are {', '.join(KEYS)}")
        if not isinstance(value, KEYS[key]):
            raise WrongUse(f"{key} must be a {KEYS[key].__name__}, not {value!r}")
    start = content.get("start", "fork")
    if start not in ("fork", "spawn"):
        raise WrongUse(f'start must be "fork" or "spawn", not {start!r}')
    known = vocabulary()
    return Capabilities(
        tuple(_strings("import", content.get("import", []))),
        start,
        tuple(
            _pattern(entry, known) for entry in _strings("not_supported", content.get("not_supported", []))
        ),
        tuple(_known(entry, known) for entry in content.get("known", [])),
    )


def _strings(key: str, values: list[Any]) -> list[str]:
    for value in values:
        if not isinstance(value, str) or not value.strip():
            raise WrongUse(f"{key} must be a list of strings, and has {value!r}")
    return values


def _pattern(entry: str, known: set[str]) -> Pattern:
    """Of an entry such as "AVG integer" (both words) or "!send_recv int8|int16" (not this, one of two)."""
    items = []
    for item in entry.split():
        words = item.removeprefix("!").split("|")
        for word in words:
            if word not in known and not word.startswith(DEVICE):
                raise WrongUse(
                    f"{entry!r} has the word {word!r}, which no case has{_hint(word, known)}; "
                    "`python -m occl.conformance --words` lists all words"
                )
        items.append((item.startswith("!"), frozenset(words)))
    return Pattern(tuple(items))


def _known(entry: object, known: set[str]) -> Known:
    if not isinstance(entry, Mapping) or set(entry) != {"cases", "verdict", "reason"}:
        raise WrongUse(f"each [[known]] needs cases, verdict and reason, and nothing else; one is {entry!r}")
    cases, verdict, reason = _strings("[[known]]", [entry["cases"], entry["verdict"], entry["reason"]])
    verdicts = frozenset(verdict.split("|"))
    if not verdicts <= set(VERDICTS):
        raise WrongUse(f"the verdict of a [[known]] is one of {', '.join(VERDICTS)}, not {verdict!r}")
    return Known(_pattern(cases, known), verdicts, reason)


def _hint(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""
