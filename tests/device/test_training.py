"""Networks, autograd, optimizers, loaders: the same numbers as on the CPU."""

import pytest
import torch
from torch import nn


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 16),
        nn.LayerNorm(16),
        nn.GELU(),
        nn.Linear(16, 10),
    )


def batches():
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(8, 1, 8, 8, generator=generator), torch.randint(10, (8,), generator=generator))
        for _ in range(4)
    ]


OPTIMIZERS = {
    "sgd": lambda p, **k: torch.optim.SGD(p, lr=0.1, momentum=0.9, **k),
    "adam": lambda p, **k: torch.optim.Adam(p, lr=0.01, **k),
    "adamw": lambda p, **k: torch.optim.AdamW(p, lr=0.01, **k),
    "adagrad": lambda p, **k: torch.optim.Adagrad(p, lr=0.01, **k),
}


def train(device, optimizer, **options):
    model = network().to(device)
    step = OPTIMIZERS[optimizer](model.parameters(), **options)
    losses = []
    for x, y in batches():
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        step.zero_grad()
        loss.backward()
        step.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()], step


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}])
def test_training_is_the_same_as_on_the_cpu(optimizer, options):
    cpu_losses, cpu_parameters, _ = train("cpu", optimizer, **options)
    dev_losses, dev_parameters, step = train("dev", optimizer, **options)
    assert dev_losses == pytest.approx(cpu_losses, rel=1e-5)
    for a, b in zip(dev_parameters, cpu_parameters, strict=False):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    other = OPTIMIZERS[optimizer](network().dev().parameters(), **options)
    other.load_state_dict(step.state_dict())


def test_module_moves():
    model = network().to("dev:1")
    assert {p.device for p in model.parameters()} == {torch.device("dev:1")}
    assert {b.device for b in model.buffers()} == {torch.device("dev:1")}
    assert next(model.dev().parameters()).device.index == 0
    assert next(model.cpu().parameters()).device.type == "cpu"
    assert next(nn.Linear(2, 2, device="dev:3").parameters()).device.index == 3
    assert next(model.to("meta").to_empty(device="dev").parameters()).device.type == "dev"


@pytest.mark.parametrize(
    "make, shape",
    [
        (lambda: nn.LSTM(6, 5, 2, batch_first=True), (3, 4, 6)),
        (lambda: nn.GRU(6, 5, bidirectional=True), (4, 3, 6)),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
        (lambda: nn.ConvTranspose2d(2, 3, 3), (2, 2, 4, 4)),
        (lambda: nn.Conv1d(2, 3, 3, groups=1), (2, 2, 9)),
        (lambda: nn.Conv3d(1, 2, 2), (1, 1, 4, 4, 4)),
        (lambda: nn.Conv2d(4, 4, 3, groups=4, dilation=2), (2, 4, 8, 8)),
        (lambda: nn.GroupNorm(2, 4), (2, 4, 5)),
        (lambda: nn.InstanceNorm1d(4, affine=True), (2, 4, 5)),
        (lambda: nn.Bilinear(6, 6, 3), None),
        (lambda: nn.AdaptiveAvgPool2d(2), (1, 2, 7, 7)),
        (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 3, 3)),
        (lambda: nn.PReLU(), (3, 4)),
    ],
)
def test_layers(make, shape):
    torch.manual_seed(0)
    cpu = make()
    dev = make().dev()
    dev.load_state_dict(cpu.state_dict())
    inputs = [torch.randn(shape)] if shape else [torch.randn(3, 6), torch.randn(3, 6)]
    results = []
    for model, device in ((cpu, "cpu"), (dev, "dev")):
        x = [i.detach().to(device).requires_grad_() for i in inputs]
        out = model(*x)
        out = out[0] if isinstance(out, tuple) else out
        out.pow(2).sum().backward()
        results.append(
            [out.detach().cpu(), *(i.grad.cpu() for i in x), *(p.grad.cpu() for p in model.parameters())]
        )
    for a, b in zip(*results, strict=False):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_embedding_and_bag():
    for make in (lambda: nn.Embedding(10, 4), lambda: nn.EmbeddingBag(10, 4)):
        torch.manual_seed(0)
        cpu = make()
        dev = make().dev()
        dev.load_state_dict(cpu.state_dict())
        index = torch.tensor([[1, 2, 2], [4, 1, 9]])
        cpu(index).sum().backward()
        dev(index.dev()).sum().backward()
        torch.testing.assert_close(dev.weight.grad.cpu(), cpu.weight.grad)


def test_attention_forward_and_backward():
    for causal in (False, True):
        parts = [torch.randn(2, 3, 5, 8) for _ in range(3)]
        grads = []
        for device in ("cpu", "dev"):
            q, k, v = (p.detach().to(device).requires_grad_() for p in parts)
            out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            out.pow(2).sum().backward()
            grads.append([t.cpu() for t in (out.detach(), q.grad, k.grad, v.grad)])
        for a, b in zip(*grads, strict=False):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_gradients_accumulate_on_the_right_device():
    w = torch.ones(3, device="dev:2", requires_grad=True)
    for _ in range(2):
        (w * 3).sum().backward()
    assert w.grad.device == torch.device("dev:2") and w.grad.tolist() == [6, 6, 6]


def test_gradient_through_device_changes():
    x = torch.randn(3, requires_grad=True)
    y = (x.to("dev:0") * 2).to("dev:1").cpu().sum()
    y.backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_hooks_checkpoint_and_double_backward():
    x = torch.randn(4, device="dev", requires_grad=True)
    seen = []
    x.register_hook(lambda g: seen.append(g.device.type))
    out = torch.utils.checkpoint.checkpoint(lambda t: (t.sin() * t).sum(), x, use_reentrant=False)
    (grad,) = torch.autograd.grad(out, x, create_graph=True)
    grad.sum().backward()
    assert "dev" in seen
    torch.testing.assert_close(x.grad.cpu(), (2 * x.cos() - x * x.sin()).detach().cpu())


def test_gradcheck():
    x = torch.randn(3, 4, dtype=torch.float64, device="dev", requires_grad=True)
    w = torch.randn(5, 4, dtype=torch.float64, device="dev", requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: nn.functional.linear(a, b).tanh(), (x, w))


def test_saved_tensor_changed_in_place_is_noticed():
    x = torch.ones(3, device="dev", requires_grad=True)
    y = x.exp()
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_inference_mode():
    model = network().dev().eval()
    with torch.inference_mode():
        out = model(batches()[0][0].dev())
        assert out.is_inference() and out.view(-1).is_inference()
        out.add_(1)
    with torch.no_grad():
        assert not model(batches()[0][0].dev()).requires_grad


class Digits(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.full((3,), float(index)), index


def test_data_loader_workers_and_pinned_memory():
    torch.ones(1, device="dev")  # the device has been used: workers are forked after that
    loader = torch.utils.data.DataLoader(Digits(), batch_size=5, num_workers=2, pin_memory=True)
    seen = []
    for x, y in loader:
        assert x.is_pinned()
        there = x.to("dev", non_blocking=True)
        assert there.sum().item() == 3 * int(y.sum())
        seen += y.tolist()
    assert seen == list(range(20))


def test_parameters_and_state_dict_to_the_cpu():
    model = network().dev()
    state = {k: v.cpu() for k, v in model.state_dict().items()}
    fresh = network()
    fresh.load_state_dict(state)
    model.load_state_dict(fresh.state_dict())
    assert next(model.parameters()).device.type == "dev"
