"""Parsers of what other programs wrote never fail in another way than they promise (hypothesis)."""

from __future__ import annotations

import functools
import os
import re
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from occl.conformance import capabilities
from occl.testing.outcomes import WrongUse
from occl.tools.doctor.kernel_files import parse_cores, write_cores
from occl.tools.report import align, read
from occl.tools.top import layout, processes, records
from tests.support.synthetic_traces import straggling

few = settings(derandomize=True, max_examples=60, deadline=None, suppress_health_check=[*HealthCheck])
"""The same examples in each run."""


def changes(content: bytes) -> some.SearchStrategy[bytes]:
    """The content cut short, or with some bytes changed."""
    places = some.integers(0, len(content) - 1)

    def changed(edits: list[tuple[int, bytes]]) -> bytes:
        found = bytearray(content)
        for at, piece in edits:
            found[at : at + len(piece)] = piece
        return bytes(found[: len(content)])

    edits = some.lists(some.tuples(places, some.binary(min_size=1, max_size=16)), min_size=1, max_size=4)
    return some.one_of(some.builds(changed, edits), places.map(lambda at: content[:at]))


# ---- traces

process = straggling(2, 3)[0]
TRACE = process.content()
DESCRIBED = TRACE.index(b"{")
PIECES = ["1e999", "-1", "null", "[]", "{}", '"x"', "1" * 30, "[" * 9, "NaN"]
"""In the place of values in the description of a process."""


def recording_of(content: bytes) -> read.Recording | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"it{read.SUFFIX}")
        path.write_bytes(content)
        try:
            return read.read(path)
        except read.Unreadable as error:
            assert path.name in str(error)
            return None


@few
@given(some.one_of(some.binary(max_size=300), some.binary(max_size=300).map(lambda it: read.MAGIC + it)))
def test_random_bytes_are_no_trace(content):
    assert recording_of(content) is None


@few
@given(changes(TRACE[: read.HEADER.size + 64]).map(lambda head: head + TRACE[len(head) :]))
def test_a_trace_with_another_header_is_read_or_refused(content):
    recording_of(content)


@few
@given(changes(TRACE[DESCRIBED : DESCRIBED + 600]))
def test_a_trace_with_another_description_is_read_or_refused(description):
    recording_of(TRACE[:DESCRIBED] + description + TRACE[DESCRIBED + len(description) :])


@few
@given(
    some.sampled_from(["pid", "rank", "world", "kinds", "host", "group", "size"]), some.sampled_from(PIECES)
)
def test_a_value_of_another_type_in_a_description_is_read_or_refused(key, piece):
    text = TRACE[DESCRIBED:].split(b"\0", 1)[0]
    other = re.sub(rf'"{key}": ?("[^"]*"|\[[^]]*\]|[^,}}]*)'.encode(), f'"{key}": {piece}'.encode(), text)
    assert f'"{key}": {piece}'.encode() in other
    recording_of(TRACE[:DESCRIBED] + other + TRACE[DESCRIBED + len(other) :])


@few
@given(some.integers(0, len(TRACE)))
def test_a_trace_that_is_cut_short_loses_only_what_is_behind_the_cut(size):
    whole, found = recording_of(TRACE), recording_of(TRACE[:size])
    assert whole is not None
    if found is not None:
        assert found.records == whole.records[: len(found.records)]


# ---- the clocks of two hosts


@few
@given(some.floats(-1e9, 1e9), some.lists(some.tuples(some.floats(0, 1e6), some.floats(0, 1e6)), min_size=1))
def test_the_true_difference_of_two_clocks_lies_within_what_is_said(true, delays):
    bounds = [
        align.Bound(at, least, true - delay if least else true + delay)
        for at, pair in enumerate(delays)
        for least, delay in zip((True, False), pair, strict=True)
    ]
    found = align.difference(bounds)
    assert found is not None
    ((_, shift),), off = found
    assert abs(-shift - true) <= off + 1e-6 * max(1.0, abs(true))


