"""What a TensorFlow user expects of rotary positions and query-key norm: tracing, models that are saved, policies."""

import json
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from backends.tf import MultiHeadAttention, from_weights
from mha_core import (
    AttentionConfig,
    AttentionInputs,
    AttentionMask,
    QueryKeyNorm,
    Rotary,
    RotaryInputs,
    SpecError,
    init_weights,
)
from mha_core.reference import run

pytestmark = pytest.mark.same_on_newest  # TensorFlow's release is the same there

ROTARY = Rotary(width=4, start="last", interleaved=True, base=50.0, max_positions=30)
NORM = QueryKeyNorm("layer", "all", "after", 1e-2, 1, "per_head", bias=True)
CONFIG = AttentionConfig(9, 6, num_kv_heads=2, head_dim=7, bias=True, rotary=ROTARY, query_key_norm=NORM)
WEIGHTS = init_weights(CONFIG, seed=1, bias_scale=0.7)
B, LQ, LK, PAST = 3, 4, 5, 2
EXACT = {"rtol": 0.0, "atol": 1e-12}

RNG = np.random.default_rng(2)
QUERIES, KEYS = RNG.normal(size=(B, LQ, 9)), RNG.normal(size=(B, LK, 9))
POSITIONS, KEY_POSITIONS = RNG.integers(0, 30, size=(B, LQ)), RNG.integers(0, 30, size=LK)
OFFSET = np.array([3, 0, 17])
CACHE = RNG.normal(size=(2, B, 2, PAST, 7))


def expected(rotary=None, past=(None, None), **mask):
    inputs = AttentionInputs(QUERIES, KEYS, KEYS, AttentionMask(**mask), None, None, *past, rotary)
    return run(CONFIG, WEIGHTS, inputs).output


def unknown(*names):
    """A tensor of each that is named, with no length that tracing would know."""
    specs = {
        "x": tf.TensorSpec((None, None, 9), tf.float64),
        "cache": tf.TensorSpec((None, 2, None, 7), tf.float64),
        "positions": tf.TensorSpec((None, None), tf.int32),
        "key_positions": tf.TensorSpec((None,), tf.uint64),
        "offset": tf.TensorSpec((None,), tf.int64),
    }
    return [specs[name] for name in names]


@pytest.mark.nightly("programs take every size", every=2)
@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_positions_that_tracing_does_not_know_turn_as_known_ones(jit_compile):
    layer = from_weights(CONFIG, WEIGHTS)

    def given(q, k, positions, key_positions):
        return layer(q, k, k, positions=(positions, key_positions))

    def counted(q, k, offset, past_keys, past_values):
        return layer(q, k, k, query_offset=offset, past_keys=past_keys, past_values=past_values)

    names = {given: ("x", "x", "positions", "key_positions"), counted: ("x", "x", "offset", "cache", "cache")}
    by_graph = {f: tf.function(f, unknown(*own), jit_compile=jit_compile) for f, own in names.items()}
    found = by_graph[given](QUERIES, KEYS, POSITIONS.astype("int32"), KEY_POSITIONS.astype("uint64"))
    np.testing.assert_allclose(found, expected(RotaryInputs(POSITIONS, KEY_POSITIONS)), **EXACT)
    found = by_graph[counted](QUERIES, KEYS, OFFSET, *CACHE)
    np.testing.assert_allclose(found, expected(past=CACHE, query_offset=OFFSET), **EXACT)


def test_a_saved_program_without_a_limit_takes_every_size(tmp_path):
    config = replace(CONFIG, rotary=Rotary(width=6, sections=(2, 1), base=50.0))
    layer = from_weights(config, WEIGHTS)
    specs = [tf.TensorSpec((None, None, 9), tf.float64), tf.TensorSpec((2, None, None), tf.int32)] * 2

    def attend(q, of_q, k, of_k):
        return layer(q, k, k, positions=(of_q, of_k)), layer(q, k, k)

    module = tf.Module()
    module.layer, module.attend = layer, tf.function(attend, input_signature=specs)
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    for batch, query_len, key_len in ((B, LQ, LK), (1, 2, 3)):
        x, y = QUERIES[:batch, :query_len], KEYS[:batch, :key_len]
        of_x = RNG.integers(0, 300, (2, batch, query_len)).astype("int32")
        of_y = RNG.integers(0, 300, (2, batch, key_len)).astype("int32")
        for found, rotary in zip(loaded.attend(x, of_x, y, of_y), (RotaryInputs(of_x, of_y), None), strict=True):
            wanted = run(config, WEIGHTS, AttentionInputs(x, y, y, rotary=rotary)).output
            np.testing.assert_allclose(found, wanted, **EXACT)


