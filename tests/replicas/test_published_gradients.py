"""What a step in the published form leaves behind, and where it warns."""

import inspect
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.replicas.published import ones, warnings_of
from torch_occl import replicas
from torch_occl.replicas import _comm

from .test_step import Replicated, batches, same


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
