"""A small decoder in PyTorch, with norms before or after each part, and a batch that is padded on the left."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

WIDTH, HEADS, HIDDEN, VOCABULARY, LONGEST = 12, 3, 20, 17, 9


def attended(q, k, v, mask=None, scale=(WIDTH // HEADS) ** -0.5, heads=HEADS):
    """What attention computes between its projections; `mask` is True where a key is seen."""
    q, k, v = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in (q, k, v))
    scores = q @ k.mT * scale
    scores = scores if mask is None else scores.masked_fill(~mask, -1e9)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


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

    def embedded(self, ids):
        return self.tok(ids) + self.pos(torch.arange(ids.shape[1]))

    def allowed(self, mask):
        return mask[:, None, None, :].bool() & torch.ones(mask.shape[1], mask.shape[1]).tril().bool()

    def forward(self, ids, mask):
        x, allowed = self.embedded(ids), self.allowed(mask)
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
    mask = np.array([[1] * 7, [0, 0, 1, 1, 1, 1, 1]])
    return {"ids": np.random.default_rng(1).integers(0, VOCABULARY, (2, 7)), "mask": mask}


def tensors() -> dict[str, torch.Tensor]:
    return {name: torch.tensor(array) for name, array in batch().items()}


def difference(port: nn.Module, model: nn.Module) -> float:
    """How far a port is from its original, at words."""
    given = tensors()
    return float((port(**given) - model(**given))[given["mask"].bool()].abs().max())
