"""Thinned matrices still have every pair of values (`support/thinning.py`)."""

from __future__ import annotations

from itertools import product

import pytest

from tests.support.thinning import FEW, chosen, pairs_of

pytest_plugins = ["pytester"]

MATRIX = [
    {"device": device, "size": size, "kind": kind}
    for device, size, kind in product(["cpu", "dev"], [1, 2, 3, 8], ["sum", "max", "avg"])
]


def all_pairs(cases):
    return set().union(*map(pairs_of, cases))


def test_every_pair_stays_in_a_fraction_of_the_cases():
    stay = [MATRIX[at] for at in chosen(MATRIX)]
    assert all_pairs(stay) == all_pairs(MATRIX)
    assert 12 <= len(stay) <= 14  # four sizes with three kinds are twelve pairs; all cases are 24


def test_pairs_that_never_meet_are_not_missed():
    uneven = [case for case in MATRIX if case["size"] > 2 or case["device"] == "cpu"]
    assert all_pairs([uneven[at] for at in chosen(uneven)]) == all_pairs(uneven)


@pytest.mark.parametrize(
    "cases",
    [[{"name": i} for i in range(20)], [{"a": a, "b": b} for a in range(5) for b in range(4)]],
    ids=["one_parameter", "two_parameters"],
)
def test_nothing_to_thin_stays_whole(cases):
    assert chosen(cases) == list(range(20))


def test_the_choice_is_the_same_each_time():
    assert chosen(MATRIX) == chosen(MATRIX)


def test_what_is_left_out_is_marked_full(pytester):
    pytester.makeini("[pytest]\nmarkers = full")
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.parametrize("a", range(2))
        @pytest.mark.parametrize("b", range(2))
        @pytest.mark.parametrize("c", range({FEW // 4 + 1}))
        def test_long(a, b, c): pass

        @pytest.mark.parametrize("a", range(2))
        @pytest.mark.parametrize("b", range(2))
        @pytest.mark.parametrize("c", range({FEW // 4}))
        def test_short(a, b, c): pass
        """
    )
    thin = ["-p", "tests.support.thinning", "-q"]
    pytester.runpytest(*thin, "-m", "not full", "-k", "short").assert_outcomes(passed=FEW)
    pytester.runpytest(*thin, "-m", "not full", "-k", "long").assert_outcomes(passed=6, deselected=14)
    pytester.runpytest(*thin, "-m", "full").assert_outcomes(passed=6, deselected=14)
