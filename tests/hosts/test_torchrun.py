"""torchrun with an agent on each host: started as users start it, in interpreters of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hosts.launch import CARRIERS, NAMES, skip_without_library
from tests.hosts.namespaces import INTERFACE, Host, Network, ipv6_is_on
from tests.support.interpreter import PACKAGE
from tests.support.thinning import first

SCRIPT = Path(__file__).parent / "scripts" / "under_torchrun.py"
LIMIT = 120.0
"""Seconds that a job may take on an overloaded machine."""


@contextmanager
def agent(host: Host, log: Path, carrier: str, *arguments: str) -> Iterator[subprocess.Popen]:
    """torchrun on this host, with process numbers of its own: ending it ends all that it has started."""
    settings = {"PYTHONPATH": str(PACKAGE), "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
    settings["OCCL_INTER_NODE"] = carrier
    command = host.command(sys.executable, "-m", "torch.distributed.run", *arguments)
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=os.environ | settings, stdout=output, stderr=output) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def run_job(network: Network, folder: Path, backend: str) -> dict[int, dict]:
    """What each rank of two hosts found."""
    skip_without_library(backend)
    carrier = CARRIERS.get(backend, "")
    name = "occl" if carrier else backend
    first = network.hosts[0]
    bracketed = first.address if first.address4 else f"[{first.address}]"
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={bracketed}:{network.new_port()}", "--rdzv-id=job"]
    logs = [folder / f"host{host.number}.log" for host in network.hosts]

    def start(host: Host):
        options = ["--nnodes=2", "--nproc-per-node=2", f"--local-addr={host.address}", *meeting]
        return agent(host, logs[host.number], carrier, *options, str(SCRIPT), name, str(folder))

    with start(network.hosts[0]) as one, start(network.hosts[1]) as other:
        statuses = [one.wait(LIMIT), other.wait(LIMIT)]
    assert statuses == [0, 0], "\n".join(log.read_text() for log in logs)
    return {int(file.stem): json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def check(network: Network, found: dict[int, dict]) -> None:
    """The agents number the hosts in the order in which they come: either may be the first."""
    assert sorted(found) == [0, 1, 2, 3]
    assert all(rank["ranks"] == [0, 1, 2, 3] for rank in found.values())
    assert [found[rank]["local"] for rank in range(4)] == [0, 1, 0, 1]
    places = [found[rank]["host"] for rank in range(4)]
    assert places[0] == places[1] and places[2] == places[3]
    assert {places[0], places[2]} == {host.name for host in network.hosts}


@pytest.mark.parametrize("backend", first(NAMES, 0, ci=1))
def test_two_agents_of_torchrun_make_one_group(apart, tmp_path, backend):
    check(apart, run_job(apart, tmp_path, backend))


@pytest.mark.skipif(not ipv6_is_on(), reason="the kernel has IPv6 switched off")
@pytest.mark.parametrize("backend", first(NAMES, 0, ci=1))
def test_two_agents_of_torchrun_make_one_group_over_ipv6(permitted, tmp_path, backend):
    with Network(2, ipv4=False) as network:
        check(network, run_job(network, tmp_path, backend))
