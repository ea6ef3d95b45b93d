"""The sampler of the lesson is torch.utils.data.DistributedSampler, for every small combination."""

import itertools
import sys
from pathlib import Path

import pytest
from torch.utils.data import BatchSampler, DistributedSampler

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "ddp_from_scratch"))
from sampler import ShardedSampler


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_small_combination_has_the_indices_of_distributed_sampler(shuffle, drop_last):
    settings = {"shuffle": shuffle, "drop_last": drop_last}
    for samples, ranks, seed in itertools.product(range(23), range(1, 8), (0, 7)):
        data = range(samples)
        for rank in range(ranks):
            mine = ShardedSampler(data, ranks, rank, seed=seed, **settings)
            theirs = DistributedSampler(data, ranks, rank, seed=seed, **settings)
            for epoch in (0, 1, 5):
                mine.set_epoch(epoch)
                theirs.set_epoch(epoch)
                where = (samples, ranks, rank, seed, epoch)
                assert (list(mine), len(mine)) == (list(theirs), len(theirs)), where


def test_without_set_epoch_every_epoch_has_the_same_order_and_with_it_another():
    sampler = ShardedSampler(range(50), 2, 1)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first


def test_the_batches_of_all_ranks_are_the_batch_of_one():
    ranks, share = 3, 4
    shards = [list(BatchSampler(ShardedSampler(range(40), ranks, r), share, True)) for r in range(ranks)]
    alone = list(BatchSampler(ShardedSampler(range(40), 1, 0), ranks * share, True))
    for parts, batch in zip(zip(*shards, strict=True), alone, strict=True):
        assert sorted(itertools.chain(*parts)) == sorted(batch)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_does_not_exist(rank):
    with pytest.raises(ValueError, match=f"there is no rank {rank} among 2"):
        ShardedSampler(range(4), 2, rank)
