"""Which carrier the ranks of a group agree on, where nothing says one: UCX if all want it, TCP if all may, or
Gloo.

All ranks are on this host, and OCCL_NODE makes each a node.
"""

from __future__ import annotations

import os
import re
import subprocess
from datetime import timedelta

import pytest
import torch.distributed as dist

from occl import interfaces
from occl._C import _set_prepare_ucx
from occl.distributed import ucx
from tests.hosts.launch import NO_UCX, OVER_UCX, options_for
from tests.support.checks import assert_works
from tests.support.cpp_build import compiler

with_ucx = pytest.mark.skipif(bool(NO_UCX), reason=NO_UCX)


def use_library(library: str) -> None:
    """Makes this process open another library of UCX."""

    def prepare(one_network: bool, asked: bool):
        name, _, *rest = ucx.prepare(one_network, asked)
        return name, [library], *rest

    _set_prepare_ucx(prepare)


WISH = (-1, "UCX_TLS", "tcp")
"""A variable that makes UCX the first choice of hosts without RDMA devices."""


def meet(rank, n, device, *, file, backend="", libraries=(), variables=(WISH,), timeout=30):
    """Makes a group of n nodes, and sees that messages pass.

    Args:
        libraries: (rank, library) of ranks that open another one.
        variables: (rank, name, value) of one that has another environment. Rank -1: of all.
        timeout: seconds.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["OCCL_NODE"] = f"node {rank}"
    for other, library in libraries:
        if rank == other:
            use_library(library)
    for those, name, value in variables:
        if those in (rank, -1):
            os.environ[name] = value
    options = options_for(backend)
    store = dist.FileStore(file, n)
    dist.init_process_group(
        "occl", store=store, rank=rank, world_size=n, timeout=timedelta(seconds=timeout), pg_options=options
    )
    assert_works()
    dist.destroy_process_group()


def refused(rank, n, device, **params):
    with pytest.raises(RuntimeError) as caught:
        meet(rank, n, device, **params)
    return str(caught.value)


def carrier(logging, nodes=3, **params) -> str:
    """What rank 0 says of the carrier of a group of nodes with a rank each."""
    with logging.fresh(nodes) as team:
        team.run(meet, file=team.source.new_file(), **params)
        (said,) = re.findall(r"\. Between them: (.*)", team.members[0].output())
        return said


@pytest.fixture(scope="module")
def other_version(tmp_path_factory) -> str:
    """A library that is the system's but for its version."""
    folder = tmp_path_factory.mktemp("ucx")
    source, library = folder / "version.cpp", folder / "libucp.so"
    source.write_text(
        'extern "C" void ucp_get_version(unsigned* a, unsigned* b, unsigned* c) { *a = 1, *b = 99, *c = 0; }'
    )
    command = [*compiler().split(), "-shared", "-fPIC", "-o", str(library), str(source)]
    # Only what the system has can be linked; a library of a package has no such name.
    done = subprocess.run([*command, "-Wl,--no-as-needed", "-l:libucp.so.0"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip("the system has no UCX (Debian: libucx0)")
    return str(library)


def test_a_users_variable_is_obeyed_under_every_name_of_its_setting(monkeypatch):
    names = {"TCP_RX_SEG_SIZE", "RX_SEG_SIZE"}
    monkeypatch.delenv("UCX_TCP_RX_SEG_SIZE", raising=False)
    assert names <= dict(ucx.wishes()).keys()
    monkeypatch.setenv("UCX_TCP_RX_SEG_SIZE", "16k")
    assert not names & dict(ucx.wishes()).keys() and "TX_SEG_SIZE" in dict(ucx.wishes())


@pytest.fixture
def without_adapters() -> None:
    if found := interfaces.adapters():
        pytest.skip(f"this host has RDMA devices: {', '.join(found)}")


@pytest.mark.parametrize(
    ("addresses", "chosen"),
    [
        (["10.0.0.1", "fe80::1"], "10.0.0.1"),
        (["fe80::1", "fd00::1"], "fd00::1"),
        (["169.254.0.1", "10.0.0.1"], "169.254.0.1"),
        (["fe80::1"], "fe80::1"),
        ([], ""),
    ],
)
def test_an_address_that_means_the_same_on_every_host_comes_first(addresses, chosen):
    assert interfaces.reachable(addresses) == chosen


@with_ucx
def test_ucx_is_taken_where_all_ranks_have_it_and_a_variable_asks_for_it(logging):
    assert carrier(logging) == "ucx over lo (127.0.0.1)"


def test_tcp_is_taken_where_there_are_no_rdma_devices(logging, without_adapters):
    said = carrier(logging, variables=())
    assert re.match(
        r"tcp over lo \(127.0.0.1\), because rank 0 \(pid \d+, host [^)]+\): this host has no RDMA device$",
        said,
    ), said


def test_a_wish_for_another_transport_of_gloo_is_not_answered_with_tcp(logging, without_adapters):
    """As TCP_TLS, which encrypts and which few builds of PyTorch have: its error is Gloo's."""
    wish = [(2, "GLOO_DEVICE_TRANSPORT", "unknown")]
    with logging.fresh(3) as team:
        texts = team.run(refused, file=team.source.new_file(), variables=wish)
    assert all("unsupported gloo device" in text for text in texts), texts


@with_ucx
def test_tcp_is_taken_where_a_rank_has_no_ucx_and_the_rank_is_named(logging):
    said = carrier(logging, libraries=[(1, "no_such_library.so")])
    assert re.match(r"tcp over lo \(127.0.0.1\), because rank 1 \(pid \d+, host [^)]+\): UCX cannot", said), (
        said
    )
    assert "no_such_library.so" in said


def test_tcp_is_taken_where_no_rank_has_ucx(logging):
    said = carrier(logging, libraries=[(rank, "no_such_library.so") for rank in range(3)])
    assert said.startswith("tcp over lo (127.0.0.1), because rank 0 (")


@with_ucx
def test_tcp_is_taken_where_ranks_have_different_versions(logging, other_version):
    said = carrier(logging, libraries=[(2, other_version)])
    assert re.search(r"because rank 0 \([^)]+\) has UCX 1\.\d+, and rank 2 \([^)]+\) has UCX 1\.99$", said), (
        said
    )


@with_ucx
def test_tcp_is_taken_where_a_rank_can_reach_no_other_over_ucx(logging):
    said = carrier(logging, variables=[WISH, (1, "UCX_TLS", "self")])
    assert said.startswith("tcp over lo (127.0.0.1), because rank "), said
    assert "could not connect through ucx over lo" in said, said


@with_ucx
def test_ranks_whose_neighbours_could_not_connect_wait_for_no_timeout(logging):
    """Rank 1 reaches nobody. Rank 3 waits for rank 2, which has given up, and learns it from the store."""
    said = carrier(logging, 5, variables=[WISH, (1, "UCX_TLS", "self")], timeout=3600)
    assert said.startswith("tcp over lo (127.0.0.1), because rank "), said


@with_ucx
def test_a_rank_without_ucx_is_an_error_where_the_options_ask_for_it(logging):
    with logging.fresh(3) as team:
        params = {"backend": OVER_UCX, "libraries": [(1, "no_such_library.so")]}
        texts = team.run(refused, file=team.source.new_file(), **params)
    for rank, text in enumerate(texts):
        assert "UCX cannot be opened" in text and (rank == 1 or "rank 1 (pid" in text), text


@with_ucx
def test_different_versions_are_an_error_where_the_options_ask_for_ucx(logging, other_version):
    with logging.fresh(3) as team:
        params = {"backend": OVER_UCX, "libraries": [(2, other_version)]}
        texts = team.run(refused, file=team.source.new_file(), **params)
    for text in texts:
        assert "has UCX 1.99: install the same version on all hosts" in text, text
