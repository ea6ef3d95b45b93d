"""With scarce or missing resources the package works, or its error names the limit to raise."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import re
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.support import worker
from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.worker import join

from . import limits

STORES: list[dist.Store] = []
"""They live as long as the process: a FileStore aborts it if there is no descriptor for its destructor."""


def outcome_of(rank: int, n: int, device: str, store: str) -> str:
    """Makes a group and uses it: "works", or the error."""
    try:
        STORES.append(dist.FileStore(store, n))
        dist.init_process_group(
            "occl", store=STORES[-1], rank=rank, world_size=n, timeout=timedelta(seconds=2)
        )
        t = torch.ones(20 << 20, device=device)
        dist.all_reduce(t)
        assert (t == n).all()
        assert_works(device)
        dist.destroy_process_group()
    except (dist.DistBackendError, torch.OutOfMemoryError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "works"


def limited(rank, n, device, *, store, lower, arguments, on):
    if rank in on:
        getattr(limits, lower)(*arguments)
    return outcome_of(rank, n, device, store)


def outcomes(pool, lower, *arguments, device="cpu", on=(0, 1)):
    """Of two ranks, of which those in `on` have the limit."""
    with pool.fresh(2) as team:
        store = team.source.new_file()
        return team.run(limited, device, store=store, lower=lower, arguments=arguments, on=on)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", ["64m", "absent"])
def test_shared_memory_of_a_container_is_not_used(pool, size, device):
    assert outcomes(pool, "small_shared_folder", size, device=device) == ["works"] * 2


@pytest.mark.parametrize("device", DEVICES)
def test_no_memory_need_be_locked(pool, device):
    assert outcomes(pool, "no_locked_memory", device=device) == ["works"] * 2


@pytest.mark.parametrize("device", DEVICES)
def test_few_descriptors_are_enough_or_the_error_says_what_to_raise(pool, device):
    seen = set()
    for more in (1, 4, 8, 24):
        limited, other = outcomes(pool, "few_descriptors", more, device=device, on=(0,))
        seen |= {limited == "works", other == "works"}
        assert re.search(r"^works$|ulimit -n|Too many open files", limited), (more, limited)
        # The other rank may be told by the store that this one did not come, or see it leave.
        assert re.search(r"^works$|\brank 0\b|ulimit -n", other), (more, other)
    assert seen == {True, False}, "the limits tried are all too high, or all too low"


@pytest.mark.parametrize("device", DEVICES)
def test_little_address_space_is_enough_or_the_error_says_what_to_raise(pool, device):
    seen = set()
    for more in (1 << 20, 16 << 30, 1 << 46):
        for text in outcomes(pool, "little_address_space", more, device=device, on=(0,)):
            seen.add(text == "works")
            told = re.search(
                r"ulimit -v|allocate memory|Resource temporarily|rank|bad_alloc|out of memory", text
            )
            assert text == "works" or told, (more, text)
    assert seen == {True, False}, "the limits tried are all too high, or all too low"


def within_16_gib(rank, n, device, *, store):
    """A limit that all ranks share, as `ulimit -v` in the shell that starts them; torch's own maps count."""
    limits.address_space(16 << 30)
    join(rank, n, device, store=store, timeout=60.0)
    for count in (1, 10_000, 5 << 20):
        t = torch.ones(count, device=device)
        dist.all_reduce(t)
        assert (t == n).all()
    assert_works(device)
    groups = [dist.new_group(backend="occl") for _ in range(3)]
    for group in groups:
        dist.all_reduce(torch.ones(100_000, device=device), group=group)
    large = torch.ones(256 << 20, dtype=torch.uint8, device=device)  # more than a region
    dist.all_reduce(large, dist.ReduceOp.MAX)
    return "VmSize" in Path("/proc/self/status").read_text()


@pytest.mark.parametrize("device", DEVICES)
def test_four_ranks_work_within_16_gib_of_address_space(pool, device):
    with pool.fresh(4) as team:
        assert team.run(within_16_gib, device, store=team.source.new_file()) == [True] * 4


def test_an_address_space_that_is_too_small_is_an_error_that_says_what_to_do(pool):
    texts = outcomes(pool, "little_address_space", 20 << 20, device="cpu")
    wanted = r"\(the limit of address space, ulimit -v, is \d+ MiB, and \d+ MiB are in use: raise it"
    told = [bool(re.search(wanted, text)) for text in texts]
    assert any(told), texts
    for text, advised in zip(texts, told, strict=True):
        assert advised or "left the group" in text or "exited" in text, texts


@pytest.mark.parametrize("device", DEVICES)
def test_a_small_container_is_an_error_at_allocation_that_says_so(pool, device):
    used = 8 << 20
    assert outcomes(pool, "small_container", used + (512 << 20), used, device=device) == ["works"] * 2
    too_small = outcomes(pool, "small_container", used + (400 << 10), used, device=device)
    assert "works" not in too_small, too_small
    assert any(re.search(r"in this container: give it more|out of memory", text) for text in too_small), (
        too_small
    )


def test_without_pidfd_the_error_says_which_kernel_is_needed_and_which_sandboxes_lack_it(pool):
    for text in outcomes(pool, "without_call", "pidfd_open"):
        assert re.search(
            r"pidfd_open failed \(Linux 5.3 or newer is needed; gVisor, .* run outside of", text
        ), text


def test_where_a_sandbox_forbids_pidfd_the_error_says_what_to_allow(pool):
    for text in outcomes(pool, "without_call", "pidfd_open", errno.EPERM):
        assert re.search(r"pidfd_open failed \(a seccomp profile .* allow pidfd_open and pidfd_send", text), (
            text
        )


