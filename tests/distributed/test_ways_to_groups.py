"""Every way to make a group or a mesh, after every way to start."""

from __future__ import annotations

import os
import socket
import warnings
from datetime import timedelta
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper
from torch_occl._C import ProcessGroupOCCL

from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.running import WITH_CUDA, is_group, splits_without_cuda, with_dist2
from tests.support.worker import listen, tell

RANKS = 4

STARTS = {
    "occl": {"backend": "occl"},
    "device_id": {"device_id": True},
    "occl and device_id": {"backend": "occl", "device_id": True},
    "cpu:gloo,dev:occl": {"backend": "cpu:gloo,dev:occl"},
    "cpu:gloo,dev:occl and device_id": {"backend": "cpu:gloo,dev:occl", "device_id": True},
    "cpu:occl,dev:occl": {"backend": "cpu:occl,dev:occl"},
    "dev:occl": {"backend": "dev:occl"},
    "dev:occl and device_id": {"backend": "dev:occl", "device_id": True},
    "cpu:occl": {"backend": "cpu:occl"},
}
if "dev" not in DEVICES:
    STARTS = {name: how for name, how in STARTS.items() if "dev" not in name}


def begin(rank, store, how):
    how = dict(how)
    if how.pop("device_id", False):
        how["device_id"] = torch.device("dev", rank)
    dist.init_process_group(
        store=dist.FileStore(store, RANKS),
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=50),
        **how,
    )


def used_by_members(device, ranks, group):
    """The group of these ranks, on each of its members; the others got none."""
    if dist.get_rank() in ranks:
        assert dist.get_process_group_ranks(group) == list(ranks)
        assert_works(device, group)
    else:
        assert group in (None, dist.GroupMember.NON_GROUP_MEMBER)


def of_lists(device, *lists):
    """`new_group` of each list in turn; all are used when all have been made."""
    groups = [dist.new_group(ranks) for ranks in lists]
    for ranks, group in zip(lists, groups, strict=True):
        used_by_members(device, ranks, group)


def subset(device):
    of_lists(device, [0, 1])


def uneven(device):
    of_lists(device, [2], [0, 1, 3])


def overlapping(device):
    of_lists(device, [0, 1], [1, 2], [2, 3], [0, 3], [0, 1, 2], [1, 2, 3])


def nested(device):
    of_lists(device, [0, 1, 2], [0, 1], [1], [0, 1, 2, 3])


def repeated(device):
    of_lists(device, [1, 2], [1, 2], [0, 1, 2, 3], [1, 2])


def local(device):
    """Only members take part, so PyTorch's hashed names of the last two differ between ranks."""
    rank = dist.get_rank()
    for ranks in ([0, 1], [0, 2], [1, 3], [0, 1, 2, 3]):
        if rank in ranks:
            used_by_members(device, ranks, dist.new_group(ranks, use_local_synchronization=True))


def subgroups(device):
    mine, _ = dist.new_subgroups(2)
    assert_works(device, mine)
    assert dist.get_process_group_ranks(mine) == ([0, 1] if dist.get_rank() < 2 else [2, 3])


def enumerated(device):
    for lists in ([[0, 2], [1, 3]], [[0, 1, 2], [3]]):
        mine, _ = dist.new_subgroups_by_enumeration(lists)
        assert_works(device, mine)


def mesh(device):
    rows = init_device_mesh(device, (2, 2), mesh_dim_names=("outer", "inner"))
    for name in ("outer", "inner"):
        assert_works(device, rows[name].get_group())
    assert_works(device, rows._flatten("all").get_group())


def mesh_of_some(device):
    """Then a mesh of all: ranks 2 and 3 have made fewer groups than 0 and 1."""
    some = DeviceMesh(device, [0, 1])
    if dist.get_rank() < 2:
        assert_works(device, some.get_group())
    for groups in init_device_mesh(device, (2, 2)).get_all_groups():
        assert_works(device, groups)


def mesh_of_cube(device):
    cube = init_device_mesh(device, (2, 2, 1), mesh_dim_names=("a", "b", "c"))
    for group in (*cube.get_all_groups(), cube["a", "b"]._flatten().get_group()):
        assert_works(device, group)


