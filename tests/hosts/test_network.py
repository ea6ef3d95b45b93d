"""What goes over the network: how many bytes, over IPv6, and over slow links."""

from __future__ import annotations

import ipaddress
import os
import subprocess

import pytest
import torch
import torch.distributed as dist

from tests.hosts.launch import BACKENDS, CARRIERS, SHAPES, meet, skip_without_library
from tests.hosts.namespaces import Network, ipv6_is_on
from tests.support.checks import assert_works
from tests.support.thinning import first

MEBIBYTES, CALLS = 16, 4
MOST_SENT = dict.fromkeys(CARRIERS, 1.1) | {"gloo": 1.6}
"""Bytes that a host of two ranks sends in an all_reduce with another such host, over the bytes of the tensor.
Gloo's ring passes 2 * 3/4 of the tensor from each rank to the next one, and one rank of each host has its
next one on the other host. A host's own sum is as long as the tensor, and need leave the host only once."""
LEAST_SENT = 0.95
"""Each host must learn the other's sum. Less was not sent over the network."""


def all_reduce_some_mebibytes(rank, n, device, *, calls):
    for call in range(calls):
        t = torch.full((MEBIBYTES << 18,), rank + call, dtype=torch.float32, device=device)
        dist.all_reduce(t)
        assert (t == sum(range(n)) + n * call).all()


def works(rank, n, device):
    assert_works(device)
    dist.barrier()


def works_for_large_tensors(rank, n, device):
    """More than the buffers of the network hold at a time."""
    assert_works(device)
    all_reduce_some_mebibytes(rank, n, device, calls=1)
    out = torch.empty(n, 1 << 20, device=device)
    dist.all_to_all_single(out, torch.full((n, 1 << 20), rank, dtype=torch.float32, device=device))
    assert (out == torch.arange(n, device=device).unsqueeze(1)).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_all_reduce_sends_no_more_bytes_between_hosts_than_it_should(hosts, backend):
    hosts.run_on("2+2", backend, works)  # the connections are made
    sharing = hosts.network.hosts[:2]
    before = [host.bytes_sent() for host in sharing]
    hosts.run_on("2+2", backend, all_reduce_some_mebibytes, calls=CALLS)
    after = [host.bytes_sent() for host in sharing]
    shares = [(now - then) / (CALLS * MEBIBYTES << 20) for now, then in zip(after, before, strict=True)]
    assert all(LEAST_SENT <= share <= MOST_SENT[backend] for share in shares), shares


@pytest.mark.parametrize("shape", first(SHAPES))
@pytest.mark.parametrize("backend", BACKENDS)
def test_results_are_right_over_links_of_a_gigabit(hosts, backend, shape):
    with Network(3) as network:
        for host in network.hosts:
            host.limit("1gbit")
        with hosts.fresh_on(shape, network).meet(backend) as team:
            team.run(works_for_large_tensors)


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_slow_host_slows_the_others_and_changes_nothing_else(hosts, apart, backend):
    apart.hosts[1].limit("200mbit")
    with hosts.fresh_on("2+2", apart).meet(backend) as team:
        team.run(works_for_large_tensors)


@pytest.mark.skipif(not ipv6_is_on(), reason="the kernel has IPv6 switched off")
@pytest.mark.parametrize("shape", first(SHAPES))
@pytest.mark.parametrize("backend", BACKENDS)
def test_hosts_that_have_only_ipv6_form_a_group(hosts, backend, shape):
    with Network(3, ipv4=False) as network, hosts.fresh_on(shape, network).meet(backend) as team:
        team.run(works)


def addresses_in_use() -> set[str]:
    """This host's addresses at which its sockets listen or are connected."""
    shown = subprocess.run(["ss", "-Htan"], capture_output=True, text=True, check=True).stdout
    places = {line.split()[3].rpartition(":")[0].strip("[]") for line in shown.splitlines()}
    found = {ipaddress.ip_address(place.partition("%")[0]) for place in places - {"*", "0.0.0.0", "::"}}
    return {str(getattr(address, "ipv4_mapped", None) or address) for address in found}


def finds_the_way(rank, n, device, *, backend, address, port):
    """To the other host, without being told the interface."""
    del os.environ["GLOO_SOCKET_IFNAME"]
    meet(rank, n, device, backend=backend, address=address, port=port, timeout=30)
    works_for_large_tensors(rank, n, device)
    return addresses_in_use()


@pytest.mark.parametrize("backend", CARRIERS)
def test_an_interface_that_leads_to_no_other_host_is_not_used(hosts, apart, backend):
    skip_without_library(backend)
    for host in apart.hosts:
        host.add_interfaces_to_nowhere()
    with hosts.fresh_on("2+1", apart) as team:
        place = {"address": apart.hosts[0].address, "port": apart.new_port()}
        found = team.run(finds_the_way, backend=backend, **place)
    for addresses, host in zip(found, team.host_of, strict=True):
        assert addresses and addresses <= {host.address4, host.address6}
