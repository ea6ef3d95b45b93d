"""Functions of PyTorch that know backends by name: which work with occl, and what to use for the others.

docs/pytorch.md is the whole list; these are its entries that run.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch.distributed import _functional_collectives
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.interpreter import run_python
from tests.support.running import HAS_NCCL, PYTORCH, WITH_CUDA, is_group, splits_without_cuda, with_dist2
from torch_occl import ProcessGroupOCCL


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


each_device = pytest.mark.parametrize("device", DEVICES)


def initialize(rank, world_size, store, name, **options):
    """``options``: what else ``init_process_group`` takes."""
    dist.init_process_group(
        name, store=dist.FileStore(store, world_size), rank=rank, world_size=world_size, **options
    )


def timeout_is_changed(rank, world_size, device):
    t = torch.ones(3, device=device)
    if PYTORCH < (2, 14):
        with pytest.warns(UserWarning, match="only supported for either nccl or gloo"):
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.3))
        dist.group.WORLD.set_timeout(timedelta(seconds=0.3))
    else:
        dist.set_timeout(timedelta(seconds=0.3))
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match=r"Timed out.*all_reduce.*rank 1 .*has not arrived"):
            dist.all_reduce(t)


def groups_are_aborted(rank, world_size, device, *, store):
    """Rank 0 aborts; what the others wait for ends. Then there is no group, and a new one can be made."""
    other = dist.new_group()
    t = torch.ones(3, device=device)
    if rank == 0:
        dist.distributed_c10d._abort_process_group()
    else:
        with pytest.raises(dist.DistBackendError, match="abort"):
            dist.all_reduce(t, group=other)
        dist.distributed_c10d._abort_process_group()
    assert not dist.is_initialized()
    initialize(rank, world_size, store, "occl")
    assert_works(device)


def one_group_is_aborted(rank, world_size, device):
    other = dist.new_group()
    dist.distributed_c10d._abort_process_group(other)
    with pytest.raises(ValueError, match="Invalid process group"):
        dist.distributed_c10d._abort_process_group(other)
    assert_works(device)


def barrier_is_monitored(rank, world_size, device):
    if PYTORCH < (2, 14):
        with pytest.raises(ValueError, match="only implemented for GLOO"):
            dist.monitored_barrier()
    else:
        dist.monitored_barrier()
    dist.group.WORLD.monitored_barrier(timedelta(seconds=60))
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="Rank 1 failed to pass monitoredBarrier in 100 ms"):
            dist.group.WORLD.monitored_barrier(timedelta(seconds=0.1))
    dist.barrier()


def vendor_in_one_group(rank, world_size, device, *, store):
    dist.Backend.register_backend("vendor", dist.ProcessGroupGloo, devices=["dev"])
    for config, theirs, ours in (
        ("cpu:occl,dev:vendor", "dev:vendor", "cpu:occl"),
        ("dev:vendor,cpu:torch_occl", "dev:vendor", "cpu:torch_occl"),
        ("cpu:gloo,dev:vendor,cuda:occl", "cpu:gloo,dev:vendor", "cuda:occl"),
    ):
        way_out = rf'make this group with "{theirs}", .* with new_group\(backend="{ours}"\)'
        # Alone: a rank that is refused would close the vendor's connections while another one makes them.
        with pytest.raises(ValueError, match=way_out):
            initialize(0, 1, f"{store}-{config}-{rank}", config)
    initialize(rank, world_size, store, "dev:vendor")
    assert_works("cpu", dist.new_group(backend="cpu:occl"))


def second_name_is_the_same(rank, world_size, device, *, store):
    initialize(rank, world_size, store, "torch_occl")
    assert type(backend(device)) is ProcessGroupOCCL and dist.get_backend() == "torch_occl"
    assert_works(device)
    assert_works(device, dist.new_group())
    assert_works(device, dist.new_group(backend="occl"))
    dist.destroy_process_group()


def calls_are_checked(rank, world_size, device, *, store):
    """TORCH_DISTRIBUTED_DEBUG=DETAIL puts PyTorch's wrapper around the backend, and Gloo beside it."""
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    initialize(rank, world_size, store, "occl")
    wrapper = backend(device)
    assert not isinstance(wrapper, ProcessGroupOCCL)
    assert isinstance(wrapper.wrapped_pg, ProcessGroupOCCL)
    assert_works(device)
    half = dist.new_group([0, 1])
    if rank < 2:
        assert_works(device, half)
    dist.barrier()
    t = torch.ones(rank + 1, device=device)
    with pytest.raises(RuntimeError, match="Detected mismatch between collectives on ranks"):
        dist.all_reduce(t)
    assert_works(device)
    shape = (2, 6) if rank == 0 else (3, 4)
    both = r"(?s)TensorShape=\[2, 6\].*TensorShape=\[3, 4\]"
    for group in [None, half] if rank < 2 else [None]:
        with pytest.raises(RuntimeError, match=both if rank == 0 else "Tensor Tensor shapes|TensorShape"):
            dist.all_reduce(torch.ones(shape, device=device), group=group)
    assert_works(device)
    memory = symm_mem.empty(4, device=device).fill_(1)
    symm_mem.rendezvous(memory, dist.group.WORLD).barrier()
    total = torch.ops.symm_mem.one_shot_all_reduce(memory, "sum", dist.group.WORLD.group_name)
    assert (total == world_size).all()
    dist.destroy_process_group()


