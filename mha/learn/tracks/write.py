"""Write a step: parts of the forward direction, from the projection to the cache of decoding."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases.case import Case, Rng
from conformance.cases.parts import case, fixed
from mha.learn.exercise import Value
from mha.learn.tracks.table import (
    ANY_ALLOWED,
    ANY_KEYS,
    ANY_QUERIES,
    ANY_SCORES,
    ANY_WEIGHTS,
    CAUSAL_OF_SIZE_1,
    IN_FRONT,
    KEY_LEN,
    LENGTHS_MASK,
    LONG,
    MASK,
    MISUSES,
    NO_EMPTY_ROW,
    NO_MASK,
    NUM_HEADS,
    OF_SIZE_1,
    OFFSETS,
    ONE_MASK,
    OVERFLOW,
    QUERIES,
    QUERY_LEN,
    TWO_HEADS,
    ZERO_SCALE,
    drawn_mask,
    projection,
    side,
    step,
    tiny,
    window_case,
)
from mha_core import AttentionConfig, AttentionMask
from mha_core.reference.state import State

HEADS = Value("heads", "float64 (B, H, L, d)", "heads")
UNSCALED = Value("scores", "float64 (B, H, Lq, Lk)", "unscaled")

GROUPS = step(
    "groups",
    "Grouped heads: query head h is scored against key head h // (H // G). No scale here.",
    (QUERIES, Value("keys", "float64 (B, G, Lk, d): G divides H", "keys")),
    UNSCALED,
    ("prime", "grouped-heads", "multi-query", "square-grouped", *OF_SIZE_1),
    rules=("grouped-heads",),
    config=AttentionConfig(4, 4, num_kv_heads=2, bias=True),
)


def new_keys(state: State) -> Any:
    """Return the keys after the cached past, (B, G, Lk - Lp, d), with 0 at padding."""
    return np.where(state["padding"][:, None, state.sizes.past_len :, None], 0.0, state["new_keys"])


def with_new_keys(arrays: Mapping[str, Any]) -> Any:
    """Return all keys (B, G, Lk, d), cached and new ones, with 0 where new keys are padding."""
    keys, number = arrays["keys"], arrays["new_keys"].shape[2]
    is_new = np.arange(keys.shape[2])[:, None] >= keys.shape[2] - number
    return np.where(is_new & np.asarray(arrays["padding"], bool)[:, None, :, None], 0.0, keys)


def padded_within(rng: Rng, case: Case) -> AttentionMask:
    """Return a mask in which no query may attend to key 1 (a past key) or to the last key (a new one)."""
    return AttentionMask(allowed=~np.isin(np.arange(case.key_len), (1, case.key_len - 1)))


EXERCISES = (
    step(
        "project",
        "Apply a projection: x W^T + b, at every position.",
        (Value("x", "float64 (B, L, in): B items, L positions in each", "query_inputs"), *projection("q_proj")),
        Value("projected", "float64 (B, L, out)", "q_proj"),
        ("no-bias", "prime", "ragged-square", "square-self-attention", *OF_SIZE_1),
        advice="The weight is (out, in), and the last axis of x is in: transpose the weight. Add the bias, (out,), if "
        "there is one.",
    ),
    step(
        "split",
        "Split channels into heads: channel h*d + i is element i of head h.",
        (Value("x", "float64 (B, L, H * d)", "q_proj"), NUM_HEADS),
        Value("queries", "float64 (B, H, L, d)", "projected_queries"),
        ("prime", "ragged-square", "one-head", "grouped-heads", *OF_SIZE_1),
        rules=("head-order",),
        advice="Cut the channels first, (B, L, H, d); then exchange the axes of positions and of heads.",
        config=TWO_HEADS,
    ),
    step(
        "merge",
        "Merge heads into channels: the inverse of splitting.",
        (HEADS,),
        Value("merged", "float64 (B, L, H * d)", "merged"),
        ("prime", "ragged-square", "square-causal", "grouped-heads", *OF_SIZE_1),
        rules=("head-order",),
        advice="Exchange the axes of heads and of positions first, (B, L, H, d); then join the last two.",
        config=TWO_HEADS,
    ),
    step(
        "dot-products",
        "Score every query against every key by their dot product, q.k.",
        (ANY_QUERIES, ANY_KEYS),
        Value("scores", "float64 (..., Lq, Lk): row i has the products of query i", "unscaled"),
        ("prime", "square-no-bias", "scale", "square-scale", "causal-more-queries", *OF_SIZE_1),
        advice="Every query meets every key: Lq * Lk products. Exchange the last two axes of the keys, "
        "keys.swapaxes(-1, -2); keys.T would turn the axes in front around too.",
    ),
    step(
        "scores",
        "Score every query against every key: q.k times the scale, which is 1 / sqrt(d) unless one is given.",
        (
            ANY_QUERIES,
            ANY_KEYS,
            Value(
                "scale",
                "float, which may be 0, or None for 1 / sqrt(d)",
                lambda s: None if s.config.softmax_scale == s.config.head_dim**-0.5 else s.config.softmax_scale,
            ),
        ),
        Value("scores", "float64 (..., Lq, Lk)", "similarity"),
        ("prime", "ragged-square", "scale", "square-scale", "causal-more-queries", ZERO_SCALE),
        advice="A score is q.k times the scale. None means 1 / sqrt(d); a scale of 0 is a scale.",
        covers=("unscaled", "similarity"),
    ),
    step(
        "softcap",
        "Bound scores smoothly by the softcap c: c * tanh(score / c). Without one (None) they stay as they are.",
        (
            Value("scores", "float64 (B, H, Lq, Lk), scaled, of any size", "similarity"),
            Value("softcap", "float, or None", lambda state: state.config.softcap),
        ),
        Value("capped", "float64 (B, H, Lq, Lk)", "capped"),
        ("prime", "softcap", "softcap-saturated", "softcap-additive"),
        rules=("softcap",),
        config=replace(AttentionConfig(2, 1), softcap=0.5),
    ),
    step(
        "softmax",
        "Take the softmax of each row of scores: weights that are never negative, and sum to 1.",
        (ANY_SCORES,),
        ANY_WEIGHTS,
        NO_MASK,
        never=("mask-inverted-added", "mask-inverted-filled"),  # there is no mask
    ),
    step(
        "lengths",
        "Say which keys lengths allow: key j exactly if j < its length. Lengths are (B,), or (B, Lq), one a query.",
        (
            Value(
                "valid_lens",
                "integers (B,), one for each item of a batch, or (B, Lq), from 0 to Lk",
                lambda state: state.inputs.mask.valid_lens,
            ),
            QUERY_LEN,
            KEY_LEN,
        ),
        LENGTHS_MASK,
        ("valid-lens", "valid-lens-per-query", "ragged-square", "square-lens-per-query"),
        advice="Lengths (B,) must become (B, 1, 1, 1), and lengths (B, Lq) must become (B, 1, Lq, 1), with None or "
        "reshape. Compare them with np.arange(key_len), which is (Lk,).",
        never=("mask-ignored", "mask-inverted"),  # the same as those of lengths
        drawn=drawn_mask(lambda rng, case: AttentionMask(valid_lens=rng.integers(case.key_len + 1, size=case.batch))),
        mask=lambda rng, case: AttentionMask(valid_lens=np.arange(1, case.batch + 1)),
    ),
    step(
        "causal",
        "Say which keys a causal mask allows: query i may attend to key j exactly if j <= i.",
        (QUERY_LEN, KEY_LEN),
        ONE_MASK,
        ("causal", "causal-more-queries", "square-causal", *CAUSAL_OF_SIZE_1),
        advice="Compare np.arange(key_len), which is (Lk,), with the numbers of the queries, (Lq, 1).",
        never=("mask-ignored",),  # the same as "causal-ignored"
        drawn=drawn_mask(fixed(causal=True)),
        mask=fixed(causal=True),
    ),
    step(
        "causal-offsets",
        "Say which keys a causal mask allows where queries do not begin at 0: only key j <= the query's position.",
        (QUERY_LEN, KEY_LEN, OFFSETS),
        MASK,
        (
            "causal",
            "causal-more-queries",
            "causal-bottom-right",
            "causal-bottom-right-more-queries",
            "causal-offset-per-item",
            case("rising-offsets", "the largest offset used for all", causal=True, query_offset=[-2, 1]),
            "square-causal",
        ),
        advice="Query i of item b stands at position offsets[b] + i, key j at position j. Give the heads "
        "an axis, of size 1: positions are (B, 1, Lq, 1), and are compared with np.arange(key_len), (Lk,).",
        never=("mask-ignored",),  # the same as "causal-ignored"
        drawn=drawn_mask(
            lambda rng, case: AttentionMask(causal=True, query_offset=rng.integers(-4, 9, size=case.batch))
        ),
        mask=fixed(causal=True, query_offset=1),
    ),
    step(
        "window",
        "Say which keys a window allows: position - left <= j <= position + right, and None is unbounded.",
        (
            QUERY_LEN,
            KEY_LEN,
            OFFSETS,
            Value("left", "int, or None", side(0)),
            Value("right", "int, or None", side(1)),
        ),
        MASK,
        (
            "window",
            "square-window",
            "window-zero",
            window_case(
                "window-left", "a window without a right side, 0 to the left", window=(0, None), query_offset=1
            ),
            window_case(
                "window-right", "a window without a left side, 0 to the right", window=(None, 0), query_offset=-1
            ),
            window_case("window-without-bounds", "a mask that is not made without bounds", window=(None, None)),
            window_case("window-offsets", "offsets of each item", window=(1, 2), query_offset=np.array([2, -1])),
        ),
        rules=("window", "positions"),
        drawn=drawn_mask(
            lambda rng, case: AttentionMask(
                window=(int(rng.integers(5)), int(rng.integers(5))), query_offset=rng.integers(-4, 9, size=case.batch)
            )
        ),
        mask=fixed(window=(1, 0), query_offset=1),
    ),
    step(
        "masked-softmax",
        "Take the softmax over the allowed keys; every other key has exactly 0. Here each query has a key.",
        (ANY_SCORES, ANY_ALLOWED),
        ANY_WEIGHTS,
        NO_EMPTY_ROW,
        rules=("excluded-keys", "lone-key"),
        also=MISUSES,
        mask=fixed(causal=True),
    ),
    step(
        "empty-row",
        "Take the softmax over the allowed keys; a query that may attend to no key gets weights of 0.",
        (ANY_SCORES, ANY_ALLOWED),
        ANY_WEIGHTS,
        (
            "causal-bottom-right-more-queries",
            "ragged-square",
            "every-source",
            LONG,
            OVERFLOW,
            "nan-in-open-key",
        ),
        rules=("excluded-keys", "empty-row", "non-finite"),
        also=MISUSES,
        mask=fixed(causal=True, query_offset=-1),
    ),
    step(
        "weighted-sum",
        "Sum the values of all keys, each times the weight that the query gives it. Take weights as they come: a row "
        "of weights may be all 0, and its answer is 0, so never divide by the sum again.",
        (
            Value("weights", f"float64 (..., Lq, Lk): those of Lq queries, for Lk keys{IN_FRONT}", "kept_weights"),
            Value("values", "float64 (..., Lk, dv): one of width dv for each key", lambda s: s.heads_of("values")),
        ),
        Value("output", "float64 (..., Lq, dv): one for each query", "heads"),
        ("prime", "square-no-bias", "square-causal", "causal-bottom-right-more-queries", *OF_SIZE_1),
        advice="Row i of the weights has the weights of query i, one for each key, and row j of the values is that of "
        "key j: the keys meet in weights @ values, and nothing is transposed.",
        config=TWO_HEADS,
    ),
    step(
        "output",
        "From heads to the output: merge them, and apply the output projection, x W^T + b.",
        (HEADS, *projection("out_proj")),
        Value("output", "float64 (B, L, out)", "output"),
        ("no-bias", "prime", "ragged-square", "square-causal", "grouped-heads", *OF_SIZE_1),
        rules=("head-order",),
        advice="Merge the heads, as in `merge`. Then multiply by weight.T, for the weight is (out, in), and add the "
        "bias if there is one.",
        covers=("merged", "output"),
        config=TWO_HEADS,
    ),
    GROUPS,
    replace(
        step(
            "past",
            "Put the keys of a decoding cache before the new ones. Rows of the cache that are padding become 0: they "
            "may hold anything, NaN too. Padded rows of the new keys are 0 already.",
            (
                Value("past", "float64 (B, G, Lp, d), or None", lambda state: state.inputs.past_keys),
                Value("new", "float64 (B, G, Lk - Lp, d): 0 where it is padding", new_keys),
                Value("padding", "bool (B, Lk): True = padding; the Lp rows of the cache come first", "padding"),
            ),
            Value("keys", "float64 (B, G, Lk, d)", with_new_keys),
            ("prime", "past", "past-padded", "decoding-step"),
            rules=("past", "padding"),
            covers=("keys",),
        ),
        tiny=tuple(replace(one, key_len=one.key_len + 2, past_len=2) for one in tiny(mask=padded_within)),
    ),
)
