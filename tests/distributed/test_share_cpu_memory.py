"""`share_cpu_memory`: CPU tensors that peers map, in scripts that know nothing of it."""

from __future__ import annotations

import io
import multiprocessing
import os
import threading
import warnings

import numpy
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import torch_occl
from occl import _C
from tests.support.checks import assert_works, backend
from tests.support.interpreter import install, run_python
from tests.support.processes import in_forked_child
from tests.support.shared_memory import in_a_group, in_one_process, lies_shared, shared_bytes
from tests.support.thinning import first

MIB = 1 << 20


# ---- on and off ----------------------------------------------------------------------------------------


def on_and_off(rank, n, device):
    before = torch.zeros(MIB)
    with torch_occl.share_cpu_memory():
        inside, small = torch.zeros(MIB), torch.zeros(10)
        with torch_occl.share_cpu_memory(40):
            assert lies_shared(torch.zeros(10))
            with torch_occl.share_cpu_memory(None):
                assert not lies_shared(torch.zeros(MIB))
            assert lies_shared(torch.zeros(10))
        assert not lies_shared(torch.zeros(10))
    assert lies_shared(inside) and not lies_shared(small) and not lies_shared(before)
    assert not lies_shared(torch.zeros(MIB))
    assert shared_bytes() == inside.nbytes
    del inside
    assert shared_bytes() == 0
    torch_occl.share_cpu_memory()
    assert lies_shared(torch.zeros(MIB))
    torch_occl.share_cpu_memory(None)
    assert not lies_shared(torch.zeros(MIB))


def test_it_is_switched_on_and_off_and_nests(fresh):
    in_one_process(fresh, on_and_off)


def switched_by_an_exception(rank, n, device):
    with pytest.raises(KeyError), torch_occl.share_cpu_memory():
        raise KeyError
    assert not lies_shared(torch.zeros(MIB))


def test_an_exception_ends_it_too(fresh):
    in_one_process(fresh, switched_by_an_exception)


@pytest.mark.parametrize(
    ("size", "error"),
    [(0, ValueError), (-1, ValueError), ("1M", TypeError), (1.5, TypeError), (True, TypeError)],
)
def test_a_size_that_is_none_is_refused(size, error):
    with pytest.raises(error, match="min_bytes must be"):
        torch_occl.share_cpu_memory(size)
    assert not lies_shared(torch.zeros(MIB))


def in_other_threads(rank, n, device):
    """Threads allocate and free, each what another has made, while it is switched on and off."""
    made, stop = [torch.zeros(100_000) for _ in range(8)], threading.Event()

    def work(mine):
        while not stop.is_set():
            made[mine] = torch.full((100_000,), float(mine))
            other = made[(mine + 1) % 8]
            assert (other == other[0]).all()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for i in range(200):
        torch_occl.share_cpu_memory(1000 if i % 2 else None)
    stop.set()
    for thread in threads:
        thread.join()
    made.clear()
    assert shared_bytes() == 0


def test_it_is_switched_while_other_threads_allocate(fresh):
    in_one_process(fresh, in_other_threads)


# ---- in groups -----------------------------------------------------------------------------------------


def operations(rank, n, *, shared_on):
    """Every operation, with tensors that are shared on some ranks."""
    sharing = torch_occl.share_cpu_memory() if rank in shared_on else torch_occl.share_cpu_memory(None)
    with sharing:
        t = torch.full((MIB,), rank + 1.0)
        assert lies_shared(t) == (rank in shared_on)
        dist.all_reduce(t)
        assert (t == n * (n + 1) / 2).all()
        t.fill_(rank)
        dist.broadcast(t, 1)
        assert (t == 1).all()
        parts = list(torch.full((n, MIB), float(rank)).unbind())
        out = torch.empty(MIB)
        dist.reduce_scatter(out, parts)
        assert (out == sum(range(n))).all()
        dist.all_gather(parts, torch.full((MIB,), float(rank)))
        assert all((part == r).all() for r, part in enumerate(parts))
        whole = torch.empty(n * MIB)
        dist.all_to_all_single(whole, torch.full((n * MIB,), float(rank)))
        assert all((part == r).all() for r, part in enumerate(whole.chunk(n)))
        if rank == 0:
            dist.send(torch.full((MIB,), 7.0), 1)
        elif rank == 1:
            dist.recv(out, 0)
            assert (out == 7).all()
    return backend().memory_stats()["group.staging_bytes"]


