"""A training step of all replicas equals the step of one device with the whole batch, or changes nothing."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from torch_occl import replicas
from torch_occl.replicas import ReplicaError, data_parallel_step

CPU = torch.device("cpu")


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))


def batches(steps: int, size: int) -> list[tuple[torch.Tensor, dict]]:
    generator = torch.Generator().manual_seed(4)
    return [
        (torch.randn(size, 5, generator=generator), {"y": torch.randn(size, 2, generator=generator)})
        for _ in range(steps)
    ]


def loss_of(module: nn.Module, batch) -> torch.Tensor:
    x, targets = batch
    return nn.functional.mse_loss(module(x), targets["y"])


class Replicated:
    """Modules on n devices with their optimizers."""

    def __init__(self, n: int, optimizer=torch.optim.AdamW) -> None:
        self.modules = replicas.prepare_replicas(network(), list(range(n)))
        self.parameters = [list(module.parameters()) for module in self.modules]
        self.optimizers = [optimizer(parameters, lr=0.01) for parameters in self.parameters]

    def step(self, batch, forward=None, **hooks):
        forward = forward or (lambda i, params, shard: loss_of(self.modules[i], shard))
        return data_parallel_step(forward, self.parameters, self.optimizers, batch, **hooks)

    def state(self) -> list:
        """Everything that a step changes, as numbers."""
        values = [[p.detach().cpu().clone() for p in parameters] for parameters in self.parameters]
        moments = [
            {
                k: {n: torch.as_tensor(v).cpu().clone() for n, v in s.items()}
                for k, s in o.state_dict()["state"].items()
            }
            for o in self.optimizers
        ]
        return [values, moments]


def same(a, b) -> bool:
    """Whether nested lists and dicts of tensors have the same bits."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return len(a) == len(b) and all(map(same, a, b))


@pytest.mark.parametrize("size", [12, 13])  # 13 does not divide: shards are weighted by their size
@pytest.mark.parametrize("n", [1, 2, 3])
def test_steps_are_those_of_one_device_with_the_whole_batch(n, size):
    replicated = Replicated(n)
    alone = network()
    optimizer = torch.optim.AdamW(alone.parameters(), lr=0.01)
    for batch in batches(5, size):
        result = replicated.step(batch)
        optimizer.zero_grad()
        loss = loss_of(alone, batch)
        loss.backward()
        optimizer.step()
        assert result.loss == pytest.approx(loss.item(), rel=1e-5)
        assert sum(result.sizes) == size and len(result.losses) == n and result.missing == []
        assert all(x.device.index == i and not x.requires_grad for i, x in enumerate(result.losses))
    for parameters in replicated.parameters:
        for p, expected, first in zip(parameters, alone.parameters(), replicated.parameters[0], strict=True):
            torch.testing.assert_close(p.detach().cpu(), expected.detach())
            assert torch.equal(p.cpu(), first.cpu())  # the same bits in all replicas


def test_replicas_compute_side_by_side_on_their_devices():
    barrier = threading.Barrier(2)
    replicated = Replicated(2)

    def forward(i, params, shard):
        assert params is not None and torch.dev.current_device() == i == shard[0].device.index
        assert torch.dev.current_stream().stream_id != 0
        barrier.wait(timeout=60)  # ends only if both are here at once
        return loss_of(replicated.modules[i], shard)

    replicated.step(batches(1, 4)[0], forward)


def test_hooks_are_called_in_order_with_what_they_may_change():
    replicated, seen = Replicated(2), []
    (batch,) = batches(1, 6)

    def before(given):
        seen.append("shard")
        assert given is batch
        return given[0][:4], {"y": given[1]["y"][:4]}

    def clip(parameters):
        seen.append("sync")
        assert parameters[0][0].grad.cpu().equal(parameters[1][0].grad.cpu())
        for group in parameters:
            for p in group:
                p.grad.zero_()

    start = replicated.state()[0]
    result = replicated.step(
        batch, pre_shard_hook=before, post_sync_hook=clip, post_step_hook=lambda i: seen.append(i)
    )
    assert seen == ["shard", "sync", 0, 1] and result.sizes == [2, 2]
    decayed = [[value * (1 - 0.01 * 0.01) for value in values] for values in start]  # AdamW's decay only
    for a, b in zip(replicated.state()[0], decayed, strict=True):
        torch.testing.assert_close(a, b)


