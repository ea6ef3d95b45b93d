"""How the ranks of a group that asks for Gloo agree to get occl in its place, through the group's store.

Each rank that asks stores its vote, with a random number for this attempt to make the group. A rank that does
not ask stores no vote but the address that Gloo's ranks exchange, which tells the others. Each rank that asks
then stores which votes it has seen, and proceeds when all ranks that voted have seen the same ones: then no
vote is left from an earlier attempt. A rank that is late finds that the others have agreed without it, which
means Gloo.

Ranks of several nodes agree in the same way once more, whether occl may connect the nodes: a rank may listen
on loopback only, or want Gloo's encryption.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from occl.tools.text import ranks

MAX_RANKS = 256
KEYS = "occl in the place of gloo"
"""Begins all keys in the store, or in the part of it that is about nodes."""

FIRST_NAP, LONGEST_NAP = 1e-4, 0.05
"""Seconds between two looks into the store. `Store.wait` cannot wait for one of two keys."""

Votes = list[dict[str, Any] | None]
"""By rank; None for a rank that did not vote."""


def agree(
    store: dist.Store,
    gloo: dist.Store,
    vote: Mapping[str, Any],
    rank: int,
    size: int,
    name: str,
    timeout: timedelta,
    follows: Callable[[Votes], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """What the ranks choose together.

    Args:
        gloo: the store in which the group's Gloo would store addresses.
        name: of the group.
        follows: the choice that follows from all votes; `outcome` if not given.

    Raises:
        DistBackendError: a rank neither voted nor made Gloo in time.
    """
    poll = _Poll(store, gloo, vote, rank, size)
    deadline, nap = time.monotonic() + timeout.total_seconds(), FIRST_NAP
    while (votes := poll.look()) is None:
        if time.monotonic() > deadline:
            raise dist.DistBackendError(
                f"occl: Timed out after {round(timeout.total_seconds() * 1000)} ms on rank {rank} of group "
                f"{name} waiting for rank {poll.awaited} of {size} to make the group, in which occl is to "
                "take Gloo's place"
            )
        time.sleep(nap)
        nap = min(nap * 1.5, LONGEST_NAP)
    return (follows or outcome)(votes)


class _Poll:
    """One attempt of this rank to agree with the others."""

    def __init__(
        self, store: dist.Store, gloo: dist.Store, vote: Mapping[str, Any], rank: int, size: int
    ) -> None:
        self.store, self.gloo, self.rank, self.size = store, gloo, rank, size
        self.awaited = 0
        self._come = 0  # ranks below this one have voted or made Gloo
        self._looks = 0
        self._left: set[str] = set()  # attempts of ranks that have made Gloo since
        self._own = {
            "attempt": secrets.token_hex(8),
            "vote": vote,
            "seen": "",
            "absent": [],
            "after_gloo": self._made_gloo(rank),  # the address that will be there then says nothing
        }
        self._store_own()

    def look(self) -> Votes | None:
        """The votes by rank, None for a rank that did not vote; or None if the ranks do not agree yet."""
        while self._come < self.size:  # in turn, so that few keys are asked for while a rank is late
            self.awaited = self._come
            if not self.store.check([self._key(self._come)]) and not self._made_gloo(self._come):
                return None
            self._come += 1
        entries = self._entries()
        for entry in entries.values():
            if self._decided_without_this(entry, entries):
                return [None if it in entry["absent"] else entries[it]["vote"] for it in range(self.size)]
        voted = {rank: entry for rank, entry in entries.items() if entry["attempt"] not in self._left}
        seen = " ".join(f"{rank}:{entry['attempt']}" for rank, entry in voted.items())
        seen = hashlib.sha256(seen.encode()).hexdigest()
        if seen != self._own["seen"]:
            self._own["seen"] = seen
            self._own["absent"] = [rank for rank in range(self.size) if rank not in voted]
            self._store_own()
        late = [rank for rank, entry in voted.items() if rank != self.rank and entry["seen"] != seen]
        if not late:
            return [voted[rank]["vote"] if rank in voted else None for rank in range(self.size)]
        self._looks += 1
        self.awaited = late[self._looks % len(late)]  # one in each look, so that few keys are asked for
        if not voted[self.awaited]["after_gloo"] and self._made_gloo(self.awaited):
            # Read once more: it may have agreed with this rank, and then made Gloo.
            entry = json.loads(self.store.get(self._key(self.awaited)))
            if entry["seen"] != seen:
                self._left.add(entry["attempt"])
        return None

    def _entries(self) -> dict[int, dict[str, Any]]:
        voters = list(range(self.size))
        if not self.store.check([self._key(rank) for rank in voters]):
            voters = [rank for rank in voters if self.store.check([self._key(rank)])]
        values = self.store.multi_get([self._key(rank) for rank in voters])
        return {rank: json.loads(value) for rank, value in zip(voters, values, strict=True)}

    def _key(self, rank: int) -> str:
        return f"{KEYS}/{rank}"

    def _store_own(self) -> None:
        self.store.set(self._key(self.rank), json.dumps(self._own))

    def _made_gloo(self, rank: int) -> bool:
        return self.gloo.check([f"0/{rank}"])

    def _decided_without_this(
        self, entry: Mapping[str, Any], entries: Mapping[int, Mapping[str, Any]]
    ) -> bool:
        agreed = [rank for rank in range(self.size) if rank not in entry["absent"]]
        return self.rank in entry["absent"] and all(
            rank in entries and entries[rank]["seen"] == entry["seen"] for rank in agreed
        )


def outcome(votes: Votes) -> dict[str, Any]:
    """The choice that follows from the votes, wherever the ranks are."""
    given = [(rank, vote) for rank, vote in enumerate(votes) if vote]
    _, first = given[0]
    absent = [rank for rank, vote in enumerate(votes) if not vote]
    other_version = [rank for rank, vote in given if vote["version"] != first["version"]]
    reasons = [f"rank {rank} cannot use occl: {vote['cannot']}" for rank, vote in given if vote["cannot"]]
    if absent:
        reasons.append(
            f"{_named(absent)} did not ask for it, by OCCL_IN_PLACE_OF=gloo or occl.replace_gloo()"
        )
    if other_version:
        reasons.append(
            f"{_named(other_version)} has another version or build of torch_occl than rank {given[0][0]}"
        )
    kept = sorted({device for _, vote in given for device in vote["kept"]})
    places = [vote["place"] for _, vote in given]
    if all(place == places[0] for place in places):
        places = []  # all ranks share memory
    return {
        "occl": not reasons,
        "why": "; ".join(reasons),
        "kept": kept,
        "first": given[0][0],
        "places": places,
    }


def outcome_between(votes: Votes) -> dict[str, Any]:
    """What follows for a group over several nodes."""
    unable: dict[str, list[int]] = {}
    for rank, vote in enumerate(votes):
        if vote and vote["cannot"]:
            unable.setdefault(vote["cannot"], []).append(rank)
    reasons = [f"{_named(those)} cannot connect them: {why}" for why, those in unable.items()]
    if absent := [rank for rank, vote in enumerate(votes) if not vote]:
        reasons.append(f"{_named(absent)} has made Gloo meanwhile")
    why = f"the group spans several nodes, and {'; '.join(reasons)}" if reasons else ""
    return {"occl": not reasons, "why": why}


def vote_between(places: list[dict[str, str]]) -> dict[str, Any]:
    """The vote of this rank in a group over several nodes."""
    from occl.distributed import tcp, ucx

    chosen = os.environ.get("OCCL_INTER_NODE", "")
    if chosen == "gloo":
        return {"cannot": "OCCL_INTER_NODE is gloo"}
    one_network = len({(place["kernel"], place["net"]) for place in places}) == 1
    try:
        if chosen == "ucx":
            ucx.prepare(one_network, asked=True)
            ucx.version()
        else:
            tcp.prepare(one_network, asked=bool(chosen))
    except RuntimeError as error:
        return {"cannot": str(error).partition("\n")[0]}
    return {"cannot": ""}


def _named(numbers: list[int]) -> str:
    return f"{'each of ' * (len(numbers) > 1)}{ranks(numbers)}"


def why_not(size: int) -> str:
    """Why this process cannot make a group of occl; "" if it can."""
    if size > MAX_RANKS:
        return f"a group of occl has at most {MAX_RANKS} ranks, not {size}"
    try:
        importlib.import_module("occl.distributed.backend")
    except (ImportError, OSError) as error:
        return str(error)
    return ""


def place() -> dict[str, str]:
    """Equal for processes that can share memory: occl's ranks find each other by abstract sockets."""
    return {
        "kernel": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "node": os.environ.get("OCCL_NODE", ""),
        **{kind: str(os.stat(f"/proc/self/ns/{kind}").st_ino) for kind in ("net", "pid")},
        "user": str(os.geteuid()),
    }
