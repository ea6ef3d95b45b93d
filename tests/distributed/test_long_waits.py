"""A program that makes no progress says, long before its timeout, which ranks wait for which, and why."""

from __future__ import annotations

import ctypes
import os
import pdb
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from occl import stacks
from occl.distributed import long_waits
from occl.tools.top import stuck
from tests.support.checks import backend
from tests.support.devices import DEVICES
from tests.support.thinning import first
from tests.support.worker import listen, tell

ROOT = Path(__file__).parents[2]
AFTER = 1.0


class Watched(long_waits.Notices):
    """Calls a function after its first look."""

    def __init__(self, then: Callable[[], object]) -> None:
        self.written: list[str] = []
        self.then: Callable[[], object] | None = then
        super().__init__(AFTER, self.written.append)

    def look(self) -> None:
        super().look()
        if then := self.then:
            self.then = None
            then()


def watched(then: Callable[[], object]) -> list[str]:
    """What this rank writes."""
    notices = Watched(then)
    long_waits._notices = notices
    stacks.hurry()
    return notices.written


def notices() -> list[str]:
    """What this rank writes. It tells of its first look."""
    return watched(lambda: tell("looked"))


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
        pid = team.members[1].pid
        (text,), _ = results(team)
    assert "Rank 1 is stopped (SIGSTOP, or Ctrl-Z); its last operation was barrier" in text, text
    assert text.endswith(f"`kill -CONT {pid}` continues it. `occl top` shows all ranks."), text


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
        written = watched(pipe.write)
    dist.all_reduce(torch.ones(3, device=device))
    return written


IN_A_CALL = "in a call outside Python that keeps the interpreter's lock"
ADVICE = {
    "debugs": r"Continue it in its debugger\. ",
    "keeps_the_lock": r"`py-spy dump --native --pid \d+` shows that call\. ",
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "does", "stack"),
    [
        ("computes", r"runs|sleeps.*", r".*computes \(test_long_waits\.py:\d+\), .*"),
        ("reads", r"sleeps \(\w+\)", r"read \(.*\), reads \(.*\), late_in \(.*\), .*"),
        ("locks", r"sleeps \(futex_\w+\)", r"locks \(.*\), late_in \(.*\), .*"),
        ("debugs", r"is in Python's debugger", r"debugs \(.*\), late_in \(.*\), .*"),
        ("keeps_the_lock", rf"sleeps \(\w+\) {IN_A_CALL}", None),
    ],
)
def test_a_late_rank_shows_what_it_does(fresh, tmp_path, how, does, stack):
    os.mkfifo(tmp_path / "pipe")
    with fresh(2) as team:
        (text,), _ = team.join().run(late_in, path=str(tmp_path / "pipe"), how=how)
    shown = "" if stack is None else rf" Its Python stack: {stack}\."
    assert re.search(
        rf"\. Rank 1 ({does}); its last operation was barrier.* #1\.{shown} {ADVICE.get(how, '')}"
        r"`occl top` shows all ranks\.$",
        text,
    ), text


def written_until_told(device, group, call) -> list[str]:
    """What this rank writes in a call that waits in vain, until the test ends that by aborting the group."""

    def end() -> None:
        listen()
        backend(device, group).abort()

    threading.Thread(target=end).start()
    written = notices()
    with pytest.raises(dist.DistBackendError, match="abort"):
        call()
    return written


def said_once(team) -> str:
    """What one rank of those has written when all have looked. The others have written nothing."""
    for rank in range(len(team.members)):
        team.hear(rank)
    for rank in range(len(team.members)):
        team.say(rank, "all have looked")
    ((text,),) = [written for written in results(team) if written]
    return str(text)


