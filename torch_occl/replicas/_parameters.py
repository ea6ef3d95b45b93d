"""Parameters and gradients of replicas."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import NamedTuple

import torch
from torch import nn

from torch_occl import _C
from torch_occl._dev_index import Device
from torch_occl.replicas._checks import (
    check_alike,
    check_apart,
    check_kind,
    check_list,
    check_op,
    check_replicas,
    check_root,
    check_writable,
)
from torch_occl.replicas._comm import Op, dev_device, direct_form, reduce_staged, settle, staging_for


class MissingGradient(NamedTuple):
    """A parameter that had no gradient in a replica, and was counted as zero."""

    replica: int
    parameter: int


def replicate_params(params: Iterable[torch.Tensor], devices: Sequence[Device]) -> list[list[nn.Parameter]]:
    """Copies of parameters, the same bits, on each device.

    Args:
        params: of any shapes and devices. One that is in the list twice is one parameter in each replica too.
        devices: one for each replica.

    Returns:
        For each device the list of its parameters, new leaves that require gradients where the originals do.

    Raises:
        TypeError: something in the list is no tensor.
        ValueError: there are no parameters or no devices.
    """
    (params,) = check_replicas("replicate_params", [params])
    if not len(devices):
        raise ValueError("replicate_params: the list of devices is empty")
    settle(params)
    replicas = []
    for device in map(dev_device, devices):
        made: dict[int, nn.Parameter] = {}
        for p in params:
            if id(p) not in made:
                made[id(p)] = nn.Parameter(p.detach().to(device, copy=True), requires_grad=p.requires_grad)
        replicas.append([made[id(p)] for p in params])
    return replicas


def prepare_replicas(module: nn.Module, devices: Sequence[Device]) -> list[nn.Module]:
    """Deep copies of a module, with its buffers, on each device. The original stays as it is.

    Raises:
        ValueError: there are no devices.
    """
    if not len(devices):
        raise ValueError("prepare_replicas: the list of devices is empty")
    settle([*module.parameters(), *module.buffers()])
    return [copy.deepcopy(module).to(dev_device(device)) for device in devices]


def sync_grads(
    param_replicas: Sequence[Sequence[torch.Tensor]],
    *,
    op: Op = "mean",
    weights: Sequence[float] | None = None,
) -> list[MissingGradient]:
    """Replaces each parameter's gradients by their mean (or sum) over all replicas, in place.

    Args:
        param_replicas: for each replica its parameters, in the same order, of the same shapes and dtypes.
        op: ``"mean"`` or ``"sum"``.
        weights: a factor for each replica, instead of ``op``: the gradients become the sum of factor times
            gradient. Shares of a batch that differ in size need it.

    Returns:
        Which gradients were missing (``None``). They count as zero and get the result like the others; a
        parameter that has no gradient in any replica is reported too, and stays without. From parameters that
        do not require gradients none is missing.

    Raises:
        TypeError: something in the lists is no tensor, or a weight is no number.
        ValueError: there are no replicas, they differ in the number, shapes or dtypes of parameters or in
            which are in the list twice, a gradient is sparse or expanded, or there is not one weight for each
            replica.
    """
    call = "sync_grads"
    replicas = check_replicas(call, param_replicas)
    check_op(call, op)
    factors = [] if weights is None else check_list(call, weights, "weights")
    for i, factor in enumerate(factors):
        check_kind(call, f"weight {i}", factor, Real, "a number")
    if weights is not None and len(factors) != len(replicas):
        raise ValueError(f"{call}: {len(factors)} weights for {len(replicas)} replicas")
    missing: list[MissingGradient] = []
    gradients: list[list[torch.Tensor]] = []
    absent: list[tuple[torch.Tensor, torch.Tensor]] = []
    seen: set[int] = set()
    for index, copies in enumerate(zip(*replicas, strict=True)):
        if id(copies[0]) in seen:
            continue  # in the list twice, but one parameter
        seen.add(id(copies[0]))
        present = [p.grad for p in copies if p.grad is not None]
        missing += [
            MissingGradient(i, index) for i, p in enumerate(copies) if p.grad is None and p.requires_grad
        ]
        if not present:
            continue
        if any(g.layout != torch.strided for g in present):
            raise ValueError(f"{call}: parameter {index} has a sparse gradient; only dense ones are combined")
        check_alike(f"{call}: parameter {index}", present, "gradient")
        whole = []
        for p in copies:
            if p.grad is None:
                absent.append((p, torch.zeros_like(present[0], device=p.device)))
            whole.append(absent[-1][1] if p.grad is None else p.grad)
        check_apart(f"{call}: parameter {index}", whole)
        gradients.append(whole)
    reduce_all(gradients, op == "mean", factors)
    for p, gradient in absent:
        p.grad = gradient
    return missing


def reduce_all(lists: Sequence[Sequence[torch.Tensor]], mean: bool, factors: Sequence[float]) -> None:
    """Reduces each list of tensors, directly where that is possible."""
    settle([tensor for tensors in lists for tensor in tensors])
    direct = [tensors for tensors in lists if direct_form(tensors)]
    _C._replicas_reduce(direct, direct, mean, list(factors))
    for tensors in lists:
        if not direct_form(tensors):
            reduce_staged(tensors, mean, factors, staging_for(tensors))


@torch.no_grad()
def broadcast_params(
    src_params: Sequence[torch.Tensor], dst_param_groups: Sequence[Sequence[torch.Tensor]], root: int = 0
) -> None:
    """Copies the parameters of one replica into all others, position by position, in place.

    Groups may be of different length: a shorter one takes the first parameters only, and what a longer one
    has beyond the root's stays as it is.

    Args:
        src_params: the parameters of replica 0.
        dst_param_groups: those of replicas 1, 2, ...
        root: the replica whose values hold: 0 is ``src_params``, 1 the first of ``dst_param_groups``.

    Raises:
        TypeError: something in the lists is no tensor.
        ValueError: there is no such root, a list is empty, parameters that correspond to one another
            differ in shape or dtype, or one to be written to is expanded. Nothing has been copied then.
    """
    call = "broadcast_params"
    groups = [src_params, *check_list(call, dst_param_groups, "lists of parameters")]
    groups = [check_list(call, group, "parameters for each replica") for group in groups]
    check_root(call, root, len(groups))
    pairs = []
    for i, group in enumerate(groups):
        if not group:
            raise ValueError(f"{call}: replica {i} has no parameters")
        for index, (source, target) in enumerate(zip(groups[root], group, strict=False)):
            for number, p in ((root, source), (i, target)):
                check_kind(call, f"parameter {index} of replica {number}", p, torch.Tensor, "a tensor")
            check_alike(f"{call}: parameter {index}", [source, target], "replica", (root, i))
            if i != root:
                check_writable(call, f"parameter {index} of replica {i}", target)
                pairs.append((target, source))
    settle([p for pair in pairs for p in pair])
    for target, source in pairs:
        target.copy_(source)
