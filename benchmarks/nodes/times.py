"""How long an all_reduce over several nodes takes: by the rules of csrc/hosts, in a ring, and with NCCL."""

import math
from dataclasses import dataclass

from benchmarks.nodes.sent import AT_A_TIME, CALL_HEADER, IN_A_ROW, all_reduce, call_header_rounds


@dataclass(frozen=True)
class Costs:
    """In microseconds, and bytes that one core moves in one of them."""

    call: float
    """A call over two nodes whose data travels in the call headers."""
    in_a_row: float
    """A message that must arrive before the next one can be sent."""
    byte: float
    """The time of a core for a byte that its node sends: kernels of both sides, and the steps inside."""

    @property
    def beside(self) -> float:
        """A message beside others, in the proportion of csrc/hosts/link_model.h."""
        return self.in_a_row * AT_A_TIME / IN_A_ROW


@dataclass(frozen=True)
class Network:
    gbit: float
    """Of each link, each way; 0: no limit."""
    links: int
    """Of each node."""

    def us(self, size: float, links: int | None = None) -> float:
        return size * 8e-3 / self.gbit / (links or self.links) if self.gbit else 0.0


def time_of(
    costs: Costs, nodes: int, ranks: int, size: int, network: Network, cores: float
) -> tuple[float, str]:
    """Microseconds of an all_reduce, and what takes most of them."""
    sent, rounds = all_reduce(nodes, ranks, size), call_header_rounds(nodes)
    headers = (nodes - 2) * CALL_HEADER
    latency = costs.call + costs.in_a_row * (len(rounds) - 1 + sent.in_a_row)
    latency += costs.beside * (sum(rounds) - 1) + max(network.us(headers, 1), headers * costs.byte)
    bounds = {
        "link": network.us(sent.node_bytes),
        "bytes": sent.node_bytes * costs.byte / cores,
        "messages": sent.messages * costs.beside,
    }
    processor = bounds["bytes"] + bounds["messages"]
    us = latency + max(bounds["link"], processor)
    if latency > us / 2:
        return us, "latency"
    if bounds["link"] > processor:
        return us, "link"
    return us, max(("bytes", "messages"), key=bounds.__getitem__)


def ring(nodes: int, ranks: int, size: int) -> tuple[int, float]:
    """Messages in a row, and bytes that each rank sends, in a ring of all ranks."""
    everyone = nodes * ranks
    return 2 * (everyone - 1), 2 * (everyone - 1) / everyone * size


def ring_time(costs: Costs, nodes: int, ranks: int, size: int, network: Network, cores: float) -> float:
    """The ring crosses each boundary between nodes once, so it uses one link of a node."""
    steps, sent = ring(nodes, ranks, size)
    return costs.in_a_row * steps + max(network.us(sent, 1), ranks * sent * costs.byte / cores)


# ---- what NCCL says of itself


def nccl_ring(nodes: int, ranks: int, size: int, network: Network) -> float:
    """Microseconds by the model with which NCCL 2.20.3 chooses (its src/graph/tuning.cc), with NVLink.

    The less of its protocols Simple and LL. The bus bandwidth is that of all links of a node.
    """
    steps, between = 2 * (nodes * ranks - 1), 2 * nodes
    move = network.us(2 * (nodes * ranks - 1) / (nodes * ranks) * size)
    simple = 8.4 + (steps - between) * 3.4 + between * 14.0 + move
    return min(simple, 6.6 + (steps - between) * 1.0 + between * 2.7 + 4 * move)


def nccl_tree(nodes: int, ranks: int, size: int, network: Network) -> float:
    """The same for its double binary trees."""
    between, move = int(math.log2(nodes)), network.us(2 * size) / 0.92
    simple = 2 * ((ranks - 1) * 28.0 + between * 28.0) + move
    return min(simple, 6.8 + 2 * ((ranks - 1) * 0.6 + between * 5.0) + 3.8 * move)


AS_NCCL = Costs(call=8.4 + 14.0, in_a_row=14.0, byte=0.0)
"""Ours, with NCCL's start of a ring and its time of a step over the network, and no time for bytes."""
