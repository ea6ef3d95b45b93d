"""A message that does not fit is an error on the receiver, and on the sender, at its next call or earlier."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist

from tests.support.checks import backend
from tests.support.devices import DEVICES
from tests.support.worker import listen, tell

SMALL, LARGE = 10, 100_000


def still_works(rank, device, group=None):
    t = torch.ones(1000, device=device)
    dist.all_reduce(t, group=group)
    assert (t == dist.get_world_size()).all()
    out = torch.zeros(50000, device=device)
    sent = torch.full_like(out, rank)
    works = [dist.isend(sent, 1 - rank, group), dist.irecv(out, 1 - rank, group)]
    for work in works:
        work.wait()
    assert (out == 1 - rank).all()


def mismatch(rank, n, device, *, sent, received, posted_first, then):
    """Rank 0 sends `sent` (count, dtype) where rank 1 expects `received`. A small one is sent before the
    mismatch can be known: then the sender's next message ends the group."""
    group = dist.new_group()
    order = {"send": (0, 1), "recv": (1, 0)}[posted_first]
    for turn in order:
        if rank != turn:
            dist.barrier()
            continue
        count, dtype = sent if rank == 0 else received
        t = torch.zeros(count, dtype=getattr(torch, dtype), device=device)
        work = dist.isend(t, 1, group, tag=3) if rank == 0 else dist.irecv(t, 0, group, tag=3)
        dist.barrier()
    one = torch.zeros(1, device=device)
    if rank == 0 and sent[0] == SMALL:
        work.wait()
        work = dist.irecv(one, 1, group, tag=77) if then == "receives" else None
    with pytest.raises(dist.DistBackendError) as caught:
        while not work:  # the news may not be here yet
            dist.send(one, 1, group, tag=77)
        work.wait()
    text = (
        f"rank 0 sent {sent[1]}[{sent[0]}] with tag 3 where rank 1 called recv({received[1]}[{received[0]}])"
    )
    assert text in str(caught.value)
    if sent[0] == LARGE:
        return still_works(rank, device, group)
    if rank == 1:
        with pytest.raises(dist.DistBackendError, match=r"rank 0 .* ended group .*" + re.escape(text)):
            dist.recv(one, 0, group, tag=78)
    dist.barrier()
    still_works(rank, device)


def bad_transfer(rank, n, device):
    pg = dist.group.WORLD._get_backend(torch.device(device))
    t = torch.zeros(4, device=device)
    for call in (pg.send, pg.recv):
        for peer in (-1, n, -7):
            if call == pg.recv and peer == -1:
                continue
            with pytest.raises(ValueError, match=f"invalid rank {peer}"):
                call([t], peer, 0)
        with pytest.raises(ValueError, match="Tag must be nonnegative, got"):
            call([t], 0, -3)
        for tensors in ([], [t, t]):
            with pytest.raises(ValueError, match=f"takes a single tensor, got {len(tensors)}"):
                call(tensors, 0, 0)
        with pytest.raises(ValueError, match="negative"):
            call([torch._neg_view(torch.zeros(4, device=device))], 0, 0)
        with pytest.raises(ValueError, match="unsupported device type"):
            call([torch.zeros(4, device="meta")], 0, 0)
    with pytest.raises(ValueError, match="unsupported layout"):
        pg.send([torch.zeros(4, 4).to_sparse()], 0, 0)
    still_works(rank, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("posted_first", ["send", "recv"])
@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ((SMALL, "float32"), (SMALL + 1, "float32")),
        ((SMALL, "float32"), (SMALL - 1, "float32")),
        ((SMALL, "float32"), (SMALL, "int32")),
        ((SMALL, "float32"), (LARGE, "float32")),
        ((LARGE, "float32"), (LARGE + 1, "float32")),
        ((LARGE, "float32"), (LARGE - 1, "float32")),
        ((LARGE, "float32"), (LARGE, "int32")),
        ((LARGE, "float32"), (SMALL, "float32")),
    ],
)
def test_a_message_that_does_not_fit_its_receive_is_an_error(pool, sent, received, posted_first, device):
    for then in ("receives", "sends"):
        pool.run(mismatch, 2, device, sent=sent, received=received, posted_first=posted_first, then=then)