def wait_for_each_other(rank, n, device, *, how):
    """What each rank waits for, the other one does not do; until both have looked."""
    t = torch.ones(1_000_000 if how == "different tags" else 3, device=device)
    group = (dist.new_group(), dist.new_group())[rank] if how == "other groups" else dist.group.WORLD
    calls = {
        "other groups": lambda: dist.all_reduce(t, group=group),
        "crossed receives": lambda: dist.recv(t, 1 - rank),
        "different tags": lambda: dist.recv(t, 1, tag=1) if rank == 0 else dist.send(t, 0, tag=2),
    }

    return written_until_told(device, group, calls[how])


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
        text = said_once(team)
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


def waits_in(how: str, device: str) -> None:
    """An all_reduce whose end no call of the main thread waits for."""
    t = torch.ones(3, device=device)
    if how == "a future":
        dist.all_reduce(t, async_op=True).get_future().wait()
    elif how == "a thread":
        thread = threading.Thread(target=dist.all_reduce, args=(t,))
        thread.start()
        thread.join()
    else:
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3).to(device))(t).sum().backward()


def late_for(rank, n, device, *, how):
    """Rank 1 comes when rank 0 has looked."""
    dist.barrier()
    written = [] if rank == 1 else notices()
    if rank == 1:
        listen()
    waits_in(how, device)
    return written


@pytest.mark.parametrize("device", first(DEVICES))
@pytest.mark.parametrize("how", ["a future", "a thread", "DDP"])
def test_a_wait_is_noticed_whichever_thread_waits(fresh, device, how):
    with fresh(2) as team:
        team.join().start(late_for, device, how=how)
        team.hear(0)
        team.say(1, "rank 0 has looked")
        (text,), _ = results(team)
    assert re.search(r"no progress for 1 s .* Rank 0 of group 0 has waited [0-9.]+ s for rank 1 ", text), text


def computes_meanwhile(rank, n, device):
    """Rank 0 computes until its operation has waited for twice as long as a notice takes."""
    if rank == 1:
        listen()
        dist.all_reduce(torch.ones(3))
        return []
    work = dist.all_reduce(torch.ones(3), async_op=True)
    looked: list[float] = []

    class Counted(long_waits.Notices):
        def task(self) -> float:
            looked.append(long_waits._waiting()[0])
            return super().task()

    written: list[str] = []
    long_waits._notices = Counted(AFTER, written.append)
    stacks.hurry()
    while not looked or looked[-1] < 2 * AFTER:
        sum(range(10000))
    long_waits.watch(0)
    tell("has computed")
    work.wait()
    return written


def test_a_rank_that_computes_does_not_complain(fresh):
    with fresh(2) as team:
        team.join().start(computes_meanwhile)
        team.hear(0)
        team.say(1, "rank 0 has computed")
        assert results(team) == [[], []]


def wait_in_a_circle(rank, n, device):
    """Each of three ranks waits in a group of two for the next one."""
    pairs = [(0, 1), (1, 2), (0, 2)]
    groups = [dist.new_group(pair) for pair in pairs]
    mine = groups[rank]
    return written_until_told(device, mine, lambda: dist.all_reduce(torch.ones(3), group=mine))


@pytest.mark.full
def test_a_circle_is_told_to_its_end(fresh):
    with fresh(3) as team:
        team.join().start(wait_in_a_circle)
        text = said_once(team)
    assert len(re.findall(r"\. Rank \d( of group \w+)? waits for rank ", text)) == 2, text
    assert "They wait for each other: make these calls in one order on all ranks. `occl top` shows" in text


def wait_for_two_that_wait_for_each_other(rank, n, device):
    """Ranks 0 and 2 receive from each other; rank 1 waits for both in a barrier."""

    def call() -> None:
        if rank != 1:
            dist.recv(torch.ones(3), 2 - rank)
        dist.barrier()

    return written_until_told(device, dist.group.WORLD, call)


@pytest.mark.full
def test_a_circle_is_told_once(fresh):
    with fresh(3) as team:
        team.join().start(wait_for_two_that_wait_for_each_other)
        text = said_once(team)
    assert text.count("They wait for each other") == 1, text
    assert text.count("`occl top` shows all ranks.") == 1, text


