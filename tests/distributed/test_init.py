"""The ways to make a group: backend names, stores, launchers."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch_occl._C import ProcessGroupOCCL

from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.interpreter import run_python
from tests.support.thinning import first


def uses(rank, n, device, *, store, name, **expected):
    """Makes the default group under this backend name, and looks which backend serves each device."""
    store = dist.FileStore(store, n)
    dist.init_process_group(name, store=store, rank=rank, world_size=n, timeout=timedelta(seconds=60))
    for where, serves in expected.items():
        assert backend(where).name() == serves, (where, backend(where))
        assert_works(where)
    dist.destroy_process_group()


def by_device_id(rank, n, device, *, store):
    """No backend named: the device tells."""
    dist.init_process_group(
        store=dist.FileStore(store, n), rank=rank, world_size=n, device_id=torch.device(device, 0)
    )
    assert backend(device).name() == "occl"
    assert_works(device)
    dist.destroy_process_group()


def over_a_tcp_store(rank, n, device, *, port):
    store = dist.TCPStore("localhost", port, n, is_master=False)
    dist.init_process_group("occl", store=store, rank=rank, world_size=n)
    assert_works(device)
    dist.barrier()
    dist.destroy_process_group()


def over_the_environment(rank, n, device, *, port):
    """As under torchrun: the agent has the store."""
    os.environ |= {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(n)}
    dist.init_process_group("occl")
    assert (dist.get_rank(), dist.get_world_size()) == (rank, n)
    assert_works(device)
    dist.barrier()
    dist.destroy_process_group()


def over_a_file(rank, n, device, *, file):
    dist.init_process_group("occl", init_method=f"file://{file}", rank=rank, world_size=n)
    assert_works(device)
    dist.destroy_process_group()


def cannot_begin(rank, n, device, *, store, victim, absent):
    if rank == absent:
        return
    if rank == victim:
        os.environ["OCCL_TUNING"] = "nonsense"
    words = "nonsense"
    if rank != victim:
        words = rf"rank {victim} \(pid .*could not take part in group .*nonsense"
    store = dist.FileStore(store, n)
    with pytest.raises((ValueError, dist.DistBackendError), match=words):
        dist.init_process_group("occl", store=store, rank=rank, world_size=n, timeout=timedelta(seconds=60))


@pytest.mark.parametrize(("size", "victim"), [(2, 1), (11, 0), (11, 3), (11, 8), (11, 9)])
def test_a_rank_that_cannot_begin_tells_the_others_why(fresh, size, victim):
    with fresh(size) as team:
        team.run(cannot_begin, store=team.source.new_file(), victim=victim, absent=None)


@pytest.mark.parametrize(("size", "victim", "absent"), [(3, 1, 2), (3, 2, 1), (11, 9, 2)])
def test_the_others_learn_why_although_a_rank_has_not_started(fresh, size, victim, absent):
    with fresh(size) as team:
        team.run(cannot_begin, store=team.source.new_file(), victim=victim, absent=absent)


def alone(rank, n, device):
    dist.init_process_group("occl", store=dist.HashStore(), rank=0, world_size=1)
    assert_works(device)
    dist.destroy_process_group()


def threads_as_ranks(rank, n, device, *, ranks):
    """The backend itself, with ranks that are threads of one process."""
    store, failures = dist.HashStore(), []

    def run(me):
        try:
            options = ProcessGroupOCCL.Options(timedelta(seconds=60))
            pg = ProcessGroupOCCL(store, me, ranks, options)
            for count in (1, 1000, 100_000):
                t = torch.full((count,), me + 1, device=device)
                pg.allreduce([t]).wait()
                assert (t == ranks * (ranks + 1) // 2).all(), (me, count, t)
                out = torch.zeros(count, dtype=torch.int64, device=device)
                sending = pg.send([torch.full_like(out, me)], (me + 1) % ranks, 0)
                pg.recv([out], (me - 1) % ranks, 0).wait()
                sending.wait()
                assert (out == (me - 1) % ranks).all(), (me, count, out)
            pg.barrier().wait()
            pg.shutdown()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=run, args=(me,)) for me in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def again_and_again(rank, n, device, *, file, times, same_store):
    store = dist.FileStore(file, n)
    for i in range(times):
        if not same_store:
            store = dist.FileStore(f"{file}.{i}", n)
        dist.init_process_group("occl", store=store, rank=rank, world_size=n)
        assert_works(device)
        group = dist.new_group()
        assert_works(device, group)
        dist.destroy_process_group()


def test_the_backend_is_registered_for_its_devices():
    assert "occl" in dist.Backend.backend_list
    assert dist.Backend.backend_capability["occl"] == (["dev", "cpu"] if "dev" in DEVICES else ["cpu"])
    if "dev" in DEVICES:
        assert dist.Backend.default_device_backend_map["dev"] == "occl"
    assert dist.Backend.default_device_backend_map["cpu"] == "gloo"  # as it was


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("occl", dict.fromkeys(DEVICES, "occl")),
        ("cpu:occl", {"cpu": "occl"}),
        *([("cpu:gloo,dev:occl", {"cpu": "gloo", "dev": "occl"})] if "dev" in DEVICES else []),
        *([("cpu:occl,dev:occl", {"cpu": "occl", "dev": "occl"})] if "dev" in DEVICES else []),
    ],
)
def test_a_group_by_backend_name(fresh, name, expected):
    with fresh(2) as team:
        team.run(uses, store=team.source.new_file(), name=name, **expected)


if "dev" in DEVICES:

    def test_a_group_by_device_id_alone(fresh):
        with fresh(2) as team:
            team.run(by_device_id, "dev", store=team.source.new_file())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("body", [over_a_tcp_store, over_the_environment])
def test_a_group_over_a_tcp_store(fresh, body, device):
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    with fresh(3) as team:
        team.run(body, device, port=store.port)


@pytest.mark.parametrize("device", DEVICES)
def test_a_group_over_a_shared_file(fresh, device):
    with fresh(3) as team:
        team.run(over_a_file, device, file=team.source.new_file())


@pytest.mark.parametrize("device", DEVICES)
def test_a_group_of_one_over_a_hash_store(fresh, device):
    with fresh(1) as team:
        team.run(alone, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_ranks_may_be_threads_of_one_process(fresh, ranks, device):
    with fresh(1) as team:
        team.run(threads_as_ranks, device, ranks=ranks)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("same_store", [False, True])
def test_groups_may_be_made_and_destroyed_again_and_again(fresh, same_store, world_size, device):
    with fresh(world_size) as team:
        team.run(again_and_again, device, file=team.source.new_file(), times=5, same_store=same_store)


@pytest.mark.parametrize("device", first(reversed(DEVICES), ci=1))
def test_torchrun_starts_ranks(device):
    script = Path(__file__).parent / "scripts" / "under_torchrun.py"
    output = run_python(
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=3",
        script,
        device,
        OMP_NUM_THREADS="1",
    )
    assert sorted(line for line in output.splitlines() if line.startswith("rank")) == [
        f"rank {rank} of 3 is done" for rank in range(3)
    ], output


@pytest.mark.parametrize("device", first(reversed(DEVICES), 0, ci=1))
def test_multiprocessing_spawn_starts_ranks(device, tmp_path):
    script = Path(__file__).parent / "scripts" / "spawned.py"
    output = run_python(script, device, tmp_path / "store", OMP_NUM_THREADS="1")
    assert output.splitlines()[-1] == "all done", output


def test_options_are_of_the_backends_own_type(fresh):
    with fresh(1) as team:
        team.run(options)


def options(rank, n, device):
    mine = ProcessGroupOCCL.Options(timedelta(seconds=7))
    dist.init_process_group("occl", store=dist.HashStore(), rank=0, world_size=1, pg_options=mine)
    assert isinstance(backend(device).options, ProcessGroupOCCL.Options)
    assert_works(device)
    dist.destroy_process_group()
    with pytest.raises(TypeError, match="pg_options must be"):
        dist.init_process_group(
            "occl", store=dist.HashStore(), rank=0, world_size=1, pg_options="fast, please"
        )
