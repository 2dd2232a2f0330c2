"""Chunked mask: its intervals, beside those of other rules, and where a compiler traces offsets and starts."""

from __future__ import annotations

import numpy as np
import pytest

from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights
from mha_core.call.blocks import reach
from mha_core.call.masks import allowed_keys, as_valid_lens
from mha_core.call.sizes import CallSizes
from mha_core.reference import run

CONFIG = AttentionConfig(12, 3, num_kv_heads=1, chunked_mask=4)
WEIGHTS = init_weights(CONFIG, seed=1)
RNG = np.random.default_rng(2)
QUERIES, KEYS = RNG.normal(size=(2, 5, 12)), RNG.normal(size=(2, 9, 12))
OFFSET, START = np.array([2, 3]), np.array([-1, 2])


def test_positions_have_their_chunks():
    rows = allowed_keys(AttentionMask(causal=True), CallSizes(1, 6, 6, 0, chunk_size=3), num_heads=1)[0, 0]
    assert ["".join(".x"[int(key)] for key in row) for row in rows] == [
        *("x.....", "xx....", "xxx..."),
        *("...x..", "...xx.", "...xxx"),
    ]


@pytest.mark.parametrize("mask", [{}, {"causal": True}, {"window": (2, 1)}, {"valid_lens": np.array([7, 4])}])
def test_blocks_skip_the_keys_outside_of_their_chunks(mask):
    sizes = CallSizes(2, 5, 9, 0, chunk_size=4)
    given = AttentionMask(query_offset=OFFSET, chunk_start=START, **mask)
    allowed, found = allowed_keys(given, sizes, 1)[:, 0], reach(given, sizes)
    for item in range(2):
        for first in range(4):
            rows = slice(first, first + 2)
            keys = np.flatnonzero(allowed[item, rows].any(axis=0))
            within = found.keys(slice(item, item + 1), rows)
            assert (within.start, within.stop) == ((keys[0], keys[-1] + 1) if len(keys) else (0, 0))
    assert found.keys(slice(0, 1), slice(0, 1)).stop < 9


def test_lengths_alone_are_not_the_whole_mask():
    lens = np.array([7, 4])
    assert as_valid_lens(AttentionMask(valid_lens=lens), CallSizes(2, 5, 9), 1) is lens
    assert as_valid_lens(AttentionMask(valid_lens=lens), CallSizes(2, 5, 9, 0, chunk_size=4), 1) is not lens


def expected(**mask):
    return run(CONFIG, WEIGHTS, AttentionInputs(QUERIES, KEYS, KEYS, AttentionMask(**mask))).output


def check(bidirectional, causal):
    np.testing.assert_allclose(bidirectional, expected(query_offset=OFFSET, chunk_start=START), rtol=0, atol=1e-13)
    np.testing.assert_allclose(causal, expected(causal=True, query_offset=3, chunk_start=START), rtol=0, atol=1e-13)
    assert np.abs(bidirectional - expected(query_offset=OFFSET)).max() > 1e-2


def test_torch_compiles_traced_starts():
    torch = pytest.importorskip("torch")
    from backends.torch import from_weights

    layer = from_weights(CONFIG, WEIGHTS)
    q, k, offset, start = map(torch.tensor, (QUERIES, KEYS, OFFSET, START))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        both = compiled(q, k, k, query_offset=offset, chunk_start=start).numpy()
        check(both, compiled(q, k, k, causal=True, query_offset=3, chunk_start=start).numpy())


def test_jax_compiles_traced_starts_also_in_32_bits():
    jax = pytest.importorskip("jax")
    from backends.jax import from_weights
    from backends.jax.ops.framework import device_of, scope

    with scope("float64", device_of("cpu")):
        layer, variables = from_weights(CONFIG, WEIGHTS)
        compiled = jax.jit(lambda q, k, **given: layer.apply(variables, q, k, k, **given))
        causal = jax.jit(
            lambda q, k, start: layer.apply(variables, q, k, k, causal=True, query_offset=3, chunk_start=start)
        )
        check(compiled(QUERIES, KEYS, query_offset=OFFSET, chunk_start=START), causal(QUERIES, KEYS, START))
    layer, variables = from_weights(CONFIG, {name: array.astype("float32") for name, array in WEIGHTS.items()})
    x, y = QUERIES.astype("float32"), KEYS.astype("float32")
    far = {"query_offset": 2**31 - 3, "chunk_start": -(2**31)}  # keys of no chunk: a row of zeros
    np.testing.assert_array_equal(layer.apply(variables, x, y, y, **far), np.zeros((2, 5, 12)))
    near = layer.apply(variables, x, y, y, chunk_start=np.array([-(2**31), 2**31 - 2]))
    right = run(
        CONFIG, WEIGHTS, AttentionInputs(QUERIES, KEYS, KEYS, AttentionMask(chunk_start=np.array([0, 2])))
    ).output
    np.testing.assert_allclose(near, right, rtol=0, atol=1e-5)


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_tensorflow_traces_starts_of_unknown_number(jit_compile):
    tf = pytest.importorskip("tensorflow")
    from backends.tf import from_weights

    layer, x = from_weights(CONFIG, WEIGHTS), tf.TensorSpec((None, None, 12), tf.float64)
    numbers = tf.TensorSpec((None,), tf.int64)

    def both(q, k, offset, start):
        return layer(q, k, k, query_offset=offset, chunk_start=start)

    def causal(q, k, start):
        return layer(q, k, k, causal=True, query_offset=3, chunk_start=start)

    placed = tf.function(both, [x, x, numbers, numbers], jit_compile=jit_compile)
    beside = tf.function(
        causal, [tf.TensorSpec((2, 5, 12), tf.float64), tf.TensorSpec((2, 9, 12), tf.float64), numbers]
    )
    check(placed(QUERIES, KEYS, OFFSET, START).numpy(), beside(QUERIES, KEYS, START).numpy())
