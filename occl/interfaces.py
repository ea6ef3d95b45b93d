"""The network interfaces of this machine, and those that Gloo takes. Only the standard library is needed."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

VARIABLE = "GLOO_SOCKET_IFNAME"
SIOCGIFADDR = 0x8915


def interfaces() -> dict[str, list[str]]:
    """The addresses of each network interface; IPv4 has the first one only.

    Raises:
        OSError: this process may not use sockets of the Internet.
    """
    found: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for name, addresses in found.items():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asking, SIOCGIFADDR, request)
            except OSError:  # it has no IPv4 address
                continue
            addresses.append(socket.inet_ntoa(answer[20:24]))
    table = Path("/proc/net/if_inet6")
    for line in table.read_text().splitlines() if table.exists() else ():
        digits, *_, name = line.split()
        found.setdefault(name, []).append(str(ipaddress.IPv6Address(int(digits, 16))))
    return found


def wished(environment: Mapping[str, str]) -> list[str]:
    """The interfaces that GLOO_SOCKET_IFNAME names, with commas between them."""
    return [name for name in environment.get(VARIABLE, "").split(",") if name]


def adapters() -> list[str]:
    """The RDMA devices of this machine: "mlx5_0"."""
    folder = Path("/sys/class/infiniband")
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def address_of_host() -> str:
    """The address at which Gloo listens without GLOO_SOCKET_IFNAME: the first of the host's name that this
    machine has, or else loopback."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as trial:
                trial.bind(address)
        except OSError:
            continue
        return str(address[0])
    return "127.0.0.1"


def means_the_same_everywhere(address: str) -> bool:
    """Not "", and not an address of a link (fe80::...), which needs the name of an interface beside it."""
    means = ipaddress.ip_address(address.partition("%")[0]) if address else None
    return means is not None and not (means.version == 6 and means.is_link_local)


def reachable(addresses: Sequence[str]) -> str:
    """The first of an interface's addresses that means the same everywhere; else the first; "" for none."""
    return next(iter([*filter(means_the_same_everywhere, addresses), *addresses]), "")


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def owner_of(address: str, found: Mapping[str, list[str]]) -> str:
    """The interface with this address; "lo" also for the other addresses of loopback."""
    for name, addresses in found.items():
        if address.partition("%")[0] in addresses:
            return name
    return "lo" if is_loopback(address) else "an unknown interface"