def all_operations(rank, n, device, *, shared_on):
    staged = operations(rank, n, shared_on=shared_on)
    assert (staged == 0) == (len(shared_on) == n), "only tensors of every rank that are mapped go directly"
    assert_works()


@pytest.mark.parametrize("shared_on", [[0, 1, 2], [0], [1, 2]], ids=str)
def test_every_operation_takes_tensors_of_both_kinds(fresh, shared_on):
    in_a_group(fresh, all_operations, 3, shared_on=shared_on)


def trains(rank, n, device):
    """DistributedDataParallel's buckets and gradients are shared, with no word in the script."""

    def losses():
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(200, 300), torch.nn.ReLU(), torch.nn.Linear(300, 200))
        net = torch.nn.parallel.DistributedDataParallel(net)
        optimizer = torch.optim.Adam(net.parameters())
        found = []
        for step in range(4):
            x = torch.randn(16, 200, generator=torch.Generator().manual_seed(10 * step + rank))
            loss = (net(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    ordinary = losses()
    staged = backend().memory_stats()["group.staging_bytes"]
    with torch_occl.share_cpu_memory():
        assert losses() == ordinary
    assert backend().memory_stats()["group.staging_bytes"] == staged
    assert torch_occl.shared_cpu_memory_stats()["allocated_bytes.all.peak"] > 480_000


def test_training_has_the_same_bits(fresh):
    in_a_group(fresh, trains)


# ---- forked children -----------------------------------------------------------------------------------


def forks(rank, n, device):
    torch_occl.share_cpu_memory()
    t, u = torch.ones(MIB), torch.ones(MIB)

    def grandchild():
        assert (t == 5).all(), "what the child wrote, its child has"
        t.fill_(6)
        return "fine"

    def child():
        assert (t == 1).all()
        t.fill_(5)
        nonlocal u
        u = None  # frees what is the parent's
        fresh = torch.full((MIB,), 9.0)
        assert not lies_shared(fresh)
        assert in_forked_child(grandchild) == "fine"
        assert (t == 5).all() and (fresh == 9).all()
        return "fine"

    assert in_forked_child(child) == "fine"
    assert (t == 1).all() and (u == 1).all()
    assert lies_shared(torch.zeros(MIB)), "the parent goes on sharing"
    assert_works()


def test_a_forked_child_has_what_its_parent_had_and_shares_nothing(fresh):
    in_a_group(fresh, forks, 1)


def frees_while_a_child_reads(rank, n, device):
    """What the parent frees is not handed out again before the child has ended."""
    torch_occl.share_cpu_memory()
    t = torch.ones(MIB)
    address = t.data_ptr()
    go_on, ended = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        os.close(go_on[1])
        os.read(go_on[0], 1)
        os.write(ended[1], b"1" if (t == 1).all() else b"0")
        os._exit(0)
    del t
    others = [torch.full((MIB,), 7.0) for _ in range(3)]
    assert all(other.data_ptr() != address for other in others)
    os.write(go_on[1], b"x")
    assert os.read(ended[0], 1) == b"1"
    os.waitpid(child, 0)
    del others
    again = [
        torch.zeros(MIB) for _ in range(16)
    ]  # more than was free, so that the heap looks for ended children
    assert address in [tensor.data_ptr() for tensor in again]


def test_what_a_child_may_read_is_not_used_again(fresh):
    in_one_process(fresh, frees_while_a_child_reads)


def reduces_what_it_inherited(rank, store, tensors):
    dist.init_process_group("occl", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    for t in tensors:
        t.fill_(rank + 1)
        dist.all_reduce(t)
        assert (t == 3).all(), t
    ours = torch.full((MIB,), float(rank + 1))
    dist.all_reduce(ours)
    assert (ours == 3).all()
    dist.destroy_process_group()


def has_forked_ranks(rank, n, device, *, store):
    """A model made in the parent, and a group of its forked children: by start_processes, for instance."""
    torch_occl.share_cpu_memory()
    tensors = [torch.full((count,), 100.0) for count in (1, 5000, MIB)]
    assert lies_shared(tensors[-1])
    if dist.is_initialized():  # its engine and its staging memory stay
        dist.all_reduce(torch.ones(1000))
        dist.destroy_process_group()
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=reduces_what_it_inherited, args=(r, store, tensors)) for r in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    assert all((t == 100).all() for t in tensors)


@pytest.mark.parametrize("had_group", [False, True])
def test_a_group_of_forked_children_does_not_touch_their_parents_tensors(fresh, had_group):
    with fresh(1) as team:
        if had_group:
            team.join()
        team.run(has_forked_ranks, store=team.source.new_file())


OUTLIVES = """
import os, torch, torch_occl
torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
torch_occl.share_cpu_memory()
t = torch.arange(100_000, dtype=torch.float64)
read, write = os.pipe()
parent = os.getpid()
if os.fork() == 0:
    os.close(write)
    os.read(read, 1)  # the end of the parent closes the pipe
    t += 1
    print(t.sum().item(), (torch.ones(100_000, dtype=torch.float64) + t).sum().item(), flush=True)
    os._exit(0)
os.close(read)
os._exit(0)
"""


def test_a_child_outlives_its_parent():
    total = sum(range(1, 100_001))
    assert run_python("-c", OUTLIVES).split() == [str(float(total)), str(float(total + 100_000))]


class Rows(Dataset):
    def __init__(self):
        self.data = torch.arange(40_000.0).view(8, 5000)

    def __len__(self):
        return 8

    def __getitem__(self, i):
        self.data[i] += 1  # in place: the worker's own
        return self.data[i]


def loads(rank, n, device, *, persistent):
    torch_occl.share_cpu_memory(1)
    rows = Rows()
    assert lies_shared(rows.data)
    loader = DataLoader(rows, batch_size=2, num_workers=2, persistent_workers=persistent, pin_memory=True)
    for epoch in (1, 2):
        added = epoch if persistent else 1
        for i, batch in enumerate(loader):
            assert torch.equal(batch, rows.data[2 * i : 2 * i + 2] + added)
    assert torch.equal(rows.data, torch.arange(40_000.0).view(8, 5000))


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_a_data_loader_change_their_own_data(fresh, persistent):
    in_one_process(fresh, loads, persistent=persistent)


# ---- everything that takes a CPU tensor ----------------------------------------------------------------


def send_back(inbox, outbox):
    outbox.put(inbox.get() + 1)
    inbox.get()  # the tensor's memory is passed on while its sender lives


def uses(rank, n, device, *, folder):
    torch_occl.share_cpu_memory(1)
    t = torch.arange(1000.0)
    assert lies_shared(t)
    array = t.numpy()
    array += 1
    assert t[0] == 1 and torch.from_numpy(numpy.asarray(t)).data_ptr() == t.data_ptr()
    assert torch.from_dlpack(t).data_ptr() == t.data_ptr()
    buffer = io.BytesIO()
    torch.save(t, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer), t)
    t = torch.empty(10).resize_(5000).fill_(2)
    assert lies_shared(t) and t.sum() == 10_000
    u = torch.empty(0).set_(t)
    del t
    assert u.sum() == 10_000
    u.untyped_storage().resize_(8)
    assert u.untyped_storage().nbytes() == 8
    file = torch.from_file(f"{folder}/numbers", shared=True, size=1000)
    file.fill_(3)
    assert (file.clone() == 3).all()
    q = torch.quantize_per_tensor(torch.arange(100.0), 0.5, 10, torch.quint8)
    assert torch.equal(q.dequantize(), torch.arange(100.0).clamp(-5, 122.5))
    sparse = torch.eye(100).to_sparse()
    assert torch.equal((sparse + sparse).to_dense(), 2 * torch.eye(100))
    shared = torch.ones(1000).share_memory_()
    assert shared.is_shared() and shared.sum() == 1000
    assert torch.linalg.inv(torch.eye(200) * 2).trace() == 100  # LAPACK
    assert torch.nn.functional.conv2d(torch.ones(1, 3, 32, 32), torch.ones(4, 3, 3, 3)).sum() == 97_200
    assert (
        torch.ones(300, 300).to(torch.bfloat16).mm(torch.ones(300, 300, dtype=torch.bfloat16)).sum() == 27e6
    )
    context = multiprocessing.get_context("fork")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=send_back, args=(inbox, outbox))
    child.start()
    inbox.put(torch.ones(10_000))
    assert (outbox.get() == 2).all()
    inbox.put("end")
    child.join()


