"""Collectives over tensors on several devices of one process."""

from __future__ import annotations

import threading
import time

import numpy
import pytest
import torch
import torch.distributed as dist

from occl import _C
from tests.support.references import REDUCIBLE, assert_same_bits, contribution, ops_for, reduced
from tests.support.threads import number_restored
from torch_occl import replicas

FORMS = [replicas.all_reduce, replicas.all_reduce_p2p]
NAMES = {"sum": "SUM", "mean": "AVG"}


def spread(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Each tensor on a device of its own."""
    return [tensor.to(f"dev:{i}") for i, tensor in enumerate(tensors)]


def assert_everywhere(tensors: list[torch.Tensor], expected: torch.Tensor, *where) -> None:
    for i, tensor in enumerate(tensors):
        assert tensor.device == torch.device("dev", i)
        assert_same_bits(tensor.cpu(), expected, i, *where)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", REDUCIBLE)
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_reductions_have_the_bits_of_the_definition(form, dtype, n):
    for op in ("sum", "mean"):
        if NAMES[op] not in ops_for(dtype):
            continue
        for count in (0, 1, 17, 33000, 70001):  # below and beyond one range of a thread, one piece of staging
            inputs = [contribution(dtype, i, count) for i in range(n)]
            tensors = spread(inputs)
            assert form(tensors, op) is not tensors
            assert_everywhere(tensors, reduced(inputs, NAMES[op]), form.__name__, op, count)


def bits_in_a_group(rank, world_size, device, *, dtype, count):
    t = contribution(dtype, rank, count).to(device)
    dist.all_reduce(t)
    return t.cpu().view(torch.uint8).numpy()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replicas_in_one_process_have_the_bits_of_ranks(pool, dtype):
    count = 50001
    expected = pool.run(bits_in_a_group, 3, "dev", dtype=dtype, count=count)[0]
    for form in FORMS:
        tensors = spread([contribution(dtype, i, count) for i in range(3)])
        form(tensors)
        for tensor in tensors:
            assert numpy.array_equal(tensor.cpu().view(torch.uint8).numpy(), expected)


def test_the_number_of_threads_does_not_matter():
    inputs = [contribution("float16", i, 500_003) for i in range(3)]
    results = []
    with number_restored():
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(replicas.all_reduce_p2p(spread(inputs))[0].cpu())
    for result in results[1:]:
        assert_same_bits(result, results[0])


@pytest.mark.filterwarnings("ignore:all_reduce_p2p")
@pytest.mark.parametrize("form", FORMS)
def test_layouts_of_every_kind(form):
    base = [torch.arange(24.0).view(2, 3, 4) * (i + 1) for i in range(2)]
    expected = base[0] + base[1]
    for change in (
        lambda t: t,
        lambda t: t.transpose(0, 2).contiguous().transpose(0, 2),  # dense, in another order
        lambda t: torch.stack([t, t], dim=-1)[..., 0],  # with gaps
        lambda t: t.to(torch.complex64).conj(),  # lazily conjugated
    ):
        tensors = [change(t.to(f"dev:{i}")) for i, t in enumerate(base)]
        strides = [t.stride() for t in tensors]
        form(tensors)
        assert [t.stride() for t in tensors] == strides
        for t in tensors:
            assert torch.equal(t.cpu(), expected.to(t.dtype))
    # Alike in shape only.
    tensors = [base[0].to("dev:0"), change_order(base[1]).to("dev:1")]
    form(tensors)
    for t in tensors:
        assert torch.equal(t.cpu(), expected)
    scalars = spread([torch.tensor(1.0), torch.tensor(2.0)])
    form(scalars)
    assert [t.item() for t in scalars] == [3.0, 3.0]


def change_order(t: torch.Tensor) -> torch.Tensor:
    return t.transpose(0, 1).contiguous().transpose(0, 1)


def test_memory_out_of_reach_goes_through_the_host(monkeypatch):
    """No other kind of device is at hand: what the kernels may touch is watched instead."""
    from torch_occl.replicas import _comm

    tensors = spread([torch.full((100_000,), 1.0), torch.full((100_000,), 2.0)])
    own = {t.data_ptr() for t in tensors}
    monkeypatch.setattr(_comm, "in_host_memory", lambda tensor: tensor.is_cpu)
    touched = []

    def watched(outputs, inputs, *rest):
        touched.extend(t.data_ptr() for lists in (*outputs, *inputs) for t in lists)
        return _C_reduce(outputs, inputs, *rest)

    _C_reduce = _C._replicas_reduce
    monkeypatch.setattr(_comm._C, "_replicas_reduce", watched)
    with pytest.warns(UserWarning, match="the host cannot reach the memory of dev:0"):
        replicas.all_reduce_p2p(tensors, "mean")
    assert touched and not own.intersection(touched)
    assert all(torch.equal(t.cpu(), torch.full((100_000,), 1.5)) for t in tensors)


def test_cpu_tensors_and_devices_mix():
    tensors = [torch.ones(5), torch.ones(5, device="dev:3")]
    replicas.all_reduce_p2p(tensors)
    assert [t.tolist() for t in tensors] == [[2.0] * 5] * 2
    assert [t.device.type for t in tensors] == ["cpu", "dev"]


@pytest.mark.parametrize("form", FORMS)
def test_overlapped_the_host_goes_on_and_the_order_holds(form):
    gate, side = threading.Event(), torch.dev.Stream("dev:1")
    tensors = spread([torch.ones(1000), torch.ones(1000)])

    def write_late():
        gate.wait()
        tensors[1].fill_(5)

    with torch.dev.stream(side):
        _C._device_enqueue(side, write_late)
        pending = form(tensors, "sum", overlap=True)
        for _ in range(50):  # time enough for a reduction that does not wait for what is queued
            assert not pending.is_completed()
            time.sleep(0.001)
        gate.set()
        pending.wait()
        assert tensors[1].sum().item() == 6000.0  # computed on `side`, which waits
    assert pending.wait()[0].sum().item() == 6000.0
    assert pending.is_completed()


@pytest.mark.parametrize("form", FORMS)
def test_waiting_on_the_default_stream_stops_the_host(form):
    side = torch.dev.Stream("dev:1")
    tensors = spread([torch.ones(1000), torch.ones(1000)])
    with torch.dev.stream(side):
        _C._device_enqueue(side, lambda: time.sleep(0.05))
        pending = form(tensors, "sum", overlap=True)
    assert pending.wait()[0].sum().item() == 2000.0


@pytest.mark.parametrize("form", FORMS)
def test_what_the_current_stream_still_writes_comes_first(form):
    side = torch.dev.Stream("dev:1")
    tensors = spread([torch.ones(1000), torch.ones(1000)])

    def write_late():
        time.sleep(0.05)
        tensors[1].fill_(5)

    with torch.dev.stream(side):
        _C._device_enqueue(side, write_late)
        form(tensors)
    assert [t.sum().item() for t in tensors] == [6000.0] * 2


def test_autograd_notices_that_a_saved_tensor_has_changed():
    weight = torch.ones(3, device="dev:0", requires_grad=True)
    kept = weight * 2
    result = kept * kept
    replicas.all_reduce_p2p([kept.detach(), torch.ones(3, device="dev:1")])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_inference_tensors():
    with torch.inference_mode():
        tensors = [torch.ones(3, device=f"dev:{i}") for i in range(2)]
        assert replicas.all_reduce_p2p(tensors)[0].tolist() == [2.0] * 3
        assert replicas.all_reduce(tensors)[1].tolist() == [4.0] * 3


@pytest.mark.parametrize("root", [0, 2])
def test_broadcast(root):
    tensors = spread([torch.full((2, 3), float(i)) for i in range(3)])
    pointers = [t.data_ptr() for t in tensors]
    assert replicas.broadcast(tensors, root) == tensors
    assert [t.data_ptr() for t in tensors] == pointers
    assert_everywhere(tensors, torch.full((2, 3), float(root)))


def test_broadcast_into_parameters():
    parameters = [torch.nn.Parameter(torch.full((2,), float(i), device=f"dev:{i}")) for i in range(2)]
    replicas.broadcast(parameters, 1)
    assert parameters[0].tolist() == [1.0, 1.0] and parameters[0].is_leaf


@pytest.mark.parametrize("rows", [3, 7, 8])
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_scatter_cuts_like_numpy_and_gather_joins(rows, chunks):
    whole = torch.arange(rows * 2.0).view(rows, 2)
    parts = replicas.scatter(whole, chunks)
    expected = numpy.array_split(whole.numpy(), chunks)
    assert [part.device for part in parts] == [torch.device("dev", i) for i in range(chunks)]
    assert all(numpy.array_equal(part.cpu().numpy(), e) for part, e in zip(parts, expected, strict=True))
    joined = replicas.gather(parts)
    assert joined.device == torch.device("dev:0") and torch.equal(joined.cpu(), whole)
    assert replicas.gather(parts, "cpu").is_cpu and replicas.gather(parts, 2).device.index == 2


def test_scatter_to_chosen_devices():
    parts = replicas.scatter(torch.arange(4), 2, ["dev:5", 1])
    assert [part.device.index for part in parts] == [5, 1]
    with torch.dev.device(3):
        parts = replicas.scatter(torch.arange(4), 2, [None, 1])
    assert [part.device for part in parts] == [torch.device("dev:3"), torch.device("dev:1")]


def test_gradients_flow_through_scatter_and_gather():
    x = torch.arange(5.0, requires_grad=True)
    replicas.gather([part * (i + 1) for i, part in enumerate(replicas.scatter(x, 2))]).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0, 2.0, 2.0]


# ---- bad input ------------------------------------------------------------------------------------------


def ones(*shape, device="dev:0", **options) -> torch.Tensor:
    return torch.ones(*shape, device=device, **options)


BAD_LISTS = {
    "empty": ([], ValueError, "the list of tensors is empty"),
    "shapes": (
        [ones(2), ones(3, device="dev:1")],
        ValueError,
        r"tensor 1 has shape \[3\], and tensor 0 \[2\]",
    ),
    "dtypes": (
        [ones(2), ones(2, device="dev:1", dtype=torch.float64)],
        ValueError,
        "tensor 1 is torch.float64, and tensor 0 torch.float32",
    ),
    "no tensor": ([ones(2), 3.0], TypeError, "element 1 is not a tensor but float"),
    "one tensor": (torch.ones(2, 2), TypeError, "expected a list of tensors"),
    "sparse": ([ones(2).to_sparse(), ones(2)], ValueError, "tensor 0 is torch.sparse_coo"),
}


@pytest.mark.parametrize("name", BAD_LISTS)
@pytest.mark.parametrize("call", [*FORMS, replicas.broadcast])
def test_bad_lists_are_refused_and_stay_as_they_were(call, name):
    tensors, error, text = BAD_LISTS[name]
    with pytest.raises(error, match=f"{call.__name__}: {text}"):
        call(tensors)
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            assert (tensor.to_dense() == 1).all()


@pytest.mark.parametrize("call", [*FORMS, replicas.broadcast])
def test_tensors_that_share_memory_are_refused(call):
    whole = torch.ones(10, device="dev:0")
    with pytest.raises(ValueError, match="tensors 0 and 2 share memory"):
        call([whole[:6], torch.ones(6, device="dev:1"), whole[4:]])
    call([whole[:5], whole[5:]])  # beside one another is fine
    with pytest.raises(ValueError, match="tensors 0 and 1 share memory"):
        call([whole[:8:2], whole[2::2]])


@pytest.mark.filterwarnings("ignore:all_reduce_p2p")
@pytest.mark.parametrize("form", FORMS)
def test_tensors_that_take_turns_in_memory_are_apart(form):
    whole = torch.arange(8.0, device="dev:0")
    form([whole[::2], whole[1::2]])
    assert whole.tolist() == [1, 1, 5, 5, 9, 9, 13, 13]


@pytest.mark.parametrize("call", [*FORMS, replicas.broadcast])
def test_expanded_tensors_are_refused_before_anything_is_written(call):
    first, expanded = ones(3) * 2, ones(1, device="dev:1").expand(3)
    with pytest.raises(ValueError, match="elements of tensor 2 share memory"):
        call([first, ones(3), expanded])
    assert first.tolist() == [2.0] * 3 and expanded.tolist() == [1.0] * 3


def test_an_expanded_tensor_can_be_broadcast():
    assert replicas.broadcast([ones(1).expand(3), ones(3, device="dev:1") * 2])[1].tolist() == [1.0] * 3


@pytest.mark.parametrize("form", FORMS)
def test_unknown_operations_and_impossible_types_are_refused(form):
    with pytest.raises(ValueError, match=r"op must be one of sum, mean, not 'max'"):
        form([ones(2)], "max")
    flags = [ones(2, dtype=torch.bool), ones(2, device="dev:1", dtype=torch.bool)]
    for overlap in (False, True):
        with pytest.raises(ValueError, match=r"ReduceOp.AVG has no meaning for bool"):
            form(flags, "mean", overlap=overlap)
    with pytest.raises(ValueError, match="overlap needs a stream, and no tensor is on dev"):
        form([torch.ones(2), torch.ones(2)], overlap=True)


def test_a_root_that_does_not_exist():
    for root in (-1, 2):
        with pytest.raises(ValueError, match=f"there is no root {root} among 2"):
            replicas.broadcast([ones(2), ones(2, device="dev:1")], root)


def test_bad_scatters_and_gathers():
    with pytest.raises(ValueError, match="the tensor has 2 samples, which are too few for 3 chunks"):
        replicas.scatter(torch.ones(2), 3)
    with pytest.raises(ValueError, match="must be at least 1, not 0"):
        replicas.scatter(torch.ones(2), 0)
    with pytest.raises(ValueError, match="no dimensions"):
        replicas.scatter(torch.tensor(1.0), 1)
    with pytest.raises(ValueError, match="2 chunks, but 1 devices"):
        replicas.scatter(torch.ones(2), 2, ["dev:0"])
    with pytest.raises(ValueError, match="the list of tensors is empty"):
        replicas.gather([])
    with pytest.raises(ValueError, match=r"tensor 1 is torch\.int64"):
        replicas.gather([torch.ones(2), torch.ones(2, dtype=torch.int64)])
    with pytest.raises(ValueError, match=r"tensor 1 has shape \[2, 2\], and tensor 0 \[2\]"):
        replicas.gather([torch.ones(2), torch.ones(2, 2)])
    with pytest.raises(ValueError, match="tensor 0 has no dimensions"):
        replicas.gather([torch.tensor(1.0)])
