"""What a user of Gluon expects of rotary positions and query-key norm, and what MXNet alone would get wrong."""

import numpy as np
import pytest

from backends.mxnet import MultiHeadAttention
from backends.mxnet.backend import MXNetBackend
from backends.mxnet.ops.framework import mx
from backends.mxnet.ops.rotary import rotate
from backends.mxnet.weights import from_weights
from mha_core import AttentionConfig, AttentionInputs, QueryKeyNorm, Rotary, RotaryInputs, SpecError, init_weights
from mha_core.parts.rotary import Table
from mha_core.reference import run

NORM = QueryKeyNorm("layer", "all", "before", 1e-2, 1, "per_head", bias=True)
B, LQ, LK = 3, 4, 5
RNG = np.random.default_rng(2)
QUERIES, KEYS, COTANGENT = (RNG.normal(size=(B, length, 9)) for length in (LQ, LK, LQ))
POSITIONS, KEY_POSITIONS = RNG.integers(0, 30, size=(B, LQ)), RNG.integers(0, 30, size=LK)


def config_of(start="first", **changes):
    rotary = Rotary(width=4, start=start, interleaved=start == "last", base=50.0)
    options = {"rotary": rotary, "query_key_norm": NORM, "bias": True, **changes}
    return AttentionConfig(9, 6, num_kv_heads=2, head_dim=7, **options)


@pytest.mark.parametrize("start", ["first", "last"])
def test_gradients_go_through_where_numpy_semantics_are_off(start):
    config = config_of(start)
    weights = init_weights(config, seed=1, bias_scale=0.7)
    inputs = AttentionInputs(QUERIES, KEYS, KEYS, cotangent=COTANGENT, rotary=RotaryInputs(POSITIONS, KEY_POSITIONS))
    wanted = run(config, weights, inputs).gradients
    layer = from_weights(config, weights)
    assert not mx.util.is_np_shape()
    with mx.autograd.record():
        output = layer(QUERIES, KEYS, KEYS, positions=(POSITIONS.tolist(), mx.np.array(KEY_POSITIONS, dtype="int32")))
    output.backward(mx.np.array(COTANGENT, dtype="float64"))
    for name in ("q_norm.weight", "k_norm.weight", "q_norm.bias", "k_norm.bias"):
        norm, kind = name.split(".")
        found = getattr(getattr(layer, norm), kind).grad().asnumpy()
        np.testing.assert_allclose(found, wanted[name], rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("items", [1, B])
@pytest.mark.parametrize("start", ["first", "last"])
def test_tables_of_a_caller_have_gradients(items, start):
    """The turn is linear in its tables: moving them by `step` moves <cotangent, turned> by <gradient, step>."""
    settings = config_of(start).rotary
    x, cotangent = RNG.normal(size=(2, B, 6, LQ, 7))
    tables, step = (Table(*RNG.normal(size=(2, items, LQ, 2))) for _ in range(2))

    def turned(cos, sin):
        return rotate(mx.np.array(x, dtype="float64"), Table(cos, sin), settings)

    leaves = [mx.np.array(table, dtype="float64") for table in tables]
    for leaf in leaves:
        leaf.attach_grad()
    with mx.autograd.record():
        output = turned(*leaves)
    output.backward(mx.np.array(cotangent, dtype="float64"))
    moved = turned(*(leaf + mx.np.array(by, dtype="float64") for leaf, by in zip(leaves, step, strict=True)))
    predicted = sum((leaf.grad.asnumpy() * by).sum() for leaf, by in zip(leaves, step, strict=True))
    assert ((moved - output).asnumpy() * cotangent).sum() == pytest.approx(predicted, rel=1e-10)


@pytest.mark.parametrize("shape", [(0, LQ), (B, 0)], ids=["no item", "no query"])
def test_an_array_without_elements_has_gradients_of_zero(shape):
    config = config_of()
    build = MXNetBackend().build(config, init_weights(config, seed=1, bias_scale=0.7), "float64", "cpu", "eager")
    queries = np.zeros((*shape, 9))
    gradients = build(AttentionInputs(queries, KEYS[: shape[0]], KEYS[: shape[0]], cotangent=queries)).gradients
    assert gradients["q_norm.weight"].shape == (42,)
    assert not gradients["q_norm.weight"].any()
    assert gradients["queries"].shape == queries.shape


def test_parameters_are_saved_under_canonical_names(tmp_path):
    options = {"num_kv_heads": 2, "head_dim": 7, "query_key_norm": NORM, "rotary": True}
    with pytest.raises(SpecError, match="width must be even"):
        MultiHeadAttention(9, 6, **options)
    options["rotary"] = Rotary(width=6)
    layer = MultiHeadAttention(9, 6, **options)
    layer.initialize()
    queries, keys = QUERIES.astype("float32"), KEYS.astype("float32")
    before = layer(queries, keys, keys)
    layer.q_norm.weight.set_data(mx.np.array(RNG.normal(size=42), dtype="float32"))
    assert np.abs((layer(queries, keys, keys) - before).asnumpy()).max() > 1e-3
    file = str(tmp_path / "layer.params")
    layer.save_parameters(file)
    names = {f"{norm}.{kind}" for norm in ("q_norm", "k_norm") for kind in ("weight", "bias")}
    with mx.util.np_shape():  # which saved them
        assert names < set(mx.nd.load(file))
    loaded = MultiHeadAttention(9, 6, **options)
    loaded.load_parameters(file)
    np.testing.assert_array_equal(loaded(queries, keys, keys).asnumpy(), layer(queries, keys, keys).asnumpy())
