"""Cases of decoding and of bare attention: softcap, keys and values of the past, layers without projections."""

from __future__ import annotations

from conformance.cases.case import Case
from conformance.cases.parts import OF_HEADS, bare_case, bias_that_excludes, case, poison_past
from mha_core import AttentionConfig


def cases() -> list[Case]:
    """The cases of this topic, in the order of `mha cases`."""
    return [
        case(
            "softcap",
            "a softcap left out, as a clip, without its factor, before the scale or after the bias",
            softcap=0.7,
            mask=bias_that_excludes,
        ),
        case(
            "softcap-saturated",
            "a softcap that overflows, or whose slope vanishes wrongly, where scores are large",
            softcap=30.0,
            bias=False,
            input_scale=16.0,
            valid_lens=[4, 6],
        ),
        case("softcap-additive", "a softcap that only dot products have", score="additive", score_dim=31, softcap=0.5),
        case(
            "past",
            "a cache that is dropped, that stands after the new keys, or that causal does not count",
            key_len=10,
            past_len=4,
            causal=True,
            query_offset=4,
        ),
        case(
            "past-padded",
            "NaN in the unused rows of a cache; a cache of key heads repeated too early",
            num_heads=6,
            num_kv_heads=3,
            key_len=16,
            past_len=9,
            valid_lens=[14, 7],
            change=poison_past,
        ),
        case(
            "decoding-step",
            "a position counted from the step instead of the sequence; a window that forgets the past",
            num_heads=4,
            num_kv_heads=2,
            batch=3,
            query_len=1,
            key_len=10,
            past_len=9,
            causal=True,
            query_offset=9,
            window=(5, 0),
            valid_lens=[10, 8, 7],
            same_sizes="a decoding step has one query and one new key",
            trivial_mask="it may attend to the whole past",
        ),
        bare_case(
            "heads-given",
            "a layer without projections that projects, or that splits heads in another order",
            batch=3,
            causal=True,
            query_offset=[0, 1, 4],
        ),
        bare_case(
            "heads-given-split",
            "heads read as positions; a cache and a softcap without projections",
            batch=3,
            query_len=4,
            key_len=14,
            past_len=9,
            split=True,
            causal=True,
            query_offset=9,
        ),
        bare_case(
            "heads-given-short-cache",
            "lengths counted from the cache's end: each item's queries end where its keys do, some before its first",
            num_kv_heads=3,
            batch=4,
            key_len=8,
            split=True,
            valid_lens=[8, 6, 3, 1],
            causal=True,
            query_offset=[3, 1, -2, -4],
        ),
        case(
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
