"""A program that makes no progress says, long before its timeout, which ranks wait for which, and why."""

from __future__ import annotations

import ctypes
import os
import pdb
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from occl.distributed import long_waits
from tests.support.checks import backend
from tests.support.devices import DEVICES
from tests.support.thinning import first
from tests.support.worker import listen, tell

ROOT = Path(__file__).parents[2]
AFTER = 1.0


def notices() -> list[str]:
    """What this rank writes. It tells of each look."""
    written: list[str] = []
    watched = long_waits.Notices(AFTER, written.append)

    def look() -> None:
        watched.look()
        tell("looked")

    long_waits._set_long_wait_notice(AFTER, look)
    return written


def results(team) -> list[list[str]]:
    """What each rank has returned."""
    outcomes = team.finish()
    assert not any(outcome.failed for outcome in outcomes), outcomes
    return [outcome.result for outcome in outcomes]


def late(rank, n, device):
    """Rank 1 comes when both others have looked; then one of them has spoken, and only that one."""
    written = [] if rank == 1 else notices()
    if rank == 1:
        listen()
    dist.all_reduce(torch.ones(3, device=device))
    return written


@pytest.mark.parametrize("device", first(DEVICES))
def test_one_rank_says_which_rank_is_late(fresh, device):
    with fresh(3) as team:
        team.join().start(late, device)
        for rank in (0, 2):
            team.hear(rank)
        team.say(1, "both have looked")
        told = results(team)
    ((text,),) = [written for written in told if written]
    assert re.fullmatch(
        r"torch_occl: no progress for 1 s \(OCCL_STUCK_AFTER\)\. Ranks? [02]( and 2)? of group 0 ha(s|ve) "
        r"waited [0-9.]+ s for rank 1 \(pid \d+, host \S+\) in all_reduce\(float32\[3\], SUM\) #1, which "
        r"times out in [0-9.]+ s\. Rank 1 sleeps \(\w+\); it has called no operation\. "
        r"Its Python stack: .*, listen \(child\.py:\d+\)\. `occl top` shows all ranks\.",
        text,
    ), text


def stopped(rank, n, device):
    """Rank 1 is stopped before rank 0 calls, until rank 0 has said so."""
    dist.barrier()
    tell("past the barrier")
    listen()
    written = notices() if rank == 0 else []
    dist.all_reduce(torch.ones(3, device=device))
    return written


@pytest.mark.full
def test_a_rank_that_is_stopped_is_said_to_be(fresh):
    with fresh(2) as team:
        team.join().start(stopped)
        for rank in range(2):
            team.hear(rank)
        team.kill(1, signal.SIGSTOP)
        team.say(0, "rank 1 is stopped")
        team.hear(0)
        team.say(1, "go on")
        team.kill(1, signal.SIGCONT)
        (text,), _ = results(team)
    assert "Rank 1 is stopped (SIGSTOP, or Ctrl-Z); its last operation was barrier" in text, text


