"""Sizes, durations, lists of ranks and tables as text."""

import pytest

from occl.tools.text import (
    duration,
    markdown_table,
    narrow_duration,
    narrow_size,
    ranks,
    size,
    table,
)

SIZES = {
    0: "0 B", 4: "4 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1020 << 10: "1020 KiB",
    64 << 20: "64 MiB", 1 << 30: "1 GiB", 15.62 * (1 << 30): "15.6 GiB", 5000 << 50: "5000 PiB",
}  # fmt: skip
DURATIONS = {
    0: "0 ns", 0.4: "0 ns", 999: "999 ns", 1000: "1 us", 12_340: "12.3 us", 999_700: "1000 us",
    1e6: "1 ms", 2.5e9: "2.5 s", 3.6e12: "3600 s",
}  # fmt: skip
NARROW_SIZES = {
    0: "0", 512: "512", 1023: "1K", 1024: "1K", 1536: "1.5K", 10 << 20: "10M", 1023 << 20: "1G",
    999 << 50: "999P",
}  # fmt: skip
NARROW_DURATIONS = {
    0.0: "0", 499: "0", 1.2e4: "+12us", -3e6: "-3ms", 2e9: "+2s", 9.996e5: "+1ms", 9e12: "+9000s",
    1e14: "+28h",
}  # fmt: skip


@pytest.mark.parametrize(
    ("write", "texts"),
    [
        (size, SIZES),
        (duration, DURATIONS),
        (narrow_size, NARROW_SIZES),
        (narrow_duration, NARROW_DURATIONS),
    ],
)
def test_numbers_have_the_unit_that_is_easiest_to_read(write, texts):
    assert {value: write(value) for value in texts} == texts


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "rank 3"),
        ([2, 0], "ranks 0 and 2"),
        ([0, 1, 3], "ranks 0, 1 and 3"),
        ([0, 2, 3, 4, 5, 8], "ranks 0, 2-5 and 8"),
        ([*range(63)], "ranks 0-62"),
    ],
)
def test_ranks_are_enumerated_in_a_few_words(numbers, text):
    assert ranks(numbers) == text


def test_many_ranks_with_gaps_are_the_first_ones_and_a_number():
    numbers = [0, 2, 4, *range(6, 20)]
    assert ranks(numbers, most=3) == "ranks 0, 2, 4 and 14 more"
    assert ranks(numbers, most=4) == ranks(numbers) == "ranks 0, 2, 4 and 6-19"


def test_columns_of_tables_are_as_wide_as_their_widest_cell():
    rows = [["a", "1"], ["long", "1000000"]]
    assert [*table(["", "count"], rows)] == ["        count", "a           1", "long  1000000"]
    assert [*table(["head"], [])] == ["head"]
    assert [*markdown_table(["", "n"], rows[:1])] == ["|  | n |", "|---|---|", "| a | 1 |"]
