"""The kit itself: hosts are apart, and a failure in one of them is seen and says where it was."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from occl.testing import RanksFailed
from tests.hosts.launch import placement
from tests.hosts.namespaces import CommandFailed, Network, why_not
from tests.support.references import assert_same_bits
from tests.support.worker import listen, tell


def names_and_interfaces(rank, n, device, *, names):
    addresses = [socket.gethostbyname(name) for name in names]
    return socket.gethostname(), sorted(name for _, name in socket.if_nameindex()), addresses


def binds_the_same_names(rank, n, device):
    """An abstract name and a port: the ranks of one host would be in each other's way."""
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket() as listener:
        try:
            abstract.bind("\0occl test of hosts")
            listener.bind(("", 4711))
        except OSError:
            tell("taken")
        else:
            tell("bound")
        listen()


def sends_a_wrong_value(rank, n, device):
    t = torch.full((1000,), rank, dtype=torch.int32)
    dist.all_reduce(t)
    if rank == 3:
        t[17] += 1
    assert_same_bits(t, torch.full((1000,), sum(range(n)), dtype=torch.int32), "sum")


def dies_on_rank_2(rank, n, device):
    print(f"the last words of {socket.gethostname()}", flush=True)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def rank_3_waits_for_ever(rank, n, device):
    if rank == 3:
        signal.pause()


def exchange(rank, n, device, *, count):
    """Everyone's block to rank 0, in a plain connection."""
    t = torch.ones(count)
    if rank == 1:
        dist.send(t, 0)
    elif rank == 0:
        dist.recv(t, 1)
    dist.barrier()


def test_a_shape_says_how_many_ranks_each_host_has():
    assert placement("2+1") == [0, 0, 1]
    assert placement("1+2+1") == [0, 1, 1, 2]


def test_ranks_know_their_hosts_name_and_interface_and_the_addresses_of_all(hosts):
    everyone = hosts.network.hosts
    with hosts.fresh_on("1+2+1") as team:
        found = team.run(names_and_interfaces, names=[host.name for host in everyone])
        addresses = [host.address4 for host in everyone]
        assert found == [(team.host_of[rank].name, ["eth0", "lo"], addresses) for rank in range(4)]
        assert set(team.pids[1:3]) <= set(everyone[1].processes())


def test_hosts_share_neither_abstract_sockets_nor_ports(hosts):
    with hosts.fresh_on("2+1") as team:
        team.start(binds_the_same_names)
        found = [team.hear(rank) for rank in range(3)]
        for rank in range(3):
            team.say(rank, "go on")
        team.finish()
    assert sorted(found[:2]) == ["bound", "taken"] and found[2] == "bound"


def test_a_wrong_value_is_reported_with_its_rank_and_its_host(hosts):
    with hosts.fresh_on("2+2").meet("gloo") as team, pytest.raises(RanksFailed) as caught:
        team.run(sends_a_wrong_value)
    text = str(caught.value)
    assert text.startswith("rank 3 raised AssertionError") and "rank 3 on host 1" in text
    assert "1 of 1000 elements differ, the first is [17]" in text


def test_a_rank_that_dies_is_reported_with_its_host_and_its_output(hosts):
    with hosts.fresh_on("2+2").meet("gloo", timeout=3) as team, pytest.raises(RanksFailed) as caught:
        team.run(dies_on_rank_2)
    text = str(caught.value)
    assert text.startswith("rank 2 (pid ") and "was killed by SIGKILL" in text and "rank 2 on host 1" in text
    assert f"the last words of {team.host_of[2].name}" in text


def test_a_rank_that_does_not_finish_fails_the_test_and_is_killed(hosts):
    team = hosts.fresh_on("2+2")
    with pytest.raises(RanksFailed, match=r"(?s)rank 3 did not finish.*rank 3 on host 1"):
        team.run(rank_3_waits_for_ever, limit=0.5)
    assert not any(Path(f"/proc/{pid}").exists() for pid in team.pids)


def test_bytes_that_leave_a_host_are_counted(hosts, apart):
    with hosts.fresh_on("1+1", apart).meet("gloo") as team:
        team.run(exchange, count=1)
        before = [host.bytes_sent() for host in apart.hosts]
        team.run(exchange, count=4 << 20)
        sent = [host.bytes_sent() - then for host, then in zip(apart.hosts, before, strict=True)]
    assert sent[0] < 1 << 20 and 16 << 20 <= sent[1] <= 17 << 20, sent


def test_a_limit_makes_a_host_send_no_faster(hosts, apart):
    with hosts.fresh_on("1+1", apart).meet("gloo") as team:
        team.run(exchange, count=1)
        apart.hosts[1].limit("200mbit")
        begin = time.monotonic()
        team.run(exchange, count=4 << 20)
        took = time.monotonic() - begin
    bits_sent_at_once = 8 << 20  # what a token bucket holds at first
    assert took >= ((16 << 23) - bits_sent_at_once) / 200e6


def connects(host, address: str) -> bool:
    """Whether a process in the host reaches the other one: an answer is a refusal at once."""
    code = f"import socket; print(socket.socket().connect_ex(({address!r}, 9)) == 111)"
    script = f"import socket; socket.setdefaulttimeout(0.3); {code}"
    return host.run(sys.executable, "-S", "-c", script).strip() == "True"


def test_a_cable_can_be_cut_and_restored(apart):
    first, second = apart.hosts
    assert connects(first, second.address4)
    second.cut()
    assert not connects(first, second.address4)
    second.restore()
    assert connects(first, second.address4)


def test_a_command_in_a_host_has_its_own_name_and_process_numbers(apart):
    code = "import os, socket; print(socket.gethostname(), os.getpid())"
    assert apart.hosts[0].run(sys.executable, "-S", "-c", code).split() == [apart.hosts[0].name, "1"]


def test_leaving_a_network_kills_its_processes_and_removes_it(permitted):
    listed = ["ip", "netns", "list"]
    with Network(1) as network:
        host = network.hosts[0]
        assert host.name in subprocess.run(listed, capture_output=True, text=True).stdout
        sleeper = subprocess.Popen(host.command("sleep", "1000"))
        while len(host.processes()) < 2:
            assert sleeper.poll() is None
    assert sleeper.wait() != 0
    assert host.name not in subprocess.run(listed, capture_output=True, text=True).stdout
    assert network.switch not in subprocess.run(listed, capture_output=True, text=True).stdout


def test_a_network_that_cannot_be_made_leaves_nothing_behind(permitted, monkeypatch):
    listed = ["ip", "netns", "list"]
    network = Network(2)
    monkeypatch.setattr("tests.hosts.namespaces.INTERFACE", "a name that is too long for it")
    with pytest.raises(CommandFailed, match="link add"):
        network.__enter__()
    assert network.switch not in subprocess.run(listed, capture_output=True, text=True).stdout


def test_a_machine_without_the_commands_says_so(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert why_not.__wrapped__() == "The command ip is missing (Debian: iproute2, util-linux)."