def test_of_waits_that_end_in_one_circle_the_first_stays():
    def wait(rank: int, *circle: str) -> stuck.Wait:
        return stuck.Wait([0], rank, None, 1.0, None, "", "", "", circle=[*circle])

    waits = [wait(1), wait(2, "a", "b"), wait(3, "a", "b"), wait(4), wait(5, "a", "c")]
    assert [kept.rank for kept in stuck.distinct(waits)] == [1, 2, 4, 5]


FRAMES_BELOW = ["step (train.py:7)", "<module> (train.py:9)", "run (bdb.py:600)", "main (pdb.py:1700)"]
"""Of a program that `python -m pdb` has started."""


@pytest.mark.parametrize(
    ("inside", "debugged"),
    [
        ([], None),
        (["cmdloop (cmd.py:126)", "_cmdloop (pdb.py:397)", "interaction (pdb.py:433)"], FRAMES_BELOW),
        (
            [
                "select (selectors.py:468)",
                "cmdloop (debugger.py:4)",
                "interaction (pdb.py:433)",
                "interaction (debugger.py:336)",
                "user_line (pdb.py:337)",
                "trace_dispatch (bdb.py:90)",
            ],
            FRAMES_BELOW,
        ),
    ],
    ids=["runs below it", "pdb", "IPython"],
)
def test_a_debugger_counts_while_it_asks_and_its_frames_are_left_out(inside, debugged):
    assert stuck._debugged([*inside, *FRAMES_BELOW]) == debugged


def late_in_a_pair(rank, n, device):
    """Ranks 2 and 3 are a group, in which rank 2 waits for rank 3; ranks 0 and 1 wait for them."""
    pair = dist.new_group([2, 3])
    dist.barrier()
    long_waits.watch(0)
    written = notices() if rank == 0 else []
    if rank == 3:
        listen()
    if rank >= 2:
        dist.all_reduce(torch.ones(3), group=pair)
    dist.barrier()
    return written


@pytest.mark.full
def test_a_rank_is_called_as_in_the_group_that_waits(fresh):
    with fresh(4) as team:
        team.join().start(late_in_a_pair)
        team.hear(0)
        team.say(3, "rank 0 has looked")
        (text,), _, _, _ = results(team)
    assert re.search(
        r"Ranks 0 and 1 of group 0 have waited [0-9.]+ s for rank 2 \(pid .*?\. Rank 2 waits for rank 3 in "
        rf"{ALL_REDUCE} of group \w+, where that is rank 1\. Rank 3 sleeps \(\w+\); ",
        text,
    ), text


def times_out(rank, n, device):
    """Rank 1 comes when rank 0 has given up."""
    if rank == 1:
        listen()
        return ""
    with pytest.raises(dist.DistBackendError, match="Timed out waiting 4000ms") as raised:
        dist.all_reduce(torch.ones(3))
    tell("timed out")
    return str(raised.value)


def test_an_operation_that_times_out_says_what_the_late_rank_does(fresh):
    with fresh(2) as team:
        team.join(timeout=4).start(times_out)
        team.hear(0)
        team.say(1, "rank 0 has given up")
        text, _ = results(team)
    assert re.search(
        r"rank 1 \(pid .*\) has not arrived, .*\. Rank 0 of group 0 has waited [0-9.]+ s for rank 1 .* "
        r"Rank 1 sleeps \(\w+\); it has called no operation\. Its Python stack: .*, listen \(",
        text,
    ), text


def picture(what: str) -> tuple[list[SimpleNamespace], list[SimpleNamespace]]:
    """What `_own_waits` finds."""
    process = SimpleNamespace(pid=os.getpid())
    return [SimpleNamespace(process=process)], [
        SimpleNamespace(who=what, text=what, advice="", stack=[], seconds=1.0)
    ]


