"""What a TensorFlow and Keras user expects of the layers, beyond the numbers that the conformance suite compares."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from backends.tf import (
    AdditiveAttention,
    DotProductAttention,
    MultiHeadAttention,
    PositionalEncoding,
    from_weights,
    to_weights,
)
from backends.tf.backend import TensorFlowBackend
from backends.tf.ops.heads import merge_heads, split_heads, transpose_output, transpose_qkv
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError, init_weights, sinusoidal_positions
from mha_core.heads import transpose_qkv as numpy_transpose_qkv
from mha_core.reference import pipeline as reference

pytestmark = pytest.mark.same_on_newest  # TensorFlow's release is the same there

B, H, LQ, LK = 2, 3, 5, 7
CONFIG = AttentionConfig(
    embed_dim=12, num_heads=H, value_head_dim=9, query_dim=11, key_dim=13, value_dim=10, output_dim=8, bias=True
)
DROPPING = AttentionConfig(**{**CONFIG.to_dict(), "dropout": 0.4})
WEIGHTS = init_weights(CONFIG, seed=1, bias_scale=1.0)
EXACT = {"rtol": 0, "atol": 1e-13}


def inputs(dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((B, LQ, CONFIG.query_dim), (B, LK, CONFIG.key_dim), (B, LK, CONFIG.value_dim))
    return [tf.constant(rng.normal(size=shape), dtype) for shape in shapes]


def mask_arrays(dtype="float64", seed=2):
    rng = np.random.default_rng(seed)
    bias = rng.normal(size=(H, 1, LK)).astype(dtype)
    bias[1, 0, 3] = -np.inf
    return {
        "valid_lens": np.array([6, 4]),
        "allowed": rng.random((B, 1, LQ, LK)) < 0.8,
        "bias": bias,
        "query_offset": np.array([2, 1]),
    }


# Tracing ---------------------------------------------------------------------------------------


def traced(layer, *, jit_compile):
    """The layer as a tf.function of seven tensors none of whose lengths it knows."""

    def call(q, k, v, valid_lens, allowed, bias, query_offset):
        masks = {"allowed": allowed, "bias": bias, "query_offset": query_offset, "causal": True, "window": (4, None)}
        return layer(q, k, v, valid_lens, **masks, return_weights=True)

    return tf.function(
        call,
        input_signature=[
            *(tf.TensorSpec((None, None, width), tf.float64) for width in (11, 13, 10)),
            tf.TensorSpec((None,), tf.int64),
            tf.TensorSpec((None, 1, None, None), tf.bool),
            tf.TensorSpec((H, 1, None), tf.float64),
            tf.TensorSpec((None,), tf.int64),
        ],
        jit_compile=jit_compile,
    )


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize(
    "changes", [{}, {"num_kv_heads": 1}, {"score": "additive", "score_dim": 14}], ids=["mha", "gqa", "additive"]
)
def test_traced_with_unknown_sizes_equals_eager(changes, jit_compile):
    config = AttentionConfig(**{**CONFIG.to_dict(), **changes})
    layer = from_weights(config, init_weights(config, seed=3, bias_scale=1.0))
    masks = mask_arrays()
    eager = layer(*inputs(), causal=True, window=(4, None), return_weights=True, **masks)
    found = traced(layer, jit_compile=jit_compile)(*inputs(), *masks.values())
    for ours, theirs in zip(found, eager, strict=True):
        np.testing.assert_allclose(ours, theirs, **EXACT)
    for batch, query_len, key_len in ((0, LQ, LK), (B, 0, LK), (B, LQ, 0)):
        arrays = [x[:batch, :length] for x, length in zip(inputs(), (query_len, key_len, key_len), strict=True)]
        arrays += [np.minimum(masks["valid_lens"][:batch], key_len), masks["allowed"][:batch, :, :query_len, :key_len]]
        arrays += [masks["bias"][:, :, :key_len], masks["query_offset"][:batch]]
        output, weights = traced(layer, jit_compile=jit_compile)(*arrays)
        assert output.shape == (batch, query_len, CONFIG.output_dim)
        assert weights.shape == (batch, H, query_len, key_len)


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_traced_gradients_equal_the_reference(jit_compile):
    layer = from_weights(CONFIG, WEIGHTS)
    cotangent = np.random.default_rng(4).normal(size=(B, LQ, CONFIG.output_dim))
    lens = np.array([0, 4])

    @tf.function(jit_compile=jit_compile)
    def gradients(q, k, v, valid_lens):
        with tf.GradientTape() as tape:
            tape.watch((q, k, v))
            output = layer(q, k, v, valid_lens)
        return tape.gradient(output, (q, k, v), cotangent)

    problem = AttentionInputs(*(x.numpy() for x in inputs()), AttentionMask(lens), cotangent=cotangent)
    wanted = reference.run(CONFIG, WEIGHTS, problem).gradients
    for name, found in zip(("queries", "keys", "values"), gradients(*inputs(), lens), strict=True):
        np.testing.assert_allclose(found, wanted[name], **EXACT)


def test_spec_error_keeps_type_and_text_inside_a_traced_function():
    layer = from_weights(CONFIG, WEIGHTS)
    q, k, v = inputs()
    with pytest.raises(SpecError) as eager:
        layer(q, k[:, :, :5], v)
    with pytest.raises(SpecError) as graph:
        tf.function(lambda: layer(q, k[:, :, :5], v))()
    assert str(eager.value) == str(graph.value) == f"keys must be key_dim=13 wide. Got ({B}, {LK}, 5)."


def test_lazy_widths_need_a_known_width():
    spec = tf.TensorSpec((None, None, None))
    with pytest.raises(SpecError, match="query_dim is not known yet"):
        tf.function(lambda q: MultiHeadAttention(12, H)(q, q, q)).get_concrete_function(spec)


# Keras: configs, models, saving ----------------------------------------------------------------

LAYERS = [
    MultiHeadAttention(12, H, 0.25, {"q_proj": True}, num_kv_heads=1, value_head_dim=5, output_dim=8, name="mha"),
    MultiHeadAttention(12, H, score="additive", score_dim=7, query_dim=11, dtype="float64"),
    MultiHeadAttention(12, H, scale=0.3, dtype="bfloat16"),
    DotProductAttention(0.25, scaled=False),
    AdditiveAttention(7, 0.25, key_dim=13),
    PositionalEncoding(12, 0.25, max_len=9),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_config_round_trip(layer):
    config = layer.get_config()
    again = type(layer).from_config(config)
    assert again.get_config() == config
    through_json = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(through_json) is type(layer)
    assert through_json.get_config() == config


def model_of(layer):
    q, k, v = (keras.Input((None, width), dtype="float64") for width in (11, 13, 10))
    lens = keras.Input((), dtype="int32")
    output, weights = layer(q, k, v, lens, causal=True, window=(3, None), return_weights=True)
    return keras.Model([q, k, v, lens], [output, weights])


# Keras itself converts TensorFlow's variables so while it saves, which NumPy 2 deprecates.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@pytest.mark.parametrize("changes", [{}, {"score": "additive", "score_dim": 14}], ids=["dot", "additive"])
def test_model_saves_and_loads(tmp_path, changes):
    config = AttentionConfig(**{**DROPPING.to_dict(), **changes})
    layer = from_weights(config, init_weights(config, seed=5, bias_scale=1.0))
    model = model_of(layer)
    assert [tuple(x.shape) for x in model.outputs] == [(None, None, 8), (None, H, None, None)]
    arguments = [*inputs(), tf.constant([6, 4])]
    output, weights = model(arguments)

    model.save(tmp_path / "model.keras")
    for ours, theirs in zip(
        keras.models.load_model(tmp_path / "model.keras")(arguments), (output, weights), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)

    model.save_weights(tmp_path / "model.weights.h5")
    other = MultiHeadAttention(**{**config.to_dict(), "query_dim": None}, dtype="float64")
    fresh = model_of(other)
    fresh.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(fresh(arguments)[0], output)
    assert other.config == config
    for name, array in to_weights(layer).items():
        np.testing.assert_array_equal(to_weights(other)[name], array)


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_fit_lowers_the_loss(jit_compile):
    layer = from_weights(DROPPING, WEIGHTS, dtype="float32")
    q, k, v = (keras.Input((None, width)) for width in (11, 13, 10))
    model = keras.Model([q, k, v], layer(q, k, v, causal=True))
    model.compile(keras.optimizers.Adam(0.02), "mse", jit_compile=jit_compile)
    data = [x.numpy() for x in inputs("float32")]
    losses = model.fit(data, np.zeros((B, LQ, 8)), epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 2


def test_implicit_keras_masks_change_nothing():
    tokens = np.array([[1, 2, 4, 0, 0], [3, 0, 0, 0, 0]])
    embedded = keras.layers.Embedding(6, 12, mask_zero=True)(tokens)
    layer = MultiHeadAttention(12, H)
    masked, plain = layer(embedded, embedded, embedded), layer(*[tf.identity(embedded)] * 3)
    np.testing.assert_array_equal(masked, plain)
    np.testing.assert_array_equal(masked._keras_mask, tokens != 0)  # what comes after it still sees it


# Dtypes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: MultiHeadAttention(12, H), lambda: AdditiveAttention(7)])
def test_an_input_is_never_cast(make):
    layer = make()
    with pytest.raises(SpecError, match=r"dtype of the layer, float32. Got float64"):
        layer(*inputs("float64"))
    with pytest.raises(SpecError, match="must share one dtype"):
        layer(*inputs("float32")[:2], inputs("float16")[2])
    with pytest.raises(SpecError, match="bias must have the dtype of queries"):
        layer(*inputs("float32"), bias=mask_arrays("float64")["bias"][:1])
    assert layer(*inputs("float32")).dtype == tf.float32


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_layers_without_parameters_follow_their_inputs(dtype):
    q, k, v = (x[..., :10] for x in inputs(dtype))
    assert DotProductAttention(0.25)(q, k, v, training=True).dtype == dtype
    with pytest.raises(SpecError, match="the input must have the dtype of the layer"):
        PositionalEncoding(10, dtype="float32" if dtype == "float64" else "float64")(q)


def test_mixed_precision_policy():
    for score in ("scaled_dot", "additive"):
        layer = MultiHeadAttention(12, H, score=score, dtype="mixed_bfloat16")
        assert layer(*inputs("bfloat16")).dtype == tf.bfloat16
        assert {variable.dtype for variable in layer.weights} == {"float32"}


def test_positions():
    x = np.random.default_rng(7).normal(size=(B, LQ, 12))
    encode = PositionalEncoding(12, 0.5, max_len=9, dtype="float64")
    wanted = x + sinusoidal_positions(LQ, 12)
    np.testing.assert_array_equal(encode(x), wanted)
    graph = tf.function(encode, input_signature=[tf.TensorSpec((None, None, 12), tf.float64)])
    np.testing.assert_array_equal(graph(x), wanted)
    with pytest.raises(SpecError, match="max_len=9"):
        encode(np.zeros((B, 10, 12)))


# Training --------------------------------------------------------------------------------------


def test_dropout_acts_only_in_training():
    layer = from_weights(DROPPING, WEIGHTS)
    still = layer(*inputs())
    np.testing.assert_array_equal(layer(*inputs(), training=False), still)
    first, second = layer(*inputs(), training=True), layer(*inputs(), training=True)
    assert np.abs(first - still).max() > 0.1
    assert np.abs(first - second).max() > 0.1

    class Outer(keras.Layer):
        def __init__(self):
            super().__init__(dtype="float64")
            self.inner = layer

        def call(self, q, k, v, training=None):
            return self.inner(q, k, v)  # Keras hands `training` on

    np.testing.assert_array_equal(Outer()(*inputs()), still)
    assert np.abs(Outer()(*inputs(), training=True) - still).max() > 0.1


def test_dropout_keep_belongs_to_training():
    layer = from_weights(DROPPING, WEIGHTS)
    keep = np.random.default_rng(8).random((B, H, LQ, LK)) < 0.6
    problem = AttentionInputs(*(x.numpy() for x in inputs()), dropout_keep=keep)
    wanted = reference.run(DROPPING, WEIGHTS, problem)
    output, weights = layer(*inputs(), dropout_keep=keep, training=True, return_weights=True)
    np.testing.assert_allclose(output, wanted.output, **EXACT)
    np.testing.assert_allclose(weights, wanted.weights, **EXACT)  # as they were before dropout
    for training in (None, False):
        with pytest.raises(SpecError, match="dropout_keep belongs to a training step"):
            layer(*inputs(), dropout_keep=keep, training=training)


# Masks -----------------------------------------------------------------------------------------


def test_masks_as_lists_arrays_and_tensors():
    layer = from_weights(CONFIG, WEIGHTS)
    masks = mask_arrays()
    problem = AttentionInputs(*(x.numpy() for x in inputs()), AttentionMask(**masks, causal=True))
    wanted = reference.run(CONFIG, WEIGHTS, problem).output
    for convert in (np.asarray, tf.constant, np.ndarray.tolist):
        found = layer(*inputs(), causal=True, **{name: convert(array) for name, array in masks.items()})
        np.testing.assert_allclose(found, wanted, **EXACT)
    np.testing.assert_array_equal(layer(*inputs(), [6, 4]), layer(*inputs(), tf.constant([6, 4])))


def test_valid_lens_out_of_range_are_refused():
    layer = from_weights(CONFIG, WEIGHTS)
    with pytest.raises(SpecError, match=r"valid_lens must lie in 0..7, the number of keys. Got 8"):
        layer(*inputs(), [8, 4])


@pytest.mark.parametrize("make", [lambda: DotProductAttention(), lambda: AdditiveAttention(6)])
def test_masks_without_heads(make):
    q, k, v = (x[..., :10] for x in inputs("float32"))
    allowed = mask_arrays()["allowed"][:, 0]  # (B, Lq, Lk)
    allowed[1, 2] = False
    output, weights = make()(q, k, v, allowed=allowed, return_weights=True)
    assert weights.shape == (B, LQ, LK)
    assert not weights.numpy()[~allowed].any()
    assert not output.numpy()[1, 2].any()
    np.testing.assert_allclose(weights.numpy().sum(-1), allowed.any(-1), rtol=1e-6)


def test_an_empty_row_sends_zero_gradient():
    layer = from_weights(CONFIG, WEIGHTS)
    q, k, v = inputs()
    allowed = np.ones((B, 1, LQ, LK), bool)
    allowed[1, 0, 2] = False  # one row: no key is padding
    with tf.GradientTape() as tape:
        tape.watch((q, k, v))
        output, weights = layer(q, k, v, allowed=allowed, return_weights=True)
        row = output[1, 2]
    gradients = tape.gradient(row, (q, k, v, layer.trainable_variables))
    np.testing.assert_array_equal(row, WEIGHTS["out_proj.bias"])
    assert not weights.numpy()[1, :, 2].any()
    *of_inputs, of_parameters = gradients
    assert not any(np.any(gradient) for gradient in of_inputs)
    for variable, gradient in zip(layer.trainable_variables, of_parameters, strict=True):
        assert np.any(gradient) == (variable is layer.out_proj.bias)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e300])
def test_padding_never_leaks(garbage):
    layer = from_weights(CONFIG, WEIGHTS)
    lens = np.array([3, 6])
    is_padding = np.arange(LK) >= lens[:, None]

    def run(filling):
        q, k, v = inputs()
        k, v = (tf.where(is_padding[..., None], tf.constant(filling, tf.float64), x) for x in (k, v))
        with tf.GradientTape() as tape:
            tape.watch((q, k, v))
            output = layer(q, k, v, lens)
        return output, *tape.gradient(output, (q, k, v)), *tape_parameters(layer, q, k, v, lens)

    for clean, dirty in zip(run(0.0), run(garbage), strict=True):
        np.testing.assert_array_equal(clean, dirty)
    assert not run(garbage)[2].numpy()[is_padding].any()


def tape_parameters(layer, q, k, v, lens):
    with tf.GradientTape() as tape:
        output = layer(q, k, v, lens)
    return tape.gradient(output, layer.trainable_variables)


# Weights, and the state of the world -----------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_weights_round_trip_to_the_bit(dtype):
    weights = {name: array.astype(dtype) for name, array in WEIGHTS.items()}
    layer = from_weights(CONFIG, weights)
    assert layer.dtype == dtype
    assert layer.q_proj.kernel.shape == (CONFIG.query_dim, 12)
    for name, array in to_weights(layer).items():
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, weights[name])


def test_bfloat16_weights_come_out_as_float32():
    layer = from_weights(CONFIG, WEIGHTS, dtype="bfloat16")
    once = to_weights(layer)
    twice = to_weights(from_weights(CONFIG, once, dtype=tf.bfloat16))
    for name, array in once.items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, WEIGHTS[name], rtol=2.0**-8)
        np.testing.assert_array_equal(array, twice[name])


def test_weights_of_two_dtypes_need_a_choice():
    mixed = {**WEIGHTS, "q_proj.bias": WEIGHTS["q_proj.bias"].astype("float32")}
    with pytest.raises(SpecError, match=r"weights must share one dtype .* float32, float64"):
        from_weights(CONFIG, mixed)
    assert from_weights(CONFIG, mixed, dtype="float32").dtype == "float32"


def test_weights_of_a_layer_that_was_never_called():
    given = MultiHeadAttention(12, H, query_dim=11, key_dim=13, value_dim=10)
    assert to_weights(given)["k_proj.weight"].shape == (12, 13)
    with pytest.raises(SpecError, match="query_dim is not known yet"):
        to_weights(MultiHeadAttention(12, H))


def test_from_weights_and_runs_leave_global_state_alone():
    additive = AttentionConfig(**{**DROPPING.to_dict(), "score": "additive"})
    problem = AttentionInputs(*(x.numpy() for x in inputs()), cotangent=np.zeros((B, LQ, CONFIG.output_dim)))
    execution = tf.config.experimental

    def state():
        kind, numbers, *rest = np.random.get_state()
        return (
            random.getstate(),
            (kind, numbers.tolist(), *rest),
            keras.config.floatx(),
            keras.config.dtype_policy().name,
            execution.tensor_float_32_execution_enabled(),
            os.environ.get("KERAS_BACKEND"),
        )

    before = state()
    from_weights(additive, init_weights(additive, seed=9))
    TensorFlowBackend().prepare(DROPPING, WEIGHTS, dtype="float32")(problem)
    assert state() == before


def test_two_layers_from_weights_drop_out_differently_and_reproducibly():
    config = AttentionConfig(12, H, dropout=0.5)
    q = tf.constant(np.random.default_rng(10).normal(size=(B, LQ, 12)))

    def dropped(seed, weights_seed):
        random.seed(seed)
        layer = from_weights(config, init_weights(config, weights_seed))
        return layer.dropout(tf.ones_like(q), training=True).numpy() > 0

    state = random.getstate()
    try:
        np.testing.assert_array_equal(dropped(0, 0), dropped(0, 0))
        assert (dropped(0, 0) != dropped(0, 1)).any()
        assert (dropped(0, 0) != dropped(1, 0)).any()
    finally:
        random.setstate(state)


def test_heads_folded_into_the_batch():
    x = np.random.default_rng(11).normal(size=(B, LQ, 12))
    folded = transpose_qkv(tf.constant(x), H)
    np.testing.assert_array_equal(folded, numpy_transpose_qkv(x, H))
    np.testing.assert_array_equal(transpose_output(folded, H), x)
    np.testing.assert_array_equal(merge_heads(split_heads(tf.constant(x), H)), x)


def test_keras_on_another_backend_is_refused():
    code = (
        "from mha_core.errors import BackendError\n"
        "try:\n    import backends.tf.backend\n"
        "except BackendError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KERAS_BACKEND": "numpy", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Got Keras on 'numpy'. Set KERAS_BACKEND=tensorflow" in done.stdout


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int8"])
def test_traced_integers_beyond_the_limits_count_as_the_nearest(dtype):
    q, k, v = (x[..., :10] for x in inputs("float32"))
    info = np.iinfo(dtype)

    @tf.function(input_signature=[tf.TensorSpec((None,), dtype)] * 2)
    def weights(lens, offset):
        sources = {"query_offset": offset, "window": (2**31 - 1, 0), "return_weights": True}
        return DotProductAttention()(q, k, v, lens, **sources)[1]

    found = weights(np.array([info.max, 2], dtype), np.array([info.min, info.max], dtype))
    offset = np.clip(np.array([info.min, info.max], object), -(2**31), 2**31 - 1).astype(np.int64)
    wanted = DotProductAttention()(
        q, k, v, np.array([LK, 2]), query_offset=offset, window=(2**31 - 1, 0), return_weights=True
    )[1]
    np.testing.assert_array_equal(found, wanted)
