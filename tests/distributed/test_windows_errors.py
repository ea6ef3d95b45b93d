"""What is wrong with a window or an access of one is an error, on the ranks that need to know."""

from __future__ import annotations

import re
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import torch_occl
from tests.distributed.test_windows import memory, new_window, on_devices, signal_all
from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.processes import in_forked_child
from tests.support.worker import listen, tell
from torch_occl import _C


def refused(match, call, error=ValueError):
    with pytest.raises(error, match=match):
        call()


def bad_accesses(rank, n, device):
    tensor = memory(device, 10)
    window = new_window(tensor)
    one = torch.ones(1, device=device)
    for bad in (-1, n, 1 << 40):
        for name, call in {
            "put": lambda bad=bad: window.put(one, bad, 0, False),
            "signal": lambda bad=bad: window.signal(bad, False),
            "wait_signal": lambda bad=bad: window.wait_signal(bad, False),
            "map_remote_tensor": lambda bad=bad: window.map_remote_tensor(bad),
            "get_attr": lambda bad=bad: window.get_attr(bad),
        }.items():
            refused(f"{name}: invalid rank {bad} .the group has {n} ranks", call)
    for offset, count in ((-1, 1), (10, 1), (1 << 62, 1), (3, 8), (0, 11), (11, 0)):
        refused(
            f"put: elements {offset} to {offset} \\+ {count} do not lie in the 10 that rank 1 has",
            lambda o=offset, c=count: window.put(torch.ones(c, device=device), 1, o, False),
        )
    for dtype in (torch.float64, torch.int32, torch.uint8):
        refused("put: the tensor has the type", lambda d=dtype: window.put(one.to(d), 1, 0, False))
    refused("unsupported device type", lambda: window.put(torch.ones(1, device="meta"), 1, 0, False))
    refused("only supports dense tensors", lambda: window.put(one.to_sparse(), 1, 0, False))
    refused("negative", lambda: window.put(torch._neg_view(one), 1, 0, False))
    for other in set(DEVICES) - {device}:
        refused("put: the tensor is on", lambda o=other: window.put(one.to(o), 1, 0, False))
    refused("overlap", lambda: window.put(tensor[:5], rank, 1, False))
    window.put(tensor[:5], rank, 0, False)  # onto itself
    refused("tensor_register: a tensor is registered already", lambda: window.tensor_register(tensor))
    dist.barrier()
    assert (tensor == 0).all()
    signal_all(window, n)
    window.tensor_deregister()
    assert_works(device)


@on_devices
def test_accesses_with_wrong_arguments_raise_before_a_byte_moves(pool, device):
    pool.run(bad_accesses, 2, device)


def wrong_order(rank, n, device):
    window = new_window()
    one = torch.ones(1, device=device)

    def each_refused():
        for call in (
            lambda: window.put(one, 1 - rank, 0, False),
            lambda: window.signal(1 - rank, False),
            lambda: window.wait_signal(1 - rank, False),
            lambda: window.map_remote_tensor(1 - rank),
            window.tensor_deregister,
        ):
            refused("no tensor is registered with this window: all ranks call tensor_register", call)

    each_refused()
    window.tensor_register(memory(device, 4))
    signal_all(window, n)
    window.tensor_deregister()
    each_refused()
    assert_works(device)


@on_devices
def test_accesses_before_registering_and_after_deregistering_raise(pool, device):
    pool.run(wrong_order, 2, device)


def bad_tensors(rank, n, device):
    good = memory(device, 4, 6)
    hint = r"make it with torch_occl\.empty_shared\(\.\.\.\), on the device \"dev\", or after torch_occl"
    quantized = torch.quantize_per_tensor(torch.zeros(4), 1.0, 0, torch.quint8)
    for call in (new_window, new_window().tensor_register):
        for match, tensor in (
            (hint, torch.zeros(4)),
            ("must be contiguous", good.t()),
            ("only supports dense tensors", torch.zeros(4).to_sparse()),
            ("unsupported device type", torch.zeros(4, device="meta")),
            ("has at most 16 dimensions, and this one has 17", good[0, 0].view([1] * 17)),
            ("quantized", quantized),
        ):
            with pytest.raises(ValueError, match=match):
                call(tensor)
    assert_works(device)


@on_devices
def test_tensors_that_a_window_cannot_have_say_how_to_make_one(pool, device):
    pool.run(bad_tensors, 2, device)


def only_some(rank, n, device):
    with pytest.raises(ValueError, match="new_window: rank 1 passed a tensor, and rank 0 none"):
        new_window(memory(device, 4) if rank == 1 else None)
    with pytest.raises(dist.DistBackendError, match=r"called (new_window|all_reduce)\("):
        new_window(memory(device, 4)) if rank == 1 else dist.all_reduce(torch.ones(1, device=device))
    window = new_window(memory(device, 4))
    with pytest.raises(dist.DistBackendError, match=r"called (tensor_deregister|barrier)\("):
        window.tensor_deregister() if rank == 1 else dist.barrier()
    window.tensor_deregister()
    assert_works(device)


@on_devices
def test_ranks_that_call_something_else_get_an_error_on_both_sides(pool, device):
    pool.run(only_some, 2, device)


def no_other_group(rank, n, device):
    gloo = dist.new_group(backend="gloo")
    assert torch_occl.supports_window() and not torch_occl.supports_window(gloo)
    refused("new_window: the group has no backend of torch_occl", lambda: new_window(group=gloo))
    ours = backend(device)
    window = new_window(memory(device, 4))
    ours._start_coalescing()
    refused(
        "signal can be neither coalesced nor estimated", lambda: window.signal(0, False), NotImplementedError
    )
    refused("new_window can be neither", lambda: new_window(), NotImplementedError)
    ours._end_coalescing().wait()
    window.tensor_deregister()
    dist.destroy_process_group(gloo)
    assert_works(device)


