"""What a JAX and Flax user expects of the layers, beyond the numbers that the conformance suite compares."""

from __future__ import annotations

import subprocess
import sys

import flax.errors
import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backends.jax import (
    AdditiveAttention,
    DotProductAttention,
    MultiHeadAttention,
    PositionalEncoding,
    from_weights,
    to_weights,
)
from backends.jax.backend import JaxBackend
from backends.jax.ops import framework
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError, init_weights
from mha_core.call.call import Call
from mha_core.reference import pipeline as reference

B, H, LQ, LK = 2, 3, 5, 7
CONFIG = AttentionConfig(
    embed_dim=12, num_heads=H, value_head_dim=9, query_dim=11, key_dim=13, value_dim=10, output_dim=8, bias=True
)
DROPPING = AttentionConfig(**{**CONFIG.to_dict(), "dropout": 0.4})
WEIGHTS = {name: array.astype(np.float32) for name, array in init_weights(CONFIG, seed=1, bias_scale=1.0).items()}
CLOSE = {"rtol": 2e-5, "atol": 2e-6}  # float32, of numbers around 1
DROPOUT = {"dropout": jax.random.key(3)}


@pytest.fixture
def layer_and_variables():
    return from_weights(CONFIG, WEIGHTS)


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((B, LQ, CONFIG.query_dim), (B, LK, CONFIG.key_dim), (B, LK, CONFIG.value_dim))
    return [jnp.asarray(rng.normal(size=shape).astype(np.float32)) for shape in shapes]


def mask_arrays(seed=2):
    rng = np.random.default_rng(seed)
    bias = rng.normal(size=(H, 1, LK)).astype(np.float32)
    bias[1, 0, 3] = -np.inf
    return {
        "valid_lens": np.array([6, 4]),
        "allowed": rng.random((B, 1, LQ, LK)) < 0.8,
        "bias": bias,
        "query_offset": np.array([2, 1]),
    }


def leaves_finite(tree):
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


# Transformations -----------------------------------------------------------------------------------


def test_jit_with_traced_masks_equals_eager(layer_and_variables):
    layer, variables = layer_and_variables

    def attend(variables, queries, keys, values, masks):
        return layer.apply(variables, queries, keys, values, **masks, window=(3, None), return_weights=True)

    eager = attend(variables, *inputs(), mask_arrays())
    jitted = jax.jit(attend)(variables, *inputs(), mask_arrays())
    np.testing.assert_allclose(jitted[0], eager[0], **CLOSE)
    np.testing.assert_allclose(jitted[1], eager[1], **CLOSE)
    np.testing.assert_array_equal(jitted[1] == 0.0, eager[1] == 0.0)


def test_one_compilation_serves_all_values_of_a_mask(layer_and_variables):
    layer, variables = layer_and_variables
    traces = []

    @jax.jit
    def attend(valid_lens):
        traces.append(valid_lens)
        return layer.apply(variables, *inputs(), valid_lens)

    first, second = attend(jnp.array([6, 4])), attend(jnp.array([2, 0]))
    assert len(traces) == 1
    np.testing.assert_allclose(second, layer.apply(variables, *inputs(), [2, 0]), **CLOSE)
    assert not np.allclose(first, second)


def test_a_module_is_a_static_argument():
    a, b = (MultiHeadAttention(12, 3, bias={"q_proj": True}) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)


def test_vmap_over_an_outer_axis(layer_and_variables):
    layer, variables = layer_and_variables
    stacked = [jnp.stack(pair) for pair in zip(inputs(0), inputs(1), strict=True)]
    lens = jnp.array([[6, 4], [0, 7]])
    together = jax.vmap(lambda q, k, v, n: layer.apply(variables, q, k, v, n, causal=True))(*stacked, lens)
    for index in range(2):
        alone = layer.apply(variables, *inputs(index), lens[index], causal=True)
        np.testing.assert_allclose(together[index], alone, **CLOSE)


