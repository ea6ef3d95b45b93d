"""Bad arguments raise before anything is sent: only one rank makes the mistake, and the group works on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_occl
from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.references import reduce_op, room
from tests.support.running import PYTORCH


class Calls:
    """The operations of the backend, on a tensor each, so that one argument at a time can be made wrong."""

    def __init__(self, n: int, device: str) -> None:
        self.pg, self.n, self.device = backend(device), n, device

    def tensors(self, count=4):
        return [self.zeros(count) for _ in range(self.n)]

    def zeros(self, *shape, dtype=torch.float32):
        return torch.zeros(*shape, dtype=dtype, device=self.device)

    @staticmethod
    def options(kind, **fields):
        opts = kind()
        for name, value in fields.items():
            setattr(opts, name, value)
        return opts

    def broadcast(self, t, **fields):
        return self.pg.broadcast([t], self.options(dist.BroadcastOptions, **fields))

    def all_reduce(self, t, **fields):
        return self.pg.allreduce([t], self.options(dist.AllreduceOptions, **fields))

    def reduce(self, t, **fields):
        return self.pg.reduce([t], self.options(dist.ReduceOptions, **fields))

    def all_gather(self, t, outputs=None):
        return self.pg.allgather([self.tensors() if outputs is None else outputs], [t])

    def all_gather_into_tensor(self, t, out=None):
        return self.pg._allgather_base(self.zeros(4 * self.n) if out is None else out, t)

    def gather(self, t, outputs=None, root=0):
        opts = self.options(dist.GatherOptions, rootRank=root)
        return self.pg.gather([self.tensors() if outputs is None else outputs], [t], opts)

    def scatter(self, t, inputs=None, root=0):
        opts = self.options(dist.ScatterOptions, rootRank=root)
        return self.pg.scatter([t], [self.tensors() if inputs is None else inputs], opts)

    def reduce_scatter(self, t, inputs=None, op=dist.ReduceOp.SUM):
        opts = self.options(dist.ReduceScatterOptions, reduceOp=op)
        return self.pg.reduce_scatter([t], [self.tensors() if inputs is None else inputs], opts)

    def reduce_scatter_tensor(self, t, whole=None, op=dist.ReduceOp.SUM):
        opts = self.options(dist.ReduceScatterOptions, reduceOp=op)
        return self.pg._reduce_scatter_base(t, self.zeros(4 * self.n) if whole is None else whole, opts)

    def all_to_all(self, t, outputs=None):
        opts = dist.AllToAllOptions()
        return self.pg.alltoall(
            self.tensors() if outputs is None else outputs, [t, *self.tensors()[1:]], opts
        )

    def all_to_all_single(self, t, out=None, output_splits=(), input_splits=()):
        out = self.zeros(4) if out is None else out
        return self.pg.alltoall_base(out, t, list(output_splits), list(input_splits), dist.AllToAllOptions())


ALL = [
    "broadcast",
    "all_reduce",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
]
WRITTEN = ["all_reduce", "reduce", "scatter", "reduce_scatter", "reduce_scatter_tensor"]
"""On rank 0, their tensor is an output."""
REDUCING = ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"]
LISTS = {"all_gather": "outputs", "gather": "outputs", "scatter": "inputs", "reduce_scatter": "inputs"}
LISTS |= {"all_to_all": "outputs"}


def refused(call, pattern, *args, **kwargs):
    with pytest.raises(ValueError, match=pattern):
        call(*args, **kwargs)


def bad_tensor(calls, operation):
    call = getattr(calls, operation)
    if operation in WRITTEN:
        refused(call, "invalid tensor layout: elements of an output share memory", calls.zeros(1).expand(4))
    refused(call, "unsupported layout", torch.zeros(4, 4).to_sparse_csr())
    refused(call, "unsupported device type meta", torch.zeros(4, device="meta"))
    refused(call, "conjugate", torch.zeros(4, dtype=torch.complex64, device=calls.device).conj())
    with pytest.raises((TypeError, ValueError)):
        call(None)
    with pytest.raises(TypeError):
        call("no tensor")


def bad_root(calls, operation):
    call = getattr(calls, operation)
    name = "rootRank" if operation in ("broadcast", "reduce") else "root"
    for root in (-1, calls.n, 1 << 20):
        refused(call, f"invalid root rank: {root}", calls.zeros(4), **{name: root})
    if name == "rootRank":
        refused(call, "invalid root tensor: 1", calls.zeros(4), rootTensor=1)


def bad_reduction(calls, operation):
    call = getattr(calls, operation)
    name = "reduceOp" if operation in ("all_reduce", "reduce") else "op"
    pairs = [
        ("BAND", "float32"),
        ("BXOR", "bfloat16"),
        ("AVG", "bool"),
        ("MIN", "complex64"),
        ("MAX", "complex128"),
    ]
    pairs += [
        ("SUM", "float8_e8m0fnu"),
        ("MAX", "float4_e2m1fn_x2"),
        ("BOR", "complex64"),
        ("PREMUL_SUM", "int32"),
    ]
    for op, dtype in pairs:
        whole = room(dtype, 4 * calls.n, calls.device)
        parts = [whole[4 * i : 4 * i + 4] for i in range(calls.n)]
        other = {"reduce_scatter": {"inputs": parts}, "reduce_scatter_tensor": {"whole": whole}}.get(
            operation, {}
        )
        refused(
            call,
            f"{op} has no meaning for",
            room(dtype, 4, calls.device),
            **{name: reduce_op(op, 0)},
            **other,
        )


def bad_list(calls, operation):
    call, name, good = getattr(calls, operation), LISTS[operation], calls.tensors
    side = name.removesuffix("s")
    for wrong, tensors in {calls.n - 1: good()[1:], calls.n + 1: [*good(), calls.zeros(4)]}.items():
        text = {
            "all_gather": f"invalid output tensor list at index 0 .expected length {calls.n}, got {wrong}",
            "all_to_all": f"output tensor list size {wrong} does not match world size {calls.n}",
        }.get(operation, f"Incorrect {side} list size {wrong}. {side.title()} list size should be {calls.n}")
        refused(call, text, calls.zeros(4), **{name: tensors})
    wrong = {
        "invalid tensor type": calls.zeros(4, dtype=torch.int32),
        "unsupported layout": torch.zeros(4, 4).to_sparse_csr(),
        "unsupported device type": torch.zeros(4, device="meta"),
    }
    if LISTS[operation] == "outputs":
        wrong["elements of an output share memory"] = calls.zeros(1).expand(4)
    if operation in ("gather", "scatter"):
        wrong["invalid tensor size"] = calls.zeros(5)
    if len(DEVICES) > 1:
        other = DEVICES[DEVICES[0] == calls.device]
        wrong["tensors should be on the same device"] = torch.zeros(4, device=other)
    for pattern, tensor in wrong.items():
        refused(call, pattern, calls.zeros(4), **{name: [*good()[1:], tensor]})


def mixed_devices(calls, operation):
    """The flat operations; lists are in bad_list."""
    other = torch.zeros(4 * calls.n, device=DEVICES[DEVICES[0] == calls.device])
    name = {"reduce_scatter_tensor": "whole"}.get(operation, "out")
    t = calls.zeros(4 * calls.n if operation == "all_to_all_single" else 4)
    refused(getattr(calls, operation), "tensors should be on the same device", t, **{name: other})


def bad_size(calls, operation):
    call, n = getattr(calls, operation), calls.n
    if operation == "all_gather_into_tensor":
        refused(call, f"[(]{n} times 4[)], got {4 * n + 1}", calls.zeros(4), out=calls.zeros(4 * n + 1))
        whole = calls.zeros(4 * n)
        refused(call, "overlap", whole[1:5], out=whole)
    elif operation == "reduce_scatter_tensor":
        refused(call, f"[(]4 times {n}[)], got {4 * n + 1}", calls.zeros(4), whole=calls.zeros(4 * n + 1))
        whole = calls.zeros(4 * n)
        refused(call, "overlap", whole[1:5], whole=whole)
    elif operation in ("all_gather", "reduce_scatter"):
        refused(call, "invalid tensor size", calls.zeros(5))
    else:
        t = calls.zeros(2 * n)
        refused(call, "same number of elements", t, out=calls.zeros(4 * n))
        refused(call, "divisible by world_size", calls.zeros(2 * n + 1), out=calls.zeros(2 * n + 1))
        refused(call, "the input has 1 splits", t, out=t.clone(), input_splits=[2 * n])
        refused(call, "the output has 1 splits", t, out=t.clone(), output_splits=[2 * n])
        refused(call, f"must add up to {2 * n}", t, out=t.clone(), input_splits=[3] * n)
        negative = [-1, *[0] * (n - 2), 2 * n + 1]
        refused(call, "none may be negative", t, out=t.clone(), input_splits=negative)
        refused(call, "overlap", t, out=t)


def one_rank_errs(rank, n, device, *, mistake, operation):
    if rank == 0:  # the root, where there is one
        globals()[mistake](Calls(n, device), operation)
    assert_works(device)


def lists_of_tensors(rank, n, device):
    """The backend's own lists, around the tensors."""
    pg, t = backend(device), torch.zeros(4, device=device)
    for call in (pg.broadcast, pg.allreduce):
        refused(call, "non-empty tensor list", [])
    refused(pg.reduce, "got one of 0", [])
    refused(pg.reduce, "got one of 2", [t, t.clone()])
    for call in (pg.broadcast, pg.allreduce):
        refused(call, "invalid tensor type at index 1", [t, t.int()])
        refused(call, "invalid tensor size at index 1", [t, t[:3]])
    refused(pg.allgather, "invalid tensor size at index 1", [[t] * 2 * n] * 2, [t, t[:3]])
    refused(pg.allgather, "2 inputs, 1 outputs", [[t] * 2 * n], [t, t])
    refused(pg.allgather, f"expected length {2 * n}, got {n}", [[t] * n] * 2, [t, t])
    for call in (pg.broadcast, pg.allreduce):
        refused(call, "overlap", [t[:3], t[1:]])
    refused(pg.allgather, "overlap", [[t] * n], [t.clone()])
    refused(pg.allgather_coalesced, "expected length 1, got 0", [[]] * n, [t])
    opts = dist.BroadcastOptions()
    opts.rootTensor = 2
    refused(pg.broadcast, "invalid root tensor: 2", [t, t.clone()], opts)
    opts = dist.AllreduceOptions()
    opts.reduceOp = dist.ReduceOp.AVG
    refused(pg.allreduce, "AVG takes one tensor of each rank", [t, t.clone()], opts)
    refused(pg.allgather, "1 inputs, 0 outputs", [], [t])
    refused(pg.gather, "got one of 0", [[t] * n], [])
    if rank != 0:
        refused(pg.gather, "requires empty output on non-root", [[t.clone() for _ in range(n)]], [t])
        refused(pg.scatter, "requires empty input on non-root", [t], [[t.clone() for _ in range(n)]])
    refused(pg.alltoall, "input tensor list size 0", [], [])
    assert_works(device)


