"""`occl.launch` runs functions of the main program in ranks, shows how they fail, and refuses the rest."""

from __future__ import annotations

import pytest

import occl
from occl.testing import WrongUse
from tests.support.devices import DEVICES
from tests.support.interpreter import PACKAGE, run_python
from tests.support.thinning import first

ABOVE = """
import os, threading, time
from pathlib import Path
import torch, torch.distributed as dist, occl
from occl.testing import RanksFailed

torch.set_num_threads(2)
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()  # as the kernel of a notebook has some
torch.ones(500, 500) @ torch.ones(500, 500)
torch.nn.Linear(3, 3)(torch.ones(2, 3)).sum().backward()
here = 5
"""

WORKS = f"""{ABOVE}
def f(a, b=0):
    x = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(x)
    print("hello", a, flush=True)
    torch.nn.Linear(300, 300)(torch.ones(2000, 300)).sum().backward()
    total = x.sum().item() + a + b + here
    return total, os.environ["LOCAL_RANK"], dist.get_backend(), torch.get_num_threads()

print(occl.launch(f, 2, args=(10,), kwargs={{"b": 100}}))
print(occl.launch(lambda: (dist.get_world_size(), occl.uses_occl()), 3))

def makes_its_own():
    dist.init_process_group("gloo")
    return dist.get_rank()

print(occl.launch(makes_its_own, backend=None))
print(occl.launch(dist.get_backend, backend="gloo"), "WORLD_SIZE" in os.environ, dist.is_initialized())
print({{path.read_text() for path in Path("/proc/self/task").glob("*/children")}})
"""


def test_functions_of_the_main_program_run_in_ranks():
    """In a process that has threads, and has used those of OpenMP."""
    said = run_python("-c", WORKS, RANK="", WORLD_SIZE="").splitlines()
    assert sorted(said[:2]) == ["[rank 0] hello 10", "[rank 1] hello 10"]
    assert said[2:] == [
        "[(118.0, '0', 'occl', 1), (118.0, '1', 'occl', 1)]",
        "[(3, True), (3, True), (3, True)]",
        "[0, 1]",
        "['gloo', 'gloo'] True False",
        "{''}",
    ]


FAILS = f"""{ABOVE}
def one_raises():
    print("begun")
    if dist.get_rank() == 1:
        raise ValueError("no luck")
    dist.barrier()

def one_dies():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    dist.barrier()

def one_hangs():
    if dist.get_rank() == 1:
        threading.Event().wait()

for function in (one_raises, one_dies, one_hangs):
    try:
        occl.launch(function, 2, limit=20 if function is one_hangs else None)
    except RanksFailed as error:
        print("FAILED", error)
try:
    occl.launch(lambda: lambda: 0)
except RanksFailed as error:
    print("FAILED", error)
"""


@pytest.mark.full
def test_a_rank_that_fails_is_shown_as_in_tests(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(FAILS)
    printed, raised, died, hung, cannot = run_python(program).split("FAILED ")
    assert sorted(printed.splitlines()) == ["[rank 0] begun", "[rank 1] begun"]
    assert raised.startswith(
        "rank 1 raised ValueError: no luck; rank 0 raised DistBackendError: rank 1 (pid "
    )
    assert f'File "{program}", line' in raised and 'raise ValueError("no luck")' in raised
    assert "occl/notebook.py" not in raised and "occl/testing" not in raised
    assert died.startswith("rank 1 (pid ") and "was killed by SIGKILL; rank 0 raised DistBackendError" in died
    assert hung.startswith("rank 1 did not finish in 20 s (of 2 ranks)") and "in one_hangs" in hung
    assert "notebook.py" not in hung
    assert "pickle" in cannot and "both ranks raised" in cannot.replace("ranks 0 and 1", "both ranks"), cannot


REFUSED = """
import sys, torch, torch.distributed as dist, torch_occl
from occl.testing import WrongUse

def refused():
    try:
        torch_occl.launch(print)
    except WrongUse as error:
        print(error)

if sys.argv[1] == "group":
    dist.init_process_group("occl", store=dist.HashStore(), rank=0, world_size=1)
elif sys.argv[1] == "threads":
    torch.nn.Linear(3, 3)(torch.ones(2, 3)).sum().backward()
elif sys.argv[1] == "device":
    torch.ones(1, device="dev")
refused()
if sys.argv[1] == "group":
    dist.destroy_process_group()
    print(torch_occl.launch(lambda: torch.ones(1, device="dev").item(), 2))  # the first use is in the ranks
"""
AGAIN = "restart the kernel, and call launch before that, or put the program into a file for torchrun"
WHY = {
    "group": "this process is a rank of a process group itself: call destroy_process_group() first",
    "device": f"this process has used the device dev, which no forked process can: {AGAIN}",
    "threads": "this process has run a backward pass while it had a device, so that PyTorch started threads "
    f"which a forked process lacks: {AGAIN}",
}


@pytest.mark.skipif("dev" not in DEVICES, reason="there is no device")
@pytest.mark.parametrize("what", first(WHY))
def test_a_process_that_cannot_be_forked_is_told_what_to_do(what):
    said = run_python("-c", REFUSED, what).splitlines()
    assert said == [f"launch: {WHY[what]}", *["[1.0, 1.0]"] * (what == "group")]


@pytest.mark.parametrize(
    ("ranks", "says"),
    [(0, "there can be 1 to 256 ranks, not 0"), ("2", "must be an integer, not '2'"), (True, "not True")],
)
def test_a_wrong_number_of_ranks_is_refused(ranks, says):
    with pytest.raises(WrongUse, match=says):
        occl.launch(print, ranks)


@pytest.mark.full
def test_it_needs_no_pytest():
    """An environment without the extra `testing`."""
    blocked = "import sys; sys.modules['pytest'] = None\nimport occl\nprint(occl.launch(lambda: 3, 2))"
    assert run_python("-c", blocked, path=PACKAGE) == "[3, 3]\n"
