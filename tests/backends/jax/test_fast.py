"""The fast path of the JAX layers: block by block what the stages are, in every transformation, in less memory."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backends.jax import MultiHeadAttention
from backends.jax.backend import COMPILER_OPTIONS
from backends.jax.fast import block
from backends.jax.ops.masks import allowed_keys, build_mask
from mha_core import AttentionMask
from mha_core.call.blocks import Block
from mha_core.call.call import Call, LayerSpec
from tests.backends.drivers import as_call

B, G, R, LQ, LK = 2, 2, 3, 7, 11
compiled = partial(jax.jit, compiler_options=COMPILER_OPTIONS["cpu"])  # in a third of the time
CLOSE = {"rtol": 3e-5, "atol": 3e-6}  # float32, of numbers around 1


@pytest.fixture
def short_steps(monkeypatch):
    """Leave keys out in small calls too."""
    monkeypatch.setattr(block, "SMALLEST_STEP", 1)


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def layer_and_arrays(**keywords):
    layer = MultiHeadAttention(24, G * R, num_kv_heads=G, bias=True, head_dim=5, value_head_dim=3, **keywords)
    arrays = [normal(0, B, LQ, 13), normal(1, B, LK, 17), normal(2, B, LK, 19)]
    return layer, layer.init(jax.random.key(0), *arrays), arrays


def sources(seed=3):
    """One source of each kind, as arrays that can be traced."""
    rng = np.random.default_rng(seed)
    bias = rng.normal(size=(G * R, 1, LK)).astype(np.float32)
    bias[1, 0, 3] = -np.inf
    return {
        "valid_lens": jnp.asarray(rng.integers(0, LK + 1, size=(B, LQ))),
        "allowed": jnp.asarray(rng.random((B, 1, LQ, LK)) < 0.8),
        "bias": jnp.asarray(bias),
        "query_offset": jnp.asarray([2, 5]),
        "past_keys": normal(4, B, G, 4, 5),
        "past_values": normal(5, B, G, 4, 3),
    }


def calls(names, *, query_block, **static):
    """The same call on both ways, as functions of variables, arrays and the sources of these names."""
    layer, variables, arrays = layer_and_arrays(softcap=1.5)
    given = {name: array for name, array in sources().items() if name in names}
    if "past_keys" in names:
        arrays[1:] = (array[:, : LK - 4] for array in arrays[1:])

    def of(arrays, given):
        return as_call(arrays, {**given, **static})[0]

    def stages(variables, arrays, given):
        return layer.apply(variables, of(arrays, given), method="stages").output

    def attend(variables, arrays, given):
        return layer.apply(variables, of(arrays, given), query_block=query_block, method="attend").output

    return stages, attend, (variables, arrays, given)


def assert_close(one, other):
    jax.tree.map(partial(np.testing.assert_allclose, **CLOSE), one, other)


def directions(tree):
    """A direction for each float of a tree, and what JAX wants for the others."""

    def direction(array):
        return (
            normal(array.size, *array.shape) if array.dtype == np.float32 else np.zeros(array.shape, jax.dtypes.float0)
        )

    return jax.tree.map(direction, tree)


SOME = ("valid_lens", "allowed", "bias", "query_offset", "past_keys", "past_values")
CALLS = [
    ((), {}),
    (("query_offset",), {"causal": True, "window": (2, None)}),
    (("allowed", "bias"), {"window": (4, 1), "query_offset": -2}),
    (SOME, {"causal": True}),
]


@pytest.mark.nightly("blocks give what the whole gives", but=("names3-static3-3",))
@pytest.mark.parametrize(("names", "static", "query_block"), [*((*call, 3) for call in CALLS), (*CALLS[-1], None)])
def test_blocks_give_the_output_and_the_gradients_of_the_stages(short_steps, names, static, query_block):
    stages, attend, arguments = calls(names, query_block=query_block, **static)

    def gradients(call, *arguments):
        output, pull_back = jax.vjp(call, *arguments)
        return output, [
            leaf for leaf in jax.tree.leaves(pull_back(normal(6, *output.shape))) if leaf.dtype == np.float32
        ]

    wanted, found = (compiled(partial(gradients, call))(*arguments) for call in (stages, attend))
    assert_close(found, wanted)
    assert len(wanted[1]) == 11 + len({"bias", "past_keys", "past_values"} & set(names))


@pytest.mark.nightly("blocks give what the whole gives", every=3)
@pytest.mark.parametrize("names", [(), ("valid_lens",), ("allowed", "bias"), ("valid_lens", "allowed", "bias")])
@pytest.mark.parametrize("window", [None, (2, 1)])
def test_the_mask_of_a_block_is_that_part_of_the_mask(names, window):
    given = {name: array for name, array in sources().items() if name in names}
    call, _ = as_call([normal(0, B, LQ, 2), *[normal(1, B, LK, 2)] * 2], {**given, "window": window, "query_offset": 3})
    mask = build_mask(call, LayerSpec(num_heads=G * R))
    whole, part = allowed_keys(mask), Block(slice(1, 2), slice(2, 5), slice(3, 7), slice(4, 9))
    found = allowed_keys(mask, part)
    if not names and window is None:
        assert whole is found is None
    else:
        whole = np.broadcast_to(whole, (B, G * R, LQ, LK))[part]
        np.testing.assert_array_equal(np.broadcast_to(found, whole.shape), whole)


@pytest.mark.nightly("gradients of gradients are right")
def test_forward_mode_and_second_derivatives(short_steps):
    names, static = CALLS[-1]
    stages, attend, arguments = calls(names, query_block=3, **static)

    def moved(call, *arguments):
        tangents = directions(arguments)
        return jax.jvp(call, arguments, tangents)[1]

    def curvature(call, variables, arrays, given):
        def slope(variables, arrays):
            return jax.grad(lambda arrays: (call(variables, arrays, given) ** 2).sum())(arrays)

        return jax.jvp(slope, (variables, arrays), directions((variables, arrays)))[1]

    for derivative in (moved, curvature):
        wanted, found = (compiled(partial(derivative, call))(*arguments) for call in (stages, attend))
        np.testing.assert_array_less(0.1, np.abs(jax.tree.leaves(wanted)[0]).max())
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), found, wanted)


@pytest.mark.nightly("JAX' transformations are taken")
def test_vmap_over_masks_and_arrays(short_steps):
    stages, attend, (variables, arrays, given) = calls(("valid_lens", "bias"), query_block=2, causal=True)
    arrays, given = jax.tree.map(lambda x: jnp.stack([x, x[::-1]]), (arrays, given))
    wanted, found = (jax.vmap(call, (None, 0, 0))(variables, arrays, given) for call in (stages, attend))
    assert_close(found, wanted)


@pytest.mark.parametrize(("bias", "loops"), [((), 2), ((B, 1), 3)])
def test_each_pass_is_one_loop_over_queries_inside_of_one_over_all_heads(bias, loops):
    """What has fewer loops is compiled faster; a bias that some heads share takes a loop over these of its own."""
    layer, variables, arrays = layer_and_arrays()
    mask = AttentionMask(bias=normal(3, *bias, LQ, LK), causal=True)

    def passes(variables, mask):
        def call(variables, mask):
            return layer.apply(variables, Call(*arrays, mask), query_block=3, method="attend").output.sum()

        return jax.value_and_grad(call)(variables, mask)

    program = str(jax.make_jaxpr(partial(passes, mask=mask))(variables))
    assert program.count(" scan[") == 2 * loops


# What is not computed, and not stored ---------------------------------------------------------------


@pytest.mark.nightly("blocks give what the whole gives", every=2)
@pytest.mark.parametrize(
    ("mask", "unused"),
    [({"causal": True}, slice(6, LK)), ({"window": (1, None), "query_offset": 7}, slice(0, 5))],
)
def test_keys_beyond_the_reach_of_a_whole_block_are_not_touched(short_steps, mask, unused):
    layer, variables, (queries, keys, values) = layer_and_arrays()
    spoilt = values.at[:, unused].set(jnp.nan)

    def attend(values, query_block):
        call = Call(queries, keys, values, AttentionMask(**mask))
        return layer.apply(variables, call, query_block=query_block, method="attend").output

    clean, found = (attend(values, query_block=3) for values in (values, spoilt))
    np.testing.assert_array_equal(found[:, :3], clean[:, :3])
    together = attend(spoilt, query_block=LQ)  # of one block with all queries, some reach them
    assert jnp.isnan(together).any() == (mask.get("causal", False))


def test_nothing_as_large_as_all_scores_is_stored():
    layer, length = MultiHeadAttention(8, 2), 8192
    x = jnp.zeros((1, length, 8))
    variables = layer.init(jax.random.key(0), x[:, :1], x[:, :1], x[:, :1])

    @jax.jit
    def step(variables, x, allowed):
        def loss(variables, x):
            return layer.apply(variables, x, x, x, jnp.array([length // 2]), allowed=allowed, window=(700, 9)).sum()

        return jax.value_and_grad(loss, argnums=(0, 1))(variables, x)

    allowed = jax.ShapeDtypeStruct((1, length), bool)
    extra = step.lower(variables, x, allowed).compile().memory_analysis().temp_size_in_bytes
    assert extra < length * length  # not even one byte for each of a head's


def test_a_step_of_decoding_does_not_copy_its_past():
    layer, variables, (queries, keys, values) = layer_and_arrays()
    past = {"past_keys": normal(4, B, G, 29, 5), "past_values": normal(5, B, G, 29, 3)}

    def step(**options):
        def call(past):
            return layer.apply(variables, queries[:, :1], keys[:, :1], values[:, :1], **past, **options)

        joined = [f"f32[{B},{G},30,{width}]" for width in (5, 3)]
        return call(past), sum(name in str(jax.make_jaxpr(call)(past)) for name in joined)

    alone, copies = step()
    (output, (present_keys, present_values)), all_copies = step(return_present=True)
    assert (copies, all_copies) == (0, 2)
    np.testing.assert_allclose(alone, output, **CLOSE)
    np.testing.assert_array_equal(present_keys[:, :, :29], past["past_keys"])
    np.testing.assert_array_equal(present_values[:, :, :29], past["past_values"])


# Dropout --------------------------------------------------------------------------------------------


def dropping(query_block, seed):
    """Bare heads of zeros: each output is a mean of the values that dropout kept, times 1 / (1 - rate)."""
    layer = MultiHeadAttention(12, 2, dropout=0.3, projections=False)
    queries, values = jnp.zeros((B, 300, 12)), normal(1, B, 200, 12)

    def call(values):
        rngs = {"dropout": jax.random.key(seed)}
        options = {"deterministic": False, "query_block": query_block, "rngs": rngs, "method": "attend"}
        return layer.apply({}, Call(queries, values, values), **options).output

    return call, values


@pytest.mark.nightly("blocks give what the whole gives", but=("64",))
@pytest.mark.parametrize("query_block", [None, 64])
def test_random_dropout_keeps_its_share_and_differs_by_item_head_and_block(query_block):
    call, values = dropping(query_block, seed=0)
    call = compiled(call)
    kept = np.asarray(call(jnp.ones_like(values))) * 0.7  # the share of the keys that were kept
    assert abs(kept.mean() - 0.7) < 4 * (0.3 * 0.7 / (B * 2 * 300 * 200)) ** 0.5
    shares = kept.reshape(B, 300, 2, 6)[..., 0]
    rows = [shares[0, :64, 0], shares[1, :64, 0], shares[0, :64, 1], shares[0, 64:128, 0], shares[0, 128:192, 0]]
    assert len({row.tobytes() for row in rows}) == len(rows)
    other, _ = dropping(query_block, seed=1)
    assert not np.allclose(other(values), call(values))
    np.testing.assert_array_equal(call(values), call(values))


@pytest.mark.nightly("blocks give what the whole gives", but=("64",))
@pytest.mark.parametrize("query_block", [None, 64])
def test_the_backward_pass_drops_the_same_weights(query_block):
    """The output is linear in the values, of which zero queries make weights that don't depend on the keys."""
    call, values = dropping(query_block, seed=0)

    @compiled
    def step(values, cotangent):
        output, pull_back = jax.vjp(call, values)
        return output, *pull_back(cotangent)

    cotangent = normal(2, B, 300, 12)
    output, gradient = step(values, cotangent)
    np.testing.assert_allclose((gradient * values).sum(), (output * cotangent).sum(), rtol=1e-4)


