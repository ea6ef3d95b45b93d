"""What the tests of the published interface (docs/replicas.md) share."""

import warnings

import torch
from torch import nn


def ones(index: int) -> torch.Tensor:
    return torch.full((2,), float(index), device=f"dev:{index}")


def groups_of(n: int) -> list[list[nn.Parameter]]:
    """For each of n replicas two parameters whose values are the number of the replica."""
    return [[nn.Parameter(ones(i)), nn.Parameter(ones(i) * 10)] for i in range(n)]


def values(groups) -> list[list[float]]:
    return [[p[0].item() for p in group] for group in groups]


def warnings_of(call) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return caught
