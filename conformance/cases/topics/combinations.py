"""Cases that have many features of today's models at once, and sizes that people use.

A feature that is right by itself may be left out beside another: a path for decoding has no softcap, a fused kernel no
scale of one's own, a mask of one source replaces that of the other.
"""

from typing import Any

import numpy as np

from conformance.cases.case import Case, Rng
from conformance.cases.parts import FINFO_MIN, SIZES_OF_MODELS, case, number_in_open, random_allowed
from conformance.cases.problem import Problem
from mha_core import AttentionConfig, AttentionMask


def windowed_by_head(rng: Rng, case: Case) -> AttentionMask:
    """Return a mask with the window (0, 4), equal int32 lengths, and `allowed` (H, Lq, Lk) in Fortran order."""
    allowed = np.asfortranarray(random_allowed(rng, case, heads=case.config.num_heads)[0])
    lens = np.full(case.batch, case.key_len - 1, np.int32)
    return AttentionMask(valid_lens=lens, allowed=allowed, window=(0, 4))


def by_item_and_head(rng: Rng, case: Case) -> AttentionMask:
    """Return a mask with `allowed` by item (B, 1, 1, Lk) and a bias by head (1, H, Lq, Lk), where B = H."""
    return AttentionMask(
        allowed=random_allowed(rng, case)[:, :, :1] | (np.arange(case.key_len) == 0),
        bias=rng.normal(size=(1, case.config.num_heads, case.query_len, case.key_len)),
    )


def large_negative(rng: Rng, case: Case) -> AttentionMask:
    """Return a causal mask with a bias (B, 1, 1, Lk) that libraries make: -1e9, or the lowest float32, at padding."""
    bias = np.zeros((case.batch, 1, 1, case.key_len))
    bias[0, ..., 5:], bias[1, ..., 3:] = -1e9, FINFO_MIN
    return AttentionMask(bias=bias, causal=True)


def step_of_decoding(rng: Rng, case: Case) -> AttentionMask:
    """Return a causal mask of a decoding step, with int32 lengths by item and int16 offsets."""
    past = np.full(case.batch, case.past_len, np.int16)
    lens = np.linspace(66, case.key_len, case.batch).astype(np.int32)
    return AttentionMask(valid_lens=lens, causal=True, query_offset=past)


def in_one_cache(rng: Rng, problem: Problem) -> Problem:
    """Return the problem with its past keys and values as views of one array, a cache with room for more positions."""
    keys, values = problem.inputs.past_keys, problem.inputs.past_values
    assert keys is not None
    assert values is not None
    cache = np.full((2, *keys.shape[:2], keys.shape[2] + 6, keys.shape[3]), np.nan)
    cache[0, :, :, :-6], cache[1, :, :, :-6] = keys, values
    held = cache[:, :, :, :-6]
    return problem.with_inputs(past_keys=held[0], past_values=held[1])


def packed_documents(rng: Rng, case: Case) -> AttentionMask:
    """Return a mask for three documents in a row: queries see their own document's keys, up to their own position."""
    document = np.arange(case.key_len) * 3 // case.key_len
    one = document[: case.query_len, None] == document
    shape = (case.batch, 1, case.query_len, case.key_len)
    return AttentionMask(allowed=np.broadcast_to(one, shape), causal=True, bias=rng.normal(size=(case.key_len,)))


CAUSAL_SOFTCAP: dict[str, Any] = {
    "num_heads": 2,
    "softcap": 0.9,
    "score": "dot",
    "query_len": 6,
    "batch": 5,
    "causal": True,
    "window": (None, None),
    "trivial_mask": "a window without any bound is no window",
}

CASES = [
    case(
        "softcap-windowed",
        "a softcap, or a given scale, that is left out beside a window, groups or dropout",
        num_heads=6,
        num_kv_heads=3,
        scale=1 / 11,
        softcap=1.5,
        dropout=0.1,
        training=True,
        batch=4,
        query_len=8,
        key_len=8,
        mask=windowed_by_head,
        same_sizes="as many queries as keys: a keep-mask can be transposed",
    ),
    case(
        "causal-softcap",
        "a softcap that takes the mask's large negative numbers for scores, where it is causal",
        **CAUSAL_SOFTCAP,
    ),
    case(
        "nan-under-softcap",
        "a NaN that a softcap, or a large number in place of -inf, makes finite",
        **CAUSAL_SOFTCAP,
        change=number_in_open("keys", np.nan),
    ),
    case(
        "bare-capped",
        "heads that come as they are beside a softcap, a bias by head, a window that is closed ahead, and dropout",
        AttentionConfig(30, 5, value_head_dim=7, projections=False, softcap=2.0, dropout=0.3),
        query_len=4,
        key_len=8,
        mask=lambda rng, case: AttentionMask(bias=rng.normal(size=(1, 5, 1, 1)), window=(8, 0)),
        training=True,
        same_sizes="without projections the inputs have the widths of the heads",
    ),
    case(
        "additive-in-training",
        "dropout beside the additive score; queries that may not attend at all",
        score="additive",
        score_dim=6,
        dropout=0.4,
        training=True,
        allowed=np.array([True, True, False, True, True])[:, None],
    ),
    case(
        "finfo-bias",
        "a bias of -1e9 or finfo.min that overflows, or that is taken for -inf; a scale that is left out beside it",
        scale=1.0,
        mask=large_negative,
    ),
    case(
        "unscaled-by-head",
        "a scale of 1 / sqrt(d) where there is none, a bias for query head 0 alone",
        AttentionConfig(28, 4, query_dim=17, score="dot"),
        batch=4,
        mask=by_item_and_head,
        same_sizes="as many items as heads: a mask by item is none by head",
    ),
    case(
        "decode-long",
        "one query against many keys: a given scale, groups, dropout; a path for decoding of its own",
        AttentionConfig(256, 4, num_kv_heads=2, query_dim=10, key_dim=9, value_dim=8, output_dim=14, bias=True),
        scale=0.11,
        dropout=0.2,
        training=True,
        batch=5,
        query_len=1,
        key_len=91,
        past_len=90,
        mask=step_of_decoding,
        change=in_one_cache,
        same_sizes=SIZES_OF_MODELS,
        trivial_mask="the last query may attend to all keys before it",
    ),
    case(
        "causal-softcap-long",
        "blocks of more than 64 queries and keys: causal, `allowed`, a bias and a softcap at once; wide heads",
        AttentionConfig(256, 2, query_dim=7, key_dim=6, value_dim=5, output_dim=9, softcap=3.0, bias=True),
        batch=1,
        query_len=70,
        key_len=80,
        mask=packed_documents,
        same_sizes=SIZES_OF_MODELS,
        expensive=True,
    ),
]
