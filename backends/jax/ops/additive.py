"""The additive score as a Flax linen module: the parameters that attention with it has, with heads or without."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from flax.typing import Dtype, PrecisionLike
from jax import Array

from backends.jax.ops.attention import additive_score


class AdditiveScore(nn.Module):
    """w . tanh(A q + C k): (B, H, Lq, Dq) and (B, G, Lk, Dk) -> (B, H, Lq, Lk)."""

    score_dim: int
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = "highest"

    def __call__(self, queries: Array, keys: Array) -> Array:
        queries, (keys,), vector = self.parts(queries, (keys,))
        return additive_score(queries, keys, vector, self.precision)

    @nn.compact
    def parts(self, queries: Array, keys: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...], Array]:
        """A q, C k of each part of the keys, and w."""
        settings = (False, self.dtype, self.param_dtype, self.precision)
        query, key = (nn.Dense(self.score_dim, *settings, name=name) for name in ("query", "key"))
        init = nn.initializers.lecun_normal()  # as nn.Dense(1) draws its kernel
        vector = self.param("vector", lambda rng: init(rng, (self.score_dim, 1), self.param_dtype)[:, 0])
        queries, *others = promote_dtype(query(queries), *map(key, keys), vector, dtype=self.dtype)
        return queries, tuple(others[:-1]), others[-1]
