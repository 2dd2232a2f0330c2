"""Rotary positions and query-key norm as a JAX user meets them: traced positions, dtypes, parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backends.jax import MultiHeadAttention, from_weights, to_weights
from backends.jax.backend import JaxBackend
from backends.jax.native import capture
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, Rotary, SpecError, init_weights
from mha_core.call.rotary import RotaryInputs
from mha_core.reference import run
from tests.backends.jax.example_calls import CLOSE

B, LQ, LK, LP = 2, 4, 5, 3
ROTARY = {"width": 4, "base": 30.0, "interleaved": True, "start": "last", "max_positions": 20}
NORM = {"kind": "layer", "weight": "per_head", "order": "after", "bias": True, "eps": 1e-3}
SIZES = {"embed_dim": 12, "num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "bias": True}
CONFIG = AttentionConfig(**SIZES, rotary=ROTARY, query_key_norm=NORM)
WEIGHTS = {name: array.astype(np.float32) for name, array in init_weights(CONFIG, seed=1, bias_scale=1.0).items()}
POSITIONS = np.array([[7, 2, 5, 11], [0, 19, 3, 3]])
KEY_POSITIONS = np.array([[6, 1, 4, 17, 9], [2, 8, 0, 13, 5]])


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X = (normal(0, B, LQ, 12), normal(1, B, LK, 12), normal(2, B, LK, 12))


def expected(rotary=None, **mask):
    return run(CONFIG, WEIGHTS, AttentionInputs(*X, AttentionMask(**mask), rotary=rotary)).arrays()


def layer_with(**rotary):
    return from_weights(AttentionConfig(**SIZES, rotary={**ROTARY, **rotary}, query_key_norm=NORM), WEIGHTS)


@pytest.mark.nightly("positions that are traced turn as known ones", every=3)
@pytest.mark.parametrize("known", [(), ("queries",), ("keys",), ("queries", "keys")])
def test_positions_that_are_traced_turn_as_known_ones_do(known):
    layer, variables = layer_with()

    @jax.jit
    def attend(of_queries, of_keys):
        queries = POSITIONS if "queries" in known else of_queries
        keys = KEY_POSITIONS if "keys" in known else of_keys
        return layer.apply(variables, *X, positions=(queries, keys), return_weights=True)

    output, weights = attend(POSITIONS.astype(np.uint8), KEY_POSITIONS)
    wanted = expected(RotaryInputs(POSITIONS, KEY_POSITIONS))
    np.testing.assert_allclose(output, wanted["output"], **CLOSE)
    np.testing.assert_allclose(weights, wanted["weights"], **CLOSE)


@pytest.mark.nightly("positions that are traced turn as known ones", but=("offset1",))
@pytest.mark.parametrize("offset", [6, np.array([6, 0])])
def test_an_offset_that_is_traced_turns_as_a_known_one_does(offset):
    layer, variables = layer_with()

    def attend(offset):
        return layer.apply(variables, *X, query_offset=offset, causal=True)

    wanted = expected(query_offset=offset, causal=True)["output"]
    np.testing.assert_allclose(attend(offset), wanted, **CLOSE)
    np.testing.assert_allclose(jax.jit(attend)(offset), wanted, **CLOSE)


@pytest.mark.nightly("positions that are traced turn as known ones", every=3)
@pytest.mark.parametrize(
    "rule",
    [
        None,
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 9},
    ],
)
def test_traced_positions_turn_as_known_ones_however_far_they_are(rule):
    layer, variables = layer_with(max_positions=None, rule=rule)
    attend = jax.jit(lambda *positions: layer.apply(variables, *X, positions=positions))
    far = np.array([[0, 255, 256, 70_000], [2**24 - 1, 5, 2**31 - 1, 3]])
    wanted = layer.apply(variables, *X, positions=(far, KEY_POSITIONS))
    np.testing.assert_allclose(attend(far, KEY_POSITIONS), wanted, **CLOSE)


def test_traced_positions_of_a_rule_that_needs_the_length_are_refused():
    layer, variables = layer_with(rule={"rope_type": "dynamic", "factor": 3.0, "max_position_embeddings": 9})
    attend = jax.jit(lambda positions, offset: layer.apply(variables, *X, positions=positions, query_offset=offset))
    for positions, offset in (((POSITIONS, KEY_POSITIONS), 0), (None, np.array([1, 2]))):
        with pytest.raises(SpecError, match=r"known while rotary has rule 'dynamic', or give the tables"):
            attend(positions, offset)
    of_keys = jnp.asarray(KEY_POSITIONS)
    known = jax.jit(lambda x: layer.apply(variables, x, *X[1:], positions=(POSITIONS, of_keys)))
    wanted = layer.apply(variables, *X, positions=(POSITIONS, of_keys))
    np.testing.assert_allclose(known(X[0]), wanted, **CLOSE)  # what is not an argument is known


def test_known_positions_beside_traced_ones_are_checked():
    layer, variables = layer_with()
    wrong = np.where(KEY_POSITIONS == 17, 2**40, KEY_POSITIONS)
    with pytest.raises(SpecError, match=r"in 0\.\.19 \(rotary\.max_positions\)\. Got 1099511627776"):
        jax.jit(lambda traced: layer.apply(variables, *X, positions=(traced, wrong)))(POSITIONS)


def test_a_layer_that_casts_turns_by_exact_angles():
    bfloat16 = [jnp.asarray(x, jnp.bfloat16) for x in X]
    _, variables = layer_with()
    layer = MultiHeadAttention(**vars(CONFIG), dtype=jnp.float32)
    rounded = AttentionInputs(*(np.asarray(x.astype(jnp.float32)) for x in bfloat16))
    found = layer.apply(variables, *bfloat16, return_weights=True)
    wanted = run(CONFIG, WEIGHTS, rounded).arrays()
    np.testing.assert_allclose(found[1], wanted["weights"], **CLOSE)


@pytest.mark.nightly("half precision is within its bound on each path", but=("float32-float16",))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("product", ["float32", "dtype"])
def test_half_precision_stays_half(dtype, product):
    config = AttentionConfig(**SIZES, rotary=True, query_key_norm={"product": product})
    layer = MultiHeadAttention(**vars(config), param_dtype=dtype)
    queries, keys, values = (jnp.asarray(x, dtype) for x in X)
    variables = layer.init(jax.random.key(0), queries, keys, values)
    tables = tuple(normal(seed, LK, 3).astype(dtype) for seed in range(2))
    output, present = layer.apply(variables, keys, keys, values, rotary=tables, return_present=True)
    assert output.dtype == present[0].dtype == dtype
    traced = jax.jit(lambda x: layer.apply(variables, x, keys, values, return_present=True))(queries)
    assert traced[0].dtype == traced[1][0].dtype == dtype


def test_parameters_have_canonical_names_and_gradients():
    layer = MultiHeadAttention(**SIZES, rotary=True, query_key_norm={"offset": 1, "weight": "per_head", "bias": True})
    variables = layer.init(jax.random.key(0), *X)
    weights = to_weights(variables)
    assert weights["q_norm.weight"].shape == (24,)
    assert weights["k_norm.bias"].shape == (12,)
    assert not any(weights[f"{name}_norm.{kind}"].any() for name in "qk" for kind in ("weight", "bias"))
    again, same = from_weights(layer.config_of(variables), weights)
    np.testing.assert_array_equal(again.apply(same, *X), layer.apply(variables, *X))
    slopes = jax.jit(jax.grad(lambda variables: jnp.square(layer.apply(variables, *X)).sum()))(variables)["params"]
    assert all(np.abs(slopes[f"{name}_norm"]["weight"]).max() > 1e-4 for name in "qk")


def test_settings_come_as_mappings_and_a_module_stays_a_static_argument():
    rule = {"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [3, 4]}
    rule["original_max_position_embeddings"] = 8
    a, b = (MultiHeadAttention(**SIZES, rotary={"width": 4, "rule": rule}, query_key_norm="layer") for _ in range(2))
    assert (a, hash(a)) == (b, hash(b))
    assert a.rotary == Rotary(width=4, rule=rule)
    assert a.clone(dropout=0.5).rotary == a.rotary


@pytest.mark.nightly("JAX' transformations are taken")
def test_vmap_over_positions():
    layer, variables = layer_with()
    stacked = np.stack([KEY_POSITIONS[:, :LQ], POSITIONS])
    together = jax.vmap(lambda positions: layer.apply(variables, *X, positions=(positions, KEY_POSITIONS)))(stacked)
    for positions, found in zip(stacked, together, strict=True):
        wanted = expected(RotaryInputs(positions, KEY_POSITIONS))["output"]
        np.testing.assert_allclose(found, wanted, **CLOSE)


@pytest.mark.nightly("positions and tables reach each path", but=("compiled",))
@pytest.mark.parametrize("path", ["compiled", "blocks"])
def test_the_backend_passes_positions_and_tables_on(path):
    past = {"past_keys": normal(3, B, 2, LP, 6), "past_values": normal(4, B, 2, LP, 6)}
    tables = [normal(seed, B, length, 2) for seed, length in ((5, LQ), (6, LQ), (7, LK), (8, LK))]
    for rotary in (None, RotaryInputs(POSITIONS, KEY_POSITIONS), RotaryInputs(None, None, *tables)):
        mask = AttentionMask(query_offset=LP)
        given = AttentionInputs(*X, mask, cotangent=normal(9, B, LQ, 12), rotary=rotary, **past)
        found = JaxBackend().build(CONFIG, WEIGHTS, "float64", "cpu", path)(given).arrays()
        wanted = run(CONFIG, WEIGHTS, given).arrays()
        assert {"gradients.q_norm.weight", "gradients.k_norm.bias"} <= set(found)
        for name, array in found.items():
            np.testing.assert_allclose(array, wanted[name], rtol=1e-11, atol=1e-12, err_msg=name)


def test_a_call_is_recorded_with_its_positions_and_tables():
    layer, variables = layer_with()
    tables = (normal(5, LK, 2), normal(6, LK, 2))
    calls = []
    adapter = capture.OwnLayer()

    def seen(name, module, arguments, output):
        calls.append(adapter.read(module, arguments, output))

    with capture.watch(layer, lambda name, module: adapter if adapter.matches(module) else None, seen):
        layer.apply(variables, *X, positions=(jnp.asarray(POSITIONS), KEY_POSITIONS))
        layer.apply(variables, X[1], *X[1:], rotary=tuple(map(jnp.asarray, tables)))
    for read in calls:
        wanted = run(read.config, read.weights, read.inputs).arrays()
        np.testing.assert_allclose(read.outputs["output"], wanted["output"], **CLOSE)
    np.testing.assert_array_equal(calls[0].inputs.rotary.key_positions, KEY_POSITIONS)
    np.testing.assert_array_equal(calls[1].inputs.rotary.sin, tables[1])
