"""Parameters and gradients of replicas."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any, NamedTuple, TypeVar, overload

import torch
from torch import nn

from occl import _C
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
from torch_occl.replicas._comm import (
    Op,
    Place,
    obstacle,
    places,
    reduce_staged,
    settle,
    staging_for,
    warn_of_host_form,
)
from torch_occl.replicas._forms import also_named

M = TypeVar("M", bound=nn.Module)


class MissingGradient(NamedTuple):
    """A parameter that had no gradient in a replica, and was counted as zero."""

    replica: int
    parameter: int


@overload
def replicate_params(
    params: Iterable[torch.Tensor], devices: Sequence[Place]
) -> list[list[nn.Parameter]]: ...
@overload
def replicate_params(params: Iterable[torch.Tensor], queues: Sequence[Place]) -> list[list[nn.Parameter]]: ...
@also_named(queues="devices")
def replicate_params(params: Iterable[torch.Tensor], devices: Sequence[Place]) -> list[list[nn.Parameter]]:
    """Copies of parameters, the same bits, on each device.

    Args:
        params: of any shapes and devices. A parameter that occurs twice occurs twice in each replica, too.
        devices: a device or queue for each replica; a queue stands for its device. May be given as
            ``queues``.

    Returns:
        For each device the list of its parameters, new leaves that require gradients where the originals do.

    Raises:
        TypeError: something in the list is no tensor, there is no list of devices, or it is given under both
            of its names.
        ValueError: there are no parameters or no devices.
    """
    return _replicate("replicate_params", params, devices)


def _replicate(call: str, params: Any, devices: Any) -> list[list[nn.Parameter]]:
    (params,) = check_replicas(call, [params])
    where = places(call, devices)
    settle(params)
    replicas = []
    for device in where:
        made: dict[int, nn.Parameter] = {}
        for p in params:
            if id(p) not in made:
                made[id(p)] = nn.Parameter(p.detach().to(device, copy=True), requires_grad=p.requires_grad)
        replicas.append([made[id(p)] for p in params])
    return replicas


@overload
def prepare_replicas(module: M, devices: Sequence[Place]) -> list[M]: ...
@overload
def prepare_replicas(module: M, queues: Sequence[Place]) -> list[M]: ...
@overload
def prepare_replicas(
    params: Iterable[torch.Tensor], devices: Sequence[Place]
) -> list[list[nn.Parameter]]: ...
@overload
def prepare_replicas(params: Iterable[torch.Tensor], queues: Sequence[Place]) -> list[list[nn.Parameter]]: ...
@also_named(params="module", queues="devices")
def prepare_replicas(module: Any, devices: Sequence[Place]) -> Any:
    """Replicas of a module or of parameters on each device. The original stays as it is.

    Args:
        module: a module, or parameters as for `replicate_params`. May be given as ``params``.
        devices: a device or queue for each replica; a queue stands for its device. May be given as
            ``queues``.

    Returns:
        For each device a deep copy of the module, with its buffers; or the list of parameters that
        `replicate_params` makes.

    Raises:
        TypeError: this is neither a module nor a list of parameters, there is no list of devices, or an
            argument is given under both of its names.
        ValueError: there are no parameters in the list, or no devices.
    """
    if not isinstance(module, nn.Module):
        return _replicate("prepare_replicas", module, devices)
    where = places("prepare_replicas", devices)
    settle([*module.parameters(), *module.buffers()])
    return [copy.deepcopy(module).to(device) for device in where]


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
        Which gradients were missing (``None``). A missing gradient counts as zero and becomes the result,
        like the others. A parameter without a gradient in any replica is reported, too, and keeps None. The
        gradient of a parameter that does not require one is never missing.

    Where the host cannot reach a device's memory, or gradients differ in their strides or have gaps, they go
    through a tensor on the host, and a warning says so.

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
    reduce_all(call, gradients, op == "mean", factors)
    for p, gradient in absent:
        p.grad = gradient
    return missing


def reduce_all(
    call: str, lists: Sequence[Sequence[torch.Tensor]], mean: bool, factors: Sequence[float]
) -> None:
    """Reduces each list of tensors, in place where the kernels can."""
    reasons = [obstacle(tensors) for tensors in lists]
    for reason in filter(None, dict.fromkeys(reasons)):
        warn_of_host_form(call, reason)
    settle([tensor for tensors in lists for tensor in tensors])
    direct = [tensors for tensors, reason in zip(lists, reasons, strict=True) if not reason]
    _C._replicas_reduce(direct, direct, mean, list(factors))
    for tensors, reason in zip(lists, reasons, strict=True):
        if reason:
            reduce_staged(tensors, mean, factors, staging_for(tensors))


@torch.no_grad()
def broadcast_params(
    src_params: Iterable[torch.Tensor] | None = None,
    dst_param_groups: Sequence[Iterable[torch.Tensor]] | None = None,
    root: int = 0,
) -> None:
    """Copies the parameters of one replica into all others, position by position, in place.

    ``broadcast_params(mine, groups)`` copies ``mine`` into all groups.
    ``broadcast_params(dst_param_groups=groups, root=1)`` copies ``groups[1]`` into the others.

    Groups may be of different length: a shorter one takes the first parameters only, and what a longer one
    has beyond the root's stays as it is.

    Args:
        src_params: the parameters of replica 0, or None.
        dst_param_groups: those of replicas 1, 2, ...; those of replicas 0, 1, ... where ``src_params`` is
            None or one of these groups itself (the same tensors).
        root: the replica whose values hold. With ``src_params`` that is not one of the groups, 0 is
            ``src_params`` and 1 the first group. Where ``src_params`` is one of the groups, its values hold,
            and the root is the place of that group or left out.

    Raises:
        TypeError: something in the lists is no tensor, ``dst_param_groups`` is missing, or the root is no
            integer.
        ValueError: there is no such root, or it contradicts ``src_params``; a list is empty; parameters that
            correspond to each other differ in shape or dtype, or a destination is expanded. Nothing has
            been copied then.
    """
    call = "broadcast_params"
    groups, root = _groups_and_root(call, src_params, dst_param_groups, root)
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


def _groups_and_root(
    call: str, src_params: Any, dst_param_groups: Any, root: int
) -> tuple[list[list[torch.Tensor]], int]:
    """The parameters of all replicas, and which of the replicas is the root."""
    if dst_param_groups is None:
        raise TypeError(f"{call}: dst_param_groups is missing: for each replica the list of its parameters")
    groups = [
        check_list(call, group, "parameters for each replica")
        for group in check_list(call, dst_param_groups, "lists of parameters")
    ]
    if src_params is None:
        if not groups:
            raise ValueError(f"{call}: dst_param_groups is empty, and without src_params there is no root")
        check_root(call, root, len(groups))
        return groups, root
    source = check_list(call, src_params, "parameters for each replica")
    own = [i for i, group in enumerate(groups) if list(map(id, group)) == list(map(id, source))]
    if not own or not source:
        check_root(call, root, 1 + len(groups))
        return [source, *groups], root
    check_root(call, root, len(groups))
    if root not in (0, *own):
        raise ValueError(
            f"{call}: src_params is group {own[0]} of dst_param_groups, but the root is group {root}; "
            "leave out src_params or the root"
        )
    return groups, own[0]
