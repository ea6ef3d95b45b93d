"""PyTorch's own database of operators, run on `dev` and compared with the CPU, forward and backward.

What differs by its nature is in the tables below, each with a reason. Nothing else may differ.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.testing._internal.common_methods_invocations import op_db

from tests.support.nested import differentiable, gradients

DTYPES = (torch.float32, torch.int64)

RANDOM = "draws from the device's generator, not from the CPU's: shapes and dtypes are compared"
UNINITIALIZED = "returns memory as it is: shapes and dtypes are compared"
RANDOM_INSIDE = (
    "starts from random vectors: the result is the same to rounding only, shapes and dtypes are compared"
)

VALUES_DIFFER = {
    **dict.fromkeys(
        [
            "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "nn.functional.alpha_dropout",  # noqa: E501
            "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
            "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d",
            "nn.functional.fractional_max_pool3d", "nn.functional.rrelu", "normal", "rand_like", "randint",
            "randint_like", "randn", "randn_like", "uniform",
        ],
        RANDOM,
    ),
    **dict.fromkeys(
        ["empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"], UNINITIALIZED  # noqa: E501
    ),
    **dict.fromkeys(["pca_lowrank", "svd_lowrank"], RANDOM_INSIDE),
}  # fmt: skip

DROPOUT_SAMPLES = {
    "nn.functional.scaled_dot_product_attention": "dropout_p",
    "nn.functional.multi_head_attention_forward": "dropout_p",
}
"""Operators that draw numbers for those samples only where this argument is above 0."""

SAMPLES_SKIPPED = {
    (
        "as_strided",
        "partial_views",
    ): "looks at what lies around a view, which moving a tensor does not take along",
    ("tensor_split", ""): "an index tensor must be on the CPU for every accelerator: it is left there",
}
"""By name and variant."""

REFUSED_BY_CPU = {
    "Jiterator is only supported on CUDA": "an operator of GPUs",
    "linalg_eig_backward: The eigenvectors in the complex case": "the sum of the outputs depends on a phase",
    "Could not run 'aten::fill_.Scalar' with arguments from the 'SparseCPU'": "gradients of sparse results",
}
"""By a part of the CPU's error: why a sample cannot be compared."""


FACTORIES = {"arange", "linspace", "logspace"}
"""Make tensors on the default device, which is set to `dev` for them."""


def operators() -> list[Any]:
    return list(op_db)


def to_dev(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        moved = value.detach().to("dev")
        return moved.requires_grad_() if value.requires_grad else moved
    if isinstance(value, torch.device):
        return torch.device("dev:0")
    return value


def moved(op: Any, sample: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    def move(value: Any) -> Any:
        return pytree.tree_map(to_dev, value)

    kwargs = {k: torch.device("dev:0") if k == "device" else move(v) for k, v in sample.kwargs.items()}
    args = sample.args if op.name == "tensor_split" else move(sample.args)
    return move(sample.input), args, kwargs


def compare(expected: Any, got: Any, values: bool) -> None:
    expected_leaves, got_leaves = pytree.tree_leaves(expected), pytree.tree_leaves(got)
    assert len(expected_leaves) == len(got_leaves), "another number of results"
    for e, g in zip(expected_leaves, got_leaves, strict=False):
        if not isinstance(e, torch.Tensor):
            assert not values or e == g or (e != e and g != g), f"{g} and not {e}"
            continue
        assert g.device.type == "dev", f"a result is on {g.device}"
        assert (e.shape, e.dtype, e.layout) == (g.shape, g.dtype, g.layout), "another shape, dtype or layout"
        if values:
            torch.testing.assert_close(g.cpu(), e, equal_nan=True)


def values_comparable(op: Any, sample: Any) -> bool:
    if op.name in VALUES_DIFFER:
        return False
    argument = DROPOUT_SAMPLES.get(op.name)
    if argument is None:
        return True
    return not (
        sample.kwargs.get(argument, 0.0) > 0 or any(isinstance(a, float) and a > 0 for a in sample.args)
    )


def is_refused(error: Exception) -> bool:
    return any(text in str(error) for text in REFUSED_BY_CPU)


def check(op: Any, dtype: torch.dtype, most_samples: int | None) -> tuple[int, int]:
    """Runs samples of one operator; returns how many ran and how many of them backward too.

    Raises what differs. A sample that the CPU refuses, for a reason in `REFUSED_BY_CPU`, is not counted.
    """
    torch.manual_seed(0)
    backward = (
        dtype.is_floating_point and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    )
    forward_count = backward_count = 0
    samples: Iterator[Any] = iter(op.sample_inputs("cpu", dtype, requires_grad=backward))
    for sample in itertools.islice(samples, most_samples):
        if (op.name, op.variant_test_name) == ("as_strided", "partial_views"):
            continue
        input, args, kwargs = moved(op, sample)
        try:
            expected = op(sample.input, *sample.args, **sample.kwargs)
        except AssertionError as error:
            if not is_refused(error):
                raise
            continue
        with torch.device("dev") if op.name in FACTORIES else contextlib.nullcontext():
            got = op(input, *args, **kwargs)
        values = values_comparable(op, sample)
        if op.name == "to":  # its samples name the device to go to
            got = pytree.tree_map(lambda t: t.to("dev"), got)
        compare(expected, got, values)
        forward_count += 1
        if not backward:
            continue
        outputs, our_outputs = differentiable(expected), differentiable(got)
        assert len(outputs) == len(our_outputs), "other results require a gradient"
        leaves = differentiable((sample.input, sample.args, sample.kwargs))
        our_leaves = differentiable((input, args, kwargs))
        if not outputs or not leaves:
            continue
        try:
            grads = gradients(outputs, leaves)
        except RuntimeError as error:
            if not is_refused(error):
                raise
            continue
        compare(grads, gradients(our_outputs, our_leaves), values)
        backward_count += 1
    return forward_count, backward_count
