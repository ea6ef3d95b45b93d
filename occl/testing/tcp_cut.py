"""Cuts TCP connections between ranks of one machine, as if a cable were pulled: nothing arrives any more.

A socket with a filter that drops every packet still is connected, and so is its other end: no error comes
until one side gives up. A process may set such a filter for its own sockets, without privileges. Both ends
of a connection are in ranks, and each rank sets those of its own ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from occl.testing.faults import Fault

_SO_ATTACH_FILTER = 26
_RETURN_CONSTANT = 0x06
"""The instruction of the classic BPF that says how many bytes of a packet are kept."""

_End = list[Any]
"""The address and the port of one end, then those of the other."""


@dataclass(frozen=True)
class Meeting:
    """Where the ranks of a test meet: a file that need not exist."""

    rank: int
    size: int
    file: str
    timeout: float
    """Seconds that a rank waits for the others."""


def cut(fault: Fault, number: int, meeting: Meeting) -> str:
    """Cuts this rank's connections across the line, together with all other ranks.

    Args:
        number: of the test's cuts, the same on all ranks.

    Returns:
        Why nothing was cut, or "".
    """
    from torch.distributed import FileStore, PrefixStore

    rank, size, timeout = meeting.rank, meeting.size, meeting.timeout
    place = PrefixStore(f"cut {number}", FileStore(meeting.file, size))
    others = [r for r in range(size) if (r in fault.ranks) != (rank in fault.ranks)]
    with _connections() as mine:
        try:
            ends = _exchanged(place, "ends", rank, size, [end for end, _ in mine], timeout)
            across = {tuple(end[2:] + end[:2]) for r in others for end in ends[r]}
            sockets = [each for end, each in mine if tuple(end) in across]
            for each in sockets:
                _silence(each)
            found = _exchanged(place, "done", rank, size, len(sockets), timeout)
        except TimeoutError:
            return f"not all ranks made that call within {timeout:g} s, and each must, to be cut off"
    if not any(found):
        return (
            "there is no TCP connection between the two sides. Ranks of occl that share memory have none: "
            "give the two sides different values of OCCL_NODE before the group is made"
        )
    return ""


def _exchanged(store: Any, name: str, rank: int, size: int, value: object, timeout: float) -> list[Any]:
    """The values of all ranks, in rank order. Raises TimeoutError if one is missing in time."""
    store.set(f"{name} {rank}", json.dumps(value))
    keys = [f"{name} {r}" for r in range(size)]
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except RuntimeError as error:  # a FileStore raises no type of its own
        if "timeout" not in str(error):
            raise
        raise TimeoutError from error
    return [json.loads(store.get(key)) for key in keys]


@contextmanager
def _connections() -> Iterator[list[tuple[_End, socket.socket]]]:
    """The connected TCP sockets of this process."""
    found: list[tuple[_End, socket.socket]] = []
    try:
        for name in os.listdir("/proc/self/fd"):
            try:
                if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    continue
                each = socket.socket(fileno=os.dup(int(name)))
            except OSError:  # another thread has closed it
                continue
            found.append(([], each))
            if each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM:
                try:
                    addresses = (each.getsockname(), each.getpeername())
                except OSError:  # it listens
                    continue
                for address, port, *_ in addresses:
                    found[-1][0].extend((address.removeprefix("::ffff:"), port))
        yield [(end, each) for end, each in found if end]
    finally:
        for _, each in found:
            each.close()


def _silence(connected: socket.socket) -> None:
    """Drops what arrives from now on. When the process ends, the kernel keeps nothing of the connection."""
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN_CONSTANT, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(instruction))
    connected.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
