"""Every operator of PyTorch's databases gives the same bits in shared CPU tensors as in ordinary ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch.testing._internal.autograd_function_db import autograd_function_db
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.custom_op_db import custom_op_db

import torch_occl
from tests.shared_cpu.bits import compare_bits, compare_shapes, same_in_shared_memory, with_memory
from tests.support import opinfo
from tests.support.nested import differentiable, gradients, tensors

DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.complex64),
    *(torch.int64, torch.bool),
)

NOT_RUN = {
    **dict.fromkeys(
        ["jiterator_unary", "jiterator_binary", "jiterator_binary_return_by_ref",
         "jiterator_2inputs_2outputs", "jiterator_4inputs_with_extra_args"],
        "compiles a kernel for a GPU",
    ),
    **dict.fromkeys(
        ["torch.ops.aten._flash_attention_forward", "torch.ops.aten._efficient_attention_forward"],
        "is not there on CPUs",
    ),
    "broadcast_shapes": "takes and returns no tensor",
}  # fmt: skip

UNINITIALIZED = {name for name, why in opinfo.VALUES_DIFFER.items() if why == opinfo.UNINITIALIZED}
"""Return memory as it is, so only forms can be equal."""

PIVOTS_FROM_NOWHERE = {"linalg.lstsq"}
"""LAPACK's driver gelsy gets its pivots from uninitialised memory, which decides about the last bits."""

OUT_NOT_RUN = {
    "_batch_norm_with_update": "takes its outputs under several names",
    "histogramdd": "takes its outputs under several names",
    "nonzero": "takes one tensor, even where it returns several",
    "normal": "does not resize its output",
    "fft.ihfft2": "leaves a part of it as it was; PyTorch's own test of out= is expected to fail",
    "fft.ihfftn": "leaves a part of it as it was; PyTorch's own test of out= is expected to fail",
    "sparse.sampled_addmm": "has a sparse output, which has no memory before",
}

NO_NUMBERS_WITH_OUT = {"remainder", "where"}
"""Take a number in place of a tensor, but not with ``out=``."""

GAPS_NOT_RUN = {
    **dict.fromkeys(
        ["as_strided_scatter", "native_group_norm", "sparse.mm", "sparse.sampled_addmm", "view_as_complex"],
        "takes no such input",
    ),
    **dict.fromkeys(
        ["native_batch_norm", "_native_batch_norm_legit"],
        "gives other bits from call to call with out=, in ordinary memory too",
    ),
}

OPERATORS = [op for op in op_db if op.name not in NOT_RUN and op.variant_test_name != "without_cudnn"]
CASES = [(op, dtype) for op in OPERATORS for dtype in DTYPES if dtype in op.supported_dtypes("cpu")]
CASES += [(op, torch.float32) for op in [*autograd_function_db, *custom_op_db]]
FIRST = list({op.formatted_name: (op, dtype) for op, dtype in reversed(CASES)}.values())
"""Each operator with one type."""


def identifier(op: Any, dtype: torch.dtype) -> str:
    return f"{op.formatted_name}-{str(dtype)[6:]}"


def gradients_of(sample: Any, result: Any) -> tuple[torch.Tensor | None, ...]:
    """Of everything that has one, for dense outputs that PyTorch's own tests would take gradients of."""
    outputs = differentiable(sample.output_process_fn_grad(result))
    outputs = [t for t in outputs if t.layout == torch.strided]
    return gradients(outputs, differentiable((sample.input, sample.args, sample.kwargs)))


def written_to(op: Any, sample: Any, result: Any) -> list[Any]:
    """The result in ``out=``: in tensors of its form, which keep their memory, and in empty ones."""
    if op.name in OUT_NOT_RUN or not all(isinstance(t, torch.Tensor) for t in pytree.tree_leaves(result)):
        return []
    if op.name in NO_NUMBERS_WITH_OUT and any(
        isinstance(g, int | float | complex) for g in (sample.input, *sample.args)
    ):
        return []
    ready = pytree.tree_map(torch.empty_like, result)
    addresses = [t.data_ptr() for t in tensors(ready)]
    op(sample.input, *sample.args, **sample.kwargs, out=ready)
    assert addresses == [t.data_ptr() for t in tensors(ready)]
    empty = pytree.tree_map(lambda t: t.new_empty(0), result)
    op(sample.input, *sample.args, **sample.kwargs, out=empty)
    return [ready, empty]


def in_place(op: Any, sample: Any, result: Any) -> list[Any]:
    """The result in a copy of the input, where it has the input's form."""
    before = sample.input
    if not isinstance(before, torch.Tensor) or not isinstance(result, torch.Tensor):
        return []
    if sample.broadcasts_input or (before.shape, before.dtype) != (result.shape, result.dtype):
        return []
    changed = before.detach().clone()
    op.inplace_variant(changed, *sample.args, **sample.kwargs)
    return [changed]


Samples = Callable[[Any, torch.dtype, bool], Iterable[Any]]
"""Of an operator and a type, with inputs that require a gradient or without."""


