"""Batches are cut as numpy.array_split cuts them, whatever their nesting."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import numpy
import pytest
import torch

from torch_occl.replicas import shard_batch

Point = namedtuple("Point", "x y")


@pytest.mark.parametrize("size", range(1, 10))
def test_every_small_size_and_number_is_cut_like_numpy(size):
    batch = torch.arange(size * 3).view(size, 3)
    for n in range(1, size + 1):
        shards = shard_batch(batch, n)
        expected = numpy.array_split(batch.numpy(), n)
        assert [shard.tolist() for shard in shards] == [part.tolist() for part in expected]
        assert all(s.untyped_storage().data_ptr() == batch.untyped_storage().data_ptr() for s in shards)


def test_nesting_stays_and_what_is_no_tensor_goes_everywhere():
    a, b, c = torch.arange(5), torch.arange(10).view(5, 2), torch.arange(5.0)
    batch = {"pair": (a, [b, "name"]), "point": Point(c, None), "order": OrderedDict(z=a, n=3)}
    first, second = shard_batch(batch, 2)
    assert type(first["point"]) is Point and type(first["order"]) is OrderedDict
    assert first["pair"][0].tolist() == [0, 1, 2] and second["pair"][0].tolist() == [3, 4]
    assert second["pair"][1][0].tolist() == [[6, 7], [8, 9]] and second["pair"][1][1] == "name"
    assert second["point"].x.tolist() == [3.0, 4.0] and second["point"].y is None
    assert first["order"]["n"] == second["order"]["n"] == 3


def test_bad_batches():
    with pytest.raises(ValueError, match="the batch has 2 samples, which are too few for 3 chunks"):
        shard_batch((torch.ones(2), torch.ones(2)), 3)
    with pytest.raises(ValueError, match="the batch has 0 samples"):
        shard_batch(torch.ones(0), 1)
    with pytest.raises(ValueError, match="must be at least 1, not -1"):
        shard_batch(torch.ones(2), -1)
    with pytest.raises(ValueError, match=r"batch\['y'\]\[1\] has 3 samples, and batch\['x'\] 2"):
        shard_batch({"x": torch.ones(2), "y": [1, torch.ones(3)]}, 2)
    with pytest.raises(ValueError, match=r"batch\[0\] has no dimensions"):
        shard_batch([torch.tensor(1.0)], 1)
    with pytest.raises(ValueError, match="the batch holds no tensor"):
        shard_batch([1, "two"], 1)
