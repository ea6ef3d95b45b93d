"""Every module of PyTorch's database gives the same bits in shared CPU tensors as in ordinary ones."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import ModuleInfo, module_db, modules
from torch.testing._internal.common_utils import freeze_rng_state

from tests.shared_cpu.bits import same_in_shared_memory
from tests.support.nested import differentiable, gradients

CASES = [
    (info, training, dtype)
    for info in module_db
    for training in modules([info])._get_training_flags(info)
    for dtype in sorted(info.supported_dtypes("cpu"), key=str)
]


def forward(module: torch.nn.Module, given: Any) -> Any:
    """The same with each call: some modules draw numbers."""
    with freeze_rng_state():
        return module(*given.args, **given.kwargs)


def saved_and_loaded(module: torch.nn.Module) -> torch.nn.Module:
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def run(info: ModuleInfo, training: bool, dtype: torch.dtype) -> list[Any]:
    """Inputs, results, gradients and state, and results of a copy, for all inputs of the database."""
    found: list[Any] = []
    for given in info.module_inputs_func(info, "cpu", dtype, requires_grad=True, training=training):
        made = given.constructor_input
        module = info.module_cls(*made.args, **made.kwargs).to("cpu", dtype).train(training)
        if given.forward_input is None:
            found.append(module.state_dict())
            continue
        inputs = (given.forward_input.args, given.forward_input.kwargs)
        if info.is_lazy:
            forward(module, given.forward_input)
        before = copy.deepcopy(module)
        result = forward(module, given.forward_input)
        found_gradients = gradients(
            differentiable(result), differentiable([inputs, list(module.parameters())])
        )
        again = forward(saved_and_loaded(before), given.forward_input)
        found.append((inputs, result, found_gradients, again, module.state_dict()))
    return found


def identifier(info: ModuleInfo, training: bool, dtype: torch.dtype) -> str:
    return f"{info.formatted_name}-{'train' if training else 'eval'}-{str(dtype)[6:]}"


FIRST = [case for case in CASES if case[2] == torch.float32]
OTHERS = [case for case in CASES if case not in FIRST]


@pytest.mark.parametrize("info, training, dtype", FIRST, ids=[identifier(*case) for case in FIRST])
@pytest.mark.filterwarnings("ignore")
def test_a_module_gives_the_same_bits(info, training, dtype):
    same_in_shared_memory(lambda: run(info, training, dtype))


@pytest.mark.full
@pytest.mark.matrix
@pytest.mark.parametrize("info, training, dtype", OTHERS, ids=[identifier(*case) for case in OTHERS])
@pytest.mark.filterwarnings("ignore")
def test_a_module_gives_the_same_bits_for_other_types(info, training, dtype):
    same_in_shared_memory(lambda: run(info, training, dtype))


def test_every_module_runs():
    assert {info for info, *_ in FIRST} == set(module_db)