@few
@given(some.lists(some.builds(align.Bound, some.floats(0, 1e9), some.booleans(), some.floats(-1e9, 1e9))))
def test_bounds_that_contradict_each_other_give_a_sound_answer_or_none(bounds):
    found = align.difference(bounds)
    assert found is None or (found[0] and found[1] >= 0)


# ---- regions of other processes

NAMES_AT, FIRST = 4096, 1024
NAMES = (
    b"barrier,broadcast,all_reduce,reduce,all_gather,gather,scatter,reduce_scatter,all_to_all;float32:4;SUM"
)
IDENTITY = (layout.RECORD_MAGIC, layout.RECORD_BYTES, 0, layout.OPEN, 1, 0, 2, 0, 0, 0, b"0")


def region(identity: bytes, words: list[int]) -> bytes:
    head = layout.HEADER.pack(1, layout.MAGIC, layout.PROTOCOL, 0, 7, 0, FIRST, NAMES_AT, b"host a")
    return (
        head.ljust(FIRST, b"\0")
        + (identity + layout.WORDS.pack(*words)).ljust(NAMES_AT - FIRST, b"\0")
        + NAMES
    )


GOOD = region(layout.IDENTITY.pack(*IDENTITY), [0] * 112)


def shown(content: bytes) -> list[records.Record] | None:
    """The records, read as those of another process are: from a descriptor."""
    descriptor = os.memfd_create("region")
    try:
        os.write(descriptor, content)
        read_it = functools.partial(processes.Process.read, SimpleNamespace(fd=descriptor))
        return list(records.all_records(read_it))
    except layout.Unreadable as error:
        assert str(error)
        return None
    finally:
        os.close(descriptor)


def test_the_region_of_these_tests_shows_a_group():
    assert [record.size for record in shown(GOOD)] == [2]


@few
@given(changes(GOOD))
def test_a_region_with_other_contents_is_shown_or_refused(content):
    shown(content)


@few
@given(
    some.lists(
        some.sampled_from([0, 1, 2, 3, 255, 257, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]),
        min_size=112,
        max_size=112,
    )
)
def test_a_record_with_any_numbers_is_shown_or_refused(words):
    shown(region(layout.IDENTITY.pack(*IDENTITY), words))


@few
@given(some.sampled_from([2, 7, 8]), some.integers(0, (1 << 64) - 1))
def test_a_record_that_leads_anywhere_is_shown_or_refused(field, value):
    identity = [*IDENTITY]
    identity[field] = value
    shown(region(layout.IDENTITY.pack(*identity), [0] * 112))


# ---- lists of cores, and what vendors declare


@few
@given(some.sets(some.integers(0, 300)))
def test_a_list_of_cores_that_is_written_is_read_again(cores):
    assert parse_cores(write_cores(cores)) == cores


@few
@given(some.text(alphabet="0123456789-, x\n", max_size=6))
def test_any_list_of_cores_is_read(text):
    assert parse_cores(write_cores(parse_cores(text))) == parse_cores(text)


KEYS = some.sampled_from(["import", "start", "not_supported", "known", "[[known]]\ncases", "x"])
VALUES = some.sampled_from(
    ['"AVG"', '["AVG int8"]', "[3]", "[[]]", "[{}]", "3", "{}", '""', '["|"]', '["!"]', "inf"]
)
DECLARATIONS = some.one_of(
    some.binary(max_size=40),
    some.lists(some.builds(lambda key, value: f"{key} = {value}\n", KEYS, VALUES)).map(
        lambda it: "".join(it).encode()
    ),
)


@few
@given(DECLARATIONS)
def test_a_declaration_is_read_or_refused_with_the_name_of_its_file(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mine.toml")
        path.write_bytes(content)
        try:
            capabilities.load(path, "mine")
        except WrongUse as error:
            assert str(error).startswith(f"--capabilities {path}: ")


def test_these_examples_find_a_parser_that_fails(monkeypatch):
    def careless(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(read, "_record", careless)
    with pytest.raises(ZeroDivisionError):
        recording_of(TRACE)