def hybrid_shard(device):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)).to(device)
    both = init_device_mesh(device, (2, 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=both)
    model(torch.ones(2, 8, device=device)).sum().backward()
    plain = torch.nn.Linear(8, 4).to(device)
    wrapped = FullyShardedDataParallel(
        plain,
        device_mesh=both,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_id=torch.device("cpu") if device == "cpu" else None,
    )
    wrapped(torch.ones(2, 8, device=device)).sum().backward()


WAYS = (
    subset,
    uneven,
    overlapping,
    nested,
    repeated,
    local,
    subgroups,
    enumerated,
    mesh,
    mesh_of_some,
    mesh_of_cube,
    hybrid_shard,
)


def goes(rank, n, device, *, store, how, way):
    begin(rank, store, how)
    for _ in range(2):  # what the first time left behind does not disturb the second
        globals()[way](device)
    assert_works(device)
    dist.destroy_process_group()


def meets_under_names(start, way) -> bool:
    """Whether Gloo's ranks would meet under names that differ, and wait until the timeout."""
    return "gloo" in start and (way is local or ("device_id" in start and way is mesh_of_some))


COMBINATIONS = [(start, way) for start, way in product(STARTS, WAYS) if not meets_under_names(start, way)]


@pytest.mark.parametrize(("start", "way"), COMBINATIONS, ids=lambda it: getattr(it, "__name__", it))
def test_groups_and_meshes_are_made(fresh, start, way):
    device = "cpu" if start == "cpu:occl" or "dev" not in DEVICES else "dev"
    with fresh(RANKS) as team:
        team.run(goes, device, store=team.source.new_file(), how=STARTS[start], way=way.__name__)


def splits(rank, n, device, *, store, how):
    begin(rank, store, how)
    for _ in range(2):
        pair = dist.split_group(split_ranks=[[0, 1]])
        assert is_group(pair) == (rank < 2)
        across = dist.split_group(split_ranks=[[0, 2], [1, 3]])
        assert_works(device, across)
        triple = dist.split_group(split_ranks=[[0, 1, 2], [3]])
        assert_works(device, triple)
        if rank < 3:
            inner = dist.split_group(parent_pg=triple, split_ranks=[[0, 2], [1]])
            assert_works(device, inner)
        if is_group(pair):
            assert_works(device, pair)
    dist.destroy_process_group()


BOUND = [name for name in STARTS if "device_id" in name and "gloo" not in name]  # as above


@pytest.mark.parametrize(
    "start", [*(pytest.param(name, marks=splits_without_cuda) for name in BOUND), WITH_CUDA]
)
def test_uneven_splits_follow_each_other(fresh, start):
    """PyTorch's hashed names of the groups differ between ranks."""
    how = STARTS.get(start, {"backend": start, "device_id": True})
    with fresh(RANKS) as team:
        team.run(splits, "dev", store=team.source.new_file(), how=how)


def of_new_interface(rank, n, device, *, port):
    from torch.distributed import _dist2

    environment(rank, n, port)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    limit = timedelta(seconds=50)
    group = _dist2.new_group("occl", limit, torch.device(device), staging_bytes=1 << 20)
    for ranks in ([0, 1], [0, 2], [1, 3], [0, 1, 2, 3]):
        part = group.split_group(ranks, timeout=limit)
        assert (part is not None) == (rank in ranks)
        if part is not None:
            t = torch.ones(10, device=device)
            part.allreduce([t], dist.ReduceOp.SUM, timeout=limit).wait()
            assert (t == len(ranks)).all()


def environment(rank, n, port):
    values = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": n}
    os.environ |= {name: str(value) for name, value in values.items()}


@with_dist2
@pytest.mark.parametrize("device", DEVICES)
def test_groups_of_the_new_interface_split(fresh, device):
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    with fresh(RANKS) as team:
        team.run(of_new_interface, device, port=store.port)


def gloo_beside(rank, n, device, *, store):
    begin(rank, store, STARTS["device_id"])
    beside = dist.new_group(backend="gloo")
    assert_works("cpu", beside)
    part = dist.new_group([1, 3], backend="gloo")
    if rank in (1, 3):
        assert_works("cpu", part)
    with pytest.raises(RuntimeError, match="unsupported device type dev"):
        dist.all_reduce(torch.ones(2, device="dev"), group=beside)
    assert_works("dev")
    for _ in DataLoader(IterableWrapper(range(8)).sharding_filter(), num_workers=0):
        pass
    dist.destroy_process_group()


def says_nothing_unasked(rank, n, device, *, store, how):
    begin(rank, store, how)
    dist.barrier(device_ids=[rank] if device == "dev" else None)
    dist.destroy_process_group()


@pytest.mark.parametrize("start", STARTS)
def test_groups_begin_and_end_without_warnings(fresh, start):
    device = "cpu" if "cpu" in start or start == "occl" else "dev"
    with fresh(RANKS) as team:
        team.run(says_nothing_unasked, device, store=team.source.new_file(), how=STARTS[start])
        said = [member.output() for member in team.members]
        assert not any("Warning" in text for text in said), said


def options_are_copied(rank, n, device, *, store):
    begin(rank, store, {"backend": "occl"})
    options = ProcessGroupOCCL.Options(tuning={"slot_bytes": 65536}, staging_bytes=1 << 20)
    short = dist.new_group(timeout=timedelta(seconds=1), pg_options=options)
    long = dist.new_group(timeout=timedelta(seconds=40), pg_options=options)
    seen = [backend(device, group).options for group in (short, long)]
    assert [it._timeout.total_seconds() for it in seen] == [1, 40]
    assert seen[0].group_name != seen[1].group_name
    assert dict(seen[0].tuning) == {"slot_bytes": 65536} and seen[1].staging_bytes == 1 << 20
    assert options._timeout == ProcessGroupOCCL.Options()._timeout and not options.group_name

    seen[0]._timeout = timedelta(seconds=99)  # of a copy
    assert backend(device, short).options._timeout.total_seconds() == 1

    with pytest.raises(TypeError):
        options.tuning["slot_bytes"] = 1
    with pytest.raises(ValueError, match=r"no tuning named .slots.*slot_bytes"):
        options.tuning = {"slots": 1}

    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="imed out"):
            dist.all_reduce(torch.ones(1, device=device), group=short)
    dist.barrier()