def shared(n, device):
    """(whose text, the text, a call that raises it). What follows the text is ours."""
    calls = Calls(n, device)
    pg, zeros, many = calls.pg, calls.zeros, calls.tensors
    t, ints = zeros(4), zeros(4, dtype=torch.int32)
    csr = torch.zeros(4, 4).to_sparse_csr()
    gather, scatter = dist.GatherOptions(), dist.ScatterOptions()
    gather.rootRank = scatter.rootRank = dist.get_rank()
    single = calls.all_to_all_single
    bitwise = calls.options(dist.AllreduceOptions, reduceOp=dist.ReduceOp.BXOR)
    lists = f"list containing a list with {n} tensors."
    alltoall, to_all = dist.AllToAllOptions(), f"does not match world size {n}"
    odd, process_group = zeros(4 * n + 1), "same as size of the process group."
    other = [t.clone(), odd, t.clone()]
    coalesced = pg.allgather_coalesced
    c10d = [
        ("requires non-empty tensor list", lambda: pg.broadcast([])),
        ("requires non-empty tensor list", lambda: pg.allreduce([])),
        ("requires non-empty tensor list", lambda: pg.allreduce_coalesced([])),
        ("requires a single-element tensor list", lambda: pg.reduce([t, t.clone()])),
        ("requires a single-element input tensor list", lambda: pg.gather([many()], [], gather)),
        ("requires a single-element output tensor list", lambda: pg.scatter([], [many()], scatter)),
        ("invalid root rank: -1", lambda: calls.broadcast(t, rootRank=-1)),
        ("invalid root tensor: 1", lambda: calls.broadcast(t, rootTensor=1)),
        ("invalid tensor type at index 1 (expected ", lambda: pg.allreduce([t, ints])),
        ("invalid tensor size at index 1 (expected [4], got [5])", lambda: pg.allreduce([t, zeros(5)])),
        ("invalid tensor size at index 1 (expected ", lambda: pg.gather([other], [t], gather)),
        ("only supports dense tensors", lambda: pg.broadcast([csr])),
        (
            "Tensor's dim 0 does not divide equally across group size",
            lambda: single(odd, odd.clone(), output_splits=[4 * n + 1] + [0] * (n - 1)),
        ),
        ("Number of tensor splits not equal to group size", lambda: single(t, t.clone(), input_splits=[4])),
        ("Split sizes doesn't match total dim 0 size", lambda: single(t, t.clone(), input_splits=[4] * n)),
    ]  # fmt: skip
    of_lists = [
        ("requires non-empty input tensor list", lambda: pg.allgather([], [])),
        ("requires non-empty input tensor list", lambda: pg.allgather_coalesced([], [])),
        (f"requires a single-element output {lists}", lambda: pg.gather([], [t], gather)),
        (f"requires a single-element input {lists}", lambda: pg.scatter([t], [], scatter)),
        (
            f"Incorrect output list size 1. Output list size should be {n}, {process_group}",
            lambda: pg.gather([[zeros(4)]], [t], gather),
        ),
        (
            f"Incorrect input list size 1. Input list size should be {n}, {process_group}",
            lambda: pg.scatter([t], [[zeros(4)]], scatter),
        ),
        ("requires input/output tensor lists to have the same length", lambda: pg.allgather([], [t])),
        (f"input tensor list size 1 {to_all}", lambda: pg.alltoall(many(), [t], alltoall)),
        (f"output tensor list size 1 {to_all}", lambda: pg.alltoall([t], many(), alltoall)),
        ("output lists should be equal to world size", lambda: pg.allgather_coalesced([[zeros(4)]], [t])),
        ("invalid output size: (expected length 1, got 3)", lambda: coalesced([many()] * n, [t])),
    ]  # fmt: skip
    gloo = [
        ("invalid output tensor list at index 0 (expected length ", lambda: pg.allgather([[zeros(4)]], [t])),
        ("Cannot use ReduceOp.BXOR with non-integral dtype", lambda: pg.allreduce([t], bitwise)),
        ("unsupported device type ", lambda: pg.allreduce([torch.zeros(4, device="meta")])),
        ("takes a single tensor", lambda: pg.send([t, t.clone()], 0, 0)),
        ("Tag must be nonnegative", lambda: pg.send([t], 0, -1)),
    ]
    nccl = [
        (
            "output tensor size must be equal to world_size times input tensor size",
            lambda: calls.all_gather_into_tensor(t, zeros(4 * n + 1)),
        ),
        (
            "output tensor must have the same type as input tensor",
            lambda: calls.all_gather_into_tensor(t, zeros(4 * n, dtype=torch.int32)),
        ),
        (
            "input tensor must be the same size as output size times world size",
            lambda: calls.reduce_scatter_tensor(t, zeros(4 * n + 1)),
        ),
        (
            "input tensor must be the same type as the output tensor.",
            lambda: calls.reduce_scatter_tensor(t, zeros(4 * n, dtype=torch.int32)),
        ),
    ]
    (c10d if PYTORCH >= (2, 13) else gloo).extend(of_lists)  # up to 2.12 Gloo alone has these texts
    return [(who, *row) for who, rows in {"c10d": c10d, "gloo": gloo, "nccl": nccl}.items() for row in rows]


