"""What was measured between hosts, and a cost model of all_reduce over several nodes for 8 to 1,024 of them.

    python -m benchmarks.nodes HOSTS.json --startup STARTUPS.json --update docs/performance.md

HOSTS.json is a result of ``benchmarks/hosts.py``, STARTUPS.json a list of results of ``benchmarks/startup.py
--nodes M``. With ``--update`` the script writes its tables between the marks in that file, which explains the
model. ``measured.py`` has the tables of what was measured, ``sent.py`` counts what is sent, and ``times.py``
says what that takes.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.model import not_negative
from benchmarks.nodes.measured import all_reduce_table, groups_table
from benchmarks.nodes.sent import (
    AT_A_TIME,
    IN_A_ROW,
    MAX_RANKS,
    all_reduce,
    call_header_rounds,
    doublings,
    folds,
    store_calls,
)
from benchmarks.nodes.times import (
    AS_NCCL,
    Costs,
    Network,
    nccl_ring,
    nccl_tree,
    ring,
    ring_time,
    time_of,
)
from benchmarks.pages import replaced_between
from occl.tools import text

MARK = "<!-- {}: written by benchmarks/nodes -->"
SIZES = [4, 64 << 10, 1 << 20, 64 << 20, 1 << 30]
NODES = [8, 32, 1024]
COUNTED_NODES = [2, 8, 32, 64, 256, 1024]
RANKS = 8
"""Of each node, in the predictions."""


@dataclass(frozen=True)
class Point:
    contender: str
    rate: str
    nodes: int
    ranks: int
    size: int
    us: float


def measured(content: dict) -> list[Point]:
    """The all_reduces of shapes of equal nodes with several ranks, which take turns on the cores."""
    points = []
    for shape, found in content.items():
        counts = shape.split("+")
        if shape == "machine" or len(set(counts)) > 1 or counts[0] == "1":
            continue
        points += [
            Point(row["contender"], rate, len(counts), int(counts[0]), row["bytes"], row["median_us"])
            for rate, rows in found["tables"].items()
            for row in rows
            if row["operation"] == "all_reduce"
        ]
    return points


def fit(points: list[Point], contender: str, cores: int) -> Costs:
    """The costs with the least relative errors, from the measurements without a limit of the network."""
    chosen = [p for p in points if p.contender == contender and p.rate == "none"]
    rows = []
    for p in chosen:
        if contender == "gloo":
            steps, sent = ring(p.nodes, p.ranks, p.size)
            row = [0, steps, p.ranks * sent * p.nodes / cores]
        else:
            sent = all_reduce(p.nodes, p.ranks, p.size)
            beside = sent.messages * AT_A_TIME / IN_A_ROW
            row = [1, sent.in_a_row + beside, sent.node_bytes * p.nodes / cores]
        rows.append([term / p.us for term in row])
    a = np.array(rows)
    scale = np.maximum(np.abs(a).max(axis=0), 1e-30)
    return Costs(*(not_negative(a / scale, np.ones(len(rows))) / scale))


def errors(points: list[Point], contender: str, costs: Costs, cores: int, limited: bool) -> list[float]:
    """Model over measurement."""
    found = []
    for p in points:
        if p.contender != contender or (p.rate != "none") != limited:
            continue
        network = Network(float(p.rate.removesuffix("gbit")) if limited else 0, 1)
        model = ring_time if contender == "gloo" else lambda *a: time_of(*a)[0]
        found.append(model(costs, p.nodes, p.ranks, p.size, network, cores / p.nodes) / p.us)
    return found


# ---- tables


def spread(values: list[float]) -> str:
    deviation = math.exp(statistics.pstdev(map(math.log, values)))
    return f"{min(values):.2f} to {max(values):.2f}, a factor of {deviation:.2f}"


def fit_table(points: list[Point], costs: dict[str, Costs], source: str, about: dict, cores: int) -> str:
    rows = []
    for name, cost in costs.items():
        rate = f"{1e-3 / cost.byte:.2f} GB/s"
        kept, checked = (spread(errors(points, name, cost, cores, limited)) for limited in (False, True))
        call = "-" if name == "gloo" else text.duration(1e3 * cost.call)
        rows.append([name, call, text.duration(1e3 * cost.in_a_row), rate, kept, checked])
    fitted = sum(p.rate == "none" and p.contender in costs for p in points) // len(costs)
    header = ["all_reduce", "a call", "a message in a row", "bytes, for each core"]
    header += ["model over measurement, without a limit (fitted)", "with 1 Gbit/s (not fitted)"]
    about_it = f"From `{source}` ({about['cpu']}, {cores} cores for all hosts), {fitted} medians each:\n\n"
    return about_it + "\n".join(text.markdown_table(header, rows))


def prediction_table(cell: Callable[[int, int, Network], str]) -> str:
    """``cell(nodes, size, network)`` gives a text. Networks of which all texts are equal share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for nodes in NODES:
        for gbit in (10, 100, 400):
            for links in (1, RANKS):
                cells = [cell(nodes, size, Network(gbit, links)) for size in SIZES]
                rows.setdefault((f"{nodes:,}", *cells), []).append(f"{links} x {gbit}")
    lines = [[nodes, ", ".join(networks), *cells] for (nodes, *cells), networks in rows.items()]
    header = ["nodes", "links of a node, Gbit/s", *map(text.size, SIZES)]
    return "\n".join(text.markdown_table(header, lines))


