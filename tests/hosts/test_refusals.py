"""Groups over nodes that cannot be made: every rank gets an error that names both sides, and in time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from occl import _C
from tests.support.checks import assert_works
from tests.support.worker import listen, tell

TIMEOUT = 5.0
"""Seconds of the groups."""


def make(rank: int, n: int, store: dist.Store, options=None, timeout: float = TIMEOUT) -> None:
    limit = timedelta(seconds=timeout)
    dist.init_process_group("occl", store=store, rank=rank, world_size=n, timeout=limit, pg_options=options)


def error_of(rank: int, n: int, store: dist.Store, options=None) -> str:
    """That every rank gets when it makes the group."""
    with pytest.raises((dist.DistBackendError, ValueError, RuntimeError)) as caught:
        make(rank, n, store, options)
    return str(caught.value)


def apart_by_name(rank: int) -> None:
    """Ranks 0 and 1 on one node, the others on another."""
    os.environ["OCCL_NODE"] = "ab"[rank // 2]
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"


def another_version(rank, n, device, *, file, build):
    apart_by_name(rank)
    if rank == 2:
        _C._set_build(build)
    return error_of(rank, n, dist.FileStore(file, n))


def another_engine(rank, n, device, *, file):
    apart_by_name(rank)
    options = _C.ProcessGroupOCCL.Options()
    other = dist.ProcessGroupGloo(dist.PrefixStore("other", dist.FileStore(file, n)), rank, n)
    if rank == 3:
        options.inter_node = other
    return error_of(rank, n, dist.FileStore(file, n), options)


def without_the_interface(rank, n, device, *, file):
    apart_by_name(rank)
    if rank == 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "nosuch0"
    return error_of(rank, n, dist.FileStore(file, n))


def with_nodes(rank, n, device, *, file, nodes):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if nodes[rank] is not None:
        os.environ["OCCL_NODE"] = nodes[rank]
    return error_of(rank, n, dist.FileStore(file, n))


def with_good_nodes(rank, n, device, *, file, nodes):
    """Whether it is a group of several nodes."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if nodes[rank] is not None:
        os.environ["OCCL_NODE"] = nodes[rank]
    make(rank, n, dist.FileStore(file, n), timeout=30)
    assert_works()
    dist.destroy_process_group()


def without_a_way(rank, n, device, *, file):
    tell("ready")
    listen()
    return error_of(rank, n, dist.FileStore(file, n))


def over_loopback(rank, n, device, *, file):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    return error_of(rank, n, dist.FileStore(file, n))


def serve(port: int) -> None:
    server = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    tell(server.port)
    listen()


