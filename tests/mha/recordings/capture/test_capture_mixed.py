"""Capture of layers that compute in another dtype than that of their parameters: the usual set-up of Flax and Keras."""

from dataclasses import replace

import numpy as np
import pytest

import mha
from mha.recordings.replay import judge_recording
from mha_core import SpecError
from mha_core.dtypes import round_to
from tests.mha.recordings.capture.live_calls import LK, LQ, B, numbers, refused
from tests.mha.recordings.wrong_ports import layer_of, recording_of

HALVES = ("bfloat16", "float16")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "calls.safetensors"


def assert_mixed(recording, computed, held, path):
    """It is recorded as what it is, judged as that, and the same from a file."""
    recording.save(path, overwrite=True)
    for each in (recording, mha.Recording.load(path)):
        (layer,) = each.layers
        assert (layer.dtype, layer.held_in) == (computed, held)
        for array in layer.weights.values():
            assert np.array_equal(array, round_to(array, held))
            is_rounded = np.array_equal(array, round_to(array, computed))
            assert held in ("bfloat16", computed) or array.ndim == 1 or not is_rounded
        for result in judge_recording(each):
            assert (result.status, result.dtype) == ("equal", computed), result


@pytest.mark.nightly("layers with a dtype of their own are recorded", every=9)
@pytest.mark.parametrize("given", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("dtype", "param_dtype"),
    [("bfloat16", "float32"), ("float16", "float32"), ("float32", "bfloat16"), (None, "float32")],
)
def test_linen_layers_with_a_dtype_of_their_own(dtype, param_dtype, given, jax, path):
    import flax.linen as nn

    layer = nn.MultiHeadDotProductAttention(4, qkv_features=12, dtype=dtype, param_dtype=param_dtype)
    x, y = (jax.numpy.asarray(numbers(B, length, 7), given) for length in (LQ, LK))
    variables = layer.init(jax.random.key(0), x, y)
    with mha.capture(layer, probe=(dtype, given) == ("bfloat16", "float32")) as seen:
        output = layer.apply(variables, x, y)
    computed = dtype or "float32"
    assert str(output.dtype) == computed
    assert_mixed(seen.recording, computed, param_dtype, path)
    np.testing.assert_array_equal(seen.calls[0].inputs.queries, round_to(np.array(x, np.float32), computed))


def test_projections_in_different_dtypes_are_refused(jax):
    import flax.linen as nn

    layer = nn.MultiHeadDotProductAttention(4, qkv_features=12, param_dtype="bfloat16")
    x, y = jax.numpy.asarray(numbers(B, LQ, 7), "bfloat16"), numbers(B, LK, 7)
    variables = layer.init(jax.random.key(0), x, y)
    said = "mixed precision can't be recorded: it has bfloat16, float32"
    refused(said, layer, lambda: layer.apply(variables, x, y))


@pytest.mark.same_on_newest  # Keras' and TensorFlow's releases are the same there
@pytest.mark.parametrize("dtype", HALVES)
def test_keras_layers_of_a_mixed_policy(dtype, keras, path):
    from backends.tf import MultiHeadAttention

    x, y = numbers(B, LQ, 12), numbers(B, LK, 12)
    layer = keras.layers.MultiHeadAttention(4, 3, dtype=f"mixed_{dtype}")
    layer(x, y)
    for trainable in (True, False):
        layer.trainable = trainable
        with mha.capture(layer) as seen:
            layer(x, y, return_attention_scores=trainable)
        assert_mixed(seen.recording, dtype, "float32", path)
    own = MultiHeadAttention(12, 4, dtype=f"mixed_{dtype}")
    queries, keys = keras.ops.cast(x, dtype), keras.ops.cast(y, dtype)
    own(queries, keys, keys)
    with mha.capture(own) as seen:
        own(queries, keys, keys)
    assert_mixed(seen.recording, dtype, "float32", path)


def test_parameters_beyond_the_range_of_what_computes_are_refused(keras):
    layer, x = keras.layers.MultiHeadAttention(4, 3, dtype="mixed_float16"), numbers(B, LQ, 12)
    layer(x, x)
    kernel = layer.trainable_variables[0]
    kernel.assign(np.full(kernel.shape, 1e5))
    refused(r"q_proj.weight must be finite. Got inf", layer, lambda: layer(x, x))


def test_intended_weights_are_rounded_to_what_holds_them(path):
    layer = replace(layer_of("float32"), dtype="bfloat16", parameters="float32")
    rounded = {name: round_to(array, "bfloat16") for name, array in layer.weights.items()}
    recording = recording_of(layer, held=rounded)
    assert_mixed(recording, "bfloat16", "float32", path)
    changed = recording.with_weights({"": (layer.config, layer.weights)})
    assert all(np.array_equal(changed.layers[0].weights[name], array) for name, array in layer.weights.items())
    with pytest.raises(SpecError, match="dtype 'int4' is not known"):
        replace(recording, layers=(replace(layer, parameters="int4"),))
