"""Groups of occl for programs that ask for Gloo.

From 2.14 on PyTorch has a registered factory for Gloo, and `replace_gloo` registers one in its place. Before,
it builds Gloo in one function, in an ``if`` that compares the backend's name, and `replace_gloo` wraps that
function. Before a group with Gloo is made, its ranks agree through the group's store, and then all of them
get occl or all get Gloo:

    each rank that asks    stores its vote, with a random number for this attempt to make the group
    a rank that does not   stores no vote but the address that Gloo's ranks exchange, which tells the others
    each rank that asks    stores which votes it has seen, and proceeds when all ranks that voted have seen
                           the same ones: then no vote is left from an earlier attempt
    a rank that is late    finds that the others have agreed without it, which means Gloo

Ranks of several nodes then agree in the same way whether all of them can use UCX: over Gloo's connections
occl is not always the faster one.

`occl.registration` imports this module together with PyTorch, so nothing here loads the extension before a
group is made.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from occl import compat, registration, variables, versions
from occl.distributed import place_notices, program
from occl.tools.text import ranks

if TYPE_CHECKING:
    from types import TracebackType

MAX_RANKS = 256
KEYS = "occl in the place of gloo"
"""Begins all keys in the store, or in the part of it that is about nodes."""

FIRST_NAP, LONGEST_NAP = 1e-4, 0.05
"""Seconds between two looks into the store. `Store.wait` cannot wait for one of two keys."""

Votes = list[dict[str, Any] | None]
"""By rank; None for a rank that did not vote."""

_on = False
_making = threading.local()
_originals: dict[str, Callable[..., Any]] = {}
_signatures: dict[str, inspect.Signature] = {}


class replace_gloo:
    """Makes groups with the backend "gloo" groups of occl, without a change to the program.

    It holds from the call on, for all threads and for every group that is made from then on with
    ``init_process_group`` or ``new_group``, directly or through a library, also for one device type of
    several, as in ``"cpu:gloo,cuda:nccl"``. ``get_backend`` still returns what the program asked for. Groups
    that exist do not change. `uses_occl` says which backend a group got.

    A group is Gloo's, with a warning of one rank that says why, if a rank has not called this or cannot use
    occl, or if the group spans several nodes and a rank cannot use UCX. All ranks of a group come to the same
    choice. Code that makes Gloo itself (``torch.distributed.rpc``, ``TORCH_DISTRIBUTED_DEBUG=DETAIL``,
    ``ProcessGroupGloo(...)``) gets Gloo.

    In a ``with`` statement, the previous setting holds again at the end; such statements can be nested.
    ``replace_gloo(False)`` switches it off. The environment variable ``OCCL_IN_PLACE_OF=gloo`` switches it on
    when PyTorch is imported.

    Args:
        on: whether groups of Gloo become occl's from now on.

    Raises:
        TypeError: ``on`` is no bool.
    """

    def __init__(self, on: bool = True) -> None:
        global _on
        if not isinstance(on, bool):
            raise TypeError(f"replace_gloo: on must be True or False, not {on!r}")
        _install()
        self._before, _on = _on, on

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _on
        _on = self._before


def replace_as_environment_says() -> None:
    """Switches it on if ``OCCL_IN_PLACE_OF`` is gloo."""
    if variables.in_place_of():
        replace_gloo()


def uses_occl(group: dist.ProcessGroup | None = None, device: torch.device | str = "cpu") -> bool:
    """Whether occl moves this group's tensors on this device, whatever name ``get_backend`` says.

    Args:
        group: the default group if not given.
        device: a device type that the group serves.

    Raises:
        ValueError: there is no default group, and none was given.
    """
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError("uses_occl: there is no default group; call init_process_group first")
    return _is_occl(group, torch.device(device))


def ignores_options() -> bool:
    """Whether this thread makes a group in the place of Gloo, which accepts any ``pg_options``."""
    return getattr(_making, "for_gloo", False)


def _install() -> None:
    """Puts ours in the place of PyTorch's. It stays, and passes every call on while replacing is off."""
    if factory := compat.factory_of_gloo():
        if "gloo" not in _originals:
            _originals["gloo"] = factory
            compat.register_gloo(_create)
    else:
        _wrap()


