"""The warning about more threads of PyTorch than cores."""

import os
import warnings

import pytest
import torch
import torch.distributed as dist

from occl.distributed.threads import excess
from tests.support import worker


@pytest.mark.parametrize(
    ("ranks", "threads", "cores", "most"),
    [(2, 2, 2, 1), (2, 8, 8, 4), (3, 8, 8, 2), (8, 2, 2, 1), (1, 3, 2, 2), (2, 2, 3, 1)],
)
def test_more_threads_than_cores_are_told_with_the_number_that_fits(ranks, threads, cores, most):
    text = excess(ranks, threads, cores)
    assert text.startswith(f"{ranks} ranks on this host have {threads} threads of PyTorch each and {cores} ")
    assert f"OMP_NUM_THREADS={most} " in text and f"torch.set_num_threads({most})" in text
    assert not excess(ranks, most, cores)


@pytest.mark.parametrize(("ranks", "threads", "cores"), [(8, 1, 2), (2, 1, 2), (2, 4, 8), (1, 2, 2)])
def test_no_more_threads_than_cores_are_no_trouble(ranks, threads, cores):
    assert excess(ranks, threads, cores) == ""


def warned_of(rank, world_size, device, *, pinned, store):
    """The warnings about threads while this rank makes its first two groups."""
    if pinned:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        worker.join(rank, world_size, device, store=store, timeout=60.0)
        dist.new_group()
    found = [it for it in caught if "threads of PyTorch" in str(it.message)]
    return [(str(it.message), it.filename) for it in found]


def test_rank_0_warns_once_and_at_a_line_of_the_program(fresh):
    cores = len(os.sched_getaffinity(0))
    if cores == 1:
        pytest.skip("on one core, PyTorch has one thread")
    with fresh(2) as team:
        told = team.run(warned_of, pinned=False, store=team.source.new_file())
    assert told[0] == [(excess(2, cores, cores), worker.__file__)]
    assert told[1] == []


def test_ranks_that_are_bound_to_a_core_each_have_a_thread_each(fresh):
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("two ranks need two cores")
    with fresh(2) as team:
        assert team.run(warned_of, pinned=True, store=team.source.new_file()) == [[], []]
