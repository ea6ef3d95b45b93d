"""Groups that a program makes as those of Gloo."""

import torch
import torch.distributed as dist

import torch_occl
from tests.support.checks import assert_works, backend
from torch_occl import ProcessGroupOCCL

ABSENT = "did not ask for it, by OCCL_IN_PLACE_OF=gloo or occl.replace_gloo()"
"""What a rank is said not to have done that did not ask for occl."""


def assert_occl(group=None, name="gloo"):
    """The group is one of occl that the program knows under this name."""
    assert type(backend("cpu", group)) is ProcessGroupOCCL and torch_occl.uses_occl(group)
    assert dist.get_backend(group) == name
    assert_works("cpu", group)


def assert_gloo(group=None):
    assert type(backend("cpu", group)) is dist.ProcessGroupGloo and not torch_occl.uses_occl(group)
    assert dist.get_backend(group) == "gloo"
    t = torch.ones(1000)
    dist.all_reduce(t, group=group)
    assert (t == dist.get_world_size(group)).all()
