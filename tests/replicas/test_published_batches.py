"""Published forms of parameters and batches do what today's do."""

import numpy
import pytest
import torch

from tests.replicas.published import groups_of, values, warnings_of
from torch_occl import replicas

from .test_step import Replicated

BY_GROUP = {
    "without a source": lambda groups, root: replicas.broadcast_params(dst_param_groups=groups, root=root),
    "None as the source": lambda groups, root: replicas.broadcast_params(None, groups, root),
    "all by name": lambda groups, root: replicas.broadcast_params(
        src_params=None, dst_param_groups=groups, root=root
    ),
    "the source is a group": lambda groups, root: replicas.broadcast_params(groups[root], groups, root),
    "the source is a group, the root left out": lambda groups, root: replicas.broadcast_params(
        iter(groups[root]), groups
    ),
}


@pytest.mark.parametrize("form", BY_GROUP)
@pytest.mark.parametrize("root", [0, 1, 2])
def test_the_root_counts_the_groups_where_the_source_is_one_of_them(form, root):
    groups = groups_of(3)
    pointers = [[p.data_ptr() for p in group] for group in groups]
    assert BY_GROUP[form](groups, root) is None
    assert values(groups) == [[root, root * 10]] * 3
    assert [[p.data_ptr() for p in group] for group in groups] == pointers


def test_the_root_counts_the_source_first_where_it_is_no_group():
    source, *groups = groups_of(3)
    replicas.broadcast_params(src_params=source, dst_param_groups=groups)
    assert values([source, *groups]) == [[0, 0]] * 3
    source, *groups = groups_of(3)
    replicas.broadcast_params(source, groups, root=1)
    assert values([source, *groups]) == [[1, 10]] * 3
    # Equal tensors are not the same tensors, and a part of a group is not the group.
    source, groups = groups_of(2)[1], groups_of(2)
    replicas.broadcast_params(source, groups, root=1)
    assert values([source, *groups]) == [[0, 0]] * 3
    groups = groups_of(2)
    replicas.broadcast_params(groups[1][:1], groups)
    assert values(groups) == [[1, 0], [1, 10]]


def test_bad_sources_and_roots_are_refused_and_nothing_is_copied():
    groups, call = groups_of(3), replicas.broadcast_params
    with pytest.raises(
        ValueError, match=r"^broadcast_params: src_params is group 1 .* root is group 2; leave out"
    ):
        call(groups[1], groups, root=2)
    with pytest.raises(ValueError, match=r"^broadcast_params: there is no root 3 among 3"):
        call(dst_param_groups=groups, root=3)
    with pytest.raises(ValueError, match=r"^broadcast_params: there is no root -1 among 3"):
        call(None, groups, -1)
    with pytest.raises(TypeError, match=r"^broadcast_params: root is not an integer but str"):
        call(dst_param_groups=groups, root="1")
    with pytest.raises(TypeError, match=r"^broadcast_params: dst_param_groups is missing: for each replica"):
        call(groups[0])
    with pytest.raises(TypeError, match=r"^broadcast_params: dst_param_groups is missing"):
        call(root=1)
    with pytest.raises(
        ValueError, match=r"^broadcast_params: dst_param_groups is empty, and without src_params"
    ):
        call(dst_param_groups=[])
    with pytest.raises(TypeError, match=r"^broadcast_params: expected a list of parameters .* got Parameter"):
        call(dst_param_groups=groups[0])
    with pytest.raises(ValueError, match=r"^broadcast_params: replica 1 has no parameters"):
        call(dst_param_groups=[groups[0], []])
    with pytest.raises(ValueError, match=r"parameter 1: replica 0 has shape \[2\], and replica 1 \[3\]"):
        call(dst_param_groups=[groups[0], [groups[1][0], torch.ones(3)]], root=1)
    assert values(groups) == [[0, 0], [1, 10], [2, 20]]


@pytest.mark.parametrize("size", range(1, 8))
def test_arrays_are_cut_into_views_as_numpy_does(size):
    batch = numpy.arange(size * 2).reshape(size, 2)
    for n in range(1, size + 1):
        shards = replicas.shard_batch(batch, n)
        expected = numpy.array_split(batch, n)
        assert all(type(shard) is numpy.ndarray for shard in shards)
        assert [shard.tolist() for shard in shards] == [part.tolist() for part in expected]
        assert all(numpy.shares_memory(shard, batch) for shard in shards)


def test_arrays_and_tensors_mix_and_count_alike():
    first, second = replicas.shard_batch({"x": numpy.arange(3), "y": [torch.arange(3), "name"]}, 2)
    assert first["x"].tolist() == first["y"][0].tolist() == [0, 1] and second["x"].tolist() == [2]
    assert second["y"][1] == "name"
    with pytest.raises(ValueError, match=r"batch\[1\] has 2 samples, and batch\[0\] 3"):
        replicas.shard_batch((numpy.ones(3), torch.ones(2)), 2)
    with pytest.raises(ValueError, match="shard_batch: batch has no dimensions"):
        replicas.shard_batch(numpy.array(1.0), 1)
    with pytest.raises(ValueError, match="the batch has 2 samples, which are too few for 3 chunks"):
        replicas.shard_batch(numpy.ones(2), num_shards=3)
    with pytest.raises(TypeError, match="shard_batch: the number of chunks is not an integer but float"):
        replicas.shard_batch(numpy.ones(2), 2.0)
    assert len(replicas.shard_batch((numpy.ones(2), torch.ones(2)), numpy.int64(2))) == 2


ARRAYS = {
    "float32": numpy.arange(4, dtype=numpy.float32),
    "int64": numpy.arange(4),
    "bool": numpy.array([True, False, True, False]),
    "complex64": numpy.arange(4, dtype=numpy.complex64),
    "read only": numpy.frombuffer(bytes(range(4)), dtype=numpy.uint8),
    "one element in memory": numpy.broadcast_to(numpy.float64(3), 4),
    "foreign byte order": numpy.arange(4, dtype=">f4"),
    "backwards": numpy.arange(4)[::-1],
    "strided": numpy.arange(8)[::2],
}


@pytest.mark.parametrize("name", ARRAYS)
def test_the_arrays_of_a_shard_arrive_as_tensors_on_the_device(name):
    replicated, seen, array = Replicated(2), {}, ARRAYS[name]

    def forward(i, params, shard):
        seen[i] = shard
        return sum(p.sum() for p in params)

    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else PyTorch warns of an array once in a process, perhaps in another test
    try:
        assert warnings_of(lambda: replicated.step(array, forward)) == []
    finally:
        torch.set_warn_always(before)
    assert [seen[i].device.index for i in range(2)] == [0, 1]
    assert [seen[i].tolist() for i in range(2)] == [array[:2].tolist(), array[2:].tolist()]
    assert seen[0].dtype == torch.from_numpy(array.astype(array.dtype.newbyteorder("="))).dtype


def test_arrays_that_tensors_cannot_hold_stay_arrays():
    replicated, seen = Replicated(2), {}

    def forward(i, params, shard):
        seen[i] = shard[1]
        return sum(p.sum() for p in params)

    replicated.step((torch.ones(3), numpy.array(["a", "b", "c"])), forward)
    assert [type(seen[i]) for i in range(2)] == [numpy.ndarray] * 2
    assert seen[0].tolist() == ["a", "b"] and seen[1].tolist() == ["c"]
