"""One training step of all replicas."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Union, overload

import torch

from torch_occl.replicas._batch import batch_size, move_shard, shard_batch
from torch_occl.replicas._checks import check_kind, check_list, check_replicas
from torch_occl.replicas._comm import settle
from torch_occl.replicas._devices import DeviceManager, ReplicaError, manager_of
from torch_occl.replicas._forms import (
    also_named,
    batch_hook,
    check_callable,
    loss_and_tape,
    replica_function,
)
from torch_occl.replicas._parameters import MissingGradient, sync_grads

Loss = Union[torch.Tensor, tuple[torch.Tensor, Any]]  # noqa: UP007
ForwardFunction = Callable[[int, Sequence[torch.Tensor], Any], Loss]
QueueFunction = Callable[..., Loss]
"""Called ``(queue, *shards, params)``."""
Replicas = list[list[torch.Tensor]]


@dataclass(frozen=True)
class StepResult:
    """The result of `data_parallel_step`."""

    losses: list[torch.Tensor]
    """For each replica the loss of its shard: a scalar on its device, without a graph."""
    sizes: list[int]
    """For each replica the number of samples of its shard."""
    missing: list[MissingGradient]
    """The gradients that were missing; see `sync_grads`."""

    @property
    def loss(self) -> float:
        """The mean loss over all samples of the batch."""
        total = sum(loss.item() * size for loss, size in zip(self.losses, self.sizes, strict=True))
        return total / sum(self.sizes)


@overload
def data_parallel_step(
    forward_fn: ForwardFunction | QueueFunction,
    param_replicas: Sequence[Sequence[torch.Tensor]],
    optimizers: Sequence[torch.optim.Optimizer],
    batch: Any,
    *,
    pre_shard_hook: Callable[..., Any] | None = None,
    post_sync_hook: Callable[[Replicas], None] | None = None,
    post_step_hook: Callable[[int], None] | None = None,
    zero_grad: bool = True,
) -> StepResult: ...
@overload
def data_parallel_step(
    forward_fn: ForwardFunction | QueueFunction,
    params_replicas: Sequence[Sequence[torch.Tensor]],
    optimizers: Sequence[torch.optim.Optimizer],
    batch: Any,
    *,
    pre_shard_hook: Callable[..., Any] | None = None,
    post_sync_hook: Callable[[Replicas], None] | None = None,
    post_step_hook: Callable[[int], None] | None = None,
    zero_grad: bool = True,
) -> StepResult: ...
@also_named(params_replicas="param_replicas")
def data_parallel_step(
    forward_fn: ForwardFunction | QueueFunction,
    param_replicas: Sequence[Sequence[torch.Tensor]],
    optimizers: Sequence[torch.optim.Optimizer],
    batch: Any,
    *,
    pre_shard_hook: Callable[..., Any] | None = None,
    post_sync_hook: Callable[[Replicas], None] | None = None,
    post_step_hook: Callable[[int], None] | None = None,
    zero_grad: bool = True,
) -> StepResult:
    """Trains all replicas on one batch: shard, forward and backward, reduce the gradients, step.

    Replicas run side by side, each in a thread and on a stream of its device. The gradients are those of the
    mean loss over the whole batch, whatever the sizes of the shards. All replicas take the step or none: if
    anything raises, parameters and optimizers are as they were before (gradients are not, and neither are
    buffers that a forward pass has changed). For this, parameters and optimizer states are copied at the
    beginning, so a step needs memory for them twice.

    Args:
        forward_fn: ``forward_fn(i, params, shard)`` computes the mean loss over the shard, a scalar, with
            replica ``i``, whose parameters are ``params``. Called in the replica's thread, with the tensors
            and NumPy arrays of the shard as tensors on its device.

            Or ``forward_fn(queue, *shards, params)``, with the stream of the replica (``queue.device`` is its
            device) and a shard of each element of a batch that is a tuple or list. The function has this form
            if its first parameter is called ``queue``, if ``params`` is a keyword-only parameter, or if three
            arguments do not fit.

            Both may return ``(loss, tape)`` too: then ``tape.backward(loss)`` computes the gradients, and
            ``loss.backward()`` where the tape is None.
        param_replicas: for each replica its parameters, each replica on a ``dev`` device of its own. May be
            given as ``params_replicas``.
        optimizers: for each replica one that holds parameters of this replica.
        batch: see `shard_batch`.
        pre_shard_hook: called with the batch before it is cut, or with the elements of a tuple or list where
            one argument does not fit. What it returns is used instead of the batch, unless it is None.
        post_sync_hook: called with the replicas' parameters once all gradients are reduced, before the
            optimizers: to clip gradients, for instance. It must treat all replicas alike.
        post_step_hook: called with the number of each replica in turn, after all optimizers.
        zero_grad: whether gradients are set to None again after the optimizers, before ``post_step_hook``, as
            they always are at the beginning. Without it they stay until the next step.

    Raises:
        TypeError: something in the lists is no tensor, or no optimizer; or ``forward_fn`` or a hook is no
            function, or does not accept the arguments.
        ValueError: replicas differ, share a device or are not on ``dev``; there is not one optimizer for each
            replica, or it holds parameters of another; the batch has fewer samples than there are replicas.
        ReplicaError: ``forward_fn``, an optimizer or a hook raised, or the loss is not a scalar.
    """
    call = "data_parallel_step"
    replicas = check_replicas(call, param_replicas)
    manager = _manager_for(call, replicas)
    optimizers = _check_optimizers(call, replicas, optimizers)
    check_callable(call, "forward_fn", forward_fn)
    for name, hook in (
        ("pre_shard_hook", pre_shard_hook),
        ("post_sync_hook", post_sync_hook),
        ("post_step_hook", post_step_hook),
    ):
        if hook is not None:
            check_callable(call, name, hook)

    def backward(i: int, params: list[torch.Tensor], shard: Any) -> torch.Tensor:
        _forget_gradients(params)
        here = move_shard(shard, manager.devices[i])
        with torch.enable_grad():
            loss, tape = loss_and_tape(forward(i, params, here))
            if tape is None:
                loss.backward()
            else:
                tape.backward(loss)
        return loss.detach()

    settle([p for params in replicas for p in params])
    before = manager.run(lambda i, params, optimizer: _Snapshot(params, optimizer), replicas, optimizers)
    try:
        if pre_shard_hook is not None:
            prepare = batch_hook(call, pre_shard_hook, batch)
            with _Named("pre_shard_hook"):
                changed = prepare(batch)
            batch = batch if changed is None else changed
        forward = replica_function(call, forward_fn, batch, manager.streams)
        shards = shard_batch(batch, len(replicas))
        sizes = [batch_size(call, shard) for shard in shards]
        losses = manager.run(backward, replicas, shards)
        even = len(set(sizes)) == 1
        missing = sync_grads(replicas, weights=None if even else [size / sum(sizes) for size in sizes])
        if post_sync_hook is not None:
            with _Named("post_sync_hook"):
                post_sync_hook(replicas)
        manager.run(lambda i, optimizer: optimizer.step(), optimizers)
        if zero_grad:
            for params in replicas:
                _forget_gradients(params)
        if post_step_hook is not None:
            for i in range(len(replicas)):
                with _Named(f"post_step_hook({i})"):
                    post_step_hook(i)
    except BaseException:
        for snapshot in before:
            snapshot.restore()
        raise
    return StepResult(losses, sizes, missing)


def _forget_gradients(params: Sequence[torch.Tensor]) -> None:
    for p in params:
        p.grad = None


class _Named:
    """Turns an exception of the block into a `ReplicaError` that names the user's function."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            raise ReplicaError(
                f"{self.name} raised {type(error).__name__}: {error}; the parameters are as they were before "
                "the step"
            ) from error


