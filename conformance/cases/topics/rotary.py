"""Cases of rotary positions: layouts, widths, rules of frequencies, and what a call says of where tokens stand."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.case import Case, Rng
from conformance.cases.parts import FINFO_MIN, SIZES_OF_MODELS, bare_case, case, poison_past, random_allowed
from mha_core import AttentionConfig, AttentionMask, RotaryInputs

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256, "truncate": False}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.5, 2.0, 3.0],
    "long_factor": [1.2, 4.0, 8.0, 16.0],
    "original_max_position_embeddings": 7,
    "factor": 4.0,
}
LONGROPE_WIDE = {
    **LONGROPE,
    "short_factor": [1.0, 1.3, 1.6, 2.0, 2.5, 3.0],
    "long_factor": [1.2, 3.0, 5.0, 8.0, 12.0, 16.0],
    "original_max_position_embeddings": 14,
}


def growing(rng: Rng, shape: tuple[int, ...], first: int = 0) -> NDArray[np.int64]:
    """Return positions (..., L) that grow by 1 or more along the last axis: they have gaps, as between documents."""
    return first + rng.integers(0, 5, size=(*shape[:-1], 1)) + np.cumsum(rng.integers(1, 4, size=shape), axis=-1)


def placed(rng: Rng, case: Case) -> RotaryInputs:
    """Return positions of queries and new keys for each item; key positions begin at Lp and have gaps."""
    of_queries, of_keys = (case.batch, case.query_len), (case.batch, case.key_len - case.past_len)
    return RotaryInputs(growing(rng, of_queries, case.past_len), growing(rng, of_keys, case.past_len))


TURNING: dict[str, Any] = {"width": 6, "base": 20.0}
"""Rotary positions of six channels, for cases of what else acts on heads."""

PADDED_PAST: dict[str, Any] = {
    "batch": 4,
    "key_len": 15,
    "past_len": 8,
    "positions": placed,
    "valid_lens": [15, 11, 6, 14],
    "allowed": np.array([True, False, True, True, True])[:, None],
    "change": poison_past,
}
"""A call with positions that have gaps and a past whose unused rows hold NaN."""


def far_apart(rng: Rng, case: Case) -> RotaryInputs:
    """Return positions of queries and new keys, the same in all items, up to 300 and in no order."""
    return RotaryInputs(rng.integers(0, 300, case.query_len), rng.integers(0, 300, case.key_len - case.past_len))


def of_axes(rng: Rng, case: Case) -> RotaryInputs:
    """Return positions (3, B, L) of text and then an image: the three axes are equal until the image begins."""

    def axes(length: int) -> NDArray[np.int64]:
        text = np.broadcast_to(np.arange(length), (3, case.batch, length))
        moved = rng.integers(1, 9, size=(3, case.batch, 1)) + rng.integers(0, 3, size=(3, case.batch, length))
        return text + np.where(np.arange(length) < 2, 0, moved)

    return RotaryInputs(axes(case.query_len), axes(case.key_len - case.past_len))


def given_tables(rng: Rng, case: Case) -> RotaryInputs:
    """Return random rotary tables times 1.4 (queries: per item; keys: shared by items); the first tokens don't turn."""
    assert case.config.rotary is not None
    pairs = (case.config.rotary.width or 0) // 2

    def table(*shape: int) -> tuple[NDArray, NDArray]:
        angle = rng.uniform(-np.pi, np.pi, size=shape)
        cos, sin = 1.4 * np.cos(angle), 1.4 * np.sin(angle)
        cos[..., 0, :], sin[..., 0, :] = 1.0, 0.0
        return cos, sin

    of_queries = table(case.batch, case.query_len, pairs)
    return RotaryInputs(None, None, *of_queries, *table(case.key_len - case.past_len, pairs))


GROUPED: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 11}

