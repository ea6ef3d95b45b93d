"""Sparse and quantized tensors, autocast, SyncBatchNorm's kernels: compared with the CPU."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")


def coo(device="cpu"):
    index = torch.tensor([[0, 1, 1, 0], [2, 0, 2, 2]], device=device)
    return torch.sparse_coo_tensor(index, torch.tensor([3.0, 4.0, 5.0, 6.0], device=device), (2, 3))


def test_coo_is_made_and_moved():
    x = coo("dev:1")
    assert x.device == torch.device("dev:1") and x.layout == torch.sparse_coo and not x.is_coalesced()
    assert torch.equal(x.to_dense().cpu(), coo().to_dense())
    y = coo().to("dev:1")
    assert y.device == x.device and torch.equal(y.to_dense(), x.to_dense())
    assert x.cpu().device.type == "cpu" and x.coalesce().indices().device == x.device
    assert torch.equal(x.to("dev:0").to_dense().cpu(), coo().to_dense())
    assert x.clone().device == x.device


def test_coo_shares_the_memory_of_its_parts():
    values = torch.ones(2, device="dev")
    x = torch.sparse_coo_tensor(torch.tensor([[0, 1]], device="dev"), values, (3,))
    values.fill_(5)
    assert x.to_dense().tolist() == [5, 5, 0]
    x._values().fill_(7)
    assert values.tolist() == [7, 7]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, d: x + x,
        lambda x, d: x * 3,
        lambda x, d: torch.sparse.mm(x, torch.ones(3, 2, device=d)),
        lambda x, d: x @ torch.ones(3, device=d),
        lambda x, d: x.t(),
        lambda x, d: x.coalesce().mul_(2),
        lambda x, d: torch.sparse.sum(x, 0),
        lambda x, d: x.coalesce().transpose(0, 1).to_sparse_csr(),
        lambda x, d: x.clone().zero_(),
        lambda x, d: x.clone().add_(x),
        lambda x, d: torch.cat([x, x]),
        lambda x, d: x.sparse_mask(x.coalesce()),
        lambda x, d: torch.ones(2, 3, device=d) + x,
    ],
)
def test_coo_operations(function):
    result, expected = function(coo("dev"), "dev"), function(coo(), "cpu")
    assert result.device.type == "dev" and result.layout == expected.layout
    assert torch.equal(result.to_dense().cpu(), expected.to_dense())


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc])
def test_compressed_layouts(layout):
    dense = torch.tensor([[1.0, 0, 2], [0, 3, 0]])
    x = dense.dev().to_sparse(layout=layout)
    assert x.device.type == "dev" and x.layout == layout and x.values().device.type == "dev"
    assert torch.equal(x.cpu().to_dense(), dense)
    assert torch.equal((x @ torch.ones(3, 2, device="dev")).cpu(), dense @ torch.ones(3, 2))
    assert torch.equal((x * 2).to_dense().cpu(), dense * 2)
    assert torch.equal(dense.to_sparse(layout=layout).dev().to_dense().cpu(), dense)


def test_sparse_gradients_and_optimizer():
    results = []
    for device in ("cpu", "dev"):
        torch.manual_seed(0)
        embedding = nn.Embedding(10, 3, sparse=True).to(device)
        optimizer = torch.optim.SparseAdam(embedding.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            embedding(torch.tensor([1, 2, 2], device=device)).pow(2).sum().backward()
            assert embedding.weight.grad.is_sparse and embedding.weight.grad.device.type == device
            optimizer.step()
        results.append(embedding.weight.detach().cpu())
    torch.testing.assert_close(*results)


def test_sparse_save_and_load(tmp_path):
    torch.save(coo("dev"), tmp_path / "x")
    x = torch.load(tmp_path / "x")
    assert x.device.type == "dev" and torch.equal(x.to_dense().cpu(), coo().to_dense())


def test_quantized():
    source = torch.randn(4, 6)
    for quantize in (
        lambda x: torch.quantize_per_tensor(x, 0.1, 3, torch.qint8),
        lambda x: torch.quantize_per_channel(
            x,
            torch.full((4,), 0.1, device=x.device),
            torch.zeros(4, dtype=torch.long, device=x.device),
            0,
            torch.quint8,
        ),
    ):
        cpu, dev = quantize(source), quantize(source.dev())
        assert dev.device.type == "dev" and dev.is_quantized and dev.qscheme() == cpu.qscheme()
        assert torch.equal(dev.dequantize().cpu(), cpu.dequantize())
        file = io.BytesIO()
        torch.save(dev, file)
        file.seek(0)
        for same in (copy.deepcopy(dev), torch.load(file), pickle.loads(pickle.dumps(dev))):
            assert same.device == dev.device and same.qscheme() == dev.qscheme()
            assert torch.equal(same.dequantize().cpu(), cpu.dequantize())
        assert torch.equal(dev.int_repr().cpu(), cpu.int_repr())
        assert dev.cpu().device.type == "cpu" and torch.equal(dev.cpu().int_repr(), cpu.int_repr())
        assert torch.equal(cpu.dev().int_repr().cpu(), cpu.int_repr())
        if cpu.qscheme() == torch.per_tensor_affine:  # the CPU has these for one scale only
            assert torch.equal(dev.view(-1)[3:9].int_repr().cpu(), cpu.view(-1)[3:9].int_repr())
            assert torch.equal(dev.clone().relu().int_repr().cpu(), cpu.clone().relu().int_repr())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)).dev()
    x = torch.randn(5, 8, device="dev")
    with torch.autocast("dev", dtype=dtype):
        assert torch.is_autocast_enabled("dev") and torch.get_autocast_dtype("dev") == dtype
        y = model[0](x)
        assert y.dtype == dtype and (y @ y.t()).dtype == dtype
        assert y.softmax(-1).dtype == torch.float32 and model[1](y).dtype == torch.float32
        assert torch.addcmul(y, y.float(), y).dtype == torch.float32  # promotes
        assert (torch.randn(3) @ torch.randn(3)).dtype == torch.float32  # the CPU is not concerned
        with torch.autocast("dev", enabled=False):
            assert model[0](x).dtype == torch.float32
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            nn.functional.binary_cross_entropy(y.sigmoid(), y.sigmoid())
        loss = nn.functional.mse_loss(model(x), torch.zeros(5, 4, device="dev"))
        assert loss.dtype == torch.float32
    loss.backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.autocast("dev", dtype=torch.float64):
            assert not torch.is_autocast_enabled("dev")
    assert caught


def test_grad_scaler():
    model = nn.Linear(4, 2).dev()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("dev", init_scale=16.0)
    before = model.weight.detach().clone()
    with torch.autocast("dev", dtype=torch.float16):
        loss = model(torch.ones(3, 4, device="dev")).float().sum()
    scaler.scale(loss).backward()
    assert model.bias.grad.tolist() == [48, 48]
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(model.weight, before - 0.3)
    optimizer.zero_grad()
    scaler.scale(model(torch.full((1, 4), float("inf"), device="dev")).sum()).backward()
    before = model.weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before) and scaler.get_scale() == 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (2, 3, 4, 5)])
def test_sync_batch_norm_kernels(shape, dtype):
    """Two halves of a batch through the kernels give what one batch gives through batch_norm."""
    eps, momentum = 1e-5, 0.1
    batch = torch.randn(shape).double() * 3 + 1
    weight, bias = torch.randn(3).double(), torch.randn(3).double()
    halves = [h.to(dtype).dev() for h in batch.split(batch.size(0) // 2)]
    batch = torch.cat([h.cpu().double() for h in halves]).requires_grad_()
    weight, bias = weight.requires_grad_(), bias.requires_grad_()
    running = torch.zeros(3).double(), torch.ones(3).double()
    expected = nn.functional.batch_norm(batch, *running, weight, bias, True, momentum, eps)
    grad = torch.randn(shape).to(dtype).double()
    expected.backward(grad)

    kind = torch.float64 if dtype == torch.float64 else torch.float32
    w, b = weight.detach().to(kind).dev(), bias.detach().to(kind).dev()
    stats = [torch.batch_norm_stats(h, eps) for h in halves]
    assert stats[0][0].dtype == kind
    counts = torch.tensor([h.numel() / 3 for h in halves], dtype=kind, device="dev")
    mean_all, invstd_all = (torch.stack([s[i] for s in stats]) for i in (0, 1))
    ours = torch.zeros(3, dtype=kind, device="dev"), torch.ones(3, dtype=kind, device="dev")
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        halves[0], mean_all, invstd_all, *ours, momentum, eps, counts
    )
    tolerance = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 3e-2}[dtype]

    def close(a, b):
        torch.testing.assert_close(a.cpu().double(), b.double(), rtol=tolerance, atol=tolerance * 5)

    close(ours[0], running[0])
    close(ours[1], running[1])
    out = [torch.batch_norm_elemt(h, w, b, mean, invstd, eps) for h in halves]
    assert out[0].dtype == dtype
    close(torch.cat(out), expected.detach())
    place = torch.empty(0, dtype=dtype, device="dev")
    assert torch.batch_norm_elemt(halves[0], w, b, mean, invstd, eps, out=place) is place
    assert torch.equal(place, out[0])

    grads = [g.to(dtype).dev() for g in grad.split(len(grad) // 2)]
    reduced = [
        torch.batch_norm_backward_reduce(g, h, mean, invstd, w, True, True, True)
        for g, h in zip(grads, halves, strict=False)
    ]
    close(sum(r[2] for r in reduced), weight.grad)
    close(sum(r[3] for r in reduced), bias.grad)
    sum_dy, sum_dy_xmu = sum(r[0] for r in reduced), sum(r[1] for r in reduced)
    inputs = [
        torch.batch_norm_backward_elemt(g, h, mean, invstd, w, sum_dy, sum_dy_xmu, counts.int())
        for g, h in zip(grads, halves, strict=False)
    ]
    close(torch.cat(inputs), batch.grad)
    same = torch.batch_norm_gather_stats(
        halves[0], mean_all, invstd_all, None, None, momentum, eps, int(counts[0])
    )
    close(same[0], mean.cpu())