@on_devices
def test_other_backends_and_coalesced_calls_are_refused(pool, device):
    pool.run(no_other_group, 2, device)


def times_out(rank, n, device):
    window = new_window(memory(device, 4))
    if rank == 0:
        options = _C.WaitSignalOptions()
        options.timeout = timedelta(milliseconds=300)
        refused("signal: invalid rank 7", lambda: window.signal(7, False))
        refused("put: elements", lambda: window.put(torch.ones(5, device=device), 1, 0, False))
        with pytest.raises(
            dist.DistBackendError,
            match=r"Timed out waiting 300ms for wait_signal\(src=1\) #\d+ .* on rank 0: it waits for rank 1 ",
        ):
            window.wait_signal(1, False, options)
    else:
        with pytest.raises(dist.DistBackendError, match=r"rank 0 .* ended group .*wait_signal\(src=1\)"):
            window.wait_signal(0, False)


@on_devices
def test_a_wait_has_a_timeout_and_its_error_names_the_rank(fresh, device):
    with fresh(2) as team:
        team.join().run(times_out, device)


def refusal_is_told(rank, n, device):
    window = new_window(memory(device, 4))
    if rank == 1:
        refused("put: elements", lambda: window.put(torch.ones(5, device=device), 0, 0, False))
        tell("refused")
        listen()
    else:
        listen()
        options = _C.WaitSignalOptions()
        options.timeout = timedelta(milliseconds=300)
        with pytest.raises(dist.DistBackendError, match="its call was refused there: put: elements 0 to"):
            window.wait_signal(1, False, options)


@on_devices
def test_a_wait_that_times_out_says_that_the_put_was_refused(fresh, device):
    with fresh(2) as team:
        team.join().start(refusal_is_told, device)
        assert team.hear(1) == "refused"
        team.say(0, "go on")
        team.wait_for(0)
        team.say(1, "go on")
        for outcome in team.finish():
            assert not outcome.failed, outcome.traceback


ACCESSES = {
    "wait_signal": lambda window, one: window.wait_signal(0, False),
    "put": lambda window, one: window.put(one, 0, 0, False),
    "signal": lambda window, one: window.signal(0, False),
}


def of_a_dead_rank(rank, n, device, *, access):
    window, one = new_window(memory(device, 4)), torch.ones(1, device=device)
    tell("ready")
    if rank == 0:
        listen()
    if access != "wait_signal":
        listen()
    with pytest.raises(dist.DistBackendError) as caught:
        while True:  # the death may not have been noticed yet
            ACCESSES[access](window, one)
    return time.monotonic_ns(), str(caught.value)


@on_devices
@pytest.mark.parametrize("access", ACCESSES)
def test_an_access_of_a_dead_rank_names_it(fresh, latency, access, device):
    with fresh(2) as team:
        team.join().start(of_a_dead_rank, device, access=access)
        assert team.hear(0) == team.hear(1) == "ready"
        if access == "wait_signal":
            team.wait_until_asleep(1)
        when = team.kill(0)
        team.wait_for(0)
        if access != "wait_signal":
            team.say(1, "go on")
        outcome = team.finish()[1]
        assert not outcome.failed, outcome.traceback
        text = outcome.result[1]
        assert re.search(rf"rank 0 \(pid {team.pids[0]}, host .*\) exited during {access}\(", text), text
        latency(f"{access} of a dead rank on {device}", [(outcome.result[0] - when) / 1e6])


def after_destroy(rank, n, device):
    window = new_window(memory(device, 4))
    view = window.map_remote_tensor(1 - rank)
    dist.destroy_process_group()
    one = torch.ones(1, device=device)
    for call in (
        lambda: window.put(one, 1 - rank, 0, False),
        lambda: window.signal(1 - rank, False),
        lambda: window.wait_signal(1 - rank, False),
        lambda: window.map_remote_tensor(1 - rank),
        window.tensor_deregister,
    ):
        refused("has been destroyed", call, dist.DistBackendError)
    assert (view == 0).all()


@on_devices
def test_a_window_of_a_destroyed_group_is_an_error_and_its_views_stay(fresh, device):
    with fresh(2) as team:
        team.join().run(after_destroy, device)


def in_a_child(rank, n, device):
    window = new_window(memory("cpu", 4))
    view = window.map_remote_tensor(1 - rank)

    def use():
        texts = []
        for call in (
            lambda: new_window(),
            lambda: window.put(torch.ones(1), 1 - rank, 0, False),
            lambda: window.signal(1 - rank, False),
            lambda: window.wait_signal(1 - rank, False),
            lambda: window.map_remote_tensor(1 - rank),
            lambda: window.get_attr(1 - rank),
            lambda: window.tensor_register(memory("cpu", 4)),
            window.tensor_deregister,
        ):
            with pytest.raises(Exception) as caught:
                call()
            texts.append(str(caught.value))
        return "\n".join(texts)

    text = in_forked_child(use)
    assert text.count("was created before this process was forked") >= 7, text
    signal_all(window, n)  # the child's end has closed nothing
    window.put(torch.ones(1), 1 - rank, 0, False)
    signal_all(window, n)
    assert view.shape == (4,) and window.map_remote_tensor(rank)[0] == 1
    window.tensor_deregister()


def test_a_forked_child_cannot_use_the_parents_window(pool):
    pool.run(in_a_child, 2)
