"""One block of attention in MXNet, forward and backward: some queries against some keys.

Of one head, queries are (n, d), keys (m, d), and values are transposed, (dv, m): the products go through
FullyConnected, which reaches oneDNN where `dot` and `matmul` do not. Of N heads at once, they are (N, n, d),
(N, m, d) and (N, m, dv). Keys and values come in parts, which stand one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from backends.mxnet.ops.attention import Score, additive_score, cap_and_tanh, cap_gradient, drop_by
from backends.mxnet.ops.framework import mx, to_array
from backends.mxnet.ops.masks import Mask, allowed_keys
from backends.mxnet.ops.operators import operator, unwritten, view

Array: TypeAlias = Any
"""An mx.np.ndarray."""

_connected = operator("_npx_fully_connected", no_bias=True, flatten=False)
_connected_backward = operator("_backward_FullyConnected", no_bias=True, flatten=False)
_matmul = operator("_linalg_gemm2")
_softmax = operator("_npx_softmax", axis=-1)
_softmax_backward = operator("_backward_softmax", axis=-1)
_where = operator("where")  # all shapes alike; mx.np.where broadcasts, and takes four times as long
_end = operator("_npx_sequence_mask", use_sequence_length=True, axis=1)
_add, _subtract = operator("_npi_add"), operator("_npi_subtract")
_assign = operator("_slice_assign")
_full = operator("_npi_full")
_join = operator("Concat", dim=-1)
_slice = operator("slice_axis", axis=-1)


class Gradients(NamedTuple):
    """The gradients of a block's arrays. `keys` and `values` are lists of one gradient, or of two (past and new).

    scores: the gradient of the scores. Summed over the bias's broadcast axes, it is the gradient of the bias.
    vector: the gradient of the additive score's vector; None for a dot product.
    """

    queries: Array
    keys: list[Array]
    values: list[Array]
    scores: Array
    vector: Array | None


@dataclass(frozen=True)
class Exclusion:
    """The keys of a block that its queries may not attend to, given as a mask (`open`) or as lengths (`stop`).

    A row is one query of one head and item: the first three axes of the scores are folded into one.

    stop: int32 (rows,). Each row may attend to its first `start + stop[row]` keys. None if `open` is given.
    open: (rows, keys), 1 where a row may attend to a key, else 0. None if `stop` is given.
    start: the number of first keys that every row may attend to.
    empty: whether there may be a row that may attend to no key.
    fillings: a cache of the method `fill`: (value, dtype) -> an array like `open`, filled with this value.
    """

    stop: Array | None = None
    open: Array | None = None
    start: int = 0
    empty: bool = True
    fillings: dict[tuple[float, str], Array] = field(default_factory=dict)

    def fill(self, x: Array, value: float) -> Array:
        """Return x (..., keys) with `value` at the excluded keys; x itself may be overwritten."""
        shape = x.shape
        rows = view(x, (-1, shape[-1]))
        if self.open is not None:
            key = value, np.dtype(x.dtype).name
            if key not in self.fillings:
                self.fillings[key] = _full(shape=rows.shape, value=value, dtype=key[1], ctx=x.ctx)
            return view(_where(self.open, rows, self.fillings[key]), shape)
        if self.start == 0:
            return view(_end(rows, self.stop, value=value), shape)
        filled = _end(_slice(rows, begin=self.start, end=None), self.stop, value=value)
        _assign(rows, filled, begin=(0, self.start), end=rows.shape, out=rows)
        return x


def exclusion_of(mask: Mask) -> Exclusion | None:
    """Return the Exclusion that the mask of a block describes; None if the mask excludes no key."""
    rows, length = mask.shape[:3], mask.shape[3]
    if mask.allowed is None and mask.bias is None:
        if mask.reach is None:
            return None
        first, stop = mask.reach
        if not (first <= 0).all():
            position = np.arange(length)
            is_open = (position >= first[:, :, None]) & (position < stop[:, :, None])
            rows_open = np.broadcast_to(is_open[:, None], mask.shape).reshape(-1, length)
            return Exclusion(open=to_array(rows_open, "float32", mask.ctx))
        stop = stop.clip(0, length)
        fewest = int(stop.min())
        start = fewest if 2 * fewest >= length else 0  # below that, one operation over all is faster than three
        stop = np.broadcast_to((stop - start)[:, None], rows).reshape(-1)
        return Exclusion(stop=to_array(stop, "int32", mask.ctx), start=start, empty=fewest == 0)
    allowed = allowed_keys(mask)
    if allowed is None:
        return None
    return Exclusion(open=mx.np.broadcast_to(allowed, mask.shape).astype("float32").reshape(-1, length))


@dataclass(frozen=True)
class BlockAttention:
    """The attention of one block, forward and backward: score, softcap, bias, exclusion, softmax, dropout.

    shape: (items, heads, queries, keys), the shape of its scores.
    score: how queries are scored against keys; the queries are scaled already.
    exclusion: the keys that are excluded; None without any.
    bias: the additive bias, broadcastable to `shape`; where it is -inf, `exclusion` excludes the key. None without one.
    keep: (items * heads * queries, keys), 1 where dropout keeps a weight, else 0; None without dropout.
    dropout: the rate of dropout.
    """

    shape: tuple[int, ...]
    score: Score
    exclusion: Exclusion | None
    bias: Array | None
    keep: Array | None
    dropout: float

    def forward(
        self, queries: Array, keys: Sequence[Array], values: Sequence[Array], out: Array | None = None
    ) -> Array:
        """Return the heads (..., n, dv) of n queries, written to `out` if it is given."""
        scores, _ = self._scores(queries, keys)
        weights = _softmax(scores, out=scores)
        if self.exclusion is not None and self.exclusion.empty:
            weights = self._excluding(weights, 0.0)
        parts = _split(self._dropped(weights), keys)
        if len(parts) == 1:
            return summed(parts[0], values[0], out)
        return summed(parts[0], values[0]) + summed(parts[1], values[1])

    def backward(self, cotangent: Array, queries: Array, keys: Sequence[Array], values: Sequence[Array]) -> Gradients:
        """Return the Gradients. `cotangent` is the gradient of the heads. The weights are computed again."""
        scores, tanh = self._scores(queries, keys)
        weights = _softmax(scores, out=scores)
        if self.exclusion is None:
            cotangent = _add(cotangent, _nan_rows(weights))
        else:
            weights = self._excluding(_add(weights, _nan_rows(weights), out=weights), 0.0)
        parts = _split(self._dropped(weights), keys)
        of_sums = [summed_backward(cotangent, part, value) for part, value in zip(parts, values, strict=True)]
        d_weights, d_values = zip(*of_sums, strict=True)
        d_scores = self._excluding(self._dropped(_joined(d_weights)), 0.0)
        d_scores = self._excluding(_softmax_backward(d_scores, weights, out=d_scores), 0.0)
        d_parts = zip(_split(cap_gradient(d_scores, tanh), keys), keys, strict=True)
        of_products = [self._similar_backward(d_part, queries, key) for d_part, key in d_parts]
        d_queries, d_keys, d_vector = zip(*of_products, strict=True)
        return Gradients(_total(d_queries), list(d_keys), list(d_values), d_scores, _total(d_vector))

    def _scores(self, queries: Array, keys: Sequence[Array]) -> tuple[Array, Array | None]:
        """The scores, -inf where excluded; and what `cap_gradient` needs."""
        scores, tanh = cap_and_tanh(_joined([self._similar(queries, part) for part in keys]), self.score)
        if self.bias is not None:
            scores = view(view(scores, self.shape) + self.bias, scores.shape)
        return self._excluding(scores, -np.inf), tanh

    def _similar(self, queries: Array, keys: Array) -> Array:
        """The scores of queries against a part of the keys, before `cap` and the bias."""
        if self.score.vector is None:
            return similar(queries, keys)
        scores = additive_score(_with_heads(queries), _with_heads(keys), self.score.vector)
        return view(scores, (*queries.shape[:-1], keys.shape[-2]))

    def _similar_backward(self, cotangent: Array, queries: Array, keys: Array) -> tuple[Array, Array, Array | None]:
        """The gradients of queries, of this part of the keys, and of the vector; `cotangent` is that of `_similar`."""
        if self.score.vector is None:
            return *similar_backward(cotangent, queries, keys), None
        q, k, vector = (x.detach() for x in (queries, keys, self.score.vector))
        for leaf in (q, k, vector):
            leaf.attach_grad()
        with mx.autograd.record():
            scores = additive_score(_with_heads(q), _with_heads(k), vector)
        scores.backward(view(cotangent, scores.shape))
        return q.grad, k.grad, vector.grad

    def _excluding(self, x: Array, value: float) -> Array:
        """X (..., m) with `value` at the excluded keys; x itself may be overwritten."""
        return x if self.exclusion is None else self.exclusion.fill(x, value)

    def _dropped(self, x: Array) -> Array:
        """X times the factor of dropout: the weights, or the gradient of the weights after dropout."""
        if self.keep is None:
            return x
        return view(drop_by(view(x, self.keep.shape), self.keep, self.dropout), x.shape)


# Products ---------------------------------------------------------------------------------------------------


def similar(queries: Array, keys: Array) -> Array:
    """Return the product q k^T (..., n, m)."""
    shape = keys.shape
    if len(shape) == 2:
        return _connected(queries, keys, num_hidden=shape[0])
    return _matmul(queries, keys, transpose_b=True)


def similar_backward(cotangent: Array, queries: Array, keys: Array) -> tuple[Array, Array]:
    """Return the gradients of queries and keys."""
    if queries.ndim == 2:
        return _both_gradients(cotangent, queries, keys)
    return _matmul(cotangent, keys), _matmul(cotangent, queries, transpose_a=True)


def summed(weights: Array, values: Array, out: Array | None = None) -> Array:
    """Return the weighted sum (..., n, dv)."""
    shape = values.shape
    if len(shape) == 2:
        return _connected(weights, values, num_hidden=shape[0], out=out)
    return _matmul(weights, values, out=out)


def summed_backward(cotangent: Array, weights: Array, values: Array) -> tuple[Array, Array]:
    """Return the gradients of weights and values."""
    if weights.ndim == 2:
        return _both_gradients(cotangent, weights, values)
    return _matmul(cotangent, values, transpose_b=True), _matmul(weights, cotangent, transpose_a=True)


def _both_gradients(cotangent: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """The gradients of x and y, from that of x y^T."""
    gradients = unwritten(x), unwritten(y)
    _connected_backward(cotangent, x, y, num_hidden=y.shape[0], out=gradients)
    return gradients


# Parts ------------------------------------------------------------------------------------------------------


def _joined(parts: Sequence[Array]) -> Array:
    """The parts (..., n, .) joined along the last axis: (..., n, m)."""
    return parts[0] if len(parts) == 1 else _join(*parts, num_args=len(parts))


def _split(x: Array, parts: Sequence[Array]) -> list[Array]:
    """Pieces of x (..., n, m) along its last axis, as long as the parts of keys or values are."""
    if len(parts) == 1:
        return [x]
    stops = np.cumsum([part.shape[-2] for part in parts])
    return [_slice(x, begin=stop - part.shape[-2], end=stop) for part, stop in zip(parts, stops, strict=True)]


def _total(parts: Sequence[Array | None]) -> Array | None:
    """The sum of the gradients from one or two parts; None if they are None."""
    return parts[0] if len(parts) == 1 or parts[0] is None else parts[0] + parts[1]


def _with_heads(x: Array) -> Array:
    """(n, S) or (N, n, S) -> (1 or N, 1, n, S)."""
    return x[None, None] if x.ndim == 2 else x[:, None]


def _nan_rows(weights: Array) -> Array:
    """(..., n, 1): NaN for a row with a NaN, else 0. npx.softmax leaves zeros beside it, in float32 on a CPU."""
    *rows, length = weights.shape
    ones = _full(shape=(1, length), value=1.0, dtype=np.dtype(weights.dtype).name, ctx=weights.ctx)
    total = _connected(view(weights, (-1, length)), ones, num_hidden=1)
    return view(_subtract(total, total), (*rows, 1))
