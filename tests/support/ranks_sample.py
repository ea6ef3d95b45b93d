"""Tests that use the mark ``ranks``, well and badly. `test_testing.py` copies them, runs them, and looks how
each one ends: a name that begins with ``test_bad`` is one that must fail."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
import unittest
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from occl.testing import RanksFailed, WrongUse, assert_same_on_all_ranks

STATE: list[int] = []
IMPORTER = os.getpid()


# ---- what works ----------------------------------------------------------------------------------------


@pytest.mark.ranks(2)
def test_gloo_on_the_cpu(rank, world_size, device):
    assert dist.get_backend() == "gloo" and device == torch.device("cpu")
    assert (dist.get_rank(), dist.get_world_size()) == (rank, world_size) == (rank, 2)
    tensor = torch.tensor([rank + 1])
    dist.all_reduce(tensor)
    assert tensor.item() == 3
    assert not torch.accelerator.is_available()


@pytest.mark.ranks([1, 3], device="dev")
def test_sizes(rank, world_size, device):
    assert dist.get_backend(dist.group.WORLD) == "occl"
    assert device == torch.device("dev", rank) and torch.accelerator.current_device_index() == rank
    tensor = torch.ones(1, device=device)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size


@pytest.mark.parametrize("backend", ["gloo", "occl"])
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.ranks()
def test_parameters_are_options(world_size, backend):
    assert (dist.get_world_size(), dist.get_backend()) == (world_size, backend)


@pytest.mark.ranks(2, group=False)
def test_no_group(rank, tmp_path):
    assert not dist.is_initialized()
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (str(rank), "2")
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 2), rank=rank, world_size=2)
    dist.barrier()


@pytest.mark.parametrize("time", ["first", "second"])
@pytest.mark.ranks(2)
def test_nothing_leaks(time):
    assert os.getpid() != IMPORTER and STATE == [] and "LEAK" not in os.environ
    STATE.append(1)
    os.environ["LEAK"] = time


class Pair:
    def __init__(self, left, right):
        self.left, self.right = left, right


@pytest.fixture
def pair(request, rank):
    return Pair(os.getpid(), rank)


@pytest.mark.parametrize("factor", [2])
@pytest.mark.ranks(2)
def test_fixtures_travel(rank, pair, factor, tmp_path, of_conftest):
    assert pair.left not in (os.getpid(), os.getppid()) and pair.right == rank
    assert of_conftest.doubled(rank) == factor * rank
    (tmp_path / str(rank)).touch()
    dist.barrier()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.fixture
def variable(monkeypatch, tmp_path):
    monkeypatch.setenv("OF_FIXTURE", "yes")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("variable")
@pytest.mark.ranks(1)
def test_the_environment_travels(tmp_path):
    assert os.environ["OF_FIXTURE"] == "yes" and Path.cwd() == tmp_path


class TestMethods:
    def setup_method(self):
        self.made = 7

    @pytest.mark.ranks(2)
    def test_a_method(self, rank):
        assert self.made == 7


@pytest.mark.ranks(2, start="spawn")
def test_spawned(rank):
    assert STATE == [] and dist.get_world_size() == 2


@pytest.mark.ranks(3)
def test_the_same(rank):
    nan = torch.tensor([float("nan")])
    assert_same_on_all_ranks({"a": [nan, (1, "x")], "b": None, "c": torch.ones(2, 2).T, "d": float("nan")})


@pytest.mark.ranks(2)
def test_skipped():
    pytest.skip("not here")


@pytest.mark.ranks(2)
def test_xfailed_inside():
    pytest.xfail("not yet")


@pytest.mark.xfail
@pytest.mark.ranks(2)
def test_xfailed(rank):
    assert rank == 5


# ---- run_ranks -----------------------------------------------------------------------------------------


def twice(rank, values):
    return values * rank * 2


def dies(rank, world_size, who):
    if rank == who:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def leaves(rank):
    if rank == 1:
        os._exit(3)


def test_results_in_rank_order(run_ranks):
    results = run_ranks(twice, world_size=3, params={"values": torch.ones(2)})
    assert [result.tolist() for result in results] == [[0, 0], [2, 2], [4, 4]]


def test_deaths_can_be_expected(run_ranks):
    outcomes = run_ranks(dies, 3, params={"who": 1}, backend="occl", check=False)
    assert [outcome.died for outcome in outcomes] == ["", "killed by SIGKILL", ""]
    assert all("rank 1" in outcomes[rank].raised for rank in (0, 2))
    with pytest.raises(RanksFailed, match=r"rank 1 \(pid \d+\) was exited with status 3"):
        run_ranks(leaves, group=False)


def leaves_a_child():
    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    return child


def test_processes_that_ranks_leave_behind_are_ended(run_ranks):
    for child in run_ranks(leaves_a_child, 2, group=False):
        assert not Path(f"/proc/{child}").exists()


def test_a_call_that_cannot_be_is_refused(run_ranks):
    with pytest.raises(WrongUse, match=r"<lambda> cannot be found by name.*top of a module"):
        run_ranks(lambda: 1)
    with pytest.raises(WrongUse, match=r"twice\(rank, values\) does not fit.*missing.*'values'"):
        run_ranks(twice)
    with pytest.raises(WrongUse, match=r"'values' cannot be sent.*pickled"):
        run_ranks(twice, params={"values": threading.Lock()})
    with pytest.raises(WrongUse, match=r"ulimit -n"):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        try:
            run_ranks(twice, 64, params={"values": 1})
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert run_ranks(twice, params={"values": 1}) == [0, 2]


# ---- what fails ----------------------------------------------------------------------------------------


@pytest.mark.ranks(3)
def test_bad_one_rank(rank):
    print(f"printed by rank {rank}")
    total = rank + 1
    if rank == 1:
        assert total == 5


@pytest.mark.ranks(4)
def test_bad_alike(rank):
    if rank != 2:
        raise ValueError("we all say this")


@pytest.mark.ranks(2)
def test_bad_death(rank):
    print("last words")
    dies(rank, 2, who=0)


@pytest.mark.ranks(2, limit=1)
def test_bad_hang(rank):
    if rank == 1:
        lock = threading.Lock()
        lock.acquire()
        threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
        lock.acquire()


@pytest.mark.ranks(1, limit=1, group=False)
def test_bad_hang_with_the_interpreter_locked():
    ctypes.PyDLL(None).sleep(99)


@pytest.mark.ranks(1, limit=1, group=False)
def test_bad_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.ranks(2, backend="occl", limit=10)
def test_bad_wait(rank):
    if rank == 0:
        dist.all_reduce(torch.ones(4))
    else:
        dist.recv(torch.ones(1), 0)


@pytest.mark.ranks(3)
def test_bad_difference(rank):
    tensor = torch.zeros(2, 3)
    tensor[1, 2] = -0.0 if rank == 2 else 0.0
    assert_same_on_all_ranks({"weight": tensor})


@pytest.mark.ranks(2)
def test_bad_kinds(rank):
    assert_same_on_all_ranks([torch.zeros(2, dtype=torch.int32 if rank else torch.int64)])


@pytest.mark.ranks(2)
def test_bad_lengths(rank):
    assert_same_on_all_ranks({"a": [1] * (1 + rank)})


@pytest.mark.ranks(2)
def test_bad_some_skip(rank):
    if rank == 1:
        pytest.skip("only here")


@pytest.mark.ranks(2)
def test_bad_breakpoint(rank):
    breakpoint()


@pytest.mark.xfail(strict=True)
@pytest.mark.ranks(2)
def test_bad_strict_xfail(rank):
    pass


# ---- what cannot be ------------------------------------------------------------------------------------


@pytest.fixture
def lock():
    return threading.Lock()


@pytest.mark.ranks(2)
def test_bad_fixture(rank, lock):
    pass


def rebuilt(pid):
    if os.getpid() != pid:
        raise KeyError("only there")
    return pid


class OnlyHere:
    def __reduce__(self):
        return rebuilt, (os.getpid(),)


@pytest.mark.parametrize("value", [OnlyHere()], ids="x")
@pytest.mark.ranks(1)
def test_bad_value(value):
    pass


@pytest.mark.ranks(300)
def test_bad_size(rank):
    pass


@pytest.mark.ranks()
def test_bad_no_size(rank):
    pass


@pytest.mark.ranks(2, 3)
def test_bad_two_sizes(rank):
    pass


@pytest.mark.ranks(2, limt=3)
def test_bad_option(rank):
    pass


@pytest.mark.ranks(2, limit="long")
def test_bad_limit(rank):
    pass


@pytest.mark.ranks(2, start="forkserver")
def test_bad_start(rank):
    pass


@pytest.mark.ranks(2)
def test_bad_argument(rnak):
    pass


@pytest.mark.ranks(2)
async def test_bad_async(rank):
    pass


@pytest.mark.parametrize("rank", [1])
@pytest.mark.ranks(2)
def test_bad_rank_parameter(rank):
    pass


@pytest.mark.parametrize("device", ["cpu"])
@pytest.mark.ranks(2, device="dev")
def test_bad_twice(device):
    pass


@pytest.mark.ranks(1, backend="nonesuch")
def test_bad_backend():
    pass


def test_bad_no_mark(rank):
    pass


class BadCase(unittest.TestCase):
    @pytest.mark.ranks(2)
    def test_bad_case(self):
        pass
