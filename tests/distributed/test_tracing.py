"""Do the traces that ranks write say what they did, whatever happens to the ranks?"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_occl
from occl.tools.report import analyse, merge
from tests.support.worker import listen, tell


def job_in(directory: Path) -> merge.Job:
    (recordings,) = merge.divide(merge.load(directory).recordings)
    return merge.merge(recordings)


def late_rank_and_messages(rank, n, device, *, directory):
    t = torch.ones(1 << 16, device=device)
    dist.barrier()
    with torch_occl.trace(directory) as path:
        for _ in range(3):
            if rank == 1:
                time.sleep(0.02)
            dist.all_reduce(t)
        if rank == 0:
            work = dist.all_reduce(t, async_op=True)
            time.sleep(0.02)  # the operation is in flight: rank 1 begins it when it has the message
            dist.send(torch.ones_like(t), 1, tag=9)
            work.wait()
        else:
            dist.recv(t, 0, tag=9)
            dist.all_reduce(t)
    dist.all_reduce(t)  # not recorded
    return str(path)


@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_a_late_rank_is_named_and_overlap_is_seen(pool, tmp_path, device):
    paths = pool.run(late_rank_and_messages, world_size=2, device=device, directory=str(tmp_path / "new"))
    assert sorted(paths) == sorted(str(path) for path in (tmp_path / "new").iterdir())
    job = job_in(tmp_path / "new")
    assert job.problems == [] and [row.rank for row in job.rows] == [0, 1]
    assert {(o.kind, o.row) for o in job.operations} == {
        *(("all_reduce", rank) for rank in range(2)),
        ("send", 0),
        ("recv", 1),
    }
    assert {o.bytes for o in job.operations} == {1 << 18} and {o.dtype for o in job.operations} == {"float32"}
    for operations in job.meetings().values():
        assert len(operations) == 2
        last = max(operation.submitted for operation in operations)
        for operation in operations:
            assert operation.submitted <= operation.arrived <= operation.met <= operation.ended
            assert operation.met >= last - 1000, "the clocks of two ranks differ by a microsecond or more"
    found = analyse.analyse(job)
    assert found.waits[0][1] > 3 * 15e6
    assert found.ranks[0].overlap * found.ranks[0].in_flight > 15e6
    (message,) = [o for o in job.operations if o.kind == "send"]
    assert (message.peer, message.tag) == (1, 9)


def second_trace_and_bad_places(rank, n, device, *, directory):
    with torch_occl.trace(directory):
        second = torch_occl.trace(directory)
        with (
            pytest.raises(torch_occl.ArgumentError, match="this process records a trace already, in /"),
            second,
        ):
            raise AssertionError
        dist.barrier()
    Path(directory, "file").write_text("")
    with pytest.raises(OSError), torch_occl.trace(Path(directory, "file")):
        raise AssertionError
    with torch_occl.trace(directory) as again:  # the first one has ended
        dist.barrier()
    return again.name


def test_one_trace_at_a_time_and_places_that_are_none(pool, tmp_path):
    names = pool.run(second_trace_and_bad_places, world_size=1, device="cpu", directory=str(tmp_path))
    assert names[0].endswith("-1.occl-trace")
    assert len(job_in(tmp_path).operations) == 2


def trace_until_killed(rank, n, device, *, directory):
    t = torch.ones(8, device=device)
    with torch_occl.trace(directory):
        for _ in range(100):
            dist.all_reduce(t)
        if rank == 1:
            tell("ready")
            listen()  # it is killed here
        with pytest.raises(dist.DistBackendError):
            while True:
                dist.all_reduce(t)


def test_the_trace_of_a_killed_rank_shows_what_it_did(fresh, tmp_path):
    with fresh(2) as team:
        team.join()
        team.start(trace_until_killed, directory=str(tmp_path))
        assert team.hear(1) == "ready"
        team.kill(1)
        team.finish()
    job = job_in(tmp_path)
    assert len([o for o in job.operations if o.row == 1 and o.progress == 4]) == 100
    (failed,) = [o for o in job.operations if o.row == 0 and o.progress != 4]
    assert failed.failed and failed.number == 101
    assert any(re.fullmatch(r"pid \d+ on host \S+ did not end its trace: .*", text) for text in job.problems)


def set_variable(rank, n, device, *, directory):
    os.environ["OCCL_TRACE"] = directory


def one_barrier(rank, n, device):
    dist.barrier()


def test_the_variable_records_from_the_first_group_on(fresh, tmp_path):
    with fresh(2) as team:
        team.run(set_variable, directory=str(tmp_path / "traces"))
        team.join()
        team.run(one_barrier)
    job = job_in(tmp_path / "traces")
    assert {operation.kind for operation in job.operations} >= {"barrier"} and len(job.rows) == 2


def test_a_place_that_cannot_be_written_is_told_once_and_the_job_goes_on(fresh):
    with fresh(1) as team:
        team.run(set_variable, directory="/proc/none")
        team.join()
        printed = "".join(team.printed().values())
        team.run(one_barrier)
        printed += "".join(team.printed().values())
    assert re.findall(r"torch_occl: pid \d+ records no trace \(OCCL_TRACE\): cannot make .*", printed)
    assert printed.count("records no trace") == 1