@pytest.mark.parametrize("device", DEVICES)
def test_bad_arguments_of_send_and_recv_raise_before_anything_is_sent(pool, device):
    pool.run(bad_transfer, 2, device)


def sends_to_the_dead(rank, n, device):
    """Small messages too, although the ring has room for them."""
    other = dist.new_group()
    if rank == 1:
        tell("ready")
        listen()
    with pytest.raises(dist.DistBackendError, match="rank 1"):  # from now on rank 0 knows
        dist.barrier(other)
    with pytest.raises(dist.DistBackendError, match=r"rank 1 \(pid \d+, host .*\) exited"):
        dist.send(torch.ones(4, device=device), 1)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_sent_to_a_rank_that_has_died(fresh, device):
    with fresh(2) as team:
        team.join().start(sends_to_the_dead, device)
        assert team.hear(1) == "ready"
        team.kill(1)
        outcomes = team.finish()
        assert not outcomes[0].failed, outcomes[0].traceback


def receives_from_any(rank, n, device):
    """A receive from any rank goes on while some rank may still send, and fails when the last one leaves."""
    group = dist.new_group()
    t = torch.zeros(4, device=device)
    if rank == 2:
        dist.send(t + 2, 0, group=group)
        dist.destroy_process_group(group)
        tell("left")
    if rank == 1:
        listen()
        dist.send(t + 1, 0, group=group)
        dist.destroy_process_group(group)
    if rank == 0:
        assert dist.recv(t, group=group) == 2
        tell("has one")
        assert dist.recv(t, group=group) == 1
        with pytest.raises(dist.DistBackendError, match=r"rank \d \(pid \d+, host .*\) left"):
            dist.recv(t, group=group)


@pytest.mark.parametrize("device", DEVICES)
def test_a_receive_from_any_rank_waits_for_those_who_are_left(fresh, device):
    with fresh(3) as team:
        team.join().start(receives_from_any, device)
        assert team.hear(2) == "left" and team.hear(0) == "has one"
        team.wait_until_asleep(0)
        team.say(1, "go on")
        outcomes = team.finish()
        assert not any(outcome.failed for outcome in outcomes), outcomes


LATER = {
    "all_reduce": lambda t: dist.all_reduce(t),
    "barrier": lambda t: dist.barrier(),
    "recv": lambda t: dist.recv(t, 1, tag=9),
    "send": lambda t: dist.send(t, 1, tag=9),
}


def leaves_after_a_misfit(rank, n, device, *, later, leaves):
    """The send of a small message has ended when its receiver refuses it: a later call hears of that, and not
    only that the receiver has left or does not come."""
    t = torch.zeros(4 + rank, device=device)
    text = "rank 0 sent float32[4] with tag 0 where rank 1 called recv(float32[5])"
    if rank == 0:
        dist.send(t, 1)
        listen()
        with pytest.raises(dist.DistBackendError, match=re.escape(text)):
            LATER[later](t)
    else:
        with pytest.raises(dist.DistBackendError, match=re.escape(text)):
            dist.recv(t, 0)
        if leaves:
            dist.destroy_process_group()
        tell("refused")


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("later", LATER)
def test_a_later_call_of_the_sender_of_a_small_message_that_did_not_fit_says_so(fresh, later, leaves):
    with fresh(2) as team:
        team.join(timeout=300 if leaves else 1).start(leaves_after_a_misfit, later=later, leaves=leaves)
        assert team.hear(1) == "refused"
        team.say(0, "go on")
        outcomes = team.finish()
        assert not any(outcome.failed for outcome in outcomes), outcomes


