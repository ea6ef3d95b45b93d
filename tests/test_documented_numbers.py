"""Numbers in running text of the docs against the results of the benchmark that they come from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import crowded, first_call, packages, sweep

ROOT = Path(__file__).parents[1]
PEERS, TRAINING = "2026-11-26-peers-xeon", "2026-11-26-training"
PACKAGES, ONE_SIDED = "2026-11-29-packages", "2026-11-29-one-sided-xeon"
SWEEP, CROWDED = "2026-11-30-sweep", "2026-11-30-crowded"
FIRST_CALL = "2026-11-30-first_call"
KIB, MIB = 1 << 10, 1 << 20


def results(name: str) -> Any:
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())["results"]


def text_of(page: str) -> str:
    """In one line, so that a sentence is found wherever its lines end."""
    return " ".join((ROOT / page).read_text().split())


def times(operation: str = "all_reduce", name: str = PEERS) -> dict[int, dict[str, dict[str, Any]]]:
    """By size and contender, where all contenders were measured."""
    found: dict[int, dict[str, dict[str, Any]]] = {}
    for row in results(name):
        if row["operation"] == operation:
            found.setdefault(row["bytes"], {})[row["contender"]] = row
    return {size: rows for size, rows in found.items() if "gloo" in rows}


def contenders_of(content: dict[str, Any]) -> list[tuple[dict[str, sweep.Cells], str]]:
    """What the pages promise something about: every group of one host, and those over TCP."""
    return [
        (measured, name)
        for measured in content["results"].values()
        for name in measured
        if name not in ("gloo", "occl-gloo", "occl-ucx")
    ]


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md"])
def test_calls_and_steps_are_as_much_faster_than_with_gloo_as_the_page_says(page):
    content = json.loads((ROOT / f"benchmarks/results/{SWEEP}.json").read_text())
    claim = (
        r"a call is (\d+) to (\d+) times as fast as over Gloo with 2 to 8 ranks, and (\d+) to (\d+) times "
        r"between hosts: .* On one host none is slower, and between hosts (\d+) of (\d+) are. "
        r"A step of training takes ([\d.]+) to ([\d.]+) times as long with Gloo"
    )
    ((least, most, least_tcp, most_tcp, *slower, low, high),) = re.findall(claim, text_of(page))
    means: dict[str, list[float]] = {}
    rates = []
    between = [0, 0]
    for measured, name in contenders_of(content):
        it = sweep.summarize(measured, name)
        if name == "occl-tcp":
            between = [between[0] + it.behind, between[1] + it.cells]
        else:
            assert it.behind == 0
        means.setdefault(name, []).append(it.mean)
        if name != "occl-dev":
            rates += [s for cell, s in sweep.speeds(measured, name).items() if cell.startswith(sweep.STEP)]
    assert (round(min(means["occl-cpu"])), round(max(means["occl-cpu"]))) == (int(least), int(most))
    assert (round(min(means["occl-tcp"])), round(max(means["occl-tcp"]))) == (int(least_tcp), int(most_tcp))
    assert between == [int(number) for number in slower]
    assert [f"{min(rates):.1f}", f"{max(rates):.1f}"] == [low, high]


def test_the_table_of_all_operations_is_that_of_its_result():
    content = json.loads((ROOT / f"benchmarks/results/{SWEEP}.json").read_text())
    assert sweep.page(content) in (ROOT / "docs/performance.md").read_text()


def test_the_table_of_shared_cores_is_that_of_its_result():
    content = json.loads((ROOT / f"benchmarks/results/{CROWDED}.json").read_text())
    assert crowded.page(content) in (ROOT / "docs/performance.md").read_text()


def test_the_table_of_first_calls_is_that_of_its_result():
    content = json.loads((ROOT / f"benchmarks/results/{FIRST_CALL}.json").read_text())
    assert first_call.page(content) in (ROOT / "docs/performance.md").read_text()


def test_staging_takes_as_much_longer_as_the_page_says():
    (least, most) = re.findall(r"that takes ([\d.]+) to ([\d.]+) times as long", text_of("docs/tuning.md"))[0]
    operations = {row["operation"] for row in results(PEERS)}
    ratios = [
        rows["occl-cpu"]["median_us"] / rows["occl-dev"]["median_us"]
        for operation in operations
        for size, rows in times(operation).items()
        if size >= 256 * KIB
    ]
    assert len(ratios) > 50
    assert (f"{min(ratios):.1f}", f"{max(ratios):.1f}") == (least, most)


def test_an_all_reduce_that_moves_nothing_takes_as_long_as_the_pages_say():
    floors = {
        name: [rows["floor"]["median_us"] for size, rows in times(name=name).items() if size <= MIB]
        for name in (PEERS, "2026-11-26-peers-epyc")
    }
    (least, most) = re.findall(r"from Python costs (\d+) to (\d+) us up to 1 MiB", text_of("docs/tuning.md"))[
        0
    ]
    assert (round(min(floors[PEERS])), round(max(floors[PEERS]))) == (int(least), int(most))
    (epyc, xeon) = re.findall(
        r"that does nothing takes (\d+) us \(AMD EPYC\) to (\d+) us", text_of("docs/performance.md")
    )[0]
    assert round(min(floors["2026-11-26-peers-epyc"])) == int(epyc) and round(max(floors[PEERS])) == int(xeon)


def rows_of(page: str, heading: str) -> list[list[str]]:
    """The cells of the table with this heading."""
    table = (ROOT / page).read_text().split(heading)[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_the_table_of_training_has_the_medians():
    names = ["occl-dev", "occl-cpu-shared", "occl-cpu", "gloo", "none-dev", "none-cpu-shared", "none-cpu"]
    rows = rows_of("docs/performance.md", "| model | occl, `dev` | occl, CPU, shared |")
    for (_, *cells), measured in zip(rows, results(TRAINING).values(), strict=True):
        assert cells == [f"{measured[name]['samples_per_second']:.0f}" for name in names]


def test_the_table_of_packages_is_that_of_its_results():
    content = json.loads((ROOT / f"benchmarks/results/{PACKAGES}.json").read_text())
    assert packages.table(content) in (ROOT / "docs/integrations.md").read_text()


def test_the_table_of_one_sided_access_is_that_of_its_result():
    found = {
        (row["operation"], row["bytes"], row["contender"]): row["median_us"] for row in results(ONE_SIDED)
    }
    lines = re.findall(r"^\| (\d+) (B|KiB|MiB) \| (.*) \|$", (ROOT / "docs/one-sided.md").read_text(), re.M)
    assert len(lines) == 5
    for number, unit, cells in lines:
        size = int(number) * {"B": 1, "KiB": KIB, "MiB": MIB}[unit]
        copies = [
            us
            for (name, bytes_, who), us in found.items()
            if (name, bytes_) == ("put", size) and "roof" in who
        ]
        expected = [
            found["put", size, "occl-dev"],
            found["send_recv", size, "occl-dev"],
            found["put", size, "openmpi"],
            found["put", size, "mpich"],
            min(copies),
            found["one_shot_all_reduce", size, "occl-dev"],
            found["all_reduce", size, "occl-dev"],
        ]
        assert [float(cell) for cell in cells.split(" | ")] == pytest.approx(expected, rel=0.006)
    (rendezvous,) = re.findall(
        r"A rendezvous of symmetric memory takes (\d+) us", text_of("docs/one-sided.md")
    )
    assert int(rendezvous) == round(found["rendezvous", 0, "occl-dev"])
