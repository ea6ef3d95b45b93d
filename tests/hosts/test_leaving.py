"""A rank leaves, or ends, when ranks of other hosts have what it sent and went on without waiting for."""

from __future__ import annotations

import signal
import traceback

import pytest
import torch
import torch.distributed as dist

from tests.support.worker import EndInterpreter, listen, tell

SENT = 16
"""Elements of a message that ends at once: a longer one waits for its receive anyway."""


def tell_when_waiting(*functions: str) -> None:
    """Once this rank's main thread waits in one of these functions, which lets signals through."""

    def look(number, frame):
        if {each.name for each in traceback.extract_stack(frame)}.intersection(functions):
            signal.setitimer(signal.ITIMER_REAL, 0)
            tell("waits")

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)


def send_and_go(rank, n, device, *, ends):
    """Rank 0 sends to the last rank, which has received nothing yet, and goes."""
    dist.barrier()
    if rank == 0:
        dist.isend(torch.arange(SENT), n - 1)
        tell_when_waiting("destroy_process_group", "announce")
    elif rank == n - 1:
        listen()
        t = torch.zeros(SENT, dtype=torch.int64)
        dist.recv(t, 0)
        assert torch.equal(t, torch.arange(SENT))
    if ends:
        raise EndInterpreter(0)
    dist.destroy_process_group()


@pytest.mark.parametrize("ends", [False, True], ids=["destroys its group", "ends"])
def test_a_rank_goes_when_another_host_has_received_its_message(hosts, apart, ends):
    with hosts.fresh_on("2+1", apart).meet("occl") as team:
        team.start(send_and_go, ends=ends)
        assert team.hear(0) == "waits"
        team.say(2, "receive")
        outcomes = team.finish()
    assert [outcome.died for outcome in outcomes] == ["exited with status 0" if ends else ""] * 3


def send_in_vain(rank, n, device):
    """To the next rank, which receives nothing."""
    for _ in range(3):
        dist.isend(torch.arange(SENT), (rank + 1) % n)
    dist.destroy_process_group()


def test_ranks_that_receive_nothing_do_not_keep_each_other(hosts, apart):
    with hosts.fresh_on("1+1", apart).meet("occl", timeout=3600) as team:
        team.run(send_in_vain)
