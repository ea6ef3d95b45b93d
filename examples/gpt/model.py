"""A GPT that reads bytes: the model of GPT-2 with 256 tokens.

A layer keeps its name (``blocks.3.up.weight``) in a process that has only some of the layers. So any strategy
can load a checkpoint of any other one.
"""

from dataclasses import dataclass

import torch
from torch import nn

BYTES = 256


@dataclass(frozen=True)
class Size:
    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 128
    """Bytes that the model sees at once."""


class Block(nn.Module):
    """Attention and a network of two layers, each with a normalization before and a residual connection."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head_width = size.width // size.heads
        self.attention_norm = nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.project = nn.Linear(size.width, size.width)
        self.network_norm = nn.LayerNorm(size.width)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.project(self.attention(self.qkv(self.attention_norm(x))))
        return x + self.down(nn.functional.gelu(self.up(self.network_norm(x))))

    def attention(self, qkv: torch.Tensor) -> torch.Tensor:
        """float[batch, context, heads * 3 * head_width] to float[batch, context, heads * head_width].

        A row of ``qkv`` goes head by head, so tensor parallelism can cut it between heads. There are fewer of
        them in ``qkv`` then than ``Size.heads``.
        """
        batch, context, _ = qkv.shape
        heads = qkv.view(batch, context, -1, 3 * self.head_width).transpose(1, 2)
        out = nn.functional.scaled_dot_product_attention(*heads.chunk(3, dim=-1), is_causal=True)
        return out.transpose(1, 2).flatten(2)


class GPT(nn.Module):
    """int64[batch, context] of bytes to logits, float[batch, context, 256], of the bytes that follow.

    A part of the model (``keep``) without the first block takes float[batch, context, width] instead, and one
    without the last block returns the same.
    """

    def __init__(self, size: Size, seed: int = 0) -> None:
        super().__init__()
        if size.width % size.heads:
            raise ValueError(f"width {size.width} does not divide into {size.heads} heads")
        torch.manual_seed(seed)
        self.size = size
        self.token: nn.Embedding | None = nn.Embedding(BYTES, size.width)
        self.position: nn.Embedding | None = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleDict({str(number): Block(size) for number in range(size.layers)})
        self.norm: nn.LayerNorm | None = nn.LayerNorm(size.width)
        self.head: nn.Linear | None = nn.Linear(size.width, BYTES, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def keep(self, blocks: range) -> "GPT":
        """Drops the other blocks; the embeddings stay with the first block, the head with the last one."""
        for number in set(range(self.size.layers)) - set(blocks):
            del self.blocks[str(number)]
        if 0 not in blocks:
            self.token = self.position = None
        if self.size.layers - 1 not in blocks:
            self.norm = self.head = None
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.token is not None and self.position is not None:
            x = self.token(x) + self.position(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks.values():
            x = block(x)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy in nats: of float[..., classes] and int64[...]."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