def test_checkpoint_has_the_same_gradients(layer_and_variables):
    layer, variables = layer_and_variables

    def loss(variables):
        return layer.apply(variables, *inputs(), jnp.array([6, 4]), causal=True).sum()

    plain, recomputed = (jax.jit(jax.grad(f))(variables) for f in (loss, jax.checkpoint(loss)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), plain, recomputed)


def test_inside_another_module():
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x + MultiHeadAttention(12, 3, name="attention")(x, x, x, causal=True)

    x = inputs()[1][..., :12]
    variables = Block().init(jax.random.key(0), x)
    assert set(variables["params"]["attention"]) == {"q_proj", "k_proj", "v_proj", "out_proj"}
    assert Block().apply(variables, x).shape == x.shape


# Gradients that are safe by construction -----------------------------------------------------------


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_an_empty_row_has_zero_gradient_and_no_nan(score):
    layer = MultiHeadAttention(12, H, bias=True, score=score)
    queries, keys, values = inputs()
    variables = layer.init(jax.random.key(0), queries, keys, values)
    lens = jnp.array([[0, 3, 0, 7, 0], [0, 0, 0, 0, 0]])

    def loss(variables, queries, keys, values):
        return (layer.apply(variables, queries, keys, values, lens) ** 2).sum()

    with jax.debug_nans(True):  # not even an intermediate NaN, forward or backward
        gradients = jax.grad(loss, argnums=(0, 1, 2, 3))(variables, queries, keys, values)
    assert leaves_finite(gradients)
    d_queries = gradients[1]
    assert (d_queries[0, jnp.array([0, 2, 4])] == 0.0).all()
    assert (d_queries[1] == 0.0).all()
    assert (d_queries[0, 1] != 0.0).any()
    output = layer.apply(variables, queries, keys, values, lens)
    np.testing.assert_array_equal(output[1], jnp.broadcast_to(variables["params"]["out_proj"]["bias"], (LQ, 12)))


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e38])
def test_padding_never_leaks(layer_and_variables, poison):
    layer, variables = layer_and_variables
    queries, keys, values = inputs()
    lens = jnp.array([6, 4])
    is_padding = (jnp.arange(LK) >= lens[:, None])[..., None]

    def loss(variables, queries, keys, values):
        return (layer.apply(variables, queries, keys, values, lens) ** 2).sum()

    compute = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))
    clean = compute(variables, queries, keys, values)
    poisoned = compute(variables, queries, jnp.where(is_padding, poison, keys), jnp.where(is_padding, poison, values))
    jax.tree.map(np.testing.assert_array_equal, poisoned, clean)
    _, (_, _, d_keys, d_values) = poisoned
    assert (jnp.where(is_padding, d_keys, 0.0) == 0.0).all()
    assert (jnp.where(is_padding, d_values, 0.0) == 0.0).all()


@pytest.mark.parametrize("sizes", [(0, LQ, LK), (B, 0, LK), (B, LQ, 0)])
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_empty_sizes(sizes, score):
    batch, query_len, key_len = sizes
    layer = MultiHeadAttention(12, H, bias=True, score=score)
    queries, keys = jnp.ones((batch, query_len, 11)), jnp.ones((batch, key_len, 13))
    variables = layer.init(jax.random.key(0), jnp.ones((B, LQ, 11)), *[jnp.ones((B, LK, 13))] * 2)

    @jax.jit
    def attend_and_back(*arguments):
        output, pull_back = jax.vjp(lambda v, q, k: layer.apply(v, q, k, k, causal=True), *arguments)
        return output, pull_back(jnp.ones_like(output))

    output, gradients = attend_and_back(variables, queries, keys)
    assert output.shape == (batch, query_len, 12)
    assert (output == 0.0).all()  # a new bias is 0
    assert leaves_finite(gradients)
    assert gradients[1].shape == queries.shape
    assert (gradients[1] == 0.0).all()


