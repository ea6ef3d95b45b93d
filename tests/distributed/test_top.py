"""`occl top` and `torch_occl.stats` on real jobs: late, stuck, stopped and dead ranks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_occl
from occl.cli import main
from occl.tools.top import groups, layout, records, stuck, view
from occl.tools.top.processes import NO_PROC, NotShown, Processes, attach, named
from tests.hosts.separations import need
from tests.support.interpreter import run_python
from tests.support.processes import in_forked_child
from tests.support.worker import join, listen, tell

ROOT = Path(__file__).parents[2]
LIMIT = 60.0


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    """A rank that waits this long is stuck."""
    monkeypatch.setattr(stuck, "PATIENCE", 0.0)


def document(capsys, *arguments: object, status: int = 0) -> dict:
    """What ``top --once --json`` prints."""
    assert main(["top", "--once", "--json", "--interval", "0.05", *map(str, arguments)]) == status
    return json.loads(capsys.readouterr().out)


def until(capsys, pids: list[int], reached: Callable[[dict], bool]) -> dict:
    """The first document that shows what the test waits for."""
    end = time.monotonic() + LIMIT
    while True:
        shown = document(capsys, *pids)
        if reached(shown):
            return shown
        assert time.monotonic() < end, json.dumps(shown, indent=1)


def group_of(shown: dict, name: str) -> dict:
    return next(group for group in shown["groups"] if group["name"] == name)


def stages(shown: dict, name: str) -> list[str]:
    """By rank; empty if the group is not there."""
    found = [group for group in shown["groups"] if group["name"] == name]
    return [rank["stage"] for rank in found[0]["ranks"]] if found else []


@contextlib.contextmanager
def job(pool, size: int, body: Callable, **params: object) -> Iterator:
    """Ranks that run ``body`` in a group of their own, named "job"."""
    with pool.fresh(size) as team:
        team.start(body, store=pool.source.new_file(), **params)
        yield team


# ---- jobs


def goes_on(rank, n, device, *, store, calls=2):
    """Calls, and again at every word, until "end"."""
    join(rank, n, device, store=store, timeout=300.0)
    t = torch.ones(1024)
    for _ in range(calls):
        dist.all_reduce(t)
    tell("ready")
    while listen() != "end":
        dist.all_reduce(t)
        tell("called")
    dist.destroy_process_group()


def mismatched(rank, n, device, *, store):
    """Rank 0 is in a barrier of another group, and the others reduce: all wait, until they are killed."""
    join(rank, n, device, store=store, timeout=600.0)
    other = dist.new_group(list(range(n)))
    tell(other.group_name)
    if rank == 0:
        dist.barrier(group=other)
    else:
        dist.all_reduce(torch.ones(4))


def receives(rank, n, device, *, store):
    join(rank, n, device, store=store, timeout=300.0)
    tell("ready")
    if rank == 0:
        dist.recv(torch.ones(3), 1, tag=7)
    else:
        listen()
        dist.send(torch.ones(3), 0, tag=7)
    dist.destroy_process_group()


def counts(rank, n, device):
    """What stats says in a rank, before and after calls of known sizes."""
    before = torch_occl.stats().get("0", {}).get("all_reduce", torch_occl.OperationStats(0, 0, 0, 0.0, 0.0))
    for _ in range(3):
        dist.all_reduce(torch.ones(1 << 16))
    after = torch_occl.stats()["0"]["all_reduce"]
    assert after.operations - before.operations == 3 and after.failed == before.failed
    assert after.bytes - before.bytes == 3 * 4 << 16
    assert after.moving_seconds > before.moving_seconds
    group = dist.new_group(list(range(n)))
    dist.broadcast(torch.ones(2, dtype=torch.bfloat16), 0, group=group)
    if rank == 0:
        dist.send(torch.ones(10), 1, group=group)
    if rank == 1:
        dist.recv(torch.ones(10), 0, group=group)
    stats = torch_occl.stats()[group.group_name]
    dist.destroy_process_group(group)
    assert group.group_name not in torch_occl.stats()
    return {kind: (it.operations, it.bytes) for kind, it in stats.items()}


# ---- stats


def test_stats_count_operations_and_bytes_by_group_and_kind(pool):
    first, second = pool.run(counts, world_size=2)
    assert first == {"broadcast": (1, 4), "send": (1, 40)}
    assert second == {"broadcast": (1, 4), "recv": (1, 40)}


def test_a_process_without_groups_has_no_stats():
    assert in_forked_child(torch_occl.stats) == "{}"


# ---- jobs that go on


def test_every_rank_has_a_row_with_what_it_called_last(pool, capsys):
    with job(pool, 3, goes_on, calls=5) as team:
        for rank in range(3):
            assert team.hear(rank) == "ready"
        shown = document(capsys, *team.pids)
        (group,) = shown["groups"]
        assert (group["size"], group["spans_nodes"], group["stuck"]) == (3, False, [])
        assert [rank["pid"] for rank in group["ranks"]] == team.pids
        for number, rank in enumerate(group["ranks"]):
            assert rank["rank"] == number and rank["host"] == os.uname().nodename
            assert (rank["operation"], rank["number"], rank["bytes"]) == ("all_reduce", 5, 4096)
            assert rank["call"] == "all_reduce(float32[1024], SUM)" and rank["dtype"] == "float32"
            assert rank["stage"] == "computing" and rank["memory"] > 0 and rank["waits_for"] == []
        for rank in range(3):
            team.say(rank, "end")
        team.finish()
        assert team.alive


def test_a_straggler_is_waited_for_and_late(pool, capsys):
    with job(pool, 3, goes_on) as team:
        for rank in range(3):
            team.hear(rank)
        team.say(0, "call")
        team.say(2, "call")
        shown = until(capsys, team.pids, lambda it: stages(it, "0") == ["waiting", "computing", "waiting"])
        first, late, last = shown["groups"][0]["ranks"]
        assert first["waits_for"] == last["waits_for"] == [1]
        assert first["waited"] > 0 and late["lateness"] > abs(first["lateness"])
        (wait,) = shown["groups"][0]["stuck"]
        assert (wait["waiting"], wait["rank"], wait["pid"]) == ([0, 2], 1, team.pids[1])
        assert re.fullmatch(
            rf"Ranks 0 and 2 of group 0 have waited [\d.]+ s for rank 1 \(pid {team.pids[1]}, host \S+\) in "
            r"all_reduce\(float32\[1024\], SUM\) #3, which times out in [\d.]+ s\. Rank 1 (runs|sleeps.*); "
            r"its last operation was all_reduce\(float32\[1024\], SUM\) #2\.",
            wait["text"],
        )
        team.say(1, "call")
        for rank in range(3):
            assert team.hear(rank) == "called"
        shown = document(capsys, *team.pids)
        assert stages(shown, "0") == ["computing"] * 3 and shown["groups"][0]["stuck"] == []
        for rank in range(3):
            team.say(rank, "end")
        team.finish()


def test_ranks_in_different_groups_are_seen_waiting_for_each_other(pool, capsys):
    with job(pool, 2, mismatched) as team:
        other = team.hear(0)
        shown = until(
            capsys,
            team.pids,
            lambda it: (
                stages(it, "0") == ["elsewhere", "waiting"] and stages(it, other) == ["waiting", "elsewhere"]
            ),
        )
        (wait,) = group_of(shown, "0")["stuck"]
        assert wait["text"].endswith(f"Rank 0 waits for rank 1 in barrier() #1 of group {other}.")
        assert 0 < wait["times_out"] <= 600
        (wait,) = group_of(shown, other)["stuck"]
        assert wait["text"].endswith("Rank 1 waits for rank 0 in all_reduce(float32[4], SUM) #1 of group 0.")
        assert group_of(shown, "0")["ranks"][0]["busy_in"] == [other]
        for rank in range(2):
            team.kill(rank)


def test_a_receive_says_which_rank_and_tag_it_waits_for(pool, capsys):
    with job(pool, 2, receives) as team:
        for rank in range(2):
            team.hear(rank)
        shown = until(capsys, team.pids, lambda it: stages(it, "0")[:1] == ["waiting"])
        first, _ = shown["groups"][0]["ranks"]
        assert first["waits_for"] == [1] and first["call"] == "recv(float32[3], src=1, tag=7)"
        team.say(1, "send")
        team.finish()


# ---- ranks that stop and die


def test_a_stopped_rank_is_named_and_goes_on_afterwards(pool, capsys):
    with job(pool, 2, goes_on) as team:
        for rank in range(2):
            team.hear(rank)
        team.kill(1, signal.SIGSTOP)
        team.say(0, "call")
        shown = until(capsys, team.pids, lambda it: stages(it, "0") == ["waiting", "stopped"])
        assert "Rank 1 is stopped (SIGSTOP, or Ctrl-Z); its last" in shown["groups"][0]["stuck"][0]["text"]
        assert main(["top", "--once", "--interval", "0.05", *map(str, team.pids)]) == 0
        assert f"`kill -CONT {team.pids[1]}` continues it." in " ".join(capsys.readouterr().out.split())
        team.kill(1, signal.SIGCONT)
        team.say(1, "call")
        for rank in range(2):
            assert team.hear(rank) == "called"
            team.say(rank, "end")
        team.finish()


def test_a_rank_that_dies_between_two_looks_leaves_the_others_shown(pool):
    with job(pool, 3, goes_on) as team:
        for rank in range(3):
            team.hear(rank)
        processes = Processes(team.pids)
        before = groups.look(processes.look())
        team.kill(1)
        end = time.monotonic() + LIMIT
        while processes.known[team.pids[1]].state() != "X":
            assert time.monotonic() < end
        after = groups.look(processes.look())
        (key,) = after.groups
        rows = groups.rows(before, after, key)
        assert [row.stage for row in rows] == ["computing", "exited", "computing"]
        assert view.title(view.GroupView(after.groups[key], rows, [])) == "group 0: 3 ranks"
        team.kill(0)
        team.kill(2)
        while groups.look(processes.look()).groups:  # until all have exited
            assert time.monotonic() < end


def test_a_rank_that_was_dead_before_is_missing(pool, capsys):
    with job(pool, 3, goes_on) as team:
        for rank in range(3):
            team.hear(rank)
        (group,) = document(capsys, team.pids[0], team.pids[2])["groups"]
        assert [rank["rank"] for rank in group["ranks"]] == [0, 2]
        found = groups.look(Processes([team.pids[0], team.pids[2]]).look())
        (it,) = found.groups.values()
        assert view.title(view.GroupView(it, [], [])) == "group 0: 3 ranks, without rank 1"
        for rank in range(3):
            team.kill(rank)


# ---- what cannot be shown


def refused(capsys, *arguments: object) -> str:
    assert main(["top", "--once", "--json", *map(str, arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


@pytest.mark.parametrize("pid", [(), ("1",)], ids=["all", "one"])
def test_without_proc_it_says_that_it_finds_no_processes(pid):
    need("without_proc")
    program = (
        "from occl.cli import main; from tests.faults import limits; limits.without_proc(); sys.exit(main())"
    )
    said = run_python("-c", f"import sys; {program}", "top", "--once", "--json", *pid, status=2)
    assert said == f"{NO_PROC}\n"


def test_pids_that_are_none_and_processes_without_groups_are_refused(capsys):
    assert refused(capsys, 1 << 30) == f"There is no process {1 << 30} on this host.\n"
    assert refused(capsys, 1 << 70) == f"There is no process {1 << 70} on this host.\n"
    assert refused(capsys, -1) == "There is no process -1 on this host.\n"
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        assert refused(capsys, sleeper.pid) == f"Process {sleeper.pid} has no group of torch_occl.\n"
    finally:
        sleeper.kill()
        sleeper.wait()
    assert main(["top", "--json"]) == 2
    assert capsys.readouterr().err == "--json prints one document, and so it needs --once.\n"


def test_a_process_of_another_user_is_refused():
    root = os.getpid() if os.geteuid() == 0 else 1

    def as_another_user() -> str:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        with pytest.raises(NotShown) as caught:
            named(root)
        assert not Processes().look()
        return str(caught.value)

    assert in_forked_child(as_another_user) == (
        f"Process {root} belongs to user root, and its memory can only be read as that user."
    )


@contextlib.contextmanager
def region(content: bytes) -> Iterator[int]:
    """A process with a control region of these contents: a child of this one, and where it is its pid."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        fd = os.memfd_create("occl-control")
        os.truncate(fd, 1 << 20)
        os.pwrite(fd, content.replace(b"PIDD", struct.pack("<i", os.getpid())), 0)
        os.write(write, b"!")
        signal.pause()
    try:
        os.read(read, 1)
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


