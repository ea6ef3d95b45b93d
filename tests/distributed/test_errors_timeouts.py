"""Deadlines: the error names the missing ranks and comes no earlier than asked; nothing waits forever."""

from __future__ import annotations

import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.worker import join, listen, tell

TIMEOUT = 0.6


def late_ranks(rank, n, device, *, count, late):
    """The late ones do not come to the second all_reduce until the others have given up."""
    assert_works(device)
    t = torch.ones(count, device=device)
    if rank in late:
        listen()
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            while True:  # the others may have done their part of the first
                dist.all_reduce(t)
        return None
    begin = time.monotonic()
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(t)
    with pytest.raises(dist.DistBackendError):
        dist.barrier()  # the group has ended
    return str(caught.value), time.monotonic() - begin


def stopped_rank(rank, n, device):
    """Rank 0 calls when rank 1 is stopped."""
    dist.barrier()
    tell("past the barrier")
    listen()
    if rank == 1:
        return
    with pytest.raises(
        dist.DistBackendError,
        match=r"rank 1 \(.*\) has not arrived, its last operation was barrier.* #1; it is stopped \(SIGSTOP",
    ):
        dist.all_reduce(torch.ones(4, device=device))


def lonely_receive(rank, n, device):
    if rank == 0:
        begin = time.monotonic()
        with pytest.raises(
            dist.DistBackendError, match=r"(?s)Timed out waiting \d+ms for recv\(float32\[4\], src=1, tag=5\)"
        ):
            dist.recv(torch.zeros(4, device=device), 1, tag=5)
        assert time.monotonic() - begin >= TIMEOUT
    else:
        listen()


def impatient_wait(rank, n, device):
    """wait(timeout) gives up waiting; the operation itself goes on, and so does the group."""
    t = torch.ones(1000, device=device)
    if rank == 0:
        work = dist.all_reduce(t, async_op=True)
        begin = time.monotonic()
        with pytest.raises(dist.DistBackendError, match="Timed out waiting 50ms"):
            work.wait(timedelta(milliseconds=50))
        assert time.monotonic() - begin >= 0.05
        assert not work.is_completed()
        tell("gave up")
        work.wait()
        assert work.is_completed()
    else:
        if rank == 1:
            listen()
        dist.all_reduce(t)
    assert (t == n).all()
    assert_works(device)


def own_timeout(rank, n, device):
    """A call's own timeout counts, not the group's."""
    opts = dist.AllreduceOptions()
    opts.timeout = timedelta(milliseconds=200)
    t = torch.ones(4, device=device)
    if rank == 0:
        begin = time.monotonic()
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            backend(device).allreduce([t], opts).wait()
        assert time.monotonic() - begin >= 0.2
    else:
        listen()


def missing_member(rank, n, device, *, store, missing, timeout):
    if rank in missing:
        return None
    tell("has started")
    listen()
    begin = time.monotonic()
    with pytest.raises(dist.DistBackendError) as caught:
        join(rank, n, device, store=store, timeout=timeout)
    return str(caught.value), time.monotonic() - begin


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [1, 1000, 1_000_000])
@pytest.mark.parametrize("late", [[2], [0], [0, 2]])
def test_a_timeout_names_the_ranks_that_have_not_come_and_what_they_did_last(fresh, late, count, device):
    with fresh(3) as team:
        team.join(timeout=TIMEOUT).start(late_ranks, device, count=count, late=late)
        in_time = [rank for rank in range(3) if rank not in late]
        team.wait_for(*in_time)
        for rank in late:
            team.say(rank, "go on")
        outcomes = team.finish()
        assert not any(outcome.failed for outcome in outcomes), outcomes
        texts = [outcomes[rank].result[0] for rank in in_time]
        # The first one to give up tells the others, which may have come later.
        assert max(outcomes[rank].result[1] for rank in in_time) >= TIMEOUT, outcomes
        assert any(
            "Timed out waiting" in text and f"for all_reduce(float32[{count}], SUM)" in text for text in texts
        ), texts
        for text in texts:
            for rank in late:
                assert f"rank {rank} (pid {team.pids[rank]}" in text, text
        first = next(text for text in texts if text.startswith("occl: Timed out"))
        assert first.count("has not arrived, its last operation was all_gather(int64[3]) #4") == len(late), (
            first
        )


def test_a_timeout_says_that_a_rank_is_stopped(fresh):
    with fresh(2) as team:
        team.join(timeout=TIMEOUT).start(stopped_rank)
        for rank in range(2):
            team.hear(rank)
        team.kill(1, signal.SIGSTOP)
        team.say(0, "rank 1 is stopped")
        team.wait_for(0)
        team.kill(1, signal.SIGCONT)
        team.say(1, "go on")
        assert not any(outcome.failed for outcome in team.finish()), team.running


@pytest.mark.parametrize("device", DEVICES)
def test_a_receive_that_nobody_answers_times_out(fresh, device):
    with fresh(2) as team:
        team.join(timeout=TIMEOUT).start(lonely_receive, device)
        team.wait_for(0)
        team.say(1, "go on")
        assert not any(outcome.failed for outcome in team.finish()), team.running


