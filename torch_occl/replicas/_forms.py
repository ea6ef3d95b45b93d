"""Converts the names and forms of the published interface to those that the functions use.

``docs/replicas.md`` maps name to name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def also_named(**names: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Lets the caller of a function use other keyword names too: ``also_named(theirs="ours")``.

    A call that passes one argument under both names raises ``TypeError``. Type checkers know the other names
    from overloads.
    """

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        order = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> T:
            for theirs in names.keys() & keywords.keys():
                ours, value = names[theirs], keywords.pop(theirs)
                if ours in keywords or ours in order[: len(arguments)]:
                    raise TypeError(
                        f"{function.__name__}: {theirs} is another name of {ours}, which is given too; "
                        "leave out one of them"
                    )
                keywords[ours] = value
            return function(*arguments, **keywords)

        return call

    return decorate


def check_callable(call: str, name: str, function: Any) -> None:
    if not callable(function):
        raise TypeError(f"{call}: {name} is not a function but {type(function).__name__}")


def replica_function(
    call: str, forward_fn: Callable[..., Any], batch: Any, queues: Sequence[torch.Stream]
) -> Callable[[int, Sequence[torch.Tensor], Any], Any]:
    """``forward_fn`` as ``f(i, params, shard)``, whether it has that form or ``f(queue, *shards, params)``.

    It has the second form if its first parameter is called ``queue``, if ``params`` is a keyword-only
    parameter, or if it does not accept three arguments. A function whose parameters Python cannot list has
    the first form.
    """
    parameters = _parameters_of(forward_fn)
    parts = len(_parts_of(batch))
    # The name decides first: with defaults or *shards, three arguments may fit this form too.
    named = any(p.name == "params" and p.kind is p.KEYWORD_ONLY for p in parameters)
    if not named and not (parameters and parameters[0].name == "queue") and _takes(forward_fn, 3):
        return forward_fn
    fits = _takes(forward_fn, 1 + parts, "params") if named else _takes(forward_fn, 2 + parts)
    if not fits:
        raise TypeError(
            f"{call}: forward_fn{inspect.signature(forward_fn)} takes neither (i, params, shard) nor "
            f"(queue, *shards, params), with one shard for each part of the batch, which has {parts}"
        )

    def with_queue(i: int, params: Sequence[torch.Tensor], shard: Any) -> Any:
        if named:
            return forward_fn(queues[i], *_parts_of(shard), params=params)
        return forward_fn(queues[i], *_parts_of(shard), params)

    return with_queue


def batch_hook(call: str, hook: Callable[..., Any], batch: Any) -> Callable[[Any], Any]:
    """``pre_shard_hook`` as ``f(batch)``, whether it has that form or ``f(*parts)``."""
    parts = _parts_of(batch)
    if _takes(hook, 1):
        return hook
    if not _takes(hook, len(parts)):
        raise TypeError(
            f"{call}: pre_shard_hook{inspect.signature(hook)} takes neither the batch nor its parts, "
            f"of which there are {len(parts)}"
        )
    return lambda batch: hook(*_parts_of(batch))


def loss_and_tape(returned: Any) -> tuple[torch.Tensor, Any]:
    """What ``forward_fn`` has returned: the loss and None, or the loss and what computes its gradients."""
    loss, tape = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError(
            f"forward_fn must return the loss, a scalar, or (loss, tape); it returned {returned!r:.99}"
        )
    # A tensor has a backward() of its own, which takes something else.
    if tape is not None and (isinstance(tape, torch.Tensor) or not callable(getattr(tape, "backward", None))):
        raise TypeError(
            f"forward_fn returned the loss and a {type(tape).__name__}, which is no tape: a tape has "
            "backward(loss); return None in its place where loss.backward() is meant"
        )
    return loss, tape


def _parts_of(batch: Any) -> Sequence[Any]:
    """What ``*shards`` stands for: the elements of a tuple or list, and anything else as it is."""
    return batch if isinstance(batch, (tuple, list)) else (batch,)


def _parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # a function of C without a signature
        return []


def _takes(function: Callable[..., Any], count: int, *keywords: str) -> bool:
    """Whether the function accepts ``count`` positional arguments and these keywords."""
    try:
        inspect.signature(function).bind(*range(count), **dict.fromkeys(keywords))
    except TypeError:
        return False
    except ValueError:  # a function of C without a signature
        return True
    return True
