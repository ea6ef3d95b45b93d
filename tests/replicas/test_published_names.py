"""A program in the published form (docs/replicas.md), its names and its queues do what today's do."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.replicas.published import groups_of, ones
from torch_occl import replicas
from torch_occl.replicas import DeviceManager, data_parallel_step

from .test_step import Replicated, batches, boom, network


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
