"""Random numbers: 16 bytes of state, the same numbers for the same seed, sound distributions."""

import pytest
import torch
from torch import nn

from tests.support.threads import number_restored

DRAWS = {
    "rand": lambda g=None: torch.rand(1000, device="dev", generator=g),
    "randn": lambda g=None: torch.randn(1000, device="dev", generator=g),
    "randint": lambda g=None: torch.randint(100, (1000,), device="dev", generator=g),
    "randperm": lambda g=None: torch.randperm(1000, device="dev", generator=g),
    "bernoulli": lambda g=None: torch.full((1000,), 0.5, device="dev").bernoulli(generator=g),
    "multinomial": lambda g=None: torch.ones(50, device="dev").multinomial(1000, True, generator=g),
    "normal_": lambda g=None: torch.empty(1000, device="dev").normal_(1, 2, generator=g),
    "uniform_": lambda g=None: torch.empty(1000, device="dev").uniform_(1, 2, generator=g),
    "exponential_": lambda g=None: torch.empty(1000, device="dev").exponential_(generator=g),
    "poisson": lambda g=None: torch.poisson(torch.full((1000,), 3.0, device="dev"), generator=g),
    "dropout": lambda g=None: nn.functional.dropout(torch.ones(1000, device="dev")),
    "native_dropout": lambda g=None: torch.native_dropout(torch.ones(1000, device="dev"), 0.5, True)[0],
    "rand_like": lambda g=None: torch.rand_like(torch.ones(1000, device="dev")),
    "rrelu": lambda g=None: nn.functional.rrelu(-torch.ones(1000, device="dev"), training=True),
}


@pytest.mark.parametrize("name", DRAWS)
def test_same_seed_same_numbers(name):
    draw = DRAWS[name]
    torch.manual_seed(5)
    first, second = draw(), draw()
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(draw(), first) and torch.equal(draw(), second)
    torch.manual_seed(6)
    assert not torch.equal(draw(), first)
    assert first.device == torch.device("dev:0")


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_do_not_depend_on_threads_or_on_the_cpu_generator(name):
    results = []
    with number_restored():
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch.rand(threads)
            torch.dev.manual_seed(7)
            results.append(DRAWS[name]())
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("name", DRAWS)
def test_cpu_generator_is_not_touched(name):
    before = torch.get_rng_state()
    DRAWS[name]()
    assert torch.equal(torch.get_rng_state(), before)


def test_state_is_seed_and_offset():
    torch.dev.manual_seed(77)
    state = torch.dev.get_rng_state()
    assert state.dtype == torch.uint8 and state.shape == (16,) and state.device.type == "cpu"
    assert state.view(torch.int64).tolist() == [77, 0]
    torch.rand(10, device="dev")
    moved = torch.dev.get_rng_state().view(torch.int64).tolist()
    assert moved[0] == 77 and moved[1] > 0 and moved[1] % 4 == 0
    expected = torch.rand(10, device="dev")
    torch.dev.set_rng_state(torch.tensor(moved).view(torch.uint8))
    assert torch.equal(torch.rand(10, device="dev"), expected)


def test_state_of_another_size_or_type_is_refused():
    for size in (0, 8, 17, 5056):
        with pytest.raises(RuntimeError, match="16 bytes"):
            torch.dev.set_rng_state(torch.zeros(size, dtype=torch.uint8))
    with pytest.raises((TypeError, RuntimeError)):
        torch.dev.set_rng_state(torch.zeros(16))
    with pytest.raises((TypeError, RuntimeError)):
        torch.dev.set_rng_state(torch.zeros(16, dtype=torch.uint8, device="dev"))


def test_all_devices():
    torch.dev.manual_seed_all(3)
    states = torch.dev.get_rng_state_all()
    assert len(states) == torch.dev.device_count()
    first = [torch.rand(3, device=f"dev:{i}") for i in range(3)]
    torch.dev.set_rng_state_all(states)
    for i, f in enumerate(first):
        assert torch.equal(torch.rand(3, device=f"dev:{i}"), f)
    torch.dev.seed_all()
    assert len({int(s.view(torch.int64)[0]) for s in torch.dev.get_rng_state_all()}) == 1
    torch.dev.seed()
    assert torch.dev.initial_seed() == int(torch.dev.get_rng_state().view(torch.int64)[0]) % 2**64
    assert len(torch.dev.default_generators) == torch.dev.device_count()


def test_generator_objects():
    g = torch.Generator("dev:1")
    assert g.device == torch.device("dev:1")
    g.manual_seed(9)
    for name in ("rand", "randn", "randperm", "multinomial", "bernoulli", "normal_"):
        g.manual_seed(9)
        a = DRAWS[name](g)
        g.manual_seed(9)
        assert torch.equal(DRAWS[name](g), a)
    clone = g.clone_state()
    assert torch.equal(torch.rand(3, device="dev", generator=g), torch.rand(3, device="dev", generator=clone))
    assert g.initial_seed() == 9 and g.get_offset() > 0
    g.set_offset(40)
    assert g.get_offset() == 40
    with pytest.raises(RuntimeError, match="Expected a 'dev' device type for generator but found 'cpu'"):
        torch.rand(3, device="dev", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.rand(3, generator=g)


def test_distributions():
    torch.manual_seed(0)
    n = 200_000
    assert torch.randn(n, device="dev").mean().abs().item() < 0.02
    assert abs(torch.randn(n, device="dev").std().item() - 1) < 0.02
    assert abs(torch.rand(n, device="dev").mean().item() - 0.5) < 0.01
    counts = torch.bincount(torch.randint(10, (n,), device="dev")).float() / n
    assert bool(((counts - 0.1).abs() < 0.01).all())
    assert abs(nn.functional.dropout(torch.ones(n, device="dev"), 0.3).mean().item() - 1) < 0.02
    # Operations one after the other, a number each: they must be as good as one operation.
    singles = torch.stack([torch.rand((), device="dev") for _ in range(5000)])
    assert abs(singles.mean().item() - 0.5) < 0.03 and abs(singles.var().item() - 1 / 12) < 0.01
    pairs = (singles[1:] - 0.5) * (singles[:-1] - 0.5)
    assert pairs.mean().abs().item() < 0.01


def test_neighbouring_seeds_and_offsets_are_unrelated():
    draws = []
    for seed in range(4):
        torch.dev.manual_seed(seed)
        draws += [torch.randn(2000, device="dev") for _ in range(4)]
    correlation = torch.corrcoef(torch.stack(draws)).cpu()
    assert (correlation - torch.eye(16)).abs().max().item() < 0.12


def test_fork_rng_and_checkpoint_restore_the_device():
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[0, 1], device_type="dev"):
        inside = torch.rand(3, device="dev")
    assert torch.equal(torch.rand(3, device="dev"), inside)

    x = torch.ones(1000, device="dev", requires_grad=True)
    for reentrant in (False, True):
        out = torch.utils.checkpoint.checkpoint(
            lambda t: nn.functional.dropout(t) * 2, x, use_reentrant=reentrant
        )
        x.grad = None
        out.sum().backward()
        assert torch.equal(x.grad, out.detach())


def test_dropout_gradient_matches_its_mask():
    x = torch.ones(100, device="dev", requires_grad=True)
    out = nn.Dropout(0.25)(x)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())
    assert torch.equal(nn.Dropout(0.25).eval()(x), x)
