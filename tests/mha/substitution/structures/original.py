"""A small decoder in PyTorch, with norms before or after each part, and a batch that is padded on the left."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

WIDTH, HEADS, HIDDEN, VOCABULARY, LONGEST = 12, 3, 20, 17, 9


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, mask):
        q, k, v = (one(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        return self.o(nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, *, pre: bool) -> None:
        super().__init__()
        self.pre, self.attn = pre, Attention()
        self.n1, self.n2, self.drop = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.up, self.act, self.down = nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x, mask):
        if self.pre:
            x = x + self.drop(self.attn(self.n1(x), mask))
            return x + self.drop(self.down(self.act(self.up(self.n2(x)))))
        x = self.n1(x + self.drop(self.attn(x, mask)))
        return self.n2(x + self.drop(self.down(self.act(self.up(x)))))


class Decoder(nn.Module):
    """Token ids (B, L) and their mask (B, L), 1 for words, to scores (B, L, V)."""

    def __init__(self, *, pre: bool = True) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block(pre=pre) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids, mask):
        length = ids.shape[1]
        x = self.tok(ids) + self.pos(torch.arange(length))
        allowed = mask[:, None, None, :].bool() & torch.ones(length, length).tril().bool()
        for block in self.blocks:
            x = block(x, allowed)
        return self.head(self.norm(x))


def original(*, pre: bool = True) -> Decoder:
    """The original with weights that differ everywhere."""
    torch.manual_seed(0)
    model = Decoder(pre=pre).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def batch() -> dict[str, NDArray]:
    """Two texts, the second of which is shorter, and padded on the left."""
    return {
        "ids": np.random.default_rng(1).integers(0, VOCABULARY, (2, 7)),
        "mask": np.array([[1] * 7, [0, 0, 1, 1, 1, 1, 1]]),
    }