def test_missing_gradients_are_reported():
    replicated = Replicated(2)

    def forward(i, params, shard):
        return loss_of(replicated.modules[i], shard) if i == 0 else params[0].square().mean()

    result = replicated.step(batches(1, 4)[0], forward)
    assert [tuple(m) for m in result.missing] == [(1, 1), (1, 2), (1, 3)]


class Boom(Exception):
    pass


def boom(*_):
    raise Boom("no")


class FailingOnDevice1(torch.optim.AdamW):
    """Its step changes the parameters, and then fails on one of the devices."""

    armed = False

    def step(self, closure=None):
        super().step(closure)
        if self.armed and self.param_groups[0]["params"][0].device.index == 1:
            boom()


FAILURES = {
    "pre_shard_hook": (
        {"pre_shard_hook": boom},
        "pre_shard_hook raised Boom: no; the parameters are as they",
    ),
    "post_sync_hook": ({"post_sync_hook": boom}, "post_sync_hook raised Boom"),
    "post_step_hook": ({"post_step_hook": boom}, r"post_step_hook\(0\) raised Boom"),
    "the last post_step_hook": (
        {"post_step_hook": lambda i: boom() if i else None},
        r"post_step_hook\(1\) raised Boom",
    ),
    "forward": ({"forward": boom}, r"replica 0 \(on dev:0\) raised Boom"),
    "forward in one replica": (
        {"forward": lambda i, params, shard: boom() if i else params[0].sum()},
        r"replica 1 \(on dev:1\) raised Boom",
    ),
    "optimizer": ({}, r"replica 1 \(on dev:1\) raised Boom"),
}


@pytest.mark.parametrize("steps_before", [0, 2])
@pytest.mark.parametrize("name", FAILURES)
def test_a_step_that_fails_leaves_parameters_and_optimizers_as_they_were(name, steps_before):
    arguments, text = FAILURES[name]
    replicated, undisturbed = Replicated(2, FailingOnDevice1), Replicated(2, FailingOnDevice1)
    *earlier, last = batches(steps_before + 1, 6)
    for batch in earlier:
        replicated.step(batch)
        undisturbed.step(batch)
    before = replicated.state()
    if name == "optimizer":
        replicated.optimizers[1].armed = True
    with pytest.raises(ReplicaError, match=text) as info:
        replicated.step(last, **arguments)
    assert isinstance(info.value.__cause__, Boom)
    assert same(replicated.state(), before)
    replicated.optimizers[1].armed = False
    replicated.step(last)  # as if nothing had happened
    undisturbed.step(last)
    assert same(replicated.state(), undisturbed.state())
    assert not same(replicated.state(), before)


@pytest.mark.parametrize("where", ["pre_shard_hook", "forward", "post_sync_hook", "post_step_hook", "shards"])
def test_what_user_code_has_changed_before_a_step_fails_is_undone(where):
    replicated = Replicated(2)
    *_, batch = batches(1, 4)
    replicated.step(batch)
    before = replicated.state()
    objects = [(o.state, o.param_groups, o.param_groups[0]) for o in replicated.optimizers]

    def change(*_):
        with torch.no_grad():
            for parameters, optimizer in zip(replicated.parameters, replicated.optimizers, strict=True):
                parameters[0].mul_(2)
                parameters[1].data = torch.zeros(1, device=parameters[1].device)  # of another shape
                optimizer.state[parameters[0]]["exp_avg"].zero_()
                optimizer.state[parameters[1]] = {}
                optimizer.param_groups[0]["lr"] = 7.0
        return (batch[0][:1],) if where == "shards" else boom()

    with pytest.raises(ValueError if where == "shards" else ReplicaError):
        replicated.step(batch, **{"pre_shard_hook" if where == "shards" else where: change})
    assert same(replicated.state(), before)
    for optimizer, (state, groups, group) in zip(replicated.optimizers, objects, strict=True):
        assert optimizer.state is state and optimizer.param_groups is groups and groups[0] is group
        assert group["lr"] == 0.01


