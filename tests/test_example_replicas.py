"""The examples of data parallelism from the inside, with real processes, interrupted and killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import in_dev_shm
from tests.support.thinning import first

EXAMPLES = Path(__file__).parents[1] / "examples"
TIMEOUT = 280
"""Seconds after which a run counts as hanging."""


def run(*command: object) -> str:
    """The output of an example, which must succeed. One that hangs shows where each of its threads is."""
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output = process.communicate(timeout=TIMEOUT)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)
        pytest.fail(f"it did not end within {TIMEOUT} seconds:\n{process.communicate()[0]}")
    assert process.returncode == 0, output
    assert "%|" not in output, "a progress bar where the output is no terminal"
    return output


def results_of(example: str, file: Path, *options: object) -> dict:
    run(EXAMPLES / example, "--json", file, *options)
    return json.loads(file.read_text())


# ---- replicas in one process ----------------------------------------------------------------------------


@pytest.mark.full
def test_two_replicas_in_one_process_train_as_one_device_with_the_same_global_batch(tmp_path):
    one, two = (results_of("replicas_digits.py", tmp_path / f"{n}.json", "--devices", n) for n in (1, 2))
    assert two["accuracy"] >= 0.97 and one["accuracy"] >= 0.97
    assert abs(two["accuracy"] - one["accuracy"]) <= 0.006  # two of the 360 images
    steps = len(one["losses"]) // 10
    assert two["losses"][:steps] == pytest.approx(one["losses"][:steps], rel=1e-3, abs=1e-4)


@pytest.mark.matrix
@pytest.mark.full
def test_two_runs_of_the_same_seed_have_the_same_bits(tmp_path):
    options = ("--devices", 3, "--epochs", 1)
    first, second = (results_of("replicas_digits.py", tmp_path / f"{i}.json", *options) for i in range(2))
    assert first["parameter_hash"] == second["parameter_hash"]
    assert first["losses"] == second["losses"]


# ---- replicas in subprocesses ---------------------------------------------------------------------------


def session_members(session: int) -> list[int]:
    """The processes of a session, but for those that have ended and only wait to be asked how."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


