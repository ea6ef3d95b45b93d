"""Handwritten digits and a small network for them: what the examples of this folder train."""

import torch
from sklearn.datasets import load_digits
from torch import nn


def load(device: str = "cpu", rank: int = 0, ranks: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's share of the images, float32[n, 64] in 0..1, and of their digits, int64[n]."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32)[rank::ranks] / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)[rank::ranks]
    return images.to(device), labels.to(device)


def make_network(width: int = 64) -> nn.Module:
    """The same parameters each time."""
    torch.manual_seed(0)
    hidden = [nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*hidden, nn.Linear(width, 10))
