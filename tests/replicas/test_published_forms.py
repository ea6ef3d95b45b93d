"""Every published form of `forward_fn` and `pre_shard_hook` does what today's does."""

import functools

import pytest
import torch

from torch_occl.replicas import ReplicaError, data_parallel_step

from .test_step import Replicated, batches, boom, loss_of, same


class Calls:
    """Callable objects and methods; as all functions here, they return their form and what they got."""

    def today(self, i, params, shard):
        return "today", i, params, shard

    def published(self, queue, x, y, params):
        return "published", queue, params, (x, y)

    def __call__(self, q, first, second, p):
        return self.published(q, first, second, p)


def with_shards(queue, *shards, params):
    return "published", queue, params, shards


def told_by_params(where, *shards, params, verbose=False):
    return "published", where, params, shards


def with_one_shard(where, shard, *, params):
    raise AssertionError("nothing may be computed")


def told_by_queue(queue, *rest):
    return "published", queue, rest[-1], rest[:-1]


def with_defaults(queue, x=None, y=None, params=None):
    return "published", queue, params, (x, y)


def longer(q, x, y, p, training=True):
    return "published", q, p, (x, y)


def single(queue, x, params):
    return "published", queue, params, (x,)


def anything(*arguments):
    return "today", *arguments


def renamed(number, _, data, scale=1.0):
    return "today", number, _, data


