"""What the doctor concludes from its self-test."""

import errno
import os
import signal

import pytest

from occl.tools.doctor import selftest, software, subprocesses
from occl.tools.doctor.report import FINE, HINT, PROBLEM
from occl.tools.doctor.subprocesses import Ended

KILLED = Ended(-signal.SIGKILL, {}, "")
SAID = {
    "wrong": {"cpu": [], "dev": []},
    "cpu": {"4 B": 5.0, "1 MiB": 70.0},
    "dev": {"4 B": 5.0, "1 MiB": 70.0},
    "death": "rank 1 (pid 5, host a) exited during all_reduce",
}


def verdict(said: dict, other: Ended = KILLED, status: int | None = 0, errors: str = "") -> dict[str, str]:
    """The levels that are not fine, by name."""
    lines = selftest.lines([Ended(status, SAID | said, errors), other], cores=2)
    return {line.name: line.level for line in lines if line.level != FINE}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, {}),
        ({"wrong": {"cpu": [1000], "dev": []}}, {"result on cpu": PROBLEM}),
        ({"wrong": {"cpu": [], "dev": [1]}}, {"result on dev": PROBLEM}),
        ({"death": ""}, {"death of a rank": PROBLEM}),
        ({"death": "Timed out waiting"}, {"death of a rank": PROBLEM}),
        ({"death": "rank 11 (pid 5) exited"}, {"death of a rank": PROBLEM}),
        ({"cpu": {"4 B": 1e6, "1 MiB": 70.0}}, {"4 B on cpu": HINT}),
    ],
)
def test_each_thing_that_the_self_test_tries_can_fail_it(said, expected):
    assert verdict(said) == expected


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (Ended(1, {}, "KeyError: 3"), {"death of a rank": PROBLEM}),
        (Ended(None, {}, ""), {"death of a rank": PROBLEM}),
    ],
)
def test_a_rank_that_was_not_killed_proves_nothing(other, expected):
    assert verdict({}, other) == expected


def test_a_rank_that_hangs_or_fails_is_named():
    assert verdict({}, status=None) == {"rank 0": PROBLEM}
    lines = selftest.lines([Ended(1, {}, "KeyError: 3"), Ended(1, {}, "KeyError: 4")], cores=2)
    assert [(line.name, line.text) for line in lines] == [
        ("rank 0", "failed: KeyError: 3"),
        ("rank 1", "failed: KeyError: 4"),
    ]


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("cannot map 5 bytes (ulimit -v may be too low)", "Raise this limit (ulimit -v)"),
        ('OCCL_TUNING="a=1": there is no', "Correct or unset the environment variable OCCL_TUNING."),
        ("OCCL_TUNING_X", "Look above"),
    ],
)
def test_the_remedy_for_a_rank_follows_from_its_error(reason, remedy):
    assert selftest.advice(reason).startswith(remedy)


@pytest.mark.parametrize(("cores", "words"), [(1, "yield for"), (4, "up to 4 ranks"), (500, "up to 256")])
def test_how_ranks_wait_follows_from_the_cores(cores, words):
    (line,) = software.choice_lines({}, "AVX2", cores)
    assert words in line.text


def test_a_time_is_slow_for_the_kind_of_machine():
    medians = {"4 B": 500.0}
    assert [selftest.time_lines("cpu", medians, cores)[0].level for cores in (2, 1)] == [HINT, FINE]


def test_ranks_that_cannot_be_started_are_a_problem(monkeypatch):
    def run(*_):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocesses, "run", run)
    (line,) = selftest.section().lines
    assert line.level == PROBLEM and "ulimit -u" in line.remedy


def test_no_folder_for_temporary_files_is_a_problem():
    line = software.not_started("ranks", FileNotFoundError(errno.ENOENT, "No usable temporary directory"))
    assert line.level == PROBLEM and "TMPDIR" in line.remedy
