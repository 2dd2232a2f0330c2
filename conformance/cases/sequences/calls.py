"""Sequences of calls that differ in their shapes, masks and numbers."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.sequence import CAUSAL, Base, PreparedLayer, SequenceTable, Step, again, changed
from mha_core import AttentionInputs, AttentionMask

SEQUENCES = SequenceTable()


@SEQUENCES.of("sequence-shapes", "what is kept by the first shape: a causal mask, rows of a workspace, a size")
def _shapes(base: Base) -> list[Step]:
    batch, queries, keys = base.sizes
    layer = base.layer()
    first = layer.call("causal", *base.sizes, CAUSAL, gradients=True)
    other = layer.call("the first shape, other numbers", *base.sizes, CAUSAL, contents="bbb", gradients=True)
    fewer_keys = layer.call("fewer keys", batch, queries, keys - 2, CAUSAL, gradients=False)
    fewer_items = layer.call("fewer items", 1, queries, keys, CAUSAL, gradients=False)
    mirrored = layer.call("as many keys as there were queries", batch, keys - 2, queries, CAUSAL, gradients=False)
    larger = layer.call("more items, queries and keys", 6, 8, 11, CAUSAL, contents="bbb", gradients=False)
    one_query = layer.call("1 query", batch, 1, keys, replace(CAUSAL, query_offset=keys - 1), gradients=False)
    one_array = layer.call("one array as queries, keys and values", *base.sizes, CAUSAL, one_array=True)
    return [
        first,
        fewer_keys,
        mirrored,
        fewer_items,
        other,
        larger,
        again(fewer_keys, "fewer keys, after more"),
        again(fewer_items, "fewer items, after more"),
        one_array,
        one_query,
        again(first, "the first call again"),
    ]


@SEQUENCES.of("sequence-masks", "a mask, or a bias, that is kept for later calls")
def _masks(base: Base) -> list[Step]:
    layer = base.layer()
    rng = np.random.default_rng(11)
    heads, (batch, queries, keys) = base.config.num_heads, base.sizes

    def call(words: str, gradients: bool | None = None, **sources: Any) -> Step:
        return layer.call(words, *base.sizes, AttentionMask(**sources), gradients=gradients)

    def open_keys(*shape: int) -> Any:
        found = rng.random(shape) < 0.67
        found[..., 0] = True
        return found

    bias_of_items = rng.normal(size=(batch, 1, queries, keys))
    excluding = np.where(open_keys(batch, 1, queries, keys), bias_of_items[::-1], -np.inf)
    allowed, bias = open_keys(batch, heads, queries, keys), rng.normal(size=(heads, queries, keys))
    assert base.lens.valid_lens is not None
    lens_of_first = base.lens.valid_lens[0]
    lens = call("lengths", valid_lens=base.lens.valid_lens)
    causal = call("causal", causal=True)
    return [
        causal,
        lens,
        call("other lengths", valid_lens=base.other_lens.valid_lens),
        again(causal, "causal again"),
        # For who compiles, an offset of each item is an array, and one offset a program of its own.
        call(
            "causal at other positions",
            False,
            causal=True,
            query_offset=np.array([2] * batch) if base.few_shapes else 2,
        ),
        call("window", window=(2, 1), query_offset=1),
        call("allowed", allowed=allowed),
        call("another allowed, of as many keys", allowed=np.roll(allowed, 1, axis=1)),
        call("bias", True, bias=bias),
        call("another bias, of the same numbers", True, bias=np.roll(bias, 1, axis=0)),
        call("no mask", False),
        call("lengths and causal", valid_lens=base.lens.valid_lens, causal=True),
        call("a bias of each item", bias=bias_of_items),
        call("another bias of each item, which excludes", bias=excluding),
        call("lengths of each query", valid_lens=rng.integers(1, keys + 1, size=(batch, queries))),
        again(lens, "lengths again"),
        call("other lengths, of which the first is as before", valid_lens=np.resize([lens_of_first, 2, 4], batch)),
    ]


@SEQUENCES.of("sequence-numbers", "an answer that is kept by some of its numbers, or a layout in memory that is kept")
def _numbers(base: Base) -> list[Step]:
    layer = base.layer()
    inputs, other = (layer.call("", *base.sizes, contents=letter * 3).case.build().inputs for letter in "ab")

    def call(words: str, change: Any = lambda x, y: x) -> Step:
        """Return the first call with `change(x, y)` in place of each array x; y is that of another call."""
        changed = {name: change(getattr(inputs, name), getattr(other, name)) for name in ("queries", "keys", "values")}
        return layer.call(words, *base.sizes, gradients=False, change=lambda given: replace(given, **changed))

    def with_rows(rows: slice) -> Any:
        def change(x: NDArray, y: NDArray) -> NDArray:
            changed = x.copy()
            changed[:, rows] = y[:, rows]
            return changed

        return change

    first = call("no mask")
    return [
        first,
        again(first, "the first call again, and then written over by its caller", spoil=True),
        again(first, "the first call again, after its answer was written over"),
        call("the same rows in another order", lambda x, y: x[:, ::-1].copy()),
        call("other numbers between the first and the last row", with_rows(slice(1, -1))),
        call("another last row", with_rows(slice(-1, None))),
        call("arrays that lie in memory channel by channel", lambda x, y: np.asfortranarray(y)),
        call("arrays that lie in memory the other way round", lambda x, y: x[::-1, ::-1].copy()[::-1, ::-1]),
        again(first, "the first call again"),
    ]


GROWTH = range(3, 23)
"""Keys of the calls of "sequence-lengths" as they grow."""

SHRINKING = (21, 20, 12, 5, 3)
COUNTED = 51
"""Calls of it before the last one."""


@SEQUENCES.of(
    "sequence-lengths", "a position or a length that is counted from call to call; what changes after 5 calls, or 50"
)
def _lengths(base: Base) -> list[Step]:
    layer = PreparedLayer(base.id, base.config, longest=GROWTH[-1])

    def call(keys: int, words: str = "") -> Step:
        mask = AttentionMask(causal=True, query_offset=np.array([keys - 2]))
        if base.few_shapes:
            mask = replace(mask, valid_lens=np.array([keys]))
        size = GROWTH[-1] if base.few_shapes else keys
        # Other keys than those of one less, so that these can't be taken for them.
        return layer.call(words or f"{keys} keys", 1, 2, size, mask, contents="a" + "ab"[keys % 2] * 2, gradients=False)

    def of_length(words: str, length: int, **step: Any) -> Step:
        mask = AttentionMask(valid_lens=np.array([length]))
        return layer.call(words, 1, 2, GROWTH[-1], mask, gradients=False, **step)

    grown = [call(keys) for keys in GROWTH]
    return [
        *grown,
        *(again(grown[keys - GROWTH[0]], f"{keys} keys, after {GROWTH[-1]}") for keys in SHRINKING),
        of_length(f"lengths, until there are {COUNTED} calls", 9, times=COUNTED - len(GROWTH) - len(SHRINKING)),
        of_length(f"other lengths, after {COUNTED} calls", 14),
    ]


@SEQUENCES.of("sequence-empty", "what a call without items, queries or keys leaves behind")
def _empty(base: Base) -> list[Step]:
    layer = base.layer()
    batch, queries, keys = base.sizes
    first = layer.call("causal", *base.sizes, CAUSAL)
    other = layer.call("other numbers", *base.sizes, CAUSAL, contents="bbb")
    return [
        layer.call("no items", 0, queries, keys, CAUSAL, gradients=False),
        first,
        layer.call("no queries", batch, 0, keys, CAUSAL, gradients=False),
        again(other, "other numbers, after no queries"),
        layer.call("no keys", batch, queries, 0, CAUSAL, gradients=False),
        again(first, "the first call, after no keys"),
    ]


@SEQUENCES.of("sequence-not-finite", "NaN, infinity or the largest number of an earlier call")
def _not_finite(base: Base) -> list[Step]:
    layer = base.layer()

    def call(words: str, change: Any = None, contents: str = "aaa") -> Step:
        change = (lambda given: given) if change is None else change
        return layer.call(words, *base.sizes, base.lens, contents=contents, change=change)

    def with_key(number: float, where: tuple[int, ...]) -> Any:
        def change(given: AttentionInputs) -> AttentionInputs:
            keys, values = given.keys.copy(), given.values.copy()
            keys[where], values[where] = number, -number
            return replace(given, keys=keys, values=values)

        return change

    first, other = call("lengths"), call("other numbers", contents="bbb")
    return [
        first,
        call("NaN in padding", with_key(np.nan, (0, 3))),
        again(other, "other numbers, after NaN in padding"),
        call("NaN in an open key", with_key(np.nan, (0, 1))),
        again(first, "the first call, after NaN"),
        call("infinity in an open key", with_key(np.inf, (1, 2))),
        again(other, "other numbers, after infinity"),
        call("large scores", lambda given: replace(given, queries=300.0 * given.queries)),
        again(first, "the first call, after large scores"),
    ]


@SEQUENCES.of(
    "sequence-same-arrays", "an answer that is kept by the array's identity, though it holds other numbers now"
)
def _same_arrays(base: Base) -> list[Step]:
    layer = base.layer()

    def call(words: str, contents: str, mask: AttentionMask | None = None, **step: Any) -> Step:
        gradients = None if mask else False
        return layer.call(words, *base.sizes, mask, contents=contents, gradients=gradients, **step)

    rng = np.random.default_rng(37)
    allowed, bias = np.tri(*base.sizes[1:], 1, dtype=bool), rng.normal(size=base.sizes[1:])
    return [
        call("no mask", "aaa"),
        call("the same arrays, other queries", "baa", same_arrays=True),
        call("the same arrays, other keys and values", "bbb", same_arrays=True),
        call("lengths", "bbb", base.lens),
        call("the same arrays, other lengths", "bbb", base.other_lens, same_arrays=True),
        call("the same arrays, all of them other", "ccc", base.lens, same_arrays=True),
        call("`allowed`", "bbb", AttentionMask(allowed=allowed)),
        call("the same arrays, another `allowed`", "bbb", AttentionMask(allowed=allowed[::-1]), same_arrays=True),
        call("a bias", "bbb", AttentionMask(bias=bias)),
        call("the same arrays, another bias", "bbb", AttentionMask(bias=bias[::-1]), same_arrays=True),
    ]


@SEQUENCES.of("sequence-second-calls", "what the first call of a layer decides for all later ones")
def _second_calls(base: Base) -> list[Step]:
    """Two or three calls each of layers that have not been asked before."""
    batch, queries, keys = base.sizes
    full, padded, open_, linked, tainted, shaped = (base.layer(number) for number in range(6))

    def lens(*lengths: int, causal: bool = False) -> AttentionMask:
        return AttentionMask(valid_lens=np.resize(lengths, batch), causal=causal)

    def of_one_item(array: NDArray) -> NDArray:
        return np.repeat(array[:1], batch, axis=0)

    def with_nan(inputs: AttentionInputs) -> AttentionInputs:
        inputs.values[0, -1] = np.nan
        return inputs

    lens_of_both = lens(2, keys - 2)
    return [
        full.call("lengths of all keys", *base.sizes, lens(keys)),
        full.call("shorter lengths, after those of all keys", *base.sizes, lens(3, 2)),
        padded.call("lengths", *base.sizes, lens(2, 4)),
        padded.call("1 query and other lengths", batch, 1, keys, lens(4, 1)),
        open_.call("causal with lengths", *base.sizes, lens(2, 1, causal=True)),
        open_.call("causal with longer lengths", *base.sizes, lens(keys, 4, causal=True)),
        linked.call(
            "items with the same keys and values", *base.sizes, change=changed(keys=of_one_item, values=of_one_item)
        ),
        linked.call("items with other keys and values", *base.sizes),
        tainted.call("NaN in the last value", *base.sizes, change=with_nan),
        tainted.call("fewer keys, after NaN", batch, queries, keys - 2),
        shaped.call("lengths, again", *base.sizes, lens(keys - 1, 3)),
        shaped.call("fewer keys, other lengths", batch, queries, keys - 2, lens_of_both),
        shaped.call("the first shape, the lengths of the second", *base.sizes, lens_of_both),
    ]