def loses_its_store(rank, n, device, *, address, absent):
    """The last rank serves the store and is no rank of the group; rank `absent` never comes."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if rank == n - 1:
        serve(0)
        return ""
    port = listen()
    store = dist.TCPStore(address, port, timeout=timedelta(seconds=TIMEOUT))
    if rank == absent:
        listen()
        return ""
    tell("ready")
    return error_of(rank, n - 1, store)


def names_processes(text: str, *ranks: int) -> bool:
    return all(re.search(rf"rank {rank} \(pid \d+, host [^)]+\)", text) for rank in ranks)


@pytest.mark.parametrize("build", ["torch_occl 0.0.9 for PyTorch 2.13", "torch_occl 0.1.0 for PyTorch 2.12"])
def test_ranks_with_different_versions_make_no_group(logging, build):
    with logging.fresh(4) as team:
        texts = team.run(another_version, file=team.source.new_file(), build=build)
    for text in texts:
        assert names_processes(text, 0, 2) and build in text, text
        assert "install the same torch_occl and PyTorch on all hosts" in text


def test_ranks_with_different_engines_make_no_group(logging):
    with logging.fresh(4) as team:
        texts = team.run(another_engine, file=team.source.new_file())
    for text in texts:
        assert names_processes(text, 0, 3) and "Options.inter_node=gloo" in text, text
        assert "give all ranks the same ProcessGroupOCCL.Options(inter_node=...), or none" in text


def test_an_interface_that_does_not_exist_is_named_on_every_rank(logging):
    with logging.fresh(4) as team:
        texts = team.run(without_the_interface, file=team.source.new_file())
    for text in texts:
        assert "GLOO_SOCKET_IFNAME names the interface 'nosuch0'" in text and "set it to one of lo" in text
    assert all(names_processes(texts[rank], 1) for rank in (0, 2, 3)), texts


def test_occl_node_on_some_ranks_only_is_an_error(logging):
    with logging.fresh(3) as team:
        texts = team.run(with_nodes, file=team.source.new_file(), nodes=[None, "a", "a"])
    for text in texts:
        assert names_processes(text, 0, 1) and "set it on all ranks or on none" in text, text


@pytest.mark.parametrize("node", [" a", "a ", "\t", "ä", "x" * 64, " "])
def test_an_occl_node_that_cannot_be_seen_is_an_error(logging, node):
    with logging.fresh(3) as team:
        texts = team.run(with_nodes, file=team.source.new_file(), nodes=["a", node, "b"])
    for text in texts:
        assert "OCCL_NODE is " in text and "at most 63 printable ASCII characters" in text, text
    assert names_processes(texts[0], 1) and names_processes(texts[2], 1)


@pytest.mark.parametrize("nodes", [[None, "", None], ["x" * 63, "node 1", "!"], ["", "", ""]])
def test_an_empty_occl_node_is_none_and_any_visible_text_is_one(logging, nodes):
    with logging.fresh(3) as team:
        team.run(with_good_nodes, file=team.source.new_file(), nodes=nodes)


@pytest.mark.full
def test_hosts_that_cannot_reach_each_other_are_named(logging, apart):
    with logging.fresh_on("2+1", apart) as team:
        team.start(without_a_way, file=team.source.new_file())
        for rank in range(team.size):
            assert team.hear(rank) == "ready"
        apart.hosts[1].cut()
        for rank in range(team.size):
            team.say(rank, "go on")
        texts = [outcome.result for outcome in team.finish()]
    for rank, text in enumerate(texts):
        assert names_processes(text, 0 if rank == 2 else 2) and "GLOO_SOCKET_IFNAME" in text, text
        assert "gloo over eth0 (" in text, text


@pytest.mark.full
def test_an_interface_that_other_hosts_cannot_reach_is_an_error(logging, apart):
    with logging.fresh_on("2+1", apart) as team:
        texts = team.run(over_loopback, file=team.source.new_file())
    for text in texts:
        assert "Gloo would listen on lo (127.0.0.1), which other nodes cannot reach" in text, text


@pytest.mark.full
def test_a_store_that_dies_while_a_group_is_made_is_an_error_of_every_rank(logging):
    with logging.fresh(5) as team:
        team.start(loses_its_store, address="127.0.0.1", absent=3)
        port = team.hear(4)
        for rank in range(4):
            team.say(rank, port)
        for rank in range(3):
            assert team.hear(rank) == "ready"
        watching = dist.TCPStore("127.0.0.1", port)
        while watching.num_keys() < 3:  # what three ranks have announced
            assert team.alive
        team.kill(4, signal.SIGKILL)
        team.wait_for(0, 1, 2)
        texts = [team.running[rank].result for rank in range(3)]
    for rank, text in enumerate(texts):
        assert names_processes(text, rank) and "lost the store while it made group 0" in text, text


def is_cut_off_from_its_store(rank, n, device, *, address, port):
    """The first rank serves the store on another host, and is no rank of the group."""
    if rank == 0:
        server = dist.TCPStore(address, port, is_master=True, wait_for_workers=False)
        tell(server.port)
        listen()
        return ""
    listen()
    store = dist.TCPStore(address, port, timeout=timedelta(seconds=TIMEOUT))
    tell("connected")
    listen()
    return error_of(rank - 1, n - 1, store)


def test_a_store_that_is_cut_off_is_an_error_in_time(logging, apart):
    with logging.fresh_on("1+2", apart) as team:
        team.start(is_cut_off_from_its_store, address=apart.hosts[0].address, port=apart.new_port())
        team.hear(0)
        for rank in (1, 2):
            team.say(rank, "the store is there")
            assert team.hear(rank) == "connected"
        apart.hosts[1].cut()
        for rank in (1, 2):
            team.say(rank, "it is cut off")
        team.wait_for(1, 2)
        texts = [team.running[rank].result for rank in (1, 2)]
    for rank, text in enumerate(texts):
        assert names_processes(text, rank) and "lost the store while it made group 0" in text, text


RESUMES = """
import ctypes, os, sys
from datetime import timedelta
import torch.distributed as dist
import occl.distributed.backend  # sets the function that this program replaces
from occl import _C

rank, store, pipe = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
libc = ctypes.CDLL(None)
libc.on_exit(libc.getchar, None)  # the interpreter has ended then; the process ends with its input
_C._set_prepare_inter_node(lambda one_network: ("nothing", lambda *arguments: os.read(pipe, 1)))
try:
    dist.init_process_group(
        "occl", store=dist.FileStore(store, 2), rank=rank, world_size=2, timeout=timedelta(seconds=3)
    )
except dist.DistBackendError as error:
    print(error, flush=True)
"""


def sleeping_threads(pid: int) -> int:
    """How many threads of a process but the first sleep, and do not read."""
    waits = [
        Path(f"/proc/{pid}/task/{task}/wchan") for task in os.listdir(f"/proc/{pid}/task") if task != str(pid)
    ]
    return sum("nanosleep" in wait.read_text() for wait in waits)


@pytest.mark.full
def test_a_thread_that_still_connects_does_not_end_the_process_at_its_exit(tmp_path):
    """Both ranks give up; later the threads that connect ask for the GIL of interpreters that have ended."""
    read, write = os.pipe()
    ranks = []
    for rank in range(2):
        environment = os.environ | {
            "OCCL_NODE": str(rank),
            "GLOO_SOCKET_IFNAME": "lo",
            "OCCL_INTER_NODE": "gloo",
        }
        arguments = [str(rank), str(tmp_path / "store"), str(read)]
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", RESUMES, *arguments],
                env=environment,
                pass_fds=[read],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    for process in ranks:
        assert "could not connect through nothing" in process.stdout.readline()
        while Path(f"/proc/{process.pid}/wchan").read_text() not in ("pipe_read", "anon_pipe_read"):
            assert process.poll() is None  # its first thread ends the interpreter, and then reads
    os.write(write, b"12")
    for process in ranks:
        while process.poll() is None and not sleeping_threads(process.pid):
            pass
        process.communicate("\n")
        assert process.returncode == 0
    os.close(read)
    os.close(write)