def texts_begin_as_elsewhere(rank, n, device):
    header = Path(torch.__file__).with_name("include") / "torch/csrc/distributed/c10d/Utils.hpp"
    written = " ".join(re.findall(r'"([^"]*)"', header.read_text()))
    for who, text, call in shared(n, device):
        with pytest.raises(ValueError) as raised:
            call()
        name, _, said = str(raised.value).partition(": ")
        assert said.startswith(text), f"{name}: {said}"
        fixed = re.split(r"-?[0-9]+|[(]expected.*", text)[0]
        assert who != "c10d" or fixed.strip() in written, fixed
    assert_works(device)


@pytest.mark.parametrize("device", DEVICES)
def test_texts_that_pytorch_gloo_or_nccl_have_begin_as_theirs(pool, device):
    """Word for word, because vendors' suites and programs look for them."""
    pool.run(texts_begin_as_elsewhere, 3, device)


def python_level(rank, n, device):
    """What torch.distributed's own functions find out."""
    t = torch.zeros(4, device=device)
    for call in (dist.broadcast, dist.reduce, dist.scatter, dist.gather, dist.send):
        with pytest.raises((ValueError, RuntimeError)):
            call(t, **{"src" if call in (dist.broadcast, dist.scatter) else "dst": n})
    with pytest.raises(TypeError):
        dist.all_reduce([t])
    with pytest.raises(ValueError):
        dist.all_reduce(torch.zeros(4, dtype=torch.complex64, device=device), dist.ReduceOp.MAX)
    assert_works(device)


