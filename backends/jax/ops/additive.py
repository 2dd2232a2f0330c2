"""The additive score as a Flax linen module with its parameters, for attention with heads or without."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from flax.typing import Dtype, PrecisionLike
from jax import Array

from backends.jax.ops.attention import additive_score


class AdditiveScore(nn.Module):
    """w . tanh(A q + C k): (B, H, Lq, Dq) and (B, G, Lk, Dk) -> (B, H, Lq, Lk).

    Its parts are `query` (A), `key` (C), and `vector` (w), which is used in the dtype of their outputs.
    """

    score_dim: int
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = "highest"

    def setup(self) -> None:
        self.query = nn.Dense(self.score_dim, False, self.dtype, self.param_dtype, self.precision)
        self.key = nn.Dense(self.score_dim, False, self.dtype, self.param_dtype, self.precision)
        init = nn.initializers.lecun_normal()  # as nn.Dense(1) draws its kernel
        drawn = self.param("vector", lambda rng: init(rng, (self.score_dim, 1), self.param_dtype)[:, 0])
        (self.vector,) = promote_dtype(drawn, dtype=self.dtype)

    def __call__(self, queries: Array, keys: Array) -> Array:
        return additive_score(self.query(queries), self.key(keys), self.vector, precision=self.precision)
