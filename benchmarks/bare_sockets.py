"""The floor of an all_reduce of two hosts: the bytes that must travel, through sockets without anything else.

Each host sends its own sum and receives the other one's, so the ranks of a host share the bytes of the tensor
in both directions at once. Nothing is added up.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress

import torch
import torch.distributed as dist

NAME = "sockets"
FEW, LONGEST_S = 5, 1.0
"""A size gets at least FEW exchanges, and others until LONGEST_S seconds have passed."""


def fits(places: list[int]) -> bool:
    """Whether the ranks at these hosts are two hosts of equally many."""
    return len(set(places)) == 2 and places.count(0) == places.count(1)


class Sockets:
    """The connection of this rank to the one with its place on the other host."""

    def __init__(self, rank: int, places: list[int], address: str) -> None:
        """``address``: of this rank's host."""
        each = len(places) // 2
        listens = rank < each
        listening = socket.create_server((address, 0)) if listens else None
        ports: list = [None] * len(places)
        dist.all_gather_object(ports, (address, listening.getsockname()[1]) if listening else None)
        if listening:
            self._socket, _ = listening.accept()
            listening.close()
        else:
            self._socket = socket.create_connection(ports[rank - each])
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._each = each

    def exchange(self, out: memoryview, into: memoryview) -> None:
        while left := len(out) + len(into):
            with suppress(BlockingIOError):
                out = out[self._socket.send(out) :] if out else out
            with suppress(BlockingIOError):
                into = into[self._socket.recv_into(into) :] if into else into
            if len(out) + len(into) == left and self._each > 1:  # its neighbours need the core
                select.select([self._socket], [self._socket] if out else [], [])

    def seconds(self, size: int, wait: Callable[[], None]) -> list[float]:
        """Of each exchange of a tensor of ``size`` bytes: of the slowest rank."""
        share = -(-size // self._each)
        out, into = memoryview(bytearray(share)), memoryview(bytearray(share))
        self.exchange(out, into)
        taken: list[float] = []
        begun = time.perf_counter()
        while True:
            wait()
            before = time.perf_counter()
            self.exchange(out, into)
            mine = torch.tensor([time.perf_counter() - before, time.perf_counter() - begun])
            dist.all_reduce(mine, dist.ReduceOp.MAX)
            taken.append(mine[0].item())
            if len(taken) >= FEW and mine[1].item() > LONGEST_S:
                return taken
