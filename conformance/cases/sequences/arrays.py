"""Sequences of calls whose arrays lie otherwise in memory, have other shapes or dtypes, or hold plain numbers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.parts import FINFO_MIN
from conformance.cases.sequence import DROPOUT, Base, PreparedLayer, SequenceTable, Step, changed, with_keep
from mha_core import AttentionInputs, AttentionMask

SEQUENCES = SequenceTable()


def turned(array: NDArray) -> NDArray:
    """Return the array in Fortran order: the same numbers, with the axes in the opposite order in memory."""
    return np.asfortranarray(array)


def backwards(array: NDArray) -> NDArray:
    """Return the same numbers as a view with a negative stride along axis -2."""
    return np.ascontiguousarray(array[..., ::-1, :])[..., ::-1, :]


def cut(array: NDArray) -> NDArray:
    """Return the same numbers as a view of an array that is longer along axis -2."""
    return np.concatenate([array, array + 1.0], axis=-2)[..., : array.shape[-2], :]


def spread(array: NDArray) -> NDArray:
    """Return a view of the same shape that has the numbers of item 0 in all items: its first stride is 0."""
    return np.broadcast_to(array[:1], array.shape)


@SEQUENCES.of("sequence-layouts", "an array that is read as if it were contiguous")
def _layouts(base: Base) -> list[Step]:
    batch, queries, keys = base.sizes
    heads, width = base.config.num_heads, base.config.head_dim
    layer, trained = base.layer(), base.layer(1, dropout=DROPOUT)
    packed = PreparedLayer(base.id, base.config, 2, gradients=base.few_shapes)
    packed.weights = {
        name: turned(array) if name.endswith("weight") else array for name, array in packed.weights.items()
    }
    packed.weights = {**packed.weights, "v_proj.weight": packed.weights["k_proj.weight"]}
    rng = np.random.default_rng(17)
    allowed = rng.random((batch, heads, queries, keys)) < 0.67
    bias = rng.normal(size=allowed.shape)
    keep = np.broadcast_to(rng.random((1, 1, queries, keys)) >= DROPOUT, allowed.shape)
    past = tuple(layer.drawn(f"past {name}", "a", batch, heads, queries, width) for name in ("keys", "values"))
    lens = base.lens.valid_lens
    assert lens is not None
    by_query = np.asfortranarray(np.minimum(lens[:, None], np.arange(queries) + 2))

    def call(words: str, mask: AttentionMask | None = None, **how: Any) -> Step:
        return how.pop("of", layer).call(words, *base.sizes, mask, **{"gradients": base.few_shapes, **how})

    def of_past(words: str, change: Callable[[NDArray], NDArray], contents: str) -> Step:
        held = (change(past[0]), change(past[1]))
        return layer.call(words, batch, queries, queries, past=held, contents=contents, gradients=False)

    def by_position(array: NDArray) -> NDArray:
        return np.ascontiguousarray(array.swapaxes(0, 1)).swapaxes(0, 1)

    def every_other_row(array: NDArray) -> NDArray:
        return array.repeat(2, 1)[:, ::2]

    def every_other_channel(array: NDArray) -> NDArray:
        return array.repeat(2, 2)[..., ::2]

    def packed_inputs(given: AttentionInputs) -> AttentionInputs:
        parts = np.split(np.concatenate([given.queries, given.keys, given.values], axis=-1), 3, axis=-1)
        return replace(given, queries=parts[0], keys=parts[1], values=parts[2])

    def overlapping(given: AttentionInputs) -> AttentionInputs:
        both = np.concatenate([given.queries, given.keys[:, 1:]], axis=1)
        return replace(given, queries=both[:, :queries], keys=both[:, 1 : keys + 1])

    return [
        call("`allowed` laid out the other way", AttentionMask(allowed=turned(allowed))),
        call("`allowed` with a negative stride", AttentionMask(allowed=backwards(allowed))),
        call("`allowed` with a stride of 0", AttentionMask(allowed=spread(allowed))),
        call("a bias laid out the other way", AttentionMask(bias=turned(bias))),
        call("a bias with a stride of 0", AttentionMask(bias=spread(bias))),
        call("lengths with a stride of 0", AttentionMask(valid_lens=np.broadcast_to(lens[:1], lens.shape))),
        call("lengths by query, laid out the other way", AttentionMask(valid_lens=by_query)),
        call("a bias with a negative stride", AttentionMask(bias=backwards(bias))),
        call("a bias cut from a larger table", AttentionMask(bias=cut(bias))),
        call("queries whose second axis is the batch", change=changed(queries=by_position)),
        call(
            "keys that are every other row, values of every other channel",
            change=changed(keys=every_other_row, values=every_other_channel),
        ),
        call("queries and values that all items share", change=changed(queries=spread, values=spread)),
        call("one packed array", change=packed_inputs),
        call("keys that begin within the queries' memory", change=overlapping),
        call("keys that are the values, and other queries", change=lambda given: replace(given, values=given.keys)),
        of_past("a past with a negative stride", backwards, "abb"),
        of_past("a past cut from a longer cache", cut, "bab"),
        of_past("a past that all items share", spread, "bba"),
        layer.call(
            "past keys and values in different layouts",
            batch,
            queries,
            queries,
            past=(turned(past[0]), backwards(past[1])),
            gradients=False,
        ),
        call("a cotangent laid out the other way", gradients=True, change=changed(cotangent=turned)),
        call("a cotangent with a negative stride", gradients=True, change=changed(cotangent=backwards)),
        call("a cotangent with a stride of 0", gradients=True, change=changed(cotangent=spread), contents="bbb"),
        call("a keep-mask with a stride of 0", base.lens, of=trained, gradients=True, change=with_keep(keep)),
        call("a keep-mask that keeps everything", of=trained, gradients=True, change=with_keep(np.ones_like(keep))),
        call(
            "a keep-mask that keeps nothing",
            base.lens,
            of=trained,
            gradients=True,
            change=with_keep(np.zeros_like(keep)),
        ),
        call(
            "a keep-mask that drops one row",
            base.lens,
            of=trained,
            gradients=True,
            change=with_keep(keep & (np.arange(queries) != 1)[:, None]),
        ),
        call("weights laid out the other way, two of which are one array", base.lens, of=packed, contents="aba"),
    ]


@SEQUENCES.of("sequence-mask-shapes", "a mask of fewer axes, or of an axis of 1, spread over another", one_path=True)
def _shapes(base: Base) -> list[Step]:
    batch, queries, keys = base.sizes
    heads = base.config.num_heads
    layer = base.layer()
    rng = np.random.default_rng(19)
    shapes = {
        "(B, 1, Lq, 1)": (batch, 1, queries, 1),
        "(B, H, 1, 1)": (batch, heads, 1, 1),
        "(B, 1, 1, 1)": (batch, 1, 1, 1),
        "(1, H, 1, 1)": (1, heads, 1, 1),
        "(H, Lq, Lk)": (heads, queries, keys),
        "(Lq, Lk)": (queries, keys),
        "(Lq, 1)": (queries, 1),
        "()": (),
    }

    def call(words: str, **mask: Any) -> Step:
        return layer.call(words, *base.sizes, AttentionMask(**mask), gradients=False)

    def drawn(shape: tuple[int, ...]) -> NDArray[np.bool_]:
        array = np.asarray(rng.random(shape) < 0.6)
        array.reshape(-1)[:1] = True
        return array

    lens = base.lens.valid_lens
    assert lens is not None
    padding = np.arange(keys) >= lens[:, None, None, None]
    positions, positions_of_keys = np.arange(batch), np.arange(keys)
    slopes = (2.0 ** -np.arange(1, heads + 1))[:, None, None]
    steps = [call(f"`allowed` of the shape {words}", allowed=drawn(shape)) for words, shape in shapes.items()]
    return [
        *steps,
        call("`allowed` that allows everything", allowed=np.ones((1, 1, queries, keys), bool)),
        call("a bias of the shape (1, H, 1, 1)", bias=rng.normal(size=(1, heads, 1, 1))),
        call("lengths", valid_lens=lens),
        call("a bias that excludes what the lengths do", bias=np.where(padding, -np.inf, 0.0), valid_lens=lens),
        call("lengths that are all 1", valid_lens=np.ones(batch, np.int64)),
        call(
            "lengths by query in 32 bits, which are a causal mask",
            valid_lens=np.tile(np.minimum(np.arange(1, queries + 1, dtype=np.int32), keys), (batch, 1)),
        ),
        call(
            "lengths in 32 bits and offsets in 8",
            valid_lens=lens.astype(np.int32),
            causal=True,
            query_offset=positions.astype(np.int8),
        ),
        call("offsets that have no sign", causal=True, query_offset=positions.astype(np.uint16)),
        call("an offset near the largest of 32 bits", causal=True, window=(2**31 - 3, None), query_offset=2**31 - 5),
        call("a window as wide as 32 bits hold", causal=True, window=(2**31 - 1, 2**31 - 1)),
        call("`allowed` and a window", allowed=drawn((queries, keys)), window=(2, 1)),
        call(
            "a window that reaches less far than the lengths, from an offset",
            valid_lens=lens,
            window=(0, None),
            query_offset=3,
        ),
        call("rows that two sources empty together", valid_lens=np.full(batch, 2), allowed=np.arange(keys) >= 2),
        call(
            "`allowed` in blocks, as of packed documents",
            allowed=np.arange(queries)[:, None] // 2 == np.arange(keys) // 2,
        ),
        call("a bias that is one number", bias=np.float64(0.7)),
        call(
            "a bias of -1e4 or less throughout a row",
            bias=np.where(np.arange(queries)[:, None] == 1, -1e4 - positions_of_keys, 0.0),
        ),
        call("a bias of finfo.min throughout a row", bias=np.where(np.arange(queries)[:, None] == 1, FINFO_MIN, 0.0)),
        call(
            "a bias that falls with the distance", bias=slopes * -abs(np.arange(queries)[:, None] - positions_of_keys)
        ),
        call("`allowed` of the shape (1, H, 1, Lk)", allowed=drawn((1, heads, 1, keys))),
        call("lengths that are all full", valid_lens=np.full(batch, keys, np.int16)),
        call("lengths in uint16, shorter than before", valid_lens=lens.astype(np.uint16)),
        call("lengths in uint32", valid_lens=lens.astype(np.uint32)),
        call("lengths by query without a sign", valid_lens=np.tile(lens[:, None], (1, queries)).astype(np.uint8)),
        call("an offset that nothing asks for", query_offset=2),
        call(
            "offsets in 32 bits, every other of an array",
            causal=True,
            query_offset=np.arange(2 * batch, dtype=np.int32)[::2],
        ),
        call("offsets without a sign, below the window", window=(4, 0), query_offset=positions.astype(np.uint8)),
        call("offsets of 8 bits, whose positions need more", causal=True, query_offset=np.full(batch, 126, np.int8)),
        call("a window of the own position alone", window=(0, 0)),
        call("no mask"),
        call("a window to the right alone, after no mask", window=(None, 1)),
        call("causal, after a window", causal=True),
        call("no mask, after causal"),
        call("`allowed`, after no mask", allowed=drawn((queries, keys))),
        call("a bias, after `allowed`", bias=rng.normal(size=(heads, queries, keys))),
        call("`allowed`, after a bias", allowed=drawn((queries, keys))),
        call("a window", window=(1, 1)),
        call("no mask, after a window"),
        call("causal, after no mask", causal=True),
        call("`allowed`, after causal", allowed=drawn((queries, keys))),
        call("no mask, after `allowed`"),
        call("a bias", bias=rng.normal(size=(queries, keys))),
        call("causal, after a bias", causal=True),
    ]


@SEQUENCES.of("sequence-plain-numbers", "numbers that a fast path takes for others")
def _numbers(base: Base) -> list[Step]:
    batch, queries, keys = base.sizes
    layer, silent, plain = base.layer(), base.layer(1), base.layer(2, bias=False)
    loud = base.layer(3, seed=1)
    silent.weights = {**silent.weights, "out_proj.weight": np.zeros_like(silent.weights["out_proj.weight"])}
    loud.weights = {**loud.weights, "v_proj.weight": 40.0 * loud.weights["v_proj.weight"]}
    identity = base.layer(4, seed=2)
    identity.weights = {**identity.weights, "k_proj.weight": np.eye(base.config.key_dim)}
    last_out = AttentionMask(bias=np.where(np.arange(keys) == keys - 1, -np.inf, 0.5))
    channel = np.where(np.arange(base.config.key_dim) == 2, 300.0, 1.0)
    no_first = AttentionMask(allowed=np.arange(queries)[:, None] >= np.ones(keys, int))
    width = base.config.value_dim

    def call(words: str, mask: AttentionMask = base.lens, of: PreparedLayer = layer, **how: Any) -> Step:
        return of.call(words, *base.sizes, mask, **{"gradients": base.few_shapes, **how})

    def first_item(array: NDArray) -> NDArray:
        return array[[0] * batch]

    def first_key(array: NDArray) -> NDArray:
        return array[:, [0] * keys]

    def times(factor: float, *place: int) -> Callable[[NDArray], NDArray]:
        def change(array: NDArray) -> NDArray:
            factors = np.ones_like(array)
            factors[place] = factor
            return array * factors

        return change

    def far(array: NDArray) -> NDArray:
        return array + 20.0

    def unit(array: NDArray) -> NDArray:
        return np.stack([np.eye(width)[np.arange(keys) % width]] * batch)

    def one_place(array: NDArray) -> NDArray:
        return np.asarray(np.arange(array.size).reshape(array.shape) == 3, array.dtype)

    alike = changed(queries=first_item, keys=first_item, values=first_item)
    nothing = changed(queries=times(0.0, 0), keys=times(0.0, 0), values=times(0.0, 0))
    return [
        call("keys and values that all items share", change=changed(keys=first_item, values=first_item)),
        call("items that are all alike", change=alike),
        call("one item of 0", change=nothing),
        call("an item a thousand times larger", change=changed(queries=times(1000.0, 0))),
        call("keys of an item that are all alike", change=changed(keys=first_key)),
        call("values of an item that are all alike", change=changed(values=first_key)),
        call("values that are unit vectors", change=changed(values=unit)),
        call("a value far larger than the others", change=changed(values=times(300.0, 0, 1))),
        call("whole numbers", change=changed(queries=np.rint, keys=np.rint)),
        call("scores below a millionth", of=plain, change=changed(queries=lambda array: array * 1e-8)),
        call("NaN in a query that may not attend", no_first, change=changed(queries=times(np.nan, 0, 0))),
        call("a cotangent of 0", gradients=True, change=changed(cotangent=np.zeros_like)),
        call("a cotangent of 0 but for one place", gradients=True, change=changed(cotangent=one_place)),
        call("a cotangent below a millionth", gradients=True, change=changed(cotangent=lambda array: array * 1e-8)),
        call("a cotangent above 1e4", gradients=True, change=changed(cotangent=lambda array: array * 1e5)),
        call("a key far larger than the others", change=changed(keys=times(300.0, 0, 1))),
        call("a channel far larger than the others", change=changed(keys=lambda array: array * channel)),
        call("values above a million", change=changed(values=lambda array: array * 1e7)),
        call("inputs far from 0", change=changed(queries=far, keys=far, values=far)),
        call("scores above a million", change=changed(queries=lambda array: array * 1e6)),
        call("inputs that are all 1", change=changed(queries=np.ones_like, keys=np.ones_like, values=np.ones_like)),
        call("NaN in a key that a bias of -inf excludes", last_out, change=changed(keys=times(np.nan, 0, keys - 1))),
        call("a projection that is the identity", of=identity),
        call("a projection of 0", of=silent),
        call("weights above 10", of=loud),
    ]
