"""A rank that has finished its operations can leave at once, in any way: the others get the right result."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from datetime import timedelta
from itertools import product

import pytest
import torch
import torch.distributed as dist

from tests.support.checks import backend
from tests.support.devices import DEVICES
from tests.support.interpreter import run_python
from tests.support.thinning import first
from tests.support.worker import EndInterpreter, listen, tell

# ---- operations: each checks its own result


def all_reduce(rank, n, device, count, group):
    t = torch.full((count,), float(rank + 1), device=device)
    dist.all_reduce(t, group=group)
    assert (t == n * (n + 1) / 2).all()


def reduce(rank, n, device, count, group):
    t = torch.full((count,), float(rank + 1), device=device)
    dist.reduce(t, 0, group=group)
    assert rank != 0 or (t == n * (n + 1) / 2).all()


def broadcast(rank, n, device, count, group):
    t = torch.full((count,), float(rank), device=device)
    dist.broadcast(t, n - 1, group=group)
    assert (t == n - 1).all()


def all_gather(rank, n, device, count, group):
    blocks = [torch.empty(count, device=device) for _ in range(n)]
    dist.all_gather(blocks, torch.full((count,), float(rank), device=device), group=group)
    for source, block in enumerate(blocks):
        assert (block == source).all()


def gather(rank, n, device, count, group):
    blocks = [torch.empty(count, device=device) for _ in range(n)] if rank == 0 else None
    dist.gather(torch.full((count,), float(rank), device=device), blocks, 0, group=group)
    for source, block in enumerate(blocks or []):
        assert (block == source).all()


def scatter(rank, n, device, count, group):
    t = torch.empty(count, device=device)
    blocks = [torch.full((count,), float(to), device=device) for to in range(n)] if rank == n - 1 else None
    dist.scatter(t, blocks, n - 1, group=group)
    assert (t == rank).all()


def reduce_scatter(rank, n, device, count, group):
    t = torch.empty(count, device=device)
    blocks = torch.arange(float(n), device=device).repeat_interleave(count)
    dist.reduce_scatter_tensor(t, blocks, group=group)
    assert (t == n * rank).all()


def all_to_all(rank, n, device, count, group):
    sent = torch.arange(float(n), device=device).repeat_interleave(count) + 100 * rank
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent, group=group)
    for source, block in enumerate(got.view(n, count)):
        assert (block == 100 * source + rank).all()


def uneven_all_to_all(rank, n, device, count, group):
    sent = torch.full((sum(count + to for to in range(n)),), float(rank), device=device)
    got = torch.empty(n * (count + rank), device=device)
    dist.all_to_all_single(got, sent, [count + rank] * n, [count + to for to in range(n)], group=group)
    for source, block in enumerate(got.view(n, count + rank)):
        assert (block == source).all()


def message(rank, n, device, count, group):
    """From rank to rank, beginning with the last one and ending with the one before it."""
    t = torch.full((count,), float(rank), device=device)
    if rank != n - 1:
        dist.recv(t, (rank - 1) % n, group=group)
    if rank != n - 2:
        dist.send(t, (rank + 1) % n, group=group)
    assert (t == n - 1).all()


def objects(rank, n, device, count, group):
    gathered = [None] * n
    dist.all_gather_object(gathered, [rank] * count, group=group)
    assert gathered == [[source] * count for source in range(n)]


def barrier(rank, n, device, count, group):
    dist.barrier(group)


def monitored_barrier(rank, n, device, count, group):
    backend(device, group).monitored_barrier(timedelta(seconds=60))


def new_group(rank, n, device, count, group):
    assert dist.get_world_size(dist.new_group(list(range(n)))) == n


OPERATIONS = {
    f.__name__: f
    for f in (all_reduce, reduce, broadcast, all_gather, gather, scatter, reduce_scatter, all_to_all,
              uneven_all_to_all, message, objects, barrier, monitored_barrier, new_group)
}  # fmt: skip
WITHOUT_DATA = ("barrier", "monitored_barrier", "new_group")
COUNTS = (1, 300, 3000, 300_000)
"""Elements: beside the operation's number, in staging memory at once, beyond one step, in several windows."""

# ---- ways to leave


def leave(how: str) -> None:
    if how == "exec":
        os.execv("/bin/true", ["true"])
    if how == "sys.exit":
        raise EndInterpreter(0)
    if "destroy" in how:
        dist.destroy_process_group()
    os._exit(1 if "error" in how else 0)


HOW = ("os._exit", "exec", "sys.exit", "destroy", "destroy, then an error")