def count_table() -> str:
    rows = []
    for nodes in COUNTED_NODES:
        rounds, large = call_header_rounds(nodes), all_reduce(nodes, RANKS, 64 << 20)
        least = 2 * (nodes - 1) / nodes * (64 << 20)
        rows.append(
            [
                f"{nodes:,}",
                f"{sum(rounds)} in {len(rounds)}",
                f"{nodes - 1:,} KiB",
                f"{2 * (nodes - 1):,}",
                str(doublings(nodes + 1) - 1 + folds(nodes)),
                f"{nodes - 1:,}",
                str(doublings(nodes)),
                "1",
                f"{large.messages:,}",
                text.size(max(large.rank_bytes // large.messages, 1)),
                f"{large.node_bytes / least:.2f}",
            ]
        )
    header = [
        "nodes",
        "call headers of a leader, in rounds",
        "bytes of these",
        "in parts",
        "doubling",
        "star",
        "tree",
    ]
    header += ["chain", "of 64 MiB", "bytes of each", "of its node, over 2 (M - 1) / M S"]
    return "\n".join(text.markdown_table(header, rows))


def creation_table(runs: list[dict]) -> str:
    """The time to make the first group over nodes, measured and extrapolated as a N + b N^2."""
    runs = sorted((run for run in runs if run["nodes"] > 1), key=lambda run: run["nodes"])
    counts = np.array([run["ranks"] for run in runs], dtype=float)
    us = np.array([run["first_ms"]["occl"] * 1e3 for run in runs])
    a = np.stack([counts, counts**2], axis=1) / us[:, None]
    linear, square = not_negative(a, np.ones(len(us)))
    known = {run["ranks"]: run for run in runs}  # on the most nodes
    rows = []
    for size in sorted({*known, *(nodes * RANKS for nodes in COUNTED_NODES)}):
        nodes = known[size]["nodes"] if size in known else size // RANKS
        calls = store_calls(nodes, size)
        taken, of_gloo = "-", "-"
        if size in known:
            taken, of_gloo = (text.duration(1e6 * known[size]["first_ms"][name]) for name in ("occl", "gloo"))
        rows.append(
            [
                f"{size:,}" if size <= MAX_RANKS else f"{size:,} (refused)",
                f"{nodes:,}",
                f"{size - 1:,}",
                f"{calls.sets} + {calls.gets:,}",
                f"{sum(store_calls(nodes, size, rank).gets for rank in range(size)):,}",
                taken,
                of_gloo,
                text.duration(1e3 * (linear * size + square * size**2)) if size <= MAX_RANKS else "-",
            ]
        )
    header = ["ranks", "nodes", "connections of a process", "keys written + read by a rank"]
    header += ["reads by all ranks", "measured", "Gloo", "a N + b N^2"]
    return "\n".join(text.markdown_table(header, rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="of python -m benchmarks.hosts --write")
    parser.add_argument("--startup", type=Path, required=True, help="a list of results of startup.py --nodes")
    parser.add_argument("--update", type=Path, metavar="FILE.md", help="write the tables into this file")
    options = parser.parse_args()
    content, startups = (json.loads(file.read_text()) for file in (options.results, options.startup))
    points, cores = measured(content), int(content["machine"]["cores"].split()[0])
    costs = {name: fit(points, name, cores) for name in ("occl-tcp", "occl-ucx", "gloo")}

    def here(nodes: int, size: int, network: Network) -> str:
        us, bound = time_of(costs["occl-tcp"], nodes, RANKS, size, network, RANKS)
        ring_us = ring_time(costs["gloo"], nodes, RANKS, size, network, RANKS)
        return f"{text.duration(1e3 * us)} ({bound}) / {text.duration(1e3 * ring_us)}"

    def as_nccl(nodes: int, size: int, network: Network) -> str:
        times = [time_of(AS_NCCL, nodes, RANKS, size, network, RANKS)[0]]
        times.append(ring_time(AS_NCCL, nodes, RANKS, size, network, RANKS))
        times += [model(nodes, RANKS, size, network) for model in (nccl_ring, nccl_tree)]
        return " / ".join(text.duration(1e3 * us) for us in times)

    tables = {
        "hosts measured": all_reduce_table(content),
        "groups measured": groups_table(startups),
        "nodes fit": fit_table(points, costs, options.results.name, content["machine"], cores),
        "nodes prediction": prediction_table(here),
        "nodes and NCCL": prediction_table(as_nccl),
        "nodes counts": count_table(),
        "nodes creation": creation_table(startups),
    }
    for name, shown in tables.items():
        print(f"{name}\n\n{shown}\n")
    if options.update:
        page = options.update.read_text()
        for name, shown in tables.items():
            page = replaced_between(page, MARK.format(f"{name} begins"), MARK.format(f"{name} ends"), shown)
        options.update.write_text(page)


if __name__ == "__main__":
    main()
