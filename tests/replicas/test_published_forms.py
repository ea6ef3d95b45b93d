"""The names and forms of the published interface (docs/replicas.md) do what today's do."""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from torch_occl import replicas
from torch_occl.replicas import DeviceManager, ReplicaError, _comm, data_parallel_step

from .test_step import Replicated, batches, boom, loss_of, network, same


def ones(index: int) -> torch.Tensor:
    return torch.full((2,), float(index), device=f"dev:{index}")


def groups_of(n: int) -> list[list[nn.Parameter]]:
    """For each of n replicas two parameters whose values are the number of the replica."""
    return [[nn.Parameter(ones(i)), nn.Parameter(ones(i) * 10)] for i in range(n)]


def values(groups) -> list[list[float]]:
    return [[p[0].item() for p in group] for group in groups]


# ---- a whole program --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [12, 13])
def test_a_program_in_the_published_form_trains_as_one_in_todays_form(size):
    """Queues, parameters without modules, NumPy arrays, loss and tape: each step gives the same bits."""
    model = network()
    manager = DeviceManager([0, 1, 2])
    queues = manager.get_queues()
    param_replicas = replicas.prepare_replicas(model.parameters(), queues)
    optimizers = [torch.optim.AdamW(params, lr=0.01) for params in param_replicas]

    def forward_fn(queue, xb, yb, params):
        assert xb.device == yb.device == queue.device == params[0].device
        hidden = nn.functional.linear(xb, *params[:2]).tanh()
        return nn.functional.mse_loss(nn.functional.linear(hidden, *params[2:]), yb), None

    today = Replicated(3)
    for batch in batches(4, size):
        arrays = (batch[0].numpy(), batch[1]["y"].numpy())
        result = data_parallel_step(
            forward_fn=forward_fn, params_replicas=param_replicas, optimizers=optimizers, batch=arrays
        )
        expected = today.step(batch)
        assert result.loss == expected.loss and result.sizes == expected.sizes
        for params, others in zip(param_replicas, today.parameters, strict=True):
            assert all(torch.equal(p, q) for p, q in zip(params, others, strict=True))
    manager.close()


