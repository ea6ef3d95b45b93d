"""Programs of other libraries in the benchmark take turns; one that computes nothing or dies is caught."""

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import pages
from benchmarks.peers import programs as peers
from occl.bench import command, report
from occl.bench.contenders import CONTENDERS
from occl.bench.measure import Samples
from occl.bench.operations import OPERATIONS

TIMEOUT = 300
"""Seconds after which a run counts as hanging."""
FROM_PYTHON_ONLY = (
    "all_gather",
    "reduce_scatter",
    "one_shot_all_reduce",
)  # lists of tensors, PyTorch's memory
PROGRAMS = command.Programs(tuple(peers.PROGRAMS), peers.prepare, peers.work)
KINDS = [o.kind for o in OPERATIONS if o.name == o.kind and o.has_data and o.name not in FROM_PYTHON_ONLY]

needs_compiler = pytest.mark.skipif(
    not (shutil.which("make") and shutil.which("g++") and peers.SOURCES.is_dir()),
    reason="programs are built from a checkout, with make and g++",
)
needs_objects = pytest.mark.skipif(bool(peers.lacks_objects()), reason="the extension was built elsewhere")

LAZY = """
#include "peer.h"
struct Lazy : bench::Library {
  std::string version() override { return "lazy\\nand more"; }
  bool offers(bench::Op op, bench::Type) override { return op != bench::Op::gather; }
  bench::Call bind(const bench::Task& task, bench::Buffers) override {
    return [=, this] { if (task.whole == 7) std::_Exit(3); };
  }
};
int main(int, char** argv) {
  return bench::guarded([&] {
    Lazy lazy;
    lazy.rank = std::atoi(argv[2]), lazy.size = std::atoi(argv[3]);
    return bench::serve(lazy, argv[1]);
  });
}
"""
"""A library that offers everything but gather, and does nothing; calls of 7 elements end the process."""


@pytest.fixture(scope="module")
def lazy_program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lazy")
    (folder / "lazy.cpp").write_text(LAZY)
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{peers.SOURCES}"]
    subprocess.run(["g++", *flags, str(folder / "lazy.cpp"), "-o", str(folder / "lazy")], check=True)
    return folder / "lazy"


@pytest.fixture
def lazy(lazy_program, tmp_path, monkeypatch):
    """The connections to the two ranks of that program."""
    monkeypatch.setattr(peers, "BUILD", lazy_program.parent)
    address = str(tmp_path / "lazy")
    connections = [peers.Connection("lazy", address, rank) for rank in range(2)]
    processes = peers.Program("lazy", "lazy").start(address, 2)
    assert all(connection.accept(processes) for connection in connections)
    yield connections
    for connection in connections:
        connection.close()
    peers.stop(processes)
    assert all(process.poll() is not None for process in processes)


@needs_compiler
@needs_objects
@pytest.mark.full
@pytest.mark.matrix
@pytest.mark.parametrize("ranks", [2, 3])
def test_programs_of_occl_and_the_roofline_are_measured_in_turns_with_the_others(ranks, tmp_path):
    file, picture = tmp_path / "results.json", tmp_path / "picture.png"
    names = ["core-dev", "core-cpu", "c++-cpu", "roofline-cached", "roofline-streaming", "occl-dev"]
    options = ["--ranks", str(ranks), "--sizes", "4", "100K", "--seconds", "0.5", "--json", str(file)]
    if importlib.util.find_spec("matplotlib"):
        options += ["--plot", str(picture)]
    shown = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", *options, "--contenders", *names],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
    )
    assert shown.returncode == 0, shown.stdout
    content = json.loads(file.read_text())
    assert set(content["versions"]) == set(names) - {"occl-dev"}
    assert set(content["noise"]) >= {"quiet", "reasons", "foreign_share", "stolen_share"}
    cells: dict = {}
    for row in content["results"]:
        cells.setdefault((row["operation"], row["bytes"]), {})[row["contender"]] = row["median_us"]
    assert {name for name, _ in cells} == {each.name for each in OPERATIONS if not each.mapped}
    for (operation, _), row in cells.items():
        if operation in FROM_PYTHON_ONLY:
            assert set(row) == {"occl-dev"}
        elif operation == "barrier":  # moves nothing
            assert set(row) == {"core-dev", "core-cpu", "c++-cpu", "occl-dev"}
        else:
            assert set(row) == {*names, "roofline"}
            assert row["roofline"] == min(row["roofline-cached"], row["roofline-streaming"])
    if picture.exists():
        for drawn in (picture, picture.with_stem("picture-roofline")):
            assert drawn.read_bytes().startswith(b"\x89PNG")
    assert picture.exists() == bool(importlib.util.find_spec("matplotlib"))


