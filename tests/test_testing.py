"""The pytest plugin `occl.testing`: how each test of `support/ranks_sample.py` ends."""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from occl.testing.launch import ForkServer
from occl.testing.outcomes import WrongUse
from occl.testing.team import Team
from tests.support import own_pytest
from tests.support.interpreter import run_python
from tests.support.own_pytest import Results

pytestmark = pytest.mark.full

SAMPLE = Path(__file__).parent / "support" / "ranks_sample.py"

CONFTEST = """
import pytest

class Doubling:
    def doubled(self, value):
        return 2 * value

@pytest.fixture
def of_conftest():
    return Doubling()
"""

THREADS = """
import threading, time, pytest

threading.Thread(target=time.sleep, args=(999,), daemon=True, name="at-import").start()

@pytest.mark.ranks(2)
def test_bad_threads(rank):
    pass

@pytest.mark.ranks(1, start="spawn", group=False)
def test_spawned_beside_threads(rank):
    pass
"""

ONLY_IN_PYTEST = """
import sys, pytest

if "--junitxml=results.xml" not in sys.argv:
    raise LookupError("this import needs pytest's own process")

@pytest.mark.ranks(2)
def test_bad_import(rank):
    pass
"""


AT_FORK = """
import os, threading, time

def start():
    threading.Thread(target=time.sleep, args=(999,), daemon=True, name="of-this-module").start()

os.register_at_fork(after_in_child=start)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Results:
    """The whole sample has run once."""
    folder = tmp_path_factory.mktemp("sample")
    shutil.copy(SAMPLE, folder / "test_sample.py")
    files = {"conftest": CONFTEST, "test_threads": THREADS, "test_only": ONLY_IN_PYTEST}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return own_pytest.run(folder, "--strict-markers", statuses=(1,))


def test_a_rank_makes_its_thread_pool_anew():
    """With one thread, before threads of autograd do it all at once. A rank of a warm process with a pool of
    three threads has three."""
    script = """
import os, sys, torch
from multiprocessing import Pipe
from occl.testing import child as rank
torch.set_num_threads(3)
torch.get_num_threads()  # which PyTorch would otherwise do in the child
ours, theirs = Pipe()
if os.fork() == 0:
    ours.close()
    rank.work(rank.Descriptors(theirs.fileno(), os.dup(2), os.dup(2), os.open(os.devnull, os.O_WRONLY)))