def timeout_is_told(rank, n, device, *, store):
    begin(rank, store, {"backend": "occl"})
    options = ProcessGroupOCCL.Options(timedelta(seconds=7))
    with pytest.warns(UserWarning, match=r"pg_options._timeout is 0:00:07, but timeout= .* after 0:00:30"):
        dist.new_group(timeout=timedelta(seconds=30), pg_options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dist.new_group(timeout=timedelta(seconds=7), pg_options=options)
        dist.new_group(timeout=timedelta(seconds=9), pg_options=ProcessGroupOCCL.Options())


def staging_is_set(rank, n, device, *, store):
    """A quarter of it is one slot: seen in what the group holds after a staged operation."""
    begin(rank, store, {"backend": "occl"})
    for bytes_ in (1 << 20, 4 << 20):
        group = dist.new_group(pg_options=ProcessGroupOCCL.Options(staging_bytes=bytes_))
        t = torch.ones(1 << 20)  # on the CPU, so that it is staged
        dist.all_reduce(t, group=group)
        assert backend(device, group).memory_stats()["group.staging_bytes"] == bytes_


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("body", [options_are_copied, timeout_is_told, staging_is_set])
def test_options_of_a_group(fresh, body, device):
    with fresh(RANKS) as team:
        team.run(body, device, store=team.source.new_file())


if "dev" in DEVICES:

    def test_a_bound_group_has_gloo_groups_beside_it(fresh):
        with fresh(RANKS) as team:
            team.run(gloo_beside, store=team.source.new_file())


def standard_factory(rank, n, device, *, store):
    """Not PyTorch's extended interface: four arguments."""
    dist.Backend.register_backend("plain_occl", ProcessGroupOCCL, devices=["cpu", "dev"])
    begin(rank, store, {"backend": "plain_occl"})
    assert_works(device)
    assert backend(device).options._timeout == timedelta(seconds=50)
    of_lists(device, [0, 1], [1, 2, 3])
    dist.destroy_process_group()


def constructed(rank, n, device, *, store):
    shared = dist.FileStore(store, n)
    for i, arguments in enumerate(
        ((timedelta(seconds=40),), (), (ProcessGroupOCCL.Options(timedelta(seconds=40)),))
    ):
        made = ProcessGroupOCCL(dist.PrefixStore(str(i), shared), rank, n, *arguments)
        t = torch.ones(5, device=device)
        made.allreduce([t]).wait()
        assert (t == n).all()
        assert made.options._timeout in (timedelta(seconds=40), timedelta(minutes=30))
    made = ProcessGroupOCCL(dist.PrefixStore("k", shared), rank, n, timeout=timedelta(seconds=40))
    with pytest.raises(TypeError):
        ProcessGroupOCCL(shared, rank, n, "soon")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("body", [standard_factory, constructed])
def test_the_backend_is_made_as_others_are(fresh, body, device):
    with fresh(RANKS) as team:
        team.run(body, device, store=team.source.new_file())


def rounds(rank, n, device, *, port, times):
    """Rank 0 destroys each group only when the test says that the others are at it."""
    environment(rank, n, port)
    for _ in range(times):
        dist.init_process_group("occl", timeout=timedelta(seconds=30))
        t = torch.ones(4, device=device)
        dist.all_reduce(t)
        assert (t == n).all()
        tell("reduced")
        if rank == 0:
            listen()
        dist.destroy_process_group()


@pytest.mark.parametrize("device", DEVICES)
def test_a_group_made_again_at_once_does_not_meet_the_old_store(fresh, device):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    with fresh(3) as team:
        team.start(rounds, device, port=port, times=3)
        for _ in range(3):
            assert [team.hear(rank) for rank in range(3)] == ["reduced"] * 3
            for rank in (1, 2):
                team.wait_until_asleep(rank)  # in destroy_process_group, which waits for rank 0
            team.say(0, "go on")
        outcomes = team.finish()
        assert not any(outcome.failed for outcome in outcomes), outcomes
