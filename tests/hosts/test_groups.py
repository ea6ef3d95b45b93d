"""Messages, objects, barriers and sub-groups over several hosts."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from tests.distributed.test_capabilities import estimated
from tests.hosts.launch import CASES, OUR_CASES, SHAPES, placement
from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.worker import listen

COUNTS = (1, 1000, 1 << 20)


def message(source: int, to: int, count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int64) * 8 + source * 100 + to


def from_each_to_each(rank, n, device):
    """Blocking, in an order in which both ends of every message call."""
    for count in COUNTS:
        for source in range(n):
            for to in range(n):
                if source == to:
                    continue
                if rank == source:
                    dist.send(message(source, to, count).to(device), to)
                if rank == to:
                    t = torch.zeros(count, dtype=torch.int64, device=device)
                    assert dist.recv(t, source) == source
                    assert torch.equal(t.cpu(), message(source, to, count)), (source, to, count)


def all_at_once(rank, n, device):
    """Every rank sends to every other and receives from it, without waiting in between."""
    for count in COUNTS:
        others = [other for other in range(n) if other != rank]
        given = {to: message(rank, to, count).to(device) for to in others}
        taken = {source: torch.zeros(count, dtype=torch.int64, device=device) for source in others}
        calls = [dist.P2POp(dist.isend, given[to], to) for to in others]
        calls += [dist.P2POp(dist.irecv, taken[source], source) for source in others]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        for source, t in taken.items():
            assert torch.equal(t.cpu(), message(source, rank, count)), (source, count)


def tags_choose(rank, n, device):
    """The first rank's messages to the last one are taken in another order than they were sent."""
    tags = [3, 1, 2]
    if rank == 0:
        pending = [dist.isend(message(0, tag, 1000).to(device), n - 1, tag=tag) for tag in tags]
        for work in pending:
            work.wait()
    if rank == n - 1:
        for tag in sorted(tags):
            t = torch.zeros(1000, dtype=torch.int64, device=device)
            dist.recv(t, 0, tag=tag)
            assert torch.equal(t.cpu(), message(0, tag, 1000)), tag


def from_anyone(rank, n, device):
    if rank == 0:
        seen = set()
        for _ in range(n - 1):
            t = torch.zeros(1000, dtype=torch.int64, device=device)
            source = dist.recv(t)
            assert torch.equal(t.cpu(), message(source, 0, 1000)), source
            seen.add(source)
        assert seen == set(range(1, n))
    else:
        dist.send(message(rank, 0, 1000).to(device), 0)


def thing(rank: int) -> dict:
    return {"rank": rank, "payload": bytes([rank]) * 70_000 * rank, "text": "é" * rank}


def objects(rank, n, device):
    everyone = [thing(r) for r in range(n)]
    got = [None] * n
    dist.all_gather_object(got, thing(rank))
    assert got == everyone
    for root in range(n):
        got = [None] * n if rank == root else None
        dist.gather_object(thing(rank), got, dst=root)
        assert got == (everyone if rank == root else None)
        got = [thing(root), "second"] if rank == root else [None, None]
        dist.broadcast_object_list(got, src=root, device=torch.device(device))
        assert got == [thing(root), "second"]
        got = [None]
        dist.scatter_object_list(got, everyone if rank == root else None, src=root)
        assert got == [thing(rank)]


def barrier(rank, n, device):
    """When this rank came and when it left. Rank n - 1 comes when the test says so."""
    if rank == n - 1:
        listen()
    came = time.monotonic_ns()
    dist.barrier()
    return came, time.monotonic_ns()


def monitored_barrier(rank, n, device):
    dist.group.WORLD.monitored_barrier(timedelta(seconds=30), wait_all_ranks=True)


def sum_of(group, device, count) -> int:
    t = torch.full((count,), dist.get_rank() + 1, device=device)
    dist.all_reduce(t, group=group)
    assert (t == t[0]).all()
    return int(t[0])


def groups_in_turn(rank, n, device, *, places):
    """A group on each host, one across all hosts, one of two ranks of different hosts: used alternately."""
    members = [[r for r in range(n) if places[r] == host] for host in sorted(set(places))]
    firsts = [ranks[0] for ranks in members]
    members += [firsts, [n - 1, 0], list(range(n))]
    groups = [(ranks, dist.new_group(ranks)) for ranks in members]
    for count in (1, 1000, 100_000):
        for _ in range(3):
            for ranks, group in groups:
                if rank in ranks:
                    assert sum_of(group, device, count) == sum(r + 1 for r in ranks), (ranks, count)
            assert sum_of(None, device, count) == n * (n + 1) // 2, count
    for ranks, group in groups:
        if rank in ranks:
            assert_works(device, group)
            dist.destroy_process_group(group)


