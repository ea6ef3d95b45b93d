"""The backend that carries messages between nodes: Gloo, over the interface that users name for it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, NamedTuple

import torch.distributed as dist

from occl import interfaces

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    Connect = Callable[[dist.Store, int, int, timedelta], dist.ProcessGroupGloo]


def prepare(one_network: bool) -> tuple[str, Connect]:
    """Opens Gloo's sockets, and returns what it uses ("gloo over eth0 (10.0.0.1)") and what connects it.

    That is called as ``connect(store, rank, size, timeout)`` on all ranks of a group, and connects each of
    them to all others. (With connections at first use, Gloo's destructor can hang: its loop ends only when a
    tick brings no event, and a peer that closes its connection at that moment brings events for ever.)

    Args:
        one_network: whether all ranks can reach each other's loopback interface.

    Raises:
        RuntimeError: this PyTorch was built without Gloo, there is no interface of the name that
            ``GLOO_SOCKET_IFNAME`` gives, or Gloo would listen where other nodes cannot reach it.
    """
    if not dist.is_gloo_available():
        raise RuntimeError(
            "the ranks of this group do not all share memory, and this PyTorch was built without Gloo: pass "
            "ProcessGroupOCCL.Options(inter_node=...) with a backend that sends and receives CPU tensors"
        )
    places = places_of(one_network, "Gloo")
    names = interfaces.wished(os.environ)
    make = dist.ProcessGroupGloo.create_device
    devices = [make(interface=name) for name in names] or [dist.ProcessGroupGloo.create_default_device()]

    def connect(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timeout
        options._devices = devices
        options._threads = 1
        return dist.ProcessGroupGloo(store, rank, size, options)

    return f"gloo over {' and '.join(map(str, places))}", connect


class Place(NamedTuple):
    """Where a rank listens."""

    name: str
    """Of the interface."""
    address: str
    """"" if it has none."""

    def __str__(self) -> str:
        return f"{self.name} ({self.address or 'no address'})"


def places_of(one_network: bool, listener: str, most: int | None = None) -> list[Place]:
    """Where ranks listen: at the interfaces that ``GLOO_SOCKET_IFNAME`` names, and without the variable at
    the address of the host's name.

    Args:
        one_network: as in `prepare`.
        listener: for the error: "Gloo".
        most: how many interfaces ``listener`` uses; None: all.

    Raises:
        RuntimeError: there is no interface of that name, or ``listener`` would listen where other nodes
            cannot reach it.
    """
    found = interfaces.interfaces()
    names = interfaces.wished(os.environ)
    if missing := [name for name in names if name not in found]:
        raise RuntimeError(
            f"{interfaces.VARIABLE} names the interface {missing[0]!r}, which does not exist here: set it "
            f"to one of {', '.join(found)}, or unset it"
        )
    if names:
        places = [Place(name, interfaces.reachable(found[name])) for name in names]
    else:
        address = interfaces.address_of_host()
        places = [Place(interfaces.owner_of(address, found), address)]
    places = places[:most]
    local = all(interfaces.is_loopback(place.address) for place in places if place.address)
    if local and not one_network:
        raise RuntimeError(
            f"{listener} would listen on {places[0]}, which other nodes cannot reach: set "
            f"{interfaces.VARIABLE} to the interface between the hosts, or let the name "
            f"{socket.gethostname()!r} mean its address"
        )
    return places
