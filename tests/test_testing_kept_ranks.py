"""The option ``keep`` of the mark ``ranks``: which tests have the same processes, and which have new ones."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from occl.testing import pool
from tests.support import own_pytest
from tests.support.own_pytest import endings

pytestmark = pytest.mark.full

SAMPLE = """
import os, sys, types, pytest, torch
import torch.distributed as dist

kept = pytest.mark.ranks(2, backend="occl", keep=True)

def note(rank):
    name = os.environ["PYTEST_CURRENT_TEST"].split("::")[1].split()[0]
    with open(f"{name}.{rank}", "a") as file:
        print(os.getpid(), file=file)

def meet(rank):
    note(rank)
    assert "LEFT" not in os.environ
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == dist.get_world_size()

@kept
def test_first(rank):
    meet(rank)

@kept
def test_second(rank):
    meet(rank)
    import colorsys  # what a test imports for the first time is no leftover
    print("old words")

@pytest.mark.ranks(3, backend="occl", keep=True)
def test_three(rank):
    meet(rank)

@pytest.mark.ranks(2, keep=True, device="dev")
def test_dev(rank, device):
    note(rank)
    tensor = torch.ones(1, device=device)
    dist.all_reduce(tensor)
    assert tensor.item() == 2

@pytest.mark.ranks(2, keep=True, backend="gloo")
def test_gloo(rank):
    assert dist.get_backend() == "gloo"
    meet(rank)

@pytest.mark.ranks(2, keep=True, group=False)
def test_without_group(rank):
    assert not dist.is_initialized()
    note(rank)

@pytest.mark.ranks(2, backend="occl")
def test_not_kept(rank):
    meet(rank)

@kept
def test_another_environment(rank, monkeypatch_setting):
    meet(rank)
    assert os.environ["SETTING"] == "here"

@pytest.fixture
def monkeypatch_setting(monkeypatch):
    monkeypatch.setenv("SETTING", "here")

@kept
def test_after_others(rank):
    meet(rank)

def pid(rank):
    return os.getpid()

def test_run_ranks(run_ranks):
    for numbers in [run_ranks(pid, backend="occl", keep=True) for _ in range(2)]:
        for rank, number in enumerate(numbers):
            with open(f"test_run_ranks.{rank}", "a") as file:
                print(number, file=file)

@kept
def test_bad_words(rank):
    meet(rank)
    print("new words")
    assert rank == 0

@kept
def test_after_failure(rank):
    meet(rank)

@kept
def test_leaves_variable(rank):
    meet(rank)
    os.environ["LEFT"] = "behind"

@kept
def test_after_variable(rank):
    meet(rank)

@kept
def test_leaves_group(rank):
    meet(rank)
    dist.new_group([0])

@kept
def test_after_group(rank):
    meet(rank)

@kept
def test_ends_group(rank):
    meet(rank)
    dist.destroy_process_group()

@kept
def test_after_end(rank):
    meet(rank)

@kept
def test_replaces_module(rank):
    meet(rank)
    if rank == 1:
        sys.modules["string"] = types.ModuleType("string")

@kept
def test_after_module(rank):
    meet(rank)

@kept
def test_skips(rank):
    meet(rank)
    pytest.skip("not here")

@kept
def test_after_skip(rank):
    meet(rank)

@kept
def test_dies_as_planned(rank, faults):
    meet(rank)
    faults.kill(rank=1, at="barrier#1")
    if rank == 1:
        dist.barrier()

@kept
def test_after_death(rank):
    meet(rank)

@pytest.mark.ranks(2, keep="yes")
def test_bad_option(rank):
    pass
"""

MANY = """
@kept
@pytest.mark.parametrize("number", range(8))
def test_many(rank, number):
    meet(rank)
"""


def pids(folder: Path, name: str) -> list[tuple[int, ...]]:
    """The processes of a test in rank order, once for each time that it has run functions in ranks."""
    files = sorted(folder.glob(f"test_{name}.*"))
    assert files, name
    return list(zip(*([int(line) for line in file.read_text().split()] for file in files), strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The sample has run here once."""
    folder = tmp_path_factory.mktemp("kept")
    (folder / "test_sample.py").write_text(SAMPLE)
    (folder / "output").write_text(own_pytest.run(folder).output)
    return folder