# ---- From PyTorch 2.14 on: the registered factory ----------------------------------------------------------


def _create(opts: Any, options: Any = None) -> Any:
    """The factory that PyTorch calls for "gloo": makes a backend of occl if all ranks can, or else Gloo."""
    original = _originals["gloo"]
    if not _on:
        return original(opts, options)
    asked = program.backends_of_caller() or {"cpu": "gloo"}
    name, size = opts.group_id, opts.group_size
    choice = _choose(asked, opts.group_rank, size, name, opts.store, opts.store, opts.timeout)
    if not choice["occl"]:
        return original(opts, options)
    from occl import _C
    from occl.distributed import backend

    made = backend.create(opts, options if isinstance(options, _C.ProcessGroupOCCL.Options) else None)
    if not choice["kept"]:
        return made
    # PyTorch registers what a factory makes for all devices of "gloo", except a whole group.
    kinds, group = dist.ProcessGroup.BackendType, opts.process_group
    opts.store = dist.PrefixStore("kept/", opts.store)
    gloo = original(opts, options)
    for device in asked:
        if device in choice["kept"]:
            group._register_backend(torch.device(device), kinds.CUSTOM, gloo)
        else:
            group._register_backend(torch.device(device), kinds.GLOO, made)
    return group


# ---- Up to PyTorch 2.13: the functions that are wrapped (docs/pytorch.md). Remove with 2.13 ---------------


def _wrap() -> None:
    for name, ours in {
        "_new_process_group_helper": _make_group,  # makes Gloo by its name
        "_set_pg_timeout": _set_timeout,  # looks for ProcessGroupGloo by its type
    }.items():
        if name not in _originals:
            original = _originals[name] = getattr(distributed_c10d, name)
            _signatures[name] = inspect.signature(original)
            setattr(distributed_c10d, name, functools.wraps(original)(ours))


def _make_group(*args: Any, **kwargs: Any) -> Any:
    """For ``_new_process_group_helper``: replaces "gloo" in its argument ``backend`` if all ranks can."""
    original = _originals["_new_process_group_helper"]
    if not _on:
        return original(*args, **kwargs)
    call = _signatures["_new_process_group_helper"].bind(*args, **kwargs)
    call.apply_defaults()
    given = call.arguments
    asked = _backends_asked_for(given)
    devices = [device for device, backend in asked.items() if backend == "gloo"]
    if not devices:
        return original(*args, **kwargs)
    rank, size, group_name = given["group_rank"], given["group_size"], given["group_name"]
    votes = dist.PrefixStore(f"{group_name}/", given["store"])
    addresses = dist.PrefixStore(f"{devices[0]}/", votes)
    choice = _choose(asked, rank, size, group_name, votes, addresses, given["timeout"])
    if not choice["occl"]:
        return original(*args, **kwargs)
    taken = [
        device for device, backend in asked.items() if backend == "gloo" and device not in choice["kept"]
    ]
    name, made = given["backend"], None
    beside = {device: backend for device, backend in asked.items() if device not in taken}
    if registration.of_packages(beside.values()):
        given["backend"] = config(beside)
        group, store = original(*call.args, **call.kwargs)
        made = _backend_for(given, dist.PrefixStore(f"{taken[0]}/", votes))
    else:
        ours = registration.of_ours(asked.values()) or registration.names()
        given["backend"] = config(asked | dict.fromkeys(taken, ours[0]))
        with _without_options(asked):
            group, store = original(*call.args, **call.kwargs)
    # PyTorch reports for the group what the program asked for.
    distributed_c10d._world.pg_map[group] = (name, store)
    distributed_c10d._world.pg_backend_config[group] = config(asked)
    if not choice["kept"]:
        gloo = dist.ProcessGroup.BackendType.GLOO
        for device in map(torch.device, taken):
            group._register_backend(device, gloo, made or group._get_backend(device))
        if set(asked.values()) == {"gloo"}:
            group._set_default_backend(gloo)
    if made:
        group._set_group_name(group.group_name)  # of the new backend too
        group._set_group_desc(group.group_desc)
    return group, store


