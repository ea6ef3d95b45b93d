"""Windows of ranks on several hosts: the bodies of one host, and what differs between hosts."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist

import torch_occl
from tests.distributed import test_windows as one_host
from tests.distributed import test_windows_errors as errors_of_one_host
from tests.distributed.test_windows import memory, new_window, signal_all
from tests.hosts.launch import OUR_CASES, OURS
from tests.support.checks import assert_works
from tests.support.gates import gate
from tests.support.worker import listen, tell

BODIES = [
    one_host.puts_in_turns,
    one_host.strided,
    one_host.counts,
    one_host.overlaps,
    errors_of_one_host.bad_accesses,
    errors_of_one_host.wrong_order,
]


@pytest.mark.parametrize("backend, device", OUR_CASES)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_windows_do_what_they_do_on_one_host(hosts, body, backend, device):
    hosts.run_on("1+1", backend, body, device)


@pytest.mark.parametrize("shape", ["2+1", "1+2+1"])
@pytest.mark.parametrize("backend, device", OUR_CASES)
def test_ranks_put_into_the_memory_of_all_others(hosts, backend, device, shape):
    hosts.run_on(shape, backend, one_host.puts_in_turns, device)


def on_a_side_stream(rank, n, device):
    """Rank 0's put and signal stand behind a gate; rank 1's stream waits, and its host goes on."""
    tensor = memory("dev", 1000)
    window, stream = new_window(tensor), torch.dev.Stream()
    if rank == 0:
        sevens = torch.full((1000,), 7.0, device="dev")
        with gate(stream), torch.dev.stream(stream):
            put = window.put(sevens, 1, 0, True)
            signal = window.signal(1, True)
            assert not put.is_completed() and not signal.is_completed()
            dist.barrier()
        put.wait()
        signal.wait()
    else:
        with torch.dev.stream(stream):
            window.wait_signal(0, False)
            assert not stream.query()
            dist.barrier()
        stream.synchronize()
        assert (tensor == 7).all()
    window.tensor_deregister()


@pytest.mark.parametrize("backend", OURS)
@pytest.mark.parametrize("body", [on_a_side_stream, one_host.deregisters_while_a_put_is_held])
def test_accesses_queue_on_side_streams(hosts, backend, body):
    hosts.run_on("1+1", backend, body, "dev")


def while_the_program_does_nothing(rank, n, device):
    """A put has ended when the bytes lie there, although their rank makes no call."""
    tensor = memory(device, 1 << 20)
    window = new_window(tensor)
    if rank == 0:
        for value, count in ((1.0, 10), (2.0, 1 << 20), (3.0, 100)):
            window.put(torch.full((count,), value, device=device), 1, 0, False)
        window.signal(1, False)
        tell("has put")
    else:
        listen()
        found = tensor.cpu()
        assert (found[:100] == 3).all() and (found[100:] == 2).all()
        window.wait_signal(0, False)
    window.tensor_deregister()


@pytest.mark.parametrize("backend, device", OUR_CASES)
def test_the_other_rank_takes_no_part(hosts, backend, device):
    with hosts.fresh_on("1+1").meet(backend) as team:
        team.start(while_the_program_does_nothing, device)
        assert team.hear(0) == "has put"
        team.say(1, "look")
        for outcome in team.finish():
            assert not outcome.failed, outcome.traceback


def passed_on(rank, n, device):
    """What a rank puts into one rank before it signals another one is there for whom that one signals."""
    tensor = memory(device, 1 << 18)
    window = new_window(tensor)
    last = n - 1
    for turn in range(1, 21):
        if rank == 0:
            window.put(torch.full((1 << 18,), float(turn), device=device), last, 0, True)
            window.signal(1, True)
        elif rank == 1:
            window.wait_signal(0, False)
            window.signal(last, False)
        if rank == last:
            window.wait_signal(1, False)
            assert (tensor == turn).all()
        dist.barrier()
    window.tensor_deregister()


@pytest.mark.parametrize("shape", ["1+1+1", "1+2+1", "2+1"])
@pytest.mark.parametrize("backend, device", OUR_CASES)
def test_a_signal_comes_after_puts_into_any_rank(hosts, backend, device, shape):
    hosts.run_on(shape, backend, passed_on, device)


def views(rank, n, device):
    tensor = memory(device, 4).fill_(rank)
    window = new_window(tensor)
    assert torch_occl.supports_window()
    for peer in range(n):
        if peer // 2 == rank // 2:
            assert (window.map_remote_tensor(peer) == peer).all()
        else:
            with pytest.raises(
                NotImplementedError, match=f"map_remote_tensor: rank {peer} is on another host, "
            ):
                window.map_remote_tensor(peer)
    signal_all(window, n)
    window.tensor_deregister()
    assert_works(device)


@pytest.mark.parametrize("backend, device", OUR_CASES)
def test_tensors_of_this_host_are_mapped_and_others_refused(hosts, backend, device):
    hosts.run_on("2+2", backend, views, device)


def closes(rank, n, device):
    window = new_window(memory(device, 4))
    window.signal(1 - rank, False)
    if rank == 0:
        del window
        dist.barrier()
    else:
        dist.barrier()
        window.wait_signal(0, False)
        with pytest.raises(
            dist.DistBackendError, match=r"rank 0 .* has closed the window, and signals no more"
        ):
            window.wait_signal(0, False)
        window.put(torch.ones(4, device=device), 0, 0, False)  # goes nowhere
        window.put(torch.ones(4, device=device), 0, 0, False)
    assert_works(device)


@pytest.mark.parametrize("backend, device", OUR_CASES)
def test_a_closed_window_gives_its_last_signal_and_then_an_error(hosts, backend, device):
    hosts.run_on("1+1", backend, closes, device)


def of_a_dead_rank(rank, n, device, *, access):
    window, large = new_window(memory(device, 1 << 20)), torch.ones(1 << 20, device=device)
    tell("ready")
    if rank == 1:
        listen()
    with pytest.raises(dist.DistBackendError) as caught:
        while True:
            if access == "put":
                window.put(large, 1, 0, False)
            else:
                window.wait_signal(1, False)
    return str(caught.value)


@pytest.mark.parametrize("access", ["put", "wait_signal"])
@pytest.mark.parametrize("backend", OURS)
def test_an_access_of_a_rank_that_is_killed_names_it(hosts, apart, backend, access):
    with hosts.fresh_on("1+1", apart).meet(backend, timeout=5.0) as team:
        team.start(of_a_dead_rank, "cpu", access=access)
        assert team.hear(0) == team.hear(1) == "ready"
        team.kill(1)
        team.wait_for(1)
        outcome = team.finish()[0]
        assert not outcome.failed, outcome.traceback
        assert re.search(rf"rank 1 \(pid {team.pids[1]}, host .*\)", outcome.result), outcome.result
