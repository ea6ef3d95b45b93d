"""The benchmark of first calls times calls that reach the other rank, and calls that do not."""

from __future__ import annotations

import pytest

from benchmarks import first_call, sweep


def test_the_table_has_calls_of_both_backends():
    times = {name: [100.0, 8.0] for name in first_call.NAMES}
    lines = first_call.page({"results": {"occl-cpu": times, sweep.GLOO: times}}).splitlines()
    assert lines[:2] == ["| call | first | second |", "|---|---|---|"]
    assert lines[2].endswith(" on one number | 100 us | 8 us |")
    assert [line.split(" | ")[0] for line in lines[-2:]] == [
        "| all_reduce of 4 B of two ranks, occl",
        "| all_reduce of 4 B of two ranks, Gloo",
    ]


@pytest.mark.full
def test_every_call_is_timed_after_a_break_and_again():
    found = sweep.measure("2", "occl-cpu", "benchmarks.first_call")
    assert set(found) == set(first_call.NAMES)
    assert all(len(times) == 2 and min(times) > 0 for times in found.values())
