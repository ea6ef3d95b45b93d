"""Ranks that live in several hosts: teams whose members enter hosts before anything else.

    def test_sum(hosts):
        hosts.run_on("2+1", "gloo", everyone_knows_the_sum)

A shape says how many ranks each host has: "2+1" are ranks 0 and 1 on host 0, and rank 2 on host 1. All ranks
are forked from one warm process. Each enters its host while it has a single thread, so that every thread
and socket that it makes later is in there.
"""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
import torch.distributed as dist

from occl.distributed import ucx
from occl.testing.launch import Clone, ForkServer
from tests.hosts.namespaces import INTERFACE, Host, Network
from tests.support.devices import DEVICES
from tests.support.ranks import Ranks, Team
from tests.support.thinning import first
from torch_occl import ProcessGroupOCCL


def devices_of(backend: str) -> list[str]:
    return DEVICES if backend == "occl" else ["cpu"]


def skip_without_library(backend: str) -> None:
    if backend == OVER_UCX and NO_UCX:
        pytest.skip(NO_UCX)


def _cases(names: tuple[str, ...]) -> list[object]:
    """Each backend with each type of device that it serves. Those of the first run by default."""
    every = [(name, device) for name in names for device in devices_of(name)]
    return first(every, stay=len(devices_of(names[0])))


OVER_UCX, OVER_GLOO = "occl over ucx", "occl over gloo"
CARRIERS = {"occl": "tcp", OVER_UCX: "ucx", OVER_GLOO: "gloo"}
"""What these backends have between their nodes."""
NO_UCX = "" if ucx.found() else "UCX is not installed (Debian: libucx0; PyPI: libucx-cu12)."
NAMES = (*CARRIERS, "gloo")
"""The backends that can connect hosts. Tests of the second and others belong to the long matrices."""
BACKENDS = first(NAMES)
CASES = _cases(NAMES)
"""Each with each type of device that it serves."""
OURS = first(tuple(CARRIERS))
OUR_CASES = _cases(tuple(CARRIERS))
"""The same for what Gloo has not."""
SHAPES = ("2+2", "2+1", "1+2+1")


def counts(shape: str) -> list[int]:
    """The ranks of each host."""
    return [int(count) for count in shape.split("+")]


def placement(shape: str) -> list[int]:
    """The host of each rank."""
    return [host for host, count in enumerate(counts(shape)) for _ in range(count)]


def enter(rank: int, world_size: int, device: str, *, hosts: list[Host]) -> None:
    """The body that every other one runs after: moves this process into the rank's host."""
    hosts[rank].enter()
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE


def options_for(backend: str) -> ProcessGroupOCCL.Options | None:
    """Those that choose the carrier between nodes which such a backend stands for."""
    carrier = CARRIERS.get(backend)
    return ProcessGroupOCCL.Options(inter_node=carrier) if carrier else None


def meet(
    rank: int, world_size: int, device: str, *, backend: str, address: str, port: int, timeout: float
) -> None:
    """A body: makes the default group, as a program does that a launcher has started."""
    os.environ["MASTER_ADDR"] = address
    os.environ["MASTER_PORT"] = str(port)
    limit = timedelta(seconds=timeout)
    options = options_for(backend)
    name = "occl" if options else backend
    dist.init_process_group(name, rank=rank, world_size=world_size, timeout=limit, pg_options=options)


class HostTeam(Team):
    """Processes that are the ranks of a shape, each in its host."""

    def __init__(self, source: ForkServer | Clone, network: Network, shape: str) -> None:
        places = placement(shape)
        super().__init__(source, len(places))
        self.network = network
        self.host_of = [network.hosts[place] for place in places]
        self.run(enter, hosts=self.host_of)

    def meet(self, backend: str, *, timeout: float = 60.0) -> HostTeam:
        """Makes the default group, whose store is on host 0, with this timeout in seconds."""
        skip_without_library(backend)
        address, port = self.network.hosts[0].address, self.network.new_port()
        self.run(meet, backend=backend, address=address, port=port, timeout=timeout)
        return self

    def report(self) -> str:
        hosts = ", ".join(f"rank {rank} on host {host.number}" for rank, host in enumerate(self.host_of))
        return f"{super().report()}\nThe ranks: {hosts}."

    def ranks_on(self, host: int) -> list[int]:
        return [rank for rank, place in enumerate(self.host_of) if place.number == host]


class Hosts(Ranks):
    """The ranks on a network: a team with a default group for each shape and backend that tests asked for."""

    def __init__(self, network: Network | None, source: Clone | None = None) -> None:
        """``network``: None if every test brings its own. ``source``: as of `Ranks`."""
        super().__init__(source)
        self.network = network

    def run_on(self, shape: str, backend: str, body, device: str = "cpu", **params) -> list:
        """Runs ``body(rank, world_size, device, **params)`` in the default group of shape and backend."""
        with self.lend(
            (shape, backend), lambda: self.fresh_on(shape), lambda made: made.meet(backend)
        ) as team:
            return team.run(body, device, **params)

    def fresh_on(self, shape: str, network: Network | None = None) -> HostTeam:
        """Processes for one test, in hosts of this network or of another, without any group yet."""
        return HostTeam(self.source, network or self.network, shape)
