"""The PyTorch that runs the tests, for what it refuses in some versions or builds only."""

import pytest
import torch
import torch.distributed as dist

from occl import versions

PYTORCH = versions.minor(torch.__version__)
HAS_NCCL = torch.version.cuda is not None
"""Whether this is a build for CUDA, with which PyTorch offers what it reserves for NCCL to every backend."""

with_dist2 = pytest.mark.skipif(
    PYTORCH >= (2, 14), reason="PyTorch 2.14 has removed torch.distributed._dist2"
)

WITH_CUDA = "cpu:occl,cuda:occl,dev:occl"
"""The backends of a group that every PyTorch splits: 2.11 splits those that serve "cuda"."""
splits_without_cuda = pytest.mark.skipif(
    PYTORCH < (2, 12), reason="PyTorch 2.11 splits groups that serve cuda, and no others"
)


def is_group(made) -> bool:
    """Whether `split_group` made a group for this rank. Others get None, or from 2.15 on what says so."""
    return made not in (None, dist.GroupMember.NON_GROUP_MEMBER)
