"""What a TensorFlow user expects of the layers in a tf.function, compiled by XLA or not."""

import numpy as np
import pytest
import tensorflow as tf

from backends.tf import DotProductAttention, MultiHeadAttention, from_weights
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError, init_weights
from mha_core.reference import pipeline as reference
from tests.backends.tf.example_calls import CONFIG, EXACT, LK, LQ, WEIGHTS, B, H, inputs, mask_arrays

pytestmark = pytest.mark.same_on_newest  # TensorFlow's release is the same there


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


@pytest.mark.nightly("programs take every size", but=("mha-graph",))
@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_kv_heads": 1, "softcap": 0.7},
        {"score": "additive", "score_dim": 14},
        {"rotary": {"width": 2}, "query_key_norm": "rms"},
    ],
    ids=["mha", "gqa and softcap", "additive", "rotary and norm"],
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