def header(
    version: int = layout.PROTOCOL, first: int = 0, magic: int = layout.MAGIC, names: int = 0
) -> bytes:
    raw = layout.HEADER.pack(1, magic, version, 0, 0, 0, first, names, b"host a")
    return raw[:128] + b"PIDD" + raw[132:]


def test_another_version_is_refused_in_a_sentence(capsys):
    with region(header(version=8)) as pid:
        assert refused(capsys, pid) == (
            f"Process {pid} speaks protocol version 8, and this is version {layout.PROTOCOL}: "
            "run top of the torch_occl that it uses.\n"
        )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        header(magic=5),
        header(first=64, names=4096),
        header(first=1, names=4096),
        header(first=256, names=512).ljust(256, b"\0") + struct.pack("<IIQ", 0, 0, 256),
        header(first=(1 << 63), names=4096),
        header(first=256, names=(1 << 64) - 1),
        os.urandom(8) + header(first=256, names=2048)[8:] + os.urandom(4000),
        header(first=256, names=2048).ljust(256, b"\0")
        + struct.pack("<II", layout.RECORD_MAGIC, layout.RECORD_BYTES)
        + b"\0" * 8
        + b"\1"
        + b"\0" * 7
        + b"\xff" * 2000,
    ],
    ids=["nothing", "magic", "header as a record", "odd", "circle", "far", "names", "noise", "all ones"],
)
def test_a_region_with_wrong_contents_breaks_nothing(content, capsys):
    with region(content) as pid, contextlib.suppress(NotShown):
        process = named(pid)
        snapshot = groups.look([process])
        assert len(snapshot.problems) <= 1
        for key in snapshot.groups:
            groups.rows(snapshot, snapshot, key)
            stuck.waits(snapshot, snapshot.groups[key])


