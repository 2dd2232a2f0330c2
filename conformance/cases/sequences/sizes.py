"""Sequences of calls in sizes that users have, one after the other on one layer, and of decoding step by step."""

import numpy as np

from conformance.cases.sequence import SMALL, Base, PreparedLayer, SequenceTable, Step
from mha_core import AttentionConfig, AttentionMask

QUERIES_ALONE = {"q_proj": True}
ALL_BUT_QUERIES = {"k_proj": True, "v_proj": True, "out_proj": True}


SEQUENCES = SequenceTable()


@SEQUENCES.of("sequence-sizes", "a limit of a size, or a path for long calls, that is kept")
def _sizes(base: Base) -> list[Step]:
    layer = PreparedLayer(base.id, SMALL, longest=32)
    grouped = PreparedLayer(base.id, AttentionConfig(128, 8, num_kv_heads=2, value_dim=1, bias=QUERIES_ALONE), 1)
    wide = PreparedLayer(base.id, AttentionConfig(192, 2, query_dim=512, value_head_dim=1, bias=ALL_BUT_QUERIES), 2)
    widest = PreparedLayer(base.id, AttentionConfig(144, 1), 3)
    many = PreparedLayer(
        base.id, AttentionConfig(64, 32, value_head_dim=3, output_dim=1, bias={"out_proj": True}, scale=-0.4), 6
    )
    usual, again = base.layer(4), base.layer(5)
    short = AttentionMask(valid_lens=np.array([201], np.uint8))
    unsigned = AttentionMask(valid_lens=np.array([100], np.uint64))
    causal = AttentionMask(causal=True)
    trained = [
        usual.call("20 calls of one shape and 1 more", *base.sizes, base.lens, times=21),
        again.call("gradients 10 times", *base.sizes, base.lens, gradients=True, times=10),
    ]
    far = [
        layer.call("1 query and 1 key", 1, 1, 1),
        layer.call("1 query and 1030 keys, after 1", 1, 1, 1030),
        layer.call("32 items, 31 keys", 32, 2, 31, causal),
    ]
    heads = [
        grouped.call("4 query heads to a key head, inputs 1 wide", 2, 3, 5, causal),
        wide.call("inputs 512 wide, value heads 1 wide", 2, 3, 5),
        widest.call("a head 144 wide", 2, 3, 5),
        many.call("32 heads 2 wide, an output 1 wide, a negative scale", 2, 3, 5),
    ]
    if base.few_shapes:  # each shape costs such a subject a compilation
        return [*trained, *far, *heads]
    return [
        *trained,
        usual.call("another shape, after 21 calls", 1, 3, 4),
        usual.call("another shape, from a second thread", 2, 4, 3, thread=1),
        *far,
        layer.call("1000 queries and 3 keys", 1, 1000, 3),
        layer.call("as many items as queries, 64 keys", 5, 5, 64, causal),
        layer.call("127 keys, lengths without a sign", 1, 3, 127, unsigned),
        layer.call("8 queries and 128 keys", 1, 8, 128),
        layer.call("256 keys, lengths of 8 bits", 1, 2, 256, short),
        layer.call("128 queries", 1, 128, 3),
        layer.call("64 queries and 63 keys", 1, 64, 63),
        layer.call("256 queries and 129 keys", 1, 256, 129, causal),
        layer.call("257 of both", 1, 257, 257, causal),
        layer.call("65 keys", 1, 2, 65),
        layer.call("3 items, heads, queries and keys", 3, 3, 3),
        layer.call("neither queries nor keys", 2, 0, 0),
        *(layer.call("one key less", 2, 4, length, causal) for length in (9, 8, 7, 6, 5)),
        layer.call("up to 64 of both", 1, 12, 12),
        layer.call("more than 64 of both", 1, 70, 130, causal),
        *heads,
    ]


@SEQUENCES.of("sequence-decoding", "a cache that is not the one that is given")
def _decoding(base: Base) -> list[Step]:
    """A prompt and steps of one new key each, causal with a window, for two sentences; then several keys at once."""
    batch = base.sizes[0]
    layer = base.layer()
    heads, width = base.config.num_kv_heads, base.config.head_dim

    def step(words: str, letter: str, past_len: int, new: int = 1) -> Step:
        past = tuple(layer.drawn(f"past {name}", letter, batch, heads, past_len, width) for name in ("keys", "values"))
        mask = AttentionMask(causal=True, window=(3, None), query_offset=past_len)
        words = f"{words}, {past_len} keys in the past"
        return layer.call(words, batch, new, new, mask, past=(past[0], past[1]), contents=letter * 3, gradients=False)

    if base.few_shapes:
        lengths = (5, 5)
        return [step("a step", "a", lengths[0]), step("another sentence", "b", lengths[1])]
    return [
        *(step("a step", "a", length) for length in range(11)),
        step("several new keys", "a", 11, 3),
        *(step(f"{letter} in turn", letter, length) for length in (4, 5, 6) for letter in "bc"),
        step("a new sentence", "d", 2),
    ]