class MasterCopies(torch.optim.Optimizer):
    """Keeps float32 and int64 state for bfloat16 parameters."""

    def __init__(self, params):
        super().__init__(params, {})
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"master": p.detach().float() + 1e-4, "steps": torch.tensor(3), "past": [(p, 1)]}

    def step(self, closure=None):
        for state in self.state.values():
            state["master"] += 1
            state["steps"] += 1


def test_a_step_that_fails_leaves_optimizer_states_in_their_own_dtypes():
    modules = replicas.prepare_replicas(network().bfloat16(), [0, 1])
    parameters = [list(module.parameters()) for module in modules]
    optimizers = [MasterCopies(p) for p in parameters]
    kept = [state for optimizer in optimizers for state in optimizer.state.values()]
    tensors = [(state["master"], state["master"].clone(), state["steps"]) for state in kept]
    with pytest.raises(ReplicaError):
        data_parallel_step(
            lambda i, params, x: modules[i](x).square().mean(),
            parameters,
            optimizers,
            torch.ones(2, 5, dtype=torch.bfloat16),
            post_step_hook=boom,
        )
    assert all(a is b for a, b in zip([s for o in optimizers for s in o.state.values()], kept, strict=True))
    for state, (master, value, steps) in zip(kept, tensors, strict=True):
        assert state["master"] is master and master.dtype == torch.float32 and torch.equal(master, value)
        assert state["steps"] is steps and steps.dtype == torch.int64 and steps == 3


def test_ctrl_c_in_a_hook_undoes_the_step_and_stays_what_it_is():
    replicated = Replicated(2)
    before = replicated.state()

    def interrupt(i):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replicated.step(batches(1, 4)[0], post_step_hook=interrupt)
    assert same(replicated.state(), before)


def test_bad_input_is_refused_before_anything_happens():
    replicated = Replicated(2)
    modules, parameters, optimizers = replicated.modules, replicated.parameters, replicated.optimizers
    (batch,) = batches(1, 4)
    before = replicated.state()

    def refused(text, *, error=ValueError, params=parameters, opts=optimizers, data=batch):
        def forward(*_):
            raise AssertionError("nothing may be computed")

        with pytest.raises(error, match=f"^(data_parallel_step|shard_batch): .*{text}"):
            data_parallel_step(forward, params, opts, data)

    refused("1 optimizers for 2 replicas", opts=optimizers[:1])
    refused("optimizer 0 holds parameters that are not those of replica 0", opts=optimizers[::-1])
    refused("optimizer 1 is not an optimizer but int", error=TypeError, opts=[optimizers[0], 2])
    refused("expected a list of optimizers, got NoneType", error=TypeError, opts=None)
    refused("there are no replicas", params=[], opts=[])
    refused("replica 1 has 3 parameters, and replica 0 4", params=[parameters[0], parameters[1][:3]])
    refused("the batch has 1 samples, which are too few for 2 chunks", data=(batch[0][:1],))
    refused("has 3 samples", data=(batch[0], batch[0][:3]))
    refused("the batch holds no tensor", data=None)
    refused("replicas 0 and 1 are both on dev:0", params=[parameters[0], parameters[0]])
    refused("replica 0 is on cpu", params=[list(network().parameters())], opts=optimizers[:1])
    mixed = [parameters[0][:2] + parameters[1][2:], parameters[1]]
    refused("replica 0 is on dev:0, but its parameter 2 on dev:1", params=mixed)
    assert same(replicated.state(), before)
    with pytest.raises(ReplicaError, match="must return the loss, a scalar"):
        replicated.step(batch, lambda i, params, shard: modules[i](shard[0]))
    assert same(replicated.state(), before)


def test_autocast_holds_in_the_replicas():
    replicated, kinds = Replicated(2), []

    def forward(i, params, shard):
        out = replicated.modules[i](shard[0])
        kinds.append(out.dtype)
        return out.float().square().mean()

    with torch.autocast("dev", torch.bfloat16):
        replicated.step(batches(1, 4)[0], forward)
    assert kinds == [torch.bfloat16] * 2