def test_positions_of_a_rule_that_needs_the_length_must_be_known():
    rule = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 4}
    layer = from_weights(replace(CONFIG, rotary=replace(ROTARY, rule=rule, max_positions=None)), WEIGHTS)
    with pytest.raises(SpecError, match=r"known while rotary has rule 'dynamic', or give the tables"):
        tf.function(lambda q, k: layer(q, k, k), unknown("x", "x"))(QUERIES, KEYS)
    constant = tf.function(lambda q, k: layer(q, k, k, positions=(POSITIONS, KEY_POSITIONS)))(QUERIES, KEYS)
    wanted = layer(QUERIES, KEYS, KEYS, positions=(POSITIONS, KEY_POSITIONS))
    np.testing.assert_allclose(constant, wanted, **EXACT)


@pytest.mark.nightly("Keras loads what it saved", every=3)
@pytest.mark.parametrize("how", ["positions", "constant", "tables"])
def test_a_model_that_is_loaded_has_its_positions(how, tmp_path):
    layer = from_weights(CONFIG, WEIGHTS)
    x = [keras.Input(shape, dtype="float64") for shape in ((LQ, 9), (LK, 9))]
    given, arrays = {}, [QUERIES, KEYS]
    if how == "positions":
        x.append(keras.Input((LQ,), dtype="int64"))
        arrays.append(POSITIONS)
        given = {"positions": (x[2], KEY_POSITIONS)}
    elif how == "constant":  # as many queries as keys: a list of the two could be positions of two items
        x, arrays = [x[0], keras.Input((LQ, 9), dtype="float64")], [QUERIES[:2], KEYS[:2, :LQ]]
        given = {"positions": (np.arange(LQ), 3 * np.arange(LQ))}
    else:
        given = {"rotary": ((RNG.normal(size=(LQ, 2)),) * 2, (RNG.normal(size=(1, LK, 2)),) * 2)}
    model = keras.Model(x, layer(x[0], x[1], x[1], **given))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(arrays), model(arrays))
    assert np.abs(model(arrays) - layer(*arrays[:2], arrays[1])).max() > 1e-3


def test_a_layer_of_its_own_config_has_the_parts():
    layer = MultiHeadAttention(9, 6, num_kv_heads=2, head_dim=7, bias=True, rotary=ROTARY, query_key_norm=NORM)
    config = json.loads(json.dumps(layer.get_config()))
    again = MultiHeadAttention.from_config(config)
    again.build(*((None, None, 9),) * 3)
    assert again.config == CONFIG
    assert [variable.path.split("/")[1:] for variable in again.variables[-4:]] == [
        [name, kind] for name in ("q_norm", "k_norm") for kind in ("weight", "bias")
    ]


@pytest.mark.parametrize("product", ["float32", "dtype"])
@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16"])
def test_parameters_of_a_norm_keep_the_dtype_of_variables(policy, product):
    settings = QueryKeyNorm(product=product)
    layer = MultiHeadAttention(9, 3, rotary=True, head_dim=6, query_key_norm=settings, dtype=policy)
    queries, keys = (tf.cast(array, tf.bfloat16) for array in (QUERIES, KEYS))
    with tf.GradientTape() as tape:
        output = layer(queries, keys, keys)
        loss = tf.reduce_sum(tf.cast(output, tf.float32) ** 2)
    assert output.dtype == tf.bfloat16
    assert layer.q_norm.weight.dtype == layer.variable_dtype
    for gradient in tape.gradient(loss, [layer.q_norm.weight, layer.k_norm.weight]):
        assert gradient.dtype == layer.variable_dtype
        assert np.abs(tf.cast(gradient, tf.float32)).min() > 0.0


def test_weights_of_a_mixed_policy_are_not_rounded():
    settings = QueryKeyNorm(eps=1e-12)
    layer = MultiHeadAttention(8, 2, projections=False, query_key_norm=settings, dtype="mixed_bfloat16")
    x = tf.ones((1, 2, 3, 4)) * tf.constant([1.0, -1.0, 1.0, 1.0])  # the root of its mean square is 1
    layer(*(tf.cast(x, tf.bfloat16),) * 3)
    weight = 1.0 + 3 * 2.0**-9  # in bfloat16 it would be 1.0078125
    layer.q_norm.weight.assign(tf.fill((4,), weight))
    np.testing.assert_array_equal(layer.q_norm(x, "before"), x * weight)
