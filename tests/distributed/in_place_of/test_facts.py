"""What a group that takes the place of Gloo is, and what it says."""

import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives, distributed_c10d

import torch_occl
from tests.distributed.in_place_of.running import assert_occl
from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.groups import begin, run
from tests.support.running import PYTORCH
from tests.support.worker import listen, tell


def says_what_was_asked_for(rank, n, device, *, store):
    begin(rank, n, f"{store}-gloo")
    config, devices = dist.get_backend_config(), {d.type for d in dist.group.WORLD._device_types}
    dist.barrier()  # no rank leaves while Gloo still connects another one
    dist.destroy_process_group()
    with torch_occl.replace_gloo():
        begin(rank, n, store)
    assert_occl()
    world = dist.group.WORLD
    assert world.name() == "gloo" and world._get_backend_name() == "gloo"
    assert dist.get_backend_config() == config and {d.type for d in world._device_types} == devices
    before = world._get_sequence_number_for_group()
    dist.barrier()
    assert world._get_sequence_number_for_group() == before + 1
    assert dist.is_gloo_available() and dist.Backend("gloo") == "gloo"
    everybody = [None] * n
    dist.all_gather_object(everybody, {"rank": rank})
    assert everybody == [{"rank": r} for r in range(n)]
    x = _functional_collectives.all_reduce(torch.ones(3), "sum", world)
    assert x.tolist() == [n] * 3
    t = torch.full((3,), float(rank))
    got = torch.empty(3)
    peer = n - 1 - rank
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, t, peer), dist.P2POp(dist.irecv, got, peer)]):
        work.wait()
    assert (got == peer).all()
    dist.destroy_process_group()
    assert not dist.is_initialized()


def test_a_group_of_occl_says_what_the_program_asked_for(fresh):
    run(fresh, says_what_was_asked_for)


def names(rank, n, device, *, store, name, says, default):
    torch_occl.replace_gloo()
    begin(rank, n, store, name)
    assert_occl(name=says)
    assert dist.get_backend_config() == (name or "cpu:gloo")
    world = dist.group.WORLD
    assert world._get_backend_name() == default
    if "dev" in name:
        assert_works("dev")
        assert backend("dev") is backend("cpu")
    dist.destroy_process_group()


MIXED = [("cpu:gloo,dev:occl", "custom"), ("dev:occl,cpu:gloo", "custom"), ("dev:gloo,cpu:gloo", "gloo")]


@pytest.mark.parametrize(("name", "default"), [("cpu:gloo", "gloo"), *(MIXED if "dev" in DEVICES else [])])
def test_gloo_for_one_device_type_is_replaced_too(fresh, name, default):
    run(fresh, names, name=name, says=name, default=default)


def barrier_is_monitored(rank, n, device, *, store):
    torch_occl.replace_gloo()
    begin(rank, n, store)
    dist.monitored_barrier()
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="Rank 1 failed to pass monitoredBarrier in 100 ms"):
            dist.monitored_barrier(timeout=timedelta(seconds=0.1))
        tell("timed out")
    else:
        assert listen() == "go on"
        dist.monitored_barrier(timeout=timedelta(seconds=50))


def test_a_monitored_barrier_needs_no_other_call(fresh):
    with fresh(2) as team:
        team.start(barrier_is_monitored, store=team.source.new_file())
        team.hear(0)
        team.kill(1)
        team.wait_for(0)
        assert not team.running[0].failed, team.running[0].traceback


def timeout_is_changed(rank, n, device, *, store):
    torch_occl.replace_gloo()
    begin(rank, n, store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", FutureWarning)  # from 2.14 on it has another name
        distributed_c10d._set_pg_timeout(timedelta(seconds=0.3))
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="Timed out waiting 300ms"):
            dist.all_reduce(torch.ones(3))
        tell("done")
    else:
        listen()


def test_the_timeout_of_a_group_can_be_set(fresh):
    with fresh(2) as team:
        team.start(timeout_is_changed, store=team.source.new_file())
        team.hear(0)
        team.say(1, "rank 0 is done")
        assert not any(outcome.failed for outcome in team.finish())


def other_timeouts_stay(rank, n, device, *, store):
    torch_occl.replace_gloo()
    begin(rank, n, store, "occl")
    warning = "only supported for either nccl or gloo" if PYTORCH < (2, 14) else "use.*set_timeout"
    with pytest.warns((UserWarning, FutureWarning), match=warning):
        distributed_c10d._set_pg_timeout(timedelta(seconds=0.3))


def test_a_group_that_asked_for_occl_is_as_before(fresh):
    run(fresh, other_timeouts_stay, n=1)