# Dropout ---------------------------------------------------------------------------------------------


def test_dropout_needs_an_rng_only_when_it_acts():
    layer, variables = from_weights(DROPPING, WEIGHTS)
    calm = layer.apply(variables, *inputs())
    with pytest.raises(flax.errors.InvalidRngError, match="dropout"):
        layer.apply(variables, *inputs(), deterministic=False)
    one, two = (layer.apply(variables, *inputs(), deterministic=False, rngs=DROPOUT) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert not np.allclose(one, calm)
    without, variables = from_weights(CONFIG, WEIGHTS)
    np.testing.assert_array_equal(without.apply(variables, *inputs(), deterministic=False), calm)


def test_dropout_differs_by_item_head_and_query():
    """With every input and parameter 1 or 0, an element of `heads` counts the weights that were kept."""
    layer = MultiHeadAttention(12, H, dropout=0.4)
    x = jnp.zeros((B, LQ, 12))
    variables = layer.init(jax.random.key(0), x, x, x)
    ones = jax.tree.map(jnp.ones_like, variables)
    keys = jnp.ones((B, LK, 12))
    stages = layer.apply(ones, Call(x, keys, keys), deterministic=False, rngs=DROPOUT, method="stages")
    kept = stages.heads[..., 0] / 12.0  # (B, H, LQ), multiples of 1 / LK / 0.6
    counts = np.asarray(kept) * LK * 0.6
    np.testing.assert_allclose(counts, counts.round(), atol=1e-4)
    for axis in range(3):
        assert np.ptp(counts.round(), axis=axis).any()
    np.testing.assert_allclose(stages.weights, 1 / LK, rtol=1e-6)  # before dropout


def test_a_keep_mask_replaces_the_draw_and_belongs_to_training():
    layer, variables = from_weights(DROPPING, WEIGHTS)
    keep = np.random.default_rng(5).random((B, H, LQ, LK)) < 0.6
    output = layer.apply(variables, *inputs(), dropout_keep=keep, deterministic=False)  # no rng
    expected = reference.run(DROPPING, WEIGHTS, AttentionInputs(*map(np.asarray, inputs()), dropout_keep=keep))
    np.testing.assert_allclose(output, expected.output, **CLOSE)
    with pytest.raises(SpecError, match="dropout_keep belongs to a training step"):
        layer.apply(variables, *inputs(), dropout_keep=keep)


# Dtypes and global state -----------------------------------------------------------------------------


def test_float64_without_x64_is_refused(layer_and_variables):
    layer, variables = layer_and_variables
    queries, keys, values = map(np.asarray, inputs())
    assert layer.apply(variables, queries, keys, values).dtype == jnp.float32  # NumPy as such is welcome
    for position in range(3):
        arrays = [queries, keys, values]
        arrays[position] = arrays[position].astype(np.float64)
        with pytest.raises(SpecError, match="queries, keys and values must share one dtype"):
            layer.apply(variables, *arrays)
    wide = [array.astype(np.float64) for array in (queries, keys, values)]
    with pytest.raises(SpecError, match="queries must have the dtype of the layer, float32. Got float64"):
        layer.apply(variables, *wide)
    with pytest.raises(SpecError, match="queries is float64, which JAX turns into float32"):
        DotProductAttention().apply({}, wide[0], wide[1][..., :11], wide[2])  # what the others would compute
    with pytest.raises(SpecError, match="bias must have the dtype of queries, float32. Got float64"):
        layer.apply(variables, queries, keys, values, bias=np.ones((LQ, LK)))
    with pytest.raises(SpecError, match="x is float64"):
        PositionalEncoding(11).apply({}, queries.astype(np.float64))
    with pytest.raises(SpecError, match="dtype is float64"):
        MultiHeadAttention(12, 3, param_dtype=jnp.float64)
    double = {name: array.astype(np.float64) for name, array in WEIGHTS.items()}
    with pytest.raises(SpecError, match="the weights' dtype is float64"):
        from_weights(CONFIG, double)
    layer, variables = from_weights(CONFIG, double, dtype="float32")
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}


