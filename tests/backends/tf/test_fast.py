"""The fast path of the TensorFlow backend: chunks, blocks and loops, what it holds and what it leaves out."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from backends.tf import MultiHeadAttention
from backends.tf.backend import TensorFlowBackend
from backends.tf.fast import blocks
from conformance.cases.table import select
from conformance.reports.text import failure_text
from conformance.runner import run_case
from mha_core.call import blocks as core_blocks
from mha_core.call.call import Call
from mha_core.call.masks import AttentionMask
from tests.backends.drivers import AskedOnce

pytestmark = pytest.mark.same_on_newest  # TensorFlow's release is the same there

CASES = (
    "ragged-square",
    "every-source",
    "dropout",
    "additive",
    "grouped-heads",
    "one-key",
    "no-keys",
    "past",
    "softcap",
)


@pytest.fixture(autouse=True)
def _the_same_weights_each_time():
    """Keras draws a layer's first weights at random."""
    keras.utils.set_random_seed(3)


def normal(seed, *shape, dtype="float64"):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), dtype)


@pytest.fixture
def small(monkeypatch):
    """Room for few scores at a time, so that small calls are cut too."""

    def room(size, unrolled):
        for name, value in (("BUDGET", size), ("UNROLLED", unrolled)):
            monkeypatch.setattr(blocks, name, value)
        for module in (blocks, core_blocks):
            monkeypatch.setattr(module, "SMALLEST_BLOCK", 1)

    return room


@pytest.mark.nightly("blocks give what the whole gives", but=("fast-compiled-90-1",))
@pytest.mark.parametrize(
    ("path", "size", "unrolled"),
    [
        ("fast", 400, 64),
        ("fast", 90, 64),
        ("fast-compiled", 900, 64),
        ("fast-compiled", 90, 1),
        ("fast-xla", 90, 64),
    ],
)
def test_chunks_blocks_and_loops_are_equal(small, path, size, unrolled):
    small(size, unrolled)
    subject = AskedOnce(TensorFlowBackend(), "float64", "cpu", path)  # test_parity.py asks again
    some = CASES if path == "fast" else ("every-source", "grouped-heads") if path == "fast-xla" else ("every-source",)
    results = [run_case(select((name,))[0], subject) for name in some]
    assert [failure_text(result) for result in results if result.status != "equal"] == []


def layer_and_call(**changes):
    layer = MultiHeadAttention(12, 3, dtype="float64", **changes)
    bias = normal(3, 3, 5, 7)

    def call(how, queries, keys):
        mask = AttentionMask([6, 4], bias=bias, causal=True, window=(4, None), query_offset=2)
        return how(Call(queries, keys, keys, mask)).output

    return layer, call


def second_order(call, how, queries, keys):
    with tf.GradientTape() as outer:
        outer.watch((queries, keys))
        with tf.GradientTape() as inner:
            inner.watch((queries, keys))
            output = tf.reduce_sum(call(how, queries, keys) ** 2)
        first = inner.gradient(output, (queries, keys))
        bent = tf.add_n([tf.reduce_sum(tf.sin(x)) for x in first])
    return outer.gradient(bent, (queries, keys))


@pytest.mark.nightly("gradients of gradients are right", but=("dot-eager",))
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize(
    "changes", [{"num_kv_heads": 1, "softcap": 2.0}, {"score": "additive"}], ids=["dot", "additive"]
)
def test_second_order_and_forward_mode(changes, traced):
    layer, call = layer_and_call(**changes)

    def second(how, queries, keys):
        return second_order(call, how, queries, keys)

    def forward(how, queries, keys):
        with tf.autodiff.ForwardAccumulator(queries, tf.cos(queries)) as accumulator:
            output = call(how, queries, keys)
        return (accumulator.jvp(output),)

    arrays = normal(1, 2, 5, 12), normal(2, 2, 7, 12)
    for derivative in (second, forward):
        wanted = derivative(layer.stages, *arrays)
        run = tf.function(derivative) if traced and derivative is second else derivative
        for found, expected in zip(run(layer.attend, *arrays), wanted, strict=True):
            assert np.abs(expected).max() > 0.1
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.nightly("gradients of gradients are right")
def test_second_order_of_loops_for_xla(small):
    small(90, 64)
    layer, call = layer_and_call()
    arrays = normal(1, 2, 5, 12), normal(2, 2, 7, 12)
    wanted = second_order(call, layer.stages, *arrays)
    # AutoGraph, which the test above leaves on, would rewrite each function for seconds.
    found = tf.function(partial(second_order, call, layer.attend), jit_compile=True, autograph=False)(*arrays)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("query_block", [None, 2])
def test_the_backward_pass_drops_the_same_weights(query_block):
    layer, x = MultiHeadAttention(12, 3, 0.5, dtype="float64"), normal(4, 2, 9, 12)
    still = layer(x, x, x)
    state = layer.dropout.seed_generator.state
    seed = tf.identity(state)

    def call(x):
        state.assign(seed)
        output = layer.attend(Call(x, x, x), training=True, query_block=query_block).output
        assert np.abs(output - still).max() > 0.01
        return tf.reduce_sum(tf.sin(output))

    with tf.GradientTape() as tape:
        tape.watch(x)
        output = call(x)
    direction = normal(5, 2, 9, 12)
    along = tf.reduce_sum(tape.gradient(output, x) * direction)
    step = 1e-6
    np.testing.assert_allclose(along, (call(x + step * direction) - call(x - step * direction)) / (2 * step), rtol=1e-6)


