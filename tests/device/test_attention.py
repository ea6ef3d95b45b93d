"""scaled_dot_product_attention: the CPU's fused kernel, and the operators for devices from outside."""

import logging

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

aten = torch.ops.aten


def parts(dtype=torch.float32, device="dev", heads=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = ((2, 3, 6, 8), (2, heads, 9, 8), (2, heads, 9, 8))
    return [torch.randn(s, generator=generator).to(dtype).to(device).requires_grad_() for s in sizes]


def choice(*arguments, **options):
    return SDPBackend(torch._fused_sdp_choice(*arguments, **options))


def test_the_choice_is_the_cpus_unless_the_caller_has_one():
    q, k, v = parts()
    wants_gradient = torch.zeros(6, 9, device="dev", requires_grad=True)
    assert choice(q, k, v) == SDPBackend.FLASH_ATTENTION
    assert choice(q, k, v, dropout_p=0.1) == choice(q, k, v, wants_gradient) == SDPBackend.MATH
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.OVERRIDEABLE):
        with sdpa_kernel(backend):
            assert choice(q, k, v) == backend
    with sdpa_kernel([SDPBackend.OVERRIDEABLE, SDPBackend.MATH], set_priority=True):
        assert choice(q, k, v) == SDPBackend.OVERRIDEABLE
        assert choice(q, k, v, dropout_p=0.1) == SDPBackend.MATH
        grouped = parts(heads=1)
        assert choice(*grouped, enable_gqa=True) == SDPBackend.MATH
    with sdpa_kernel(SDPBackend.OVERRIDEABLE):
        assert choice(q, k, v, wants_gradient) == SDPBackend.OVERRIDEABLE
        scaled_dot_product_attention(q, k, v, wants_gradient).sum().backward()
        assert wants_gradient.grad.shape == (6, 9)
        for options in ({"dropout_p": 0.1}, {"attn_mask": torch.zeros(2, 6, 9, device="dev")}):
            with pytest.raises(RuntimeError, match="No viable backend"):
                choice(q, k, v, **options)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION), pytest.raises(RuntimeError, match="No viable backend"):
        choice(q, k, v)


@pytest.mark.parametrize("backend", [None, SDPBackend.OVERRIDEABLE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", ["none", "causal", "mask", "boolean mask", "scale"])
def test_attention_has_the_bits_of_the_cpu(options, dtype, backend):
    results = []
    for device in ("cpu", "dev"):
        q, k, v = parts(dtype, device)
        chosen = {
            "none": {},
            "causal": {"is_causal": True},
            "mask": {"attn_mask": torch.linspace(-1, 1, 54).view(6, 9).to(dtype).to(device)},
            "boolean mask": {"attn_mask": (torch.arange(54).view(6, 9) % 5 > 0).to(device)},
            "scale": {"scale": 0.3},
        }[options]
        with sdpa_kernel(backend if backend and device == "dev" else SDPBackend.FLASH_ATTENTION):
            out = scaled_dot_product_attention(q, k, v, **chosen)
        out.backward(torch.linspace(-1, 1, out.numel()).view_as(out).to(dtype).to(device))
        if backend and device == "dev":
            assert "Overrideable" in out.grad_fn.name()
        results.append([t.detach().cpu() for t in (out, q.grad, k.grad, v.grad)])
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


@pytest.mark.parametrize("bias_size", [(2, 3, 6, 9), (1, 3, 1, 9), (6, 9)])
@pytest.mark.parametrize("causal", [False, True])
def test_the_overrideable_operator_differentiates_its_bias(causal, bias_size):
    q, k, v = parts(torch.float64)
    bias = torch.randn(bias_size, dtype=torch.float64, device="dev", requires_grad=True)
    out = aten._scaled_dot_product_fused_attention_overrideable(q, k, v, bias, 0.0, causal, scale=0.4)[0]
    grad = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, k, v, bias), grad)
    full = bias.expand(2, 3, 6, 9)
    if causal:
        full = full.masked_fill(torch.ones(6, 9, dtype=torch.bool, device="dev").triu(1), -torch.inf)
    in_steps = ((q @ k.transpose(2, 3)) * 0.4 + full).softmax(3) @ v
    torch.testing.assert_close(out, in_steps)
    for a, b in zip(got, torch.autograd.grad(in_steps, (q, k, v, bias), grad), strict=True):
        torch.testing.assert_close(a, b)


def test_the_overrideable_operator_returns_what_its_schema_says():
    q, k, v = parts()
    results = aten._scaled_dot_product_fused_attention_overrideable(q, k, v)
    assert [None if r is None else getattr(r, "shape", r) for r in results[:6]] == [
        (2, 3, 6, 8), (2, 3, 6), None, None, 6, 9
    ]  # fmt: skip
    assert results[6].shape == results[7].shape == ()
    bias = torch.zeros(2, 3, 6, 9, device="dev")
    gradients = aten._scaled_dot_product_fused_attention_overrideable_backward(
        results[0], q, k, v, bias, [True, True, True, True], *results[:8][:4], 6, 9, 0.0, False, *results[6:8]
    )
    assert [g.shape for g in gradients] == [q.shape, k.shape, v.shape, bias.shape]
    gradients = aten._scaled_dot_product_fused_attention_overrideable_backward(
        results[0], q, k, v, bias, [False, False, False, True], *results[:4], 6, 9, 0.0, False, *results[6:8]
    )
    assert gradients[:3] == (None, None, None) and gradients[3].shape == bias.shape
    with pytest.raises(NotImplementedError, match="has no dropout"):
        aten._scaled_dot_product_fused_attention_overrideable(q, k, v, None, 0.5)


@pytest.mark.filterwarnings("ignore")
def test_graphs_keep_the_fused_kernel():
    torch._dynamo.reset()
    seen = []

    def note(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    q, k, v = parts()
    backend = aot_autograd(fw_compiler=note)
    torch.compile(scaled_dot_product_attention, backend=backend)(q, k, v)
    assert "aten._scaled_dot_product_flash_attention_for_cpu.default" in seen
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_function_keeps_the_callers_choice(caplog):
    """Inductor has no such operator for the CPU: the graph runs as it is, and the log says why."""
    torch._dynamo.reset()
    q, k, v = parts()
    with sdpa_kernel(SDPBackend.OVERRIDEABLE), caplog.at_level(logging.INFO, "torch_occl.dev.inductor"):
        out = torch.compile(scaled_dot_product_attention)(q, k, v)
        assert torch.equal(out, scaled_dot_product_attention(q, k, v))
    assert "overrideable.default has no kernel for the CPU" in caplog.text
    torch._dynamo.reset()
