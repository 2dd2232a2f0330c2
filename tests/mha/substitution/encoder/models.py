"""A small encoder in PyTorch, its batch, and the faults that its ports have by name."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

VOCABULARY, WIDTH, HIDDEN, HEADS, LENGTH = 11, 12, 20, 3, 7


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, hidden, mask):
        q, k, v = (one(hidden).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (self.query, self.key, self.value))
        heads = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(heads.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-12), nn.LayerNorm(WIDTH, eps=1e-12)
        self.inner, self.act, self.outer = nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)

    def forward(self, hidden, mask):
        hidden = self.norm1(hidden + self.attention(hidden, mask))
        return self.norm2(hidden + self.outer(self.act(self.inner(hidden))))


class Encoder(nn.Module):
    """The original: token ids (B, L) and their mask (B, L), 1 for words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, ids, mask):
        hidden = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        for layer in self.layers:
            hidden = layer(hidden, mask[:, None, None, :].bool())
        return hidden


def original(seed: int = 0) -> Encoder:
    """The original with weights that differ everywhere."""
    torch.manual_seed(seed)
    model = Encoder().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def state_of(model: nn.Module) -> dict[str, NDArray]:
    return {name: array.detach().numpy().copy() for name, array in model.state_dict().items()}


def batch(seed: int = 1) -> dict[str, NDArray]:
    """Two sentences, the second one shorter."""
    rng = np.random.default_rng(seed)
    mask = np.ones((2, 5), dtype=np.int64)
    mask[1, 3:] = 0
    return {"ids": rng.integers(0, VOCABULARY, (2, 5)), "mask": mask}


LAYERS = {"keras": "encoder/layer_{}", "linen": "layers_{}", "nnx": "layers/{}", "gluon": "layers.{}"}


def place(layer: int, **inside: str) -> dict[str, str]:
    return {api: around.format(layer) + inside.get(api, "") for api, around in LAYERS.items()}


FAULTS: dict[str, dict[str, str]] = {
    "eps": place(1, keras="/second_norm", linen="/norm2", nnx="/norm2", gluon=".norm2"),
    "gelu": place(0, nnx="/feed"),
    "residual": place(1),
    "scale": place(0, keras="/attention", linen="/attend", nnx="/attention", gluon=".attention"),
    "bias": place(1, keras="/outer", linen="/outer", nnx="/feed/outer", gluon=".outer"),
    "mask": dict.fromkeys(LAYERS, ""),
}
"""Fault -> the module of each port that it is in; "" is the model itself."""
