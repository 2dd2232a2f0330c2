"""Sinusoidal positions as a Flax linen module."""

from functools import lru_cache

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from backends.jax.ops.framework import any_rank, as_jax, check_enabled, describe
from mha_core.call.positions import check_encoded, sinusoidal_positions
from mha_core.dtypes import check_dropout

# A linen module cannot keep the table from one `apply` to the next.
_positions = lru_cache(maxsize=8)(sinusoidal_positions)


class PositionalEncoding(nn.Module):
    """A layer that adds `mha_core.sinusoidal_positions` to x (B, L, embed_dim), and then applies dropout.

    >>> import jax
    >>> PositionalEncoding(4).apply({}, jax.numpy.zeros((1, 2, 4)))[0, 1].round(4)
    Array([0.8415, 0.5403, 0.01  , 1.    ], dtype=float32)
    """

    embed_dim: int
    dropout: float = 0.0
    max_len: int = 1000

    def __post_init__(self) -> None:
        check_dropout(self.dropout)
        _positions(self.max_len, self.embed_dim)  # SpecError if there is no such table
        super().__post_init__()

    @nn.compact
    @any_rank
    def __call__(self, x: Array, *, deterministic: bool = True) -> Array:
        """(B, L, embed_dim) -> (B, L, embed_dim). SpecError if the sequence or its width does not fit."""
        x = as_jax("x", x)
        check_enabled("x", check_encoded(x, embed_dim=self.embed_dim, max_len=self.max_len, describe=describe).dtype)
        positions = _positions(self.max_len, self.embed_dim)[: x.shape[1]]
        return nn.Dropout(self.dropout)(x + jnp.asarray(positions, x.dtype), deterministic=deterministic)
