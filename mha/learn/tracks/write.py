"""Write a step: fourteen parts of the forward direction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases.case import Case, Rng
from conformance.cases.parts import SQUARE, SQUARE_REASON, fixed, prime_config
from mha.learn.exercise import StepExercise, Value
from mha_core import AttentionConfig, AttentionMask
from mha_core.reference.state import State

WHY_TINY = "small enough to be followed by hand"


def tiny(config: AttentionConfig | None = None, **sizes: Any) -> tuple[Case, ...]:
    """Three cases of growing size, with these masks and config (1 head of width 2)."""
    config = AttentionConfig(2, 1, bias=True) if config is None else config
    return tuple(
        Case(
            f"tiny-{batch}-{query_len}-{key_len}",
            WHY_TINY,
            config,
            batch=batch,
            query_len=query_len,
            key_len=key_len,
            same_sizes=WHY_TINY,
            trivial_mask=WHY_TINY,
            **sizes,
        )
        for batch, query_len, key_len in ((1, 1, 2), (1, 2, 3), (2, 2, 3))
    )


def window_case(id: str, catches: str, **sources: Any) -> Case:
    return Case(id, catches, prime_config(), mask=fixed(**sources), trivial_mask="without bounds it excludes nothing")


def one_key_less(rng: Rng, case: Case) -> AttentionMask:
    """Each query of each head may attend to all keys but one of its own."""
    chosen = rng.integers(case.key_len, size=(case.batch, case.config.num_heads, case.query_len, 1))
    return AttentionMask(allowed=np.arange(case.key_len) != chosen)


def offsets(state: State) -> Any:
    """(B,): the position of each item's first query."""
    given = np.asarray(state.inputs.mask.query_offset, dtype=np.int64)
    return np.broadcast_to(given, (state.sizes.batch,)).copy()


def side(number: int) -> Any:
    return lambda state: None if state.inputs.mask.window is None else state.inputs.mask.window[number]


OF_SIZE_1 = ("one-item", "one-query")
"""Cases with an axis of size 1, which must stay."""

TWO_HEADS = AttentionConfig(4, 2, bias=True)
KEY_HEADS = Value("keys", "float64 (B, H, Lk, d)", lambda state: state.heads_of("keys"))
SCALE = Value("scale", "float", lambda state: state.config.softmax_scale)
QUERIES = Value("queries", "float64 (B, H, Lq, d)", "queries")
SCORES = Value("scores", "float64 (B, H, Lq, Lk), of any size", "scores")
ALLOWED = Value("allowed", "bool (B, H, Lq, Lk): True = the query may attend to the key", "allowed")
QUERY_LEN = Value("query_len", "int: Lq", lambda state: state.sizes.query_len)
KEY_LEN = Value("key_len", "int: Lk", lambda state: state.sizes.key_len)
OFFSETS = Value(
    "offsets", "int64 (B,), 0 or more or negative: query i of item b stands at position offsets[b] + i", offsets
)
MASK = Value("allowed", "bool, anything that broadcasts to (B, H, Lq, Lk): True = may attend", "allowed")
WEIGHTS = Value("weights", "float64 (B, H, Lq, Lk)", "weights")
NUM_HEADS = Value("num_heads", "int: H", lambda state: state.config.num_heads)

OVERFLOW = Case(
    "loud",
    "exponentials that overflow, and a fill that real scores go below",
    SQUARE,
    batch=2,
    query_len=7,
    key_len=7,
    mask=fixed(causal=True),
    weight_scale=20.0,
    input_scale=300.0,
    same_sizes=SQUARE_REASON,
)
ZERO_SCALE = Case("scale-zero", "a scale of 0 taken for none", prime_config(scale=0.0))
LONG = Case(
    "quiet-rows",
    "rows of very different size in one tensor, all of them negative",
    prime_config(),
    mask=fixed(
        valid_lens=np.array([[1, 2, 3, 4, 5], [7, 1, 6, 2, 3]]), bias=-np.array([900.0, 3e3, 5e3, 1e300, 3e9])[:, None]
    ),
)
BY_HEAD = Case("by-head", "the mask of one head used for all", prime_config(), mask=one_key_less)
NO_EMPTY_ROW = ("prime", "causal", "square-causal", BY_HEAD, LONG, OVERFLOW)
"""Cases of the softmax in which every query has a key."""

MISUSES = ("mask-ignored", "mask-inverted", "mask-transposed", "allowed-of-first-head", "allowed-of-first-item")
"""What may be done to a mask that is given: bugs of the zoo."""

