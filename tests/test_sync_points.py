"""Each ordering of the core has a name, which stands on both of its sides: ``// sync: post-stamp``.

The comment stands behind the access or above it. A sentence may follow the names: ``// sync: tick. Why.``
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = ("base", "shm", "memory", "coll")

NAMES = re.compile(r"(?://|#) sync: ([a-z]+(?:-[a-z]+)*(?:, [a-z]+(?:-[a-z]+)*)*)(?:\. |\.?$)")
ORDERED = re.compile(r"memory_order_(?:acquire|release|acq_rel|seq_cst)|(?<!\w)fence\(\);")
ACCESS = re.compile(r"(?:\.|->)(?:load|store|exchange|fetch_\w+|compare_exchange_\w+)\(")
READS = re.compile(
    r"(?:\.|->)(?:load|exchange|fetch_\w+|compare_exchange_\w+)\([^;]*?_(?:acquire|acq_rel|seq_cst)"
)
WRITES = re.compile(
    r"(?:\.|->)(?:store|exchange|fetch_\w+|compare_exchange_\w+)\([^;]*?_(?:release|acq_rel|seq_cst)"
)

UNNAMED = {
    "inline void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }": "all are made of it",
}
"""Lines that order something and carry no name, and why."""


@dataclass
class Statement:
    code: str
    names: set[str]

    @property
    def ordered(self) -> bool:
        return bool(ORDERED.search(self.code)) and self.code not in UNNAMED

    @property
    def reads(self) -> bool:
        return bool(READS.search(self.code)) or "fence();" in self.code

    @property
    def writes(self) -> bool:
        return bool(WRITES.search(self.code)) or "fence();" in self.code


def statements(text: str) -> list[Statement]:
    """The statements of C++ source, each with the names in the comments behind it or directly above it."""
    found, code, names = [], "", set()
    for line in text.splitlines():
        before, _, comment = line.partition("//")
        if comment and (match := NAMES.search("//" + comment)):
            names |= set(match[1].split(", "))
        code = f"{code} {before.strip()}".strip()
        if code.endswith((";", "{", "}", ":")) or not line.strip():
            found.append(Statement(code, names))
            code, names = "", set()
    return found


def core() -> list[tuple[Path, Statement]]:
    files = [
        path
        for room in CORE
        for path in sorted((ROOT / "csrc" / room).rglob("*"))
        if path.suffix in {".h", ".cpp"}
    ]
    assert files
    return [(path, statement) for path in files for statement in statements(path.read_text())]


def read_outside() -> set[str]:
    """Names in the Python code that reads what the core writes, in place of a load."""
    packages = [init.parent for init in ROOT.glob("*/__init__.py") if init.parent.name != "tests"]
    texts = [path.read_text() for package in packages for path in package.rglob("*.py")]
    return {
        name
        for text in texts
        for line in text.splitlines()
        if (match := NAMES.search(line))
        for name in match[1].split(", ")
    }


def sides(found: list[Statement], outside: set[str]) -> dict[str, tuple[int, int, int]]:
    """By name: in how many places it stands, how many of them write, and how many read."""
    count: dict[str, tuple[int, int, int]] = dict.fromkeys(outside, (1, 0, 1))
    for statement in found:
        for name in statement.names:
            places, writes, reads = count.get(name, (0, 0, 0))
            count[name] = places + 1, writes + statement.writes, reads + statement.reads
    return count


def one_sided(found: list[Statement], outside: set[str]) -> list[str]:
    """Names that do not stand in two places, one of which writes and one of which reads."""
    return sorted(
        name for name, (places, *both) in sides(found, outside).items() if places < 2 or not all(both)
    )


def test_every_ordering_of_the_core_has_a_name():
    nameless = [f"{path.name}: {s.code}" for path, s in core() if s.ordered and not s.names]
    assert nameless == []


def test_names_stand_at_orderings_only():
    idle = [f"{path.name}: {s.code}" for path, s in core() if s.names and not s.ordered]
    assert idle == []


def test_every_access_says_which_order_it_needs():
    silent = [
        f"{path.name}: {s.code}"
        for path, s in core()
        if ACCESS.search(s.code) and "memory_order" not in s.code
    ]
    assert silent == []


def test_every_name_stands_on_both_sides():
    assert one_sided([statement for _, statement in core()], read_outside()) == []


def test_exceptions_are_still_there():
    assert set(UNNAMED) <= {statement.code for _, statement in core()}


STORE = "a.store(1, std::memory_order_release);"
LOAD = "while (a.load(std::memory_order_acquire) == 0) relax();"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (f"{STORE}  // sync: a\n\n{LOAD}  // sync: a\n", []),
        (f"// sync: a. Why.\n{STORE}\n// sync: a\n{LOAD}\n", []),
        (f"{STORE}  // sync: a\n{LOAD}  // sync: b\n", ["a", "b"]),
        (f"{STORE}  // sync: a\n{STORE}  // sync: a\n", ["a"]),
        (f"{LOAD}  // sync: a\n{LOAD}  // sync: a\n", ["a"]),
        (
            "a.store(1,\n    std::memory_order_seq_cst);  // sync: a, b\n"
            "b.exchange(2, std::memory_order_acq_rel);  // sync: b\n",
            ["a"],
        ),
        ("a.store(1, std::memory_order_relaxed);  // sync: a\n" + LOAD + "  // sync: a\n", ["a"]),
    ],
)
def test_a_name_on_one_side_only_is_found(text, wrong):
    assert one_sided(statements(text), set()) == wrong


def test_a_reader_outside_of_the_core_counts_as_a_load():
    assert one_sided(statements(f"{STORE}  // sync: a\n"), {"a"}) == []
    assert one_sided([], {"a"}) == ["a"]
