"""Attention between the projections, forward and backward, in every way that `Ways` can name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.calibration.arithmetic import Arithmetic, tanh_by_expm1
from conformance.calibration.by_part.softcap import softcap_of
from conformance.calibration.ways import Ways
from mha_core import AttentionConfig
from mha_core.call.blocks import query_blocks
from mha_core.heads import repeat_kv_heads
from mha_core.weights import Weights

KEY_BLOCK = 7
"""Keys of one block of the online softmax."""

QUERY_CHUNK = 3
"""Queries that the layouts "queries" and "tiles" handle at a time."""

Mapped = Callable[[NDArray], NDArray]


@dataclass(frozen=True)
class Call:
    """What attention starts from; every array (B, H, ...) with as many heads as its name has.

    queries (B, H, Lq, d), keys (B, G, Lk, d), values (B, G, Lk, dv), allowed (B, H, Lq, Lk); as that
    or None: bias, factor (of dropout), and d_heads (B, H, Lq, dv).
    """

    queries: NDArray
    keys: NDArray
    values: NDArray
    allowed: NDArray
    bias: NDArray | None
    factor: NDArray | None
    d_heads: NDArray | None

    def mapped(self, of_queries: Mapped, of_keys: Mapped) -> Call:
        """The call with one function applied to what counts queries, and another to keys and values."""
        mapped: dict[str, Any] = {
            name: array if array is None else (of_keys if name in ("keys", "values") else of_queries)(array)
            for name, array in vars(self).items()
        }
        return Call(**mapped)


class Held(NamedTuple):
    """A layer as one formulation computes it: how, its config, and its weights as they are held."""

    ways: Ways
    a: Arithmetic
    config: AttentionConfig
    weights: Weights


OF_QUERIES = ("scores", "weights", "heads", "d_scores", "d_queries")
OF_KEYS = ("d_keys", "d_values")
"""What counts queries, and what counts keys, among the arrays of `attend`."""


def attend(layer: Held, call: Call) -> dict[str, NDArray]:
    """Scores, weights and heads; with d_heads also d_scores, d_queries, d_keys, d_values and score.*.

    Sums that run over several parts of the call stay in the accumulator until the last part.
    """
    ways, a = layer.ways, layer.a
    batch, heads, query_len, _ = call.queries.shape
    repeat = heads // call.keys.shape[1]
    folds = ways.groups == "folded"
    part_heads, length = (heads // repeat, repeat * query_len) if folds else (heads, query_len)
    call = call.mapped(
        lambda x: x.reshape(batch, part_heads, length, x.shape[-1]),
        lambda x: x if folds else repeat_kv_heads(x, heads),
    )
    shapes = {"scores": call.allowed.shape, "weights": call.allowed.shape}
    shapes["heads"] = (batch, part_heads, length, call.values.shape[-1])
    if call.d_heads is not None:
        shapes |= {"d_scores": call.allowed.shape, "d_queries": call.queries.shape}
        shapes |= {"d_keys": call.keys.shape, "d_values": call.values.shape}
        shapes |= {name: array.shape for name, array in layer.weights.items() if name.startswith("score.")}
    found = {name: np.zeros(shape, a.wide) for name, shape in shapes.items()}
    for b, h, i in _parts(ways, batch, part_heads, length):
        part = call.mapped(lambda x: x[b, h, i], lambda x: x[b, h])  # noqa: B023  # called at once
        for name, array in _Piece(layer, part).arrays().items():
            if name in OF_QUERIES:
                found[name][b, h, i] = array
            elif name in OF_KEYS:
                found[name][b, h] += array
            else:
                found[name] += array
    for name, array in found.items():
        stored = a.store(array)
        if name in OF_QUERIES:
            stored = stored.reshape(batch, heads, query_len, stored.shape[-1])
        elif name in OF_KEYS and not folds and repeat > 1:
            stored = a.store(a.total(stored.reshape(batch, heads // repeat, repeat, *stored.shape[2:]), 2))
        found[name] = stored
    return found


def _parts(ways: Ways, batch: int, heads: int, length: int) -> Iterator[tuple[slice, slice, slice]]:
    """(items, heads, queries) of every part that is handled at a time."""
    everything, chunks = slice(None), query_blocks(length, QUERY_CHUNK)
    if ways.layout == "heads":
        yield from ((everything, slice(h, h + 1), everything) for h in range(heads))
    elif ways.layout == "items":
        yield from ((slice(b, b + 1), everything, everything) for b in range(batch))
    elif ways.layout == "queries":
        yield from ((everything, everything, queries) for queries in chunks)
    elif ways.layout == "tiles":
        for b, h in product(range(batch), range(heads)):
            yield from ((slice(b, b + 1), slice(h, h + 1), queries) for queries in chunks)
    else:
        yield everything, everything, everything


class _Piece:
    """One part of a call, with as many heads of keys and values as of queries: forward, then backward."""

    def __init__(self, layer: Held, call: Call) -> None:
        self.ways, self.a, self.config, self.parameters = ways, a, config, _ = layer
        self.q, self.k, self.v, self.allowed = call.queries, call.keys, call.values, call.allowed
        self.bias, self.factor, self.d_heads = call.bias, call.factor, call.d_heads
        self.softcap = softcap_of(config, a, ways.parts)
        self.folds_cap = self.softcap is not None and self.softcap.way == "folded" and config.score != "additive"
        scale = config.softmax_scale
        on = {"scores": (1.0, 1.0, scale), "queries": (scale, 1.0, 1.0), "keys": (1.0, scale, 1.0)}
        on["both"] = (scale**0.5, scale**0.5, 1.0) if scale > 0.0 else on["scores"]
        self.on_q, self.on_k, self.on_product = (
            a.hold(factor) for factor in on["scores" if self.folds_cap else ways.scale]
        )

    def arrays(self) -> dict[str, NDArray]:
        """Those of `attend`: OF_QUERIES are stored, the others are as the accumulator has them."""
        found = self._forward()
        return found if self.d_heads is None else {**found, **self._backward(self.d_heads)}

    def _forward(self) -> dict[str, NDArray]:
        a, factor = self.a, self.factor
        similarity = self._additive() if self.config.score == "additive" else self._dot()
        if self.softcap is not None:
            self.cap = self.softcap.cap(similarity if self.folds_cap else self.softcap.inside(similarity))
            similarity = self.cap.scores
        scores = similarity if self.bias is None else a.store(similarity + self.bias)
        opened = np.where(self.allowed, scores, -np.inf).astype(a.wide)
        highest = opened.max(axis=-1, keepdims=True, initial=-np.inf)
        highest = np.where(np.isneginf(highest), 0, highest).astype(a.wide)
        exponentials, self.sum, exact = self._softmax(opened, highest)
        self.exponentials, self.exact = self._only_allowed(exponentials), self._only_allowed(exact)
        weights = a.store(self.exact)
        self.kept = weights if factor is None else a.store(weights * factor)
        self.heads = self._heads(opened)
        if self.ways.recompute:
            self.exact = self._only_allowed(np.exp(opened - (highest + np.log(self.sum))))
            again = a.store(self.exact)
            self.kept = again if factor is None else a.store(again * factor)
        return {"scores": scores, "weights": weights, "heads": self.heads}

    def _heads(self, opened: NDArray) -> NDArray:
        a = self.a
        if self.ways.softmax == "online":
            return self._online(opened)
        if self.ways.softmax == "two parts":
            middle = self.kept.shape[-1] // 2
            past = a.product(self.kept[..., :middle], self.v[..., :middle, :])
            return a.store(past + a.product(self.kept[..., middle:], self.v[..., middle:, :]))
        if self.ways.softmax == "divide last":
            raw = self.exponentials if self.factor is None else self.exponentials * self.factor
            return a.store(a.sum_of_products(a.store(raw), self.v) / self.sum)
        return a.product(self.kept, self.v)

    def _only_allowed(self, x: NDArray) -> NDArray:
        """0 where a key is excluded, also beside a NaN."""
        return np.where(self.allowed, x, x.dtype.type(0))

    def _dot(self) -> NDArray:
        """Scaled q k^T, stored; folded into its softcap, q k^T (scale / c), not stored."""
        a = self.a
        self.q_scaled, self.k_scaled = a.store(self.q * self.on_q), a.store(self.k * self.on_k)
        if self.softcap is not None and self.folds_cap:
            products = a.sum_of_products(self.q_scaled, self.k_scaled.swapaxes(-1, -2))
            return products * a.wide.type(self.config.softmax_scale / self.softcap.limit)
        return a.store(a.product(self.q_scaled, self.k_scaled.swapaxes(-1, -2)) * self.on_product)

    def _additive(self) -> NDArray:
        a = self.a
        from_query = a.product(self.q, self.parameters["score.query.weight"].T)
        from_key = a.product(self.k, self.parameters["score.key.weight"].T)
        self.hidden = self._tanh(a.store(from_query[:, :, :, None] + from_key[:, :, None]))
        vector = self.parameters["score.vector"]
        if self.ways.additive != "loop":
            return a.product(self.hidden, vector[:, None])[..., 0]
        total = np.zeros(self.hidden.shape[:-1], a.wide)
        for s, weight in enumerate(vector):
            total = total + self.hidden[..., s] * weight
        return a.store(total)

    def _tanh(self, x: NDArray) -> NDArray:
        return self.a.store(tanh_by_expm1(x) if self.ways.additive == "expm1" else np.tanh(x))

    def _softmax(self, opened: NDArray, highest: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        """Exponentials, their sum per row (1 in a row without a key), and the weights; not stored."""
        a = self.a
        if self.ways.softmax.startswith("base 2"):
            log2e = a.wide.type(np.log2(np.e))
            if self.ways.softmax == "base 2":
                exponentials = np.exp2((opened - highest) * log2e)
            else:  # each of the two products is rounded, as without a fused multiply-add
                exponentials = np.exp2(opened * log2e - highest * log2e)
        else:
            exponentials = np.exp(opened - highest)
        total = a.total(exponentials, keepdims=True)
        total = np.where(total == 0, 1, total).astype(a.wide)
        if self.ways.softmax == "logsumexp":
            return exponentials, total, np.exp(opened - (highest + np.log(total)))
        if self.ways.softmax == "base 2 logsumexp":
            return exponentials, total, np.exp2(opened * log2e - (highest * log2e + np.log2(total)))
        if self.ways.softmax == "reciprocal":
            return exponentials, total, exponentials * (1 / total)
        return exponentials, total, exponentials / total

    def _online(self, opened: NDArray) -> NDArray:
        """The heads from blocks of keys, rescaled whenever the maximum so far rises."""
        a = self.a
        summed = np.zeros((*opened.shape[:-1], self.v.shape[-1]), a.wide)
        total = np.zeros((*opened.shape[:-1], 1), a.wide)
        highest = np.full((*opened.shape[:-1], 1), -np.inf, a.wide)
        for start in range(0, opened.shape[-1], KEY_BLOCK):
            keys = slice(start, start + KEY_BLOCK)
            block = opened[..., keys]
            higher = np.maximum(highest, block.max(axis=-1, keepdims=True, initial=-np.inf))
            finite = np.where(np.isneginf(higher), 0, higher).astype(a.wide)
            shrink, exponentials = np.exp(highest - finite), np.exp(block - finite)
            total = total * shrink + a.total(exponentials, keepdims=True)
            if self.factor is not None:
                exponentials = exponentials * self.factor[..., keys]
            summed = summed * shrink + a.sum_of_products(a.store(exponentials), self.v[..., keys, :])
            highest = higher
        return a.store(summed / np.where(total == 0, 1, total).astype(a.wide))

    # Backward: names as in the reference

    def _backward(self, d_heads: NDArray) -> dict[str, NDArray]:
        a = self.a
        d_weights = self._only_allowed(a.product(d_heads, self.v.swapaxes(-1, -2)))
        if self.factor is not None:
            d_weights = a.store(d_weights * self.factor)
        d_scores = self._only_allowed(a.store(self._softmax_backward(d_weights, d_heads)))
        d_values = a.sum_of_products(self.kept.swapaxes(-1, -2), d_heads)
        d_similarity = d_scores
        if self.softcap is not None:
            d_similarity = self._only_allowed(self.softcap.backward(d_scores, self.cap))
        if self.config.score == "additive":
            return {"d_scores": d_scores, "d_values": d_values, **self._additive_backward(d_similarity)}
        scaled = a.store(d_similarity * self.on_product)
        return {
            "d_scores": d_scores,
            "d_values": d_values,
            "d_queries": a.store(a.product(scaled, self.k_scaled) * self.on_q),
            "d_keys": a.sum_of_products(scaled.swapaxes(-1, -2), self.q_scaled) * self.on_k,
        }

    def _softmax_backward(self, d_weights: NDArray, d_heads: NDArray) -> NDArray:
        a = self.a
        if self.ways.backward == "chain":
            # P = E / S: through the quotient, then through the sum, then through exp.
            d_sum = -(a.total(d_weights * self.exponentials, keepdims=True) / self.sum) / self.sum
            return self.exponentials * (d_weights / self.sum + d_sum)
        if self.ways.row_sum == "heads":
            row_sum = a.total(d_heads * self.heads, keepdims=True)
        else:
            row_sum = a.total(self.exact * d_weights, keepdims=True)
        if self.ways.backward == "split":
            return self.exact * d_weights - self.exact * row_sum
        return self.exact * (d_weights - row_sum)

    def _additive_backward(self, d_similarity: NDArray) -> dict[str, NDArray]:
        a, hidden = self.a, self.hidden
        if self.ways.additive == "expm1":
            slope = a.store((1 - hidden) * (1 + hidden))
        else:
            slope = a.store(1 - a.store(hidden * hidden))
        inside = a.store(a.store(d_similarity[..., None] * self.parameters["score.vector"]) * slope)
        by_query, by_key = a.store(a.total(inside, 3)), a.store(a.total(inside, 2))

        def rows(x: NDArray) -> NDArray:
            return x.reshape(-1, x.shape[-1])

        return {
            "d_queries": a.product(by_query, self.parameters["score.query.weight"]),
            "d_keys": a.sum_of_products(by_key, self.parameters["score.key.weight"]),
            "score.query.weight": a.sum_of_products(rows(by_query).T, rows(self.q)),
            "score.key.weight": a.sum_of_products(rows(by_key).T, rows(self.k)),
            "score.vector": a.sum_of_products(d_similarity.reshape(1, -1), rows(hidden))[0],
        }
