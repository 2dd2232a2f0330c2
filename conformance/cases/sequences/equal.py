"""A sequence of calls in which sizes are equal, as they are in use by chance: code that guesses axes is wrong there."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.cases.problem import split_inputs
from conformance.cases.sequence import DROPOUT, SMALL, Base, PreparedLayer, SequenceTable, Step, with_keep
from mha_core import AttentionConfig, AttentionMask, RotaryInputs

SEQUENCES = SequenceTable()

ALIKE = 4
"""Items, heads, queries, keys and channels of a head, in most of these calls."""

WIDTHS: dict[str, Any] = dict.fromkeys(("query_dim", "key_dim", "value_dim", "output_dim"), ALIKE)
HEADS = AttentionConfig(ALIKE**2, ALIKE, bias=True)


@SEQUENCES.of("sequence-equal-sizes", "an axis that is guessed from sizes, where two of them are equal", one_path=True)
def _equal_sizes(base: Base) -> list[Step]:
    rng = np.random.default_rng(23)
    numbers = iter(range(100))

    def layer(config: AttentionConfig) -> PreparedLayer:
        return PreparedLayer(base.id, config, next(numbers))

    def call(layer: PreparedLayer, words: str, *sizes: int, rotary: RotaryInputs | None = None, **mask: Any) -> Step:
        items, queries, keys = sizes or (ALIKE,) * 3
        change = partial(replace, rotary=rotary)
        return layer.call(words, items, queries, keys, AttentionMask(**mask), change=change, gradients=False)

    def drawn(*shape: int) -> Any:
        found = rng.random(shape) < 0.6
        found[..., 0] = True
        return found

    lens = np.array([3, 1, 4, 2])
    plain = layer(SMALL if base.few_shapes else HEADS)
    of_items = call(plain, "as many items, heads, queries, keys and channels, lengths", valid_lens=lens)
    if base.few_shapes:  # each shape costs such a subject a compilation
        return [of_items, call(plain, "lengths in another order", valid_lens=lens[::-1].copy())]
    whole = (ALIKE,) * 4
    masks = {
        "(B, 1, Lq, Lk)": (ALIKE, 1, ALIKE, ALIKE),
        "(B, 1, 1, Lk)": (ALIKE, 1, 1, ALIKE),
        "(H, Lq, Lk)": whole[:3],
        "(B, H, Lq, Lk)": whole,
        "(Lq, Lk)": whole[:2],
        "(Lk,)": whole[:1],
    }
    biases = {**masks, "(H, 1, 1)": (ALIKE, 1, 1), "(Lq, 1)": (ALIKE, 1)}
    trained = layer(replace(HEADS, dropout=DROPOUT))
    return [
        of_items,
        call(plain, "lengths of each query", valid_lens=rng.integers(1, ALIKE + 1, whole[:2])),
        call(plain, "a causal mask with offsets of each item", causal=True, query_offset=lens - 1),
        *(call(plain, f"`allowed` of the shape {words}", allowed=drawn(*shape)) for words, shape in masks.items()),
        *(call(plain, f"a bias of the shape {words}", bias=rng.normal(size=shape)) for words, shape in biases.items()),
        trained.call("a keep-mask", *whole[:3], change=with_keep(rng.random(whole) >= DROPOUT), gradients=False),
        call(layer(replace(HEADS, **WIDTHS)), "inputs as wide as they are long", valid_lens=lens),
        *_grouped(base, layer, lens),
        *_parts(layer, call, rng),
    ]


def _grouped(base: Base, layer: Any, lens: Any) -> Iterator[Step]:
    """As many key heads as keys, as items, or as keys of the past; heads that come split."""
    grouped = layer(replace(HEADS, num_kv_heads=2))
    yield grouped.call("as many key heads as keys, queries and items", 2, 2, 2, AttentionMask(causal=True))
    for words, config in (
        ("the past", HEADS),
        ("half as many heads as channels", AttentionConfig(8, 2, head_dim=4, bias=True)),
    ):
        decoding, heads = layer(config), config.num_heads
        past = tuple(decoding.drawn(f"past {name}", "a", heads, heads, heads, ALIKE) for name in ("keys", "values"))
        yield decoding.call(f"as many keys in {words} as heads", heads, 2, 2, past=(past[0], past[1]))
    bare = layer(AttentionConfig(ALIKE**2, ALIKE, projections=False))
    split = partial(split_inputs, config=bare.config)
    mask = AttentionMask(valid_lens=lens)
    yield bare.call("heads that come split, as many as tokens and channels", *(ALIKE,) * 3, mask, change=split)
    yield bare.call("heads that come merged, as many as tokens", *(ALIKE,) * 3, mask, contents="bbb")


def _parts(layer: Any, call: Any, rng: np.random.Generator) -> Iterator[Step]:
    """Layers with an additive score, rotary positions or a query-key norm, and one head."""
    score = layer(replace(HEADS, score="additive", score_dim=ALIKE))
    yield call(score, "an additive score as wide as heads and tokens", valid_lens=np.array([3, 1, 4, 2]))
    steps = np.cumsum(rng.integers(1, 4, (ALIKE, ALIKE)), axis=1)
    placed = RotaryInputs(steps, steps + np.arange(ALIKE)[:, None])
    turned = replace(HEADS, rotary={"base": 20.0})
    by_pairs = AttentionConfig(2 * ALIKE**2, ALIKE, bias=True, rotary={"base": 20.0})
    for words, config in (("as many tokens as heads and channels", turned), ("as many tokens as pairs", by_pairs)):
        turning = layer(config)
        yield call(turning, f"{words} that turn, counted", causal=True)
        yield call(turning, f"{words} that turn, at places of each item", rotary=placed)
    axes = layer(replace(by_pairs, rotary={"base": 20.0, "sections": (2, 1, 1)}))
    of_axes = RotaryInputs(np.cumsum(rng.integers(0, 3, (3, 3, 3)), axis=-1))
    yield call(axes, "as many items and tokens as axes of positions", 3, 3, 3, rotary=of_axes)
    for words, norm in (
        ("shared weights", {"eps": 0.3}),
        ("weights of each head", {"weight": "per_head", "eps": 0.3}),
        ("a mean over all heads", {"scope": "all", "weight": "per_head", "eps": 0.3}),
    ):
        yield call(layer(replace(HEADS, query_key_norm=norm)), f"a query-key norm with {words}, all sizes equal")
    one = AttentionConfig(8, 1, bias=True, rotary={"base": 20.0})
    yield call(layer(one), "one head that turns", 2, 4, 5, causal=True)
    yield call(layer(replace(one, rotary=None, query_key_norm={"eps": 0.3})), "one head with a norm", 2, 4, 5)
    yield call(layer(replace(one, query_key_norm={"eps": 0.3})), "one head that turns, with a norm", 2, 4, 5)
    to_one = replace(HEADS, num_kv_heads=1, query_key_norm={"weight": "per_head", "eps": 0.3})
    yield call(layer(to_one), "weights of a norm for one key head")
