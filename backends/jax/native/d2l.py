"""d2l.ai's layer in Flax as the book has it, with its differences from the definition.

Four Dense projections, heads folded into the batch, `valid_lens` as the only mask, and -1e6 written over
the scores that it excludes. See https://d2l.ai/chapter_attention-mechanisms-and-transformers/multihead-attention.html
"""

import math
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from backends.jax.ops.heads import transpose_output, transpose_qkv

FILL = -1e6
"""The score that excluded keys get: a finite number, so a lower score loses to it."""


class D2lMultiHeadAttention(nn.Module):
    """Multi-head attention of d2l.ai: `num_hiddens` wide inside and at its output.

    Attributes:
        num_hiddens: H * d, the width of all four projections' outputs.
        num_heads: H.
        dropout: probability that a weight is dropped in training.
        bias: whether the projections have biases, all four or none.

    >>> import jax
    >>> layer = D2lMultiHeadAttention(100, 5, 0.5)
    >>> queries, keys = jax.numpy.ones((2, 4, 100)), jax.numpy.ones((2, 6, 100))
    >>> (output, weights), _ = layer.init_with_output(jax.random.key(0), queries, keys, keys, jax.numpy.array([3, 2]))
    >>> output.shape, weights.shape  # heads folded into the batch
    ((2, 4, 100), (10, 4, 6))
    """

    num_hiddens: int
    num_heads: int
    dropout: float
    bias: bool = False
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        self.W_q = self._dense()
        self.W_k = self._dense()
        self.W_v = self._dense()
        self.W_o = self._dense()
        self.dropout_layer = nn.Dropout(self.dropout)

    def __call__(
        self, queries: Array, keys: Array, values: Array, valid_lens: Array | None, training: bool = False
    ) -> tuple[Array, Array]:
        """Output (B, Lq, num_hiddens) and weights (B * H, Lq, Lk). `valid_lens`: (B,), (B, Lq) or None."""
        queries = transpose_qkv(self.W_q(queries), self.num_heads)  # (B * H, Lq, d)
        keys = transpose_qkv(self.W_k(keys), self.num_heads)  # (B * H, Lk, d)
        values = transpose_qkv(self.W_v(values), self.num_heads)  # (B * H, Lk, d)
        if valid_lens is not None:
            valid_lens = jnp.repeat(valid_lens, self.num_heads, axis=0)
        scores = queries @ keys.swapaxes(1, 2) / math.sqrt(queries.shape[-1])
        weights = masked_softmax(scores, valid_lens)
        heads = self.dropout_layer(weights, deterministic=not training) @ values
        return self.W_o(transpose_output(heads, self.num_heads)), weights

    def _dense(self) -> nn.Dense:
        return nn.Dense(self.num_hiddens, use_bias=self.bias, param_dtype=self.param_dtype)


def masked_softmax(scores: Array, valid_lens: Array | None) -> Array:
    """Return the softmax of scores (N, Lq, Lk) over the keys. Keys j >= valid_lens, (N,) or (N, Lq), are masked.

    >>> masked_softmax(jnp.zeros((1, 1, 4)), jnp.array([0]))  # nothing is allowed: a uniform row
    Array([[[0.25, 0.25, 0.25, 0.25]]], dtype=float32)
    """
    if valid_lens is None:
        return nn.softmax(scores, axis=-1)
    lens = jnp.repeat(valid_lens, scores.shape[1]) if valid_lens.ndim == 1 else valid_lens.reshape(-1)
    rows = scores.reshape(-1, scores.shape[-1])
    within = jnp.arange(rows.shape[1], dtype=jnp.float32)[None, :] < lens[:, None]
    return nn.softmax(jnp.where(within, rows, FILL).reshape(scores.shape), axis=-1)
