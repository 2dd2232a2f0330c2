"""An encoder in PyTorch, and a port of it to Flax with two mistakes, each made twice; docs/where.md finds them."""

import flax.linen as fnn
import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

import mha_parity as mha


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 4, batch_first=True)
        self.inner, self.act, self.outer = nn.Linear(12, 17), nn.GELU(), nn.Linear(17, 12)
        self.norm1, self.norm2 = nn.LayerNorm(12), nn.LayerNorm(12)

    def forward(self, x, padding):
        x = self.norm1(x + self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0])
        return self.norm2(x + self.outer(self.act(self.inner(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x, padding):
        for block in self.blocks:
            x = block(x, padding)
        return x


torch.manual_seed(0)
original = Model().eval()


class Attention(fnn.Module):
    @fnn.compact
    def __call__(self, x, mask):
        q, k, v = jnp.split(fnn.Dense(36, name="qkv")(x).reshape(*x.shape[:2], 12, 3), 3, axis=2)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(3)
        weights = jax.nn.softmax(jnp.where(mask[:, None, None, :], scores, -1e9), axis=-1)
        return fnn.Dense(12, name="out")(jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape))


class Layer(fnn.Module):
    @fnn.compact
    def __call__(self, x, mask):
        x = fnn.LayerNorm(name="ln1")(x + Attention(name="attend")(x, mask))  # Flax's epsilon is 1e-6, PyTorch's 1e-5
        inner = jax.nn.gelu(fnn.Dense(17, name="up")(x))  # Flax's GELU is the one with tanh
        return fnn.LayerNorm(epsilon=1e-5, name="ln2")(x + fnn.Dense(12, name="down")(inner))


class Port(fnn.Module):
    @fnn.compact
    def __call__(self, x, padding):
        for number in range(2):
            x = Layer(name=f"layer_{number}")(x, ~padding)
        return x


def params_of(block):
    own = {name: jnp.asarray(value.detach().numpy()) for name, value in block.named_parameters()}

    def dense(name):
        return {"kernel": own[f"{name}.weight"].T, "bias": own[f"{name}.bias"]}

    def norm(name):
        return {"scale": own[f"{name}.weight"], "bias": own[f"{name}.bias"]}

    qkv = {"kernel": own["attention.in_proj_weight"].T, "bias": own["attention.in_proj_bias"]}
    attend = {"qkv": qkv, "out": dense("attention.out_proj")}
    parts = {"attend": attend, "up": dense("inner"), "down": dense("outer")}
    return {**parts, "ln1": norm("norm1"), "ln2": norm("norm2")}


port = Port().bind({"params": {f"layer_{i}": params_of(block) for i, block in enumerate(original.blocks)}})

if __name__ == "__main__":
    x = np.random.default_rng(0).normal(size=(2, 7, 12)).astype(np.float32)
    padding = np.arange(7) >= np.array([[4], [7]])
    with mha.capture(port, "port.safetensors", modules=True):
        port(jnp.asarray(x), jnp.asarray(padding))
