"""Rules of groups whose members change, which PyTorch has from 2.14 on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from occl.conformance.catalog import API, Source, over, rule
from occl.conformance.rank_api import Rank

METHODS = ("supportsReconfigure", "get_reconfigure_handle", "reconfigure")
_dist: Any = dist  # up to 2.13 without these functions
CHANGES = ("same", "backwards", "fewer", "set")


def _begin(rank: Rank) -> None:
    """A group that is still to be made, in place of the default group."""
    if not _dist._supports_reconfigure():
        raise NotImplementedError("supports_reconfigure is false")
    rank.make_again("conformance/reconfigure", enable_reconfigure=True)


def _handles(rank: Rank, members: list[int], turn: int) -> list[str]:
    """Those that the members have now: they may change."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"handle/{turn}/{rank.rank}", _dist._get_reconfigure_handle())
    return [store.get(f"handle/{turn}/{member}").decode() for member in members]


def _make(rank: Rank, uuid: int, members: Iterable[int], kind: type = list) -> None:
    members = list(members)
    handles = kind(_handles(rank, members, uuid))
    _dist._reconfigure(uuid, handles).wait()
    rank.equal(dist.get_world_size(), len(members), "the size of the group")
    if isinstance(handles, list):
        rank.equal(dist.get_rank(), members.index(rank.rank), "the rank in the group")
    t = rank.tensor(float(rank.rank))
    dist.all_reduce(t)
    rank.same(t, torch.tensor([float(sum(members))]), f"the sum of the members {members}")


@rule(
    "reconfigure", "members", "The first reconfigure makes a group, and the next one changes its members.",
    Source(API, "Reconfigure ``group`` with a new set of peers"), own=True, ranks=3, methods=METHODS,
    cases=over(change=CHANGES),
)  # fmt: skip
def members(rank: Rank, *, change: str) -> None:
    _begin(rank)
    everyone = range(rank.size)
    _make(rank, 1, everyone)
    if change == "same":
        _make(rank, 2, everyone)
    elif change == "backwards":
        _make(rank, 2, reversed(everyone))
    elif change == "set":
        _make(rank, 2, everyone, set)
    elif rank.rank > 0:
        _make(rank, 2, everyone[1:])


@rule(
    "reconfigure", "used_uuid", "A uuid that was used before is refused, and the group stays.",
    Source(API, "a fresh value on every (re)initialization"), own=True, refuses=True, methods=METHODS,
)  # fmt: skip
def used_uuid(rank: Rank) -> None:
    _begin(rank)
    _make(rank, 1, range(rank.size))
    handles = _handles(rank, list(range(rank.size)), 2)
    rank.refuses(lambda: _dist._reconfigure(1, handles), "a uuid that was used")
    rank.still_works()


@rule(
    "reconfigure", "too_early", "Operations before the first reconfigure are refused.",
    Source(API, "initialized until :meth:`ProcessGroup.reconfigure` is called"), own=True, refuses=True,
    methods=METHODS,
)  # fmt: skip
def too_early(rank: Rank) -> None:
    _begin(rank)
    rank.refuses(lambda: dist.all_reduce(rank.tensor(1.0)), "an all_reduce of a group that is not made yet")
    _make(rank, 1, range(rank.size))