def test_the_program_of_the_page_runs_and_the_page_names_everything():
    page = (Path(__file__).parents[2] / "docs" / "replicas.md").read_text()
    program = page.split("```python\n")[1].split("```")[0]
    x, y = torch.randn(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
    names = {"model": nn.Linear(3, 2), "torch": torch, "F": nn.functional}
    exec(program, names | {"batches": [(x, y), (x.numpy(), y.numpy())]}, names)
    assert names["result"].sizes == [3, 3] and names["result"].missing == []
    names["manager"].close()
    for name in (*replicas.__all__, *(n for n in vars(DeviceManager) if not n.startswith("_"))):
        assert re.search(rf"`[^`]*\b{name}\b[^`]*`", page), name


# ---- names ------------------------------------------------------------------------------------------------


def test_the_manager_has_queues_and_a_number_of_devices():
    with DeviceManager([2, 0]) as manager:
        queues = manager.get_queues()
        assert type(queues) is list and queues == list(manager.streams)
        assert manager.num_devices() == len(manager) == 2
        assert manager.subset([0]).get_queues() == queues[1:]
        queues.clear()
        assert len(manager.get_queues()) == 2  # the caller's list, not the manager's


def test_other_names_of_arguments_do_the_same():
    batch = torch.arange(5)
    expected = [shard.tolist() for shard in replicas.shard_batch(batch, 2)]
    for shards in (
        replicas.shard_batch(batch, num_shards=2),
        replicas.shard_batch(x=batch, num_shards=2),
        replicas.shard_batch(num_shards=2, batch=batch),
        replicas.shard_batch(n=2, x=batch),
    ):
        assert [shard.tolist() for shard in shards] == expected
    for name in ("tensors", "tensor_list", "tensor"):
        tensors = [ones(0), ones(1), ones(2)]
        assert replicas.broadcast(**{name: tensors}, root=1) == tensors
        assert [t.tolist() for t in tensors] == [[1.0, 1.0]] * 3
    params = [nn.Parameter(torch.arange(3.0)), nn.Parameter(torch.ones(2), requires_grad=False)]
    for made in (
        replicas.replicate_params(params, queues=[0, 1]),
        replicas.replicate_params(queues=["dev:0", "dev:1"], params=params),
        replicas.prepare_replicas(params, queues=[0, 1]),
        replicas.prepare_replicas(params=params, devices=[0, 1]),
    ):
        for i, copies in enumerate(made):
            assert [p.device.index for p in copies] == [i, i]
            assert [p.requires_grad for p in copies] == [True, False]
            assert all(torch.equal(p.cpu(), q) for p, q in zip(copies, params, strict=True))
    assert [type(m) for m in replicas.prepare_replicas(module=nn.Tanh(), queues=[0])] == [nn.Tanh]


TWICE = {
    "shard_batch": [
        ("num_shards is another name of n", lambda: replicas.shard_batch(torch.ones(2), n=2, num_shards=2)),
        ("num_shards is another name of n", lambda: replicas.shard_batch(torch.ones(2), 2, num_shards=2)),
        ("x is another name of batch", lambda: replicas.shard_batch(torch.ones(2), 2, x=torch.ones(2))),
    ],
    "broadcast": [
        (
            "tensor_list is another name of tensors",
            lambda: replicas.broadcast([ones(0)], tensor_list=[ones(1)]),
        ),
        (
            "(tensor|tensor_list) is another name of tensors",
            lambda: replicas.broadcast(tensor=[ones(0)], tensor_list=[ones(1)]),
        ),
    ],
    "replicate_params": [
        ("queues is another name of devices", lambda: replicas.replicate_params([ones(0)], [0], queues=[1])),
        (
            "queues is another name of devices",
            lambda: replicas.replicate_params([ones(0)], devices=[0], queues=[0]),
        ),
    ],
    "prepare_replicas": [
        (
            "params is another name of module",
            lambda: replicas.prepare_replicas(nn.Tanh(), [0], params=[ones(0)]),
        ),
        ("queues is another name of devices", lambda: replicas.prepare_replicas(nn.Tanh(), [0], queues=[0])),
    ],
    "data_parallel_step": [
        (
            "params_replicas is another name of param_replicas",
            lambda: data_parallel_step(boom, groups_of(1), [], torch.ones(1), params_replicas=groups_of(1)),
        ),
    ],
}


@pytest.mark.parametrize("call", TWICE)
def test_an_argument_under_two_names_is_refused(call):
    for text, mistake in TWICE[call]:
        with pytest.raises(TypeError, match=f"^{call}: {text}, which is given too; leave out one"):
            mistake()


def test_missing_and_unknown_arguments_are_told_by_todays_names():
    with pytest.raises(TypeError, match=r"shard_batch\(\) missing 1 required positional argument: 'n'"):
        replicas.shard_batch(x=torch.ones(2))
    with pytest.raises(TypeError, match=r"shard_batch\(\) got an unexpected keyword argument 'shards'"):
        replicas.shard_batch(torch.ones(2), shards=2)
    assert list(inspect.signature(replicas.shard_batch).parameters) == ["batch", "n"]


# ---- queues -----------------------------------------------------------------------------------------------


def test_queues_stand_for_their_devices_wherever_devices_are_taken():
    queues = [torch.dev.Stream(2), torch.dev.Stream("dev:1")]
    mixed = [queues[0], "dev:1"]
    for where in (queues, tuple(queues), mixed, iter(queues)):
        copies = replicas.replicate_params([torch.ones(2)], where)
        assert [p.device.index for (p,) in copies] == [2, 1]
    assert [m.weight.device.index for m in replicas.prepare_replicas(nn.Linear(1, 1), queues)] == [2, 1]
    parts = replicas.scatter(torch.arange(4), 2, queues)
    assert [part.device.index for part in parts] == [2, 1]
    assert replicas.gather(parts, queues[1]).device == torch.device("dev:1")


@pytest.mark.parametrize("call", [replicas.replicate_params, replicas.prepare_replicas])
def test_what_is_no_list_of_queues_is_refused(call):
    params = [torch.ones(2)]
    for where, kind in ((torch.dev.Stream(1), "Stream"), ("dev:1", "str"), (1, "int"), (None, "NoneType")):
        with pytest.raises(
            TypeError, match=f"^{call.__name__}: expected a list of devices or queues, got {kind}"
        ):
            call(params, where)
    with (
        DeviceManager([0]) as manager,
        pytest.raises(TypeError, match="list of devices or queues, got Device"),
    ):
        call(params, manager)
    with pytest.raises(
        TypeError, match=f"^{call.__name__}: device 1 is neither a device nor a queue but float"
    ):
        call(params, [0, 1.0])
    with pytest.raises(ValueError, match=f"^{call.__name__}: the list of devices is empty"):
        call(params, queues=[])


def test_replicas_of_what_is_neither_module_nor_parameters_are_refused():
    with pytest.raises(TypeError, match=r"^prepare_replicas: expected a list of parameters .* got Tensor"):
        replicas.prepare_replicas(torch.ones(2), [0])
    with pytest.raises(TypeError, match=r"^prepare_replicas: expected a list of parameters .* got int"):
        replicas.prepare_replicas(3, [0])
    with pytest.raises(TypeError, match=r"^prepare_replicas: parameter 0 is not a tensor but str"):
        replicas.prepare_replicas(nn.Linear(1, 1).state_dict(), [0])
    with pytest.raises(TypeError, match=r"^prepare_replicas: parameter 0 is not a tensor but Linear"):
        replicas.prepare_replicas([nn.Linear(1, 1)], [0])
    with pytest.raises(ValueError, match=r"^prepare_replicas: the replicas have no parameters"):
        replicas.prepare_replicas([], [0])


# ---- broadcast_params -------------------------------------------------------------------------------------

BY_GROUP = {
    "without a source": lambda groups, root: replicas.broadcast_params(dst_param_groups=groups, root=root),
    "None as the source": lambda groups, root: replicas.broadcast_params(None, groups, root),
    "all by name": lambda groups, root: replicas.broadcast_params(
        src_params=None, dst_param_groups=groups, root=root
    ),
    "the source is a group": lambda groups, root: replicas.broadcast_params(groups[root], groups, root),
    "the source is a group, the root left out": lambda groups, root: replicas.broadcast_params(
        iter(groups[root]), groups
    ),
}


@pytest.mark.parametrize("form", BY_GROUP)
@pytest.mark.parametrize("root", [0, 1, 2])
def test_the_root_counts_the_groups_where_the_source_is_one_of_them(form, root):
    groups = groups_of(3)
    pointers = [[p.data_ptr() for p in group] for group in groups]
    assert BY_GROUP[form](groups, root) is None
    assert values(groups) == [[root, root * 10]] * 3
    assert [[p.data_ptr() for p in group] for group in groups] == pointers


def test_the_root_counts_the_source_first_where_it_is_no_group():
    source, *groups = groups_of(3)
    replicas.broadcast_params(src_params=source, dst_param_groups=groups)
    assert values([source, *groups]) == [[0, 0]] * 3
    source, *groups = groups_of(3)
    replicas.broadcast_params(source, groups, root=1)
    assert values([source, *groups]) == [[1, 10]] * 3
    # Equal tensors are not the same tensors, and a part of a group is not the group.
    source, groups = groups_of(2)[1], groups_of(2)
    replicas.broadcast_params(source, groups, root=1)
    assert values([source, *groups]) == [[0, 0]] * 3
    groups = groups_of(2)
    replicas.broadcast_params(groups[1][:1], groups)
    assert values(groups) == [[1, 0], [1, 10]]


def test_bad_sources_and_roots_are_refused_and_nothing_is_copied():
    groups, call = groups_of(3), replicas.broadcast_params
    with pytest.raises(
        ValueError, match=r"^broadcast_params: src_params is group 1 .* root is group 2; leave out"
    ):
        call(groups[1], groups, root=2)
    with pytest.raises(ValueError, match=r"^broadcast_params: there is no root 3 among 3"):
        call(dst_param_groups=groups, root=3)
    with pytest.raises(ValueError, match=r"^broadcast_params: there is no root -1 among 3"):
        call(None, groups, -1)
    with pytest.raises(TypeError, match=r"^broadcast_params: root is not an integer but str"):
        call(dst_param_groups=groups, root="1")
    with pytest.raises(TypeError, match=r"^broadcast_params: dst_param_groups is missing: for each replica"):
        call(groups[0])
    with pytest.raises(TypeError, match=r"^broadcast_params: dst_param_groups is missing"):
        call(root=1)
    with pytest.raises(
        ValueError, match=r"^broadcast_params: dst_param_groups is empty, and without src_params"
    ):
        call(dst_param_groups=[])
    with pytest.raises(TypeError, match=r"^broadcast_params: expected a list of parameters .* got Parameter"):
        call(dst_param_groups=groups[0])
    with pytest.raises(ValueError, match=r"^broadcast_params: replica 1 has no parameters"):
        call(dst_param_groups=[groups[0], []])
    with pytest.raises(ValueError, match=r"parameter 1: replica 0 has shape \[2\], and replica 1 \[3\]"):
        call(dst_param_groups=[groups[0], [groups[1][0], torch.ones(3)]], root=1)
    assert values(groups) == [[0, 0], [1, 10], [2, 20]]


# ---- batches of NumPy arrays ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(1, 8))
def test_arrays_are_cut_into_views_as_numpy_does(size):
    batch = numpy.arange(size * 2).reshape(size, 2)
    for n in range(1, size + 1):
        shards = replicas.shard_batch(batch, n)
        expected = numpy.array_split(batch, n)
        assert all(type(shard) is numpy.ndarray for shard in shards)
        assert [shard.tolist() for shard in shards] == [part.tolist() for part in expected]
        assert all(numpy.shares_memory(shard, batch) for shard in shards)


def test_arrays_and_tensors_mix_and_count_alike():
    first, second = replicas.shard_batch({"x": numpy.arange(3), "y": [torch.arange(3), "name"]}, 2)
    assert first["x"].tolist() == first["y"][0].tolist() == [0, 1] and second["x"].tolist() == [2]
    assert second["y"][1] == "name"
    with pytest.raises(ValueError, match=r"batch\[1\] has 2 samples, and batch\[0\] 3"):
        replicas.shard_batch((numpy.ones(3), torch.ones(2)), 2)
    with pytest.raises(ValueError, match="shard_batch: batch has no dimensions"):
        replicas.shard_batch(numpy.array(1.0), 1)
    with pytest.raises(ValueError, match="the batch has 2 samples, which are too few for 3 chunks"):
        replicas.shard_batch(numpy.ones(2), num_shards=3)
    with pytest.raises(TypeError, match="shard_batch: the number of chunks is not an integer but float"):
        replicas.shard_batch(numpy.ones(2), 2.0)
    assert len(replicas.shard_batch((numpy.ones(2), torch.ones(2)), numpy.int64(2))) == 2


ARRAYS = {
    "float32": numpy.arange(4, dtype=numpy.float32),
    "int64": numpy.arange(4),
    "bool": numpy.array([True, False, True, False]),
    "complex64": numpy.arange(4, dtype=numpy.complex64),
    "read only": numpy.frombuffer(bytes(range(4)), dtype=numpy.uint8),
    "one element in memory": numpy.broadcast_to(numpy.float64(3), 4),
    "foreign byte order": numpy.arange(4, dtype=">f4"),
    "backwards": numpy.arange(4)[::-1],
    "strided": numpy.arange(8)[::2],
}


@pytest.mark.parametrize("name", ARRAYS)
def test_the_arrays_of_a_shard_arrive_as_tensors_on_the_device(name):
    replicated, seen, array = Replicated(2), {}, ARRAYS[name]

    def forward(i, params, shard):
        seen[i] = shard
        return sum(p.sum() for p in params)

    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else PyTorch warns of an array once in a process, perhaps in another test
    try:
        assert warnings_of(lambda: replicated.step(array, forward)) == []
    finally:
        torch.set_warn_always(before)
    assert [seen[i].device.index for i in range(2)] == [0, 1]
    assert [seen[i].tolist() for i in range(2)] == [array[:2].tolist(), array[2:].tolist()]
    assert seen[0].dtype == torch.from_numpy(array.astype(array.dtype.newbyteorder("="))).dtype


def test_arrays_that_tensors_cannot_hold_stay_arrays():
    replicated, seen = Replicated(2), {}

    def forward(i, params, shard):
        seen[i] = shard[1]
        return sum(p.sum() for p in params)

    replicated.step((torch.ones(3), numpy.array(["a", "b", "c"])), forward)
    assert [type(seen[i]) for i in range(2)] == [numpy.ndarray] * 2
    assert seen[0].tolist() == ["a", "b"] and seen[1].tolist() == ["c"]


# ---- the forms of forward_fn ------------------------------------------------------------------------------


class Calls:
    """Callable objects and methods; as all functions here, they return their form and what they got."""

    def today(self, i, params, shard):
        return "today", i, params, shard

    def published(self, queue, x, y, params):
        return "published", queue, params, (x, y)

    def __call__(self, q, first, second, p):
        return self.published(q, first, second, p)


def with_shards(queue, *shards, params):
    return "published", queue, params, shards


def told_by_params(where, *shards, params, verbose=False):
    return "published", where, params, shards


def with_one_shard(where, shard, *, params):
    raise AssertionError("nothing may be computed")


def told_by_queue(queue, *rest):
    return "published", queue, rest[-1], rest[:-1]


def with_defaults(queue, x=None, y=None, params=None):
    return "published", queue, params, (x, y)


def longer(q, x, y, p, training=True):
    return "published", q, p, (x, y)


def single(queue, x, params):
    return "published", queue, params, (x,)


def anything(*arguments):
    return "today", *arguments


def renamed(number, _, data, scale=1.0):
    return "today", number, _, data


PAIR, TRIPLE = (torch.ones(4),) * 2, (torch.ones(4),) * 3
FUNCTIONS = {
    "lambda, today's": (lambda i, params, shard: ("today", i, params, shard), PAIR, "today"),
    "lambda, today's, one part": (
        lambda i, params, shard: ("today", i, params, shard),
        torch.ones(4),
        "today",
    ),
    "method, today's": (Calls().today, PAIR, "today"),
    "takes anything": (anything, PAIR, "today"),
    "other names": (renamed, PAIR, "today"),
    "lambda": (lambda q, x, y, p: ("published", q, p, (x, y)), PAIR, "published"),
    "method": (Calls().published, PAIR, "published"),
    "object": (Calls(), PAIR, "published"),
    "partial": (functools.partial(longer, training=False), PAIR, "published"),
    "*shards, three parts": (with_shards, TRIPLE, "published"),
    "*shards, a list": (with_shards, list(PAIR), "published"),
    "*shards, one part": (with_shards, torch.ones(4), "published"),
    "*shards, a dict": (with_shards, {"x": torch.ones(4)}, "published"),
    "told by params": (told_by_params, PAIR, "published"),
    "queue, *rest": (told_by_queue, TRIPLE, "published"),
    "defaults": (with_defaults, PAIR, "published"),
    "told by the number of parts": (longer, PAIR, "published"),
    "one part": (single, torch.ones(4), "published"),
    "one part in a tuple": (single, (torch.ones(4),), "published"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_form_of_the_function_is_told_by_its_parameters(name):
    function, batch, expected = FUNCTIONS[name]
    replicated, seen = Replicated(2), {}

    @functools.wraps(function)
    def forward(*arguments, **keywords):
        form, first, params, shard = function(*arguments, **keywords)
        i = torch.dev.current_device()
        if form == "published":
            assert first == torch.dev.current_stream() and first.device.index == i
            assert len(shard) == (len(batch) if isinstance(batch, (tuple, list)) else 1)
        else:
            assert first == i and type(shard) is type(batch)
        assert all(p is q for p, q in zip(params, replicated.parameters[i], strict=True))
        leaves = torch.utils._pytree.tree_leaves(shard)
        assert leaves and all(leaf.shape == (2,) and leaf.device.index == i for leaf in leaves)
        seen[i] = form
        return sum(p.square().sum() for p in params)

    replicated.step(batch, forward)
    assert seen == {0: expected, 1: expected}


def test_the_batch_that_the_hook_returns_says_how_many_shards_there_are():
    replicated, seen = Replicated(2), []

    def forward(queue, x, y, params):
        seen.append((len(x), len(y)))
        return sum(p.sum() for p in params)

    batch = {"x": torch.ones(4), "y": torch.ones(4)}
    replicated.step(batch, forward, pre_shard_hook=lambda batch: (batch["x"], batch["y"]))
    assert seen == [(2, 2)] * 2


def two(queue, params):
    raise AssertionError("nothing may be computed")


def four(i, params, shard, more):
    raise AssertionError("nothing may be computed")


@pytest.mark.parametrize(
    ("function", "batch", "text"),
    [
        (two, PAIR, r"forward_fn\(queue, params\) takes neither .* for each part of the batch, which has 2"),
        (lambda i: None, PAIR, r"forward_fn\(i\) takes neither \(i, params, shard\) nor"),
        (four, TRIPLE, r"forward_fn\(i, params, shard, more\) takes neither .* which has 3"),
        (four, torch.ones(4), r"forward_fn\(i, params, shard, more\) takes neither .* which has 1"),
        (with_one_shard, PAIR, r"forward_fn\(where, shard, \*, params\) takes neither .* which has 2"),
        (None, PAIR, "forward_fn is not a function but NoneType"),
        (Replicated, None, "forward_fn.* takes neither"),
    ],
)
def test_functions_of_no_form_are_refused(function, batch, text):
    replicated = Replicated(2)
    before = replicated.state()
    with pytest.raises(TypeError, match=f"^data_parallel_step: {text}"):
        data_parallel_step(function, replicated.parameters, replicated.optimizers, batch)
    assert same(replicated.state(), before)


class Tape:
    """Doubles the gradients, to be told from loss.backward()."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def backward(self, loss):
        self.seen.append(loss)
        loss.backward(torch.full_like(loss, 2.0))


@pytest.mark.parametrize("published", [False, True])
def test_the_tape_computes_the_gradients(published):
    def gradients(returned):
        replicated, seen = Replicated(2), []

        def today(i, params, shard):
            return returned(loss_of(replicated.modules[i], shard))

        def forward(queue, x, y, params):
            return returned(loss_of(replicated.modules[queue.device.index], (x, y)))

        def keep(parameters):
            seen.extend(p.grad.cpu().clone() for p in parameters[0])

        result = replicated.step(batches(1, 4)[0], forward if published else today, post_sync_hook=keep)
        return result, seen

    tape = Tape()
    with_tape, doubled = gradients(lambda loss: (loss, tape))
    for returned in (lambda loss: loss, lambda loss: (loss, None)):
        result, expected = gradients(returned)
        assert with_tape.loss == result.loss
        assert all(torch.equal(a, b * 2) for a, b in zip(doubled, expected, strict=True))
    assert len(tape.seen) == 2


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (
            lambda loss: (loss, loss * 2),
            "returned the loss and a Tensor, which is no tape: a tape has backward",
        ),
        (lambda loss: (loss, "tape"), "returned the loss and a str, which is no tape"),
        (
            lambda loss: (loss, None, None),
            r"must return the loss, a scalar, or \(loss, tape\); it returned \(",
        ),
        (lambda loss: (None, Tape()), "must return the loss, a scalar, or"),
        (lambda loss: (loss.expand(2), None), "must return the loss, a scalar, or"),
        (lambda loss: [loss, None], "must return the loss, a scalar, or"),
        (lambda loss: loss.item(), "must return the loss, a scalar, or"),
    ],
)
def test_what_is_no_loss_and_tape_is_refused(returned, text):
    replicated = Replicated(2)
    before = replicated.state()
    with pytest.raises(ReplicaError, match=f"TypeError: forward_fn {text}"):
        replicated.step(batches(1, 4)[0], lambda queue, x, y, params: returned(sum(p.sum() for p in params)))
    assert same(replicated.state(), before)


# ---- the forms of pre_shard_hook --------------------------------------------------------------------------


def test_the_hook_before_sharding_gets_the_batch_or_its_parts():
    replicated, seen = Replicated(2), []

    def see(x, y):
        seen.append((x, y))

    def replace(x, y):
        return x[:2], {"y": y["y"][:2]}

    (batch,) = batches(1, 6)
    for hook, sizes in ((see, [3, 3]), (replace, [1, 1]), (lambda batch: seen.append(batch), [3, 3])):
        assert replicated.step(batch, pre_shard_hook=hook).sizes == sizes
    assert len(seen) == 2 and all(x is batch[0] and y is batch[1] for x, y in seen)
    replicated.step(batch, pre_shard_hook=lambda *batches: seen.append(batches))
    assert seen[2] == (batch,)  # one argument fits


def test_hooks_of_no_form_are_refused_before_they_are_called():
    replicated, before = Replicated(2), Replicated(2).state()
    (batch,) = batches(1, 4)
    text = r"^data_parallel_step: pre_shard_hook\(a, b, c\) takes neither the batch nor its parts, .* 2$"
    with pytest.raises(TypeError, match=text):
        replicated.step(batch, pre_shard_hook=lambda a, b, c: None)
    for name in ("pre_shard_hook", "post_sync_hook", "post_step_hook"):
        with pytest.raises(TypeError, match=f"^data_parallel_step: {name} is not a function but int"):
            replicated.step(batch, **{name: 3})
    with pytest.raises(ReplicaError, match="pre_shard_hook raised Boom"):
        replicated.step(batch, pre_shard_hook=lambda x, y: boom())
    assert same(replicated.state(), before)


# ---- gradients after a step -------------------------------------------------------------------------------


def test_gradients_are_gone_after_a_step_before_the_last_hook():
    replicated, seen = Replicated(2), []

    def gradients():
        return [p.grad is not None for parameters in replicated.parameters for p in parameters]

    for keep in (False, True):
        replicated.step(
            batches(1, 4)[0],
            post_sync_hook=lambda _: seen.append(gradients()),
            post_step_hook=lambda i: seen.append(gradients()),
            **({"zero_grad": False} if keep else {}),
        )
        assert seen == [[True] * 8, [keep] * 8, [keep] * 8] and gradients() == [keep] * 8
        seen.clear()


def test_gradients_that_stay_are_not_added_to_in_the_next_step():
    kept, zeroed = Replicated(2), Replicated(2)
    for batch in batches(3, 4):
        kept.step(batch, zero_grad=False)
        zeroed.step(batch)
    assert same(kept.state(), zeroed.state())


# ---- warnings where the host form steps in ----------------------------------------------------------------


def warnings_of(call) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return caught


@pytest.fixture
def dev_1_out_of_reach(monkeypatch):
    """No other kind of device is at hand: the memory of dev:1 counts as one of its own."""
    reach = _comm.in_host_memory
    monkeypatch.setattr(_comm, "in_host_memory", lambda t: t.device != torch.device("dev:1") and reach(t))


def gradients_on(*indices: int) -> list[list[nn.Parameter]]:
    made = [[nn.Parameter(ones(i)), nn.Parameter(ones(i))] for i in indices]
    for parameters in made:
        for p in parameters:
            p.grad = p.detach().clone()
    return made


FALLING_BACK = {
    "all_reduce_p2p": lambda *i: replicas.all_reduce_p2p([ones(k) for k in i]),
    "all_reduce_p2p, overlapped": lambda *i: replicas.all_reduce_p2p(
        [ones(k) for k in i], overlap=True
    ).wait(),
    "sync_grads": lambda *i: replicas.sync_grads(gradients_on(*i)),
}


@pytest.mark.parametrize("name", FALLING_BACK)
def test_devices_that_fall_back_to_the_host_form_are_told_once_where_the_caller_is(name, dev_1_out_of_reach):
    (warning,) = warnings_of(lambda: FALLING_BACK[name](0, 1))
    assert warning.category is UserWarning and Path(warning.filename).samefile(__file__)
    assert warning.lineno == FALLING_BACK[name].__code__.co_firstlineno
    call = name.split(",")[0]
    assert str(warning.message) == (
        f"{call}: the host cannot reach the memory of dev:1, so this goes through a tensor on the host, "
        "which is slower"
    )
    assert warnings_of(lambda: FALLING_BACK[name](0, 2)) == []


def test_a_step_that_falls_back_is_told_where_the_caller_is(dev_1_out_of_reach):
    replicated = Replicated(2)
    (warning,) = warnings_of(lambda: replicated.step(batches(1, 4)[0]))
    assert "sync_grads: the host cannot reach the memory of dev:1" in str(warning.message)
    assert warning.filename == inspect.getfile(Replicated)


def test_the_host_form_that_was_asked_for_is_not_warned_of(dev_1_out_of_reach):
    assert warnings_of(lambda: replicas.all_reduce([ones(0), ones(1)])) == []
    assert warnings_of(lambda: replicas.broadcast([ones(0), ones(1)])) == []


def test_layouts_that_fall_back_say_so():
    def gaps():
        replicas.all_reduce_p2p([torch.ones(4, device=f"dev:{i}")[::2] for i in range(2)])

    def strides():
        replicas.all_reduce_p2p([torch.ones(2, 3), torch.ones(3, 2).t()])

    def lazily():
        replicas.all_reduce_p2p([torch.ones(2, dtype=torch.complex64).conj() for _ in range(2)])

    for call, text in (
        (gaps, "a tensor has gaps"),
        (lazily, "conjugated"),
        (strides, "differ in their strides"),
    ):
        (warning,) = warnings_of(call)
        assert text in str(warning.message) and Path(warning.filename).samefile(__file__)