ROWS = [("bad_tensor", operation) for operation in ALL]
ROWS += [("bad_root", operation) for operation in ("broadcast", "reduce", "gather", "scatter")]
ROWS += [("bad_reduction", operation) for operation in REDUCING]
ROWS += [("bad_list", operation) for operation in LISTS]
SIZED = (
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_gather",
    "reduce_scatter",
    "all_to_all_single",
)
ROWS += [("bad_size", operation) for operation in SIZED]

if len(DEVICES) > 1:
    FLAT = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
    ROWS += [("mixed_devices", operation) for operation in FLAT]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("mistake", "operation"), ROWS)
def test_a_mistake_raises_and_the_group_works_on(pool, mistake, operation, device):
    pool.run(one_rank_errs, 3, device, mistake=mistake, operation=operation)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("body", [lists_of_tensors, python_level])
def test_mistakes_around_the_tensors_raise_and_the_group_works_on(pool, body, device):
    pool.run(body, 3, device)


def overlapping_lists(rank, n, device):
    """Inputs and outputs share memory nowhere but where an output is the rank's own part of the input."""
    pg, other = backend(device), (rank + 1) % n
    for count in (2, 50_000):
        t = [torch.full((count,), float(rank), device=device) for _ in range(n)]
        calls = {
            "all_gather": lambda t=t: pg.allgather([t], [t[other]]),
            "reduce_scatter": lambda t=t: pg.reduce_scatter([t[other]], [t], dist.ReduceScatterOptions()),
            "all_to_all": lambda t=t: pg.alltoall(t, t),
            "all_to_all in another order": lambda t=t: pg.alltoall(t[::-1], t),
        }
        for name, call in calls.items():
            with pytest.raises(ValueError, match="input and output overlap"):
                call()
            assert all((x == rank).all() for x in t), name
        pg.allgather([t], [t[rank]]).wait()
        assert [x[-1].item() for x in t] == list(range(n))
        pg.reduce_scatter([t[rank]], [t], dist.ReduceScatterOptions()).wait()
        assert (t[rank] == n * rank).all()
        halves = torch.arange(4.0, device=device)
        with pytest.raises(ValueError, match="input and output overlap"):
            pg.allgather([[halves[i : i + 1] for i in range(n)]], [halves[other : other + 1]])
    assert_works(device)