PAIR, TRIPLE = (torch.ones(4),) * 2, (torch.ones(4),) * 3
FUNCTIONS = {
    "lambda, today's": (lambda i, params, shard: ("today", i, params, shard), PAIR, "today"),
    "lambda, today's, one part": (
        lambda i, params, shard: ("today", i, params, shard),
        torch.ones(4),
        "today",
    ),
    "method, today's": (Calls().today, PAIR, "today"),
    "takes anything": (anything, PAIR, "today"),
    "other names": (renamed, PAIR, "today"),
    "lambda": (lambda q, x, y, p: ("published", q, p, (x, y)), PAIR, "published"),
    "method": (Calls().published, PAIR, "published"),
    "object": (Calls(), PAIR, "published"),
    "partial": (functools.partial(longer, training=False), PAIR, "published"),
    "*shards, three parts": (with_shards, TRIPLE, "published"),
    "*shards, a list": (with_shards, list(PAIR), "published"),
    "*shards, one part": (with_shards, torch.ones(4), "published"),
    "*shards, a dict": (with_shards, {"x": torch.ones(4)}, "published"),
    "told by params": (told_by_params, PAIR, "published"),
    "queue, *rest": (told_by_queue, TRIPLE, "published"),
    "defaults": (with_defaults, PAIR, "published"),
    "told by the number of parts": (longer, PAIR, "published"),
    "one part": (single, torch.ones(4), "published"),
    "one part in a tuple": (single, (torch.ones(4),), "published"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_form_of_the_function_is_told_by_its_parameters(name):
    function, batch, expected = FUNCTIONS[name]
    replicated, seen = Replicated(2), {}

    @functools.wraps(function)
    def forward(*arguments, **keywords):
        form, first, params, shard = function(*arguments, **keywords)
        i = torch.dev.current_device()
        if form == "published":
            assert first == torch.dev.current_stream() and first.device.index == i
            assert len(shard) == (len(batch) if isinstance(batch, (tuple, list)) else 1)
        else:
            assert first == i and type(shard) is type(batch)
        assert all(p is q for p, q in zip(params, replicated.parameters[i], strict=True))
        leaves = torch.utils._pytree.tree_leaves(shard)
        assert leaves and all(leaf.shape == (2,) and leaf.device.index == i for leaf in leaves)
        seen[i] = form
        return sum(p.square().sum() for p in params)

    replicated.step(batch, forward)
    assert seen == {0: expected, 1: expected}


def test_the_batch_that_the_hook_returns_says_how_many_shards_there_are():
    replicated, seen = Replicated(2), []

    def forward(queue, x, y, params):
        seen.append((len(x), len(y)))
        return sum(p.sum() for p in params)

    batch = {"x": torch.ones(4), "y": torch.ones(4)}
    replicated.step(batch, forward, pre_shard_hook=lambda batch: (batch["x"], batch["y"]))
    assert seen == [(2, 2)] * 2


def two(queue, params):
    raise AssertionError("nothing may be computed")


def four(i, params, shard, more):
    raise AssertionError("nothing may be computed")


@pytest.mark.parametrize(
    ("function", "batch", "text"),
    [
        (two, PAIR, r"forward_fn\(queue, params\) takes neither .* for each part of the batch, which has 2"),
        (lambda i: None, PAIR, r"forward_fn\(i\) takes neither \(i, params, shard\) nor"),
        (four, TRIPLE, r"forward_fn\(i, params, shard, more\) takes neither .* which has 3"),
        (four, torch.ones(4), r"forward_fn\(i, params, shard, more\) takes neither .* which has 1"),
        (with_one_shard, PAIR, r"forward_fn\(where, shard, \*, params\) takes neither .* which has 2"),
        (None, PAIR, "forward_fn is not a function but NoneType"),
        (Replicated, None, "forward_fn.* takes neither"),
    ],
)
def test_functions_of_no_form_are_refused(function, batch, text):
    replicated = Replicated(2)
    before = replicated.state()
    with pytest.raises(TypeError, match=f"^data_parallel_step: {text}"):
        data_parallel_step(function, replicated.parameters, replicated.optimizers, batch)
    assert same(replicated.state(), before)


class Tape:
    """Doubles the gradients, to be told from loss.backward()."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def backward(self, loss):
        self.seen.append(loss)
        loss.backward(torch.full_like(loss, 2.0))


@pytest.mark.parametrize("published", [False, True])
def test_the_tape_computes_the_gradients(published):
    def gradients(returned):
        replicated, seen = Replicated(2), []

        def today(i, params, shard):
            return returned(loss_of(replicated.modules[i], shard))

        def forward(queue, x, y, params):
            return returned(loss_of(replicated.modules[queue.device.index], (x, y)))

        def keep(parameters):
            seen.extend(p.grad.cpu().clone() for p in parameters[0])

        result = replicated.step(batches(1, 4)[0], forward if published else today, post_sync_hook=keep)
        return result, seen

    tape = Tape()
    with_tape, doubled = gradients(lambda loss: (loss, tape))
    for returned in (lambda loss: loss, lambda loss: (loss, None)):
        result, expected = gradients(returned)
        assert with_tape.loss == result.loss
        assert all(torch.equal(a, b * 2) for a, b in zip(doubled, expected, strict=True))
    assert len(tape.seen) == 2


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (
            lambda loss: (loss, loss * 2),
            "returned the loss and a Tensor, which is no tape: a tape has backward",
        ),
        (lambda loss: (loss, "tape"), "returned the loss and a str, which is no tape"),
        (
            lambda loss: (loss, None, None),
            r"must return the loss, a scalar, or \(loss, tape\); it returned \(",
        ),
        (lambda loss: (None, Tape()), "must return the loss, a scalar, or"),
        (lambda loss: (loss.expand(2), None), "must return the loss, a scalar, or"),
        (lambda loss: [loss, None], "must return the loss, a scalar, or"),
        (lambda loss: loss.item(), "must return the loss, a scalar, or"),
    ],
)
def test_what_is_no_loss_and_tape_is_refused(returned, text):
    replicated = Replicated(2)
    before = replicated.state()
    with pytest.raises(ReplicaError, match=f"TypeError: forward_fn {text}"):
        replicated.step(batches(1, 4)[0], lambda queue, x, y, params: returned(sum(p.sum() for p in params)))
    assert same(replicated.state(), before)


def test_the_hook_before_sharding_gets_the_batch_or_its_parts():
    replicated, seen = Replicated(2), []

    def see(x, y):
        seen.append((x, y))

    def replace(x, y):
        return x[:2], {"y": y["y"][:2]}

    (batch,) = batches(1, 6)
    for hook, sizes in ((see, [3, 3]), (replace, [1, 1]), (lambda batch: seen.append(batch), [3, 3])):
        assert replicated.step(batch, pre_shard_hook=hook).sizes == sizes
    assert len(seen) == 2 and all(x is batch[0] and y is batch[1] for x, y in seen)
    replicated.step(batch, pre_shard_hook=lambda *batches: seen.append(batches))
    assert seen[2] == (batch,)  # one argument fits


def test_hooks_of_no_form_are_refused_before_they_are_called():
    replicated, before = Replicated(2), Replicated(2).state()
    (batch,) = batches(1, 4)
    text = r"^data_parallel_step: pre_shard_hook\(a, b, c\) takes neither the batch nor its parts, .* 2$"
    with pytest.raises(TypeError, match=text):
        replicated.step(batch, pre_shard_hook=lambda a, b, c: None)
    for name in ("pre_shard_hook", "post_sync_hook", "post_step_hook"):
        with pytest.raises(TypeError, match=f"^data_parallel_step: {name} is not a function but int"):
            replicated.step(batch, **{name: 3})
    with pytest.raises(ReplicaError, match="pre_shard_hook raised Boom"):
        replicated.step(batch, pre_shard_hook=lambda x, y: boom())
    assert same(replicated.state(), before)