job = {"module": "os", "name": "listdir", "path": sys.path, "args": ["/proc/self/task"], "params": {}}
ours.send(job | {"once": False})
kind, threads = ours.recv()
print(kind, len(threads))
"""
    assert run_python("-c", script, stderr=False).split() == ["returned", "3"]


def rank_of(rank: int, world_size: int, device: str) -> int:
    return rank


def test_a_warm_process_may_have_threads_that_each_fork_starts_and_no_others(tmp_path, monkeypatch):
    """The runtime of ThreadSanitizer is one that starts a thread in each child."""
    (tmp_path / "at_fork.py").write_text(AT_FORK)
    monkeypatch.syspath_prepend(tmp_path)
    with closing(ForkServer(["at_fork"])) as server, closing(server.clone()) as clone:
        with Team(clone, 2, limit=60) as team:
            assert team.run(rank_of) == [0, 1]
        clone.ask("warm_up", "at_fork", "start")
        with pytest.raises(WrongUse, match=r"has other threads \(of-this-module\)"):
            Team(clone, 2, limit=60)


def test_every_test_of_the_sample_ends_as_its_name_says(results):
    wrong = {
        name: ending.text
        for name, ending in results.endings.items()
        if (ending.kind in ("failure", "error")) != name.startswith("test_bad")
    }
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())
    names = re.findall(r"def (test_\w+)", SAMPLE.read_text() + THREADS + ONLY_IN_PYTEST)
    assert set(names) == {name.partition("[")[0] for name in results.endings}


def test_a_list_of_sizes_parametrizes_the_test(results):
    assert {"test_sizes[1ranks]", "test_sizes[3ranks]"} <= set(results.endings)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("skipped", "not here"),
        ("xfailed_inside", "not yet"),
        ("xfailed", ""),
    ],
)
def test_skips_and_expected_failures_are_those_of_pytest(results, name, words):
    ending = results.endings[f"test_{name}"]
    assert ending.kind == "skipped" and words in ending.text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("one_rank", r"^rank 1 raised AssertionError: assert 2 == 5 \(of 3 ranks\)"),
        ("one_rank", r"---- rank 1 raised AssertionError\ntest_sample.py:\d+: in test_bad_one_rank\n"),
        ("one_rank", r"    assert total == 5\nE   assert 2 == 5"),
        ("alike", r"^ranks 0, 1 and 3 raised ValueError: we all say this \(of 4 ranks\)"),
        ("death", r"rank 0 \(pid \d+\) was killed by SIGKILL"),
        ("death", r"---- rank 1 raised RuntimeError\n(?s:.*)Connection (reset|closed)"),
        ("hang", r"^rank 1 did not finish in 1 s \(of 2 ranks\)"),
        (
            "hang",
            r"Thread.*\n(?s:.*)\nCurrent thread.*\n  File \".*test_sample.py\", line \d+ in test_bad_hang$",
        ),
        ("hang_with_the_interpreter_locked", r"line \d+ in test_bad_hang_with_the_interpreter_locked"),
        ("stopped", r"rank 0 did not finish in 1 s(?s:.*)may have been stopped by a signal\."),
        ("wait", r"Timed out waiting 8000ms for (all_reduce|recv)\(.*rank [01] .*its last operation was"),
        (
            "difference",
            r"^ranks 0-2 raised AssertionError: rank 2 differs from rank 0 at \['weight'\], "
            r"element \[1, 2\]: -0.0 \(0x80000000\) on rank 2, 0.0 \(0x00000000\) on rank 0",
        ),
        (
            "kinds",
            r"rank 1 differs from rank 0 at \[0\]: a tensor of int32\[2\], and not a tensor of int64\[2\]",
        ),
        ("lengths", r"rank 1 differs from rank 0 at len\(\['a'\]\): 2 on rank 1, 1 on rank 0"),
        ("some_skip", r"^rank 1 skipped the test and rank 0 did not: let all ranks decide alike"),
        ("breakpoint", r"breakpoint\(\) in rank 0, which has no terminal: run pytest with --ranks-pdb=0"),
        ("strict_xfail", r"XPASS\(strict\)"),
        ("fixture", r"'lock' cannot be sent to the ranks, because it cannot be pickled \(TypeError: .*make"),
        ("value[x]", r"'value' cannot be rebuilt in this rank \(KeyError: 'only there'\)"),
        ("size", r"there can be 1 to 256 ranks, not 300"),
        ("no_size", r"the number of ranks is missing: write ranks\(2\)"),
        ("two_sizes", r"several numbers of ranks are given as a list: ranks\(\[2, 3\]\)"),
        ("option", r"there is no option limt=: did you mean limit=\?"),
        ("limit", r"limit must be a number of seconds above 0, not 'long'"),
        ("start", r'start must be "fork" or "spawn", not \'forkserver\''),
        ("argument", r"an argument 'rnak', and there is no such fixture; did you mean 'rank'"),
        ("async", r"the test is asynchronous; make it a plain function that calls asyncio.run"),
        ("rank_parameter[1]", r"parametrized with rank, .*choose another name"),
        ("twice[cpu]", r"device is in the mark and in the test's parameters; leave it out of the mark"),
        ("backend", r"rank 0 raised \w+: (?s:.*)nonesuch"),
        ("no_mark", r"'rank' is for tests with the mark ranks. Add @pytest.mark.ranks\(2\)"),
        ("case", r"the mark is for functions and for methods of plain classes"),
        ("threads", r"has other threads \(at-import\), so forking it is not sound.*start='spawn'"),
        ("import", r"cannot import .*test_only.py, which pytest could(?s:.*)LookupError: this import needs"),
    ],
)
def test_a_failure_says_what_happened_and_what_to_do(results, name, words):
    text = results.endings[f"test_bad_{name}"].text
    assert re.search(words, text, re.M), text


def test_each_rank_that_printed_has_a_section_of_its_own(results):
    for rank in range(3):
        section = f"Captured output of rank {rank} call -*\nprinted by rank {rank}\n"
        assert re.search(section, results.output)
    assert re.search("Captured output of rank 0 call -*\nlast words\n", results.output)


def test_identical_tracebacks_are_shown_once(results):
    assert results.endings["test_bad_alike"].text.count('raise ValueError("we all say this")') == 1


def test_frames_of_the_plugin_are_not_shown(results):
    assert "torch_occl/testing" not in results.output
