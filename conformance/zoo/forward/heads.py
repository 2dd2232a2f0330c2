"""Heads done wrong: splitting, merging, and which key head a query head reads."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Steps, Table, after, require
from conformance.zoo.forward.scores import is_product
from mha_core.heads import merge_heads, repeat_kv_heads
from mha_core.reference.state import State

# Splitting and merging ----------------------------------------------------------------------------


def _split(split: Callable[[NDArray, int], NDArray]) -> Steps:
    """`split(projected (B, L, H * d), H)` for queries, keys and values."""
    return {
        "projected_queries": lambda s: split(s["q_proj"], s.config.num_heads),
        "projected_keys": lambda s: split(s["k_proj"], s.config.num_kv_heads),
        "projected_values": lambda s: split(s["v_proj"], s.config.num_kv_heads),
    }


def interleaved(x: NDArray, num_heads: int) -> NDArray:
    batch, length, width = x.shape
    return x.reshape(batch, length, width // num_heads, num_heads).transpose(0, 3, 1, 2)


def _reshaped(x: NDArray, num_heads: int) -> NDArray:
    batch, length, width = x.shape
    return x.reshape(batch, num_heads, length, width // num_heads)


def _merged(merge: Callable[[NDArray], NDArray]) -> Steps:
    """`merge(heads (B, H, Lq, dv))` before the output projection."""
    return {"merged": lambda s: merge(s["heads"])}


def merge_interleaved(heads: NDArray) -> NDArray:
    batch, num_heads, length, head_dim = heads.shape
    return heads.transpose(0, 2, 3, 1).reshape(batch, length, head_dim * num_heads)


def _merge_reshaped(heads: NDArray) -> NDArray:
    batch, num_heads, length, head_dim = heads.shape
    return heads.reshape(batch, length, num_heads * head_dim)


def _merge_batch_last(heads: NDArray) -> NDArray:
    batch, num_heads, length, head_dim = heads.shape
    return merge_heads(heads.reshape(num_heads, batch, length, head_dim).swapaxes(0, 1))


_row = Table("queries", "Split as reshape(B, L, H, d).transpose(0, 2, 1, 3): channel h * d + i is element i of head h.")
_merge = Table("output", "Merge as transpose(0, 2, 1, 3).reshape(B, L, H * dv).")

SPLIT_AND_MERGE = (
    _row(
        "split-d-h", "Channels of queries, keys and values are split as (d, h) instead of (h, d).", _split(interleaved)
    ),
    _row(
        "split-and-merge-d-h",
        "Channels of queries, keys and values are split as (d, h) instead of (h, d), and merged so: head h has every "
        "H-th channel.",
        {**_split(interleaved), **_merged(merge_interleaved)},
        fix="Split as reshape(B, L, H, d).transpose(0, 2, 1, 3); merge as transpose(0, 2, 1, 3).reshape(B, L, H * dv).",
    ),
    _row(
        "split-without-transpose",
        "Heads are split by a reshape to (B, H, L, d), without a transpose: positions and heads mix.",
        _split(_reshaped),
        seen_in="hyunwoongko/transformer#15",
    ),
    _merge("merge-d-h", "Heads are merged as (d, h) instead of (h, d).", _merged(merge_interleaved)),
    _merge(
        "merge-without-transpose",
        "Heads are merged by a reshape to (B, L, H * dv), without a transpose: positions and heads mix.",
        _merged(_merge_reshaped),
        seen_in="pytorch/opacus#825",
    ),
    _merge(
        "merge-reversed",
        "Heads are merged in reversed order.",
        _merged(lambda heads: merge_heads(heads[:, ::-1])),
    ),
    _merge(
        "merge-batch-of-heads",
        "Heads folded into the batch as (B, H) are unfolded as (H, B).",
        _merged(_merge_batch_last),
        fix="Unfold in the order in which they were folded: reshape(B, H, L, dv).",
    ),
    _merge(
        "heads-averaged",
        "Heads are averaged before the output projection instead of concatenated.",
        _merged(lambda heads: merge_heads(np.broadcast_to(heads.mean(axis=1, keepdims=True), heads.shape))),
    ),
)


# The weighted sum ---------------------------------------------------------------------------------


def _sum_of(values: Callable[[State], NDArray]) -> Steps:
    """The weighted sum of other values, (B, H, Lk, dv)."""
    return {"heads": lambda s: s["kept_weights"] @ values(s)}


def _weights_transposed(state: State) -> NDArray:
    require(state.sizes.query_len == state.sizes.key_len, "weights can be transposed unnoticed only where Lq = Lk")
    return state["kept_weights"].swapaxes(-1, -2) @ state.heads_of("values")


_row = Table("heads", "Multiply the weights of head h with the values that head h reads.")

WEIGHTED_SUM = (
    _row(
        "value-heads-rolled",
        "Head h sums the values of head h - 1.",
        _sum_of(lambda s: np.roll(s.heads_of("values"), 1, axis=1)),
    ),
    _row(
        "value-heads-first",
        "Every head sums the values of head 0.",
        _sum_of(lambda s: np.broadcast_to(s["values"][:, :1], s.heads_of("values").shape)),
    ),
    _row(
        "weights-transposed",
        "The weights are transposed before they meet the values.",
        {"heads": _weights_transposed},
        fix="Compute weights @ values, with the weights (B, H, Lq, Lk).",
    ),
)


# Grouped heads ------------------------------------------------------------------------------------

Read = Callable[[NDArray, int], NDArray]
"""(stage (B, G, L, d), H) -> the heads that query heads read, (B, H, L, d)."""


def _is_grouped(state: State) -> bool:
    return state.config.num_heads != state.config.num_kv_heads


def _keys(read: Read) -> Steps:
    def unscaled(state: State, right: NDArray) -> NDArray:
        return state["queries"] @ read(state["keys"], state.config.num_heads).swapaxes(-1, -2)

    return after("unscaled", unscaled, lambda s: _is_grouped(s) and is_product(s))


def _values(read: Read) -> Steps:
    def heads(state: State, right: NDArray) -> NDArray:
        return state["kept_weights"] @ read(state["values"], state.config.num_heads)

    return after("heads", heads, _is_grouped)


def _both(read: Read) -> Steps:
    return {**_keys(read), **_values(read)}


def _tiled(x: NDArray, num_heads: int) -> NDArray:
    return np.tile(x, (1, num_heads // x.shape[1], 1, 1))


_row = Table(
    "scores",
    "Query head h reads key/value head h // (H // G): repeat each key head (repeat_interleave, numpy.repeat).",
)

GROUPS = (
    _row(
        "groups-tiled",
        "Key and value heads are tiled where each one must be repeated.",
        _both(_tiled),
        seen_in="onnx/onnx#7274",
    ),
    _row(
        "group-keys-tiled",
        "Key heads are tiled, value heads repeated.",
        _keys(_tiled),
        fix="Repeat each key head (repeat_interleave, numpy.repeat): query head h reads key head h // (H // G).",
    ),
    _row(
        "group-values-tiled",
        "Value heads are tiled, key heads repeated.",
        _values(_tiled),
        stage="heads",
        fix="Repeat each value head (repeat_interleave, numpy.repeat): query head h reads value head h // (H // G).",
    ),
    _row(
        "groups-first-only",
        "Every query head reads key/value head 0.",
        _both(lambda x, num_heads: np.repeat(x[:, :1], num_heads, axis=1)),
    ),
    _row(
        "groups-averaged",
        "Every query head reads the mean of all key/value heads.",
        _both(lambda x, num_heads: np.repeat(x.mean(axis=1, keepdims=True), num_heads, axis=1)),
    ),
    _row(
        "groups-off-by-one",
        "Query head h reads the key/value head of query head h - 1.",
        _both(lambda x, num_heads: np.roll(repeat_kv_heads(x, num_heads), 1, axis=1)),
    ),
)

BUGS = (*SPLIT_AND_MERGE, *WEIGHTED_SUM, *GROUPS)
