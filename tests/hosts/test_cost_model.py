"""The cost model counts what groups over several nodes send and ask of the store: `benchmarks.nodes`.

Its counts are compared with the rules and programs of ``csrc/hosts`` (``programs.cpp`` prints them), and with
what a store is asked while groups are made.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from benchmarks.nodes import measured, sent, times
from benchmarks.nodes.__main__ import Point, errors, fit
from tests.hosts.launch import options_for
from tests.support import cpp_build
from tests.support.groups import begin

CASES = [
    (nodes, ranks, size)
    for nodes in (2, 3, 5, 8, 16, 31, 64)
    for ranks in (1, 2)
    for size in (1000, 64 << 10, 1 << 20, (5 << 20) + 400)
]
RESULTS = Path(cpp_build.ROOT, "benchmarks", "results")
HOSTS = RESULTS / "2026-11-30-hosts.json"

needs_compiler = pytest.mark.skipif(
    not shutil.which(shlex.split(cpp_build.compiler())[-1]), reason="there is no C++ compiler"
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Callable[..., list[int]]:
    """Runs ``programs.cpp``, and returns the numbers that it prints."""
    program = tmp_path_factory.mktemp("programs") / "programs"
    core = cpp_build.ninja("plain", ["core.a"], cpp_build.ROOT)
    flags = ["-std=c++20", "-O1", "-Icsrc", "-pthread"]
    files = ["tests/hosts/programs.cpp", str(core), "-o", str(program)]
    subprocess.run([*shlex.split(cpp_build.compiler()), *flags, *files], check=True, cwd=cpp_build.ROOT)

    def run(*arguments: object) -> list[int]:
        command = [str(program), *map(str, arguments)]
        return list(map(int, subprocess.run(command, check=True, capture_output=True).stdout.split()))

    return run


@pytest.mark.full
@needs_compiler
def test_an_all_reduce_is_counted_as_its_programs_send_it(programs):
    ways = set()
    for nodes, ranks, size in CASES:
        # As groups have it, and smaller, so that parts are not all equal and some are empty.
        for window in (sent.WINDOW, 12_000):
            doubling, _, windows, stages, messages, of_rank, of_node, messages_of_leader, headers = programs(
                "all_reduce", nodes, ranks, size, window
            )
            found = sent.all_reduce(nodes, ranks, size, window)
            case = nodes, ranks, size, window
            assert found.way == ("doubling" if doubling else "parts"), case
            assert (found.windows, found.messages) == (windows, messages), case
            assert (found.rank_bytes, found.node_bytes) == (of_rank, of_node), case
            # The programs begin and end inside the node; folded nodes get the result in the last stage.
            assert found.in_a_row == stages - 2, case
            assert (sum(sent.call_header_rounds(nodes)), nodes - 1) == (messages_of_leader, headers), case
            ways.add((found.way, windows > 1))
    assert len(ways) == 4, ways


@needs_compiler
def test_a_broadcast_is_counted_as_its_programs_send_it(programs):
    ways = set()
    for nodes, ranks, size in CASES:
        window = sent.window_of(nodes, ranks, size, 2 * sent.WINDOW // nodes) * sent.ITEM
        _, number, windows, stages, messages, *_ = programs("broadcast", nodes, ranks, size, sent.WINDOW)
        rail = -(-min(size, window) // ranks // sent.ITEM) * sent.ITEM
        way = ["star", "tree", "chain"][number]
        assert sent.broadcast_way(nodes, rail, windows) == way, (nodes, ranks, size)
        in_a_row = {"chain": nodes - 1, "tree": sent.doublings(nodes), "star": 1}[way]
        each = {"chain": 1, "tree": sent.doublings(nodes), "star": nodes - 1}[way]
        assert (stages, messages) == (in_a_row + 2, each * windows), (nodes, ranks, size)
        ways.add(way)
    assert len(ways) == 3, ways


def test_no_node_sends_more_than_the_least_possible_where_parts_fill_cache_lines():
    for nodes in (2, 4, 8, 16, 64):
        size = 64 << 20
        assert sent.all_reduce(nodes, 8, size).node_bytes == 2 * (nodes - 1) * size // nodes


def test_counts_and_times_do_not_fall_with_the_number_of_nodes():
    network, numbers = times.Network(100, 1), [1 << i for i in range(1, 11)]
    for values in (
        [sum(sent.call_header_rounds(nodes)) for nodes in range(1, 1025)],
        [sent.all_reduce(nodes, 8, 64 << 20).messages for nodes in numbers],
        [sent.all_reduce(nodes, 8, 64 << 20).node_bytes for nodes in numbers],
        [times.time_of(times.AS_NCCL, nodes, 8, 4, network, 8)[0] for nodes in range(2, 1025)],
        [times.ring_time(times.AS_NCCL, nodes, 8, 1 << 30, network, 8) for nodes in numbers],
        [times.nccl_ring(nodes, 8, 1 << 30, network) for nodes in numbers],
        [times.nccl_tree(nodes, 8, 1 << 30, network) for nodes in numbers],
    ):
        assert values == sorted(values)


def test_the_fit_finds_the_costs_that_made_the_times():
    true, none = times.Costs(call=900.0, in_a_row=300.0, byte=2e-3), times.Network(0, 1)
    points = [
        Point("occl-dev", "none", 2, 2, size, times.time_of(true, 2, 2, size, none, 1)[0])
        for size in (4, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
    ]
    found = fit(points, "occl-dev", 2)
    assert [found.call, found.in_a_row, found.byte] == pytest.approx([900.0, 300.0, 2e-3])
    assert errors(points, "occl-dev", found, 2, limited=False) == pytest.approx([1.0] * len(points))


def test_a_limited_link_costs_its_bytes_where_it_is_the_slowest():
    costs = times.Costs(call=10.0, in_a_row=1.0, byte=1e-6)
    us, bound = times.time_of(costs, 2, 2, 1 << 30, times.Network(1, 1), 2)
    assert bound == "link"
    assert us == pytest.approx((1 << 30) * 8e-3, rel=0.01)


class CountingStore(dist.Store):
    """Passes every call on, and counts them by name.

    A rank that waits polls announcements (csrc/pg/rendezvous/attempt.h). So each counts once for rank 0,
    which must read all, and not at all for others.
    """

    def __init__(self, store: dist.Store, rank: int) -> None:
        super().__init__()
        self.store, self.calls, self.rank = store, Counter(), rank
        self.read: set[str] = set()

    def set(self, key, value):
        self.calls["sets"] += 1
        self.store.set(key, value)

    def compare_set(self, key, expected, desired):
        self.calls["sets"] += 1
        return self.store.compare_set(key, expected, desired)

    def get(self, key):
        announced = "occl/attempt/" in key
        self.calls["gets"] += not announced or (self.rank == 0 and key not in self.read)
        self.read.add(key)
        return self.store.get(key)

    def add(self, key, amount):
        self.calls["adds"] += 1
        return self.store.add(key, amount)

    def check(self, keys):
        self.calls["checks"] += 1
        return self.store.check(keys)

    def wait(self, keys, timeout):
        self.calls["waits"] += 1
        self.store.wait(keys, timeout)


def count_calls(rank: int, n: int, device: str, *, nodes: int, path: str) -> list[Counter]:
    """What this rank asks the store for the default group, and for one more of all ranks."""
    if nodes > 1:
        os.environ["OCCL_NODE"] = str(rank * nodes // n)
    store = CountingStore(dist.FileStore(path, n), rank)
    begin(rank, n, store, "occl", timeout=60.0, pg_options=options_for("occl"))
    first = store.calls.copy()
    dist.new_group(list(range(n)))
    second = store.calls - first
    dist.destroy_process_group()
    return [first, second]


@pytest.mark.parametrize(
    ("nodes", "size"), [(1, 2), (2, 2), (2, 4), pytest.param(1, 20, marks=pytest.mark.full), (2, 10)]
)
def test_a_group_asks_the_store_for_what_the_model_counts(ranks, tmp_path, nodes, size):
    with ranks.fresh(size) as team:
        everyone = team.run(count_calls, nodes=nodes, path=str(tmp_path / "store"))
    for rank, (first, second) in enumerate(everyone):
        model = sent.store_calls(nodes, size, rank)
        assert (first["sets"], first["gets"], first["waits"]) == (model.sets, model.gets, 0)
        assert first["checks"] >= model.checks
        assert not second, "ranks of a group meet in it, without the store"


def test_the_documentation_shows_what_the_model_says():
    files = [HOSTS, "--startup", RESULTS / "2026-11-30-startup-groups.json"]
    command = [sys.executable, "-m", "benchmarks.nodes", *map(str, files)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, cwd=cpp_build.ROOT).stdout
    lines = [line for line in shown.splitlines() if line.startswith("|")]
    documented = set(Path(cpp_build.ROOT, "docs", "performance.md").read_text().splitlines())
    assert len(lines) > 20
    assert not set(lines) - documented, "benchmarks.nodes --update is needed"


def test_the_page_compares_occl_from_cpp_with_open_mpi_as_the_result_does():
    page = " ".join(Path(cpp_build.ROOT, "docs", "performance.md").read_text().split())
    (numbers,) = re.findall(
        r"Called from C\+\+, occl takes (.*?) to (.*?) times as long as Open MPI at 4 B, (.*?) to (.*?) "
        r"times at 64 KiB, (.*?) to (.*?) times at 1 MiB, and (.*?) to (.*?) times at 16 and 64 MiB",
        page,
    )
    shapes = [it for name, it in json.loads(HOSTS.read_text()).items() if name != "machine"]
    tables = [measured.medians(it["tables"]["none"]) for it in shapes]
    expected = []
    for sizes in ([4], [64 << 10], [1 << 20], [16 << 20, 64 << 20]):
        ratios = [table[size]["c++-tcp"] / table[size]["openmpi"] for table in tables for size in sizes]
        expected += [f"{min(ratios):.2f}", f"{max(ratios):.2f}"]
    assert list(numbers) == expected
    for table in tables:
        assert all(times["occl-tcp"] < times["gloo"] for times in table.values())