@needs_compiler
@needs_objects
@pytest.mark.full
@pytest.mark.matrix
def test_operations_that_no_contender_has_are_left_out(tmp_path):
    file = tmp_path / "results.json"
    command = ["-m", "benchmarks.peers", "--contenders", "core-cpu", "--ops", "all_gather", "barrier"]
    command += ["--sizes", "4", "--seconds", "0.2", "--json", str(file)]
    shown = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=TIMEOUT)
    assert shown.returncode == 0, shown.stderr
    assert {row["operation"] for row in json.loads(file.read_text())["results"]} == {"barrier"}
    assert "all_gather" not in shown.stdout


def on_both(connections, call):
    """What ``call`` gives or raises for each of the connections, at the same time."""
    with ThreadPoolExecutor(len(connections)) as pool:
        futures = [pool.submit(call, connection) for connection in connections]
    return [future.exception() or future.result() for future in futures]


@needs_compiler
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "gather"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_program_that_does_nothing_is_caught(kind, dtype, lazy):
    assert [connection.version for connection in lazy] == ["lazy", "lazy"]
    assert all(connection.prepare(kind, dtype, 100, 3) for connection in lazy)
    found = on_both(lazy, lambda connection: connection.run(1, 3))
    wrong = {rank for rank in range(2) if isinstance(found[rank], peers.PeerError)}
    # A root has its part already in place: the other rank is wrong.
    assert wrong == {"reduce": {0}, "broadcast": {1}}.get(kind, {0, 1})
    assert all(re.search(r"lazy ended\. It said: element \d+ of a block", str(found[rank])) for rank in wrong)


@needs_compiler
def test_an_operation_that_a_library_lacks_is_left_out(lazy):
    for name in ("gather", *FROM_PYTHON_ONLY):
        assert not any(connection.prepare(name, "float32", 8, 1) for connection in lazy)
    assert all(connection.prepare("barrier", "float32", 8, 1) for connection in lazy)
    assert all(0 <= seconds < TIMEOUT for seconds in on_both(lazy, lambda connection: connection.run(1, 1)))


@needs_compiler
def test_a_program_that_dies_is_an_error_that_names_it(lazy):
    assert all(connection.prepare("all_reduce", "float32", 7, 1) for connection in lazy)
    for error in on_both(lazy, lambda connection: connection.run(1, 1)):
        with pytest.raises(peers.PeerError, match=r"lazy ended\. It said: nothing"):
            raise error


def test_a_program_that_does_not_start_is_noticed_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "BUILD", Path(shutil.which("false")).parent)
    connection = peers.Connection("false", str(tmp_path / "false"), 0)
    processes = peers.Program("false", "false").start(str(tmp_path / "false"), 1)
    assert not connection.accept(processes)
    connection.close()
    peers.stop(processes)


def parse(arguments):
    made = argparse.ArgumentParser()
    command.arguments(made, PROGRAMS)
    options = made.parse_args(arguments)
    command.complete(options, PROGRAMS)
    return options


def test_peers_that_are_not_installed_are_named_and_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(peers.shutil, "which", lambda tool, **_: None)
    monkeypatch.setattr(peers, "INTEL", tmp_path)
    options = parse(["--peers"])
    missing = command.drop_missing(options, PROGRAMS)
    assert options.contenders == list(CONTENDERS)
    assert set(missing) == set(peers.PROGRAMS)
    options = parse(["--contenders", "gloo", "openmpi"])
    with pytest.raises(RuntimeError, match="openmpi lacks "):
        command.drop_missing(options, PROGRAMS)


def test_what_a_peer_lacks_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(peers.shutil, "which", lambda tool: None if "openmpi" in tool else tool)
    monkeypatch.setattr(peers, "INTEL", tmp_path)
    assert peers.PROGRAMS["openmpi"].missing() == "mpicxx.openmpi, mpirun.openmpi"
    assert peers.PROGRAMS["mpich"].missing() == ""
    assert str(tmp_path / "lib/libmpi.so") in peers.PROGRAMS["intelmpi"].missing()
    assert "libccl.a" in peers.PROGRAMS["oneccl"].missing()


def test_peers_and_contenders_exclude_each_other(capsys):
    with pytest.raises(SystemExit):
        parse(["--peers", "--contenders", "gloo"])
    assert "give one of the two" in capsys.readouterr().err