def devices_have_their_own_backends(rank, world_size, device, *, store, name, bound):
    """However the backends are named: what asks a group for its one backend goes on working."""
    bound = torch.device("dev", rank) if bound else None
    initialize(rank, world_size, store, name, device_id=bound)
    assert isinstance(backend("dev"), ProcessGroupOCCL)
    assert_works("dev")
    dist.barrier()
    net = DistributedDataParallel(
        torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm1d(4)).to(f"dev:{rank}")
    )
    net(torch.randn(5, 4, device=f"dev:{rank}")).sum().backward()
    objects = [None] * world_size
    dist.all_gather_object(objects, rank)
    assert objects == list(range(world_size))
    out = torch.zeros(2, device="dev")
    peer = (rank + 1) % world_size, (rank - 1) % world_size
    requests = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((2,), float(rank), device="dev"), peer[0]),
            dist.P2POp(dist.irecv, out, peer[1]),
        ]
    )
    for request in requests:
        request.wait()
    assert (out == peer[1]).all()
    if name and "gloo" in name:
        del net  # its destructor would join Gloo's threads, with the GIL held that they may wait for
    dist.destroy_process_group()


def nothing_is_named(rank, world_size, device, *, store):
    """Neither a backend nor a device: the group is for the accelerator. Up to 2.13 PyTorch thinks of Gloo."""
    initialize(rank, world_size, store, None)
    assert_works("dev")
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(1))
    if PYTORCH < (2, 14):
        with pytest.raises(RuntimeError, match="Could not find backend type 1"):
            DistributedDataParallel(torch.nn.Linear(2, 2).to(f"dev:{rank}"))
    else:
        DistributedDataParallel(torch.nn.Linear(2, 2).to(f"dev:{rank}"))
    dist.destroy_process_group()