def test_a_forked_child_is_not_taken_for_its_parent():
    with open(os.memfd_create("occl-control"), "wb") as own:
        own.write(header().replace(b"PIDD", struct.pack("<i", os.getpid())).ljust(4096, b"\0"))
        own.flush()
        assert in_forked_child(lambda: attach(os.getpid())) == "None"
        process = attach(os.getpid())
        assert process is not None and process.host == "host a"
        process.close()


def test_a_writer_that_stopped_in_the_middle_is_still_shown():
    words = dict.fromkeys(layout.FIELDS, 0) | {"version": 7, "number": 3, "stage": 2, "signature": 2}
    raw = layout.IDENTITY.pack(
        layout.RECORD_MAGIC, layout.RECORD_BYTES, 0, layout.OPEN, 1, 0, 2, 0, 0, 0, b"0"
    )
    values = [words[name] if name else 0 for name in layout.FIELDS] + [0] * (8 * layout.KINDS)
    raw += layout.WORDS.pack(*values)
    names = layout.Names(
        "barrier,broadcast,all_reduce,reduce,all_gather,gather,scatter,reduce_scatter,all_to_all;"
        "uint8:1;SUM,NONE"
    )
    record = records.one(lambda offset, count: raw[offset : offset + count], 0, names)
    assert record is not None and not record.steady and record.call.text == "all_reduce(uint8[0], SUM)"