def _backend_for(given: Mapping[str, Any], store: dist.Store) -> Any:
    """A backend of occl for the group that these arguments describe.

    PyTorch would drop this one, or the other, if it made both as backends of packages.
    """
    from occl.distributed import backend

    opts = distributed_c10d._DistributedBackendOptions()
    opts.store, opts.timeout, opts.group_id = store, given["timeout"], given["group_name"]
    opts.group_rank, opts.group_size = given["group_rank"], given["group_size"]
    opts.global_ranks_in_group = given["global_ranks_in_group"]
    return backend.create(opts)


def _set_timeout(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
    """For ``_set_pg_timeout``, which would only warn about a group of occl."""
    served = group or dist.group.WORLD
    if (
        isinstance(served, dist.ProcessGroup)
        and "gloo" in str(distributed_c10d._world.pg_backend_config.get(served))
        and torch.device("cpu") in served._device_types
        and _is_occl(served, torch.device("cpu"))
    ):
        served.set_timeout(timeout)
    else:
        _originals["_set_pg_timeout"](timeout, group)


# ---- What a call asks for ----------------------------------------------------------------------------------


def backend_of(group: dist.ProcessGroup, device: torch.device) -> Any:
    """The group's backend for a device type, without the wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    backend = group._get_backend(device)
    return getattr(backend, "wrapped_pg", backend)


def _is_occl(group: dist.ProcessGroup, device: torch.device) -> bool:
    extension = sys.modules.get("occl._C")  # not loaded: no group is of occl
    return extension is not None and isinstance(backend_of(group, device), extension.ProcessGroupOCCL)


def config(backends: Mapping[str, str]) -> str:
    """As ``init_process_group`` takes it."""
    return ",".join(f"{device}:{backend}" for device, backend in backends.items())


def _backends_asked_for(given: Mapping[str, Any]) -> dict[str, str]:
    """The backend by device type; empty if this call makes no backend, or fails."""
    name = str(given["backend"]).lower()
    ranks, tag, world = given["global_ranks_in_group"], given["pg_tag"], distributed_c10d._world
    if (
        ("gloo" not in name and name != dist.Backend.UNDEFINED)
        or distributed_c10d._use_torchcomms_enabled()
        or not isinstance(given["timeout"], timedelta)
        or given["group_name"] in world.pg_names.values()
        or (ranks and dist.get_rank() not in ranks)
        or (tag and distributed_c10d._find_pg_by_ranks_and_tag(tag, ranks))
    ):
        return {}
    return dict(dist.BackendConfig(dist.Backend(name)).get_device_backend_map())


@contextmanager
def _without_options(asked: Mapping[str, str]) -> Iterator[None]:
    """Gloo ignores ``pg_options``, which are for another backend of the group, so occl does too."""
    _making.for_gloo = not registration.of_ours(asked.values())
    try:
        yield
    finally:
        _making.for_gloo = False


# ---- How the ranks agree -----------------------------------------------------------------------------------


def _choose(
    asked: Mapping[str, str],
    rank: int,
    size: int,
    name: str,
    store: dist.Store,
    gloo: dist.Store,
    timeout: timedelta,
) -> dict[str, Any]:
    """What all ranks of the new group make: occl or not, why not, the devices that stay Gloo's, and the first
    rank that asked for occl.

    Args:
        asked: the backend by device type.
        gloo: the store in which the group's Gloo would store addresses.
    """
    kept = ["cuda"] if asked.get("cuda") == "gloo" and torch.cuda.is_available() else []
    mixed = kept and "gloo" in _originals and set(asked.values()) != {"gloo"}
    vote = {
        "cannot": f"Gloo serves CUDA tensors too in {config(asked)}" if mixed else _why_not(size),
        "place": _place(),
        "version": versions.name_of_build(torch.__version__),
        "kept": kept,
    }
    choice = _outcome([vote]) if size == 1 else _agree(store, gloo, vote, rank, size, name, timeout)
    if choice["occl"] and choice["places"]:
        # On one host UCX would be opened in vain, so it is a question of its own.
        between, of_ucx = dist.PrefixStore("between nodes/", store), _ucx(choice["places"])
        choice |= _agree(between, gloo, of_ucx, rank, size, name, timeout, _outcome_between)
    place_notices.tell(name, rank, size, choice)
    return choice


def _agree(
    store: dist.Store,
    gloo: dist.Store,
    vote: Mapping[str, Any],
    rank: int,
    size: int,
    name: str,
    timeout: timedelta,
    outcome: Callable[[Votes], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """What the ranks choose together.

    Args:
        gloo: the store in which the group's Gloo would store addresses.
        name: of the group.
        outcome: the choice that follows from all votes; `_outcome` if not given.

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
    return (outcome or _outcome)(votes)


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


def _outcome(votes: Votes) -> dict[str, Any]:
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


def _outcome_between(votes: Votes) -> dict[str, Any]:
    """What follows for a group over several nodes, in which occl takes Gloo's place over UCX only."""
    unable: dict[str, list[int]] = {}
    for rank, vote in enumerate(votes):
        if vote and vote["cannot"]:
            unable.setdefault(vote["cannot"], []).append(rank)
    reasons = [f"{_named(those)} cannot use UCX: {why}" for why, those in unable.items()]
    if absent := [rank for rank, vote in enumerate(votes) if not vote]:
        reasons.append(f"{_named(absent)} has made Gloo meanwhile")
    able = {rank: vote["version"] for rank, vote in enumerate(votes) if vote and not vote["cannot"]}
    first = min(able, default=0)
    if others := [rank for rank in able if able[rank] != able[first]]:
        reasons.append(f"{_named(others)} has another version of UCX than rank {first}")
    why = f"the group spans several nodes, and {'; '.join(reasons)}" if reasons else ""
    return {"occl": not reasons, "why": why}


def _ucx(places: list[dict[str, str]]) -> dict[str, str]:
    """The vote of this rank in a group over several nodes."""
    from occl.distributed import ucx

    chosen = os.environ.get("OCCL_INTER_NODE", "")
    if chosen not in ("", "ucx"):
        return {"cannot": f"OCCL_INTER_NODE is {chosen}", "version": ""}
    try:
        ucx.prepare(one_network=len({(place["kernel"], place["net"]) for place in places}) == 1)
        return {"cannot": "", "version": ucx.version()}
    except RuntimeError as error:
        return {"cannot": str(error).partition("\n")[0], "version": ""}


def _named(numbers: list[int]) -> str:
    return f"{'each of ' * (len(numbers) > 1)}{ranks(numbers)}"


def _why_not(size: int) -> str:
    """Why this process cannot make a group of occl; "" if it can."""
    if size > MAX_RANKS:
        return f"a group of occl has at most {MAX_RANKS} ranks, not {size}"
    try:
        importlib.import_module("occl.distributed.backend")
    except (ImportError, OSError) as error:
        return str(error)
    return ""


def _place() -> dict[str, str]:
    """Equal for processes that can share memory: occl's ranks find each other by abstract sockets."""
    return {
        "kernel": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "node": os.environ.get("OCCL_NODE", ""),
        **{kind: str(os.stat(f"/proc/self/ns/{kind}").st_ino) for kind in ("net", "pid")},
        "user": str(os.geteuid()),
    }
