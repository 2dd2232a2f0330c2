"""Attention as in libraries built on MXNet: with Gluon Dense projections, and with the interleaved operators.

Written anew after GluonNLP's attention cell (fill value, then times the mask) and Sockeye 2's layers (time-major,
lengths and an additive bias). Both take legacy arrays, `mx.nd`, and a caller's `npx.set_np()` does not change that.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias, TypeVar

from backends.mxnet.ops.framework import mx

Array: TypeAlias = Any
"""A legacy array, `mx.nd.NDArray`."""

Function = TypeVar("Function", bound=Callable[..., Any])

FILL = -1e18
"""The score that GluonNLP gives to excluded keys, in float32 and float64."""

LARGE = 99999999.0
"""The number that Sockeye subtracts from the scores of excluded keys."""

OPERATORS = mx.nd.contrib


def legacy(function: Function) -> Function:
    """Return the function, wrapped to run with the semantics of `mx.nd`, whatever the caller has set."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with mx.util.np_array(False), mx.util.np_shape(False):  # only in this order
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]  # it takes and gives what the function does


def dense(units: int, in_units: int, use_bias: bool) -> mx.gluon.nn.Dense:
    """Return a projection of the last axis."""
    return mx.gluon.nn.Dense(units, in_units=in_units, use_bias=use_bias, flatten=False)


class DenseAttention(mx.gluon.Block):
    """Multi-head attention of four Dense layers and GluonNLP's softmax: masked scores are -1e18, masked weights 0.

    It stores the queries, scores, weights and heads of its last call, each with the heads folded into the batch.
    """

    def __init__(
        self,
        widths: tuple[int, int, int],
        units: tuple[int, int, int, int],
        num_heads: int,
        *,
        use_bias: bool,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.shown: dict[str, Array] = {}
        for name, width, rows in zip(("W_q", "W_k", "W_v", "W_o"), (*widths, units[2]), units, strict=True):
            setattr(self, name, dense(rows, width, use_bias))

    def forward(self, queries: Array, keys: Array, values: Array, mask: Array | None) -> Array:
        """Return (B, Lq, Do) from (B, Lq, Dq), (B, Lk, Dk), (B, Lk, Dv). Mask (B * H, Lq, Lk): 1 = allowed, 0 = not."""
        heads = self.num_heads
        split = [self._split(x) for x in (self.W_q(queries), self.W_k(keys), self.W_v(values))]
        scores = mx.nd.batch_dot(OPERATORS.div_sqrt_dim(split[0]), split[1], transpose_b=True)
        if mask is None:
            weights = mx.nd.softmax(scores, axis=-1)
        else:
            filled = mx.nd.where(mask, scores, FILL * mx.nd.ones_like(scores))
            weights = mx.nd.softmax(filled, axis=-1) * mask
        summed = mx.nd.batch_dot(mx.nd.Dropout(weights, p=self.dropout), split[2])
        self.shown = {"queries": split[0], "scores": scores, "weights": weights, "heads": summed}
        merged = summed.reshape((-1, heads, 0, 0), reverse=True).transpose((0, 2, 1, 3)).reshape((0, 0, -1))
        return self.W_o(merged)

    def _split(self, x: Array) -> Array:
        """(B, L, H * d) -> (B * H, L, d)."""
        return x.reshape((0, 0, self.num_heads, -1)).transpose((0, 2, 1, 3)).reshape((-1, 0, 0), reverse=True)


class InterleavedAttention(mx.gluon.Block):
    """A base of Sockeye's two layers: softmax with lengths and an additive bias, dropout, the output projection."""

    def __init__(self, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.shown: dict[str, Array] = {}

    def softmax(self, scores: Array, lengths: Array | None, bias: Array | None) -> Array:
        """Return the weights (B * H, Lq, Lk) after dropout. Lengths: int32 (B * H, Lq). Bias: added to the scores."""
        if bias is not None:
            scores = mx.nd.broadcast_add(scores, bias)
        if lengths is None:
            weights = mx.nd.softmax(scores, axis=-1)
        else:
            weights = mx.nd.softmax(scores, axis=-1, length=lengths, use_length=True)
        self.shown = {"scores": scores, "weights": weights}
        return mx.nd.Dropout(weights, p=self.dropout)


class InterleavedSelfAttention(InterleavedAttention):
    """A self-attention layer. `ff_in` makes queries, keys and values; the rows of its weight are in order (H, 3, d).

    >>> layer = InterleavedSelfAttention(6, 2, units=8)
    >>> layer.initialize()
    >>> layer(mx.nd.ones((3, 2, 6))).shape
    (3, 2, 6)
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        units: int,
        output_width: int | None = None,
        biases: tuple[bool, bool] = (False, False),
        dropout: float = 0.0,
    ) -> None:
        super().__init__(num_heads, dropout)
        self.ff_in = dense(3 * units, width, biases[0])
        self.ff_out = dense(output_width or width, units, biases[1])

    def forward(self, x: Array, lengths: Array | None = None, bias: Array | None = None) -> Array:
        """Return (L, B, output_width) from x (L, B, width). See `softmax` for lengths, bias."""
        return self.attend(self.ff_in(x), lengths, bias)

    def attend(self, projected: Array, lengths: Array | None, bias: Array | None) -> Array:
        """Return the output (L, B, output_width) from (L, B, H * 3 * d), the result of `ff_in`."""
        scores = OPERATORS.interleaved_matmul_selfatt_qk(projected, heads=self.num_heads)
        weights = self.softmax(scores, lengths, bias)
        heads = OPERATORS.interleaved_matmul_selfatt_valatt(projected, weights, heads=self.num_heads)
        self.shown["heads"] = heads
        return self.ff_out(heads)


class InterleavedEncDecAttention(InterleavedAttention):
    """An attention layer. `ff_q` makes queries, `ff_kv` keys and values; the rows of its weight are in order (H, 2, d).

    >>> layer = InterleavedEncDecAttention((6, 5), 2, units=8)
    >>> layer.initialize()
    >>> layer(mx.nd.ones((3, 2, 6)), mx.nd.ones((4, 2, 5))).shape
    (3, 2, 6)
    """

    def __init__(
        self,
        widths: tuple[int, int],
        num_heads: int,
        *,
        units: int,
        output_width: int | None = None,
        biases: tuple[bool, bool, bool] = (False, False, False),
        dropout: float = 0.0,
    ) -> None:
        super().__init__(num_heads, dropout)
        self.ff_q = dense(units, widths[0], biases[0])
        self.ff_kv = dense(2 * units, widths[1], biases[1])
        self.ff_out = dense(output_width or widths[0], units, biases[2])

    def forward(self, x: Array, memory: Array, lengths: Array | None = None, bias: Array | None = None) -> Array:
        """Return (Lq, B, output_width) from (Lq, B, widths[0]), (Lk, B, widths[1]). See `softmax` for lengths, bias."""
        return self.attend(self.ff_q(x), self.ff_kv(memory), lengths, bias)

    def attend(self, queries: Array, projected: Array, lengths: Array | None, bias: Array | None) -> Array:
        """Return (Lq, B, output_width) from the results (Lq, B, H * d) of `ff_q` and (Lk, B, H * 2 * d) of `ff_kv`."""
        scores = OPERATORS.interleaved_matmul_encdec_qk(queries, projected, heads=self.num_heads)
        weights = self.softmax(scores, lengths, bias)
        heads = OPERATORS.interleaved_matmul_encdec_valatt(projected, weights, heads=self.num_heads)
        self.shown["heads"] = heads
        return self.ff_out(heads)
