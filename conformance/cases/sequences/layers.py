"""Sequences in which the state of a layer might change: by decoding, training, other weights, threads and layers."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.cases.problem import split_inputs
from conformance.cases.sequence import (
    CAUSAL,
    DROPOUT,
    GROUPED,
    SMALL,
    Base,
    PreparedLayer,
    SequenceTable,
    Step,
    again,
    changed,
    with_keep,
)
from mha_core import AttentionConfig, AttentionMask
from mha_core.reference import pipeline as reference

BARE = AttentionConfig(12, 4, num_kv_heads=2, projections=False)


SEQUENCES = SequenceTable()


@SEQUENCES.of(
    "sequence-decoding",
    "keys and values of an earlier step, or of an earlier sentence, besides the past that is given",
    GROUPED,
)
def _decoding(base: Base) -> list[Step]:
    config = GROUPED
    layer = PreparedLayer(base.id, config)
    batch, prompt, length = 2, 4, 7

    def whole(letter: str, words: str) -> Step:
        return layer.call(words, batch, length, length, CAUSAL, contents=letter * 3, one_array=True)

    def prompted(letter: str, words: str) -> Step:
        return layer.call(words, batch, prompt, prompt, CAUSAL, contents=letter * 3, one_array=True)

    def step(sentence: Step, words: str, position: int) -> Step:
        inputs = sentence.case.build().inputs
        trace = reference.run(config, layer.weights, inputs)
        assert trace.keys is not None
        assert trace.values is not None
        held, mask = position, AttentionMask(causal=True, query_offset=np.array([position] * batch))
        if base.few_shapes:  # a cache of one size, of which the beginning is in use
            held = length - 1
            mask = AttentionMask(allowed=np.append(np.arange(held) < position, True)[None, None, None])
        now = inputs.queries[:, position : position + 1]
        return layer.call(
            f"{words}, step at position {position}",
            batch,
            1,
            1,
            mask,
            past=(trace.keys[:, :, :held], trace.values[:, :, :held]),  # views, as a cache gives them
            change=lambda given: replace(given, queries=now, keys=now, values=now),
        )

    first, second = whole("a", "a sentence at once"), whole("b", "another sentence at once")
    steps = [step(first, "a sentence", position) for position in range(prompt, length)]
    return [
        prompted("a", "the beginning of a sentence"),
        *steps,
        first,
        prompted("b", "the beginning of another sentence"),
        again(steps[0], f"the first sentence again, step at position {prompt}"),
        step(second, "another sentence", prompt + 1),
        again(steps[2], f"the first sentence again, step at position {prompt + 2}"),
        second,
    ]


@SEQUENCES.of(
    "sequence-training",
    "a mode that stays: dropout after training, none in training after a call without",
    replace(SMALL, dropout=DROPOUT),
)
def _training(base: Base) -> list[Step]:
    layer = base.layer(dropout=DROPOUT)
    rng = np.random.default_rng(12)
    batch, queries, keys = base.sizes
    shape = (batch, base.config.num_heads, queries, keys)

    def call(words: str, keep: Any = None, contents: str = "aaa") -> Step:
        return layer.call(words, *base.sizes, base.lens, contents=contents, gradients=True, change=with_keep(keep))

    first = call("without dropout")
    return [
        first,
        call("a training step", rng.random(shape) >= DROPOUT),
        again(first, "without dropout, after a training step"),
        call("a training step with another keep-mask", rng.random(shape) >= DROPOUT),
        call("without dropout, other numbers", contents="bbb"),
    ]


@SEQUENCES.of(
    "sequence-first-calls",
    "what the first call of a layer decides for all later ones: that there is one item, no mask, or one array",
)
def _first_calls(base: Base) -> list[Step]:
    batch, queries, keys = base.sizes
    heads = base.config.num_heads
    number = iter(range(100))
    rng = np.random.default_rng(13)

    def layer(**changes: Any) -> PreparedLayer:
        return base.layer(next(number), **changes)

    one, self_attention, unmasked, by_keys, empty = (layer() for _ in range(5))
    trained, turned = layer(dropout=DROPOUT), layer()
    split = PreparedLayer(base.id, BARE, next(number))
    narrow, cached, query = (layer() for _ in range(3))
    of_keys, of_heads = rng.random((2, batch, heads, queries, keys)) < 0.67
    of_keys[..., 0] = of_heads[..., 0] = True
    keep = rng.random((batch, heads, queries, keys)) >= DROPOUT
    nothing = AttentionMask(valid_lens=np.zeros(batch, np.int64))
    far = 140
    short, long = (AttentionMask(valid_lens=np.array([n], dtype)) for n, dtype in ((5, np.int8), (far - 3, np.int64)))
    past = (
        cached.drawn("past keys", "a", batch, heads, queries, base.config.head_dim),
        cached.drawn("past values", "a", batch, heads, queries, base.config.head_dim),
    )

    as_heads = partial(split_inputs, config=BARE)
    by_channel = changed(queries=np.asfortranarray, keys=np.asfortranarray, values=np.asfortranarray)
    return [
        one.call("1 item with lengths, in the first call", 1, queries, keys, base.lens_of(1), gradients=False),
        one.call("more items with lengths, after 1 item", *base.sizes, base.lens),
        self_attention.call(
            "one array as queries, keys and values, in the first call", *base.sizes, one_array=True, gradients=False
        ),
        self_attention.call("other keys than queries, after one array", *base.sizes, contents="abc", gradients=False),
        unmasked.call("no mask, in the first call", *base.sizes, gradients=False),
        unmasked.call("lengths, after no mask", *base.sizes, base.lens),
        by_keys.call(
            "allowed of keys alone, in the first call",
            *base.sizes,
            AttentionMask(allowed=of_keys[:, :1, :1]),
            gradients=False,
        ),
        by_keys.call("keys that are allowed for each query and head", *base.sizes, AttentionMask(allowed=of_heads)),
        empty.call("no key for any item, in the first call", *base.sizes, nothing),
        empty.call("lengths, after no key for any item", *base.sizes, base.lens),
        trained.call(
            "a training step, in the first call", *base.sizes, base.lens, gradients=True, change=with_keep(keep)
        ),
        trained.call("without dropout, after a training step", *base.sizes, base.lens, gradients=True),
        turned.call(
            "arrays that lie in memory channel by channel, in the first call",
            *base.sizes,
            change=by_channel,
            gradients=False,
        ),
        turned.call("usual arrays, after others", *base.sizes, contents="bbb", gradients=False),
        split.call("queries, keys and values in heads, in the first call", 2, 3, 4, change=as_heads, gradients=False),
        split.call("queries, keys and values whose heads are merged", 2, 3, 4, contents="bbb", gradients=False),
        narrow.call("lengths of 8 bits, in the first call", 1, 1, far, short, gradients=False),
        narrow.call("lengths of 64 bits", 1, 1, far, long, gradients=False),
        cached.call("keys of the past, in the first call", batch, queries, queries, past=past, gradients=False),
        cached.call("no keys of the past, after some", *base.sizes, gradients=False),
        query.call(
            "1 query, in the first call", batch, 1, keys, replace(CAUSAL, query_offset=keys - 1), gradients=False
        ),
        query.call("more queries, after 1", *base.sizes, CAUSAL),
    ]


@SEQUENCES.of("sequence-weights", "weights that are kept, packed or transposed, when the layer's own have changed")
def _weights(base: Base) -> list[Step]:
    layer, other, third = (base.layer(seed=seed) for seed in range(3))

    def call(words: str, weights: Any = None, **step: Any) -> Step:
        return layer.call(words, *base.sizes, CAUSAL, weights=weights, **step)

    first = call("causal")
    in_place = "after the arrays that `prepare` was given were changed"
    return [
        first,
        call("after its weights were set to others", other.weights, reweighted="set"),
        call("the others, asked again", other.weights),
        again(first, "after its weights were set back", reweighted="set"),
        call(in_place, third.weights, reweighted="in place", instead=first.case),
        call("a layer prepared from the same arrays, with other weights", other.weights, reweighted="prepared anew"),
    ]


@SEQUENCES.of("sequence-threads", "a workspace that two threads share, and what only the first has")
def _threads(base: Base) -> list[Step]:
    layer = base.layer()
    first = layer.call("no mask", *base.sizes, gradients=False)
    other = layer.call("other numbers", *base.sizes, contents="bbb", gradients=False)
    return [
        first,
        again(other, "other numbers, from a second thread", thread=1),
        again(first, "the first call again, from the first thread"),
        again(first, "two threads at once", beside=other.case, times=3),
    ]


@SEQUENCES.of("sequence-layers", "what layers share: weights of the one that was prepared last, answers by shape alone")
def _layers(base: Base) -> list[Step]:
    layer, other, without_bias = base.layer(), base.layer(1, seed=1), base.layer(2, bias=False)
    scaled, alike = base.layer(3, scale=1.3), base.layer(4, seed=1)
    alike.weights = {name: np.append(layer.weights[name][:1], w[1:], axis=0) for name, w in alike.weights.items()}
    first = layer.call("causal", *base.sizes, CAUSAL)
    second = other.call("a second layer with other weights, given the same arrays", *base.sizes, CAUSAL)
    return [
        first,
        replace(second, same_arrays=True),
        again(first, "the first layer again"),
        without_bias.call("a third layer, without biases", *base.sizes, contents="bbb"),
        again(second, "the second layer again"),
        scaled.call("a fourth layer, with a scale of its own", *base.sizes, gradients=False),
        layer.call("the first layer, other numbers", *base.sizes, CAUSAL, contents="bbb"),
        alike.call("a fifth layer, whose weights begin as the first layer's do", *base.sizes, CAUSAL),
    ]