def samples(op: Any, dtype: torch.dtype, backward: bool) -> Iterable[Any]:
    return op.sample_inputs_func(op, "cpu", dtype, backward)


def references(op: Any, dtype: torch.dtype, backward: bool) -> Iterable[Any]:
    """Larger inputs, which PyTorch compares with NumPy, and takes no gradients of."""
    return op.reference_inputs_func(op, "cpu", dtype, False)


def with_gaps(op: Any, dtype: torch.dtype, backward: bool) -> Iterable[Any]:
    return (sample.noncontiguous() for sample in samples(op, dtype, backward))


def run(op: Any, dtype: torch.dtype, made: Samples, most_samples: int | None) -> list[Any]:
    """Inputs, results and gradients of an operator's samples, and results in `out=` and in place.

    Ends after `most_samples` whose result has memory.
    """
    has_gradients = dtype.is_floating_point or dtype.is_complex
    backward = has_gradients and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    found: list[Any] = []
    ran = 0
    for sample in made(op, dtype, backward):
        result = op(sample.input, *sample.args, **sample.kwargs)
        found.append((sample.input, sample.args, sample.kwargs, result))
        if backward:
            found.append(gradients_of(sample, result))
        with torch.no_grad():
            if op.supports_out:
                found += written_to(op, sample, result)
            if op.inplace_variant:
                found += in_place(op, sample, result)
        ran += bool(with_memory(result))
        if ran == most_samples:
            break
    return found


def check(op: Any, dtype: torch.dtype, made: Samples = samples, most_samples: int | None = None) -> None:
    compare = compare_bits
    if op.name in UNINITIALIZED:
        compare = compare_shapes
    elif op.name in PIVOTS_FROM_NOWHERE:
        compare = torch.testing.assert_close
    same_in_shared_memory(lambda: run(op, dtype, made, most_samples), compare)


@pytest.mark.parametrize("op, dtype", FIRST, ids=[identifier(*case) for case in FIRST])
@pytest.mark.filterwarnings("ignore")
def test_an_operator_gives_the_same_bits(op, dtype):
    check(op, dtype, most_samples=2)


@pytest.mark.full
@pytest.mark.matrix
@pytest.mark.parametrize("op, dtype", CASES, ids=[identifier(*case) for case in CASES])
@pytest.mark.filterwarnings("ignore")
def test_an_operator_gives_the_same_bits_for_every_sample(op, dtype):
    check(op, dtype)


WITH_GAPS = [
    op for op in OPERATORS if op.name not in GAPS_NOT_RUN and torch.float32 in op.supported_dtypes("cpu")
]


@pytest.mark.full
@pytest.mark.matrix
@pytest.mark.parametrize("op", WITH_GAPS, ids=[op.formatted_name for op in WITH_GAPS])
@pytest.mark.filterwarnings("ignore")
def test_an_operator_gives_the_same_bits_for_inputs_with_gaps(op):
    check(op, torch.float32, with_gaps)


WITH_REFERENCES = [
    op for op in OPERATORS if op.reference_inputs_func and torch.float32 in op.supported_dtypes("cpu")
]


@pytest.mark.full
@pytest.mark.matrix
@pytest.mark.parametrize("op", WITH_REFERENCES, ids=[op.formatted_name for op in WITH_REFERENCES])
@pytest.mark.filterwarnings("ignore")
def test_an_operator_gives_the_same_bits_for_large_inputs(op):
    check(op, torch.float32, references)


def test_every_operator_runs_that_has_no_reason_not_to():
    ran = {op.formatted_name for op, _ in FIRST}
    assert {op.formatted_name for op in OPERATORS} <= ran


def test_exceptions_are_real_operators():
    names = {op.name for op in op_db}
    assert set(NOT_RUN) | set(OUT_NOT_RUN) | set(GAPS_NOT_RUN) <= names
    assert names >= UNINITIALIZED | PIVOTS_FROM_NOWHERE | NO_NUMBERS_WITH_OUT


def test_an_operator_that_gives_other_bits_in_shared_memory_is_seen(monkeypatch):
    add = next(op for op in op_db if op.name == "add")
    original, calls = add.op, []

    def wrong_in_the_second_run(x, *args, **kwargs):
        calls.append(torch_occl.shared_cpu_memory_stats()["allocated_bytes.all.current"])
        result = original(x, *args, **kwargs)
        return result.nextafter(result + 1) if calls[-1] > calls[0] else result

    monkeypatch.setattr(add, "op", wrong_in_the_second_run)
    with pytest.raises(AssertionError, match="other bits"):
        check(add, torch.float32, most_samples=2)


def test_sharing_that_is_off_is_seen(monkeypatch):
    monkeypatch.setattr(torch_occl, "share_cpu_memory", lambda min_bytes: contextlib.nullcontext())
    with pytest.raises(AssertionError, match="does not lie in shared memory"):
        check(next(op for op in op_db if op.name == "add"), torch.float32, most_samples=2)