def test_dropped_weights_follow_keras_seed_and_differ_between_blocks():
    def dropped():
        keras.utils.set_random_seed(3)
        x = np.ones((2, 8, 6), "float32")
        layer = MultiHeadAttention(6, 2, 0.5, projections=False)
        return layer.attend(Call(x, x, x), training=True, query_block=2).output

    first = dropped().numpy()
    np.testing.assert_array_equal(dropped(), first)
    assert len(np.unique(first, axis=1)[0]) > 1
    assert abs(first.mean() - 1.0) < 0.3


def operations(function, *arrays, jit_compile=False):
    """All operations of the traced function, those in its loops too."""
    graph = tf.function(function, jit_compile=jit_compile).get_concrete_function(*arrays).graph
    inner = [f.graph for f in graph._functions.values()] if hasattr(graph, "_functions") else []
    return [operation for g in (graph, *inner) for operation in g.get_operations()]


def elements(operation):
    return max((output.shape.num_elements() or 0 for output in operation.outputs), default=0)


def test_no_square_stands_in_a_trace_of_forward_and_backward(small):
    small(2**17, 64)
    layer = MultiHeadAttention(8, 2)
    layer.build(*[(None, None, 8)] * 3)

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x, x, x, causal=True)
        return tape.gradient(output, x)

    largest = max(map(elements, operations(gradient, tf.zeros((1, 512, 8)))))
    assert largest <= 512 * 512 / 8


def products(layer, x, **masks):
    """The multiplications that the scores take."""
    found = operations(lambda x: layer(x, x, x, **masks), x)
    return sum(elements(operation) for operation in found if operation.type == "Softmax")


def test_blocks_that_positions_exclude_are_not_computed():
    layer, x = MultiHeadAttention(8, 2), tf.zeros((1, 512, 8))
    layer(x, x, x)
    every = products(layer, x)
    assert every == 2 * 512 * 512
    assert products(layer, x, causal=True) == every * 9 / 16  # of eight blocks: 1/8 + ... + 8/8, instead of 8
    assert products(layer, x, window=(32, 32)) < every / 3
    assert products(layer, x, valid_lens=[100]) == 2 * 512 * 100


def test_xla_is_given_one_block_at_a_time(small):
    small(2**14, 64)
    layer, x = MultiHeadAttention(8, 2), tf.zeros((1, 512, 8))
    layer(x, x, x)

    def shapes(**masks):
        found = operations(lambda x: layer(x, x, x, **masks), x, jit_compile=True)
        return sorted({tuple(op.outputs[0].shape) for op in found if op.type == "Softmax" and elements(op)})

    assert shapes() == [(1, 1, 8, 512)]  # written once, in a loop over heads and blocks
    assert shapes(causal=True) == [(1, 1, 8, keys) for keys in range(64, 513, 64)]  # by eighths of the queries
    assert shapes(valid_lens=[100]) == [(1, 1, 8, 100)]


def test_no_mask_is_made_where_nothing_is_excluded():
    layer, x = MultiHeadAttention(8, 2), tf.zeros((1, 512, 8))
    layer(x, x, x)
    kinds = [operation.type for operation in operations(lambda x: layer(x, x, x), x)]
    assert "Range" not in kinds
    some = [operation.type for operation in operations(lambda x: layer(x, x, x, causal=True), x)]
    assert some.count("LogicalAnd") == 8


def test_a_decoding_step_leaves_the_cache_where_it_is():
    layer = MultiHeadAttention(12, 4, num_kv_heads=2)
    x, past = normal(6, 3, 1, 12, dtype="float32"), [normal(i, 3, 2, 50, 3, dtype="float32") for i in (7, 8)]
    wanted, present = layer(x, x, x, past_keys=past[0], past_values=past[1], return_present=True)
    assert present[0].shape == (3, 2, 51, 3)

    def step(x, keys, values):
        return layer(x, x, x, past_keys=keys, past_values=values)

    np.testing.assert_allclose(step(x, *past), wanted, rtol=0, atol=1e-5)
    kinds = ("ConcatV2", "SelectV2", "Transpose", "Mul")
    moved = [elements(operation) for operation in operations(step, x, *past) if operation.type in kinds]
    assert max(moved) < 3 * 2 * 50 * 3


@pytest.mark.nightly("programs take every size")
def test_a_call_with_unknown_sizes_and_a_saved_one_keep_the_gradient(tmp_path, small):
    small(2000, 64)
    layer = MultiHeadAttention(12, 3)
    module = tf.Module()
    module.layer = layer
    spec = tf.TensorSpec((None, None, 12))
    module.call = tf.function(lambda x: layer(x, x, x, causal=True), input_signature=[spec])
    x = normal(9, 2, 11, 12, dtype="float32")

    def gradient(call):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = call(x)
        return output, tape.gradient(output, x)

    wanted = gradient(lambda x: layer(x, x, x, causal=True, return_weights=True)[0])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for call in (module.call, loaded.call):
        for found, expected in zip(gradient(call), wanted, strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert module.call(x[:, :0]).shape == (2, 0, 12)


@pytest.mark.parametrize("lens", [None, [1, 3]])
def test_a_lone_key_has_the_weight_1_whatever_the_processor(lens, monkeypatch):
    """Without oneDNN, tf.nn.softmax makes it 1 - 2^-24, as it does here."""
    softmax = tf.nn.softmax
    monkeypatch.setattr(tf.nn, "softmax", lambda scores: tf.minimum(softmax(scores), 1.0 - 2.0**-24))
    layer = MultiHeadAttention(6, 2, projections=False)
    queries, keys, values = (tf.random.normal((2, length, 6)) for length in (2, 3, 3))
    if lens is None:
        keys, values = keys[:, :1], values[:, :1]
    output = layer(queries, keys, values, lens).numpy()
    np.testing.assert_array_equal(output[0], np.repeat(values.numpy()[0, :1], 2, axis=0))
