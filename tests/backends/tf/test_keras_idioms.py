"""What a Keras user expects of the layers: configs, models, saving, masks that Keras carries along, and dtypes."""

import os
import subprocess
import sys
from functools import partial

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
from mha_core import AttentionConfig, SpecError, init_weights, sinusoidal_positions
from tests.backends.tf.example_calls import DROPPING, LQ, WEIGHTS, B, H, inputs, mask_arrays

pytestmark = pytest.mark.same_on_newest  # TensorFlow's release is the same there


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
@pytest.mark.nightly("Keras loads what it saved", but=("additive",))
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


@pytest.mark.nightly("Keras fits our layer", but=("graph",))
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


def test_a_model_of_a_mixed_policy_casts_as_kerass_own_layers_do():
    x, bias = inputs("float32")[0], mask_arrays("float32")["bias"][:1, :, :1]
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        given = keras.Input(x.shape[1:])
        positions, layer = PositionalEncoding(x.shape[2]), MultiHeadAttention(12, H)
        model = keras.Model(given, layer(positions(given), given, given, bias=bias))
        own = keras.layers.MultiHeadAttention(H, 4)(x, x)
    finally:
        keras.mixed_precision.set_global_policy(before)
    assert model(x).dtype == layer(x, x, x).dtype == own.dtype == "float16"
    assert {variable.dtype for variable in layer.weights} == {"float32"}
    half = tf.cast(x, "float16")
    wanted = layer(positions(half), half, half, bias=tf.cast(bias, "float16"))
    np.testing.assert_array_equal(model(x), wanted)


def test_positions():
    x = np.random.default_rng(7).normal(size=(B, LQ, 12))
    encode = PositionalEncoding(12, 0.5, max_len=9, dtype="float64")
    wanted = x + sinusoidal_positions(LQ, 12)
    np.testing.assert_array_equal(encode(x), wanted)
    graph = tf.function(encode, input_signature=[tf.TensorSpec((None, None, 12), tf.float64)])
    np.testing.assert_array_equal(graph(x), wanted)


@pytest.mark.nightly("Keras on another backend is refused")
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


class Clipped(MultiHeadAttention):
    """A step of one's own between projection and scores."""

    def after_projection(self, queries, keys, values):
        return [tf.clip_by_value(one, -0.4, 0.4) for one in (queries, keys, values)]


@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_a_subclass_may_change_what_was_projected(jit_compile):
    layer, bare = Clipped(12, H, bias=True), MultiHeadAttention(12, H, projections=False)
    rng = np.random.default_rng(1)
    x, y = (tf.constant(rng.normal(size=(B, length, 12)), tf.float32) for length in (5, 7))
    layer(x, y, y)

    def gradients(way):
        with tf.GradientTape() as tape:
            tape.watch((x, y))
            output = way(x, y)
        return output, *tape.gradient(output, (x, y))

    def by_hand(x, y):
        q, k, v = (tf.clip_by_value(one, -0.4, 0.4) for one in (layer.q_proj(x), layer.k_proj(y), layer.v_proj(y)))
        return layer.out_proj(bare(q, k, v, causal=True))

    assert (np.abs(layer.q_proj(x)) > 0.4).any()
    whole = partial(gradients, lambda x, y: layer(x, y, y, causal=True))
    found = whole() if jit_compile is None else tf.function(whole, jit_compile=jit_compile)()
    for one, other in zip(found, gradients(by_hand), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)