def test_integers_that_32_bits_cannot_hold_are_refused(layer_and_variables):
    layer, variables = layer_and_variables
    for offset in (2**40, np.array([1, 2**40])):
        with pytest.raises(SpecError, match=r"query_offset must lie in -2147483648\.\.2147483647\. Got 1099511627776"):
            layer.apply(variables, *inputs(), causal=True, query_offset=offset)
    unbounded = layer.apply(variables, *inputs(), window=(2**31 - 1, 2**31 - 1))
    np.testing.assert_array_equal(unbounded, layer.apply(variables, *inputs()))


def test_float64_with_x64():
    with framework.scope("float64", jax.devices()[0]):
        double = init_weights(CONFIG, seed=1, bias_scale=1.0)
        layer, variables = from_weights(CONFIG, double)
        arrays = [np.asarray(array).astype(np.float64) for array in inputs()]
        output = layer.apply(variables, *arrays)
        assert output.dtype == jnp.float64
        expected = reference.run(CONFIG, double, AttentionInputs(*arrays)).output
        np.testing.assert_allclose(output, expected, rtol=0, atol=1e-13)


def test_computation_dtype_and_parameter_dtype_are_linen_fields():
    layer = MultiHeadAttention(12, H, dtype=jnp.bfloat16, bias=True)
    variables = layer.init(jax.random.key(0), *inputs())
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    call = Call(*inputs(), AttentionMask(bias=np.full((LQ, LK), -1e9, np.float32)))
    stages = layer.apply(variables, call, method="stages")
    assert {stages.queries.dtype, stages.heads.dtype, stages.output.dtype} == {jnp.dtype("bfloat16")}
    np.testing.assert_allclose(stages.weights.sum(axis=-1), 1.0, atol=1e-2)
    with pytest.raises(SpecError, match=r"queries must have the dtype of the layer, float32\. Got bfloat16"):
        MultiHeadAttention(12, H, bias=True).apply(variables, *(x.astype(jnp.bfloat16) for x in inputs()))
    half = jax.tree.map(lambda parameter: parameter.astype(jnp.float16), variables)
    output = MultiHeadAttention(12, H, bias=True).apply(half, *(x.astype(jnp.float16) for x in inputs()))
    assert output.dtype == jnp.float16


def test_softmax_of_half_precision_sums_in_float32():
    """4099 equal scores: a float16 sum of ones stops at 2048."""
    x = jnp.zeros((1, 4099, 2), jnp.float16)
    _, weights = DotProductAttention().apply({}, x[:, :3], x, x, return_weights=True)
    np.testing.assert_array_equal(weights, np.full((1, 3, 4099), np.float16(1 / 4099)))


# JAX itself draws from NumPy's global random state when it is imported (jax/_src/clusters/k8s_cluster.py).
GLOBAL_STATE = """
import jax
import numpy as np
state = np.random.get_state()
def settings(): return (jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision,
    jax.config.jax_default_device, jax.config.jax_debug_nans, jax.numpy.ones(3).dtype.name)
before = settings()
from backends.jax.backend import JaxBackend
assert settings() == before, settings()
from mha_core import AttentionConfig, AttentionInputs, init_weights
config = AttentionConfig(6, 2)
x = np.arange(36.0).reshape(2, 3, 6) / 36
run = JaxBackend().prepare(config, init_weights(config, 0), dtype="float64")
trace = run(AttentionInputs(x, x, x, cotangent=x))
assert trace.output.dtype == np.float64
assert settings() == before, settings()
now = np.random.get_state()
assert (now[1] == state[1]).all() and now[2:] == state[2:]
"""


