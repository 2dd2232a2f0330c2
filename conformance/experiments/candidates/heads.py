"""Heads of values done otherwise: how channels become heads, which head reads which, and how heads are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.candidates.steps import function_on
from conformance.experiments.changes.axes import RULES, taken
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.heads import merge_heads
from mha_core.reference.state import State

Change = Callable[[State, NDArray], NDArray]
Split = Callable[[NDArray, int], NDArray]
Mix = Callable[[NDArray], NDArray]


def heads_otherwise() -> Iterator[Bug]:
    """Every candidate for the splitting, the mapping and the merging of the values' heads."""
    for slug, (words, split) in SPLITS.items():
        yield function_on("new_values", slug, _split_by(split), words)
    for slug, (words, merge) in MERGES.items():
        yield function_on("merged", slug, _merged_by(merge), words)
    for slug, (words, which) in MAPPINGS.items():
        yield function_on("heads", slug, _mapped(which), words)
    for slug, (words, rule) in RULES.items():
        yield function_on("heads", f"values-{slug}", _reading(rule), f"they read the value heads {words}")
    for slug, (words, factor) in FACTORS.items():
        yield function_on("heads", slug, _times(factor), words)
    for slug, (words, mixed) in MIXTURES.items():
        yield function_on("heads", slug, _mixed_by(mixed), words)


def _split_dh(x: NDArray, heads: int) -> NDArray:
    return x.reshape(*x.shape[:2], -1, heads).transpose(0, 3, 1, 2)


def _split_reshaped(x: NDArray, heads: int) -> NDArray:
    return x.reshape(x.shape[0], heads, x.shape[1], -1)


def _split_transposed(x: NDArray, heads: int) -> NDArray:
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 3, 1).reshape(batch, heads, length, -1)


