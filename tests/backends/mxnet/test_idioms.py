"""What a user of Gluon expects of the MXNet layers, and what MXNet alone would get wrong."""

import subprocess
import sys

import numpy as np
import pytest

from backends.mxnet import DotProductAttention, MultiHeadAttention, PositionalEncoding
from backends.mxnet.backend import MXNetBackend
from backends.mxnet.ops import framework
from backends.mxnet.ops.attention import masked_softmax
from backends.mxnet.ops.framework import mx
from backends.mxnet.ops.masks import Mask
from backends.mxnet.weights import from_weights, to_weights
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, BackendError, SpecError, init_weights

B, LQ, LK, DQ, DK, DV, E, H = 2, 3, 5, 7, 9, 11, 12, 4
SIZES = {"query_dim": DQ, "key_dim": DK, "value_dim": DV}


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def inputs(dtype: str = "float32") -> list:
    shapes = (B, LQ, DQ), (B, LK, DK), (B, LK, DV)
    return [mx.np.array(numbers(*shape, seed=i), dtype=dtype) for i, shape in enumerate(shapes)]


def layer_of(config: AttentionConfig, dtype: str = "float64") -> MultiHeadAttention:
    return from_weights(config, init_weights(config, seed=1, bias_scale=1.0), dtype=dtype)


# Gluon -----------------------------------------------------------------------------------------


def test_first_call_may_have_no_elements():
    layer = MultiHeadAttention(E, H)
    layer.initialize()
    with mx.util.np_shape(True):
        none = [mx.np.zeros((0, length, width)) for length, width in ((LQ, DQ), (LK, DK), (LK, DV))]
        assert layer(*none).shape == (0, LQ, E)
    assert layer.config == AttentionConfig(E, H, **SIZES)


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_save_and_load_parameters(tmp_path, score):
    layer = layer_of(AttentionConfig(E, H, score=score, bias=True, **SIZES))
    layer.save_parameters(str(tmp_path / "layer.params"))
    # The widths come out of the file.
    loaded = MultiHeadAttention(E, H, score=score, bias=True, dtype="float64")
    loaded.load_parameters(str(tmp_path / "layer.params"))
    assert loaded.config == layer.config
    for name, array in to_weights(layer).items():
        np.testing.assert_array_equal(to_weights(loaded)[name], array, strict=True)