# Inside other transformations of Flax -----------------------------------------------------------------


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return x + MultiHeadAttention(12, 3, dropout=0.2)(x, x, x, causal=True, deterministic=False), None


def test_scanned_and_rematerialised_layers():
    scanned = nn.scan(
        nn.remat(Layer), variable_axes={"params": 0}, split_rngs={"params": True, "dropout": True}, length=3
    )
    x, rngs = normal(0, B, LQ, 12), {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    variables = scanned().init(rngs, x, None)

    def loss(variables):
        return (scanned().apply(variables, x, None, rngs={"dropout": jax.random.key(2)})[0] ** 2).sum()

    gradients = compiled(jax.grad(loss))(variables)
    for gradient in jax.tree.leaves(gradients):
        assert gradient.shape[0] == 3
        assert (jnp.abs(gradient).max(axis=(1, 2)) > 0.0).all()


def test_bfloat16_inside_of_float32_parameters():
    layer, variables, arrays = layer_and_arrays(dtype=jnp.bfloat16)
    call = Call(*arrays, AttentionMask(causal=True))
    wanted = layer.apply(variables, call, method="stages").output
    found = layer.apply(variables, call, method="attend", query_block=2).output
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), atol=0.05)


def test_a_step_of_decoding_joins_keys_for_its_caller_alone():
    layer = MultiHeadAttention(12, 3)
    x, past = jnp.ones((2, 1, 12)), jnp.ones((2, 3, 9, 4))
    variables = layer.init(jax.random.key(0), x, x, x)

    def step(variables, x, past):
        output, (keys, values) = layer.apply(variables, x, x, x, past_keys=past, past_values=past, return_present=True)
        return output, keys[:, :, 9:], values[:, :, 9:]

    assert "f32[2,3,10,4]" not in jax.jit(step).lower(variables, x, past).compile().as_text()