def test_without_memfd_the_error_says_so(pool):
    for text in outcomes(pool, "without_call", "memfd_create"):
        assert re.search(r"memfd_create.* failed .the kernel is too old, or a sandbox", text), text


def test_a_kernel_that_knows_no_write_seal_is_told_what_is_needed(pool):
    arguments = ("fcntl", errno.EINVAL, 2, limits.F_SEAL_FUTURE_WRITE)
    for text in outcomes(pool, "without_call", *arguments):
        assert re.search(r"cannot seal .*\(Linux 5.1 or newer is needed\)", text), text


@pytest.mark.parametrize("device", DEVICES)
def test_a_kernel_that_knows_no_executable_seal_is_good_enough(pool, device):
    arguments = ("memfd_create", errno.EINVAL, 1, limits.MFD_NOEXEC_SEAL)
    assert outcomes(pool, "without_call", *arguments, device=device) == ["works"] * 2


def test_without_threads_the_error_says_so(pool):
    """No thread can be made: RLIMIT_NPROC and a container's pids.max answer like this."""
    for text in outcomes(pool, "without_threads"):
        assert re.search(r"cannot start the thread .*ulimit -u.*Resource temporarily unavailable", text), text


def without_threads_later(rank, n, device, *, store):
    """The group is there; then rank 0 has no thread left for an operation without a waiting caller."""
    join(rank, n, device, store=store, timeout=60.0)
    t = torch.ones(1 << 20, device=device)
    try:
        if rank == 0:
            limits.without_threads()
            future = dist.all_reduce(t, async_op=True).get_future()
            worker.tell("called")
            future.wait()
        else:
            worker.listen()
            dist.all_reduce(t)
    except RuntimeError as error:
        return str(error)
    return "works"


@pytest.mark.parametrize("device", DEVICES)
def test_without_a_thread_in_the_background_operations_fail_on_all_ranks(pool, device):
    with pool.fresh(2) as team:
        team.start(without_threads_later, device, store=team.source.new_file())
        assert team.hear(0) == "called"
        team.say(1, "go")
        for outcome in team.finish():
            assert re.search(r"rank 0 aborted .*cannot start the thread .*ulimit -u", outcome.result), outcome


# ---- again and again -----------------------------------------------------------------------------------


def held() -> dict[str, int]:
    """Descriptors, threads, mappings, and memory in KiB: of this process, and of its shared regions.

    malloc keeps freed tensors for later, now one and now three of them: it returns them first.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE))
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "shared mappings": Path("/proc/self/maps").read_text().count("/memfd:"),
        "KiB": int(status["RssAnon"]),
        "shared KiB": int(status["RssShmem"]),
    }


def groups_again_and_again(rank, n, device, *, folder, groups):
    """Half of them, a look, the other half, another look."""
    gc.freeze()
    looks = []
    for number in range(groups):
        join(rank, n, device, store=f"{folder}-{number}", timeout=60.0)
        dist.all_reduce(torch.ones(100, device=device))
        dist.all_reduce(torch.ones(100_000, device=device))
        dist.destroy_process_group()
        if number + 1 in (groups // 2, groups):
            looks.append(held())
    return looks


def operations_again_and_again(rank, n, device, *, operations):
    gc.freeze()
    small, large = torch.ones(1, device=device), torch.ones(30_000, device=device)
    looks = []
    for _half in range(2):
        for number in range(operations // 2):
            if number % 50 == 0:
                work = dist.all_reduce(large, dist.ReduceOp.MAX, async_op=True)
                backend(device).barrier().wait()
                work.wait()
            elif number % 50 == 1:
                dist.batch_isend_irecv([dist.P2POp(dist.isend, small, (rank + 1) % n)])
                dist.recv(small, (rank - 1) % n)
            else:
                dist.all_reduce(small, dist.ReduceOp.MAX)
        looks.append(held())
    assert small.item() == 1 and (large == 1).all()
    return looks


def assert_flat(results: list, kib: int, shared_kib: int) -> None:
    for before, after in results:
        for what in ("descriptors", "threads", "shared mappings"):
            assert after[what] == before[what], (before, after)
        assert after["KiB"] - before["KiB"] <= kib, (before, after)
        assert after["shared KiB"] - before["shared KiB"] <= shared_kib, (before, after)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "groups",
    [
        300,
        pytest.param(2_000, marks=pytest.mark.full),
        pytest.param(10_000, marks=[pytest.mark.full, pytest.mark.matrix]),
    ],
)
def test_groups_made_and_destroyed_leave_nothing(pool, groups, device):
    with pool.fresh(2) as team:
        results = team.run(
            groups_again_and_again, device, folder=team.source.new_file(), groups=groups, limit=1800.0
        )
    # 512 bytes of each group are kept for ever: its header, which peers may look at whenever they like. A
    # rank has mapped its own and its peer's. And the 400 KB of a group may lie on pages not touched before.
    assert_flat(results, kib=256 + groups // 2, shared_kib=1024 + groups // 2 + groups // 16)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "operations",
    [
        10_000,
        pytest.param(100_000, marks=pytest.mark.full),
        pytest.param(1_000_000, marks=[pytest.mark.full, pytest.mark.matrix]),
    ],
)
def test_operations_leave_nothing(pool, operations, device):
    with pool.fresh(2) as team:
        results = team.join().run(operations_again_and_again, device, operations=operations, limit=3600.0)
    assert_flat(results, kib=256, shared_kib=256)
