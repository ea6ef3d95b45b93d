"""What an all_reduce over several nodes sends, and what making a group asks of the store.

The counts repeat the rules of ``csrc/hosts`` and ``csrc/pg/rendezvous`` for nodes of equal size and float32,
and take the constants from there. ``tests/hosts/test_cost_model.py`` compares them with the programs
of the C++ code and with groups that are made.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CSRC = Path(__file__).parents[2] / "csrc"
ITEM, LINE = 4, 16
"""Bytes of a float32, and how many fill a cache line, at which parts are cut."""


def constant(file: str, name: str) -> int:
    """A constant of the C++ code: an integer, or one shifted ("48 << 10")."""
    pattern = rf"\b{name}\b(?: =)? ?{{?(?:std::size_t{{)?(\d+)}}?(?: << (\d+))?"
    if not (found := re.search(pattern, (CSRC / file).read_text())):
        raise RuntimeError(f"{file} defines no {name} that is a number")
    return int(found[1]) << int(found[2] or 0)


def link(name: str) -> float:
    """A number of the model of a link."""
    text = (CSRC / "hosts/link_model.h").read_text()
    if not (found := re.search(rf"\b{name} = ([\d.e-]+);", text)):
        raise RuntimeError(f"hosts/link_model.h defines no {name} that is a number")
    return float(found[1])


RATE = link("bytes_per_second")
IN_A_ROW = round(link("message_seconds") * RATE)
AT_A_TIME = round(link("message_beside") * RATE)
"""Of a message that the next one waits for, and of one beside others: the bytes that pass in that time."""
WINDOW = constant("hosts/group_info.h", "kWindowBytes")
MESSAGES = constant("hosts/program.cpp", "kMessages")
WINDOWS = constant("hosts/program.cpp", "kWindows")
SHORT_WINDOWS = constant("hosts/program.cpp", "kShortWindows")
CALL_HEADER = constant("hosts/preamble.h", "kCallHeaderBytes")
CALL_HEADER_DATA = CALL_HEADER - 32
RADIX = constant("hosts/preamble.cpp", "kRadix")
SPREAD = constant("pg/rendezvous/store_exchange.h", "kSpread")
MAX_RANKS = constant("base/limits.h", "kMaxRanks")


@dataclass(frozen=True)
class Sent:
    """What a call sends between nodes, beside the call headers."""

    way: str
    windows: int
    in_a_row: int
    """Messages of a window that wait for each other."""
    messages: int
    """That the rank sends that sends most, in all windows."""
    rank_bytes: int
    """Of the rank that sends most."""
    node_bytes: int
    """Of the node that sends most."""


def doublings(nodes: int) -> int:
    return (nodes - 1).bit_length()


def folds(nodes: int) -> bool:
    return nodes & (nodes - 1) != 0


def by_doubling(nodes: int, rail: float, more_windows: bool) -> bool:
    """Whether nodes all-reduce a rail by doubling: csrc/hosts/algorithm_choice.cpp."""
    if nodes == 1:
        return False
    rounds = nodes.bit_length() - 1 + 2 * folds(nodes)
    doubling, parts = rounds * rail, (nodes - 1) / nodes * 2 * rail
    if not more_windows:
        doubling += rounds * (IN_A_ROW + AT_A_TIME)
        parts += 2 * IN_A_ROW + 2 * (nodes - 1) * AT_A_TIME
    return doubling <= parts


def broadcast_way(nodes: int, rail: float, windows: int) -> str:
    """How a broadcast goes: csrc/hosts/algorithm_choice.cpp. ``rail``: bytes of a rail in a window."""
    one = AT_A_TIME + rail
    costs = {
        "star": IN_A_ROW + (nodes - 1) * windows * one,
        "tree": doublings(nodes) * (IN_A_ROW + windows * one),
        "chain": (nodes - 1) * (IN_A_ROW + one) + (windows - 1) * one,
    }
    return min(costs, key=costs.__getitem__)


def cuts(count: int, parts: int) -> np.ndarray:
    """The elements of each part."""
    ends = count * np.arange(1, parts + 1) // parts // LINE * LINE
    ends[-1] = count
    return np.diff(ends, prepend=0)


def window_of(nodes: int, ranks: int, size: int, window_bytes: int) -> int:
    """The elements of a whole window of ``size`` bytes of data: csrc/hosts/program.cpp."""
    window_bytes = min(max(size // WINDOWS, window_bytes // 2), window_bytes)
    window_bytes *= min(max(ranks * nodes // MESSAGES, 1), ranks)
    return max(window_bytes // ITEM // LINE, 1) * LINE


def all_reduce(nodes: int, ranks: int, size: int, window_bytes: int = WINDOW) -> Sent:
    """Of ``size`` bytes over nodes of ``ranks`` each."""
    if nodes == 1:
        return Sent("inside", 0, 0, 0, 0, 0)
    if size <= CALL_HEADER_DATA:
        return Sent("call headers", 0, 0, 0, 0, 0)
    elements = size // ITEM
    window = window_of(nodes, ranks, size, window_bytes)
    full = (elements - 1) // window
    rest = elements - full * window
    ends = [rest]
    if rest > window // 4 * 3 and rest >= SHORT_WINDOWS * LINE:  # the last windows are short
        ends = [rest * quarters // 4 // LINE * LINE for quarters in (2, 3)] + [rest]
    windows = full + len(ends)
    rail = -(-min(window, elements) // ranks) * ITEM
    doubling = by_doubling(nodes, rail, windows > 1)
    # Messages and bytes of each rail (one for each rank) and node, over all windows.
    messages, sent = np.zeros((2, ranks, nodes), dtype=np.int64)
    for count, times in [(window, full), *((int(n), 1) for n in np.diff(ends, prepend=0))]:
        for k, own in enumerate(cuts(count, ranks) if count and times else []):
            if doubling:
                each = doublings(nodes + 1) - 1 + folds(nodes)
                messages[k] += times * each * (own > 0)
                sent[k] += times * each * own * ITEM
                continue
            parts = cuts(int(own), nodes)
            others = np.count_nonzero(parts) - (parts > 0)
            messages[k] += times * (others + (nodes - 1) * (parts > 0))
            sent[k] += times * (own - parts + (nodes - 1) * parts) * ITEM
    in_a_row = nodes.bit_length() - 1 + 2 * folds(nodes) if doubling else 2
    return Sent(
        "doubling" if doubling else "parts",
        windows,
        in_a_row,
        int(messages.max()),
        int(sent.max()),
        int(sent.sum(axis=0).max()),
    )


def call_header_rounds(nodes: int) -> list[int]:
    """The messages that a leader sends in each round of call headers: csrc/hosts/preamble.cpp."""
    rounds, have = [], 1
    while have < nodes:
        rounds.append(min(RADIX - 1, -(-nodes // have) - 1))
        have *= RADIX
    return rounds


@dataclass(frozen=True)
class StoreCalls:
    """What each rank asks of the store when the default group is made, by keys; ``checks``, of several keys
    each, are the least, because it polls."""

    sets: int
    gets: int
    checks: int


def store_calls(nodes: int, size: int, rank: int = 0) -> StoreCalls:
    """For a rank of a group of ``size`` ranks, with TCP between nodes: csrc/pg/rendezvous. Rank 0 calls most.
    The ranks of different nodes are under different kernels, and no group was made before."""
    # The round: rank 0 reads what each rank has announced, and stores it in two keys that the others read.
    round_ = StoreCalls(3, size, 1) if rank == 0 else StoreCalls(1, 2, 1)
    if nodes == 1:
        return round_
    sets, gets, checks = 1, size, 1  # of each of two kinds: seat and connected
    if size > SPREAD:
        gets, width = 1, 1
        while width < size and rank % (width * SPREAD) == 0:
            sets, gets = sets + 1, gets + len(range(rank, min(rank + width * SPREAD, size), width))
            checks += 1
            width *= SPREAD
    return StoreCalls(round_.sets + 2 * sets, round_.gets + 2 * gets, round_.checks + 2 * checks)