@pytest.mark.parametrize("device", DEVICES)
def test_wait_with_a_timeout_leaves_the_operation_in_flight(fresh, device):
    with fresh(3) as team:
        team.join().start(impatient_wait, device)
        assert team.hear(0) == "gave up"
        team.say(1, "go on")
        assert not any(outcome.failed for outcome in team.finish()), team.running


@pytest.mark.parametrize("device", DEVICES)
def test_a_call_may_have_a_timeout_of_its_own(fresh, device):
    with fresh(2) as team:
        team.join().start(own_timeout, device)
        team.wait_for(0)
        team.say(1, "go on")
        assert not any(outcome.failed for outcome in team.finish()), team.running


@pytest.mark.parametrize(
    ("size", "missing"),
    # Large groups meet along a tree, in which rank 8 speaks for rank 9, and rank 0 for all.
    [(4, [0]), (4, [3]), (4, [1, 2]), (11, [0]), (11, [8]), (11, [9]), (11, [3, 9, 10])],
)
def test_a_group_whose_members_do_not_come_names_them(fresh, size, missing):
    timeout = 0.2 * size  # for those that have come to say so on busy cores
    with fresh(size) as team:
        team.start(missing_member, store=team.source.new_file(), missing=missing, timeout=timeout)
        present = [rank for rank in range(size) if rank not in missing]
        for rank in present:
            assert team.hear(rank) == "has started"
        for rank in present:
            team.say(rank, "go on")
        outcomes = team.finish()
        assert not any(outcome.failed for outcome in outcomes), outcomes
        ranks = ", ".join(f"rank {rank}" for rank in missing)
        for rank in present:
            assert f"waiting for {ranks} of {size} ranks to create the group" in outcomes[rank].result[0]
        # The first one to give up tells the others, which may have come later.
        assert max(outcomes[rank].result[1] for rank in present) >= timeout


def never_meet(rank, n, device, *, calls, words):
    """What this rank waits for, the other one never does: both errors say what either of them does."""
    other = dist.new_group(timeout=timedelta(seconds=TIMEOUT))
    peer = 1 - rank
    t = {name: torch.ones(count, device=device) for name, count in (("small", 4), ("large", 300_000))}
    todo = {
        "all_reduce": lambda: dist.all_reduce(t["small"]),
        "barrier elsewhere": lambda: dist.barrier(other),
        "recv 1": lambda: dist.recv(t["small"], peer, tag=1),
        "recv 2": lambda: dist.recv(t["small"], peer, tag=2),
        "recv from any": lambda: dist.recv(t["small"], tag=2),
        "send 3, recv 1": lambda: dist.send(t["small"], peer, tag=3) or dist.recv(t["small"], peer, tag=1),
        "send large 3": lambda: dist.send(t["large"], peer, tag=3),
    }
    with pytest.raises(dist.DistBackendError, match="Timed out") as caught:
        todo[calls[rank]]()
    text = str(caught.value)
    if not text.startswith("occl: Timed out"):  # the other one was first, and ended the group
        rank = 1 - rank
    assert f"rank {1 - rank} (pid " in text, text
    for word in words[rank]:
        assert word in text, text
    dist.barrier(dist.new_group())  # no rank leaves before all have seen


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("calls", "words"),
    [
        (
            ("all_reduce", "barrier elsewhere"),
            (
                ["all_reduce(float32[4], SUM) #", "has called barrier() #1 of group", "which rank 0 of that"],
                ["barrier() #1", "has called all_reduce(float32[4], SUM) #", "which rank 1 of that"],
            ),
        ),
        (
            ("recv 1", "recv 2"),
            (
                ["src=1, tag=1)", "waits for a message from rank 0 with tag 2"],
                ["src=0, tag=2)", "waits for a message from rank 1 with tag 1"],
            ),
        ),
        (
            ("recv 1", "recv from any"),
            (
                ["src=1, tag=1)", "waits for a message from rank 0 with tag 2"],
                ["src=any, tag=2)", "waits for a message from rank 1 with tag 1"],
            ),
        ),
        (
            ("all_reduce", "recv 2"),
            (
                ["all_reduce(float32[4], SUM) #", "waits for a message from rank 0 with tag 2"],
                ["src=0, tag=2)", "its last operation was all_reduce(float32[4], SUM) #"],
            ),
        ),
        (
            ("send 3, recv 1", "recv 2"),
            (
                ["src=1, tag=1)", "waits for a message from rank 0 with tag 2"],
                ["src=0, tag=2)", "1 message(s) from it wait here, the first with tag 3"],
            ),
        ),
        (
            ("send large 3", "recv 2"),
            (
                ["send(float32[300000], dst=1, tag=3)", "waits for a message from rank 0 with tag 2"],
                ["src=0, tag=2)", "1 message(s) from it wait here, the first with tag 3"],
            ),
        ),
    ],
)
def test_ranks_that_never_meet_are_told_what_the_other_one_does(fresh, calls, words, device):
    with fresh(2) as team:
        team.join(timeout=TIMEOUT).run(never_meet, device, calls=calls, words=words)
