"""Training that survives every fault with what it has saved: ``pytest examples/test_elastic_faults.py``.

When a step fails, the ranks that still come meet anew at a store, make a new group, and go on from the last
saved state. Each global batch is divided among them, so the result is the same however many are left.
"""

import contextlib
import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

RANKS, STEPS, SAVED_EVERY = 4, 20, 5
TIMEOUT = timedelta(seconds=2)
PATIENCE = timedelta(seconds=4)  # longer than the timeout: not all ranks notice a fault at once
INPUTS = torch.linspace(-1, 1, 60).view(12, 5)
TARGETS = INPUTS.square().sum(dim=1, keepdim=True)


class Training:
    """The weights of a linear model, and the number of steps made."""

    def __init__(self, saved: Path) -> None:
        self.saved = saved
        self.weights, self.step = torch.zeros(5, 1), 0
        if saved.exists():
            state = torch.load(saved)
            self.weights, self.step = state["weights"], state["step"]

    def save(self) -> None:
        new = self.saved.with_suffix(".new")  # a death while writing leaves the old file as it is
        torch.save({"weights": self.weights, "step": self.step}, new)
        new.replace(self.saved)

    def make_step(self, rank: int = 0, size: int = 1) -> None:
        """Changes nothing if it raises."""
        inputs, targets = INPUTS[rank::size], TARGETS[rank::size]
        gradient = inputs.T @ (inputs @ self.weights - targets) / len(INPUTS)
        if size > 1:
            dist.all_reduce(gradient)
        self.weights = self.weights - 0.5 * gradient
        self.step += 1


def meet(store: dist.Store, name: int, members: list[int]) -> list[int]:
    """The members that come in time, the same list for each of them: the first one that asks decides."""
    store.set(str(name), "here")
    with contextlib.suppress(RuntimeError):  # not all of them come
        store.wait([str(member) for member in members], PATIENCE)
    here = [member for member in members if store.check([str(member)])]
    return json.loads(store.compare_set("members", "", json.dumps(here)))


def train(name: int, store: dist.Store, backend: str, saved: Path) -> tuple[Training, list[int]]:
    """The training at its end, and the ranks that are left. Raises RuntimeError if this one came too late."""
    members, number = list(range(RANKS)), 0
    while True:
        number += 1
        place = dist.PrefixStore(f"group {number}", store)
        members = meet(place, name, members)
        if name not in members:
            raise RuntimeError(f"rank {name} came too late to group {number}: {members}")
        rank, size = members.index(name), len(members)
        try:
            dist.init_process_group(backend, store=place, rank=rank, world_size=size, timeout=TIMEOUT)
            training = Training(saved)
            dist.barrier()  # all have read before one writes
            while training.step < STEPS:
                training.make_step(rank, size)
                if rank == 0 and training.step % SAVED_EVERY == 0:
                    training.save()
            dist.barrier()  # no rank leaves while another may have to go back
            return training, members
        except RuntimeError as error:  # of the group, and of a device that has no memory
            print(f"rank {name} begins again: {error}")
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


FAULTS = {
    "kill": lambda faults: faults.kill(rank=2, at="all_reduce#8"),
    "stop": lambda faults: faults.stop(rank=2, at="all_reduce#8"),
    "late": lambda faults: faults.late(rank=2, seconds=0.5, at="all_reduce#8"),
    "delay": lambda faults: faults.delay(rank=2, seconds=0.01, of="all_reduce"),
    "oom": lambda faults: faults.oom(rank=2, at="all_reduce#8"),
    "cut": lambda faults: faults.cut(ranks=[2, 3], at="all_reduce#8"),
    "random": lambda faults: faults.random(within=STEPS, kinds=["kill", "late", "oom"]),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("backend", ["occl", "gloo"])
@pytest.mark.ranks(RANKS, group=False)
def test_training_survives(rank, backend, fault, faults, tmp_path):
    if fault == "cut":
        os.environ["OCCL_NODE"] = "aabb"[rank]  # two nodes on this machine, with Gloo between them
    planned = FAULTS[fault](faults)
    training, left = train(rank, dist.FileStore(str(tmp_path / "store")), backend, tmp_path / "saved")
    gone = [planned.rank] if planned.kind in ("kill", "stop") else []
    assert left == [r for r in range(RANKS) if r not in gone]
    alone = Training(tmp_path / "none")
    while alone.step < STEPS:
        alone.make_step()
    torch.testing.assert_close(training.weights, alone.weights)
