"""Ranks that can map each other's memory are a node, however their processes are kept apart otherwise."""

from __future__ import annotations

import os
import re
import socket
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.faults import limits
from tests.hosts.launch import Hosts
from tests.hosts.namespaces import INTERFACE
from tests.hosts.separations import SEPARATIONS, call, in_child, need, user, uts
from tests.support.checks import assert_works
from tests.support.devices import DEVICES

TOGETHER = {
    name: ["nothing", "nothing", name, name]
    for name in ("pid", "ipc", "uts", "without_shm", "without_proc", "read_only_files", "hidden_proc",
                 "users", "undumpable", "container")
} | {
    "everything without /proc": ["without_proc"] * 4,
    "everything read-only": ["read_only_files"] * 4,
    "a mixture": ["pid", "container", "users", "undumpable"],
    "a user inside and outside of a namespace": ["user", "users_of_another", "user", "users_of_another"],
}  # fmt: skip
APART = {
    "two users": (["nothing", "nothing", "user", "user"], "0 1, 2 3: another user, 12345"),
    "one rank of another user": (["nothing", "user", "nothing", "nothing"], "0 2 3, 1: another user, 12345"),
    "user namespaces": (
        ["nothing", "nothing", "users_of_another", "users_of_another"],
        "0 1, 2 3: another user namespace",
    ),
    "one rank alone in a user namespace": (
        ["container", "users_of_another", "pid", "nothing"],
        "0 2 3, 1: another user namespace",
    ),
    "three kinds": (["user", "users", "pid", "users_of_another"], "0 3, 1 2: another user, 0"),
}


def ring(device: str, rank: int, n: int) -> None:
    """Each rank sends to the next one."""
    mine, got = torch.full((1000,), rank, device=device), torch.full((1000,), -1, device=device)
    work = [dist.isend(mine, (rank + 1) % n), dist.irecv(got, (rank - 1) % n)]
    for each in work:
        each.wait()
    assert (got == (rank - 1) % n).all()


def use(rank: int, n: int, port: int, address: str = "127.0.0.1") -> None:
    store = dist.TCPStore(address, port, timeout=timedelta(seconds=20))
    dist.init_process_group("occl", store=store, rank=rank, world_size=n, timeout=timedelta(seconds=20))
    for device in DEVICES:
        assert_works(device)
        ring(device, rank, n)
    dist.barrier()
    dist.destroy_process_group()


def separated(rank, n, device, *, names, port):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    SEPARATIONS[names[rank]]()
    if names[rank] != "pid":
        use(rank, n, port)
        return
    with in_child() as child:
        if child:
            assert os.getpid() == 1
            use(rank, n, port)


def nodes_in(text: str) -> list[str]:
    """Of each line of the log about a group over nodes: the ranks of the nodes, and why they are apart."""
    lines = re.findall(r"occl: group 0 of \d+ ranks spans \d+ nodes: (.*)", text)
    return [
        re.sub(r" \(host [^:)]*(?:(: [^)]*)|)\)", r"\1", line).partition(". Between")[0] for line in lines
    ]


def run(pool: Hosts, names: list[str]) -> str:
    """What rank 0 has printed."""
    for name in dict.fromkeys(names):
        need(name)
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pool.fresh(len(names)) as team:
        team.run(separated, names=names, port=server.port)
        return team.members[0].output()


@pytest.mark.parametrize("name", TOGETHER)
def test_what_does_not_keep_ranks_from_mapping_memory_makes_no_nodes(logging, name):
    assert nodes_in(run(logging, TOGETHER[name])) == []


@pytest.mark.parametrize("name", APART)
def test_users_that_do_not_see_each_other_are_on_different_nodes(logging, name):
    names, nodes = APART[name]
    text = run(logging, names)
    assert nodes_in(text) == [nodes]
    assert ". Between them: tcp over lo (127.0.0.1)" in text


def on_hosts_of_one_name(rank, n, device, *, address, port, others):
    uts("same")
    assert socket.gethostname() == "same"
    if rank in others:
        user()
    if rank == 0:
        server = dist.TCPStore(address, port, is_master=True, wait_for_workers=False)
        assert server.port == port
    use(rank, n, port, address)


@pytest.mark.parametrize(
    ("others", "nodes"),
    [
        ([], "0 1, 2 3: another network namespace"),
        ([3], "0 1, 2: another network namespace, 3: another network namespace"),
    ],
)
def test_hosts_of_the_same_name_are_different_nodes(logging, apart, others, nodes):
    with logging.fresh_on("2+2", apart) as team:
        team.run(on_hosts_of_one_name, address=apart.hosts[0].address, port=apart.new_port(), others=others)
        text = team.members[0].output()
    assert nodes_in(text) == [nodes]
    assert f". Between them: tcp over {INTERFACE} ({apart.hosts[0].address4})" in text


def machines_of_one_snapshot(rank, n, device, *, address, port):
    """All ranks read the same boot id, and the same inodes of their namespaces."""
    uts("same")
    limits.own_mounts()
    call("mount", b"tmpfs", b"/proc", b"tmpfs", 0, None)
    for name, text in (("sys/kernel/random/boot_id", "same"), ("self/ns/net", ""), ("self/ns/user", "")):
        file = Path("/proc", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    if rank == 0:
        server = dist.TCPStore(address, port, is_master=True, wait_for_workers=False)
        assert server.port == port
    use(rank, n, port, address)
    return [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "user")]


def test_machines_made_from_one_snapshot_are_different_nodes(logging, apart):
    with logging.fresh_on("2+2", apart) as team:
        inodes = team.run(machines_of_one_snapshot, address=apart.hosts[0].address, port=apart.new_port())
        text = team.members[0].output()
    assert inodes == inodes[:1] * 4
    assert nodes_in(text) == ["0 1, 2 3: other network addresses"]
