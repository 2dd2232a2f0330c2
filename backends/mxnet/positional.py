"""Sinusoidal positions as a Gluon block."""

from typing import Any

from backends.mxnet.ops.attention import drop_at_random
from backends.mxnet.ops.framework import as_mxnet, check_computes, context_of_call, describe, mx
from mha_core.call.positions import check_encoded, sinusoidal_positions
from mha_core.dtypes import check_dropout


@mx.util.use_np
class PositionalEncoding(mx.gluon.Block):
    """A layer that adds `mha_core.sinusoidal_positions` to x (B, L, embed_dim), and then applies dropout.

    >>> import mxnet as mx
    >>> PositionalEncoding(4)(mx.np.zeros((1, 2, 4))).round(4)[0, 1]
    array([0.8415, 0.5403, 0.01  , 1.    ])
    """

    def __init__(self, embed_dim: int, dropout: float = 0.0, max_len: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = check_dropout(dropout)
        self.positions = sinusoidal_positions(max_len, embed_dim)  # of NumPy, in float64: rounded to x's dtype

    def forward(self, x: mx.np.ndarray) -> mx.np.ndarray:
        """Return x (B, L, embed_dim) plus positions, after dropout. SpecError if x is too long or has another width."""
        x = as_mxnet(x, context_of_call(self, x))
        max_len, embed_dim = self.positions.shape
        check_computes("x", check_encoded(x, embed_dim=embed_dim, max_len=max_len, describe=describe).dtype)
        positions = mx.np.array(self.positions[: x.shape[1]], dtype=x.dtype, ctx=x.ctx)
        return drop_at_random(x + positions, self.dropout, mx.autograd.is_training())