def test_a_cell_without_a_value_is_a_dash_and_the_best_peer_is_the_fastest():
    names = ["core-cpu", "openmpi", "mpich", "roofline-cached", "roofline-streaming", "occl-dev"]
    seconds = {"core-cpu": 2e-6, "openmpi": 8e-6, "roofline-cached": 3e-6, "roofline-streaming": 1e-6}
    seconds["occl-dev"] = 4e-6
    results = report.with_roofline(
        [
            report.summarize(Samples("reduce", 1 << 20, name, 1, [value] * 3))
            for name, value in seconds.items()
        ]
    )
    table = report.Table(names)
    header, line = table.header().splitlines()[0], table.line(results)
    assert header.split()[2::2][:5] == ["us"] * 5
    assert header.split()[-2:] == ["peer/core-cpu", "roofline/dev"]
    assert line.split()[-2:] == ["4", "0.25"]
    assert "- " in line
    assert len(line) == len(header)
    assert "  reduce                        4        4        4" in report.summary(results)


@pytest.fixture(scope="module")
def model():
    path = Path(__file__).parents[1] / "benchmarks" / "model.py"
    spec = importlib.util.spec_from_file_location("model", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["model"] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


def test_the_model_finds_the_parameters_that_made_the_times(model):
    cache = 1 << 20
    true = model.Model(call=3.0, sync=0.5, per_cached_byte=1e-5, per_memory_byte=4e-5, cache=cache)
    moved = {}
    for i, size in enumerate([64, 4096, 1 << 16, 1 << 20, 1 << 24]):
        for memory, path, factor in (("dev", "direct", 2), ("cpu", "staged", 4)):
            path = "one_shot" if i < 2 else path
            moved["all_reduce", memory, size] = model.Moved(
                path, 1, i + 2, factor * size, 0, 0, 0, 0, 0, factor * size, 0
            )
    points = [model.Point(*key, true.time(key[0], key[2], 2, value)) for key, value in moved.items()]
    found = model.fit(points, moved, 2, cache)
    assert found.parameters() == pytest.approx(true.parameters())


def test_a_parameter_never_gets_negative(model):
    a = model.np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert model.not_negative(a, model.np.array([3.0, 2.0, 1.0])).tolist() == [pytest.approx(2.0), 0.0]


@needs_compiler
@needs_objects
def test_plans_move_what_they_must(model):
    size = 1 << 20
    plans = model.plans(2, 1, [size])
    assert plans["all_reduce", "dev", size].busiest == 2 * size  # half of two inputs, half of two outputs
    assert plans["broadcast", "dev", size].busiest == size  # half of the root's, into the other's
    assert plans["all_reduce", "cpu", size].path == "staged"
    far = model.plans(4, 2, [size])["all_gather", "dev", size]
    # A rank writes its quarter into both tensors of its socket, and then one of the other socket's quarters.
    assert (far.read_near, far.read_far, far.write_near, far.write_far) == (size // 4, size // 4, size, 0)


def test_tables_go_between_their_marks_only(tmp_path):
    (page := tmp_path / "page.md").write_text("a\n<begin>\nold\n<end>\nb\n")
    pages.write_between(page, "<begin>", "<end>", "new\n")
    assert page.read_text() == "a\n<begin>\nnew\n<end>\nb\n"
    for marks in ("<other>", "<end>"), ("<begin>", "<other>"), ("<end>", "<begin>"):
        with pytest.raises(RuntimeError, match="are missing"):
            pages.write_between(page, *marks, "newer")
    assert "newer" not in page.read_text()


def written(script: str, file: Path, *options: str) -> dict:
    """What a script of ``benchmarks`` writes."""
    path = Path(__file__).parents[1] / "benchmarks" / script
    shown = subprocess.run(
        [sys.executable, str(path), *options, "--json", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        env=os.environ,
    )
    assert shown.returncode == 0, shown.stdout
    return json.loads(file.read_text())


@pytest.mark.full
@pytest.mark.matrix
def test_the_start_is_measured(tmp_path):
    results = written("startup.py", tmp_path / "startup.json", "--rounds", "2")
    assert results["import"]["torch_occl_s"] > 0
    assert set(results["groups"]) == {"occl", "gloo"}
    assert all(value > 0 for row in results["groups"].values() for value in row.values())


@pytest.mark.full
@pytest.mark.matrix
@pytest.mark.skipif(not importlib.util.find_spec("sklearn"), reason="the digits network needs scikit-learn")
def test_whole_training_steps_are_measured(tmp_path):
    options = ["--seconds", "2", "--models", "digits_ddp", "gpt_fsdp"]
    results = written("training.py", tmp_path / "training.json", *options)["results"]
    assert set(results) == {"digits_ddp", "gpt_fsdp"}
    communicating = {"occl-dev", "occl-cpu-shared", "occl-cpu", "gloo"}
    for rows in results.values():
        assert set(rows) == {*communicating, "none-dev", "none-cpu-shared", "none-cpu"}
        assert all(row["samples_per_second"] > 0 for row in rows.values())
        assert {name for name, row in rows.items() if "communication_share" in row} == communicating