class Released:
    """A pipe with a name: rank 1 is late until rank 0 has spoken and writes into it."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_RDWR)

    def write(self) -> None:
        os.write(self.file, b"continue\n")

    def read(self) -> None:
        os.read(self.file, 100)

    # ---- ways to be late

    def computes(self) -> None:
        os.set_blocking(self.file, False)
        while True:
            try:
                return self.read()
            except BlockingIOError:
                sum(range(100))

    def reads(self) -> None:
        self.read()

    def locks(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        threading.Thread(target=lambda: (self.read(), lock.release())).start()
        lock.acquire()

    def debugs(self) -> None:
        with open(self.file, closefd=False) as commands, open(os.devnull, "w") as nothing:
            pdb.Pdb(stdin=commands, stdout=nothing, nosigint=True, readrc=False).set_trace()
            sum(range(100))

    def keeps_the_lock(self) -> None:
        ctypes.PyDLL(None).read(self.file, ctypes.create_string_buffer(100), 100)


def late_in(rank, n, device, *, path, how):
    dist.barrier()
    pipe = Released(path)
    written: list[str] = []
    if rank == 1:
        getattr(pipe, how)()
    else:
        watched = long_waits.Notices(AFTER, written.append)

        def look() -> None:
            watched.look()
            pipe.write()

        long_waits._set_long_wait_notice(AFTER, look)
    dist.all_reduce(torch.ones(3, device=device))
    return written


IN_A_CALL = "in a call outside Python that keeps the interpreter's lock"


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "does", "stack"),
    [
        ("computes", r"runs|sleeps.*", r".*computes \(test_long_waits\.py:\d+\), .*"),
        ("reads", r"sleeps \(\w+\)", r"read \(.*\), reads \(.*\), late_in \(.*\), .*"),
        ("locks", r"sleeps \(futex_\w+\)", r"locks \(.*\), late_in \(.*\), .*"),
        ("debugs", r"is in Python's debugger", r".*"),
        ("keeps_the_lock", rf"sleeps \(\w+\) {IN_A_CALL}", None),
    ],
)
def test_a_late_rank_shows_what_it_does(fresh, tmp_path, how, does, stack):
    os.mkfifo(tmp_path / "pipe")
    with fresh(2) as team:
        (text,), _ = team.join().run(late_in, path=str(tmp_path / "pipe"), how=how)
    shown = "" if stack is None else rf" Its Python stack: {stack}\."
    assert re.search(
        rf"\. Rank 1 ({does}); its last operation was barrier.* #1\.{shown} `occl top` shows all ranks\.$",
        text,
    ), text


def wait_for_each_other(rank, n, device, *, how):
    """What each rank waits for, the other one does not do; until both have looked."""
    t = torch.ones(1_000_000 if how == "different tags" else 3, device=device)
    group = (dist.new_group(), dist.new_group())[rank] if how == "other groups" else dist.group.WORLD
    calls = {
        "other groups": lambda: dist.all_reduce(t, group=group),
        "crossed receives": lambda: dist.recv(t, 1 - rank),
        "different tags": lambda: dist.recv(t, 1, tag=1) if rank == 0 else dist.send(t, 0, tag=2),
    }

    def end() -> None:
        listen()
        backend(device, group).abort()

    threading.Thread(target=end).start()
    written = notices()
    with pytest.raises(dist.DistBackendError, match="abort"):
        calls[how]()
    return written


ALL_REDUCE = r"all_reduce\(float32\[3\], SUM\) #1"
ELSEWHERE = ALL_REDUCE + r" of group (?!\2)\w+"
EITHER = r"(recv\(.*, tag=1|send\(.*, tag=2)\) #1"


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "mine", "theirs"),
    [
        ("other groups", ALL_REDUCE, ELSEWHERE),
        ("crossed receives", r"recv\(float32\[3\], src=\3.*\) #1", r"recv\(float32\[3\], src=\1.*\) #1"),
        ("different tags", EITHER, EITHER),
    ],
)
def test_ranks_that_wait_for_each_other_are_a_circle(fresh, how, mine, theirs):
    with fresh(2) as team:
        team.join().start(wait_for_each_other, how=how)
        for rank in range(2):
            team.hear(rank)
        for rank in range(2):
            team.say(rank, "both have looked")
        told = results(team)
    ((text,),) = [written for written in told if written]
    assert re.search(
        rf"Rank (\d) of group (\w+) has waited [0-9.]+ s for rank (\d) .* in {mine}, .* "
        rf"Rank \3 waits for rank \1 in {theirs}\.",
        text,
    ), text


def late_in_a_subgroup(rank, n, device):
    """Ranks 1 and 3 are a subgroup of a subgroup; rank 3 comes when rank 1 has looked."""
    limit = timedelta(seconds=60)
    three = dist.group.WORLD.split_group([1, 2, 3], timeout=limit)
    two = None if three is None else three.split_group([0, 2], timeout=limit)
    if two is None:
        return []
    written = [] if rank == 3 else notices()
    if rank == 3:
        listen()
    two.allreduce(torch.ones(3, device=device)).wait()
    return written


@pytest.mark.full
def test_ranks_of_a_subgroup_of_a_subgroup_have_its_numbers(fresh):
    with fresh(4) as team:
        team.join().start(late_in_a_subgroup)
        team.hear(1)
        team.say(3, "rank 1 has looked")
        pid = team.members[3].pid
        _, (text,), _, _ = results(team)
    assert re.search(
        r"Rank 0 of group 0:split:.+:split:.+ has waited [0-9.]+ s for "
        rf"rank 1 \(pid {pid}, host \S+\) in {ALL_REDUCE}, .* Rank 1 sleeps \(\w+\); ",
        text,
    ), text


def goes_on(rank, n, device):
    """Many waits, none of them long, say nothing, however long they take together."""
    written: list[str] = []
    long_waits.watch(0.2, written.append)
    begin = time.monotonic()
    more = torch.ones(1)
    while more:
        if rank == 1:
            time.sleep(0.06)
        dist.all_reduce(torch.ones(3, device=device))
        more.fill_(time.monotonic() - begin < 1.5)
        dist.broadcast(more, 0)
    return written


@pytest.mark.full
def test_progress_is_never_called_a_hang(fresh):
    with fresh(2) as team:
        assert team.join().run(goes_on) == [[], []]


def fails_in_the_notice(rank, n, device):
    """What the notice raises ends the wait only if it ends the program, as Ctrl-C does."""
    raised: list[type[BaseException]] = [ZeroDivisionError, KeyboardInterrupt]

    def look() -> None:
        raise raised.pop(0)

    t = torch.ones(3, device=device)
    if rank == 1:
        listen()
        for _ in range(2):
            dist.all_reduce(t)
        return
    long_waits._set_long_wait_notice(0.3, look)
    with pytest.raises(KeyboardInterrupt):
        dist.all_reduce(t)
    assert not raised
    tell("interrupted")
    long_waits.watch(0)
    dist.all_reduce(t)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("device", first(DEVICES))
def test_an_error_of_the_notice_does_not_end_the_wait_and_ctrl_c_does(fresh, device):
    with fresh(2) as team:
        team.join().start(fails_in_the_notice, device)
        team.hear(0)
        team.say(1, "rank 0 was interrupted")
        results(team)


OF_THE_ENVIRONMENT = """
import sys, torch, torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("occl", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
if rank == 1:
    while "no progress" not in open(sys.argv[3]).read():
        pass
dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
"""


def test_the_notice_comes_unasked_on_standard_error(tmp_path):
    command = [sys.executable, "-c", OF_THE_ENVIRONMENT]
    arguments = [str(tmp_path / "store"), str(tmp_path / "errors")]
    environment = os.environ | {"OCCL_STUCK_AFTER": "1", "OMP_NUM_THREADS": "1"}
    with open(tmp_path / "errors", "w") as errors:
        started = [
            subprocess.Popen([*command, str(rank), *arguments], env=environment, stderr=errors, cwd=ROOT)
            for rank in range(2)
        ]
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    assert (tmp_path / "errors").read_text().count("no progress for 1 s (OCCL_STUCK_AFTER). Rank 0 of ") == 1
