"""16-bit weights beside float32 statistics, as mixed precision makes them: accelerators take both."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

TYPES = [torch.bfloat16, torch.float16]
SHAPES = {"2d": (8, 3), "3d": (4, 3, 7), "4d": (4, 3, 5, 6), "channels last": (4, 3, 5, 6)}


def normalized(device, dtype, weights, shape, training, affine=True):
    """Output, gradients and statistics; on the CPU the weights are widened, as accelerators do inside."""
    generator = torch.Generator().manual_seed(3)

    def draw(size, to):
        return (torch.randn(size, generator=generator) * 2 + 1).to(dtype).to(to).to(device)

    x = draw(SHAPES[shape], dtype)
    if shape == "channels last":
        x = x.to(memory_format=torch.channels_last)
    grad = draw(x.shape, dtype)
    statistics = draw(3, torch.float32), draw(3, torch.float32).square_()
    parameters = (
        (draw(3, weights).requires_grad_(), draw(3, weights).requires_grad_()) if affine else (None, None)
    )
    out = F.batch_norm(x.requires_grad_(), *statistics, *parameters, training, 0.1, 1e-5)
    out.backward(grad)
    return out.detach(), x.grad, [p.grad for p in parameters if affine], statistics


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_batch_norm_of_16_bit_weights_and_float_statistics(dtype, shape, training, affine):
    out, grad, parameters, statistics = normalized("dev", dtype, dtype, shape, training, affine)
    expected = normalized("cpu", dtype, torch.float32, shape, training, affine)
    assert out.dtype == grad.dtype == dtype and out.device.type == "dev"
    assert out.stride() == expected[0].stride() and grad.stride() == expected[1].stride()
    assert torch.equal(out.cpu(), expected[0]) and torch.equal(grad.cpu(), expected[1])
    for got, wide in zip(parameters, expected[2], strict=True):
        assert got.dtype == dtype and torch.equal(got.cpu(), wide.to(dtype))
    for got, wide in zip(statistics, expected[3], strict=True):
        assert got.dtype == torch.float32 and torch.equal(got.cpu(), wide)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "types", [("16", "16", "16"), ("16", "16", None), ("16", "32", "32"), ("32", "32", "32")]
)
def test_what_the_cpu_takes_is_computed_as_there(dtype, types):
    kind = {"16": dtype, "32": torch.float32}
    results = []
    for device in ("cpu", "dev"):
        torch.manual_seed(1)
        x = torch.randn(4, 3, 5).to(kind[types[0]]).to(device).requires_grad_()
        w, b = (torch.randn(3).to(kind[types[1]]).to(device).requires_grad_() for _ in range(2))
        statistics = (None, None)
        if types[2]:
            statistics = (
                torch.zeros(3).to(kind[types[2]]).to(device),
                torch.ones(3).to(kind[types[2]]).to(device),
            )
        out = F.batch_norm(x, *statistics, w, b, True)
        out.sum().backward()
        results.append(
            [t.detach().cpu() for t in (out, x.grad, w.grad, b.grad, *statistics) if t is not None]
        )
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


def test_the_operators_behind_batch_norm():
    """Those that export and its likes call, and the ones with `out`."""
    x, w, b = (torch.randn(size, dtype=torch.bfloat16, device="dev") for size in ((4, 3, 5), 3, 3))

    def statistics():
        return torch.zeros(3, device="dev"), torch.ones(3, device="dev")

    aten = torch.ops.aten
    out, mean, invstd = aten.native_batch_norm(x, w, b, *statistics(), True, 0.1, 1e-5)
    assert mean.dtype == invstd.dtype == torch.float32
    places = torch.empty_like(x), torch.empty(3, device="dev"), torch.empty(3, device="dev")
    aten.native_batch_norm.out(
        x, w, b, *statistics(), True, 0.1, 1e-5, out=places[0], save_mean=places[1], save_invstd=places[2]
    )
    for others in (
        places,
        aten._native_batch_norm_legit(x, w, b, *statistics(), True, 0.1, 1e-5),
        aten._batch_norm_with_update(x, w, b, *statistics(), 0.1, 1e-5),
        aten._native_batch_norm_legit_functional(x, w, b, *statistics(), True, 0.1, 1e-5),
    ):
        assert all(torch.equal(p, q) for p, q in zip((out, mean, invstd), others, strict=False))
    grad = torch.randn_like(x)
    running = statistics()
    first = aten.native_batch_norm_backward(grad, x, w, *running, mean, invstd, True, 1e-5, [True] * 3)
    reserve = torch.empty(0, dtype=torch.uint8, device="dev")
    second = aten.batch_norm_backward(grad, x, w, *running, mean, invstd, True, 1e-5, [True] * 3, reserve)
    assert [t.dtype for t in first] == [torch.bfloat16] * 3
    assert all(torch.equal(p, q) for p, q in zip(first, second, strict=True))
    only_input = aten.native_batch_norm_backward(
        grad, x, w, *running, mean, invstd, True, 1e-5, [True, False, False]
    )
    assert torch.equal(only_input[0], first[0]) and only_input[1] is None is only_input[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_evaluation_by_the_operators_behind_batch_norm(dtype):
    x, w, b = (torch.randn(size, device="dev").to(dtype) for size in ((4, 3, 5), 3, 3))
    statistics = torch.randn(3, device="dev"), torch.rand(3, device="dev") + 1
    aten = torch.ops.aten
    expected = F.batch_norm(x.cpu(), *(s.cpu() for s in statistics), w.cpu().float(), b.cpu().float())
    for results in (
        aten._batch_norm_no_update(x, w, b, *statistics, 0.1, 1e-5),
        aten._native_batch_norm_legit_no_training(x, w, b, *statistics, 0.1, 1e-5),
    ):
        assert results[0].dtype == dtype and torch.equal(results[0].cpu(), expected)


def test_modules_with_16_bit_parameters_and_float_buffers():
    for module, size in (
        (nn.BatchNorm1d(3), (4, 3, 5)),
        (nn.BatchNorm2d(3), (2, 3, 4, 5)),
        (nn.BatchNorm3d(3), (2, 3, 2, 4, 5)),
        (nn.InstanceNorm1d(3, affine=True, track_running_stats=True), (4, 3, 5)),
    ):
        module.dev()
        for parameter in module.parameters():
            parameter.data = parameter.data.bfloat16()
        x = torch.randn(size, device="dev").bfloat16().requires_grad_()
        for training in (True, False):
            module.train(training)
            module(x).sum().backward()
        assert module.weight.grad.dtype == torch.bfloat16 and module.running_mean.dtype == torch.float32
        assert module.running_mean.abs().sum() > 0


def test_a_network_under_fsdp2_with_mixed_precision(run_python):
    """Parameters travel and compute in bfloat16; the statistics of batch normalization stay float32."""
    run_python(
        """
        import torch, torch_occl
        import torch.distributed as dist
        from torch import nn
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        dist.init_process_group("occl", store=dist.HashStore(), rank=0, world_size=1)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2)).dev()
        fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        step = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(8, 1, 6, 6, device="dev")).float().square().mean().backward()
            step.step()
            step.zero_grad()
        assert model[1].running_mean.dtype == torch.float32 and model[1].running_mean.abs().sum() > 0
        assert model[1].weight.dtype == torch.float32
        model.eval()
        assert model(torch.randn(8, 1, 6, 6, device="dev")).dtype == torch.bfloat16
        dist.destroy_process_group()
        """
    )