def test_layout_names_the_protocol_of_the_core():
    source = (ROOT / "csrc/shm/wire.h").read_text()
    assert f"kProtocolVersion = {layout.PROTOCOL};" in source


# ---- over nodes


def late_on_another_node(rank, n, device, *, store):
    os.environ["OCCL_NODE"] = "ab"[rank // 2]
    join(rank, n, device, store=store, timeout=LIMIT)
    if rank == 3:
        listen()
    dist.all_reduce(torch.ones(3, device=device))


@pytest.mark.full
def test_each_host_says_what_it_knows_of_a_late_rank(fresh, capsys):
    def said(pids: list[int], text: str) -> dict:
        return until(
            capsys, pids, lambda shown: any(text in it["text"] for it in group_of(shown, "0")["stuck"])
        )

    with fresh(4) as team:
        team.start(late_on_another_node, store=team.source.new_file())
        for pid in team.pids:
            until(
                capsys,
                [],
                lambda shown, pid=pid: any(
                    pid == rank["pid"] for group in shown["groups"] for rank in group["ranks"]
                ),
            )
        said(
            team.pids[:2],
            " for one or more of ranks 2 and 3 on other nodes in all_reduce(float32[3], SUM) #1",
        )
        said(team.pids[2:], "Rank 2 of group 0 has waited")
        said(team.pids[2:], f" for rank 3 (pid {team.pids[3]}, ")
        team.say(3, "both hosts have said it")
        assert not any(outcome.failed for outcome in team.finish()), team.running


# ---- texts


def test_columns_fit_a_terminal():
    assert sum(column.width + 1 for column in view.columns(80)) - 1 <= 80
    assert [view.dtype(name) for name in ("float32", "bfloat16", "bool", "float8_e4m3fn", "int4", "")] == [
        "f32",
        "bf16",
        "bool",
        "float8_e4m3fn",
        "i4",
        "",
    ]


def test_without_rich_the_screen_says_what_to_install_and_json_works(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich", None)
    assert main(["top", "--once"]) == 2
    assert "pip install 'rich>=13'" in capsys.readouterr().err


# ---- terminals


@pytest.mark.parametrize(
    ("said", "width"), [("", 80), ("0", 80), ("39", 80), ("x", 80), ("40", 40), ("200", 200)]
)
def test_without_a_terminal_the_picture_is_as_wide_as_columns_says(said, width, monkeypatch, capsys):
    screen = pytest.importorskip("occl.tools.top.screen")
    monkeypatch.setenv("COLUMNS", said)
    assert screen.console().width == width
    screen.show(view.View("a host", 1.0, [], []))
    assert "a host" in capsys.readouterr().out


@pytest.mark.full
def test_64_ranks_are_shown_on_a_screen_of_80_columns(pool, monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "80")
    with job(pool, 64, goes_on) as team:
        for rank in range(64):
            team.hear(rank)
        for rank in range(63):
            team.say(rank, "call")
        shown = until(capsys, team.pids, lambda it: stages(it, "0")[:63] == ["waiting"] * 63)
        assert shown["groups"][0]["stuck"][0]["text"].startswith("Ranks 0-62 of group 0 have waited ")
        assert main(["top", "--once", "--interval", "0.05", *map(str, team.pids)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80 and sum("waits 63" in line for line in lines) == 63
        team.say(63, "call")
        for rank in range(64):
            assert team.hear(rank) == "called"
            team.say(rank, "end")
        team.finish()


class Terminal:
    """A tmux of its own, of 80 columns."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.tmux = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        self.environment = os.environ | environment

    def start(self, *command: object, height: int = 24) -> None:
        size = ["-x", "80", "-y", str(height)]
        line = [*self.tmux, "new-session", "-d", *size, "-s", "top", *map(str, command)]
        subprocess.run(line, env=self.environment, check=True, timeout=LIMIT)

    def picture(self, colours: bool = False) -> str:
        line = [*self.tmux, "capture-pane", "-p", *(["-e"] if colours else []), "-t", "top"]
        return subprocess.run(line, capture_output=True, text=True, timeout=LIMIT).stdout

    def until(self, *texts: str) -> str:
        end = time.monotonic() + LIMIT
        while not all(text in (shown := self.picture()) for text in texts):
            assert time.monotonic() < end, shown
        return shown

    def press(self, key: str) -> None:
        subprocess.run([*self.tmux, "send-keys", "-t", "top", key], check=True, timeout=LIMIT)

    def close(self) -> None:
        subprocess.run([*self.tmux, "kill-server"], capture_output=True, timeout=LIMIT)


@pytest.mark.full
@pytest.mark.parametrize("dumb", [False, True], ids=["colours", "NO_COLOR"])
@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
def test_the_screen_follows_a_job_in_a_terminal(pool, tmp_path, dumb):
    pytest.importorskip("rich")
    environment = {"NO_COLOR": "1"} if dumb else {}
    terminal = Terminal(tmp_path, PYTHONPATH=str(ROOT), **environment)
    with job(pool, 3, goes_on) as team:
        for rank in range(3):
            team.hear(rank)
        try:
            terminal.start(sys.executable, "-m", "torch_occl", "top", "--interval", "0.2", *team.pids)
            terminal.until("torch_occl top: host", "group 0: 3 ranks", "computing", f"{team.pids[2]}")
            team.say(0, "call")
            team.say(1, "call")
            terminal.until("waits 2", "Ranks 0 and 1 of group 0 have waited")
            coloured = re.search(r"\x1b\[(\d+;)*(3[0-8]|4[0-8]|9\d|10\d)[m;]", terminal.picture(colours=True))
            assert bool(coloured) != dumb
            team.kill(2, signal.SIGSTOP)
            terminal.until("stopped", "Rank 2 is stopped")
            team.kill(2, signal.SIGCONT)
            team.say(2, "call")
            for rank in range(3):
                assert team.hear(rank) == "called"
            assert "waits" not in terminal.until("computing")
            team.kill(1)
            terminal.until("exited")
            terminal.press("C-c")
        finally:
            terminal.close()
        for rank in (0, 2):
            team.kill(rank)


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
def test_a_picture_that_does_not_fit_scrolls(pool, tmp_path):
    pytest.importorskip("rich")
    terminal = Terminal(tmp_path, PYTHONPATH=str(ROOT), SHELL="/bin/sh")
    with job(pool, 7, goes_on) as team:
        for rank in range(7):
            team.hear(rank)
        pids = " ".join(map(str, team.pids))
        command = (
            f"{sys.executable} -m torch_occl top --interval 0.5 {pids}; echo ended $?; sleep {LIMIT:.0f}"
        )
        try:
            terminal.start(command, height=8)
            shown = terminal.until("lines 1-7 of 11: arrows")
            assert shown.startswith("torch_occl top: host") and f"{team.pids[3]}" not in shown
            for key, text in {
                "Down": "lines 2-8 of 11",
                "Up": "lines 1-7 of 11",
                "PageDown": "lines 5-11 of 11",
                "j": "lines 5-11 of 11",
                "k": "lines 4-10 of 11",
                "Home": "lines 1-7 of 11",
                "x": "lines 1-7 of 11",
                "End": "lines 5-11 of 11",
            }.items():
                terminal.press(key)
                shown = terminal.until(text)
            assert f"{team.pids[6]}" in shown
            terminal.press("q")
            terminal.until("ended 0")
        finally:
            terminal.close()
        for rank in range(7):
            team.say(rank, "end")
        team.finish()


def in_barrier(rank, n, device, *, store):
    join(rank, n, device, store=store, timeout=LIMIT)
    dist.barrier()
    tell("calls")
    if rank == 1:
        listen()
    dist.group.WORLD.monitored_barrier(timedelta(seconds=LIMIT), True)
    tell("passed")
    listen()


def test_a_monitored_barrier_is_shown(pool, capsys):
    with job(pool, 3, in_barrier) as team:
        for rank in range(3):
            team.hear(rank)
        shown = until(capsys, team.pids, lambda it: stages(it, "0").count("waiting") == 2)
        (wait,) = group_of(shown, "0")["stuck"]
        assert re.fullmatch(
            r"Ranks 0 and 2 of group 0 have waited [0-9.]+ s for rank 1 \(pid \d+, host \S+\) in "
            r"monitored_barrier\(\) #1\. Rank 1 sleeps.*; its last operation was barrier.* #1\.",
            wait["text"],
        ), wait
        team.say(1, "call")
        for rank in range(3):
            assert team.hear(rank) == "passed"
        until(capsys, team.pids, lambda it: stages(it, "0") == ["computing"] * 3)
        for rank in range(3):
            team.say(rank, "end")
        team.finish()
