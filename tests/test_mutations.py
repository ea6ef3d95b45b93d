"""The list of mutations fits the sources. `tests/mutations.py` checks that a test fails with each of them."""

import re

import pytest

from tests import mutations
from tests.mutations import MUTATIONS, NOT_CAUGHT, apply, copy_tree
from tests.support.cpp_build import ROOT


def test_every_mutation_fits_the_sources(tmp_path):
    copy_tree(tmp_path, built=False)
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) > 60
    for mutation in MUTATIONS:
        before = apply(mutation, tmp_path)
        path = tmp_path / mutation.path
        assert path.read_text() != before, mutation.name
        path.write_text(before)


def test_every_test_that_a_mutation_names_exists():
    for test in {test for mutation in MUTATIONS for test in mutation.tests}:
        program, _, part = test.partition(":")
        if mutations.mode_of(test) != mutations.PYTEST and part:
            source = ROOT / "tests" / "cpp" / f"{program.split('/')[1]}.cpp"
            names = re.findall(r'^TEST\("(.*)"\)', source.read_text(), re.MULTILINE)
            assert [name for name in names if part in name], test


def test_a_mutation_whose_text_is_not_there_is_an_error(tmp_path):
    copy_tree(tmp_path, built=False)
    gone = mutations.Mutation("gone", "shm/bell.h", "no such text", "", ())
    with pytest.raises(ValueError, match="occurs 0 times"):
        apply(gone, tmp_path)


def test_what_no_test_sees_is_of_files_that_exist():
    files = [name.partition(":")[0] for name in NOT_CAUGHT]
    assert files and [name for name in files if not (ROOT / "csrc" / name).is_file()] == []
