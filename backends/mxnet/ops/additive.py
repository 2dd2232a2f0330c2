"""The additive score as a Gluon block with its parameters, for attention with heads or without."""

from __future__ import annotations

from typing import Any

from backends.mxnet.ops.attention import additive_score
from backends.mxnet.ops.framework import dense, mx


@mx.util.use_np
class AdditiveScore(mx.gluon.Block):
    """w . tanh(A q + C k): (B, H, Lq, Dq) and (B, G, Lk, Dk) -> (B, H, Lq, Lk)."""

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