def test_every_test_of_the_sample_ends_as_its_name_says(folder):
    found = endings(folder / "results.xml")
    wrong = {
        name: ending.text
        for name, ending in found.items()
        if (ending.kind in ("failure", "error")) != name.startswith("test_bad")
    }
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())
    assert len(found) == SAMPLE.count("def test_")


def test_ranks_stay_for_every_test_that_asks_for_the_same(folder):
    first = pids(folder, "first")
    assert len(first) == 1 and len(first[0]) == 2
    assert pids(folder, "second") == pids(folder, "after_others") == first
    assert pids(folder, "run_ranks") == first * 2


def test_another_size_device_backend_group_or_environment_has_ranks_of_its_own(folder):
    names = ("first", "three", "dev", "gloo", "without_group", "not_kept", "another_environment")
    everyone = [pid for name in names for each in pids(folder, name) for pid in each]
    assert len(everyone) == len(set(everyone)) == 15


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("bad_words", "failure"),
        ("leaves_variable", "variable"),
        ("leaves_group", "group"),
        ("ends_group", "end"),
        ("replaces_module", "module"),
        ("skips", "skip"),
        ("dies_as_planned", "death"),
    ],
)
def test_ranks_that_are_not_as_they_were_are_not_used_again(folder, before, after):
    (old,), (new,) = pids(folder, before), pids(folder, f"after_{after}")
    assert not set(old) & set(new)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("leaves_variable", "variables changed: LEFT"),
        ("leaves_group", "process groups left: 1"),
        ("ends_group", "process groups ended: 0"),
        ("replaces_module", "modules removed or replaced: string"),
    ],
)
def test_a_test_that_leaves_something_behind_is_named_in_a_warning(folder, name, what):
    output = (folder / "output").read_text()
    warning = f"test_{name} has not left its kept ranks as it found them, so the next test gets new ones. "
    assert warning + what in output, output
    assert output.count("has not left its kept ranks") == 4


def test_the_report_of_a_failure_has_the_output_of_that_test_only(folder):
    output = (folder / "output").read_text()
    assert "new words" in output and "old words" not in output


def test_what_keep_takes_is_said(folder):
    assert "keep must be True or False, not 'yes'" in endings(folder / "results.xml")["test_bad_option"].text


def test_kept_ranks_end_with_the_session(folder):
    for file in folder.glob("test_*.[0-9]"):
        assert not [pid for pid in file.read_text().split() if Path(f"/proc/{pid}").exists()]


def test_each_process_of_xdist_keeps_ranks_of_its_own(tmp_path):
    (tmp_path / "test_sample.py").write_text(SAMPLE.partition("@kept")[0] + MANY)
    assert "8 passed" in own_pytest.run(tmp_path, "-n", "2").output
    found = {pid for file in tmp_path.glob("test_many*") for pid in file.read_text().split()}
    assert len(found) == 4


class Kept:
    """Stands for a team."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.alive = True

    def close(self) -> None:
        self.alive = False

    def forget_printed(self) -> None:
        pass


@pytest.fixture
def few_stay(monkeypatch):
    monkeypatch.setattr(pool, "_kept", {})
    monkeypatch.setattr(pool, "MOST_RANKS", 8)


def used(of: pool.Pool, key: str, size: int) -> Kept:
    with of.lend(key, lambda: Kept(size)) as team:
        return team


def test_of_all_pools_the_ranks_that_were_used_least_recently_end(few_stay):
    one, other = pool.Pool(mock.Mock()), pool.Pool(mock.Mock())
    first, second, third = used(one, "a", 3), used(other, "a", 3), used(one, "b", 2)
    assert used(one, "a", 3) is first and used(other, "a", 3) is second
    assert first.alive and second.alive and third.alive
    fourth = used(other, "b", 4)
    assert (first.alive, second.alive, third.alive, fourth.alive) == (False, True, False, True)
    used(other, "c", 20)
    assert [team.size for team in pool._kept.values()] == [20]


def test_ranks_that_are_lent_do_not_end_for_others(few_stay):
    lender = pool.Pool(mock.Mock())
    with lender.lend("a", lambda: Kept(6)) as outer:
        inner = used(lender, "b", 6)
        assert outer.alive and inner.alive
    lender.close()
    assert not outer.alive and not inner.alive and not pool._kept
