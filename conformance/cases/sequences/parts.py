"""Sequences of calls of one shape, on layers that differ in their parts or of one layer that has some.

What is kept by the shape of a call alone, or by the sizes of a layer alone, shows where nothing but the rest differs.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases.sequence import CAUSAL, DROPOUT, SMALL, Base, PreparedLayer, SequenceTable, Step, with_keep
from mha_core import AttentionConfig, AttentionMask

SEQUENCES = SequenceTable()

# Heads 4 or 16 wide, whose scale has no rounding: Keras' layers compute it in float32.
PLAIN = AttentionConfig(48, 3, bias=True)
TURNING: dict[str, Any] = {"width": 4, "base": 20.0}
NORM: dict[str, Any] = {"eps": 0.3}
BY_HEAD: dict[str, Any] = {"weight": "per_head", "eps": 0.3}

SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "rotary positions": (
        {"rotary": TURNING},
        {"rotary": {**TURNING, "base": 7.0}},
        {"rotary": {**TURNING, "interleaved": True}},
        {"rotary": {**TURNING, "start": "last"}},
        {"rotary": {**TURNING, "rule": {"rope_type": "linear", "factor": 3.0}}},
    ),
    "a query-key norm": (
        {"query_key_norm": NORM},
        {"query_key_norm": {"eps": 0.1}},
        {"query_key_norm": {**NORM, "offset": 1}},
        {"query_key_norm": {**NORM, "kind": "layer"}},
        {"query_key_norm": {**NORM, "kind": "layer", "bias": True}},
    ),
    "a query-key norm of each head": ({"query_key_norm": BY_HEAD}, {"query_key_norm": {**BY_HEAD, "scope": "all"}}),
    "rotary positions and a norm": (
        {"rotary": TURNING, "query_key_norm": NORM},
        {"rotary": TURNING, "query_key_norm": {**NORM, "order": "after"}},
    ),
    "a softcap": ({"softcap": 0.7}, {"softcap": 1.6}, {}),
    "a score": ({}, {"score": "dot"}, {"scale": 0.4}),
    "an additive score": ({"score": "additive", "score_dim": 5},),
}
"""The settings of layers of equal sizes, by what they have in common."""

OF_FEW = ("rotary positions and a norm", "a softcap")
"""Those that a subject is asked for which each new layer costs a compilation."""


@SEQUENCES.of(
    "sequence-settings", "a setting, or weights of a part, that are kept by the sizes of a layer", one_path=True
)
def _settings(base: Base) -> list[Step]:
    numbers = iter(range(100))
    sizes = (2, 5, 6)

    def called(what: str, changes: dict[str, Any], seed: int) -> Step:
        settings = " ".join(f"{name}={value}" for name, value in changes.items()) or "nothing of its own"
        layer = PreparedLayer(base.id, replace(PLAIN, **changes), next(numbers), seed=seed)
        return layer.call(f"a layer of {what}: {settings}", *sizes, CAUSAL)

    if base.few_shapes:
        return [called(what, changes, 0) for what in OF_FEW for changes in SETTINGS[what][:2]]
    found = [called(what, changes, 0) for what, each in SETTINGS.items() for changes in each]
    others = [
        called(f"{what}, with other weights", SETTINGS[what][at], 1)
        for what, at in (("a query-key norm", -1), ("a query-key norm of each head", 0), ("an additive score", 0))
    ]
    keep = np.random.default_rng(29).random((2, PLAIN.num_heads, 5, 6)) >= DROPOUT
    trained = [
        PreparedLayer(base.id, replace(PLAIN, dropout=dropout), next(numbers)).call(
            f"a layer that drops {dropout} of its weights", *sizes, change=with_keep(keep)
        )
        for dropout in (DROPOUT, 0.5)
    ]
    return [*found, *others, *trained]


LAYERS: dict[str, AttentionConfig] = {
    "more keys than queries": SMALL,
    "1 query": SMALL,
    "grouped heads": AttentionConfig(16, 4, num_kv_heads=2, bias=True),
    "a past": SMALL,
    "rotary positions": replace(PLAIN, rotary=TURNING),
    "a query-key norm": replace(PLAIN, query_key_norm=NORM),
    "a softcap": replace(SMALL, softcap=0.9),
    "an additive score": replace(SMALL, score="additive", score_dim=5),
    "no projections": AttentionConfig(12, 3, projections=False),
}
"""Layers, by what sets their calls apart from those of "sequence-masks"."""


@SEQUENCES.of(
    "sequence-second-masks",
    "a mask, bias or offset of the first call of a shape, beside a part or another length",
    one_path=True,
)
def _second_masks(base: Base) -> list[Step]:
    names = ("more keys than queries",) if base.few_shapes else LAYERS
    found = [_masks_of(base, number, name) for number, name in enumerate(names)]
    return [step for steps in found for step in steps]


def _masks_of(base: Base, number: int, name: str) -> Iterator[Step]:
    """Pairs of calls that differ in what all items share: the offset, the window, `allowed` and the bias."""
    layer, rng = PreparedLayer(base.id, LAYERS[name], number), np.random.default_rng(31)
    heads, queries, keys, past = layer.config.num_heads, 4, 6, None
    if name == "1 query":
        queries = 1
    if name == "a past":
        held = [layer.drawn(f"past {what}", "a", 2, heads, 2, layer.config.head_dim) for what in ("keys", "values")]
        past, keys = (held[0], held[1]), 4
    lk = 6

    def call(words: str, **mask: Any) -> Step:
        words = f"{name}: {words}"
        return layer.call(words, 2, queries, keys, AttentionMask(**mask), past=past, gradients=False)

    allowed = rng.random((queries, lk)) < 0.6
    allowed[:, 0] = True
    bias = rng.normal(size=(heads, queries, lk))

    def all_but_one_row(array: Any, row: int) -> Any:
        """Return the array with one query's row, or the only one, turned round."""
        other = array.copy()
        other[..., row, :] = other[..., row, ::-1]
        return other

    if not base.few_shapes:
        yield call("causal", causal=True, query_offset=1)
        yield call("causal, from another place", causal=True, query_offset=3)
        yield call("a window", window=(1, 1), query_offset=1)
        yield call("another window", window=(3, 2), query_offset=1)
    yield call("`allowed`", allowed=allowed)
    yield call("`allowed` that differs in the last row", allowed=all_but_one_row(allowed, -1))
    yield call("a bias", bias=bias)
    yield call("a bias that differs in the last row", bias=all_but_one_row(bias, -1))
    if number == 0 and not base.few_shapes:
        yield call("`allowed` that differs in the first row", allowed=all_but_one_row(allowed, 0))
        yield call("a bias that differs in the first row", bias=all_but_one_row(bias, 0))