class Raises(torch.Tensor):
    """Raises an exception of Python when it is asked for its shape."""

    @staticmethod
    def __new__(cls, like):
        return torch.Tensor._make_wrapper_subclass(
            cls, like.shape, dtype=like.dtype, device=like.device, dispatch_sizes_strides_policy="sizes"
        )

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise ZeroDivisionError


def refused_together(rank, n, device, *, how, waits):
    """Rank 1's coalesced messages to or from ranks 0 and 2 are all refused: either rank learns why."""
    pg = backend(device)
    t = torch.zeros(100_000, device=device)
    if rank == 1:
        pg._start_coalescing()
        if how == "Tag must be nonnegative":
            pg.send([t], 0, 5)
            with pytest.raises(ValueError, match=how):
                pg.send([t], 2, -3)
        elif how == "an exception without a text":
            pg.send([t], 0, 5)
            with pytest.raises(ZeroDivisionError):
                pg.send([Raises(t)], 2, 5)
            with pytest.raises(ValueError, match="startCoalescing was not called"):
                pg._end_coalescing()
        elif how == "overlap in memory":
            pg.recv([t], 0, 5)
            pg.recv([t], 2, 5)
            with pytest.raises(ValueError, match=how):
                pg._end_coalescing()
        else:
            pg.send([t], 0, 5)
            pg.send([t], 2, 5)
            pg._start_coalescing()  # as after an exception in the block
    elif rank == waits:
        with pytest.raises(
            dist.DistBackendError, match=rf"(?s)rank 1 .*; its call was refused there: .*{how}"
        ):
            if how == "overlap in memory":
                dist.send(t, 1, tag=5)
            else:
                dist.recv(t, 1, tag=5)


@pytest.mark.parametrize("waits", [0, 2])
@pytest.mark.parametrize(
    "how",
    [
        "Tag must be nonnegative",
        "an exception without a text",
        "overlap in memory",
        "block of coalesced calls",
    ],
)
def test_the_peers_of_all_messages_that_were_refused_together_learn_why(fresh, how, waits):
    with fresh(3) as team:
        team.join(timeout=1).run(refused_together, how=how, waits=waits)


def bad_batch(rank, n, device):
    """A batch of which one part is refused is not sent at all; the next one is."""
    t, out = torch.full((4,), float(rank), device=device), torch.zeros(4, device=device)
    wrong = torch.zeros(1, device=device).expand(4)

    def batch(received):
        return [dist.P2POp(dist.isend, t, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]

    for _ in range(3):
        with pytest.raises(ValueError, match="share memory"):
            dist.batch_isend_irecv(batch(wrong))
        work = dist.irecv(out, 1 - rank, tag=1)  # what comes next is no part of that batch
        dist.send(t, 1 - rank, tag=1)
        work.wait()
        assert (out == 1 - rank).all()
        out.zero_()
        for work in dist.batch_isend_irecv(batch(out)):
            work.wait()
        assert (out == 1 - rank).all()
    still_works(rank, device)


def open_block(rank, n, device):
    """A block that was begun and not ended, as where an exception passes it, is forgotten by the next one."""
    ours, (a, b, c) = backend(device), (torch.full((4,), value, device=device) for value in (1.0, 2.0, 3.0))
    if rank == 0:
        ours._start_coalescing()
        ours.send([a], 1, 1)
        ours._start_coalescing()
        ours.send([b], 1, 2)
        ours._end_coalescing().wait()
        dist.send(c, 1, tag=1)
    else:
        for tag, expected in ((2, b), (1, c)):
            dist.recv(a, 0, tag=tag)
            assert a.equal(expected)


@pytest.mark.parametrize("device", DEVICES)
def test_a_block_that_was_not_ended_is_forgotten(pool, device):
    pool.run(open_block, 2, device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_is_sent_as_a_whole_or_not_at_all(pool, device):
    pool.run(bad_batch, 2, device)
