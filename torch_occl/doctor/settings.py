"""What the environment says: the variables of occl, and the network interface that Gloo is told to use."""

from __future__ import annotations

import difflib
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch_occl.doctor.reading import read
from torch_occl.doctor.report import WARNING, Line, Section

VARIABLES = (
    "OCCL_DEVICE",
    "OCCL_IN_PLACE_OF",
    "OCCL_SHARE_CPU",
    "OCCL_DEVICE_COUNT",
    "OCCL_MEMORY_FRACTION",
    "OCCL_ISA",
    "OCCL_NODE",
    "OCCL_TUNING",
)
"""Every variable that the package reads (docs/environment.md)."""
OF_TESTS = "OCCL_TEST_"
"""Variables of the project's own tests begin like this."""

SIOCGIFADDR = 0x8915
INTERFACE = "GLOO_SOCKET_IFNAME"


def variable_lines(environment: Mapping[str, str]) -> list[Line]:
    """Those of occl that are set; unknown ones are warnings, because nothing reads them."""
    lines = []
    for name, value in sorted(environment.items()):
        if not name.startswith("OCCL_") or name.startswith(OF_TESTS):
            continue
        if name in VARIABLES:
            lines.append(Line(name, value or "empty, as if not set", value))
            continue
        close = difflib.get_close_matches(name, VARIABLES, 1)
        meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(VARIABLES)}"
        remedy = f"Correct or unset it, because nothing reads it ({meant})."
        lines.append(Line(name, value, value, WARNING, remedy))
    return lines or [Line("OCCL_ variables", "none is set", {})]


def interfaces() -> dict[str, list[str]]:
    """The addresses of each network interface; IPv4 has the first one only."""
    found: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for name, addresses in found.items():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asking, SIOCGIFADDR, request)
            except OSError:  # it has no IPv4 address
                continue
            addresses.append(socket.inet_ntoa(answer[20:24]))
    for line in read(Path("/proc/net/if_inet6")).splitlines():
        digits, *_, name = line.split()
        found.setdefault(name, []).append(str(ipaddress.IPv6Address(int(digits, 16))))
    return found


def gloo_line(wish: str, names: Sequence[str]) -> Line:
    """Whether the interfaces exist that GLOO_SOCKET_IFNAME names, with commas between them."""
    missing = [name for name in wish.split(",") if name not in names]
    if not missing:
        return Line(INTERFACE, wish)
    remedy = f"Set {INTERFACE} to one of {', '.join(names)}, or unset it: groups of Gloo cannot be made."
    return Line(INTERFACE, f"{wish} (there is no {', '.join(missing)})", wish, WARNING, remedy)


def network_lines(environment: Mapping[str, str]) -> list[Line]:
    try:
        found = interfaces()
    except OSError as error:
        remedy = (
            "Allow sockets of the Internet in this sandbox: Gloo and a TCPStore need them, occl does not."
        )
        return [Line("interfaces", f"unknown: {error.strerror}", level=WARNING, remedy=remedy)]
    shown = [f"{name} ({', '.join(addresses) or 'no address'})" for name, addresses in found.items()]
    lines = [Line("interfaces", "; ".join(shown) or "none", found)]
    if wish := environment.get(INTERFACE):
        lines.append(gloo_line(wish, list(found)))
    return lines


def section() -> Section:
    return Section("environment", [*variable_lines(os.environ), *network_lines(os.environ)])
