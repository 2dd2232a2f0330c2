"""The additive score as a Flax linen module: the parameters that attention with it has, with heads or without."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from flax.typing import Dtype, PrecisionLike
from jax import Array

from backends.jax.attention import additive_score


class AdditiveScore(nn.Module):
    """w . tanh(A q + C k): (B, H, Lq, Dq) and (B, G, Lk, Dk) -> (B, H, Lq, Lk)."""

    score_dim: int
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = "highest"

    @nn.compact
    def __call__(self, queries: Array, keys: Array) -> Array:
        settings = (False, self.dtype, self.param_dtype, self.precision)
        queries = nn.Dense(self.score_dim, *settings, name="query")(queries)
        keys = nn.Dense(self.score_dim, *settings, name="key")(keys)
        init = nn.initializers.lecun_normal()  # as nn.Dense(1) draws its kernel
        vector = self.param("vector", lambda key: init(key, (self.score_dim, 1), self.param_dtype)[:, 0])
        queries, keys, vector = promote_dtype(queries, keys, vector, dtype=self.dtype)
        return additive_score(queries, keys, vector, self.precision)
