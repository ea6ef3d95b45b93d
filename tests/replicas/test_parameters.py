"""Copies of parameters on several devices, and their gradients."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from occl import _C
from tests.support.references import assert_same_bits, contribution, reduced
from torch_occl import replicas

DEVICES = ["dev:0", "dev:1", "dev:2"]


def with_gradients(gradients: list[list[torch.Tensor | None]]) -> list[list[nn.Parameter]]:
    """Replicas whose parameters have these gradients, on devices of their own."""
    shapes = [next(g.shape for g in column if g is not None) for column in zip(*gradients, strict=True)]
    made = []
    for i, row in enumerate(gradients):
        parameters = [nn.Parameter(torch.zeros(shape, device=f"dev:{i}")) for shape in shapes]
        for parameter, gradient in zip(parameters, row, strict=True):
            parameter.grad = None if gradient is None else gradient.to(f"dev:{i}", copy=True)
        made.append(parameters)
    return made


def test_copies_of_parameters_are_new_leaves_with_the_same_bits():
    params = [nn.Parameter(torch.randn(3, 4).t()), nn.Parameter(torch.randn(2), requires_grad=False)]
    for device, copies in zip(DEVICES, replicas.replicate_params(params, DEVICES), strict=True):
        for copy, original in zip(copies, params, strict=True):
            assert isinstance(copy, nn.Parameter) and copy.is_leaf
            assert copy.device == torch.device(device) and copy.requires_grad == original.requires_grad
            assert copy.stride() == original.stride()
            assert torch.equal(copy.cpu(), original)


def test_the_first_replica_is_a_copy_too_and_tied_parameters_stay_tied():
    shared = nn.Parameter(torch.ones(2, device="dev:0"))
    first, second = replicas.replicate_params([shared, nn.Parameter(torch.zeros(1)), shared], [0, 1])
    assert first[0] is first[2] and second[0] is second[2]
    assert first[0] is not shared and first[0].data_ptr() != shared.data_ptr()


def test_modules_are_copied_with_their_buffers():
    network = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    network(torch.randn(4, 3))
    for device, module in zip(DEVICES, replicas.prepare_replicas(network, DEVICES), strict=True):
        state = module.state_dict()
        assert all(value.device == torch.device(device) for value in state.values())
        assert all(torch.equal(state[name].cpu(), value) for name, value in network.state_dict().items())
    assert next(network.parameters()).is_cpu


@pytest.mark.parametrize("op", ["mean", "sum"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_gradients_have_the_bits_of_the_definition(op, n):
    gradients = [
        [contribution("float32", i, 1000), contribution("float32", i, 6, 1).view(2, 3)] for i in range(n)
    ]
    made = with_gradients(gradients)
    assert replicas.sync_grads(made, op=op) == []
    name = {"mean": "AVG", "sum": "SUM"}[op]
    for index, column in enumerate(zip(*gradients, strict=True)):
        expected = reduced([g.reshape(-1) for g in column], name).view(column[0].shape)
        for parameters in made:
            assert_same_bits(parameters[index].grad.cpu(), expected)


def test_weights_make_a_weighted_sum():
    made = with_gradients([[torch.tensor([1.0])], [torch.tensor([10.0])], [torch.tensor([100.0])]])
    replicas.sync_grads(made, weights=[0.5, 0.25, 0.25])
    assert [parameters[0].grad.item() for parameters in made] == [28.0] * 3


def test_missing_gradients_count_as_zero_and_are_reported():
    one, four = torch.ones(2), torch.full((3,), 4.0)
    made = with_gradients([[one, four, None], [None, four, None], [one, None, torch.ones(1)]])
    made[2][2].grad = None  # now no replica has the third
    missing = replicas.sync_grads(made, op="sum")
    assert [tuple(m) for m in missing] == [(1, 0), (2, 1), (0, 2), (1, 2), (2, 2)]
    assert missing[0].replica == 1 and missing[0].parameter == 0
    for i, parameters in enumerate(made):
        assert parameters[0].grad.tolist() == [2.0, 2.0] and parameters[1].grad.tolist() == [8.0] * 3
        assert parameters[2].grad is None
        assert parameters[0].grad.device == torch.device("dev", i)


@pytest.mark.filterwarnings("ignore:sync_grads")
def test_gradients_are_reduced_in_place_and_in_any_layout():
    gradient = torch.arange(6.0).view(2, 3)
    made = with_gradients([[gradient], [gradient]])
    made[1][0].grad = made[1][0].grad.t().contiguous().t()
    before = [parameters[0].grad.data_ptr() for parameters in made]
    replicas.sync_grads(made, op="sum")
    assert [parameters[0].grad.data_ptr() for parameters in made] == before
    assert all(torch.equal(parameters[0].grad.cpu(), gradient * 2) for parameters in made)


def test_tied_parameters_are_reduced_once():
    made = with_gradients([[torch.ones(1)], [torch.ones(1)]])
    replicas.sync_grads([parameters * 2 for parameters in made], op="sum")
    assert [parameters[0].grad.item() for parameters in made] == [2.0, 2.0]


@pytest.mark.parametrize("tied", [0, 1])
def test_parameters_that_are_tied_in_one_replica_only_are_refused(tied):
    made = with_gradients([[torch.ones(1), torch.ones(1)], [torch.ones(1), torch.ones(1)]])
    made[tied][1] = made[tied][0]
    with pytest.raises(ValueError, match=f"parameter 1 of replica {tied} is its parameter 0 too"):
        replicas.sync_grads(made, op="sum")
    assert all(p.grad.item() == 1.0 for parameters in made for p in parameters)


def test_frozen_parameters_miss_no_gradient():
    made = with_gradients([[torch.ones(1), None], [torch.ones(1), torch.ones(1)]])
    for parameters in made:
        parameters[1].requires_grad_(False).grad = None
    assert replicas.sync_grads(made) == []
    assert made[0][1].grad is None


COPIES = {
    "replicate_params": lambda source, other: replicas.replicate_params([source], [1])[0][0],
    "broadcast_params": lambda source, other: replicas.broadcast_params([source], [[other]]) or other,
    "broadcast": lambda source, other: replicas.broadcast([source, other])[1],
    "scatter": lambda source, other: replicas.scatter(source, 1, [1])[0],
    "gather": lambda source, other: replicas.gather([source], 1),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_wait_for_what_the_source_still_has_queued(name):
    source, other = torch.ones(3, device="dev:0"), torch.ones(3, device="dev:1")
    side = torch.dev.Stream("dev:0")

    def write_late():
        time.sleep(0.02)
        source.fill_(5)

    with torch.dev.stream(side):
        _C._device_enqueue(side, write_late)
        assert COPIES[name](source, other).tolist() == [5.0] * 3


def test_parameters_are_broadcast_to_groups_of_any_length():
    def group(device, *values):
        return [nn.Parameter(torch.full((2,), value, device=device)) for value in values]

    def values(parameters):
        return [p[0].item() for p in parameters]

    source, short, long = group("dev:0", 1.0, 2.0), group("dev:1", 5.0), group("dev:2", 6.0, 7.0, 8.0)
    replicas.broadcast_params(source, [short, long])
    assert [values(g) for g in (source, short, long)] == [[1, 2], [1], [1, 2, 8]]
    long[0].data.fill_(9)
    replicas.broadcast_params(source, [short, long], root=2)
    assert [values(g) for g in (source, short, long)] == [[9, 2], [9], [9, 2, 8]]
    replicas.broadcast_params(source, [])  # no destination
    replicas.broadcast_params(source, [[*short, *long, "beyond"]])  # not looked at


def test_bad_replicas():
    p, q = nn.Parameter(torch.ones(2, device="dev:0")), nn.Parameter(torch.ones(3, device="dev:1"))
    with pytest.raises(ValueError, match="sync_grads: there are no replicas"):
        replicas.sync_grads([])
    with pytest.raises(ValueError, match="the replicas have no parameters"):
        replicas.sync_grads([[], []])
    with pytest.raises(ValueError, match="replica 1 has 2 parameters, and replica 0 1"):
        replicas.sync_grads([[p], [p, p]])
    with pytest.raises(ValueError, match=r"parameter 0: replica 1 has shape \[3\], and replica 0 \[2\]"):
        replicas.sync_grads([[p], [q]])
    with pytest.raises(ValueError, match=r"parameter 0: replica 1 is torch\.float64"):
        replicas.sync_grads([[p], [nn.Parameter(p.detach().double())]])
    with pytest.raises(TypeError, match="parameter 0 is not a tensor but int"):
        replicas.sync_grads([[1], [2]])
    with pytest.raises(ValueError, match="3 weights for 2 replicas"):
        replicas.sync_grads([[p], [p]], weights=[1, 2, 3])
    with pytest.raises(TypeError, match="expected a list of weights, got Tensor"):
        replicas.sync_grads([[p], [p]], weights=torch.ones(2))
    with pytest.raises(TypeError, match="weight 1 is not a number but Tensor"):
        replicas.sync_grads([[p], [p]], weights=[1, torch.ones(())])
    with pytest.raises(TypeError, match="expected a list of parameters for each replica, got Parameter"):
        replicas.sync_grads([p, q])
    with pytest.raises(ValueError, match="op must be one of"):
        replicas.sync_grads([[p]], op="max")
    with pytest.raises(ValueError, match="the list of devices is empty"):
        replicas.replicate_params([p], [])
    with pytest.raises(ValueError, match="have no parameters"):
        replicas.replicate_params([], ["dev:0"])
    with pytest.raises(ValueError, match="the list of devices is empty"):
        replicas.prepare_replicas(nn.Linear(1, 1), [])


def test_a_bad_gradient_leaves_all_gradients_as_they_were():
    made = with_gradients([[torch.ones(2), torch.ones(2)], [None, torch.ones(2)]])
    made[1][1].grad = made[1][1].grad.to_sparse()
    with pytest.raises(ValueError, match="parameter 1 has a sparse gradient"):
        replicas.sync_grads(made, op="sum")
    assert made[0][0].grad.tolist() == [1.0, 1.0] and made[1][0].grad is None
    made[1][1].grad = torch.ones(1, device="dev:1").expand(2)
    with pytest.raises(ValueError, match="parameter 1: elements of tensor 1 share memory"):
        replicas.sync_grads(made, op="sum")
    assert made[0][0].grad.tolist() == [1.0, 1.0] and made[0][1].grad.tolist() == [1.0, 1.0]
    same = with_gradients([[torch.ones(2)], [torch.ones(2)]])
    same[1][0] = same[0][0]
    with pytest.raises(ValueError, match="parameter 0: tensors 0 and 1 share memory"):
        replicas.sync_grads(same)


def test_bad_broadcasts_copy_nothing():
    source, good = [torch.ones(2), torch.ones(3)], [torch.zeros(2), torch.zeros(3)]
    with pytest.raises(ValueError, match=r"parameter 1: replica 2 has shape \[4\], and replica 0 \[3\]"):
        replicas.broadcast_params(source, [good, [torch.zeros(2), torch.zeros(4)]])
    with pytest.raises(ValueError, match=r"parameter 1: replica 1 has shape \[3\], and replica 2 \[4\]"):
        replicas.broadcast_params([torch.zeros(2)], [good, [torch.zeros(2), torch.zeros(4)]], root=2)
    with pytest.raises(TypeError, match="parameter 1 of replica 1 is not a tensor but int"):
        replicas.broadcast_params(source, [[good[0], 1]])
    with pytest.raises(TypeError, match="expected a list of parameters for each replica, got Tensor"):
        replicas.broadcast_params(source, good)
    with pytest.raises(ValueError, match="elements of parameter 1 of replica 2 share memory"):
        replicas.broadcast_params(source, [good, [torch.zeros(2), torch.zeros(1).expand(3)]])
    with pytest.raises(ValueError, match="replica 2 has no parameters"):
        replicas.broadcast_params(source, [good, []])
    with pytest.raises(ValueError, match="there is no root 2 among 2"):
        replicas.broadcast_params(source, [good], root=2)
    assert [t.sum().item() for t in good] == [0, 0]
