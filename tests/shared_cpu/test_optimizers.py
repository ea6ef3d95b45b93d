"""Every optimizer of PyTorch's database gives the same bits in shared CPU tensors as in ordinary ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch.testing._internal.common_optimizers import (
    OptimizerInfo,
    _get_optim_inputs_including_global_cliquey_kwargs,
    optim_db,
)

from tests.shared_cpu.bits import same_in_shared_memory

OTHERS = [
    (info, dtype)
    for info, dtype in itertools.product(optim_db, (torch.float64, torch.complex64))
    if info.supports_complex or not dtype.is_complex
]
STEPS = 3


def clones(value: Any) -> Any:
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), value
    )


def take_steps(
    optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor], sparse_gradients: bool
) -> None:
    weight, bias = parameters
    x = torch.randn(4, len(weight), dtype=weight.dtype)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (x @ weight + bias).abs().square().sum()
        loss.backward()
        if sparse_gradients:
            for parameter in parameters:
                parameter.grad = parameter.grad.to_sparse()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


def run(info: OptimizerInfo, dtype: torch.dtype) -> list[Any]:
    """Parameters and state after some steps, and parameters after more of one that has loaded the state.

    With all arguments of the database, and each of the implementations: a loop, foreach, and fused.
    """
    skipped = ("differentiable", "fused") if dtype.is_complex else ("differentiable",)
    found: list[Any] = []
    for given in _get_optim_inputs_including_global_cliquey_kwargs("cpu", dtype, info, skip=skipped):
        parameters = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in [(5, 3), (1, 3)]]
        optimizer = info.optim_cls(parameters, **clones(given.kwargs))
        take_steps(optimizer, parameters, info.only_supports_sparse_grads)
        saved = clones(optimizer.state_dict())
        copies = clones(parameters)
        loaded = info.optim_cls(copies, **clones(given.kwargs))
        loaded.load_state_dict(saved)
        take_steps(loaded, copies, info.only_supports_sparse_grads)
        found.append((parameters, saved["state"], copies))
    return found


@pytest.mark.parametrize("info", optim_db, ids=[info.name for info in optim_db])
@pytest.mark.filterwarnings("ignore")
def test_an_optimizer_gives_the_same_bits(info):
    same_in_shared_memory(lambda: run(info, torch.float32))


@pytest.mark.full
@pytest.mark.parametrize(
    "info, dtype", OTHERS, ids=[f"{info.name}-{str(dtype)[6:]}" for info, dtype in OTHERS]
)
@pytest.mark.filterwarnings("ignore")
def test_an_optimizer_gives_the_same_bits_for_other_types(info, dtype):
    same_in_shared_memory(lambda: run(info, dtype))
