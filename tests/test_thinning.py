"""Thinned matrices still have every pair of values, and what is asked for is not thinned."""

from __future__ import annotations

from itertools import product

import pytest

from tests.support import thinning
from tests.support.cpp_build import ROOT
from tests.support.thinning import chosen, pairs_of

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


THINNED = ["-p", "tests.support.tables", "-p", "tests.support.thinning", "-q", "-m", "not full"]


@pytest.fixture
def thinned(pytester):
    """Twelve cases of three parameters; pytest runs them with the plugins."""
    pytester.makeini("[pytest]\nmarkers =\n    full\n    matrix")
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.parametrize("a", range(2))
        @pytest.mark.parametrize("b", range(2))
        @pytest.mark.parametrize("c", range(3))
        def test_long(a, b, c): pass

        def test_short(): pass

        @pytest.mark.full
        def test_full(): pass

        @pytest.mark.full
        @pytest.mark.parametrize("a", range(2))
        @pytest.mark.parametrize("b", range(2))
        @pytest.mark.parametrize("c", range(3))
        def test_matrix_for_ci(a, b, c): pass
        """
    )
    return lambda *arguments: pytester.runpytest(*THINNED, *arguments)


def test_the_summary_of_what_is_left_out_is_one_line_with_counts(thinned):
    result = thinned()
    result.assert_outcomes(passed=7, deselected=19)
    lines = [line for line in result.outlines if "left out" in line]
    assert lines == ["left out: 7 tests that CI runs, 12 of `make test-all`"]


def test_nothing_is_thinned_where_a_word_asks_for_it(thinned):
    thinned("-k", "long and 0-1-1").assert_outcomes(passed=1, deselected=25)
    thinned("-k", "long").assert_outcomes(passed=12, deselected=14)


def test_a_test_runs_that_its_id_asks_for(thinned):
    """Whatever its marks, and however many cases it has."""
    thinned("test_it.py::test_long").assert_outcomes(passed=12)
    thinned("test_it.py::test_full", "test_it.py::test_short").assert_outcomes(passed=2)
    thinned("test_it.py", "test_it.py::test_full").assert_outcomes(passed=13, deselected=13)


def test_words_for_full_runs_choose_among_what_is_left_out(thinned):
    thinned("-m", "full and not matrix", "-k", "long or test_full").assert_outcomes(passed=1, deselected=25)
    thinned("-m", "full and not matrix").assert_outcomes(passed=7, deselected=19)


def test_one_case_in_so_many_stays_of_what_is_left_to_ci(thinned, monkeypatch):
    monkeypatch.setattr(thinning, "TO_CI", {"test_it.py": 4})
    thinned().assert_outcomes(passed=3, deselected=23)  # 2 of the 6 that thinning leaves, and the short one
    monkeypatch.setattr(thinning, "TO_CI", {"test_it.py": None})
    thinned("test_it.py").assert_outcomes(passed=0, deselected=26)
    thinned("-k", "long").assert_outcomes(passed=12, deselected=14)
    thinned("-m", "full and not matrix").assert_outcomes(passed=14, deselected=12)


def test_a_file_of_which_nothing_stays_is_imported_where_a_path_asks_for_it(thinned, pytester, monkeypatch):
    pytester.makepyfile(test_other="raise ImportError")
    pytester.mkdir("folder").joinpath("test_third.py").write_text("raise ImportError")
    monkeypatch.setattr(thinning, "TO_CI", {"test_other.py": None, "folder/*.py": None})
    for whole in ([], ["."], [str(pytester.path)]):
        result = thinned(*whole)
        result.assert_outcomes(passed=7, deselected=19)
        result.stdout.fnmatch_lines("left out: 7 tests *, and all of 2 files")
    for narrow in (["test_other.py"], ["folder"], ["-k", "long"], ["-m", "full"]):
        thinned(*narrow).assert_outcomes(errors=1 + (narrow[0][0] == "-"))


def test_the_most_cases_of_a_function_can_be_given(thinned):
    thinned("--most-cases=2").assert_outcomes(passed=3, deselected=23)
    assert [thinning.spread(cases, 3) for cases in (1, 2, 9)] == [{0}, {0, 1}, {0, 4, 8}]


def test_what_is_left_to_ci_exists():
    assert all(list(ROOT.glob(pattern)) for pattern in thinning.TO_CI)
