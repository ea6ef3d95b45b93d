"""torch.compile with inductor: graphs on `dev` are compiled for the CPU and run on the same memory."""

import copy
import logging

import pytest
import torch
from torch import nn

from torch_occl.dev import inductor

pytestmark = pytest.mark.filterwarnings("ignore")
# Each graph costs a run of the C++ compiler: most of these tests are left out by default.


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compiled_graphs(pytorch_compiles, monkeypatch):
    return how_graphs_were_treated(monkeypatch)


def how_graphs_were_treated(monkeypatch):
    """How graphs on dev were treated: None for those that were compiled, and a reason for the others."""
    seen = []
    original = inductor.why_not

    def why_not(gm, index):
        seen.append(original(gm, index))
        return seen[-1]

    monkeypatch.setattr(inductor, "why_not", why_not)
    return seen


def test_a_function_and_where_its_results_are(compiled_graphs):
    def f(x, y):
        return (x * 2 + y).relu(), x.sum(), x.view(-1)[2:], None, 3

    x, y = torch.randn(4, 5, device="dev:1"), torch.randn(5, device="dev:1")
    before = torch.dev.memory_allocated(1)
    got, expected = torch.compile(f)(x, y), f(x, y)
    assert compiled_graphs == [None]
    for a, b in zip(got[:3], expected[:3], strict=True):
        assert a.device == torch.device("dev:1") and a.untyped_storage().device == torch.device("dev:1")
        torch.testing.assert_close(a, b)
    assert got[3:] == (None, 3)
    assert got[2].untyped_storage()._cdata == x.untyped_storage()._cdata  # a view of the argument
    a = got[0]
    del got, expected
    assert torch.dev.memory_allocated(1) - before == 128  # 4 * 5 floats of `a`, in whole cache lines
    assert torch.dev.memory_snapshot(1) and a.data_ptr() % 64 == 0


@pytest.mark.full
def test_training_is_the_same_as_without(compiled_graphs):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    ).dev()
    other = copy.deepcopy(model)
    compiled = torch.compile(other)
    results = []
    for net, parameters in ((model, model.parameters()), (compiled, other.parameters())):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        losses = []
        for _ in range(3):
            x, y = torch.randn(8, 1, 8, 8).dev(), torch.randint(10, (8,)).dev()
            loss = nn.functional.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        results.append(losses)
    assert results[0] == pytest.approx(results[1], rel=1e-4)
    assert compiled_graphs == [None, None]  # forward and backward
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.full
def test_arguments_changed_in_place(pytorch_compiles):
    @torch.compile
    def f(x, y):
        x.add_(y)
        x[0].zero_()
        return x * 2

    x, y = torch.ones(3, 4, device="dev"), torch.full((3, 4), 2.0, device="dev")
    version, address = x._version, x.data_ptr()
    z = f(x, y)
    assert x.tolist() == [[0] * 4, [3] * 4, [3] * 4] and z.sum().item() == 48
    assert x._version > version and x.data_ptr() == address


@pytest.mark.full
def test_random_numbers_come_from_the_generator_of_the_device(compiled_graphs):
    @torch.compile
    def f(x):
        return nn.functional.dropout(x, 0.5), torch.rand_like(x)

    x = torch.ones(1000, device="dev")
    on_cpu = torch.get_rng_state()
    torch.dev.manual_seed(3)
    first, second = f(x), f(x)
    torch.dev.manual_seed(3)
    again = f(x)
    assert compiled_graphs == [None]
    assert torch.equal(torch.get_rng_state(), on_cpu)
    for a, b, c in zip(first, second, again, strict=True):
        assert torch.equal(a, c) and not torch.equal(a, b)
    assert abs(first[0].mean().item() - 1) < 0.2 and 0.4 < first[1].mean().item() < 0.6

    x.requires_grad_()
    dropped, _ = f(x)
    dropped.sum().backward()
    assert torch.equal(x.grad, dropped.detach())


@pytest.mark.full
def test_sizes_that_change(compiled_graphs):
    f = torch.compile(lambda x: x.t().contiguous() @ x + x.size(0), dynamic=True)
    for n in (3, 5, 9):
        x = torch.randn(n, 4, device="dev")
        torch.testing.assert_close(f(x), x.t().contiguous() @ x + n)
    assert compiled_graphs == [None]


@pytest.mark.full
def test_a_compiled_call_on_a_side_stream_waits_for_what_is_queued(pytorch_compiles):
    f = torch.compile(lambda x: x + 1)
    x = torch.zeros(1 << 20, device="dev")
    f(x)
    stream = torch.dev.Stream()
    with torch.dev.stream(stream):
        x.copy_(torch.ones(1 << 20).pin_memory(), non_blocking=True)
        assert f(x).sum().item() == 2 << 20


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.cpu() + 1, "is on cpu"),
        (lambda x: (x + 1).to("dev:1"), "is on dev:1"),
        (lambda x: torch.randperm(5, device="dev") + x[:5].long(), "draws random numbers"),
        (lambda x: torch.ops.occl_test_inductor.twice(x), "not an operator of PyTorch's own"),
    ],
)
def test_other_graphs_run_as_they_are(function, reason, compiled_graphs, caplog):
    with torch.library._scoped_library("occl_test_inductor", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "PrivateUse1")
        library.impl("twice", lambda x: torch.empty_like(x), "Meta")
        x = torch.randn(8, device="dev")
        torch.dev.manual_seed(1)
        expected = function(x)
        torch.dev.manual_seed(1)
        with caplog.at_level(logging.INFO, logger="torch_occl"):
            got = torch.compile(function)(x)
    assert reason in compiled_graphs[0]
    assert got.device == expected.device
    torch.testing.assert_close(got, expected)


@pytest.mark.full
def test_the_cpu_is_compiled_as_before(compiled_graphs):
    x = torch.randn(5)
    torch.testing.assert_close(torch.compile(lambda x: x.sin() + 1)(x), x.sin() + 1)
    assert compiled_graphs == []
