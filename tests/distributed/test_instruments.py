"""PyTorch's profiler, execution traces and logs show what groups of occl do, and only when they are asked."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.support import cpp_build
from tests.support.devices import DEVICES
from tests.support.running import PYTORCH
from tests.support.worker import join

ROOT = Path(__file__).parents[2]


def events_of(path: str) -> list[dict]:
    events = json.loads(Path(path).read_text())["traceEvents"]
    found = [event for event in events if event.get("name") == "record_param_comms"]
    return [event["args"] for event in sorted(found, key=lambda event: event["ts"])]


def calls(rank, n, device):
    """One call of each kind; yields what its event must say: name, elements in and out, more."""
    other = 1 - rank
    t, big = torch.ones(2, 3, device=device), torch.ones(4, 3, device=device)
    parts = [torch.ones(2, 3, device=device) for _ in range(n)]
    work = dist.all_reduce(t, async_op=True)
    yield "allreduce", 6, 6, {"Is asynchronized op": 1, "dtype": "Float"}
    work.wait()
    dist.all_reduce(t)
    yield "allreduce", 6, 6, {"Is asynchronized op": 0, "Input Dims": [[[2, 3]]] + [[]] * 10}
    dist.broadcast(t.to(torch.bfloat16), 1)
    yield "broadcast", 6, 6, {"dtype": "BFloat16", "Rank": 1}
    dist.reduce(t, 1)
    yield "reduce", 6, 6, {"Rank": 1}
    dist.all_gather(parts, t)
    yield "all_gather", 6, 12, {"Rank": rank}
    dist.all_gather_into_tensor(big, t)
    yield "_allgather_base", 6, 12, {}
    dist.gather(t, parts if rank == 0 else None)
    yield "gather", 6, 12 * other, {"Rank": 0}
    dist.scatter(t, parts if rank == 0 else None)
    yield "scatter", 12 * other, 6, {"Rank": 0}
    dist.reduce_scatter(t, parts)
    yield "reduce_scatter", 12, 6, {}
    dist.reduce_scatter_tensor(t, big)
    yield "_reduce_scatter_base", 12, 6, {}
    dist.all_to_all_single(big, big.clone())
    yield "all_to_all", 12, 12, {"In split size": "[]"}
    splits = [1, 3] if rank == 0 else [3, 1]
    dist.all_to_all_single(big, big.clone(), splits, splits)
    yield "all_to_allv", 12, 12, {"In split size": str(splits), "Out split size": str(splits)}
    dist.barrier()
    yield "barrier", 0, 0, {"dtype": "Byte"}
    if rank == 0:
        dist.send(t, 1)
        yield "send", 6, 6, {"Dst Rank": 1}
    else:
        dist.recv(t)
        yield "recv", 6, 6, {"Rank": -1}
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, t, other), dist.P2POp(dist.irecv, big[:2], other)]
    ):
        work.wait()
    yield "send", 6, 6, {"Dst Rank": other}
    yield "recv", 6, 6, {"Src Rank": other}


def calls_are_events(rank, n, device, *, folder, node=None):
    if node is not None:
        os.environ["OCCL_NODE"] = f"{node}{rank}"
        join(rank, n, device, store=f"{folder}/store", timeout=30)
    with torch.profiler.profile(record_shapes=True) as profile:
        expected = list(calls(rank, n, device))
    path = f"{folder}/trace_{rank}"
    profile.export_chrome_trace(path)
    events = events_of(path)
    assert [event["Collective name"] for event in events] == [name for name, *_ in expected]
    for event, (name, inputs, outputs, more) in zip(events, expected, strict=True):
        group = {
            "Group size": n,
            "Process Group Name": dist.group.WORLD.group_name,
            "Process Group Description": "default_pg",
            "Process Group Ranks": "[0, 1]",
            "In msg nelems": inputs,
            "Out msg nelems": outputs,
        }
        for key, value in (group | more).items():
            if key != "Is asynchronized op" or PYTORCH >= (2, 12):
                assert event[key] == value, (name, key, event)
    if PYTORCH >= (2, 12):
        collectives = [event["Seq"] for event in events[:-3]]
        assert collectives == list(range(collectives[0], collectives[0] + len(collectives)))
        alone, *batch = (event["Seq"] for event in events[-3:])
        assert batch == [alone + 1] * 2  # both are called before the first is submitted
    # The events of the operations themselves, which last until they have ended, are there as before.
    assert '"name": "occl:all_reduce"' in Path(path).read_text()


@pytest.mark.parametrize("device", DEVICES)
def test_a_profile_says_what_every_call_moves(pool, device, tmp_path):
    pool.run(calls_are_events, 2, device, folder=str(tmp_path))


def test_a_profile_says_the_same_in_a_group_over_nodes(fresh, tmp_path):
    with fresh(2) as team:
        team.run(calls_are_events, folder=str(tmp_path), node="node ")


SLOW_PROFILER = """
#include <ATen/record_function.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace {
std::atomic<int> ended{0};
}
/// Events of operations of occl take long to end.
extern "C" void observe() {
  at::addGlobalCallback(at::RecordFunctionCallback(
      [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> { return nullptr; },
      [](const at::RecordFunction& event, at::ObserverContext*) {
        if (std::strncmp(event.name(), "occl:", 5)) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ++ended;
      }));
}
extern "C" int count() { return ended; }
"""


def events_end_before_works(rank, n, device, *, library):
    profiler = ctypes.CDLL(library)
    profiler.observe()
    t = torch.ones(4, device=device)
    for calls in range(5):
        work = dist.all_reduce(t, async_op=True)
        while not work.is_success():  # unlike a wait, it leaves the operation to the background thread
            time.sleep(0.0001)
        assert profiler.count() == calls + 1


@pytest.mark.full
@pytest.mark.parametrize("device", DEVICES)
def test_an_event_ends_before_its_work(fresh, device, tmp_path):
    """A program stops the profiler when its works have ended, which frees the memory of the events."""
    library = cpp_build.build_library(SLOW_PROFILER, tmp_path / "profiler.so")
    with fresh(2) as team:
        team.join().run(events_end_before_works, device, library=str(library))


def subgroups_name_global_ranks(rank, n, device, *, folder):
    groups = {
        desc: dist.new_group(ranks, group_desc=desc) for desc, ranks in (("even", [0, 2]), ("odd", [1, 3]))
    }
    with torch.profiler.profile() as profile:
        desc = "odd" if rank % 2 else "even"
        tensors = [torch.ones(2, device=device), torch.ones(3, device=device)]
        dist.all_reduce_coalesced(tensors, group=groups[desc])
    profile.export_chrome_trace(f"{folder}/trace_{rank}")
    (event,) = events_of(f"{folder}/trace_{rank}")
    assert event["Process Group Description"] == desc
    assert event["Process Group Ranks"] == f"[{rank % 2}, {rank % 2 + 2}]"
    assert (event["Global rank start"], event["Global rank stride"]) == (rank % 2, 2)
    assert (event["Collective name"], event["In msg nelems"]) == ("allreduce_coalesced", 5)


def test_events_of_subgroups_name_their_global_ranks(pool, tmp_path):
    pool.run(subgroups_name_global_ranks, 4, folder=str(tmp_path))


def execution_traces(rank, n, device, *, folder):
    path = f"{folder}/et_{rank}"
    observer = torch.profiler.ExecutionTraceObserver().register_callback(path)
    observer.start()
    dist.all_reduce(torch.ones(2, 3, device=device))
    observer.stop()
    observer.unregister_callback()
    nodes = json.loads(Path(path).read_text())["nodes"]
    (node,) = [node for node in nodes if node["name"] == "record_param_comms"]
    said = {attribute["name"]: attribute["value"] for attribute in node["attrs"]}
    expected = {
        "collective_name": "allreduce",
        "dtype": "Float",
        "in_msg_nelems": 6,
        "out_msg_nelems": 6,
        "pg_desc": "default_pg",
        "pg_size": n,
        "global_rank_start": 0,
        "global_rank_stride": 1,
    }
    if PYTORCH >= (2, 12):
        expected["is_asynchronized_op"] = 0
    assert said.items() >= expected.items(), said


@pytest.mark.parametrize("device", DEVICES)
def test_an_execution_trace_says_what_a_call_moves(pool, device, tmp_path):
    pool.run(execution_traces, 2, device, folder=str(tmp_path))


def logger_tells(rank, n, device, *, store):
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("torch_occl")
    logger.addHandler(handler)
    join(rank, n, device, store=store, timeout=30)
    assert not lines  # not unasked
    logger.setLevel(logging.INFO)
    dist.new_group(timeout=dist.default_pg_timeout)
    (line,) = lines
    assert line.startswith(
        f"rank {rank} of {n} of group 1: all ranks share memory; up to 16384 bytes in one step"
    )
    assert "timeout 1800000 ms; flight recorder off" in line


def test_the_logger_says_what_was_chosen_for_a_group(fresh):
    with fresh(2) as team:
        team.run(logger_tells, store=team.source.new_file())


JOB = """
import torch, torch.distributed as dist
dist.init_process_group("occl")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    dist.send(torch.ones(4), 1)
else:
    dist.recv(torch.ones(4))
{end}
"""


def run_job(tmp_path: Path, end: str, **environment: str) -> str:
    """What two ranks print, started as torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = tmp_path / "job.py"
    script.write_text(JOB.format(end=end))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "OCCL", "PYTHON"))
    } | environment
    environment |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, script],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], printed
    return "".join(printed)