class Running:
    """The example while it trains: its children's process ids, and what it has printed so far."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process = process
        self.output = ""
        self.children: list[int] = []

    def read_until(self, pattern: str) -> None:
        while not re.search(pattern, self.output):
            line = self.process.stdout.readline()
            assert line, f"it ended before it printed {pattern!r}:\n{self.output}"
            self.output += line
        self.children = [int(pid) for pid in re.findall(r"replica \d+: pid (\d+)", self.output)]

    def finish(self) -> int:
        """The exit status, once it has ended; nothing of it may be left."""
        self.output += self.process.communicate(timeout=TIMEOUT)[0]
        deadline = time.monotonic() + 60
        while left := session_members(self.process.pid):  # Python's resource tracker ends after its parent
            assert time.monotonic() < deadline, f"processes {left} were left behind"
            time.sleep(0.02)
        return self.process.returncode


@contextmanager
def training(*command: object) -> Iterator[Running]:
    """The example in a session of its own, as in a terminal. It leaves nothing in /dev/shm."""
    before = in_dev_shm()
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield Running(process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()
    assert in_dev_shm() == before


SUBPROCESSES = EXAMPLES / "replicas_in_subprocesses.py"


@pytest.mark.full
def test_replicas_in_subprocesses_learn_and_leave_nothing(tmp_path):
    with training(SUBPROCESSES, "--json", tmp_path / "results.json") as example:
        assert example.finish() == 0, example.output
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["accuracy"] >= 0.97 and len(results["losses"]) == 20 and results["steps"] == 440
    assert "2 replicas are the same after 440 steps" in example.output


@pytest.mark.full
@pytest.mark.parametrize("whom", ["the whole terminal", pytest.param("the parent", marks=pytest.mark.matrix)])
def test_ctrl_c_ends_the_step_and_then_everything(whom):
    with training(SUBPROCESSES, "--epochs", 100_000, "--replicas", 3, "--batch-size", 48) as example:
        example.read_until("epoch 2: ")
        (os.killpg if whom == "the whole terminal" else os.kill)(example.process.pid, signal.SIGINT)
        assert example.finish() == 130, example.output
    assert "stopping before the next step" in example.output
    assert re.search(r"3 replicas are the same after \d+ steps: test accuracy", example.output)
    assert "Traceback" not in example.output


@pytest.mark.matrix
@pytest.mark.full
def test_ctrl_c_while_the_children_start_is_not_lost(tmp_path):
    script = tmp_path / "interrupted.py"
    script.write_text(
        f"import os, signal, sys\nsys.path.insert(0, {str(EXAMPLES)!r})\n"
        "import replicas_in_subprocesses as example\n"
        "class Child(example.Child):\n"
        "    def __init__(self, rank, *rest):\n"
        "        super().__init__(rank, *rest)\n"
        "        if rank == 0:\n"
        "            os.killpg(0, signal.SIGINT)\n"
        "if __name__ == '__main__':\n"
        "    example.Child = Child\n"
        "    example.main()\n"
    )
    with training(script, "--epochs", 1) as example:
        assert example.finish() == 130, example.output
    assert "2 replicas are the same after 0 steps" in example.output and "Traceback" not in example.output


@pytest.mark.parametrize(
    ("example", "options"),
    first(
        [
            ("replicas_in_subprocesses.py", "--replicas -1"),
            ("replicas_in_subprocesses.py", "--batch-size 2000"),
            ("replicas_digits.py", "--batch-size 1"),
            ("ddp_from_scratch/table.py", "--rounds 0"),
            ("ddp_from_scratch/table.py", "--batch-size 2000"),
            ("under_the_hood.py", "--batch-size 2000"),
        ],
        ci=1,
    ),
)
def test_options_that_make_no_sense_are_refused(example, options):
    command = [sys.executable, EXAMPLES / example, *options.split()]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert refused.returncode == 2 and "error: " in refused.stderr and "Traceback" not in refused.stderr


@pytest.mark.matrix
@pytest.mark.full
def test_ctrl_c_twice_ends_at_once():
    with training(SUBPROCESSES, "--epochs", 100_000) as example:
        example.read_until("epoch 1: ")
        os.kill(example.children[1], signal.SIGSTOP)  # so the step cannot end
        os.kill(example.process.pid, signal.SIGINT)
        example.read_until("stopping before the next step")
        os.kill(example.process.pid, signal.SIGINT)
        assert example.finish() == -signal.SIGINT
    assert "KeyboardInterrupt" in example.output


@pytest.mark.parametrize("victim", first([0, 2], 0, ci=1))
def test_the_death_of_a_child_is_an_error_that_names_it_and_the_others_stop(victim):
    with training(SUBPROCESSES, "--epochs", 100_000, "--replicas", 3, "--batch-size", 48) as example:
        example.read_until("epoch 1: ")
        os.kill(example.children[victim], signal.SIGKILL)
        assert example.finish() == 1, example.output
    pid, rest = example.children[victim], [rank for rank in range(3) if rank != victim]
    assert re.search(rf"replica {victim} \(pid {pid}\) was killed by SIGKILL in step \d+\n", example.output)
    assert f"replicas {rest} have stopped in good order" in example.output
    assert "Traceback" not in example.output


@pytest.mark.full
def test_a_child_that_raises_shows_its_traceback(tmp_path):
    script = tmp_path / "failing.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(EXAMPLES)!r})\n"
        "import replicas_in_subprocesses as example\n"
        "meet = example.meet\n"
        "def failing(pipe, count=[0]):\n"
        "    count[0] += 1\n"
        "    if count[0] == 7 and example.mp.current_process().name.endswith('-2'):\n"
        "        raise ValueError('out of luck')\n"
        "    meet(pipe)\n"
        "example.meet = failing\n"
        "if __name__ == '__main__':\n"
        "    example.main()\n"
    )
    with training(script) as example:
        assert example.finish() == 1, example.output
    fate = r"replica 1 \(pid \d+\) exited with status 1 in step 3:\nTraceback"
    assert re.search(fate, example.output), f"this does not have {fate!r}:\n{example.output}"
    assert "ValueError: out of luck" in example.output
    assert "replicas [0] have stopped in good order" in example.output


@pytest.mark.full
def test_children_end_when_the_parent_is_killed():
    with training(SUBPROCESSES, "--epochs", 100_000) as example:
        example.read_until("epoch 1: ")
        example.process.kill()
        assert example.finish() == -signal.SIGKILL


# ---- the lesson and the walk ----------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.full
def test_the_table_has_a_row_for_each_version_with_each_backend(tmp_path):
    file = tmp_path / "rows.json"
    shown = run(
        EXAMPLES / "ddp_from_scratch" / "table.py", "--rounds", 2, "--steps", 3, "--ranks", 2, "--json", file
    )
    lines = shown[shown.index("backend") :].splitlines()[1:]
    versions = ["naive", "bucketed", "overlapped", "PyTorch's DDP"]
    backends = ["occl, dev", "occl, CPU", "Gloo, CPU"]
    expected = [(backend, version) for backend in backends for version in versions]
    assert [(line[:11].strip(), line[11:26].strip()) for line in lines] == expected
    assert [line.split()[-1] for line in lines[3::4]] == ["100.0%"] * 3
    assert all(
        len(row["rates"]) == 2 and min(row["rates"]) > 0 for row in json.loads(file.read_text())["rows"]
    )


@pytest.mark.matrix
@pytest.mark.full
def test_the_walk_under_the_hood_shows_every_chapter():
    shown = run(EXAMPLES / "under_the_hood.py", "--epochs", 1)
    for expected in [
        r"rank 0 reads rank 3's value: 'hello from pid \d+'",
        r"'chapter/occl/attempt/1': \d+ bytes",
        r"dev tensors of this group are moved by ProcessGroupOCCL",
        r"rank 3: the sum over its group is \[5.0, 5.0\]",
        r"returns a WorkOCCL; completed: False",
        r"after wait\(\): completed: True, and the sum is 3.0",
        r"Timed out waiting 100ms for all_reduce",
        r"rank 1 \(pid \d+, host .*\) ended group .*: rank 1 aborted group",
        r"(?s)  computing   \|.*4.*\|\n  on its way  \|.*4.*\|\n",
        r"(?m)^  1 +\d+\.\d+ +\d+ +\d+\.\d+%$",
        r"(?m)^  2 +\d+\.\d+ +\d+ +\d+\.\d+%$",
        r"(?m)^  4 +\d+\.\d+ +\d+ +\d+\.\d+%$",
    ]:
        assert re.search(expected, shown), (expected, shown)
    assert "Warning" not in shown
    accuracies = re.findall(r"(?m)^  [124] .* (\d+\.\d+%)$", shown)
    assert len(set(accuracies)) == 1, shown
