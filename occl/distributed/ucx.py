"""UCX between nodes: where its library is, and which settings it gets.

What the user's ``UCX_*`` variables say is never overridden.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
from pathlib import Path

from occl import _C, interfaces
from occl.distributed.inter_node import places_of
from occl.distributed.tcp import why_gloo

SYSTEM = "libucp.so.0"
PACKAGE = "libucx"
"""The import package of libucx-cu12 and libucx-cu13, which work without CUDA."""

CONTEXT = {
    "TLS": "^sm,self,cuda,rocm,ze",  # nodes have shared memory of our own
}
"""What a worker gets, besides its devices."""
WISHES = {
    "KEEPALIVE_INTERVAL": "1s",  # so a rank learns that its peer closed the connection, and is alive
    "MEMTYPE_CACHE": "n",
    "RCACHE_ENABLE": "n",
    "IB_FORK_INIT": "n",
}
"""What it gets where this version of UCX knows the name."""
TCP = {
    "CONN_NB": "y",  # a host that does not answer must not hold up the others
    "KEEPIDLE": "1s",
    "KEEPINTVL": "1s",
    "KEEPCNT": "3",
    # UCX's own 64 KiB and a header are more than the kernel sends at once: a tiny packet follows each.
    "RX_SEG_SIZE": "60k",
    "TX_SEG_SIZE": "32k",
}
"""Likewise, what its connections over TCP get."""
PROCESS = {
    "LOG_LEVEL": "fatal",
    "WARN_UNUSED_ENV_VARS": "n",
    "HANDLE_ERRORS": "none",
}
"""What the library gets for the whole process: no output, and no handlers of signals."""


Values = list[tuple[str, str]]


def libraries() -> list[str]:
    """Names and paths of the library, in the order in which they are tried."""
    found = importlib.util.find_spec(PACKAGE)
    folders = found.submodule_search_locations or [] if found else []
    packaged = [Path(folder, "lib", SYSTEM) for folder in folders]
    return [*(str(path) for path in packaged if path.exists()), SYSTEM]


def found() -> bool:
    """Whether a library of UCX is installed. It is not opened."""
    return len(libraries()) > 1 or ctypes.util.find_library("ucp") is not None


def version() -> str:
    """Of the library, which is opened. Raises RuntimeError if none can be opened, or it is too old."""
    return _C._ucx_version(libraries(), unset(PROCESS))


def devices(interface: str) -> list[str]:
    """What UCX calls an interface: by its name for TCP, and the RDMA device that it belongs to."""
    adapter = Path("/sys/class/net", interface, "device", "infiniband")
    ports = Path("/sys/class/net", interface, "dev_port")
    port = int(ports.read_text()) + 1 if ports.exists() else 1
    rdma = sorted(f"{path.name}:{port}" for path in adapter.iterdir()) if adapter.exists() else []
    return [interface, *rdma]


def unset(values: dict[str, str]) -> Values:
    """Those of the settings that no variable of the user names."""
    return [(name, value) for name, value in values.items() if f"UCX_{name}" not in os.environ]


def wishes() -> Values:
    """Versions name a setting of TCP with or without that word. The user's variable has it in all of them."""
    tcp = unset({f"TCP_{name}": value for name, value in TCP.items()})
    return [*unset(WISHES), *tcp, *((name.removeprefix("TCP_"), value) for name, value in tcp)]


def why_not() -> str:
    """Why TCP without UCX is better here: it is as fast as UCX over TCP, or faster. "" if it is not.

    Where variables of UCX choose devices or transports, the user wants UCX.
    """
    if why := why_gloo():
        return why
    if any(name in os.environ for name in ("UCX_NET_DEVICES", "UCX_TLS")) or interfaces.adapters():
        return ""
    return "this host has no RDMA device"


def prepare(one_network: bool, asked: bool) -> tuple[str, list[str], Values, Values, Values]:
    """How UCX is used, in words ("ucx over eth0 (10.0.0.1)"); its libraries; and its settings: those of a
    worker, those that an older library may not know, and those of the process.

    Args:
        one_network: whether all ranks can reach each other's loopback interface.
        asked: whether the program or the environment asks for UCX.

    Raises:
        RuntimeError: nothing asks for UCX, and something else is better; there is no interface of the name
            that ``GLOO_SOCKET_IFNAME`` gives; or UCX would listen where other nodes cannot reach it.
    """
    if not asked and (why := why_not()):
        raise RuntimeError(why)
    if chosen := os.environ.get("UCX_NET_DEVICES"):
        return f"ucx over {chosen}", libraries(), unset(CONTEXT), wishes(), unset(PROCESS)
    places = places_of(one_network, "UCX")
    names = [device for place in places for device in devices(place.name)]
    context = [*unset(CONTEXT), ("NET_DEVICES", ",".join(names))]
    return f"ucx over {' and '.join(map(str, places))}", libraries(), context, wishes(), unset(PROCESS)