def test_cast_and_hybridize():
    layer = layer_of(AttentionConfig(E, H, **SIZES))
    expected = layer(*inputs("float64")).asnumpy()
    with pytest.warns(UserWarning, match=r"hybridize\(\) changes nothing of MultiHeadAttention"):
        layer.hybridize()
    np.testing.assert_array_equal(layer(*inputs("float64")).asnumpy(), expected)
    layer.hybridize(False)
    layer.cast("float32")
    output = layer(*inputs("float32"))
    assert output.dtype == np.float32
    np.testing.assert_allclose(output.asnumpy(), expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(SpecError, match=r"queries must have the dtype of the layer, float32\. Got float64"):
        layer(*inputs("float64"))


class Clipped(MultiHeadAttention):
    """A step of one's own between projection and scores."""

    def after_projection(self, queries, keys, values):
        return [mx.np.clip(one, -0.4, 0.4) for one in (queries, keys, values)]


def test_a_subclass_may_change_what_was_projected():
    layer, bare = Clipped(12, 3, bias=True), MultiHeadAttention(12, 3, projections=False)
    layer.initialize()
    x, y = (mx.np.array(numbers(B, length, 12, seed=length), dtype="float32") for length in (5, 7))
    layer(x, y, y)

    def by_hand(x, y):
        projected = (layer.q_proj(x), layer.k_proj(y), layer.v_proj(y))
        return layer.out_proj(bare(*(mx.np.clip(one, -0.4, 0.4) for one in projected), causal=True))

    for one in (layer.q_proj, layer.k_proj, layer.v_proj):
        one.weight.set_data(20 * one.weight.data())
    assert (np.abs(layer.q_proj(x).asnumpy()) > 0.4).any()
    found = []
    for way in (lambda x, y: layer(x, y, y, causal=True), by_hand):
        x.attach_grad()
        y.attach_grad()
        with mx.autograd.record():
            output = way(x, y)
        output.backward()
        found.append([one.asnumpy() for one in (output, x.grad, y.grad)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)


def test_call_passes_keywords_and_runs_hooks():
    layer = layer_of(AttentionConfig(E, H, **SIZES))
    seen = []
    layer.register_forward_pre_hook(lambda block, arguments: seen.append(len(arguments)))
    layer.register_forward_hook(lambda block, arguments, result: seen.append(result[1].shape))
    _, weights = layer(*inputs("float64"), causal=True, return_weights=True)
    assert seen == [3, (B, H, LQ, LK)]
    assert not np.triu(weights.asnumpy()[0, 0], k=1).any()


def test_legacy_arrays_are_taken_and_get_their_gradient():
    layer = layer_of(AttentionConfig(E, H, **SIZES))
    arrays, legacy = inputs("float64"), [array.as_nd_ndarray() for array in inputs("float64")]
    for array in arrays + legacy:
        array.attach_grad()
    for call in (arrays, legacy):
        with mx.autograd.record():
            output = layer(*call)
        output.backward()
    assert np.abs(arrays[2].grad.asnumpy()).max() > 0
    for array, other in zip(arrays, legacy, strict=True):
        np.testing.assert_array_equal(array.grad.asnumpy(), other.grad.asnumpy())


def test_arrays_of_mxnet_and_of_numpy_may_stand_side_by_side():
    layer = layer_of(AttentionConfig(E, H, **SIZES))
    lens, allowed = [4, 1], numbers(LQ, LK) > -0.5
    expected = layer(*inputs("float64"), np.array(lens), allowed=allowed).asnumpy()
    of_numpy = [array.asnumpy() for array in inputs("float64")]
    for given in ([of_numpy[0], *inputs("float64")[1:]], of_numpy):
        np.testing.assert_array_equal(layer(*given, np.array(lens), allowed=allowed).asnumpy(), expected)
    with pytest.raises(SpecError, match=r"valid_lens must be integers\. Got dtype float32"):
        layer(*inputs("float64"), mx.np.array(lens))  # float32, MXNet's default even for integers
    assert (mx.util.is_np_array(), mx.util.is_np_shape()) == (False, False)  # nor does an error leave them on


# Training --------------------------------------------------------------------------------------


def test_dropout_acts_in_training_only():
    config = AttentionConfig(E, H, dropout=0.5, **SIZES)
    layer, plain = layer_of(config), layer_of(AttentionConfig(E, H, **SIZES))
    expected = plain(*inputs("float64")).asnumpy()
    mx.random.seed(3)
    np.testing.assert_array_equal(layer(*inputs("float64")).asnumpy(), expected)
    with mx.autograd.record(train_mode=False):
        np.testing.assert_array_equal(layer(*inputs("float64")).asnumpy(), expected)
    for scope in (mx.autograd.record, mx.autograd.train_mode):
        with scope():
            assert (layer(*inputs("float64")).asnumpy() != expected).any()


def test_dropout_scales_in_float64():
    mx.random.seed(3)
    encoding, plain = PositionalEncoding(DQ, dropout=0.3), PositionalEncoding(DQ)
    x = inputs("float64")[0]
    with mx.autograd.train_mode():
        dropped = encoding(x).asnumpy()
    expected = plain(x).asnumpy()
    kept = dropped != 0
    assert 0 < kept.sum() < kept.size
    np.testing.assert_allclose(dropped[kept], (expected / 0.7)[kept], rtol=1e-15)  # MXNet's own is 2e-8 off


def test_nan_cotangent_of_an_excluded_weight_is_not_multiplied_by_zero():
    condition = mx.np.array([[True, False]], dtype="bool")
    x = mx.np.array([[2.0, 3.0]])
    x.attach_grad()
    with mx.autograd.record():
        chosen = framework.select(condition, x, 0.0)
    chosen.backward(mx.np.array([[5.0, np.nan]]))
    np.testing.assert_array_equal(x.grad.asnumpy(), [[5.0, 0.0]])


def test_nan_score_makes_its_row_nan_as_in_the_equation():
    mask = Mask((1, 1, 1, LK), mx.cpu(), allowed=mx.np.array([[[[True] * LK]]], dtype="bool"))
    weights = masked_softmax(mx.np.array([[[[1.0, np.nan, 2.0, 3.0, 5.0]]]]), mask)  # npx.softmax: zeros in float32
    assert np.isnan(weights.asnumpy()).all()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
@pytest.mark.parametrize("sizes", [(0, LQ, LK), (B, 0, LK), (B, LQ, 0), (0, 0, 0)])
def test_gradients_of_nothing_are_zero_not_memory(sizes, score, dtype):
    config = AttentionConfig(E, H, num_kv_heads=2, score=score, bias=True, **SIZES)
    run = MXNetBackend().prepare(config, init_weights(config, seed=1), dtype=dtype)
    for batch, query_len, key_len in ((B, LQ, LK), sizes):  # the first leaves numbers in the parameters' gradients
        arrays = numbers(batch, query_len, DQ), numbers(batch, key_len, DK), numbers(batch, key_len, DV)
        mask = AttentionMask(bias=numbers(H, 1, 1), causal=True)
        trace = run(AttentionInputs(*arrays, mask, cotangent=np.full((batch, query_len, E), 3.0)))
    for name, gradient in trace.gradients.items():
        # A row without a key is just the output bias.
        np.testing.assert_array_equal(gradient, 3.0 * sizes[0] * sizes[1] if name == "out_proj.bias" else 0.0)


# Weights, dtypes, global state -----------------------------------------------------------------


def test_a_layer_of_weights_leaves_random_states_alone():
    config = AttentionConfig(E, H, num_kv_heads=2, score="additive", score_dim=5, bias=True, **SIZES)
    draws = []
    for between in (lambda: None, lambda: from_weights(config, init_weights(config, 1))):
        mx.random.seed(5)
        before = np.random.get_state()[1].copy()
        between()
        np.testing.assert_array_equal(np.random.get_state()[1], before)
        draws.append(mx.np.random.uniform(size=(6,)).asnumpy())
    np.testing.assert_array_equal(*draws)


def test_float16_is_refused_before_anything_runs():
    with pytest.raises(BackendError, match=r"compute in float64 and float32 only\. Got parameters of float16"):
        MultiHeadAttention(E, H, dtype="float16")
    layer = layer_of(AttentionConfig(E, H, **SIZES))
    with pytest.raises(SpecError, match="queries must have the dtype of the layer, float64. Got float16"):
        layer(*inputs("float16"))
    with pytest.raises(BackendError, match="Got queries of float16"):
        DotProductAttention()(*inputs("float16"))
    config = AttentionConfig(E, H)
    with pytest.raises(BackendError, match="does not compute in float16 on cpu"):
        MXNetBackend().prepare(config, init_weights(config, 0), dtype="float16")


IMPORT = """
import sys, warnings, safetensors.numpy, mha_core, numpy as np, numpy.typing
if sys.argv[1] == "without": sys.modules["mxnet"] = None
names, filters = set(vars(np)), list(warnings.filters)
try:
    import backends.mxnet
except ModuleNotFoundError as error:
    print("no", error.name)
print({name for name in set(vars(np)) - names if not isinstance(vars(np)[name], type(np))}, warnings.filters == filters)
"""

PROGRAM = """
from backends.mxnet.ops.framework import mx
SET_NP
before = mx.util.is_np_array(), mx.util.is_np_shape()
from backends.mxnet import MultiHeadAttention, PositionalEncoding, to_weights
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights
from mha_core.backend import load

rng = np.random.default_rng(0)
queries, keys = (mx.np.array(rng.normal(size=size), dtype="float32") for size in ((2, 3, 7), (2, 5, 9)))
queries.attach_grad()
layer = MultiHeadAttention(12, 4, dropout=0.5, bias=True, score="additive")
layer.initialize(mx.init.Xavier(), ctx=mx.cpu())
with mx.autograd.record():
    output = PositionalEncoding(12)(layer(queries, keys, keys, [5, 0], causal=True))
output.backward()
assert type(layer.q_proj.weight.grad()) is mx.np.ndarray
assert np.isfinite(queries.grad.asnumpy()).all() and queries.grad.asnumpy()[0].any()
layer.save_parameters("layer.params")
loaded = MultiHeadAttention(12, 4, dropout=0.5, bias=True, score="additive")
loaded.load_parameters("layer.params")
for name, array in to_weights(layer).items():
    assert (to_weights(loaded)[name] == array).all()

config = AttentionConfig(12, 4)
run = load("mxnet").prepare(config, init_weights(config, 0))
for size in ((2, 3, 5), (0, 3, 5), (2, 0, 5), (2, 3, 0)):
    x, y = rng.normal(size=(*size[:2], 12)), rng.normal(size=(size[0], size[2], 12))
    trace = run(AttentionInputs(x, y, y, AttentionMask(causal=True), cotangent=x))
    assert trace.output.shape == x.shape and trace.gradients["keys"].shape == y.shape
assert before == (mx.util.is_np_array(), mx.util.is_np_shape())
print(before)
"""


@pytest.mark.nightly("MXNet's NumPy mode is the user's", every=2)
@pytest.mark.parametrize(("call", "setting"), [("", False), ("mx.npx.set_np()", True)])
def test_works_with_and_without_set_np_and_exits_cleanly(tmp_path, call, setting):
    command = [sys.executable, "-W", "error", "-c", IMPORT + PROGRAM.replace("SET_NP", call), "with"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{{'bool'}} True\n{(setting, setting)}\n", "")


# What the import needs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "answer", "message"),
    [
        ("numpy_version", "2.3.1", r"runs on numpy < 2\. Got numpy 2\.3\.1\..*pip install 'numpy<2'"),
        ("has_distutils", False, r"needs distutils.*pip install setuptools"),
    ],
)
def test_what_mxnet_cannot_be_imported_with_is_refused_with_its_remedy(monkeypatch, function, answer, message):
    monkeypatch.setattr(framework, function, lambda: answer)
    with pytest.raises(BackendError, match=message):
        framework.check_preconditions()


def test_import_adds_nothing_to_numpy_where_mxnet_is_not_there():
    """And one name where it is, as the programs above print it."""
    done = subprocess.run([sys.executable, "-c", IMPORT, "without"], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("no mxnet\nset() True\n", "")