GROUPS = StepExercise(
    name="groups",
    task="Grouped heads: query head h is scored against key head h // (H // G). No scale here.",
    rules=("grouped-heads",),
    arguments=(QUERIES, Value("keys", "float64 (B, G, Lk, d): G divides H", "keys")),
    returned=(Value("scores", "float64 (B, H, Lq, Lk)", "unscaled"),),
    cases=("prime", "grouped-heads", "multi-query", "square-grouped", *OF_SIZE_1),
    tiny=tiny(AttentionConfig(4, 4, num_kv_heads=2, bias=True)),
    answer=("mha_core.heads:repeat_kv_heads", "mha_core.reference.forward:unscaled"),
    answer_in=("ops.heads:repeat_kv_heads", "ops.attention:dot_score"),
)

EXERCISES = (
    StepExercise(
        name="project",
        task="Apply a projection: x W^T + b, at every position.",
        arguments=(
            Value("x", "float64 (B, L, in)", "query_inputs"),
            Value("weight", "float64 (out, in)", lambda state: state.parameters["q_proj.weight"]),
            Value("bias", "float64 (out,), or None", lambda state: state.parameters.get("q_proj.bias")),
        ),
        returned=(Value("projected", "float64 (B, L, out)", "q_proj"),),
        cases=("no-bias", "prime", "ragged-square", "square-self-attention", *OF_SIZE_1),
        tiny=tiny(),
        answer=("mha_core.reference.forward:project",),
        answer_in=("layers:MultiHeadAttention._project",),
    ),
    StepExercise(
        name="split",
        task="Split channels into heads: channel h*d + i is element i of head h.",
        rules=("head-order",),
        arguments=(Value("x", "float64 (B, L, H * d)", "q_proj"), NUM_HEADS),
        returned=(Value("queries", "float64 (B, H, L, d)", "projected_queries"),),
        cases=("prime", "ragged-square", "one-head", "grouped-heads", *OF_SIZE_1),
        tiny=tiny(TWO_HEADS),
        answer=("mha_core.heads:split_heads",),
        answer_in=("ops.heads:split_heads",),
    ),
    StepExercise(
        name="merge",
        task="Merge heads into channels: the inverse of splitting.",
        rules=("head-order",),
        arguments=(Value("heads", "float64 (B, H, L, d)", "heads"),),
        returned=(Value("merged", "float64 (B, L, H * d)", "merged"),),
        cases=("prime", "ragged-square", "square-causal", "grouped-heads", *OF_SIZE_1),
        tiny=tiny(TWO_HEADS),
        answer=("mha_core.heads:merge_heads",),
        answer_in=("ops.heads:merge_heads",),
    ),
    StepExercise(
        name="scores",
        task="Score every query against every key: q.k times the scale, which is 1 / sqrt(d) unless one is given.",
        rules=("scores",),
        arguments=(
            QUERIES,
            KEY_HEADS,
            Value(
                "scale",
                "float, which may be 0, or None for 1 / sqrt(d)",
                lambda s: None if s.config.softmax_scale == s.config.head_dim**-0.5 else s.config.softmax_scale,
            ),
        ),
        returned=(Value("scores", "float64 (B, H, Lq, Lk)", "similarity"),),
        covers=("unscaled", "similarity"),
        cases=("prime", "ragged-square", "scale", "square-scale", "causal-more-queries", ZERO_SCALE),
        tiny=tiny(),
        answer=("mha_core.reference.forward:unscaled", "mha_core.reference.forward:similarity"),
        answer_in=("ops.attention:dot_score",),
    ),
    StepExercise(
        name="softcap",
        task="Bound scores smoothly by the softcap c: c * tanh(score / c). Without one (None) they stay as they are.",
        rules=("softcap",),
        arguments=(
            Value("scores", "float64 (B, H, Lq, Lk), scaled, of any size", "similarity"),
            Value("softcap", "float, or None", lambda state: state.config.softcap),
        ),
        returned=(Value("capped", "float64 (B, H, Lq, Lk)", "capped"),),
        cases=("prime", "softcap", "softcap-saturated", "softcap-additive"),
        tiny=tiny(replace(AttentionConfig(2, 1), softcap=0.5)),
        answer=("mha_core.reference.forward:cap",),
        answer_in=("ops.attention:cap",),
    ),
    StepExercise(
        name="lengths",
        task="Say which keys lengths allow: key j iff j < its length. Lengths are (B,), or (B, Lq), one a query.",
        rules=("valid-lens",),
        arguments=(
            Value("valid_lens", "integers (B,) or (B, Lq), from 0 to Lk", lambda state: state.inputs.mask.valid_lens),
            QUERY_LEN,
            KEY_LEN,
        ),
        returned=(MASK,),
        cases=("valid-lens", "valid-lens-per-query", "ragged-square", "square-lens-per-query"),
        tiny=tiny(mask=lambda rng, case: AttentionMask(valid_lens=np.arange(1, case.batch + 1))),
        answer=("mha_core.call.masks:_within_valid_lens", "mha_core.call.masks:_first_keys"),
        answer_in=("ops.masks:allowed_keys",),
    ),
    StepExercise(
        name="causal",
        task="Say which keys a causal mask allows: key j iff j <= the position of the query.",
        rules=("causal", "positions"),
        arguments=(QUERY_LEN, KEY_LEN, OFFSETS),
        returned=(MASK,),
        cases=(
            "causal",
            "causal-more-queries",
            "causal-bottom-right",
            "causal-bottom-right-more-queries",
            "causal-offset-per-item",
            "square-causal",
        ),
        tiny=tiny(mask=fixed(causal=True, query_offset=1)),
        answer=("mha_core.call.masks:_within_reach", "mha_core.call.masks:interval"),
        answer_in=("ops.masks:allowed_keys",),
    ),
    StepExercise(
        name="window",
        task="Say which keys a window allows: position - left <= j <= position + right, and None is unbounded.",
        rules=("window", "positions"),
        arguments=(
            QUERY_LEN,
            KEY_LEN,
            OFFSETS,
            Value("left", "int, or None", side(0)),
            Value("right", "int, or None", side(1)),
        ),
        returned=(MASK,),
        cases=(
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
        tiny=tiny(mask=fixed(window=(1, 0), query_offset=1)),
        answer=("mha_core.call.masks:_within_reach", "mha_core.call.masks:interval"),
        answer_in=("ops.masks:allowed_keys",),
    ),
    StepExercise(
        name="softmax",
        task="Take the softmax over the allowed keys; every other key has exactly 0. Here each query has a key.",
        rules=("excluded-keys", "lone-key"),
        arguments=(SCORES, ALLOWED),
        returned=(WEIGHTS,),
        cases=NO_EMPTY_ROW,
        also=MISUSES,
        tiny=tiny(mask=fixed(causal=True)),
        answer=("mha_core.reference.forward:softmax",),
        answer_in=("ops.attention:masked_softmax",),
    ),
    StepExercise(
        name="empty-row",
        task="Take the softmax over the allowed keys; a query that may attend to no key gets weights of 0.",
        rules=("excluded-keys", "empty-row", "non-finite"),
        arguments=(SCORES, ALLOWED),
        returned=(WEIGHTS,),
        cases=(
            "causal-bottom-right-more-queries",
            "ragged-square",
            "every-source",
            LONG,
            OVERFLOW,
            "nan-in-open-key",
        ),
        also=MISUSES,
        tiny=tiny(mask=fixed(causal=True, query_offset=-1)),
        answer=("mha_core.reference.forward:softmax",),
        answer_in=("ops.attention:masked_softmax",),
    ),
    StepExercise(
        name="weighted-sum",
        task="Sum the values of all keys, each by the weight that the query gives it.",
        arguments=(
            Value("weights", "float64 (B, H, Lq, Lk)", "kept_weights"),
            Value("values", "float64 (B, H, Lk, dv)", lambda state: state.heads_of("values")),
        ),
        returned=(Value("heads", "float64 (B, H, Lq, dv)", "heads"),),
        cases=("prime", "ragged-square", "square-causal", "causal-more-queries", *OF_SIZE_1),
        tiny=tiny(TWO_HEADS),
        answer=("mha_core.reference.forward:heads",),
        answer_in=("ops.attention:weighted_sum",),
    ),
    StepExercise(
        name="output",
        task="From heads to the output: merge them, and apply the output projection, x W^T + b.",
        rules=("head-order",),
        arguments=(
            Value("heads", "float64 (B, H, L, dv)", "heads"),
            Value("weight", "float64 (Do, H * dv)", lambda state: state.parameters["out_proj.weight"]),
            Value("bias", "float64 (Do,), or None", lambda state: state.parameters.get("out_proj.bias")),
        ),
        returned=(Value("output", "float64 (B, L, Do)", "output"),),
        covers=("merged", "output"),
        cases=("no-bias", "prime", "ragged-square", "square-causal", "grouped-heads", *OF_SIZE_1),
        tiny=tiny(TWO_HEADS),
        answer=("mha_core.heads:merge_heads", "mha_core.reference.forward:project"),
        answer_in=("ops.heads:merge_heads",),
    ),
    GROUPS,
    StepExercise(
        name="past",
        task="Put the keys of a decoding cache before the new ones; rows of the cache that are padding become 0.",
        rules=("past", "padding"),
        arguments=(
            Value("past", "float64 (B, G, Lp, d), or None", lambda state: state.inputs.past_keys),
            Value("new", "float64 (B, G, Lk - Lp, d)", "new_keys"),
            Value("padding", "bool (B, Lk): keys, past ones first, that no query may attend to", "padding"),
        ),
        returned=(Value("keys", "float64 (B, G, Lk, d)", "keys"),),
        cases=("prime", "past", "past-padded", "decoding-step"),
        tiny=tiny(past_len=1),
        answer=("mha_core.reference.forward:after_past",),
        answer_in=("ops.attention:after_past",),
    ),
)
