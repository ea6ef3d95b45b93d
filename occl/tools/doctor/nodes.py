"""With which processes ranks here share memory, and which ones are other nodes of a group."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from occl.tools.doctor.kernel_files import read
from occl.tools.doctor.report import HINT, Line, Section

NAMESPACES = {
    "network": "net", "users": "user", "processes": "pid", "IPC": "ipc", "mounts": "mnt", "host name": "uts"
}  # fmt: skip
"""By what they divide: the names of the kernel."""
NEEDED = ("network", "users")
"""Ranks with another one of these are other nodes. (Some user namespaces share memory all the same.)"""


def namespace(process: str, kind: str) -> int | None:
    """The inode of a namespace; None if /proc does not tell."""
    try:
        return Path("/proc", process, "ns", kind).stat().st_ino
    except OSError:
        return None


def identity_line(boot: str, own: Mapping[str, int | None], user: int, host: str) -> Line:
    """What ranks of a group compare before they try to map each other's memory."""
    value = {"kernel": boot, "user": user, "host": host} | {name: own[name] for name in NEEDED}
    text = (
        f"kernel {boot or 'unknown'}, network namespace {own['network'] or 'unknown'}, user namespace "
        f"{own['users'] or 'unknown'}, user {user}, host {host}"
    )
    if boot and all(own[name] for name in NEEDED):
        return Line("identity", text, value)
    remedy = (
        "Mount /proc: without it ranks cannot say why they share no memory, and a group takes longer to make."
    )
    return Line("identity", text, value, HINT, remedy)


def namespaces_line(own: Mapping[str, int | None], first: Mapping[str, int | None]) -> Line:
    """Which namespaces this process has in common with process 1, the container's or the machine's first."""
    said = {
        name: "unknown" if first[name] is None else "shared" if own[name] == first[name] else "own"
        for name in own
    }
    by_state = {
        state: [name for name in said if said[name] == state] for state in ("shared", "own", "unknown")
    }
    parts = [f"{state}: {', '.join(names)}" for state, names in by_state.items() if names]
    return Line("namespaces", f"with process 1: {'; '.join(parts)}", said)


def section() -> Section:
    own = {name: namespace("self", kind) for name, kind in NAMESPACES.items()}
    first = {name: namespace("1", kind) for name, kind in NAMESPACES.items()}
    boot = read(Path("/proc/sys/kernel/random/boot_id"))
    same = (
        "ranks with this network namespace and this user are one node; /dev/shm, ptrace, and namespaces of "
        "processes, IPC, mounts and host names do not matter"
    )
    return Section(
        "nodes",
        [
            identity_line(boot, own, os.geteuid(), socket.gethostname()),
            namespaces_line(own, first),
            Line("memory is shared", same),
        ],
    )
