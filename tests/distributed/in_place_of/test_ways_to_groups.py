"""Every way to make groups, and training with them, in the place of Gloo."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import torch_occl
from occl.distributed import place_agreement
from tests.distributed.in_place_of.running import assert_gloo, assert_occl
from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.groups import begin, run
from torch_occl import ProcessGroupOCCL

GLOO, CUSTOM = dist.ProcessGroup.BackendType.GLOO, dist.ProcessGroup.BackendType.CUSTOM


def groups(rank, n, device, *, store):
    torch_occl.replace_gloo()
    begin(rank, n, store)
    assert_occl()
    for ranks in ([0, 1], [1, 2], [0, 1, 2]):
        group = dist.new_group(ranks)  # the default group's backend
        named = dist.new_group(ranks, backend="GLOO", group_desc="named")
        for it in (group, named):
            if rank in ranks:
                assert_occl(it)
            else:
                assert it is dist.GroupMember.NON_GROUP_MEMBER
    local = dist.new_group([rank], use_local_synchronization=True)
    assert_occl(local)
    mine, _ = dist.new_subgroups_by_enumeration([[0, 2], [1]])
    assert_occl(mine)
    for mesh in (init_device_mesh("cpu", (n,)), init_device_mesh("cpu", (1, n))):
        for it in mesh.get_all_groups():
            assert_occl(it)
    tagged = [distributed_c10d._new_group_with_tag([0, 1, 2], backend="gloo", pg_tag="t") for _ in range(2)]
    assert_occl(tagged[0])
    assert tagged[0] is tagged[1]
    if rank == 0:  # it exists, so no other rank is needed
        assert distributed_c10d._new_group_with_tag([0, 1, 2], backend="gloo", pg_tag="t") is tagged[0]
    dist.destroy_process_group(tagged[0])
    dist.destroy_process_group()


def test_every_way_makes_groups_of_occl(fresh):
    run(fresh, groups, n=3)


def beside_another_default(rank, n, device, *, store):
    begin(rank, n, store, "occl")
    torch_occl.replace_gloo()
    assert_occl(dist.new_group(backend="gloo"))
    assert dist.get_backend() == "occl"


def test_a_gloo_group_beside_a_default_group_of_occl(fresh):
    run(fresh, beside_another_default)


def beside_a_vendor(rank, n, device, *, store, config):
    torch_occl.replace_gloo()
    dist.Backend.register_backend("vendor", dist.ProcessGroupGloo, devices=["dev"])
    begin(rank, n, store, config)
    for group in (None, dist.new_group(), dist.new_group([1, 0], backend=config, group_desc="named")):
        assert type(backend("cpu", group)) is ProcessGroupOCCL
        assert type(backend("dev", group)) is dist.ProcessGroupGloo
        assert_works("cpu", group)
    assert "named" in dist.new_group(group_desc="named").group_desc
    assert dist.get_backend_config() == config


@pytest.mark.parametrize("config", ["cpu:gloo,dev:vendor", "dev:vendor,cpu:gloo"])
def test_the_backend_of_another_device_stays_in_a_mixed_group(fresh, config):
    run(fresh, beside_a_vendor, config=config)


def bound_and_split(rank, n, device, *, store):
    torch_occl.replace_gloo()
    begin(rank, n, store, device_id=torch.device("dev", rank))
    assert_occl()
    half = dist.split_group(split_ranks=[[0, 1], [2]])
    assert_occl(half)
    assert_works("dev", half)


@pytest.mark.skipif("dev" not in DEVICES, reason="split_group needs an accelerator")
def test_a_group_of_gloo_by_name_is_split(fresh):
    run(fresh, bound_and_split, n=3)


def shrinks(rank, n, device, *, store):
    torch_occl.replace_gloo()
    begin(rank, n, store)
    if rank < 2:
        smaller = dist.shrink_group([2])
        assert_occl(smaller)
        assert smaller.size() == 2


def test_a_group_shrinks(fresh):
    run(fresh, shrinks, n=3)


def init_again(rank, n, device, *, store):
    torch_occl.replace_gloo()
    store = dist.FileStore(store, n)
    for _ in range(3):
        begin(rank, n, store)
        assert_occl()
        dist.destroy_process_group()


def test_init_and_destroy_follow_each_other_over_one_store(fresh):
    run(fresh, init_again, n=3)


def chooses_twice(rank, n, device, *, store):
    store = dist.FileStore(store, n)
    choices = []
    for version in (f"version {rank}", "one version"):
        vote = {"cannot": "", "place": "here", "version": version, "kept": []}
        limit = timedelta(seconds=50)
        choices.append(
            place_agreement.agree(store, dist.PrefixStore("cpu/", store), vote, rank, n, "0", limit)
        )
        if len(choices) == 1:  # as the group itself would
            store.set(f"met/{rank}", "")
            store.wait([f"met/{other}" for other in range(n)])
    return [choice["occl"] for choice in choices]


def test_each_group_over_one_store_has_a_choice_of_its_own(fresh):
    assert run(fresh, chooses_twice, n=3) == [[False, True]] * 3


def foreign_options(rank, n, device, *, store):
    """Gloo takes any options, and ignores them."""
    torch_occl.replace_gloo()
    begin(rank, n, store, pg_options=dist.ProcessGroupGloo._Options())
    assert_occl()
    options = ProcessGroupOCCL.Options()
    options.staging_bytes = 1 << 21
    assert_occl(group := dist.new_group(backend="gloo", pg_options=options))
    assert backend("cpu", group).options.staging_bytes == 1 << 21
    with pytest.raises(TypeError, match=r"pg_options must be torch_occl.ProcessGroupOCCL.Options"):
        dist.new_group(backend="occl", pg_options=dist.ProcessGroupGloo._Options())


def test_options_of_another_backend_are_ignored_as_gloo_ignores_them(fresh):
    run(fresh, foreign_options)


def keeps_cuda(rank, n, device, *, store):
    """Stands for a process with CUDA: Gloo, which moves CUDA tensors too, keeps that device on all ranks."""
    if rank == 0:
        torch.cuda.is_available = lambda: True
    torch_occl.replace_gloo()
    begin(rank, n, store)
    assert type(backend("cuda")) is dist.ProcessGroupGloo and not torch_occl.uses_occl(device="cuda")
    assert_occl()
    torch.cuda.is_available = lambda: False
    dist.destroy_process_group()


@pytest.mark.skipif(torch.cuda.is_available(), reason="stands for a process with CUDA")
def test_tensors_on_cuda_stay_gloos_if_one_rank_can_have_some(fresh):
    run(fresh, keeps_cuda)


def alone(rank, n, device, *, store):
    torch_occl.replace_gloo()
    begin(0, 1, dist.HashStore())
    assert_occl()


def test_a_group_of_one(fresh):
    run(fresh, alone, n=1)


def trained(rank):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 4))
    ddp = DistributedDataParallel(model)
    assert ddp._get_ddp_logging_data()["backend_name"] == "gloo"
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(5):
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        ddp(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def trains(rank, n, device, *, store):
    begin(rank, n, f"{store}-gloo")
    assert_gloo()
    expected = trained(rank)
    dist.destroy_process_group()
    torch_occl.replace_gloo()
    begin(rank, n, store)
    assert_occl()
    for mine, theirs in zip(trained(rank), expected, strict=True):
        assert torch.equal(mine, theirs)  # two addends: every order of addition gives the same bits
    dist.destroy_process_group()


def test_training_gives_what_it_gives_with_gloo(fresh):
    run(fresh, trains)
