"""Every operator of PyTorch's database, on `dev` as on the CPU."""

import contextlib
from unittest.mock import Mock

import pytest
import torch

from tests.support import opinfo

CASES = [
    (op, dtype) for op in opinfo.operators() for dtype in opinfo.DTYPES if dtype in op.supported_dtypes("cpu")
]
FIRST = list({op.formatted_name: (op, dtype) for op, dtype in reversed(CASES)}.values())
"""Each operator with one type."""


def identifier(op, dtype):
    return f"{op.formatted_name}-{str(dtype)[6:]}"


@pytest.mark.parametrize("op, dtype", FIRST, ids=[identifier(*case) for case in FIRST])
@pytest.mark.filterwarnings("ignore")
def test_operator(op, dtype):
    opinfo.check(op, dtype, most_samples=1)


@pytest.mark.full
@pytest.mark.matrix
@pytest.mark.parametrize("op, dtype", CASES, ids=[identifier(*case) for case in CASES])
@pytest.mark.filterwarnings("ignore")
def test_operator_on_every_sample(op, dtype):
    opinfo.check(op, dtype, most_samples=None)


def test_exceptions_are_real_operators():
    names = {op.name for op in opinfo.operators()}
    assert set(opinfo.VALUES_DIFFER) <= names and set(opinfo.DROPOUT_SAMPLES) <= names
    assert {name for name, _ in opinfo.SAMPLES_SKIPPED} <= names


def test_an_error_of_the_cpu_is_no_reason_to_leave_a_sample_out(monkeypatch):
    op = next(op for op in opinfo.operators() if op.name == "add")
    for error, refused in (
        ("Jiterator is only supported on CUDA and ROCm GPUs", True),
        ("out of order", False),
    ):
        monkeypatch.setattr(op, "op", Mock(side_effect=AssertionError(error)))
        with contextlib.nullcontext() if refused else pytest.raises(AssertionError, match=error):
            assert opinfo.check(op, torch.float32, most_samples=4) == (0, 0)


def test_the_comparison_bites():
    op = next(op for op in opinfo.operators() if op.name == "add")
    original = op.op

    def wrong(x, *args, **kwargs):
        result = original(x, *args, **kwargs)
        return result + 1 if result.device.type == "dev" else result

    op.op = wrong
    try:
        with pytest.raises(AssertionError):
            opinfo.check(op, torch.float32, most_samples=4)
    finally:
        op.op = original
