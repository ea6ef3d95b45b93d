"""Does ``occl report`` show what the ranks did, from good and from damaged traces?"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import random
import re
import struct
from array import array
from pathlib import Path
from typing import Any

import pytest

from occl.tools.report import analyse, command, html, merge, perfetto, read, summary
from tests.support import synthetic_traces as traces


def job_of(*processes: traces.Process, directory: Path) -> merge.Job:
    for process in processes:
        process.write(directory)
    return merge.merge(merge.load(directory).recordings)


def report(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    command.arguments(parser)
    return command.run(parser.parse_args([str(argument) for argument in arguments]))


# ---- what ranks did


def test_ranks_and_their_operations_lie_side_by_side(tmp_path: Path) -> None:
    job = job_of(*traces.straggling(4, operations=3, late=2), directory=tmp_path)
    assert [(row.label, row.pid) for row in job.rows] == [(f"rank {n}", 100 + n) for n in range(4)]
    assert [group.label for group in job.groups] == ["group 0 (4 ranks)"]
    assert job.problems == job.clocks == []
    second = [operation for operation in job.operations if operation.number == 2]
    begin = min(operation.submitted for operation in second)
    assert begin == pytest.approx(1e6)  # a millisecond after the first
    for operation in second:
        late = 300 if operation.row == 2 else operation.row
        times = (operation.submitted, operation.arrived, operation.met, operation.ended, operation.waited)
        assert operation.moved is None
        assert [round((t or 0) - begin) for t in times] == [us * 1000 for us in (late, late, 301, 350, late)]
        assert (operation.kind, operation.dtype, operation.reduction) == ("all_reduce", "float32", "SUM")


def test_waits_are_counted_for_the_rank_that_came_last(tmp_path: Path) -> None:
    job = job_of(*traces.straggling(3, operations=10, late=1), directory=tmp_path)
    found = analyse.analyse(job)
    assert [[round(time / 1e6, 3) for time in line] for line in found.waits] == [
        [0, 3, 0],
        [0, 0, 0],
        [0, 2.98, 0],
    ]
    assert [round(rank.caused / 1e6, 3) for rank in found.ranks] == [0, 5.98, 0]
    assert [rank.overlap for rank in found.ranks] == pytest.approx([0, 0, 0], abs=1e-6)
    assert {slow.last for slow in found.slowest} == {1}
    assert html.findings(job, found)[0].endswith("100% of that was for rank 1.")


def test_where_a_rank_left_no_trace_the_others_say_which_rank_they_saw_last(tmp_path: Path) -> None:
    processes = traces.straggling(3, operations=10, late=1)
    job = job_of(processes[0], processes[1], directory=tmp_path)
    assert job.problems == ["rank 2 of group 0 (3 ranks) left no trace that can be read"]
    found = analyse.analyse(job)
    assert [[round(time / 1e6, 2) for time in line] for line in found.waits] == [[0, 3.01], [0, 0]]


def test_overlap_is_the_share_in_which_no_thread_waited(tmp_path: Path) -> None:
    (process,) = traces.world(1)
    process.operation(1, 0, 1, 2, 100, waited=75)
    process.operation(2, 50, 51, 52, 100)  # at the same time: counts once
    process.operation(3, 200, 200, 201, 300, waited=500)  # the wait found it finished
    found = analyse.analyse(job_of(process, directory=tmp_path))
    assert found.ranks[0].in_flight == pytest.approx(200_000)
    assert found.ranks[0].blocked == pytest.approx(25_000)
    assert found.ranks[0].overlap == pytest.approx(0.875)


def test_a_program_that_waits_for_futures_is_blocked_from_its_last_call_on(tmp_path: Path) -> None:
    (process,) = traces.world(1)  # three buckets of gradients, as DistributedDataParallel reduces them
    for number, called in enumerate((0, 40, 80)):
        process.operation(number, called, called, called, 50 + called, future=True)
    found = analyse.analyse(job_of(process, directory=tmp_path))
    assert found.ranks[0].in_flight == pytest.approx(130_000)
    # From 40 to 50, where it is not known, and from 80 to 130.
    assert found.ranks[0].blocked == pytest.approx(60_000, abs=1)


def test_messages_wait_for_their_peer(tmp_path: Path) -> None:
    sender, receiver = traces.world(2)
    receiver.operation(1, 0, 0, 70, 80, kind=read.RECEIVE, peer=0, size=1000, detail=7)
    sender.operation(1, 60, 60, 61, 80, kind=read.SEND, peer=1, size=1000, detail=7)
    job = job_of(sender, receiver, directory=tmp_path)
    assert [(operation.kind, operation.peer, operation.tag) for operation in job.operations] == [
        ("recv", 0, 7),
        ("send", 1, 7),
    ]
    assert analyse.analyse(job).waits == [[0, pytest.approx(1000)], [pytest.approx(70_000), 0]]


def test_shares_are_by_group_by_kind_and_by_size(tmp_path: Path) -> None:
    (process,) = traces.world(1)
    pair = process.group("5", 0, 1, name="pair")
    process.operation(1, 0, 0, 0, 30, size=64)
    process.operation(1, 100, 100, 100, 110, size=65, group=pair, kind=4)
    found = analyse.analyse(job_of(process, directory=tmp_path))
    assert [(s.name, round(s.in_flight)) for s in found.by_group] == [
        ("group 0 (1 rank)", 30_000),
        ("group pair (1 rank)", 10_000),
    ]
    assert [(s.name, s.operations) for s in found.by_kind] == [("all_reduce", 1), ("all_gather", 1)]
    assert [(s.name, s.bytes) for s in found.by_size] == [("up to 64 B", 64), ("up to 1 KiB", 65)]


def test_an_operation_that_never_ended_is_shown_as_far_as_it_came(tmp_path: Path) -> None:
    process, other = traces.world(2, state=1)
    process.operation(1, 0, 0, 1, 2)
    process.operation(2, 10, 10)
    process.operation(3, 12)
    process.operation(4, 13, 13, 14, 20, failed=True)
    other.operation(1, 0, 0, 1, 50)
    job = job_of(process, other, directory=tmp_path)
    found = analyse.analyse(job)
    assert [(o.open, o.failed) for o in job.operations if o.row == 0] == [
        (False, False),
        (True, False),
        (True, False),
        (False, True),
    ]
    assert any(
        "3 operations failed or never ended; the first was all_reduce #2" in t
        for t in html.findings(job, found)
    )
    assert "pid 100 on host a did not end its trace: it was killed, or it is still running" in job.problems
    assert found.ranks[0].waiting == pytest.approx(41_000)
    # 40 of #2, until the last that is known of the job, and 1 of #4


# ---- clocks


@pytest.mark.parametrize("drift", [0.0, 2e-5])
def test_meetings_align_the_clocks_of_two_hosts(tmp_path: Path, drift: float) -> None:
    away = {"host": "b", "boot": "boot-b", "clock_is": 5000.0, "drift": drift, "ticks_of_us": 3000.0}
    here, there = traces.Process(1), traces.Process(2, **away)
    for rank, process in enumerate((here, there)):
        process.group(f"node {rank}", rank, 2, spans=True)
    random.seed(3)
    for number in range(2000):
        at = 500.0 * number
        arrived = [at + random.uniform(0, 30), at + random.uniform(0, 30)]
        for process, a in zip((here, there), arrived, strict=True):
            met = max(arrived) + random.uniform(1, 5)
            process.operation(number, a, a, met, met + 1)
    job = job_of(here, there, directory=tmp_path)
    (text,) = job.clocks
    uncertain = float(re.findall(r"to ([\d.]+) us, as their meetings say", text)[0])
    assert 0 < uncertain < 20
    for (_, number), (a, b) in job.meetings().items():
        moved = [operation.submitted for operation in sorted((a, b), key=lambda operation: operation.row)]
        apart = (moved[1] - moved[0]) / 1000
        assert abs(apart) < 30 + 2 * uncertain, number


def test_processes_of_one_host_share_a_clock_even_if_one_was_killed_at_once(tmp_path: Path) -> None:
    processes = traces.straggling(2, operations=4)
    for process in processes:
        process.write(tmp_path)
    recordings = merge.load(tmp_path).recordings
    recordings[0].readings = recordings[0].readings[:1]
    job = merge.merge(recordings)
    for operations in job.meetings().values():
        assert operations[0].ended == pytest.approx(operations[1].ended, abs=2)


def test_a_host_whose_ranks_met_no_other_keeps_its_own_time(tmp_path: Path) -> None:
    here, there = traces.Process(1), traces.Process(2, host="b", boot="boot-b")
    for rank, process in enumerate((here, there)):
        process.group("x", rank, 2, spans=True)
        process.operation(1 + rank, 0, 0, 1, 2)
    job = job_of(here, there, directory=tmp_path)
    assert job.clocks == [
        "the ranks of host b met none of the others in these traces: their times are as that host's own "
        "clock says"
    ]


# ---- several jobs, processes and groups


def test_the_latest_of_several_jobs_is_shown_and_the_others_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for n, pid in enumerate((10, 20)):
        process = traces.Process(pid, began=n * 1e7)
        process.group(str(n), 0, 1)
        process.operation(1, n * 1e7 + 5, n * 1e7 + 5, n * 1e7 + 6, n * 1e7 + 7)
        process.write(tmp_path)
    assert report(tmp_path) == 0
    shown = capsys.readouterr().out
    assert "the directory holds 2 jobs, and this is job 2; --job N shows another" in shown
    assert report(tmp_path, "--job", 1) == 0
    assert "this is job 1" in capsys.readouterr().out
    assert report(tmp_path, "--job", 3) == 2
    assert capsys.readouterr().err == "report: there is no job 3: the directory holds 2\n"


def test_a_process_that_recorded_twice_has_one_row(tmp_path: Path) -> None:
    first, other = traces.straggling(2, operations=2)
    again = traces.Process(first.pid, began=5e6)
    again.group("77", 0, 2)
    again.operation(9, 5e6, 5e6, 5e6 + 1, 5e6 + 2)
    (tmp_path / f"again{read.SUFFIX}").write_bytes(again.content())
    job = job_of(first, other, directory=tmp_path)
    assert len(job.rows) == 2 and len(job.operations) == 5 and len(job.groups) == 1


def test_ranks_are_those_of_the_largest_group(tmp_path: Path) -> None:
    processes = [traces.Process(10 + rank) for rank in range(4)]
    for rank, process in enumerate(processes):
        process.group(f"pair {rank // 2}", rank % 2, 2, name="pair")
        process.group("world", 3 - rank, 4)
        process.operation(1, 0, 0, 1, 2, group=1)
    job = job_of(*processes, directory=tmp_path)
    assert [(row.rank, row.pid) for row in job.rows] == [(0, 13), (1, 12), (2, 11), (3, 10)]
    assert [group.size for group in job.groups] == [4, 2, 2]


# ---- damage


def test_a_file_cut_anywhere_shows_what_is_left_of_it(tmp_path: Path) -> None:
    (process,) = traces.world(1)
    for number in range(50):
        process.operation(number, number, number, number + 0.5, number + 0.75)
    whole = process.content()
    path = tmp_path / f"cut{read.SUFFIX}"
    for length in (
        0,
        7,
        60,
        100,
        4096,
        4100,
        4500,
        traces.RECORDS_AT,
        traces.RECORDS_AT + 65,
        len(whole) - 1,
    ):
        path.write_bytes(whole[:length])
        try:
            found = read.read(path)
        except read.Unreadable as error:
            assert length < 5000 and path.name in str(error), error
            continue
        assert len(found.records) == max(0, length - traces.RECORDS_AT) // 64
        assert found.pid == 100


def test_damaged_bytes_never_end_the_report(tmp_path: Path) -> None:
    processes = traces.straggling(2, operations=30)
    contents = [process.content() for process in processes]
    generator = random.Random(5)
    used = [*range(120), *range(4096, 4700), *range(traces.RECORDS_AT, len(contents[0]))]
    shown = 0
    for _ in range(60):
        for n, content in enumerate(contents):
            damaged = bytearray(content)
            for place in generator.sample(used, 12):
                damaged[place] = generator.randrange(256)
            (tmp_path / f"{n}{read.SUFFIX}").write_bytes(damaged)
        try:
            recordings = merge.load(tmp_path).recordings
        except read.Unreadable:
            continue
        for own in merge.divide(recordings):
            job = merge.merge(own)
            found = analyse.analyse(job)
            assert list(summary.summary(job, found))
            assert html.page(job, found).startswith("<!doctype html>")
            assert all(json.dumps(event) for event in perfetto.events(job))
            shown += 1
    assert shown > 20


def test_new_operations_that_replaced_the_oldest_are_told(tmp_path: Path) -> None:
    (process,) = traces.world(1, capacity=8)
    for number in range(20):
        process.operation(number, number, number, number, number + 0.5)
    job = job_of(process, directory=tmp_path)
    assert [operation.number for operation in job.operations] == list(range(12, 20))
    assert "its first 12 operations are not there any more" in job.problems[0]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a", None, "holds no traces (files named *.occl-trace)"),
        (f"a{read.SUFFIX}", b"", "is empty: its process ended before it wrote anything"),
        (f"a{read.SUFFIX}", b"\0" * 5000, "is empty: its process ended before it wrote anything"),
        (f"a{read.SUFFIX}", b"hello" * 1000, "is no trace of torch_occl, or its beginning is damaged"),
        (
            f"a{read.SUFFIX}",
            read.MAGIC + struct.pack("<I", 9) + b"\1" * 5000,
            "has version 9 of the format, and this",
        ),
    ],
)
def test_a_directory_of_which_nothing_can_be_shown_is_a_sentence_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert report(tmp_path) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err and printed.err.count("\n") == 1 and printed.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ([name] if content is not None else [])


def test_a_path_that_is_no_directory_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(tmp_path / "none") == 2
    assert capsys.readouterr().err == f"report: {tmp_path / 'none'} does not exist\n"
    (tmp_path / "file").write_text("")
    assert report(tmp_path / "file") == 2
    assert "is no directory" in capsys.readouterr().err


def test_traces_without_an_operation_are_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces.world(1)[0].write(tmp_path)
    assert report(tmp_path) == 2
    assert capsys.readouterr().err == "report: no operation has been recorded (by pid 100 on host a)\n"


def test_one_unreadable_file_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for process in traces.straggling(2, operations=3):
        process.write(tmp_path)
    (tmp_path / f"b{read.SUFFIX}").write_bytes(b"x" * 100)
    assert report(tmp_path) == 0
    shown = capsys.readouterr().out
    assert "rank 1" in shown and f"Note: b{read.SUFFIX} is no trace of torch_occl" in shown
    assert f"b{read.SUFFIX} is no trace" in (tmp_path / "report.html").read_text()


# ---- the page and the trace for Perfetto


def embedded(page: str, name: str) -> str:
    (found,) = re.findall(rf'<script type="[^"]+" id="{name}">(.*?)</script>', page, re.DOTALL)
    return found


def column(page: str, name: str) -> array[Any]:
    (about,) = [c for c in json.loads(embedded(page, "meta"))["columns"] if c["name"] == name]
    packed = gzip.decompress(base64.b64decode(embedded(page, "columns")))
    (code,) = [code for code, type_ in html.TYPES.items() if type_ == about["type"]]
    values = array(code)
    values.frombytes(packed[about["at"] : about["at"] + about["count"] * values.itemsize])
    assert about["at"] % values.itemsize == 0  # typed arrays ask for it
    return values


def test_the_page_holds_all_operations_and_asks_for_nothing_else(tmp_path: Path) -> None:
    job = job_of(*traces.straggling(2, operations=33), directory=tmp_path)
    job.command = "</script><script>alert(1)</script> @META@ @SCRIPT@"
    shown = html.page(job, analyse.analyse(job))
    assert not re.search(r"""(src|href)=|https?://|url\(|@import|fetch\(""", shown)
    assert shown.count("<script") == 3 and "alert(1)" in shown
    assert json.loads(embedded(shown, "meta"))["command"] == job.command
    assert list(column(shown, "number")) == [operation.number for operation in job.operations]
    assert list(column(shown, "row")) == [operation.row for operation in job.operations]
    assert column(shown, "took")[0] == pytest.approx(
        (job.operations[0].stop - job.operations[0].submitted) / 1000
    )