def meshes_are_made(rank, world_size, device, *, store, bound):
    """With a bound device through ``split_group``, else through ``new_group``."""
    initialize(rank, world_size, store, "occl", device_id=torch.device(device, rank) if bound else None)
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("dp", "tp"))
    for name in ("dp", "tp"):
        assert_works(device, mesh.get_group(name))
        assert isinstance(backend(device, mesh.get_group(name)), ProcessGroupOCCL)
    ranks = [None, None]
    dist.all_gather_object(ranks, rank, group=mesh.get_group("tp"))
    assert ranks == [rank // 2 * 2, rank // 2 * 2 + 1]
    assert_works(device, mesh[("dp", "tp")]._flatten().get_group())
    dist.destroy_process_group()


def gradients_travel_as_bfloat16(rank, world_size, device):
    """PyTorch asks for NCCL by the name of the hook; so the hook gets another one."""

    def compress(state, bucket):
        return default_hooks.bf16_compress_hook(state, bucket)

    torch.manual_seed(1)
    net = DistributedDataParallel(torch.nn.Linear(8, 8).to(device))
    if not HAS_NCCL:
        with pytest.raises(TypeError, match="BF16 all reduce communication hook required CUDA"):
            net.register_comm_hook(None, default_hooks.bf16_compress_hook)
    net.register_comm_hook(None, compress)
    net(torch.full((2, 8), 1.0 + rank, device=device)).sum().backward()
    assert (net.module.weight.grad == 2 * (1.0 + (world_size - 1) / 2)).all()


def gathering_has_gradients(rank, world_size, device):
    """``torch.distributed.nn``: the gradients of all_gather come by all_to_all, which is right, and not by a
    reduce-scatter; all_gather into one tensor has none but for NCCL."""
    from torch.distributed.nn import functional

    t = torch.full((3,), float(rank), device=device, requires_grad=True)
    torch.cat(functional.all_gather(t)).square().sum().backward()
    assert (t.grad == 2.0 * rank * world_size).all()
    u = torch.ones(3, device=device, requires_grad=True)
    whole = functional._all_gather_base(torch.empty(3 * world_size, device=device), u)
    with pytest.raises(RuntimeError, match="Backend not supported"):
        whole.sum().backward()
    v = torch.ones(3, device=device, requires_grad=True)
    gathered = _functional_collectives.all_gather_tensor_autograd(v, 0, dist.group.WORLD)
    if PYTORCH >= (2, 12):
        gathered.sum().backward()
    else:  # its reduce-scatter refuses the gradient of a sum, which is one number expanded
        gathered.backward(torch.ones(3 * world_size, device=device))
    assert (v.grad == world_size).all()


def calls_are_logged(rank, world_size, device):
    """The logger of torch.distributed: errors with backend, group and rank."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.msg)
    logger = dist.c10d_logger._c10d_logger
    logger.addHandler(handler)
    with pytest.raises(ValueError, match="both group_rank and global_rank"):
        dist.broadcast(torch.ones(3, device=device), src=0, group_src=0)
    logger.removeHandler(handler)
    (message,) = [line for line in lines if line["func_name"] == "broadcast"]
    assert message["backend"] == "occl"
    assert (message["global_rank"], message["world_size"]) == (str(rank), str(world_size))


def profiles_name_the_backend(rank, world_size, device, *, path):
    with torch.profiler.profile() as profile:
        dist.all_reduce(torch.ones(3, device=device))
    profile.export_chrome_trace(f"{path}-{rank}")
    with open(f"{path}-{rank}") as file:
        info = json.load(file)["distributedInfo"]
    assert (info["backend"], info["rank"], info["world_size"]) == ("occl", rank, world_size)


def groups_are_split(rank, world_size, device, *, store, name, bound):
    initialize(rank, world_size, store, name, device_id=torch.device(device, rank) if bound else None)
    if not bound and PYTORCH < (2, 15):
        with pytest.raises(RuntimeError, match="not safe to split"):
            dist.split_group(split_ranks=[[0, 1], [2, 3]])
        dist.destroy_process_group()
        return
    half = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    assert (half.rank(), half.size()) == (rank % 2, 2)
    assert_works(device, half)
    one = dist.split_group(split_ranks=[[1, 2]])
    assert is_group(one) == (rank in (1, 2))
    if is_group(one):
        assert_works(device, one)
    dist.destroy_process_group()


def group_of_the_experimental_interface(rank, world_size, device, *, port):
    from torch.distributed import _dist2

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    group = _dist2.new_group("occl", timedelta(seconds=60), device)
    for where in {device, "cpu"}:
        t = torch.full((5,), float(rank), device=where)
        group.allreduce([t]).wait()
        assert (t == sum(range(world_size))).all()
    with pytest.raises(KeyError, match="no 'colour'"):
        _dist2._BACKENDS["occl"](None, 0, 1, timedelta(seconds=1), torch.device(device), colour="red")
    group.shutdown()


def fsdp_of_a_model_on_the_cpu(rank, world_size, device):
    from torch.distributed.fsdp import FullyShardedDataParallel

    with pytest.raises(RuntimeError, match="unexpectedly has parameters on cpu"):
        FullyShardedDataParallel(torch.nn.Linear(8, 8))(torch.ones(2, 8))
    wrapped = FullyShardedDataParallel(torch.nn.Linear(8, 8), device_id=torch.device("cpu"))
    wrapped(torch.ones(2, 8)).sum().backward()
    assert {parameter.grad.device.type for parameter in wrapped.parameters()} == {"cpu"}


def states_are_saved(rank, world_size, device, *, path):
    """Checkpoints of shards, at once and in the background, and loaded with other placements."""
    from torch.distributed import checkpoint
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh(device, (world_size,))
    whole = torch.arange(7.0 * 5, device=device).view(7, 5)
    state = {"sharded": distribute_tensor(whole, mesh, [Shard(0)]), "number": 7}
    checkpoint.save(state, checkpoint_id=f"{path}/at once")
    checkpoint.async_save(state, checkpoint_id=f"{path}/behind").result()
    for name in ("at once", "behind"):
        loaded = {"sharded": distribute_tensor(torch.zeros_like(whole), mesh, [Shard(1)]), "number": 0}
        checkpoint.load(loaded, checkpoint_id=f"{path}/{name}")
        assert torch.equal(loaded["sharded"].full_tensor(), whole)
        assert loaded["number"] == 7


def loaders_share_their_seed(rank, world_size, device):
    """A loader of an iterable pipe makes a group of its own, of gloo."""
    from torch.utils.data import DataLoader
    from torch.utils.data.datapipes.iter import IterableWrapper

    mine = torch.tensor([int(x) for x in DataLoader(IterableWrapper(range(20)).shuffle())])
    gathered = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(gathered, mine)
    assert all(torch.equal(other, mine) for other in gathered)


def optimizer_runs_in_the_hook(rank, world_size, device):
    """ZeroRedundancyOptimizer overlapped with DDP, which PyTorch refuses for gloo alone: each rank updates
    its part of the parameters and broadcasts it."""
    from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(2)
    net = DistributedDataParallel(torch.nn.Linear(6, 4).to(device), gradient_as_bucket_view=True)
    before = [p.detach().clone() for p in net.parameters()]
    zero = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1, overlap_with_ddp=True)
    net.register_comm_hook(None, hook_with_zero_step(default_hooks.allreduce_hook, net, zero))
    for step in range(5):
        net(torch.full((3, 6), 1.0 + rank + step, device=device)).square().mean().backward()
    dist.barrier()
    for p, old in zip(net.parameters(), before, strict=True):
        theirs = [torch.empty_like(p) for _ in range(world_size)]
        dist.all_gather(theirs, p.detach())
        assert all(torch.equal(other, p) for other in theirs)
        assert not torch.equal(p, old)


def sharded_tensors_choose_a_device(rank, world_size, device):
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    placements = [f"rank:{r}/{device}:{r}" for r in range(world_size)]
    t = sharded_tensor.full(ChunkShardingSpec(dim=0, placements=placements), (4, 3), float(rank + 1))
    assert t._get_preferred_device().type == device
    out = torch.empty(4, 3, device=device) if rank == 0 else None
    t.gather(0, out)
    if rank == 0:
        assert out.tolist() == [[1.0] * 3] * 2 + [[2.0] * 3] * 2


@each_device
def test_a_timeout_is_changed_by_the_groups_own_method(fresh, device):
    with fresh(2) as team:
        team.join().run(timeout_is_changed, device)


@each_device
def test_all_groups_are_aborted(fresh, device):
    with fresh(3) as team:
        team.join().run(groups_are_aborted, device, store=team.source.new_file())


@each_device
def test_one_group_is_aborted(fresh, device):
    with fresh(2) as team:
        team.join().run(one_group_is_aborted, device)


@each_device
def test_monitored_barrier_is_the_groups_own_method(fresh, device):
    with fresh(2) as team:
        team.join().run(barrier_is_monitored, device)


@each_device
@pytest.mark.parametrize("world_size", [2, 3])
def test_debug_level_detail_checks_calls(fresh, world_size, device):
    with fresh(world_size) as team:
        team.run(calls_are_checked, device, store=team.source.new_file())


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("occl", False),
        ("occl", True),
        (None, True),
        ("cpu:gloo,dev:occl", False),
        ("cpu:occl,dev:occl", True),
    ],
)
def test_any_way_to_name_the_backends_makes_a_whole_group(fresh, name, bound):
    with fresh(2) as team:
        team.run(devices_have_their_own_backends, "dev", store=team.source.new_file(), name=name, bound=bound)


def test_without_a_backend_the_group_serves_the_accelerator_alone(fresh):
    with fresh(2) as team:
        team.run(nothing_is_named, "dev", store=team.source.new_file())


@pytest.mark.parametrize(("device", "bound"), [("cpu", False), ("dev", False), ("dev", True)])
def test_device_meshes_make_their_groups(fresh, device, bound):
    with fresh(4) as team:
        team.run(meshes_are_made, device, store=team.source.new_file(), bound=bound)


def test_two_backends_of_packages_in_one_group_are_refused(fresh):
    with fresh(2) as team:
        team.run(vendor_in_one_group, "dev", store=team.source.new_file())


@each_device
def test_the_backend_has_a_second_name(fresh, device):
    with fresh(2) as team:
        team.run(second_name_is_the_same, device, store=team.source.new_file())


@each_device
def test_the_bfloat16_hook_needs_another_name(fresh, device):
    with fresh(2) as team:
        team.join().run(gradients_travel_as_bfloat16, device)


@each_device
def test_gathered_tensors_have_gradients(pool, device):
    pool.run(gathering_has_gradients, 3, device)


@each_device
def test_errors_are_logged_with_the_backends_name(pool, device):
    pool.run(calls_are_logged, 2, device)


@each_device
def test_profiles_name_the_backend(pool, device, tmp_path):
    pool.run(profiles_name_the_backend, 2, device, path=str(tmp_path / "trace"))


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        pytest.param("occl", True, marks=splits_without_cuda),
        ("occl", False),
        pytest.param("cpu:gloo,dev:occl", True, marks=splits_without_cuda),
        (WITH_CUDA, True),
    ],
)
def test_groups_with_a_bound_device_are_split(fresh, name, bound):
    with fresh(4) as team:
        team.run(groups_are_split, "dev", store=team.source.new_file(), name=name, bound=bound)


@with_dist2
@each_device
def test_the_experimental_interface_makes_groups(fresh, device):
    with fresh(2) as team:
        team.run(group_of_the_experimental_interface, device, port=free_port())


@each_device
def test_checkpoints_are_written_and_read(pool, device, tmp_path):
    pool.run(states_are_saved, 2, device, path=str(tmp_path))


def test_fsdp_needs_a_device_id_for_a_model_on_the_cpu(pool):
    pool.run(fsdp_of_a_model_on_the_cpu, 2, "cpu")


@pytest.mark.full
def test_fsdp_without_an_accelerator_needs_it_too():
    script = """
import torch, torch.distributed as dist, torch_occl
from torch.distributed.fsdp import FullyShardedDataParallel
dist.init_process_group("occl", store=dist.HashStore(), rank=0, world_size=1)
try:
    FullyShardedDataParallel(torch.nn.Linear(8, 8))
except RuntimeError as error:
    print(error)
wrapped = FullyShardedDataParallel(torch.nn.Linear(8, 8), device_id=torch.device("cpu"))
wrapped(torch.ones(2, 8)).sum().backward()
dist.destroy_process_group()
"""
    assert "needs a non-CPU accelerator device" in run_python("-c", script, OCCL_DEVICE="0")


def test_data_loaders_have_a_group_of_their_own(pool):
    pool.run(loaders_share_their_seed, 2)


@each_device
def test_an_optimizer_runs_in_the_communication_hook(fresh, device):
    with fresh(2) as team:
        team.join().run(optimizer_runs_in_the_hook, device)


def test_sharded_tensors_are_gathered(pool):
    pool.run(sharded_tensors_choose_a_device, 2, "dev")


def test_the_flight_recorders_analyser_knows_other_backends_in_newer_versions_only():
    from torch.distributed.flight_recorder.components.types import Op

    if PYTORCH < (2, 15):
        words = "occl not in" if PYTORCH >= (2, 12) else "occl != 'nccl' or 'xccl'"
        with pytest.raises(AssertionError, match=words):
            Op({"profiling_name": "occl:all_reduce"}, {}, "0")
    else:
        with pytest.raises(KeyError, match="state"):  # the name is accepted
            Op({"profiling_name": "occl:all_reduce"}, {}, "0")
