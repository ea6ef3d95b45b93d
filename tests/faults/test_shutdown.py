"""The end of a process, by any way and with anything in flight: no hang, no crash, no lost error."""

from __future__ import annotations

import itertools
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.thinning import first
from tests.support.worker import EndInterpreter, listen, tell

TIMEOUT = 200
"""Seconds after which something counts as hanging."""


@pytest.fixture(scope="module")
def took(request):
    """Seconds, shown at the end of the run: nothing is asserted about them but that there is no hang."""
    seconds: dict[str, float] = {}
    yield seconds
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        for what, value in sorted(seconds.items()):
            print(f"\n{value:8.2f} s  {what}", end="")


def in_flight(device: str) -> list[dist.Work]:
    """Works that no other rank will ever answer."""
    neighbour = (dist.get_rank() + 1) % dist.get_world_size()
    works = [dist.all_reduce(torch.ones(count, device=device), async_op=True) for count in (1, 300_000)]
    works.append(dist.irecv(torch.ones(5, device=device), neighbour, tag=1))
    works.append(dist.isend(torch.ones(300_000, device=device), neighbour, tag=2))
    return works


_kept: list = []


class Late:
    """Ends what is in flight when the interpreter is half gone, and lets other threads see it."""

    def __init__(self, device: str) -> None:
        self.abort, self.sleep = backend(device).abort, time.sleep

    def __del__(self) -> None:
        self.abort()
        self.sleep(0.1)


def end(rank, n, device, *, how):
    """Rank 0's interpreter ends; rank 1 waits for it in a collective."""
    assert_works(device)
    if rank == 1:
        listen()
        with pytest.raises(
            dist.DistBackendError, match=r"rank 0 \(pid \d+, host .*\) (exited|left|ended)"
        ) as caught:
            while True:  # rank 0 may have done its part of what is in flight
                dist.all_reduce(torch.ones(1, device=device))
        return str(caught.value)
    if how not in ("idle", "with a side stream that waits"):
        _kept.extend(in_flight(device))  # alive until the interpreter takes its modules apart
    if how == "with callbacks":
        for work in _kept:
            work.get_future().then(lambda future: print("a callback ran", future))
    if "waiting thread" in how:
        threading.Thread(target=_kept[0].wait, daemon=True).start()
    if how == "with a waiting thread whose wait ends late":
        _kept.append(Late(device))
    if how == "with a side stream that waits":
        with torch.dev.stream(torch.dev.Stream()):
            dist.all_reduce(torch.ones(1, device=device), async_op=True).wait()
    if how == "destroyed":
        dist.destroy_process_group()
    tell("ends")
    raise EndInterpreter(7)


ENDS = [
    "idle",
    "in flight",
    "with callbacks",
    "with a waiting thread",
    "with a waiting thread whose wait ends late",
    "destroyed",
]


@pytest.mark.parametrize(
    ("how", "device"),
    first(
        [
            *zip(ENDS, itertools.cycle(DEVICES)),
            *(("with a side stream that waits", device) for device in DEVICES if device == "dev"),
            *zip(ENDS, itertools.cycle(reversed(DEVICES))),
        ],
        stay=len(ENDS) + 1,
    ),
)
def test_an_interpreter_ends_with_its_own_status_whatever_is_in_flight(pool, took, how, device):
    with pool.fresh(2) as team:
        team.join(timeout=60.0).start(end, device, how=how)
        assert team.hear(0) == "ends"
        begin = time.monotonic()
        team.wait_for(0)
        took[f"the interpreter ends, {how}, on {device}"] = time.monotonic() - begin
        team.say(1, "go on")
        outcomes = team.finish()
        assert outcomes[0].died == "exited with status 7", (outcomes[0], team.members[0].output())
        assert not outcomes[1].failed, outcomes[1].traceback
        output = team.members[0].output()
        assert "Traceback" not in output and "terminate called" not in output, output


def destroy_with_works(rank, n, device):
    """What is in flight when rank 0 destroys the group ends with an error that says so."""
    assert_works(device)
    if rank == 1:
        return listen()
    works = in_flight(device)
    futures = [work.get_future() for work in works]
    dist.destroy_process_group()
    for work in works:
        with pytest.raises(dist.DistBackendError, match=r"has been destroyed|left the group"):
            work.wait()
        assert work.is_completed() and not work.is_success()
    for future in futures:
        with pytest.raises(dist.DistBackendError, match=r"has been destroyed|left the group"):
            future.wait()


@pytest.mark.parametrize("device", DEVICES)
def test_works_in_flight_end_with_the_group(pool, device):
    with pool.fresh(2) as team:
        team.join().start(destroy_with_works, device)
        team.wait_for(0)
        team.say(1, "go on")
        for outcome in team.finish():
            assert not outcome.failed, outcome.traceback