CASES = [
    case(
        "rotary",
        "no turn, one in the wrong direction, of other pairs, of queries alone or of values too; an offset ignored",
        head_dim=12,
        rotary={"base": 50.0},
        causal=True,
        query_offset=[3, 1],
    ),
    case(
        "rotary-interleaved",
        "pairs of the other layout, frequencies by the whole width, positions of one item for all",
        rotary={"width": 8, "interleaved": True, "base": 20.0},
        positions=placed,
    ),
    case(
        "rotary-last",
        "the first channels in place of the last, keys that stand where the queries do",
        **GROUPED,
        rotary={"width": 6, "start": "last", "base": 20.0},
        positions=far_apart,
        valid_lens=[6, 4],
    ),
    case(
        "rotary-last-interleaved",
        "a cache that is turned again, keys counted from 0 behind it, NaN in its unused rows",
        **GROUPED,
        rotary={"width": 4, "start": "last", "interleaved": True, "base": 20.0},
        batch=3,
        key_len=16,
        past_len=9,
        causal=True,
        query_offset=[9, 8, 6],
        valid_lens=[16, 11, 7],
        change=poison_past,
    ),
    case(
        "rotary-tables",
        "given tables that are ignored, or taken for cosine and sine of one angle; a factor lost; tokens turned",
        rotary={"width": 8},
        positions=given_tables,
        softcap=2.0,
    ),
    case(
        "rotary-llama3",
        "the llama3 rule left out, without its blend or with the pairs exchanged that it keeps and divides",
        head_dim=12,
        rotary={"base": 5000.0, "rule": LLAMA3},
        positions=far_apart,
    ),
    case(
        "rotary-yarn",
        "the yarn rule left out, its attention factor lost, on queries alone, squared or on channels that stay",
        rotary={"width": 8, "interleaved": True, "base": 5000.0, "rule": YARN},
        key_len=14,
        past_len=6,
        positions=placed,
        causal=True,
        query_offset=6,
    ),
    case(
        "rotary-longrope",
        "the long factors of the longrope rule at exactly the length of training; axes in turn taken for a layout",
        rotary={"width": 8, "base": 20.0, "rule": LONGROPE, "sections": (2, 1, 1), "sections_interleaved": True},
    ),
    case(
        "rotary-axes",
        "one axis of positions for all pairs, axes that take turns over them",
        rotary={"width": 8, "base": 20.0, "sections": (2, 1, 1)},
        positions=of_axes,
    ),
    case(
        "rotary-axes-interleaved",
        "axes in a row where they take turns over the pairs",
        rotary={"width": 8, "base": 20.0, "sections": (2, 1, 1), "sections_interleaved": True},
        positions=of_axes,
    ),
    bare_case(
        "rotary-bare",
        "heads that come as they are, and are not turned; split heads read as positions",
        embed_dim=72,
        head_dim=12,
        rotary={"base": 20.0, "rule": LONGROPE_WIDE},
        batch=3,
        query_len=4,
        key_len=14,
        past_len=9,
        split=True,
        causal=True,
        query_offset=9,
    ),
]


def far_window(rng: Rng, case: Case) -> AttentionMask:
    """Return a mask with a window at far positions, finfo.min biases, int32 lengths; item 1 has rows without keys."""
    lens = np.linspace(90, case.key_len, case.batch).astype(np.int32)
    lens[1] = 52
    bias = rng.normal(size=(case.batch, 1, 1, case.key_len))
    bias[..., 80:83] = FINFO_MIN
    return AttentionMask(valid_lens=lens, bias=bias, window=(4950, 0), query_offset=5000)


def far_window_by_head(rng: Rng, case: Case) -> AttentionMask:
    """Return a mask with a window that ends at the query, `allowed` and bias by head; item 1 has rows without keys."""
    lens = np.linspace(90, case.key_len, case.batch).astype(np.int64)
    lens[1] = 67
    bias = rng.normal(size=(case.config.num_heads, case.query_len, case.key_len))
    bias[..., 80:83] = FINFO_MIN
    allowed = random_allowed(rng, case, heads=case.config.num_heads)
    return AttentionMask(valid_lens=lens, allowed=allowed, bias=bias, window=(60, 0), query_offset=125)


LONG_LAYER = AttentionConfig(
    256, 4, num_kv_heads=2, value_head_dim=6, query_dim=10, key_dim=9, value_dim=8, output_dim=14, bias=True
)
"""Heads 64 wide on half as many key heads."""

LONG_CALL: dict[str, Any] = {
    "batch": 9,
    "query_len": 5,
    "key_len": 130,
    "past_len": 97,
    "same_sizes": SIZES_OF_MODELS,
}

CASES += [
    case(
        "rotary-long",
        "positions beyond a table or a range of small numbers; masks, blocks and a past that only layers without "
        "rotary positions have; the dynamic rule left out",
        LONG_LAYER,
        rotary={"base": 500.0, "rule": {"rope_type": "dynamic", "factor": 4.0, "max_position_embeddings": 1024}},
        mask=far_window,
        **LONG_CALL,
    ),
    case(
        "query-key-norm-long",
        "masks, blocks and a past that only layers without a query-key norm have; the linear rule left out",
        LONG_LAYER,
        rotary={"base": 50.0, "rule": {"rope_type": "linear", "factor": 3.0}},
        query_key_norm={"eps": 0.3},
        mask=far_window_by_head,
        **LONG_CALL,
    ),
]
