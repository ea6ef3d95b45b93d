"""PyTorch's flight recorder: PyTorch's own analyser reads what ranks write, and finds what went wrong."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import re
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.flight_recorder import fr_trace
from torch.distributed.flight_recorder.components.types import MatchState

import torch_occl
from occl.tools.top import stuck
from tests.support.running import PYTORCH
from tests.support.worker import join, listen, tell
from torch_occl import flight_recorder

TIMEOUT = 0.6


def record(rank, n, device, folder, timeout=TIMEOUT, node=None, **environment):
    """Makes the default group with a recorder that writes into the folder."""
    if node is not None:
        os.environ["OCCL_NODE"] = node
    os.environ |= {"TORCH_FR_DUMP_TEMP_FILE": f"{folder}/rank_", "TORCH_FR_BUFFER_SIZE": "100"} | environment
    join(rank, n, device, store=f"{folder}.store", timeout=timeout)


def dump_of(folder, rank) -> dict:
    return pickle.loads((Path(folder) / f"rank_{rank}").read_bytes())


def wait_for_dump(folder, rank):
    """Until this rank's file is complete; the test's limit ends the wait."""
    while True:
        try:
            return dump_of(folder, rank)
        except (FileNotFoundError, EOFError, pickle.UnpicklingError):
            time.sleep(0.01)


def analyse(folder: Path, *arguments: str) -> tuple[str, tuple]:
    """What `torchfrtrace` prints, and the database that it makes."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda line: lines.append(line.getMessage())
    logger = logging.getLogger("Flight Recorder")
    logger.addHandler(handler)
    output = folder.with_suffix(".database")
    try:
        fr_trace.main([str(folder), "-p", "rank_", "-o", str(output), *arguments])
    finally:
        logger.removeHandler(handler)
        gc.enable()  # the analyser leaves it off
    _, database = pickle.loads(output.read_bytes())
    return "\n".join(lines), database


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "dumps"
    made.mkdir()
    return made


def every_call(rank, n, device, *, folder):
    """All kinds of collectives, with equal and unequal sizes, one by one and coalesced; all are right."""
    record(rank, n, device, folder, timeout=30)
    other = dist.new_group(group_desc="the other group")
    t, all_of = torch.ones(3, 4, device=device), torch.ones(3 * n, 4, device=device)
    parts = [torch.ones(3, 4, device=device) for _ in range(n)]
    uneven = [torch.ones(i + 1, device=device) for i in range(n)]
    dist.all_reduce(t)
    dist.all_reduce(t, group=other)
    dist.broadcast(t, 1)
    dist.reduce(t, 1)
    dist.all_gather(parts, t)
    dist.all_gather(uneven, uneven[rank])
    dist.all_gather_into_tensor(all_of, t)
    dist.gather(t, parts if rank == 1 else None, 1)
    dist.scatter(t, parts if rank == 1 else None, 1)
    dist.reduce_scatter(t, parts)
    dist.reduce_scatter(uneven[rank], uneven)
    dist.reduce_scatter_tensor(t, all_of)
    dist.all_to_all(parts, [p.clone() for p in parts])
    dist.all_to_all_single(all_of, all_of.clone())
    rows = [1 + (rank + i) % n for i in range(n)]
    dist.all_to_all_single(
        torch.ones(sum(rows), device=device), torch.ones(sum(rows), device=device), rows, rows
    )
    dist.barrier()
    dist.all_reduce(torch.ones(2, device=device), group=other, async_op=True).wait()
    with dist._coalescing_manager():
        for part in parts:
            dist.all_reduce(part)
    dist.all_reduce(t)
    return pickle.loads(flight_recorder.dump()), flight_recorder.write()


