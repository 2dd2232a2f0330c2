"""Heads done wrong: splitting, merging, and which key head a query head reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.heads import merge_heads, repeat_kv_heads
from mha_core.reference import forward
from mha_core.reference.state import State, Step

SPLIT_FIX = "Split as reshape(B, L, H, d).transpose(0, 2, 1, 3): channel h * d + i is element i of head h."
MERGE_FIX = "Merge as transpose(0, 2, 1, 3).reshape(B, L, H * dv)."
GROUP_FIX = "Query head h reads key/value head h // (H // G): repeat each key head (repeat_interleave, numpy.repeat)."

Split = Callable[[NDArray, int], NDArray]


# Splitting and merging ----------------------------------------------------------------------------


def _split_with(split: Split) -> Mapping[str, Step]:
    """`split(projected (B, L, H * d), H)` for queries, keys and values."""
    return {
        "queries": lambda s: split(s["q_proj"], s.config.num_heads),
        "new_keys": lambda s: split(s["k_proj"], s.config.num_kv_heads),
        "new_values": lambda s: split(s["v_proj"], s.config.num_kv_heads),
    }


def interleaved(x: NDArray, num_heads: int) -> NDArray:
    batch, length, width = x.shape
    return x.reshape(batch, length, width // num_heads, num_heads).transpose(0, 3, 1, 2)


def _reshaped(x: NDArray, num_heads: int) -> NDArray:
    batch, length, width = x.shape
    return x.reshape(batch, num_heads, length, width // num_heads)


def _merged_by(merge: Callable[[NDArray], NDArray]) -> Mapping[str, Step]:
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


def _mean(heads: NDArray) -> NDArray:
    return merge_heads(np.broadcast_to(heads.mean(axis=1, keepdims=True), heads.shape))


SPLIT_AND_MERGE = (
    Bug(
        "split-d-h",
        "Channels are split as (d, h) instead of (h, d).",
        "queries",
        SPLIT_FIX,
        forward=_split_with(interleaved),
    ),
    Bug(
        "split-without-transpose",
        "Heads are split by a reshape to (B, H, L, d), without a transpose: positions and heads mix.",
        "queries",
        SPLIT_FIX,
        forward=_split_with(_reshaped),
        seen_in="hyunwoongko/transformer#15",
    ),
    Bug(
        "merge-d-h",
        "Heads are merged as (d, h) instead of (h, d).",
        "output",
        MERGE_FIX,
        forward=_merged_by(merge_interleaved),
    ),
    Bug(
        "merge-without-transpose",
        "Heads are merged by a reshape to (B, L, H * dv), without a transpose: positions and heads mix.",
        "output",
        MERGE_FIX,
        forward=_merged_by(_merge_reshaped),
        seen_in="pytorch/opacus#825",
    ),
    Bug(
        "merge-reversed",
        "Heads are merged in reversed order.",
        "output",
        MERGE_FIX,
        forward=_merged_by(lambda heads: merge_heads(heads[:, ::-1])),
    ),
    Bug(
        "merge-batch-of-heads",
        "Heads folded into the batch as (B, H) are unfolded as (H, B).",
        "output",
        "Unfold in the order in which they were folded: reshape(B, H, L, dv).",
        forward=_merged_by(_merge_batch_last),
    ),
    Bug(
        "heads-averaged",
        "Heads are averaged before the output projection instead of concatenated.",
        "output",
        MERGE_FIX,
        forward=_merged_by(_mean),
    ),
)


# The weighted sum ---------------------------------------------------------------------------------


def _heads_of(read: Callable[[State], NDArray]) -> Mapping[str, Step]:
    return {"heads": lambda s: s["kept_weights"] @ read(s)}


def _weights_transposed(state: State) -> NDArray:
    if state.sizes.query_len != state.sizes.key_len:
        raise DoesNotApply("weights can be transposed unnoticed only where Lq = Lk")
    return state["kept_weights"].swapaxes(-1, -2) @ state.heads_of("values")


WEIGHTED_SUM = (
    Bug(
        "value-heads-rolled",
        "Head h sums the values of head h - 1.",
        "heads",
        "Multiply the weights of head h with the values that head h reads.",
        forward=_heads_of(lambda s: np.roll(s.heads_of("values"), 1, axis=1)),
    ),
    Bug(
        "value-heads-first",
        "Every head sums the values of head 0.",
        "heads",
        "Multiply the weights of head h with the values that head h reads.",
        forward=_heads_of(lambda s: np.broadcast_to(s["values"][:, :1], s.heads_of("values").shape)),
    ),
    Bug(
        "weights-transposed",
        "The weights are transposed before they meet the values.",
        "heads",
        "Compute weights @ values, with the weights (B, H, Lq, Lk).",
        forward={"heads": _weights_transposed},
    ),
)


# Grouped heads ------------------------------------------------------------------------------------


def _read_by(read: Callable[[State, NDArray], NDArray], keys: bool = True, values: bool = True) -> Mapping[str, Step]:
    """`read(state, stage (B, G, L, d))` as the heads that query heads read, (B, H, L, d)."""

    def unscaled(state: State) -> NDArray:
        if state.config.num_heads == state.config.num_kv_heads or state.config.score == "additive":
            return forward.unscaled(state)
        return state["queries"] @ read(state, state["keys"]).swapaxes(-1, -2)

    def heads(state: State) -> NDArray:
        if state.config.num_heads == state.config.num_kv_heads:
            return forward.heads(state)
        return state["kept_weights"] @ read(state, state["values"])

    return {**({"unscaled": unscaled} if keys else {}), **({"heads": heads} if values else {})}


def _tiled(state: State, x: NDArray) -> NDArray:
    return np.tile(x, (1, state.config.num_heads // x.shape[1], 1, 1))


def _first(state: State, x: NDArray) -> NDArray:
    return np.repeat(x[:, :1], state.config.num_heads, axis=1)


def _averaged(state: State, x: NDArray) -> NDArray:
    return np.repeat(x.mean(axis=1, keepdims=True), state.config.num_heads, axis=1)


def _next(state: State, x: NDArray) -> NDArray:
    return np.roll(repeat_kv_heads(x, state.config.num_heads), 1, axis=1)


GROUPS = (
    Bug(
        "groups-tiled",
        "Key and value heads are tiled where each one must be repeated.",
        "scores",
        GROUP_FIX,
        forward=_read_by(_tiled),
        seen_in="onnx/onnx#7274",
    ),
    Bug(
        "group-keys-tiled",
        "Key heads are tiled, value heads repeated.",
        "scores",
        GROUP_FIX,
        forward=_read_by(_tiled, values=False),
    ),
    Bug(
        "group-values-tiled",
        "Value heads are tiled, key heads repeated.",
        "heads",
        GROUP_FIX,
        forward=_read_by(_tiled, keys=False),
    ),
    Bug("groups-first-only", "Every query head reads key/value head 0.", "scores", GROUP_FIX, forward=_read_by(_first)),
    Bug(
        "groups-averaged",
        "Every query head reads the mean of all key/value heads.",
        "scores",
        GROUP_FIX,
        forward=_read_by(_averaged),
    ),
    Bug(
        "groups-off-by-one",
        "Query head h reads the key/value head of query head h - 1.",
        "scores",
        GROUP_FIX,
        forward=_read_by(_next),
    ),
)

BUGS = (*SPLIT_AND_MERGE, *WEIGHTED_SUM, *GROUPS)