@pytest.mark.parametrize("device", DEVICES)
def test_lists_that_overlap_are_refused(pool, device):
    pool.run(overlapping_lists, 3, device)


def both_kinds_of_error(rank, n, device):
    """Programs written for NCCL catch ValueError, those for Gloo RuntimeError."""
    t, expanded = torch.zeros(4, device=device), torch.zeros(1, device=device).expand(4)
    calls = [
        lambda: dist.all_reduce(expanded),
        lambda: dist.all_reduce(expanded, async_op=True),
        lambda: dist.all_reduce_coalesced([t, t]),
        lambda: dist.recv(expanded, 1 - rank),
        lambda: backend(device).allreduce([]),
        lambda: backend(device).send([t], n, 0),
        lambda: torch.ops._c10d_functional.all_reduce_(expanded, "sum", dist.group.WORLD.group_name),
    ]
    if PYTORCH >= (2, 15):  # there torch.ops makes its own ValueError
        with pytest.raises(ValueError, match="elements of an output share memory"):
            calls.pop()()
    for call in calls:
        for kind in (ValueError, RuntimeError, torch_occl.ArgumentError):
            with pytest.raises(kind) as caught:
                call()
            assert type(caught.value) is torch_occl.ArgumentError
    assert_works(device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_wrong_argument_is_a_value_error_and_a_runtime_error(pool, device):
    pool.run(both_kinds_of_error, 2, device)


def complex_factor(rank, n, device):
    opts = dist.AllreduceOptions()
    opts.reduceOp = dist._make_nccl_premul_sum(torch.tensor(1j))
    with pytest.raises(ValueError, match=r"the factor of ReduceOp\.PREMUL_SUM must be real"):
        backend(device).allreduce([torch.ones(2, dtype=torch.complex64, device=device)], opts)
    assert_works(device)


def test_a_complex_factor_is_refused(pool):
    pool.run(complex_factor, 2)
