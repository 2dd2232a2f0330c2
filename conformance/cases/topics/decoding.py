"""Cases of decoding and of bare attention: softcap, keys and values of the past, layers without projections."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.cases.case import Case
from conformance.cases.parts import bias_that_excludes, fixed, poison_past, prime_config
from mha_core import AttentionConfig

OF_HEADS = "without projections the widths are those of the heads"


def bare_config(**changes: Any) -> AttentionConfig:
    """A layer without projections: H 6, G 2, d 11, dv 13."""
    sizes: dict[str, Any] = {"embed_dim": 66, "num_heads": 6, "num_kv_heads": 2, "head_dim": 11, "value_head_dim": 13}
    return AttentionConfig(**{**sizes, **changes}, projections=False)


def cases() -> list[Case]:
    return [*_softcap(), *_past(), *_bare()]


def _softcap() -> list[Case]:
    return [
        Case(
            "softcap",
            "a softcap left out, as a clip, without its factor, before the scale or after the bias",
            prime_config(softcap=0.7),
            mask=bias_that_excludes,
        ),
        Case(
            "softcap-saturated",
            "a softcap that overflows, or whose slope vanishes wrongly, where scores are large",
            prime_config(softcap=30.0, bias=False),
            input_scale=16.0,
            mask=fixed(valid_lens=np.array([4, 6])),
        ),
        Case(
            "softcap-additive",
            "a softcap that only dot products have",
            prime_config(score="additive", score_dim=31, softcap=0.5),
        ),
    ]


def _past() -> list[Case]:
    return [
        Case(
            "past",
            "a cache that is dropped, that stands after the new keys, or that causal does not count",
            prime_config(),
            query_len=5,
            key_len=10,
            past_len=4,
            mask=fixed(causal=True, query_offset=4),
        ),
        Case(
            "past-padded",
            "NaN in the unused rows of a cache; a cache of key heads repeated too early",
            prime_config(num_heads=6, num_kv_heads=3),
            batch=2,
            query_len=5,
            key_len=16,
            past_len=9,
            mask=fixed(valid_lens=np.array([14, 7])),
            change=poison_past,
        ),
        Case(
            "decoding-step",
            "a position counted from the step instead of the sequence; a window that forgets the past",
            prime_config(num_heads=4, num_kv_heads=2),
            batch=3,
            query_len=1,
            key_len=10,
            past_len=9,
            mask=fixed(causal=True, query_offset=9, window=(5, 0), valid_lens=np.array([10, 8, 7])),
            same_sizes="a decoding step has one query and one new key",
            trivial_mask="it may attend to the whole past",
        ),
    ]


def _bare() -> list[Case]:
    return [
        Case(
            "heads-given",
            "a layer without projections that projects, or that splits heads in another order",
            bare_config(),
            batch=3,
            mask=fixed(causal=True, query_offset=np.array([0, 1, 4])),
            same_sizes=OF_HEADS,
        ),
        Case(
            "heads-given-split",
            "heads read as positions; a cache and a softcap without projections",
            bare_config(),
            batch=3,
            query_len=4,
            key_len=14,
            past_len=9,
            split=True,
            mask=fixed(causal=True, query_offset=9),
            same_sizes=OF_HEADS,
        ),
        Case(
            "heads-given-short-cache",
            "lengths counted from the cache's end: each item's queries end where its keys do, some before its first",
            bare_config(num_kv_heads=3),
            batch=4,
            query_len=5,
            key_len=8,
            split=True,
            mask=fixed(valid_lens=np.array([8, 6, 3, 1]), causal=True, query_offset=np.array([3, 1, -2, -4])),
            same_sizes=OF_HEADS,
        ),
        Case(
            "additive-half-precision",
            "wrong gradients of the additive score, for which the bounds of half precision leave room elsewhere",
            AttentionConfig(6, 2, head_dim=3, value_head_dim=7, score="additive", score_dim=1, projections=False),
            batch=5,
            query_len=1,
            key_len=4,
            weight_scale=0.3,
            input_scale=2.0,
            same_sizes=OF_HEADS,
        ),
    ]