def _split_column_major(x: NDArray, heads: int) -> NDArray:
    batch, length, width = x.shape
    return x.swapaxes(1, 2).reshape(batch, heads, length, width // heads)


SPLITS: dict[str, tuple[str, Split]] = {
    "split-d-h": ("channels are split as (d, G) instead of (G, d)", _split_dh),
    "split-reshaped": ("a reshape to (B, G, L, dv) without a transpose mixes positions and heads", _split_reshaped),
    "split-transposed": ("each head is transposed in memory: positions and channels mix", _split_transposed),
    "split-column-major": (
        "a reshape of (B, G * dv, L) to (B, G, L, dv) mixes positions and channels",
        _split_column_major,
    ),
}


def _merge_dh(x: NDArray) -> NDArray:
    return x.transpose(0, 2, 3, 1).reshape(x.shape[0], x.shape[2], -1)


def _merge_reshaped(x: NDArray) -> NDArray:
    return x.reshape(x.shape[0], x.shape[2], -1)


def _merge_column_major(x: NDArray) -> NDArray:
    return x.swapaxes(2, 3).reshape(x.shape[0], x.shape[2], -1)


MERGES: dict[str, tuple[str, Mix]] = {
    "merge-d-h": ("heads are merged as (d, H) instead of (H, d)", _merge_dh),
    "merge-reshaped": ("a reshape to (B, L, H * dv) without a transpose mixes positions and heads", _merge_reshaped),
    "merge-column-major": (
        "a reshape of (B, H, dv, L) to (B, L, H * dv) mixes positions and channels",
        _merge_column_major,
    ),
    "merge-mean": (
        "they are the mean of all heads in the place of each",
        lambda x: merge_heads(np.broadcast_to(x.mean(axis=1, keepdims=True), x.shape)),
    ),
    "merge-sum": (
        "they are the sum of all heads in the place of each",
        lambda x: merge_heads(np.broadcast_to(x.sum(axis=1, keepdims=True), x.shape)),
    ),
}

MAPPINGS: dict[str, tuple[str, Callable[[NDArray, int, int], NDArray]]] = {
    "tiled": (
        "query head h reads value head h % G: they are tiled, where each must be repeated",
        lambda h, n, g: h % g,
    ),
    "repeated-reversed": ("the groups read the value heads in reverse order", lambda h, n, g: g - 1 - h // (n // g)),
    "tiled-reversed": ("query head h reads value head G - 1 - h % G", lambda h, n, g: g - 1 - h % g),
    "all-first": ("every query head reads value head 0", lambda h, n, g: 0 * h),
    "all-last": ("every query head reads the last value head", lambda h, n, g: 0 * h + g - 1),
    "next": ("query head h reads the value head of query head h + 1", lambda h, n, g: (h + 1) % n // (n // g)),
    "previous": ("query head h reads the value head of query head h - 1", lambda h, n, g: (h - 1) % n // (n // g)),
    "next-group": ("each group reads the value head of the next group", lambda h, n, g: (h // (n // g) + 1) % g),
    "previous-group": ("each group reads the value head of the group before", lambda h, n, g: (h // (n // g) - 1) % g),
    "by-g": ("query head h reads value head min(h // G, G - 1)", lambda h, n, g: np.minimum(h // g, g - 1)),
    "by-g-wrapped": ("query head h reads value head (h // G) % G", lambda h, n, g: h // g % g),
    "clamped": ("query head h reads value head min(h, G - 1)", lambda h, n, g: np.minimum(h, g - 1)),
}
"""Name -> (words, (query heads 0 to H - 1, H, G) -> the value head that each reads)."""

FACTORS: dict[str, tuple[str, Callable[[NDArray, int], NDArray]]] = {
    "times-head": ("head h is multiplied by h + 1", lambda h, n: h + 1.0),
    "over-head": ("head h is divided by h + 1", lambda h, n: 1.0 / (h + 1.0)),
    "halved-by-head": ("head h is multiplied by 2 ** -(h + 1)", lambda h, n: 2.0 ** -(h + 1.0)),
    "halved-from-0": ("head h is multiplied by 2 ** -h", lambda h, n: 2.0 ** -h.astype(float)),
    "alibi": ("head h is multiplied by 2 ** (-8 (h + 1) / H)", lambda h, n: 2.0 ** (-8.0 * (h + 1.0) / n)),
    "without-first": ("head 0 is left out", lambda h, n: (h != 0).astype(float)),
    "without-last": ("the last head is left out", lambda h, n: (h != n - 1).astype(float)),
    "only-first": ("all heads but head 0 are left out", lambda h, n: (h == 0).astype(float)),
    "only-last": ("all heads but the last are left out", lambda h, n: (h == n - 1).astype(float)),
    "only-even": ("odd heads are left out", lambda h, n: (h % 2 == 0).astype(float)),
    "only-odd": ("even heads are left out", lambda h, n: (h % 2 == 1).astype(float)),
    "odd-negated": ("odd heads have the other sign", lambda h, n: (-1.0) ** h),
    "first-doubled": ("head 0 counts twice", lambda h, n: 1.0 + (h == 0)),
    "last-doubled": ("the last head counts twice", lambda h, n: 1.0 + (h == n - 1)),
    "first-negated": ("head 0 has the other sign", lambda h, n: 1.0 - 2.0 * (h == 0)),
    "last-negated": ("the last head has the other sign", lambda h, n: 1.0 - 2.0 * (h == n - 1)),
}
"""Name -> (words, (heads 0 to H - 1, H) -> the factor of each)."""


def _neighbours(x: NDArray) -> NDArray:
    return 0.5 * (x + np.roll(x, 1, axis=1))


MIXTURES: dict[str, tuple[str, Mix]] = {
    "plus-next-head": ("the next head is added to each", lambda x: x + np.roll(x, -1, axis=1)),
    "plus-previous-head": ("the head before is added to each", lambda x: x + np.roll(x, 1, axis=1)),
    "averaged-with-previous": ("each head is averaged with the one before", _neighbours),
    "averaged-with-next": ("each head is averaged with the next", lambda x: 0.5 * (x + np.roll(x, -1, axis=1))),
    "cumulated": ("each head is added to all after it", lambda x: x.cumsum(axis=1)),
    "centred": ("the mean of all heads is subtracted from each", lambda x: x - x.mean(axis=1, keepdims=True)),
    "plus-mean": ("the mean of all heads is added to each", lambda x: x + x.mean(axis=1, keepdims=True)),
    "plus-sum": ("the sum of all heads is added to each", lambda x: x + x.sum(axis=1, keepdims=True)),
    "highest": (
        "each head has the highest number of all heads",
        lambda x: np.broadcast_to(x.max(axis=1, keepdims=True), x.shape),
    ),
}


def _mapped(which: Callable[[NDArray, int, int], NDArray]) -> Change:
    def heads(state: State, x: NDArray) -> NDArray:
        config = state.config
        read = which(np.arange(config.num_heads), config.num_heads, config.num_kv_heads)
        return state["kept_weights"] @ state["values"][:, np.clip(read, 0, config.num_kv_heads - 1)]

    return heads


def _reading(rule: Callable[[int], NDArray]) -> Change:
    def heads(state: State, x: NDArray) -> NDArray:
        values = state.heads_of("values")
        return state["kept_weights"] @ taken(values, rule(values.shape[1]), 1)

    return heads


def _split_by(split: Split) -> Change:
    return _checked(lambda state, array: split(state["v_proj"], state.config.num_kv_heads))


def _merged_by(merge: Mix) -> Change:
    return _checked(lambda state, array: merge(state["heads"]))


def _times(factor: Callable[[NDArray, int], NDArray]) -> Change:
    return lambda state, array: array * factor(np.arange(array.shape[1]), array.shape[1])[:, None, None]


def _mixed_by(mixed: Mix) -> Change:
    return lambda state, array: mixed(array)


def _checked(function: Change) -> Change:
    def change(state: State, array: NDArray) -> NDArray:
        try:
            return function(state, array).reshape(array.shape)
        except ValueError as error:
            raise DoesNotApply(str(error)) from error

    return change