def last_operation(rank, n, device, *, leaver, scene):
    group = dist.new_group(list(range(n))) if scene.subgroup else dist.group.WORLD
    operation = OPERATIONS[scene.operation]
    if scene.later:
        operation(rank, n, device, scene.count, group)
    tell("ready")
    if rank == leaver:
        listen()
        tell("begins")
    operation(rank, n, device, scene.count, group)
    if rank == leaver:
        leave(scene.how)


def is_over(team, rank: int) -> bool:
    """Whether the rank's process has ended, or its main thread sleeps: then it waits for another rank."""
    try:
        return team.members[rank].state() in ("S", "Z")
    except (FileNotFoundError, ProcessLookupError):
        return True


@dataclass(frozen=True)
class Scene:
    operation: str
    count: int
    world_size: int
    device: str
    later: bool
    subgroup: bool
    how: str

    def __str__(self) -> str:
        place = f"{'later' if self.later else 'first'}-{'subgroup' if self.subgroup else 'default'}"
        return f"{self.operation}-{self.count}-{self.world_size}-{self.device}-{place}-{self.how}"


def scenes() -> list[object]:
    """Each operation in each size; everything else takes turns, in the long matrix three times more."""
    pairs = [
        (name, count) for name in OPERATIONS for count in COUNTS if name not in WITHOUT_DATA or count == 1
    ]
    found = []
    for turn in range(4):
        for at, (name, count) in enumerate(pairs, start=turn):
            choices = product((2, 3, 4), DEVICES, (False, True), (False, True), HOW)
            scene = Scene(name, count, *list(choices)[at * 37 % 120])
            found.append(pytest.param(scene, id=str(scene), marks=[pytest.mark.full] * (turn > 0)))
    return found


@pytest.mark.parametrize("scene", scenes())
def test_a_rank_that_leaves_after_its_operation_leaves_the_result_to_the_others(fresh, scene):
    """The others are stopped when they wait for the leaver, and go on when it has ended or waits for them."""
    n = scene.world_size
    # Rank 0 decides a monitored barrier. A message begins and ends with others than rank 0.
    leaver = {"monitored_barrier": 0, "message": n - 1}.get(scene.operation, n // 2)
    others = [rank for rank in range(n) if rank != leaver]
    with fresh(n) as team:
        team.join().start(last_operation, scene.device, leaver=leaver, scene=scene)
        for rank in range(n):
            assert team.hear(rank) == "ready"
        for rank in others:
            team.wait_until_asleep(rank)
            team.kill(rank, signal.SIGSTOP)
        team.say(leaver, "go on")
        assert team.hear(leaver) == "begins"
        while not is_over(team, leaver):
            assert time.monotonic() < team.deadline
        for rank in others:
            team.kill(rank, signal.SIGCONT)
        for outcome in team.finish():
            if outcome.rank == leaver:
                assert outcome.died == f"exited with status {int('error' in scene.how)}", outcome
            else:
                assert not outcome.failed, outcome.traceback or outcome.died


# ---- the first program of a tutorial


TUTORIAL = """
import multiprocessing, os, sys
import torch
import torch.distributed as dist

def run(rank, world_size, store, device):
    if device == "dev":
        import torch_occl
    dist.init_process_group("occl", store=dist.FileStore(store, world_size), rank=rank, world_size=world_size)
    t = torch.ones(1000, device=device)
    dist.all_reduce(t)
    assert (t == world_size).all()
    dist.destroy_process_group()

if __name__ == "__main__":
    method, world_size, folder, device, runs = sys.argv[1:]
    context = multiprocessing.get_context(method)
    for i in range(int(runs)):
        arguments = (int(world_size), os.path.join(folder, f"store-{i}"), device)
        ranks = [context.Process(target=run, args=(rank, *arguments)) for rank in range(int(world_size))]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        assert [rank.exitcode for rank in ranks] == [0] * len(ranks), f"run {i}"
"""


@pytest.mark.parametrize(
    ("method", "world_size", "device", "runs"),
    first(
        [
            ("fork", 2, "cpu", 8),
            ("forkserver", 2, "cpu", 10),
            ("spawn", 2, "dev", 5),
            ("fork", 4, "cpu", 50),
            ("fork", 2, "dev", 50),
            ("spawn", 2, "cpu", 5),
        ],
        ci=3,
    ),
)
def test_the_first_program_of_a_tutorial(tmp_path, method, world_size, device, runs):
    program = tmp_path / "tutorial.py"
    program.write_text(TUTORIAL)
    run_python(program, method, world_size, tmp_path, device, runs)