def test_the_analyser_finds_nothing_wrong_with_calls_that_are_right(fresh, folder):
    with fresh(3) as team:
        dumps = team.run(every_call, folder=str(folder))
    for dump, written in dumps:
        assert written
        assert {entry["state"] for entry in dump["entries"]} == {"completed"}
        assert all(entry["retired"] and entry["duration_ms"] >= 0 for entry in dump["entries"])
        first = dump["entries"][0]
        assert first["profiling_name"] == "nccl:all_reduce"
        assert first["process_group"] == ("0", "default_pg")
        assert (first["input_sizes"], first["input_dtypes"]) == ([[3, 4]], ["Float"])
        assert first["timeout_ms"] == 30_000
        assert any(frame["name"] == "every_call" for frame in first["frames"]), first["frames"]
        assert dump["pg_config"]["1"] == {"name": "1", "desc": "the other group", "ranks": "[0, 1, 2]"}
    text, database = analyse(folder)
    assert "error" not in text.lower() and "not all ranks" not in text.lower(), text
    assert all(call.pass_check for call in database.collectives)
    names = [call.collective_name for call in database.collectives]
    assert names.count("nccl:all_reduce") == 4 and "nccl:all_to_all" in names
    known = ["barrier", "all_gather_v", "reduce_scatter_v"]
    if PYTORCH < (2, 12):  # whose analyser knows what NCCL's backend calls them
        known = ["all_reduce_barrier", "ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced"]
    assert all(names.count(f"nccl:{name}") == 1 for name in known), names
    assert len(names) == 19, names