def test_a_picture_is_described_once_and_a_new_one_as_soon_as_this_process_may(monkeypatch):
    written: list[str] = []
    watching = long_waits.Notices(AFTER, written.append)
    steps: list[tuple[str, bool | None, int]] = [
        ("one", True, 1),
        ("one", True, 1),  # it was described
        ("two", None, 1),  # this process has spoken a moment ago
        ("two", True, 2),
        ("three", False, 2),  # another process describes it
        ("three", True, 2),
    ]
    for what, claim, said in steps:
        monkeypatch.setattr(long_waits, "_own_waits", lambda after, what=what: picture(what))
        monkeypatch.setattr(long_waits, "_claim", lambda job, claim=claim: claim)
        watching.look()
        assert len(written) == said, (what, claim, written)
    assert "(OCCL_STUCK_AFTER). two" in written[1]


def test_one_process_of_a_host_speaks_about_a_job(monkeypatch):
    monkeypatch.setattr(long_waits, "_claims", set())
    monkeypatch.setattr(long_waits, "BETWEEN", 0.2)
    job = f"a test of process {os.getpid()}"
    asks = "from occl.distributed import long_waits; print(long_waits._claim(__import__('sys').argv[1]))"

    def of_another_process() -> str:
        done = subprocess.run(
            [sys.executable, "-c", asks, job], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert long_waits._claim(job) is True
    free = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert long_waits._claim(job) is None
    for timer in free:
        timer.join()
    assert of_another_process() == "True"
    assert long_waits._claim(job) is True, "it is free once its holder has ended"


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


OF_THE_TABLE = """
import os
from pathlib import Path
from occl.distributed import long_waits
assert len(os.listdir("/proc/self/task")) == 1
long_waits.show_stack()
print(*(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "FDSize" in line))
"""


def test_the_table_of_descriptors_is_large_before_there_is_a_second_thread():
    command, alone = [sys.executable, "-c", OF_THE_TABLE], os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=alone, cwd=ROOT, capture_output=True, text=True, check=True, timeout=100
    )
    assert int(done.stdout) >= min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


OF_THE_ENVIRONMENT = """
import sys, torch, torch.distributed as dist
rank, what = int(sys.argv[1]), sys.argv[4]
def come():
    while rank == 1 and "no progress" not in open(sys.argv[3]).read():
        pass
if what.startswith("starts"):
    come()
backend = "gloo" if "Gloo" in what else "occl"
dist.init_process_group(backend, init_method="file://" + sys.argv[2], rank=rank, world_size=2)
come()
dist.new_group() if what == "joins" else dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
"""
OF_GROUP = "Rank 0 has waited [0-9.]+ s for the other ranks of group [0-9]+, which has 2, to make it; that "


@pytest.mark.parametrize(
    ("late", "says"),
    first(
        [
            ("calls", "Rank 0 of group 0 has waited "),
            ("starts", OF_GROUP),
            ("joins", OF_GROUP),
            ("starts in the place of Gloo", OF_GROUP),
        ],
        stay=2,
    ),
)
def test_the_notice_comes_unasked_on_standard_error(tmp_path, late, says):
    command = [sys.executable, "-c", OF_THE_ENVIRONMENT]
    arguments = [str(tmp_path / "store"), str(tmp_path / "errors"), late]
    environment = os.environ | {"OCCL_STUCK_AFTER": "1", "OMP_NUM_THREADS": "1"}
    if "Gloo" in late:
        environment["OCCL_IN_PLACE_OF"] = "gloo"
    with open(tmp_path / "errors", "w") as errors:
        started = [
            subprocess.Popen([*command, str(rank), *arguments], env=environment, stderr=errors, cwd=ROOT)
            for rank in range(2)
        ]
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    said = (tmp_path / "errors").read_text()
    assert len(re.findall(r"no progress for 1 s \(OCCL_STUCK_AFTER\)\. " + says, said)) == 1, said
