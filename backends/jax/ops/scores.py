"""The scores that a layer may have: a dot product, or the additive score with its parameters.

Each is called with queries and keys for all scores at once. The fast path takes its `operands`, and scores blocks of
them as `in_blocks` says.
"""

from dataclasses import KW_ONLY, dataclass

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from flax.typing import Dtype, PrecisionLike
from jax import Array

from backends.jax.ops.attention import Score, additive_score, dot_score


@dataclass(frozen=True)
class DotScore:
    """A score function, q.k * scale: (B, H, Lq, d) and (B, G, Lk, d) -> (B, H, Lq, Lk)."""

    scale: float
    _: KW_ONLY
    precision: PrecisionLike = "highest"

    def __call__(self, queries: Array, keys: Array) -> Array:
        return dot_score(queries, keys, self.scale, precision=self.precision)

    def operands(self, queries: Array, keys: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
        """Return queries and parts of keys unchanged."""
        return queries, keys

    def in_blocks(self) -> Score:
        """Return this score function as a `Score`, which can score one block of queries at a time."""
        return Score(self.scale)


class AdditiveScore(nn.Module):
    """A score function with parameters, w . tanh(A q + C k): (B, H, Lq, Dq) and (B, G, Lk, Dk) -> (B, H, Lq, Lk).

    Its parts are `query` (A), `key` (C) and `vector` (w). The vector is cast to the dtype of A q and C k.
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

    def operands(self, queries: Array, keys: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
        """Return A q (B, H, Lq, S), and a tuple with C k (B, G, L, S) for each array of keys. All blocks share them."""
        return self.query(queries), tuple(map(self.key, keys))

    def in_blocks(self) -> Score:
        """Return this score function as a `Score`, which can score one block of queries at a time."""
        return Score(vector=self.vector)
