"""The fixture ``faults`` of `occl.testing`: how each test of `support/faults_sample.py` ends."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from occl.testing import intercept
from occl.testing.faults import Faults
from tests.support import own_pytest
from tests.support.own_pytest import Results

SAMPLE = Path(__file__).parent / "support" / "faults_sample.py"
EXAMPLE = Path(__file__).parents[1] / "examples" / "test_elastic_faults.py"


def run(folder: Path, *arguments: str) -> Results:
    """pytest in a process of its own, in a folder that gets its results."""
    return own_pytest.run(folder, "--basetemp=temporary", "--strict-markers", *arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    shutil.copy(SAMPLE, folder / "test_sample.py")
    return folder


@pytest.fixture(scope="module")
def results(folder) -> Results:
    """The whole sample has run once."""
    return run(folder)


@pytest.mark.full
def test_every_test_of_the_sample_ends_as_its_name_says(results):
    wrong = {
        name: ending.text
        for name, ending in results.endings.items()
        if (ending.kind in ("failure", "error")) != name.startswith("test_bad")
    }
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())
    names = re.findall(r"def (test_\w+)", SAMPLE.read_text())
    assert set(names) == {name.partition("[")[0] for name in results.endings}


@pytest.mark.full
def test_a_stopped_rank_ends_with_its_test(results, folder):
    pids = [int(path.read_text()) for path in (folder / "temporary").glob("stopped *")]
    assert len(pids) == 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "never",
            r'^faults.kill\(rank=1, at="all_reduce#2"\) never came to pass: rank 1 did not get to that ',
        ),
        ("never", r"Its calls since the fault was planned: all_reduce 1\. Choose one of these, or let the "),
        ("never_in_run", r"never came to pass: rank 1 (?s:.*)was planned: barrier 1\."),
        ("no_run", r"never came to pass: no ranks ran after it was planned. Plan it before run_ranks\."),
        ("planned_elsewhere", r"rank 1 has not planned it, or has ended before .* Plan it on every rank"),
        ("cut_without_a_cable", r"never came to pass: there is no TCP connection .*values of OCCL_NODE befo"),
        ("cut_without_all", r"never came to pass: not all ranks made that call within 1 s, and each must"),
        (
            "survivor",
            r"^rank 0 raised DistBackendError: .*; rank 1 \(pid \d+\) was killed by SIGKILL, as fau",
        ),
        ("other_death", r"rank 1 \(pid \d+\) was exited with status 3"),
        ("other_death", r'faults.kill\(rank=1, at="barrier#1"\) never came to pass'),
        ('input[kill(rank=0, at="allreduce#3")]', r"no operation 'allreduce'; did you mean 'all_reduce'"),
        ('input[kill(rank=0, at="isend#1")]', r"no operation 'isend'; did you mean 'send'"),
        ('input[kill(rank=0, at="step#1")]', r"no operation 'step'; it is one of any, all_reduce, broadcast"),
        (
            'input[kill(rank=0, at="all_reduce#0")]',
            r"counted from 1: write at=\"all_reduce#1\" for the first",
        ),
        (
            'input[kill(rank=0, at="all_reduce")]',
            r'write the call as "all_reduce#3", the third all_reduce of',
        ),
        ("input[kill(rank=0, at=3)]", r"its third call of any operation; not 3"),
        ('input[stop(rank=2, at="barrier#1")]', r"there is no rank 2 among 2 ranks, which count from 0"),
        ('input[stop(rank=-1, at="barrier#1")]', r"faults.stop: a rank is a number from 0, not -1"),
        ('input[late(rank=0, seconds=0, at="barrier#1")]', r"seconds must be a number above 0, not 0"),
        ('input[delay(rank=0, seconds=1, of="barrier#1")]', r"a delay is of all: use faults.late\(rank, sec"),
        ('input[delay(rank=0, seconds="1")]', r"seconds must be a number above 0, not '1'"),
        ('input[cut([], at="barrier#1")]', r"ranks on one side are a list, such as \[2, 3\], not \[\]"),
        ('input[cut(1, at="barrier#1")]', r"ranks on one side are a list, such as \[2, 3\], not 1"),
        ('input[cut([0, 1], at="barrier#1")]', r"all ranks are on one side; leave out those on the other"),
        ("input[random(within=0)]", r"within must be a number of calls from 1, not 0"),
        ('input[random(within=1, kinds=["fire"])]', r"no kind 'fire': choose of kill, stop, late, oom"),
        ("input[random(within=1, ranks=[])]", r"nothing to choose from: kinds or ranks are empty"),
        ("ranks_of_random", r"say which ranks may be struck: ranks=range\(3\)"),
        ("rank_of_run", r"there is no rank 4 among 3 ranks"),
    ],
)
def test_a_failure_says_what_is_wrong_and_what_to_do(results, name, words):
    text = results.endings[f"test_bad_{name}"].text
    assert re.search(words, text, re.M), text


@pytest.mark.full
def test_a_seed_that_a_report_shows_draws_the_fault_again(results, folder):
    shown = (
        r"Captured faults call -*\n(faults\.late\(.*\)) \(drawn from seed (\d+); pytest --faults-seed=\2 dr"
    )
    fault, seed = re.search(shown, results.output).groups()
    again = run(folder, f"--faults-seed={seed}", "-k", "test_bad_seed")
    assert re.search(shown, again.output).groups() == (fault, seed)


def test_each_seed_and_each_test_has_its_own_faults():
    def drawn(seed, test):
        faults = Faults(seed, test, lambda fault: None, size=4)
        return [str(faults.random(within=50)) for _ in range(3)]

    lists = [drawn(1, "test_a"), drawn(2, "test_a"), drawn(1, "test_b")]
    assert drawn(1, "test_a") == lists[0]
    assert len({text for texts in lists for text in texts}) == 9
    struck = {drawn(seed, "test")[0].partition("(")[0] for seed in range(50)}
    assert struck == {f"faults.{kind}" for kind in ("kill", "stop", "late", "oom")}


def test_every_operation_of_pytorch_is_seen():
    """Each of the namespace that takes a process group."""
    import torch

    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("c10d::")}
    known = {f"c10d::{operator}" for operators in intercept.NAMES.values() for operator in operators}
    assert names - known == {"c10d::check_for_nan"}
    assert known - names <= {"c10d::gather_into_tensor_"}  # from PyTorch 2.14 on


@pytest.mark.full
@pytest.mark.parametrize(
    ("chosen", "count"), [("occl and (kill or oom)", 2), pytest.param("", 14, marks=pytest.mark.matrix)]
)
def test_the_example_survives_every_fault(tmp_path, chosen, count):
    shutil.copy(EXAMPLE, tmp_path)
    ended = run(tmp_path, "-k", chosen)
    assert len(ended.endings) == count
    assert {ending.kind for ending in ended.endings.values()} == {"passed"}, ended.output