def used_while_destroyed(rank, n, device, *, seed):
    """Threads use the group in every way while the main thread destroys it."""
    pg, errors, begun = backend(device), [], threading.Barrier(4)

    def use(call) -> None:
        begun.wait()
        try:
            while True:
                call()
        except dist.DistBackendError as error:
            errors.append(str(error))
        except BaseException:  # noqa: BLE001 whatever it is, the test shows it
            errors.append(traceback.format_exc())

    t = torch.ones(100, device=device)
    neighbour = (rank + 1) % n
    calls = (
        lambda: pg.allreduce([t]).wait(),
        lambda: pg.recv([t.clone()], neighbour, 3).wait(),
        lambda: pg.send([t], neighbour, 3).wait(),
    )
    threads = [threading.Thread(target=use, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    begun.wait()
    time.sleep(random.Random(seed + rank).uniform(0, 0.02))  # any moment is right
    dist.destroy_process_group()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "a thread hangs"
    return errors


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(5))
def test_threads_that_use_a_group_while_it_is_destroyed_get_an_error(pool, seed, device):
    with pool.fresh(2) as team:
        for errors in team.join().run(used_while_destroyed, device, seed=seed):
            assert len(errors) == 3
            for error in errors:
                assert "has been destroyed" in error or "left the group" in error, error


def fork_while_busy(rank, n, device, *, children):
    """Children come into being at any moment of a busy group, and end in every way. The group works on."""
    stop, failures = threading.Event(), []
    if rank == 0:

        def fork() -> None:
            draw = random.Random(children)
            for number in range(children):
                time.sleep(draw.uniform(0, 0.003))  # any moment is right
                child = os.fork()
                if child == 0:
                    if number % 3 == 0:
                        dist.destroy_process_group()
                    if number % 3 == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
                    os._exit(0)
                status = os.waitpid(child, 0)[1]
                if status not in (0, signal.SIGKILL):
                    failures.append(status)
            stop.set()

        threading.Thread(target=fork).start()
    going = torch.ones(1)
    while going.item() > 0:
        t = torch.ones(random.choice((1, 1000)), device=device)
        going = torch.tensor([0.0 if rank == 0 and stop.is_set() else 1.0])
        dist.broadcast(going, 0)
        work = dist.all_reduce(torch.ones(30_000, device=device), async_op=True)
        dist.all_reduce(going, dist.ReduceOp.MIN)
        work.wait()
        del t
    assert_works(device)
    return failures


@pytest.mark.parametrize("device", first(reversed(DEVICES)))
def test_a_process_may_fork_at_any_time(pool, device):
    with pool.fresh(2) as team:
        assert team.join().run(fork_while_busy, device, children=60) == [[], []]


def end_in_a_child(rank, n, device):
    """A forked child's interpreter ends as every other; it is no member of the group."""
    assert_works(device)
    if rank == 0:
        child = os.fork()
        if child == 0:
            raise EndInterpreter(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert_works(device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_forked_child_s_interpreter_ends_and_harms_nobody(pool, device):
    with pool.fresh(2) as team:
        team.join().run(end_in_a_child, device)


def with_data_loaders(rank, n, device):
    """The victim's loader has workers, forked after the group was made, that wait for more to do."""
    loader = DataLoader(
        TensorDataset(torch.arange(100)), batch_size=1, num_workers=2, persistent_workers=True
    )
    batches = iter(loader)
    next(batches)
    if rank == 0:
        tell([worker.pid for worker in batches._workers])
        listen()
    with pytest.raises(dist.DistBackendError, match=r"rank 0 \(pid \d+, host .*\) exited") as caught:
        while True:
            dist.all_reduce(torch.ones(1, device=device))
    when = time.monotonic_ns()
    batches._shutdown_workers()  # by themselves they look for their parent only every 5 seconds
    return when, str(caught.value)


def test_workers_of_a_data_loader_do_not_hide_the_death_of_their_rank(pool, took):
    with pool.fresh(3) as team:
        team.join().start(with_data_loaders)
        workers = team.hear(0)
        # A stopped worker cannot notice that it is an orphan; it keeps all of its parent's descriptors.
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        when = team.kill(0)
        outcomes = team.finish()
        for worker in workers:
            descriptor = os.pidfd_open(worker)  # it lives
            os.kill(worker, signal.SIGKILL)
            select.select([descriptor], [], [])
            os.close(descriptor)
        for outcome in outcomes[1:]:
            assert not outcome.failed, outcome.traceback
            took[f"from kill -9 with loaders to the error of rank {outcome.rank}"] = (
                outcome.result[0] - when
            ) / 1e9


SCRIPT = """
import sys, threading, time
import torch, torch.distributed as dist
dist.init_process_group("occl")
rank = dist.get_rank()
dist.barrier()
sys.stdout.write(f"rank {rank} has begun\\n")
sys.stdout.flush()
if sys.argv[1] == "raise" and rank == 1:
    raise ZeroDivisionError("the mistake of rank 1")
if rank == 1:
    threading.Event().wait()
dist.all_reduce(torch.ones(1000))
"""


def torchrun(script: Path, how: str) -> subprocess.Popen:
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.Popen(
        [*run, str(script), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_torchrun_ends_blocked_ranks(took, tmp_path, number):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = torchrun(script, "block")
    begun = 0
    while begun < 2:
        line = process.stdout.readline()
        assert line, "torchrun has ended"
        begun += "has begun" in line
    begin = time.monotonic()
    process.send_signal(number)
    output, _ = process.communicate(timeout=TIMEOUT)
    took[f"torchrun ends after {number.name}"] = time.monotonic() - begin
    assert process.returncode != 0
    assert "terminate called" not in output and "Segmentation" not in output, output


@pytest.mark.full
def test_an_exception_of_one_rank_is_shown_and_ends_the_others(took, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = torchrun(script, "raise")
    output, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1
    assert "ZeroDivisionError: the mistake of rank 1" in output, output
    assert "terminate called" not in output and "Segmentation" not in output, output