def test_too_many_operations_are_summed_up_and_the_longest_kept(tmp_path: Path) -> None:
    (process,) = traces.world(1)
    for number in range(100):
        process.operation(number, 10 * number, 10 * number, 10 * number + 1, 10 * number + 2 + (number == 50))
    job = job_of(process, directory=tmp_path)
    shown = html.page(job, analyse.analyse(job), most=1)
    meta = json.loads(embedded(shown, "meta"))
    assert list(column(shown, "number")) == [50]
    assert sum(block[3] for block in meta["blocks"]) == 99 and meta["operations"] == 100
    assert "shows 99 short operations as blocks" in meta["notes"][-1]


def test_slices_for_perfetto_lie_in_each_other_and_arrows_begin_at_the_last_rank(tmp_path: Path) -> None:
    processes = traces.straggling(3, operations=5, late=1)
    for n in range(4):  # messages that overlap get tracks of their own
        processes[0].operation(n, 100 + n, 100 + n, 130, 150 - n, kind=read.RECEIVE, peer=2)
    job = job_of(*processes, directory=tmp_path)
    perfetto.write(job, tmp_path / "out.json.gz")
    with gzip.open(tmp_path / "out.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            span = (event["ts"], event["ts"] + event["dur"])
            tracks.setdefault((event["pid"], event["tid"]), []).append(span)
    assert len(tracks) == 3 + 4
    for spans in tracks.values():
        for a in spans:
            for b in spans:  # one begins in the other: then it ends there, too
                assert not a[0] < b[0] < a[1] - 0.002 or b[1] <= a[1] + 0.002
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {f"rank {n} (pid {100 + n}, host a)" for n in range(3)}
    assert {event["pid"] for event in events if event["ph"] == "s"} == {1}
    assert sorted(event["pid"] for event in events if event["ph"] == "f") == [0] * 5 + [2] * 5
    assert sum(event["name"] == "waits for rank 1" for event in events) == 10


def test_a_report_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for process in traces.straggling(2, operations=3):
        process.write(tmp_path)
    assert report(tmp_path, "--output", "/proc/none") == 2
    assert "cannot write into /proc/none (--output names another place)" in capsys.readouterr().err
