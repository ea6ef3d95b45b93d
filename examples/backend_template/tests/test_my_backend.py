"""First tests of a backend; whether it conforms, occl.conformance tells."""

import my_backend  # noqa: F401  (registers it, in pytest's process and in the ranks)
import pytest
import torch
import torch.distributed as dist


@pytest.mark.ranks([1, 2, 3], backend="my_backend")
def test_everybody_has_the_sum(rank, world_size):
    t = torch.tensor([1.0, rank])
    dist.all_reduce(t)
    assert t.tolist() == [world_size, sum(range(world_size))]


@pytest.mark.ranks(2, backend="my_backend")
def test_different_calls_are_an_error_on_every_rank(rank):
    with pytest.raises(dist.DistBackendError, match="rank 1 called barrier where rank 0 called all_reduce"):
        dist.all_reduce(torch.ones(2)) if rank == 0 else dist.barrier()


@pytest.mark.ranks(2, backend="my_backend")
def test_what_is_missing_is_refused(rank):
    with pytest.raises(RuntimeError, match="my_backend does not support gather"):
        dist.gather(torch.ones(2), [torch.ones(2), torch.ones(2)] if rank == 0 else None)