def test_no_global_state_is_changed_by_importing_or_running():
    done = subprocess.run([sys.executable, "-c", GLOBAL_STATE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_backend_computes_what_a_users_jit_computes(layer_and_variables):
    """The contract compiles with less effort; that must not be a different computation."""
    layer, variables = layer_and_variables
    mask = AttentionMask(**mask_arrays(), causal=True)
    arrays = [np.asarray(array) for array in inputs()]
    trace = JaxBackend().prepare(CONFIG, WEIGHTS, dtype="float32")(AttentionInputs(*arrays, mask=mask))
    stages = jax.jit(lambda v, *x: layer.apply(v, Call(*x, mask), method="stages"))(variables, *inputs())
    for name, stage in stages._asdict().items():
        np.testing.assert_allclose(getattr(trace, name), stage, rtol=1e-6, atol=1e-6, err_msg=name)


# Checks ----------------------------------------------------------------------------------------------


def test_contradictory_sizes_are_refused_at_construction():
    with pytest.raises(SpecError, match="embed_dim must be divisible by num_heads"):
        MultiHeadAttention(100, 3)
    with pytest.raises(SpecError, match="bias has no projection 'qproj'"):
        MultiHeadAttention(12, 3, bias={"qproj": True})
    with pytest.raises(SpecError, match="dropout must lie in"):
        DotProductAttention(1.0)
    with pytest.raises(SpecError, match="dropout must lie in"):
        AdditiveAttention(8, -0.1)
    with pytest.raises(SpecError, match="embed_dim at least 1"):
        PositionalEncoding(0)


def test_calls_that_do_not_fit_are_refused_under_jit_too(layer_and_variables):
    layer, variables = layer_and_variables
    queries, keys, values = inputs()
    attend = jax.jit(layer.apply)
    with pytest.raises(SpecError, match=r"keys must be key_dim=13 wide. Got \(2, 7, 12\)"):
        attend(variables, queries, keys[..., :12], values)
    with pytest.raises(SpecError, match="allowed must be boolean"):
        attend(variables, queries, keys, values, allowed=jnp.zeros((LQ, LK), jnp.float32))
    with pytest.raises(SpecError, match=r"valid_lens must lie in 0\.\.7"):
        layer.apply(variables, queries, keys, values, [6, 8])
    with pytest.raises(SpecError, match=r"valid_lens must lie in 0\.\.7"):  # constants of a trace have values
        jax.jit(lambda *x: layer.apply(variables, *x, np.array([6, 8])))(queries, keys, values)
    with pytest.raises(SpecError, match=r"queries must be an array\. Got list"):
        layer.apply(variables, queries.tolist(), keys, values)


def test_masks_may_be_lists_numpy_or_jax(layer_and_variables):
    layer, variables = layer_and_variables
    masks = mask_arrays()
    outputs = [
        layer.apply(variables, *inputs(), **{name: convert(array) for name, array in masks.items()}, causal=True)
        for convert in (np.asarray, jnp.asarray, np.ndarray.tolist)
    ]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[0], outputs[2])


def test_attention_without_heads_takes_a_mask_of_its_own_shape():
    queries, keys, values = inputs()
    allowed = np.random.default_rng(4).random((B, LQ, LK)) < 0.7
    layer = AdditiveAttention(6)
    variables = layer.init(jax.random.key(0), queries, keys, values)
    output, weights = layer.apply(variables, queries, keys, values, allowed=allowed.tolist(), return_weights=True)
    assert output.shape == (B, LQ, 10)
    np.testing.assert_array_equal(weights > 0.0, allowed)
    with pytest.raises(SpecError, match="queries must be query_dim=11 wide"):
        layer.apply(variables, queries[..., :4], keys, values)


# Parameters ------------------------------------------------------------------------------------------


def test_the_first_call_decides_the_widths():
    layer = MultiHeadAttention(12, H)
    with pytest.raises(SpecError, match="query_dim is not known yet"):
        layer.config_of({})
    variables = layer.init(jax.random.key(0), *inputs())
    config = layer.config_of(variables)
    assert (config.query_dim, config.key_dim, config.value_dim, config.output_dim) == (11, 13, 10, 12)
    with pytest.raises(SpecError, match="queries must be query_dim=11 wide"):
        layer.apply(variables, inputs()[1], *inputs()[1:])


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_weights_go_in_and_out_exact_to_the_bit(score):
    config = AttentionConfig(12, 6, num_kv_heads=3, query_dim=11, bias={"v_proj": True}, score=score)
    weights = {name: array.astype(np.float32) for name, array in init_weights(config, 0, bias_scale=1.0).items()}
    layer, variables = from_weights(config, weights)
    returned = to_weights(variables)
    assert list(returned) == list(weights)
    for name, array in returned.items():
        np.testing.assert_array_equal(array, weights[name])
        assert not array.flags.writeable
    assert layer.config_of(variables) == config
    made = MultiHeadAttention(12, 6, num_kv_heads=3, bias={"v_proj": True}, score=score).init(
        jax.random.key(0), jnp.ones((B, LQ, 11)), jnp.ones((B, LK, 12)), jnp.ones((B, LK, 12))
    )
    assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, variables)