def test_everything_that_takes_a_cpu_tensor_takes_these(fresh, tmp_path):
    in_one_process(fresh, uses, folder=str(tmp_path))


# ---- limits, and what is said --------------------------------------------------------------------------


def runs_out(rank, n, device):
    torch_occl.share_cpu_memory()
    _C._device_set_memory_fraction(1e-9)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        tensors = [torch.ones(MIB) for _ in range(5)]
    assert len([w for w in said if "ordinary memory" in str(w.message)]) == 1
    assert all((t == 1).all() and not lies_shared(t) for t in tensors)
    with pytest.raises(torch.OutOfMemoryError, match="shared CPU memory"):
        torch_occl.empty_shared(MIB)


def test_without_memory_tensors_are_ordinary_and_one_line_says_so(fresh):
    in_one_process(fresh, runs_out)


BY_ENVIRONMENT = """
import sys, torch
assert "torch_occl" not in sys.modules and not hasattr(torch, "dev")
address = (t := torch.zeros(1 << 20)).data_ptr()
lines = [line for line in open("/proc/self/maps") if "memfd:occl" in line]
ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
print(any(low <= address < high for low, high in ranges))
"""


@pytest.mark.parametrize(
    ("value", "shared"),
    first([("1", True), ("", False), ("5000000", False), ("100", True), ("0", False)]),
)
def test_a_variable_switches_it_on_without_the_device(tmp_path, value, shared):
    path = install(tmp_path / "site")
    assert run_python("-c", BY_ENVIRONMENT, path=path, OCCL_SHARE_CPU=value).strip() == str(shared)


@pytest.mark.full
def test_a_variable_that_makes_no_sense_is_named_and_stops_nothing_else(tmp_path):
    path = install(tmp_path / "site")
    script = "import torch.distributed as dist; print(sorted(dist.Backend._plugins))"
    said = run_python("-c", script, path=path, OCCL_SHARE_CPU="yes", OCCL_IN_PLACE_OF="nccl")
    fails = "import torch_occl will fail"
    assert f"CPU tensors are not shared, and {fails}: OCCL_SHARE_CPU='yes': it must be 0, 1" in said
    assert f"occl does not take the place of Gloo, and {fails}: OCCL_IN_PLACE_OF='nccl': it must be" in said
    assert "'OCCL'" in said.splitlines()[-1]


def test_it_needs_no_device(scripts):
    script = "import torch, torch_occl; t = torch_occl.empty_shared(3); t.fill_(1); print(t.sum().item())"
    assert scripts.run(script, OCCL_DEVICE="0").strip() == "3.0"