class _Snapshot:
    """Parameters and optimizer state of one replica. Restores the same objects with the same values."""

    def __init__(self, params: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
        self.seen: dict[int, Callable[[], Any]] = {}
        self.optimizer = optimizer
        self.params = self._keep(list(params))
        self.state, self.groups = self._keep(optimizer.state), self._keep(optimizer.param_groups)

    def restore(self) -> None:
        self.params()
        # load_state_dict would cast the state to the dtype of the parameters, and make new groups.
        self.optimizer.state, self.optimizer.param_groups = self.state(), self.groups()

    def _keep(self, value: Any) -> Callable[[], Any]:
        """A function that restores the value and returns it: the same object if it is a tensor, dict, list or
        tuple, otherwise a copy."""
        if id(value) not in self.seen:
            self.seen[id(value)] = self._keep_new(value)
        return self.seen[id(value)]

    def _keep_new(self, value: Any) -> Callable[[], Any]:
        if isinstance(value, torch.Tensor):
            return functools.partial(_put_back, value, value.detach(), value.detach().clone())
        if isinstance(value, dict):
            entries = {key: self._keep(entry) for key, entry in value.items()}
            return lambda: _refill(value, ((key, back()) for key, back in entries.items()))
        if isinstance(value, list):
            elements = [self._keep(element) for element in value]
            return lambda: _refill(value, [back() for back in elements])
        if isinstance(value, tuple):
            elements = [self._keep(element) for element in value]
            return lambda: (value, *(back() for back in elements))[0]
        copied = copy.deepcopy(value)
        return lambda: copied


@torch.no_grad()
def _put_back(tensor: torch.Tensor, memory: torch.Tensor, content: torch.Tensor) -> torch.Tensor:
    tensor.data = memory  # the user's code may have given it other memory
    memory.copy_(content)
    return tensor


def _refill(container: Any, content: Any) -> Any:
    content = list(content)
    container.clear()
    (container.update if isinstance(container, dict) else container.extend)(content)
    return container


def _manager_for(call: str, replicas: Replicas) -> DeviceManager:
    """The manager of the devices that the replicas are on."""
    devices: list[torch.device] = []
    for i, params in enumerate(replicas):
        device = params[0].device
        if device.type != "dev":
            raise ValueError(f"{call}: replica {i} is on {device}; replicas run on dev devices")
        for index, p in enumerate(params):
            if p.device != device:
                raise ValueError(
                    f"{call}: replica {i} is on {device}, but its parameter {index} on {p.device}"
                )
        if device in devices:
            raise ValueError(f"{call}: replicas {devices.index(device)} and {i} are both on {device}")
        devices.append(device)
    return manager_of(devices)


def _check_optimizers(
    call: str, replicas: Replicas, optimizers: Sequence[torch.optim.Optimizer]
) -> list[torch.optim.Optimizer]:
    optimizers = check_list(call, optimizers, "optimizers")
    if len(optimizers) != len(replicas):
        raise ValueError(f"{call}: {len(optimizers)} optimizers for {len(replicas)} replicas")
    for i, (params, optimizer) in enumerate(zip(replicas, optimizers, strict=True)):
        check_kind(call, f"optimizer {i}", optimizer, torch.optim.Optimizer, "an optimizer")
        own = {id(p) for p in params}
        for group in optimizer.param_groups:
            if not own.issuperset(map(id, group["params"])):
                raise ValueError(f"{call}: optimizer {i} holds parameters that are not those of replica {i}")
    return optimizers