def test_weights_are_copies_and_bfloat16_comes_out_as_float32():
    weights = {name: array.copy() for name, array in WEIGHTS.items()}
    _, variables = from_weights(CONFIG, weights)
    for array in weights.values():
        array[...] = 0.0
    np.testing.assert_array_equal(to_weights(variables)["q_proj.weight"], WEIGHTS["q_proj.weight"])
    _, variables = from_weights(CONFIG, WEIGHTS, dtype=jnp.bfloat16)
    returned = to_weights(variables)
    assert returned["q_proj.weight"].dtype == np.float32
    _, again = from_weights(CONFIG, returned, dtype=jnp.bfloat16)
    jax.tree.map(np.testing.assert_array_equal, again, variables)


def test_flax_serialization_round_trip(layer_and_variables):
    layer, variables = layer_and_variables
    template = layer.init(jax.random.key(9), *inputs())
    restored = flax.serialization.from_bytes(template, flax.serialization.to_bytes(variables))
    jax.tree.map(np.testing.assert_array_equal, restored, variables)
    np.testing.assert_array_equal(layer.apply(restored, *inputs()), layer.apply(variables, *inputs()))


def test_positional_encoding_drops_out_and_knows_its_limits():
    encoding = PositionalEncoding(11, 0.4, max_len=5)
    x = inputs()[0]
    assert encoding.apply({}, x.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    dropped = encoding.apply({}, x, deterministic=False, rngs=DROPOUT)
    assert 0 < (dropped == 0.0).sum() < x.size
    with pytest.raises(SpecError, match="at most max_len=5 long"):
        encoding.apply({}, jnp.zeros((B, 6, 11)))


def test_traced_integers_beyond_the_limits_count_as_the_nearest():
    queries, keys, values = inputs()
    layer = DotProductAttention()

    @jax.jit
    def weights(lens, offset):
        sources = {"query_offset": offset, "window": (2**31 - 1, 0), "return_weights": True}
        return layer.apply({}, queries, keys[..., :11], values, lens, **sources)[1]

    def nearest(lens, offset):
        return weights(jnp.array(lens), jnp.array(offset))

    for lens, offset, clipped in (
        (np.array([2**32 - 1, 3], np.uint32), np.array([2**32 - 1, 1], np.uint32), ([LK, 3], [2**31 - 1, 1])),
        (np.array([-(2**31), 2], np.int32), np.array([1, -(2**31)], np.int32), ([0, 2], [1, -(2**31)])),
        (np.array([255, 2], np.uint8), np.array([-128, 127], np.int8), ([LK, 2], [-128, 127])),
    ):
        np.testing.assert_array_equal(weights(lens, offset), nearest(*clipped))
