"""The list of mutations fits the sources; with ``-m full``, each of them makes a test fail."""

import pytest

from tests import mutations
from tests.mutations import MUTATIONS, NOT_CAUGHT, apply, caught_by, copy_tree


def test_every_mutation_fits_the_sources(tmp_path):
    copy_tree(tmp_path, built=False)
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) > 60
    for mutation in MUTATIONS:
        before = apply(mutation, tmp_path)
        path = tmp_path / mutation.path
        assert path.read_text() != before, mutation.name
        path.write_text(before)


def test_a_mutation_whose_text_is_not_there_is_an_error(tmp_path):
    copy_tree(tmp_path, built=False)
    gone = mutations.Mutation("gone", "shm/bell.h", "no such text", "", ())
    with pytest.raises(ValueError, match="occurs 0 times"):
        apply(gone, tmp_path)


def test_what_no_test_sees_is_said_with_its_reason():
    assert all(len(reason) > 10 for reason in NOT_CAUGHT.values())


@pytest.fixture(scope="module")
def tree():
    with mutations.tree() as root:
        yield root


@pytest.mark.full
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[m.name.replace(" ", "_") for m in MUTATIONS])
def test_a_mutation_is_caught(mutation, tree):
    assert caught_by(mutation, tree) != [None], "no test fails with this mutation"
