"""The scores that a layer may have: a dot product, or the additive score with its parameters.

Each is called with queries and keys for all scores at once. The fast path takes its `operands`, and scores blocks of
them as `in_blocks` says.
"""

from dataclasses import dataclass
from typing import Any

from backends.mxnet.ops.attention import Score, additive_score, dot_score
from backends.mxnet.ops.framework import dense, mx


@dataclass(frozen=True)
class DotScore:
    """A score function, q.k * scale: (B, H, Lq, d) and (B, G, Lk, d) -> (B, H, Lq, Lk)."""

    scale: float

    def __call__(self, queries: mx.np.ndarray, keys: mx.np.ndarray) -> mx.np.ndarray:
        return dot_score(queries, keys, self.scale)

    def operands(
        self, queries: mx.np.ndarray, keys: tuple[mx.np.ndarray, ...]
    ) -> tuple[mx.np.ndarray, tuple[mx.np.ndarray, ...]]:
        """Return queries and parts of keys unchanged."""
        return queries, keys

    def in_blocks(self) -> Score:
        """Return this score function as a `Score`, which can score one block of queries at a time."""
        return Score(self.scale)


@mx.util.use_np
class AdditiveScore(mx.gluon.Block):
    """A score function with parameters, w . tanh(A q + C k): (B, H, Lq, Dq) and (B, G, Lk, Dk) -> (B, H, Lq, Lk)."""

    def __init__(
        self,
        query_dim: int | None,
        key_dim: int | None,
        score_dim: int,
        *,
        dtype: Any = "float32",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.query = dense("query_", query_dim, score_dim, False, dtype)
            self.key = dense("key_", key_dim, score_dim, False, dtype)
            # Gluon's default initialiser goes by the name, and only knows "weight", "bias" and such.
            init = mx.init.Uniform(score_dim**-0.5)
            self.vector = self.params.get("vector", shape=(score_dim,), init=init, dtype=dtype)

    def forward(self, queries: mx.np.ndarray, keys: mx.np.ndarray) -> mx.np.ndarray:
        return additive_score(self.query(queries), self.key(keys), self.vector.data(queries.ctx))

    def operands(
        self, queries: mx.np.ndarray, keys: tuple[mx.np.ndarray, ...]
    ) -> tuple[mx.np.ndarray, tuple[mx.np.ndarray, ...]]:
        """Return A q (B, H, Lq, S), and a tuple with C k (B, G, L, S) for each array of keys. All blocks share them."""
        return self.query(queries), tuple(map(self.key, keys))

    def in_blocks(self) -> Score:
        """Return this score function as a `Score`, which can score one block of queries at a time."""
        return Score(vector=self.vector.data())
