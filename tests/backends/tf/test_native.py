"""Keras's own layers: their weights to the bit both ways, and how a mask is told to them."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from backends.tf import from_weights
from backends.tf.native import live_probe
from backends.tf.native.convert import from_native, layout_of, to_native, variables, window_of
from backends.tf.native.subjects import per_item, told_to_keras
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError, init_weights
from mha_core.call.masks import allowed_keys
from mha_core.reference import pipeline as reference

pytestmark = pytest.mark.same_on_newest  # TensorFlow's release is the same there

WIDTHS = AttentionConfig(30, 3, head_dim=7, value_head_dim=8, query_dim=11, key_dim=13, value_dim=10, bias=True)
GROUPED = AttentionConfig(30, 6, num_kv_heads=2, head_dim=7, query_dim=11, key_dim=13, value_dim=10, output_dim=11)
SQUARE = AttentionConfig(12, 3, bias=True, dropout=0.25)
D2L = AttentionConfig(12, 3, query_dim=11, key_dim=13, value_dim=10, bias=True)
B, LQ, LK = 2, 5, 6


def weights_of(config, dtype="float64"):
    return {name: array.astype(dtype) for name, array in init_weights(config, seed=1, bias_scale=1.0).items()}


def inputs_of(config, dtype="float64"):
    rng = np.random.default_rng(2)
    shapes = (B, LQ, config.query_dim), (B, LK, config.key_dim), (B, LK, config.value_dim)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def randomize(layer):
    """Biases are 0 in a new layer."""
    rng = np.random.default_rng(3)
    for variable in layer.weights:
        variable.assign(rng.normal(size=variable.shape))


# Weights --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.layers.MultiHeadAttention(3, 7, value_dim=8, output_shape=9, dropout=0.25),
        lambda: keras.layers.MultiHeadAttention(3, 4, use_bias=False),
        lambda: keras.layers.GroupQueryAttention(7, 6, 2),
        lambda: keras.layers.GroupQueryAttention(7, 4, 1, use_bias=False, dropout=0.5),
    ],
)
def test_a_live_layer_comes_back_to_the_bit(make):
    layer = make()
    queries, keys, values = inputs_of(WIDTHS, "float32")
    layer(queries, values, keys)
    randomize(layer)
    config, weights = from_native(layer)
    assert (config.query_dim, config.key_dim, config.value_dim) == (11, 13, 10)
    assert config.dropout == layer.dropout
    again = to_native(config, weights, layout_of(layer).name)
    assert list(variables(again)) == list(variables(layer))
    for one, other in zip(again.get_weights(), layer.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(again(queries, values, keys), layer(queries, values, keys))
    np.testing.assert_allclose(
        from_weights(config, weights)(queries, keys, values), layer(queries, values, keys), rtol=1e-4, atol=1e-4
    )


def test_options_and_dtype_are_passed_on():
    layer = to_native(SQUARE, weights_of(SQUARE), dtype="mixed_bfloat16", name="mine", sliding_window=4)
    assert (layer.name, layer.dtype, layer.compute_dtype, window_of(layer)) == ("mine", "float32", "bfloat16", (3, 3))
    half = to_native(SQUARE, weights_of(SQUARE), dtype="bfloat16")
    _, back = from_native(half)
    assert {str(array.dtype) for array in back.values()} == {"float32"}
    _, twice = from_native(to_native(SQUARE, back, dtype="bfloat16"))
    assert all((back[name] == twice[name]).all() for name in back)


def with_rank_4():
    layer = keras.layers.MultiHeadAttention(2, 3)
    layer(np.zeros((1, 2, 3, 6), "float32"), np.zeros((1, 2, 3, 6), "float32"))
    return layer


def with_two_output_axes():
    layer = keras.layers.MultiHeadAttention(2, 3, output_shape=(4, 5))
    layer.build((None, None, 6), (None, None, 6))
    return layer


class OwnAttention(keras.layers.MultiHeadAttention):
    """A method of its own is no reason to refuse it: what it computes is asked."""

    factor = 1.0

    def _compute_attention(self, query, *args, **kwargs):
        return super()._compute_attention(query * self.factor, *args, **kwargs)


def test_a_layer_with_a_method_of_its_own_is_asked_what_it_computes():
    layer = OwnAttention(2, 3)
    layer.build((2, 5, 7), (2, 6, 7), (2, 6, 7))
    config, _ = from_native(layer)
    assert (config.num_heads, config.head_dim, config.query_dim) == (2, 3, 7)
    layer.factor = 1.1
    with pytest.raises(SpecError, match="does not compute what its weights say"):
        from_native(layer)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: keras.layers.MultiHeadAttention(2, 3, use_gate=True), "has use_gate=True"),
        (lambda: keras.layers.GroupQueryAttention(3, 2, 1, use_gate=True), "has use_gate=True"),
        (lambda: keras.layers.MultiHeadAttention(2, 3, flash_attention=True), "has flash_attention=True"),
        (lambda: keras.layers.MultiHeadAttention(2, 3, attention_axes=(1, 2)), r"attention_axes=\(1, 2\)"),
        (with_rank_4, r"attention_axes=\(1, 2\)"),
        (with_two_output_axes, r"attention_output/kernel must have shape \(heads, width, out\)"),
        (lambda: keras.layers.MultiHeadAttention(2, 3, name="mine"), "'mine' has no parameters yet"),
        (lambda: keras.layers.Dense(3), "Dense is no layer that can be read here"),
    ],
)
def test_what_can_not_be_held_is_refused(make, said):
    with pytest.raises(SpecError, match=said):
        from_native(make())


# Live layers that compute something else -------------------------------------------------------------------


class Twice(keras.layers.MultiHeadAttention):
    """An output of its own, by none of the methods that make another layer of it at sight."""

    def __call__(self, *args, **kwargs):
        found = super().__call__(*args, **kwargs)
        return (2.0 * found[0], found[1]) if isinstance(found, tuple) else 2.0 * found


def with_class(layer):
    layer.__class__ = Twice


def with_scale(layer):
    layer._inverse_sqrt_key_dim = 0.25


def with_patched_call(layer):
    own = layer.call
    layer.call = lambda query, value, key=None, attention_mask=None, **told: own(query, value, key, **told)


def with_lora(layer):
    """As loralib has it, under the same names."""
    own = layer._value_dense.call
    layer._value_dense.call = lambda inputs, training=None: own(inputs) + 0.02 * own(tf.reverse(inputs, [-1]))


def with_no_softmax(layer):
    layer._masked_softmax = lambda scores, mask=None: tf.nn.sigmoid(scores)


@pytest.mark.nightly("weights go in and come out exactly", every=4)
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "float16"])
@pytest.mark.parametrize(
    ("trick", "said"),
    [
        (
            with_class,
            "Twice 'mine' does not compute what its weights say: in a probe of 2 x 5 queries and 7 keys, no m",
        ),
        (with_scale, "no mask, weights["),
        (with_patched_call, "in a probe of 2 x 17 queries and 64 keys, valid_lens, weights["),
        (with_lora, "no mask, output["),
        (with_no_softmax, "no mask, weights["),
    ],
)
def test_a_live_layer_that_computes_something_else_is_refused(trick, said, dtype):
    layer = to_native(SQUARE, weights_of(SQUARE), dtype=dtype, name="mine")
    wanted = from_native(layer)
    if trick is with_lora and dtype != "float32":
        return  # a fiftieth is less than can be told in such numbers
    trick(layer)
    with pytest.raises(SpecError) as error:
        from_native(layer)
    assert said in str(error.value)
    assert str(error.value).endswith("probe=False hands its weights out all the same")
    assert from_native(layer, probe=False)[0] == wanted[0]


def test_a_window_is_part_of_what_is_read():
    from_native(to_native(SQUARE, weights_of(SQUARE), sliding_window=2))
    from_native(to_native(GROUPED, weights_of(GROUPED), "keras-gqa", sliding_window=1))


def test_a_layer_that_is_traced_is_refused():
    layer = to_native(SQUARE, weights_of(SQUARE))
    config, weights = from_native(layer)
    check = tf.function(lambda: live_probe.check_keras(layer, config, weights, None), autograph=False)
    with pytest.raises(SpecError, match="TensorFlow traces a function, where arrays have no numbers. probe=False"):
        check()


def test_a_probe_leaves_a_layer_as_it_was():
    layer = to_native(D2L, weights_of(D2L), "d2l-tf")
    layer.attention.attention_weights = kept = tf.ones(2)
    of_python, of_numpy = random.getstate(), np.random.get_state()[1].copy()
    seeds = [variable.value.numpy().copy() for variable in layer.non_trainable_variables]
    config, weights = from_native(layer)
    with tf.GradientTape() as tape:
        live_probe.check_d2l(layer, config, weights)
    assert not tape.watched_variables()
    assert layer.attention.attention_weights is kept
    assert random.getstate() == of_python
    assert (np.random.get_state()[1] == of_numpy).all()
    for variable, before in zip(layer.non_trainable_variables, seeds, strict=True):
        np.testing.assert_array_equal(variable, before)


# Masks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grouped", [False, True])
def test_a_window_is_one_narrower_than_keras_counts(grouped):
    config = GROUPED if grouped else WIDTHS
    queries, keys, values = inputs_of(config, "float32")
    layer = to_native(config, weights_of(config, "float32"), "keras-gqa" if grouped else "keras", sliding_window=3)
    inputs = AttentionInputs(queries, keys, values, AttentionMask(window=window_of(layer), causal=True))
    wanted = reference.run(config, weights_of(config, "float32"), inputs).output
    np.testing.assert_allclose(layer(queries, values, keys, use_causal_mask=True), wanted, rtol=1e-4, atol=1e-5)
    assert window_of(to_native(SQUARE, weights_of(SQUARE))) is None


@pytest.mark.parametrize(
    ("mask", "flag"),
    [
        (AttentionMask(), False),
        (AttentionMask(causal=True), True),
        (AttentionMask(causal=True, query_offset=1), False),
        (AttentionMask(causal=True, query_offset=np.array([0, -2])), False),
        (AttentionMask(causal=True, window=(1, None), valid_lens=np.array([2, 5])), True),
        (AttentionMask(window=(2, 1), query_offset=1), False),
    ],
)
def test_a_mask_is_told_in_keras_words(mask, flag):
    inputs = AttentionInputs(*inputs_of(SQUARE), mask)
    told = told_to_keras(SQUARE, inputs)
    top_left = np.tri(LQ, LK, dtype=bool)
    said = np.ones((B, 3, LQ, LK), bool) if told["attention_mask"] is None else told["attention_mask"]
    assert told["use_causal_mask"] == flag
    np.testing.assert_array_equal(said & top_left if flag else said, allowed_keys(mask, inputs.check(SQUARE), 3))
    assert (told["attention_mask"] is None) == (
        mask.window is None and mask.valid_lens is None and not mask_moved(mask)
    )


def mask_moved(mask):
    return mask.causal and bool(np.any(mask.query_offset))


def test_heads_that_disagree_keep_their_axis():
    allowed = np.random.default_rng(4).random((B, 3, LQ, LK)) < 0.5
    assert per_item(allowed).shape == (B, 3, LQ, LK)
    np.testing.assert_array_equal(per_item(np.repeat(allowed[:, :1], 3, axis=1)), allowed[:, 0])