def groups_at_once(rank, n, device, *, places):
    """Operations of a group on this host and of the group of all ranks are in flight together."""
    members = [[r for r in range(n) if places[r] == host] for host in sorted(set(places))]
    local = [dist.new_group(ranks) for ranks in members][places[rank]]
    here, everywhere = (torch.full((100_000,), rank + 1, device=device) for _ in range(2))
    work = [dist.all_reduce(everywhere, async_op=True), dist.all_reduce(here, group=local, async_op=True)]
    for pending in work:
        pending.wait()
    assert (here == sum(r + 1 for r in members[places[rank]])).all()
    assert (everywhere == n * (n + 1) // 2).all()


def meshes(rank, n, device):
    """Two hosts of two ranks as a mesh: a dimension within hosts, and one between them."""
    mesh = dist.device_mesh.init_device_mesh(device, (2, 2), mesh_dim_names=("between", "within"))
    assert sum_of(mesh.get_group("within"), device, 1000) == (3 if rank < 2 else 7)
    assert sum_of(mesh.get_group("between"), device, 1000) == (4 if rank % 2 == 0 else 6)


def cores_of(rank, n, device):
    """Of the group, and of one of ranks on two hosts: (ranks on this machine, cores that they may use)."""
    two = dist.new_group([0, n - 1])
    mine = rank in (0, n - 1)
    found = backend()._ranks_and_cores(), backend(group=two)._ranks_and_cores() if mine else None
    if mine:
        dist.destroy_process_group(two)
    return *found, len(os.sched_getaffinity(0))


def a_group_again_and_again(rank, n, device):
    for _ in range(5):
        group = dist.new_group()
        assert sum_of(group, device, 1000) == n * (n + 1) // 2
        dist.destroy_process_group(group)


def no_shared_memory(rank, n, device):
    """Symmetric memory is of one host. A group of the ranks there has it."""
    group = dist.group.WORLD
    memory = symm_mem.empty(4, device=device).fill_(rank)
    with pytest.raises(NotImplementedError, match="on several hosts, and symmetric memory needs one"):
        symm_mem.rendezvous(memory, group)
    assert_works(device)
    here, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]])
    handle = symm_mem.rendezvous(memory, here)
    handle.barrier()
    members = dist.get_process_group_ranks(here)
    assert [int(handle.get_buffer(i, (1,), torch.float32)) for i in range(len(members))] == members
    handle.barrier()


BODIES = [
    from_each_to_each, all_at_once, tags_choose, from_anyone, objects, monitored_barrier,
    a_group_again_and_again,
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("backend, device", CASES)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_messages_objects_and_new_groups_work_between_hosts(hosts, body, backend, device, shape):
    hosts.run_on(shape, backend, body, device)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("backend, device", CASES)
def test_nobody_leaves_a_barrier_before_all_hosts_have_come(hosts, backend, device, shape):
    with hosts.fresh_on(shape).meet(backend) as team:
        team.start(barrier, device)
        for rank in range(team.size - 1):
            team.wait_until_asleep(rank)
        team.say(team.size - 1, "come")
        times = [outcome.result for outcome in team.finish()]
    assert max(came for came, _ in times) <= min(left for _, left in times)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("backend, device", CASES)
def test_groups_within_and_across_hosts_are_used_in_turn(hosts, backend, device, shape):
    hosts.run_on(shape, backend, groups_in_turn, device, places=placement(shape))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("backend, device", CASES)
def test_groups_within_and_across_hosts_have_operations_in_flight_at_once(hosts, backend, device, shape):
    hosts.run_on(shape, backend, groups_at_once, device, places=placement(shape))


@pytest.mark.parametrize("backend, device", OUR_CASES)
def test_symmetric_memory_is_of_one_host(hosts, backend, device):
    hosts.run_on("2+2", backend, no_shared_memory, device)


@pytest.mark.parametrize("backend, device", CASES)
def test_a_mesh_has_a_dimension_within_hosts_and_one_between_them(hosts, backend, device):
    hosts.run_on("2+2", backend, meshes, device)


@pytest.mark.parametrize("device", DEVICES)
def test_durations_are_estimated_without_running(hosts, device):
    hosts.run_on("2+2", "occl", estimated, device)


def test_ranks_of_other_nodes_on_this_machine_share_its_cores(hosts):
    """These hosts are network namespaces: no rank may spin as if the cores were its node's alone."""
    found = hosts.run_on("2+2", "occl", cores_of)
    for rank, (whole, two, cores) in enumerate(found):
        assert whole == (4, cores)
        assert two == ((2, cores) if rank in (0, 3) else None)
