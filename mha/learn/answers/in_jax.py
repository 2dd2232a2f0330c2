"""A short right answer to each translation into JAX; see `in_numpy`."""

import jax
import jax.numpy as jnp
from flax import linen as nn


def split_heads(x, num_heads):
    batch, length, width = x.shape
    return x.reshape(batch, length, num_heads, width // num_heads).swapaxes(1, 2)


def merge_heads(heads):
    batch, number, length, width = heads.shape
    return heads.swapaxes(1, 2).reshape(batch, length, number * width)


def dot_score(queries, keys, scale):
    keys = jnp.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
    return queries @ keys.swapaxes(-1, -2) * scale


def cap(scores, softcap):
    return scores if softcap is None else softcap * jnp.tanh(scores / softcap)


def softmax(scores):
    return jax.nn.softmax(scores, axis=-1)


def masked_softmax(scores, allowed):
    return jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf), axis=-1)


def empty_row(scores, allowed):
    weights = jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf), axis=-1)
    return jnp.where(allowed, weights, 0.0)


def weighted_sum(weights, values):
    return weights @ values


def turn_halves(x, positions, width, base):
    angles = positions[:, None, :, None] * base ** (-jnp.arange(0, width, 2) / width)
    a, b, rest = jnp.split(x, [width // 2, width], axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def turn_pairs(x, positions, width, base):
    angles = positions[:, None, :, None] * base ** (-jnp.arange(0, width, 2) / width)
    a, b = x[..., 0:width:2], x[..., 1:width:2]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return jnp.concatenate([turned.reshape(*x.shape[:-1], width), x[..., width:]], axis=-1)


def turned_scores(queries, keys, positions, key_positions, base):
    def turned(x, positions):
        width = x.shape[-1]
        angles = positions[:, None, :, None] * base ** (-jnp.arange(0, width, 2) / width)
        a, b = jnp.split(x, 2, axis=-1)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    return turned(queries, positions) @ turned(keys, key_positions).swapaxes(-1, -2)


def rms_norm(x, weight, eps):
    return weight * x / jnp.sqrt(jnp.square(x).mean(axis=-1, keepdims=True) + eps)


def norm_and_turn(x, weight, eps, positions, base, order):
    def normed(x):
        return weight * x / jnp.sqrt(jnp.square(x).mean(axis=-1, keepdims=True) + eps)

    def turned(x):
        width = x.shape[-1]
        angles = positions[:, None, :, None] * base ** (-jnp.arange(0, width, 2) / width)
        a, b = jnp.split(x, 2, axis=-1)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    return turned(normed(x)) if order == "before" else normed(turned(x))


class MultiHeadAttention(nn.Module):
    num_hiddens: int
    num_heads: int
    dropout: float = 0.0

    @nn.compact
    def __call__(self, queries, keys, values, valid_lens, training=False):
        def project(name, x):
            return nn.Dense(self.num_hiddens, use_bias=False, name=name)(x)

        def split(x):  # (B, H, L, d)
            return x.reshape(*x.shape[:2], self.num_heads, -1).swapaxes(1, 2)

        q, k, v = split(project("w_q", queries)), split(project("w_k", keys)), split(project("w_v", values))
        allowed = jnp.arange(keys.shape[1]) < valid_lens[:, None, None, None]
        scores = jnp.where(allowed, q @ k.swapaxes(2, 3) / q.shape[-1] ** 0.5, -jnp.inf)
        weights = nn.Dropout(self.dropout, deterministic=not training)(jax.nn.softmax(scores, axis=-1))
        heads = (weights @ v).swapaxes(1, 2)
        return project("w_o", heads.reshape(*heads.shape[:2], -1))
