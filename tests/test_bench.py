"""The benchmark measures every operation with every contender and would notice a wrong result."""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from occl.bench import against, command, contenders, machine, noise, report
from occl.bench.command import NAMES, parse_size
from occl.bench.contenders import CONTENDERS
from occl.bench.gate import Gate, make_counters
from occl.bench.measure import Arena, Data, Samples, WrongResult, measure
from occl.bench.operations import OPERATIONS

TIMEOUT = 300
"""Seconds after which a run counts as hanging."""


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "occl", "bench", *arguments],
        env=os.environ | {"COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
    )


@pytest.fixture
def alone():
    """A group of this process alone, with Gloo."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.full
@pytest.mark.parametrize(
    ("ranks", "names", "sizes"),
    [
        (2, list(CONTENDERS), {"4": 4, "1M": 1 << 20}),
        pytest.param(2, ["gloo", "floor"], {"4K": 4 << 10}, marks=pytest.mark.matrix),
        pytest.param(3, list(CONTENDERS), {"64K": 64 << 10}, marks=pytest.mark.matrix),
    ],
)
def test_every_operation_is_measured_with_every_contender(ranks, names, sizes, tmp_path):
    file = tmp_path / "results.json"
    options = ["--ranks", str(ranks), "--sizes", *sizes, "--seconds", "0.5", "--json", str(file)]
    shown = run(*options, "--contenders", *names)
    assert shown.returncode == 0, shown.stdout
    content = json.loads(file.read_text())
    assert content["ranks"] == ranks
    assert {"cpu", "cores", "caches", "memory", "kernel", "torch", "date"} <= set(content["machine"])
    assert all(value in shown.stdout for value in content["machine"].values())
    measured = [(row["operation"], row["bytes"], row["contender"]) for row in content["results"]]
    assert measured == [
        (operation.name, size, name)
        for operation in OPERATIONS
        if not operation.mapped
        for size in (sizes.values() if operation.has_data else [0])
        for name in names
    ]
    for row in content["results"]:
        values = [row[f"{name}_us"] for name in ("least", "lower", "median", "upper", "most")]
        assert values == sorted(values)
        assert 0 < values[0] <= values[-1] < math.inf


@pytest.mark.full
def test_what_became_slower_is_said_and_is_the_exit_status(tmp_path):
    file, earlier = tmp_path / "results.json", tmp_path / "earlier.json"
    options = ["--contenders", "gloo", "--ops", "all_reduce", "--sizes", "4", "4K", "--seconds", "0.1"]
    assert run(*options, "--json", str(file)).returncode == 0
    content = json.loads(file.read_text())
    for times, status, text in [
        (0.001, 1, "2 of 2 values are slower by more than the noise:\n  all_reduce 4 B, gloo: "),
        (1000, 0, "0 of 2 values are slower by more than the noise\n"),
    ]:
        rows = [
            row | {name: row[name] * times for name in row if name.endswith("_us")}
            for row in content["results"]
        ]
        earlier.write_text(json.dumps(content | {"results": rows}))
        shown = run(*options, "--against", str(earlier))
        assert (shown.returncode, text in shown.stdout) == (status, True), shown.stdout


@pytest.mark.full
def test_the_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "picture.png"
    options = ["--contenders", "gloo", "--ops", "all_reduce", "--sizes", "4", "4K", "--seconds", "0.1"]
    shown = run(*options, "--plot", str(file))
    assert shown.returncode == 0, shown.stdout
    assert file.read_bytes().startswith(b"\x89PNG")


def test_help_names_every_operation_and_contender():
    shown = " ".join(run("--help").stdout.split())
    assert ", ".join(NAMES) in shown
    assert ", ".join(CONTENDERS) in shown


@pytest.mark.full
def test_operations_on_memory_of_others_are_measured_where_it_is_mapped(tmp_path):
    file, names = tmp_path / "results.json", [operation.name for operation in OPERATIONS if operation.mapped]
    options = ["--ranks", "3", "--sizes", "4", "64K", "--seconds", "0.5", "--json", str(file)]
    shown = run(*options, "--contenders", "occl-cpu-shared", "occl-cpu", "gloo", "--ops", *names)
    assert shown.returncode == 0, shown.stdout
    rows = json.loads(file.read_text())["results"]
    assert {row["contender"] for row in rows} == {"occl-cpu-shared"}
    assert [(row["operation"], row["bytes"]) for row in rows] == [
        (operation.name, size)
        for operation in OPERATIONS
        if operation.mapped
        for size in ((4, 64 << 10) if operation.has_data else (0,))
    ]


WITHOUT_OTHERS = [operation for operation in OPERATIONS if not operation.mapped]


@pytest.mark.parametrize("operation", WITHOUT_OTHERS, ids=lambda operation: operation.name)
def test_one_wrong_element_is_an_error_that_names_it(operation, alone):
    arena = Arena(operation, "gloo", alone, whole=8, calls=3)
    data = Data(8, 3, operation.dtype)
    expected = operation.expected(lambda rank: data(rank, 1), 0, 1)
    arena.refill(data(0, 1))
    for call in arena.calls:
        call()
    arena.check(expected, 3)
    arena._output[2, 5] += 1
    arena.check(expected, 2)
    with pytest.raises(WrongResult, match=f"gloo .* rank 0: element 5 of 8 after {operation.name}"):
        arena.check(expected, 3)


@pytest.mark.parametrize("operation", [o for o in WITHOUT_OTHERS if not o.in_place], ids=lambda o: o.name)
def test_a_call_that_does_nothing_is_a_wrong_result(operation, alone):
    arena = Arena(operation, "gloo", alone, whole=4, calls=1)
    data = Data(4, 1)
    arena.refill(data(0, 1))
    wrong = operation.expected(lambda rank: data(rank, 1), 0, 1)
    if operation.name == "send_recv":  # a rank alone has no partner, and expects nothing
        wrong = data(1, 1)
    with pytest.raises(WrongResult):
        arena.check(wrong, 1)


def test_a_wrong_result_stops_the_measurement(alone):
    wrong = dataclasses.replace(OPERATIONS[0], expected=lambda inputs, rank, _: inputs(rank) + 1)
    with pytest.raises(WrongResult):
        measure(wrong, 64, {"gloo": alone}, Gate(make_counters(1), 0), budget=0.1)


def test_inputs_differ_between_ranks_rounds_calls_and_elements():
    data = Data(elements=1000, calls=64)
    assert (
        len({tuple(row) for rank in range(4) for round_ in range(4) for row in data(rank, round_).tolist()})
        > 900
    )
    assert data(0, 1).shape == (64, 1000)
    assert len(set(data(0, 1)[0].tolist())) == 1000


def test_sums_of_inputs_are_exact_for_64_ranks():
    data = Data(elements=2000, calls=2)
    exact = sum(data(rank, 299).double() for rank in range(64))
    (all_reduce,) = (operation for operation in OPERATIONS if operation.name == "all_reduce")
    assert torch.equal(all_reduce.expected(lambda rank: data(rank, 299), 0, 64).double(), exact)


def test_sizes_are_bytes_with_powers_of_1024():
    assert [parse_size(text) for text in ("4", "16K", "64M")] == [4, 16384, 64 << 20]
    for wrong in ("", "3", "1G", "4.0", "-4", "K"):
        with pytest.raises(ValueError):
            parse_size(wrong)


def parse(arguments):
    made = argparse.ArgumentParser()
    command.arguments(made)
    options = made.parse_args(arguments)
    command.complete(options)
    return options


def test_quick_takes_less_of_everything():
    full, quick = parse([]), parse(["--quick"])
    assert (min(full.sizes), max(full.sizes)) == (4, 64 << 20)
    assert len(quick.sizes) < len(full.sizes)
    assert quick.seconds < full.seconds


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--ranks", "0"], "--ranks must be at least 1, and is 0"),
        (["--ops", "all"], "argument --ops: invalid choice: 'all'"),
        (["--sizes", "2"], "argument --sizes: invalid parse_size value: '2'"),
        (["--contenders", "x"], "argument --contenders: invalid choice: 'x'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, text, capsys):
    with pytest.raises(SystemExit):
        parse(arguments)
    assert text in capsys.readouterr().err


def of_quartiles(lower, median, upper, name="gloo"):
    return report.Result("all_reduce", 4, name, 1, 9, median, lower, upper, lower, upper)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ((13.0, 14.0, 15.0), ["  all_reduce 4 B, gloo: 14 us, before 10 us, 1.4 times"]),
        ((11.0, 14.0, 15.0), []),  # the quartiles touch
        ((11.1, 11.2, 11.3), ["  all_reduce 4 B, gloo: 11.2 us, before 10 us, 1.12 times"]),
        ((5.0, 6.0, 7.0), []),
    ],
)
def test_a_value_is_slower_if_its_quartiles_do_not_touch_those_before(now, said):
    before = [of_quartiles(9.0, 10.0, 11.0)]
    assert list(against.slower(before, [of_quartiles(*now)])) == said
    assert list(against.slower(before, [of_quartiles(*now, name="occl-cpu")])) == []  # there is none before


def test_a_value_that_differs_little_is_not_slower_however_steady_it_is():
    assert list(against.slower([of_quartiles(10.0, 10.0, 10.0)], [of_quartiles(10.9, 10.9, 10.9)])) == []


@pytest.mark.parametrize(
    ("floor", "said"),
    [
        (10.0, ["  all_reduce 4 B, gloo: 21 us, before 10 us, 2.1 times"]),
        (15.0, ["  all_reduce 4 B, gloo: 21 us, before 10 us, 2.1 times (the floor 1.5 times)"]),
        (20.0, []),
    ],
)
def test_what_the_floor_became_slower_by_is_the_machine(floor, said):
    before = [of_quartiles(10.0, 10.0, 10.0), of_quartiles(10.0, 10.0, 10.0, name="floor")]
    now = [of_quartiles(21.0, 21.0, 21.0), of_quartiles(floor, floor, floor, name="floor")]
    earlier = against.Earlier(pathlib.Path("earlier.json"), {}, 2, before)
    head = f"against earlier.json: {len(said)} of 1 values are slower by more than the noise"
    if floor > 10:
        head += " and by more than the floor, which is slower in 1 of its places"
    assert against.compared(earlier, now) == ([head + (":" if said else ""), *said], bool(said))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "earlier.json cannot be read: No such file"),
        ("{", r"earlier.json is not what --json writes \(JSONDecodeError"),
        ("{}", r"earlier.json is not what --json writes \(KeyError: 'machine'\)"),
        ({"ranks": 3}, "earlier.json has 3 ranks, and this run has 2: give --ranks 3"),
        (
            {"cpu": "Z80"},
            "earlier.json was measured on Z80, .* cores, and this is .* compare runs of one machine",
        ),
    ],
)
def test_a_file_that_cannot_be_compared_is_refused_before_anything_is_measured(text, said, tmp_path, capsys):
    file = tmp_path / "earlier.json"
    about = machine.describe()
    if isinstance(text, dict):
        content = {"machine": about | text, "ranks": text.get("ranks", 2), "results": []}
        file.write_text(json.dumps(content))
    elif text:
        file.write_text(text)
    with pytest.raises(SystemExit):
        parse(["--against", str(file)])
    assert re.search(said, " ".join(capsys.readouterr().err.split()))


def test_a_new_process_has_every_contender():
    code = "from occl.bench.contenders import CONTENDERS, check_available; check_available(CONTENDERS)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT)


def test_a_contender_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(contenders.dist, "is_backend_available", lambda backend: backend != "occl")
    contenders.check_available(["gloo", "floor"])
    with pytest.raises(RuntimeError, match="occl-cpu cannot run: the backend occl is not registered"):
        contenders.check_available(["gloo", "occl-cpu"])


def test_a_value_with_wide_quartiles_counts_as_too_noisy_to_tell():
    steady = report.summarize(Samples("all_reduce", 4, "gloo", 1, [1e-6, 1.1e-6, 1.2e-6, 1.3e-6]))
    restless = report.summarize(Samples("all_reduce", 4, "gloo", 1, [1e-6, 2e-6, 3e-6, 9e-6]))
    assert (steady.median_us, steady.noisy, restless.noisy) == (1.15, False, True)
    assert not any("noisy" in line for line in report.footnotes([steady]))
    assert any("too noisy to tell, 1 of 2 values" in line for line in report.footnotes([steady, restless]))


def test_ratios_are_of_medians_in_the_columns_of_the_header():
    results = [
        report.summarize(Samples("all_reduce", 1 << 20, name, 1, [seconds] * 3))
        for name, seconds in [
            *[("occl-dev", 20e-6), ("occl-cpu-shared", 25e-6), ("occl-cpu", 50e-6)],
            *[("gloo", 1000e-6), ("floor", 4e-6)],
        ]
    ]
    table = report.Table(list(CONTENDERS))
    header = table.header().splitlines()[0]
    assert header.split()[-5:] == ["gloo/dev", "gloo/cpu-shared", "gloo/cpu", "dev/floor", "cpu/floor"]
    line = table.line(results)
    assert line.split()[-5:] == ["50", "40", "20", "5", "12.5"]
    assert line.split()[:3] == ["all_reduce", "1", "MiB"]
    assert len(line) == len(header)


def test_sums_of_sixteen_bit_inputs_are_exact_for_64_ranks():
    for dtype in (torch.bfloat16, torch.float16):
        data = Data(elements=2000, calls=2, dtype=dtype, ranks=64)
        exact = sum(data(rank, 299).double() for rank in range(64))
        assert torch.equal(exact.to(dtype).double(), exact)
        assert data(0, 1).unique().numel() > 1


def test_a_machine_is_too_noisy_to_tell_if_others_use_it_or_the_floor_varies():
    steady = report.summarize(Samples("all_reduce", 4, "floor", 1, [1e-6, 1.1e-6, 1.1e-6, 1.2e-6]))
    varying = report.summarize(Samples("all_reduce", 4, "floor", 1, [1e-6, 2e-6, 3e-6, 9e-6]))
    waiting = report.summarize(Samples("all_reduce", 4, "gloo", 1, [1e-6, 2e-6, 3e-6, 9e-6]))
    assert noise.judge([steady, waiting], foreign=0.04, stolen=0.0)["quiet"]
    assert noise.judge([varying], 0.0, 0.0)["reasons"] == [
        "1 of 1 values of contenders without communication have quartiles more than 1.25 times apart"
    ]
    assert "other programs took 6%" in noise.verdict(noise.judge([steady], 0.06, 0.0))
    assert "host took 50%" in noise.verdict(noise.judge([steady], 0.0, 0.5))


def test_the_watch_counts_what_other_programs_take(monkeypatch):
    machine = iter([(100.0, 50.0, 1.0), (120.0, 66.0, 3.0)])
    own = iter([(3.0, 0.0, 0.0, 0.0, 9.0), (5.0, 1.0, 1.0, 1.0, 19.0)])
    monkeypatch.setattr(noise, "machine_seconds", lambda: next(machine))
    monkeypatch.setattr(noise.os, "times", lambda: next(own))
    foreign, stolen = noise.Watch().shares()
    assert (foreign, stolen) == (pytest.approx((16 - 5) / 20), pytest.approx(0.1))


def test_real_seconds_of_the_machine_grow():
    before = noise.machine_seconds()
    sum(range(1_000_000))
    assert all(now >= then for now, then in zip(noise.machine_seconds(), before, strict=True))
    assert before[0] > before[1] > 0
