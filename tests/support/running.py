"""The PyTorch that runs the tests, for what it refuses in some versions or builds only."""

import torch

from occl import versions

PYTORCH = versions.minor(torch.__version__)
HAS_NCCL = torch.version.cuda is not None
"""Whether this is a build for CUDA, with which PyTorch offers what it reserves for NCCL to every backend."""
