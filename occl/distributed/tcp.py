"""TCP between nodes, without any other library: where a rank listens."""

from __future__ import annotations

import os

from occl import interfaces
from occl.distributed.inter_node import places_of

ENCRYPTING = "GLOO_DEVICE_TRANSPORT"
"""A variable of Gloo: TCP_TLS asks for encrypted connections, which only Gloo offers."""


def why_gloo() -> str:
    """Why nothing but Gloo may carry messages, unless it is asked for; "" if another engine may."""
    wish = os.environ.get(ENCRYPTING, "")
    return "" if wish.upper() in ("", "TCP", "UV") else f"{ENCRYPTING} is {wish}"


def prepare(one_network: bool, asked: bool) -> tuple[str, str]:
    """Where this rank listens, in words ("tcp over eth0 (10.0.0.1)"), and the address alone.

    Of several interfaces that ``GLOO_SOCKET_IFNAME`` names it is the first.

    Args:
        one_network: whether all ranks can reach each other's loopback interface.
        asked: whether the program or the environment asks for TCP.

    Raises:
        RuntimeError: Gloo is to encrypt, and nothing asks for TCP; there is no interface of the name that
            ``GLOO_SOCKET_IFNAME`` gives; it has no address; or other nodes cannot reach it.
    """
    if not asked and (why := why_gloo()):
        raise RuntimeError(why)
    (place,) = places_of(one_network, "TCP", most=1)
    if not interfaces.means_the_same_everywhere(place.address):
        raise RuntimeError(f"{place} has no address that other hosts can use: name another interface")
    return f"tcp over {place}", place.address
