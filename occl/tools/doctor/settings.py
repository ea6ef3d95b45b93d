"""What the environment says: the variables of occl, and the network interface that Gloo is told to use."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence

from occl import interfaces, variables
from occl.interfaces import VARIABLE
from occl.tools.doctor.report import HINT, PROBLEM, WARNING, Line, Section

UCX_VARIABLE = "UCX_NET_DEVICES"


def variable_lines(environment: Mapping[str, str]) -> list[Line]:
    """Those of occl that are set; wrong values are problems, and unknown variables, which nothing reads, are
    warnings."""
    lines = []
    wrong, unknown = variables.wrong(environment), variables.unknown(environment)
    for name, value in sorted(environment.items()):
        if name in wrong:
            lines.append(Line(name, value, value, PROBLEM, f"Correct or unset it: {wrong[name]}."))
        elif name == "OCCL_NODE" and value:
            lines.append(node_line(value))
        elif name in variables.NAMES:
            lines.append(Line(name, value or "empty, as if not set", value))
        elif name in unknown:
            remedy = f"Correct or unset it, because nothing reads it ({unknown[name]})."
            lines.append(Line(name, value, value, WARNING, remedy))
    return lines or [Line("OCCL_ variables", "none is set", {})]


def node_line(value: str) -> Line:
    """OCCL_NODE, which a forgotten test may have left."""
    remedy = (
        "Unset it unless you simulate several hosts: ranks with different values share no memory, and ranks "
        "with and without it form no group."
    )
    return Line("OCCL_NODE", value, value, WARNING, remedy)


def choice_line(names: Sequence[str], address: str, found: Mapping[str, list[str]], host: str) -> Line:
    """What Gloo takes between nodes.

    Args:
        names: of GLOO_SOCKET_IFNAME.
        address: at which Gloo listens without that.
        found: the addresses by interface.
        host: this host's name.
    """
    name = "Gloo listens on"
    if names:
        return Line(name, f"{', '.join(names)} ({VARIABLE})", list(names))
    owner = interfaces.owner_of(address, found)
    text = f"{owner} ({address}), where the host's name {host} leads"
    if not interfaces.is_loopback(address):
        return Line(name, text, [owner])
    remedy = (
        f"For groups over several hosts set {VARIABLE} to the interface between them: other hosts cannot "
        f"reach {address}."
    )
    return Line(name, text, [owner], HINT, remedy)


def gloo_line(wish: str, names: Sequence[str]) -> Line:
    """Whether the interfaces exist that GLOO_SOCKET_IFNAME names, with commas between them."""
    missing = [name for name in wish.split(",") if name not in names]
    if not missing:
        return Line(VARIABLE, wish)
    remedy = f"Set {VARIABLE} to one of {', '.join(names)}, or unset it: groups of Gloo cannot be made."
    return Line(VARIABLE, f"{wish} (there is no {', '.join(missing)})", wish, WARNING, remedy)


def ucx_line(wish: str, names: Sequence[str]) -> Line | None:
    """Whether a device exists that UCX_NET_DEVICES names, as a list without patterns; else None."""
    chosen = wish.split(",")
    if not all(re.fullmatch(r"[\w.-]+(:\d+)?", each) for each in chosen) or "all" in chosen:
        return None
    if any(each.partition(":")[0] in names for each in chosen):
        return Line(UCX_VARIABLE, wish)
    remedy = f"Set {UCX_VARIABLE} to one or more of {', '.join(names)}, or unset it: UCX has no device."
    return Line(UCX_VARIABLE, f"{wish} (does not exist)", wish, WARNING, remedy)


def network_lines(environment: Mapping[str, str]) -> list[Line]:
    try:
        found = interfaces.interfaces()
    except OSError as error:
        remedy = (
            "Allow sockets of the Internet in this sandbox: Gloo and a TCPStore need them, occl does not."
        )
        return [Line("interfaces", f"unknown: {error.strerror}", level=WARNING, remedy=remedy)]
    shown = [f"{name} ({', '.join(addresses) or 'no address'})" for name, addresses in found.items()]
    lines = [Line("interfaces", "; ".join(shown) or "none", found)]
    if wish := environment.get(VARIABLE):
        lines.append(gloo_line(wish, list(found)))
    if (wish := environment.get(UCX_VARIABLE)) and (line := ucx_line(wish, [*found, *interfaces.adapters()])):
        lines.append(line)
    names = [name for name in interfaces.wished(environment) if name in found]
    lines.append(choice_line(names, interfaces.address_of_host(), found, socket.gethostname()))
    return lines


def section() -> Section:
    return Section("environment", [*variable_lines(os.environ), *network_lines(os.environ)])