@pytest.mark.parametrize(
    "end",
    [
        "dist.destroy_process_group()",
        pytest.param("", marks=pytest.mark.full),
        pytest.param("import os, signal; dist.barrier(); os._exit(0)", marks=pytest.mark.full),
    ],
)
def test_a_job_prints_nothing_unasked(tmp_path, end):
    assert run_job(tmp_path, end) == ""


@pytest.mark.full
@pytest.mark.parametrize(
    ("environment", "texts", "others"),
    [
        ({"TORCH_LOGS": "torch_occl"}, ["of group 0: all ranks share memory"], ["calls all_reduce"]),
        (
            {"TORCH_CPP_LOG_LEVEL": "INFO"},
            ["occl: rank 1 of 2 of group 0: all ranks"],
            ["occl: rank 0 leaves", "calls"],
        ),
        (
            {"TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "INFO"},
            ["occl: rank 1 of 2 of group 0: all ranks", "occl: rank 0 leaves group 0"],
            ["calls"],
        ),
        (
            {"TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
            [
                "occl: rank 1 calls all_reduce(float32[4], SUM) in group 0",
                "calls send(float32[4], dst=1, tag=0)",
            ],
            [],
        ),
        ({"TORCH_DISTRIBUTED_DEBUG": "INFO"}, [], ["occl"]),
    ],
)
def test_logs_say_what_they_are_asked_for(tmp_path, environment, texts, others):
    printed = run_job(tmp_path, "dist.destroy_process_group()", **environment)
    for text in texts:
        assert text in printed, printed
    for text in others:
        assert text not in printed, printed