def messages(rank, n, device, *, folder):
    record(rank, n, device, folder, timeout=30)
    t = torch.ones(5, device=device)
    dist.all_reduce(t)
    for _ in range(2):
        if rank == 0:
            dist.send(t, 1)
        else:
            dist.recv(t, 0)
    dist.all_reduce(t)
    flight_recorder.write()
    both = [
        dist.P2POp(dist.isend, t, 1 - rank),
        dist.P2POp(dist.irecv, torch.ones(5, device=device), 1 - rank),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    if rank == 0:
        dist.send(t, 1)
    else:
        dist.recv(t)  # from any rank: the entry says from which it came
    return [
        (e["profiling_name"], e["p2p_seq_id"], e["is_p2p"])
        for e in pickle.loads(flight_recorder.dump())["entries"]
    ]


def test_messages_have_entries(fresh, folder):
    with fresh(2) as team:
        results = team.run(messages, folder=str(folder))
    first = 1_000_000_001
    plain = [("nccl:send 0->1", first, True), ("nccl:send 0->1", first + 1, True)]
    batch = [
        ("nccl:send 0->1", first + 2, True),
        ("nccl:recv 0<-1", first + 2, True),
        ("nccl:coalesced", first + 2, True),
    ]
    assert [entry for entry in results[0] if entry[2]] == [
        *plain,
        *batch,
        ("nccl:send 0->1", first + 4, True),
    ]
    assert results[1][-1] == ("nccl:recv 1<-0", first + 4, True)
    text, database = analyse(folder)
    assert "error" not in text.lower() and "not all ranks" not in text.lower(), text
    assert [call.collective_name for call in database.collectives] == [
        "nccl:all_reduce", "nccl:send 0->1", "nccl:send 0->1", "nccl:all_reduce",
    ]  # fmt: skip


def mismatch(rank, n, device, *, folder, nodes=False):
    record(rank, n, device, folder, node=f"node {rank}" if nodes else None)
    t = torch.ones(8, device=device)
    dist.all_reduce(t)
    with pytest.raises(dist.DistBackendError):
        dist.broadcast(t, 0) if rank == 1 else dist.all_reduce(t)
    wait_for_dump(folder, rank)


@pytest.mark.parametrize("nodes", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_mismatch_is_found(fresh, folder, nodes):
    with fresh(2) as team:
        team.run(mismatch, folder=str(folder), nodes=nodes)
    text, database = analyse(folder)
    assert "Collective sequence number: 2 has errors" in text
    assert "Culprit rank 1; Error type: COLLECTIVE_TYPE_MISMATCH" in text
    good, bad = database.collectives
    assert good.pass_check and not bad.pass_check
    (found,) = bad.mismatch_collectives.values()
    assert found.type_of_mismatch.state == MatchState.COLLECTIVE_TYPE_MISMATCH
    assert (bad.collective_name, found.collective_name) == ("nccl:all_reduce", "nccl:broadcast")
    assert any(frame["name"] == "mismatch" for frame in bad.collective_frames)


def one_stays_away(rank, n, device, *, folder):
    record(rank, n, device, folder)
    t = torch.ones(4, device=device)
    dist.all_reduce(t)
    if rank != 2:
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(t)
    wait_for_dump(folder, rank)  # rank 2 computes, as it were, and calls nothing


def test_a_missing_rank_is_found_and_has_written_its_file_too(fresh, folder):
    with fresh(3) as team:
        team.run(one_stays_away, folder=str(folder))
    text, database = analyse(folder)
    assert "Not all ranks joining collective, sequence number: 2" in text
    assert "missing ranks: {2}" in text
    assert database.collectives[-1].missing_ranks == {2}
    entries = dump_of(folder, 0)["entries"]
    assert [(entry["state"], entry["retired"]) for entry in entries] == [
        ("completed", True),
        ("started", True),
    ]
    assert len(dump_of(folder, 2)["entries"]) == 1
    for rank in range(3):
        (status,) = dump_of(folder, rank)["pg_status"].values()
        assert re.search(
            r"Timed out waiting 600ms for all_reduce.*rank 2 \(pid .* has not arrived", status["error"]
        )


def opposite_orders(rank, n, device, *, folder):
    record(rank, n, device, folder)
    timeout = timedelta(seconds=TIMEOUT)
    first, second = (dist.new_group(group_desc=desc, timeout=timeout) for desc in ("rows", "columns"))
    for group in (first, second):
        dist.barrier(group)
    with pytest.raises(dist.DistBackendError):
        for group in (first, second) if rank == 0 else (second, first):
            dist.all_reduce(torch.ones(4, device=device), group=group)
    wait_for_dump(folder, rank)


def test_a_deadlock_of_two_groups_shows_who_is_in_which(fresh, folder):
    with fresh(2) as team:
        team.run(opposite_orders, folder=str(folder))
    text, database = analyse(folder)
    assert text.count("Not all ranks joining collective, sequence number: 2") == 2
    missing = {call.pg_desc: call.missing_ranks for call in database.collectives if call.missing_ranks}
    assert missing == {"1:rows": {1}, "2:columns": {0}}


def until_one_dies(rank, n, device, *, folder):
    record(rank, n, device, folder)
    t = torch.ones(4, device=device)
    dist.all_reduce(t)
    tell("ready")
    if rank == 1:
        listen()
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        dist.all_reduce(t)
    wait_for_dump(folder, rank)


def test_a_killed_rank_leaves_no_file_and_the_others_do(fresh, folder):
    with fresh(3) as team:
        team.start(until_one_dies, folder=str(folder))
        for rank in range(3):
            team.hear(rank)
        team.kill(1, signal.SIGKILL)
        assert [outcome.rank for outcome in team.finish() if outcome.failed] == [1]
    assert sorted(path.name for path in folder.iterdir()) == ["rank_0", "rank_2"]
    with pytest.raises(AssertionError, match=r"Missing dump files from ranks \{1\}"):
        analyse(folder)
    text, _ = analyse(folder, "--allow-incomplete-ranks")
    assert "we missed FR dumps from ranks ({1})" in text


def few_entries(rank, n, device, *, folder, environment, errors):
    record(rank, n, device, folder, **environment)
    for count in range(1, 6):
        dist.all_reduce(torch.ones(count, device=device))
    if errors:
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(torch.ones(1 + rank, device=device))
    dump = pickle.loads(flight_recorder.dump())
    assert pickle.loads(torch._C._distributed_c10d._dump_fr_trace()).keys() >= {"entries", "pg_config"}
    return [entry["input_sizes"][0][0] for entry in dump.get("entries", [])], "frames" in str(dump)


@pytest.mark.parametrize(
    ("environment", "kept", "frames", "files"),
    [
        ({"TORCH_FR_BUFFER_SIZE": "3"}, [4, 5, 1], True, True),
        ({"TORCH_FR_BUFFER_SIZE": "0"}, [], False, False),
        ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, [1, 2, 3, 4, 5, 1], True, False),
        ({"TORCH_INCLUDE_STACK_TRACE": "0"}, [1, 2, 3, 4, 5, 1], False, True),
    ],
)
def test_the_variables_that_pytorch_reads_are_obeyed(fresh, folder, environment, kept, frames, files):
    with fresh(2) as team:
        results = team.run(few_entries, folder=str(folder), environment=environment, errors=True)
    assert results[0] == (kept, frames)
    assert any(folder.iterdir()) == files


def asked_by_pipe(rank, n, device, *, folder):
    record(rank, n, device, folder, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=f"{folder}/pipe_")
    dist.all_reduce(torch.ones(4, device=device))
    Path(f"{folder}/pipe_{rank}.pipe").write_text("now\n")
    assert len(wait_for_dump(folder, rank)["entries"]) == 1


def test_a_write_to_the_pipe_asks_for_a_dump(fresh, folder):
    with fresh(2) as team:
        team.run(asked_by_pipe, folder=str(folder))


def asked_by_signal(rank, n, device, *, folder):
    record(rank, n, device, folder, timeout=30)
    signal.signal(signal.SIGUSR2, lambda *_: flight_recorder.write())
    signal.signal(signal.SIGUSR1, lambda *_: tell(pickle.loads(flight_recorder.dump())))
    stuck.PATIENCE = 0.0
    tell("ready")
    if rank == 1:
        listen()
    dist.all_reduce(torch.ones(4, device=device))


def test_a_signal_handler_writes_while_the_rank_waits(fresh, folder):
    with fresh(2) as team:
        team.start(asked_by_signal, folder=str(folder))
        for rank in range(2):
            team.hear(rank)
        team.wait_until_asleep(0)
        team.kill(0, signal.SIGUSR2)
        (entry,) = wait_for_dump(folder, 0)["entries"]
        assert (entry["state"], entry["retired"]) == ("started", False)
        team.kill(0, signal.SIGUSR1)
        shown = team.hear(0)
        assert "error" not in shown["pg_status"]["0"]
        (wait,) = shown["waits"]
        assert re.match(
            r"Rank 0 of group 0 has waited .* for rank 1 \(pid .* in all_reduce.* Rank 1 sleeps", wait
        )
        team.say(1, "go on")
        assert not any(outcome.failed for outcome in team.finish()), team.running


def shrinks_a_part(rank, n, device, *, folder):
    record(rank, n, device, folder, timeout=30)
    part = dist.new_group([1, 2, 3])
    if rank not in (1, 3):
        return None
    part = torch_occl.shrink_group([1], part)
    dist.all_reduce(torch.ones(1, device=device), group=part)
    return [group["ranks"] for group in pickle.loads(flight_recorder.dump())["pg_config"].values()]


def test_the_ranks_of_a_group_that_shrank_are_recorded(fresh, folder):
    with fresh(4) as team:
        results = team.run(shrinks_a_part, folder=str(folder))
    assert all("[1, 3]" in results[rank] for rank in (1, 3)), results


def test_pytorch_attaches_no_recorder_of_its_own(scripts):
    """It would record each call once more, from 2.15 on."""
    script = """
import torch.distributed as dist
from torch.distributed import distributed_c10d
dist.init_process_group("occl", store=dist.HashStore(), rank=0, world_size=1)
print("hooks:", len(getattr(distributed_c10d._world, "pg_flight_recorder_hooks", {})))
"""
    assert scripts.run(script) == "hooks: 0\n"
