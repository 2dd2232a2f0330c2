"""Capture: what live layers of each framework are given and give, in the terms of the definition.

A call that was captured is judged as any other: it is equal to the definition only if the weights, the order
of the inputs and every mask were read for what they mean.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import mha
from mha.recordings.capture import register, unregister
from mha.recordings.replay import judge_recording
from mha_core import AttentionConfig, AttentionInputs, SpecError

B, LQ, LK = 2, 3, 5


def numbers(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def some(*shape):
    """Bools, neither all alike."""
    found = np.random.default_rng(11).random(shape) < 0.6
    found[..., 0] = True  # no row without any
    return found


def assert_equal(recording):
    """Every recorded call is what the definition gives."""
    for result in judge_recording(recording):
        assert result.status == "equal", result
    return recording


def each_of(convert, values):
    """The keywords with every array converted."""
    return {name: convert(value) if isinstance(value, np.ndarray) else value for name, value in values.items()}


def masks(recording):
    return [call.inputs.mask for call in recording.calls]


# The context itself, on PyTorch ------------------------------------------------------------------------


@pytest.fixture
def torch(backend_names):
    if "torch" not in backend_names:
        pytest.skip("torch is not under test")
    import torch

    torch.manual_seed(0)
    return torch


@pytest.fixture
def layer(torch):
    return torch.nn.MultiheadAttention(12, 4, batch_first=True).eval()


def test_the_file_is_there_at_the_end(torch, layer, tmp_path):
    x = torch.randn(B, LQ, 12)
    path = tmp_path / "calls.safetensors"
    with mha.capture(layer, path) as seen:
        layer(x, x, x)
        assert not list(tmp_path.iterdir())
        layer(x, x, x)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert mha.Recording.load(path).names == seen.recording.names == ("layer#1", "layer#2")
    layer(x, x, x)
    assert len(seen.calls) == 2  # the hooks are gone


def test_an_exception_leaves_nothing(torch, layer, tmp_path):
    x = torch.randn(B, LQ, 12)

    def broken():
        with mha.capture(layer, tmp_path / "calls.safetensors"):
            layer(x, x, x)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert not list(tmp_path.iterdir())
    assert not layer._forward_hooks


def test_no_call_is_an_error(layer, tmp_path):
    with pytest.raises(SpecError, match="nothing to record"), mha.capture(layer, tmp_path / "calls.safetensors"):
        pass
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_refused_before_anything_runs(layer, tmp_path):
    path = tmp_path / "calls.safetensors"
    path.write_text("mine")
    with pytest.raises(SpecError, match="is already there"), mha.capture(layer, path):
        raise AssertionError("it ran")
    assert path.read_text() == "mine"


def test_what_is_no_model_is_refused(torch):
    with pytest.raises(SpecError, match="needs a layer or a model of PyTorch, Keras, Flax or Gluon. Got dict"):
        mha.capture({}).__enter__()
    with pytest.raises(SpecError, match="Linear has no attention layer"):
        mha.capture(torch.nn.Linear(2, 3)).__enter__()


def test_layers_are_chosen_by_name(torch):
    model = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(12, 4, 7, batch_first=True), 2).eval()
    x, memory = torch.randn(B, LQ, 12), torch.randn(B, LK, 12)
    with mha.capture(model, layers=["*.1.*"]) as seen:
        model(x, memory, tgt_is_causal=True, tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(LQ))
    assert_equal(seen.recording)
    assert seen.recording.names == ("layers.1.self_attn", "layers.1.multihead_attn")
    assert [mask.causal for mask in masks(seen.recording)] == [True, False]


def test_a_layer_whose_weights_change_is_two(torch, layer):
    x = torch.randn(B, LQ, 12)
    with mha.capture(layer) as seen:
        layer(x, x, x)
        with torch.no_grad():
            layer.out_proj.bias += 1.0
        layer(x, x, x)
    assert_equal(seen.recording)
    assert len(seen.recording.layers) == 2


def test_what_happens_later_does_not_reach_the_recording(torch, layer):
    x = torch.randn(B, LQ, 12)
    with torch.no_grad(), mha.capture(layer) as seen:
        output, _ = layer(x, x, x)
        output.zero_()
        x.zero_()
        for parameter in layer.parameters():
            parameter.zero_()
    assert_equal(seen.recording)
    assert seen.calls[0].outputs["output"].any()


class Doubled:
    """An adapter for somebody's own layer, which attends by one matrix for everything."""

    kind = "mine.Doubled"

    def matches(self, layer):
        return hasattr(layer, "doubled")

    def check(self, layer):
        if layer.doubled < 0:
            raise SpecError("doubled must not be negative. Got -1.")

    def read(self, layer, arguments, output):
        from backends.torch.ops.framework import to_numpy

        x = to_numpy(arguments["x"])
        eye = np.eye(6, dtype=np.float32)
        weights = {f"{name}.weight": eye for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
        config = AttentionConfig(6, 1, score="dot")
        return config, weights, AttentionInputs(x, x, x), {"output": to_numpy(output)}, "float32"


def test_another_kind_of_layer_is_registered(torch):
    class Layer(torch.nn.Module):
        doubled = 1

        def forward(self, x):
            return (x @ x.mT).softmax(-1) @ x

    model, x = torch.nn.Sequential(torch.nn.Linear(5, 6), Layer()), torch.randn(B, LQ, 5)
    adapter = register(Doubled())
    try:
        with mha.capture(model) as seen:
            model(x)
        model[1].doubled = -1
        with pytest.raises(SpecError, match="mine.Doubled at 1 can't be recorded: doubled must not be negative"):
            mha.capture(model).__enter__()
    finally:
        unregister(adapter)
    assert assert_equal(seen.recording).names == ("1",)
    with pytest.raises(SpecError, match="has no attention layer"):
        mha.capture(model).__enter__()


def test_a_layer_that_computes_something_else_than_its_weights_say_is_refused_at_entry(torch, layer, tmp_path):
    x = torch.randn(B, LQ, 12)
    layer.register_forward_hook(lambda module, args, output: (2.0 * output[0], output[1]))
    model, path = torch.nn.ModuleDict({"attend": layer}), tmp_path / "calls.safetensors"
    said = (
        "torch.nn.MultiheadAttention at attend can't be recorded: MultiheadAttention does not compute what its weights"
    )
    with pytest.raises(SpecError, match=said), mha.capture(model, path):
        raise AssertionError("it ran")
    with mha.capture(model, path, probe=False) as seen:
        layer(x, x, x)
    assert [result.status for result in judge_recording(seen.recording)] == ["different"]


@pytest.mark.filterwarnings("ignore:.*Lazy modules:UserWarning")
def test_a_layer_without_sizes_is_not_probed_and_one_with_a_forward_of_its_own_refused(torch):
    from backends.torch.native.d2l import D2lMultiHeadAttention

    class Late(D2lMultiHeadAttention):
        def forward(self, queries, keys, values, valid_lens):
            return super().forward(queries, keys, values, None)

    for kind in (D2lMultiHeadAttention, Late):
        layer, x = kind(12, 4, 0.0).eval(), torch.randn(B, LQ, 12)
        with mha.capture(layer) as seen:
            layer(x, x, x, None)
        assert_equal(seen.recording)
    with pytest.raises(
        SpecError, match="Late does not compute what its weights say: in a probe of .* valid_lens, output"
    ):
        mha.capture(layer).__enter__()


def test_importing_it_imports_no_framework():
    program = (
        "import sys, mha; mha.capture, mha.Recording; "
        "print(sorted({'torch', 'tensorflow', 'keras', 'jax', 'mxnet'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


# torch.nn.MultiheadAttention ------------------------------------------------------------------------------


def torch_calls():
    """Name -> the keywords of a call (B, 4, LQ, LK), and the mask that they mean."""
    allowed, each, padding = some(LQ, LK), some(B, 4, LQ, LK), some(B, LK)
    bias, key_bias = numbers(LQ, LK), numbers(B, LK)
    infinite, key_infinite = (np.where(bools, 0.0, -np.inf).astype(np.float32) for bools in (allowed, padding))
    square = np.arange(LK) <= np.arange(LQ)[:, None]
    of_keys = padding[:, None, None]
    return {
        "nothing": ({}, {}),
        "one mask": ({"attn_mask": ~allowed}, {"allowed": allowed}),
        "one per head": ({"attn_mask": ~each.reshape(-1, LQ, LK)}, {"allowed": each}),
        "padding": ({"key_padding_mask": ~padding}, {"allowed": of_keys}),
        "both": ({"attn_mask": ~allowed, "key_padding_mask": ~padding}, {"allowed": allowed & of_keys}),
        "bias": ({"attn_mask": bias}, {"bias": bias}),
        "bias of keys": ({"key_padding_mask": key_bias}, {"bias": key_bias[:, None, None]}),
        "two of them": ({"attn_mask": bias, "key_padding_mask": key_infinite}, {"bias": bias, "allowed": of_keys}),
        "infinite": ({"attn_mask": infinite}, {"allowed": allowed}),
        "causal": ({"attn_mask": ~square, "is_causal": True}, {"causal": True}),
        "causal alone": ({"attn_mask": ~square, "is_causal": True, "need_weights": False}, {"causal": True}),
    }


@pytest.mark.parametrize("name", torch_calls())
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "time first"])
def test_masks_of_torch_are_translated(name, batch_first, torch):
    keywords, wanted = torch_calls()[name]
    layer = torch.nn.MultiheadAttention(12, 4, kdim=7, vdim=9, batch_first=batch_first).eval()
    torch.nn.init.normal_(layer.in_proj_bias)
    given = [torch.tensor(numbers(B, length, width)) for length, width in ((LQ, 12), (LK, 7), (LK, 9))]
    ordered = given if batch_first else [x.transpose(0, 1) for x in given]
    with mha.capture(layer) as seen:
        layer(*ordered, average_attn_weights=False, **each_of(torch.tensor, keywords))
    (call,) = assert_equal(seen.recording).calls
    for name, x in zip(("queries", "keys", "values"), given, strict=True):
        np.testing.assert_array_equal(getattr(call.inputs, name), x)
    for source in ("allowed", "bias"):
        np.testing.assert_array_equal(getattr(call.inputs.mask, source), wanted.get(source))
    assert call.inputs.mask.causal == wanted.get("causal", False)
    assert ("weights" in call.outputs) == keywords.get("need_weights", True)


def test_a_call_without_batch(torch, layer):
    x, mask = torch.randn(LQ, 12), torch.tensor(some(4, LQ, LQ))
    with mha.capture(layer) as seen:
        layer(x, x, x, attn_mask=~mask, key_padding_mask=torch.tensor([False, True, False]))
    (call,) = assert_equal(seen.recording).calls
    assert call.outputs["output"].shape == (1, LQ, 12)


def test_averaged_weights_are_left_out(torch, layer):
    x = torch.randn(B, LQ, 12)
    with mha.capture(layer) as seen:
        layer(x, x, x)
    assert list(seen.calls[0].outputs) == ["output"]


def test_bfloat16_is_recorded_exactly(torch, tmp_path):
    layer = torch.nn.MultiheadAttention(12, 4, batch_first=True, dtype=torch.bfloat16).eval()
    x = torch.randn(B, LQ, 12, dtype=torch.bfloat16)
    with torch.no_grad(), mha.capture(layer, tmp_path / "calls.safetensors"):
        output, _ = layer(x, x, x)
    recording = mha.Recording.load(tmp_path / "calls.safetensors")
    assert recording.dtypes == ("bfloat16",)
    np.testing.assert_array_equal(recording.calls[0].outputs["output"], output.float())
    assert_equal(recording)


def test_fast_paths_of_a_model_do_not_go_around_its_layers(torch):
    encoder = torch.nn.TransformerEncoderLayer(12, 4, 7, batch_first=True)
    model = torch.nn.TransformerEncoder(encoder, 2).eval()
    padding = torch.tensor([[False, False, False], [False, True, True]])
    with torch.no_grad(), mha.capture(model) as seen:
        model(torch.randn(B, LQ, 12), src_key_padding_mask=padding)
    assert assert_equal(seen.recording).names == ("layers.0.self_attn", "layers.1.self_attn")
    np.testing.assert_array_equal(masks(seen.recording)[0].allowed, ~padding.numpy()[:, None, None])
    assert model.use_nested_tensor


def test_models_of_transformers_are_known(torch):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 7}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=11, **sizes)).eval()
    with torch.no_grad(), mha.capture(model) as seen:
        model(torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]]))
    assert assert_equal(seen.recording).names == ("encoder.layer.0.attention", "encoder.layer.1.attention")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"add_bias_kv": True}, "bias_k"), ({"add_zero_attn": True}, "add_zero_attn=True")],
)
def test_what_no_recording_can_hold_is_refused_at_entry(options, message, torch, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.MultiheadAttention(12, 4, **options))
    with pytest.raises(SpecError, match=message) as caught, mha.capture(model, tmp_path / "calls.safetensors"):
        raise AssertionError("it ran")
    assert "torch.nn.MultiheadAttention at 1 can't be recorded" in str(caught.value)


def test_calls_that_no_recording_can_hold_are_refused(torch, tmp_path):
    layer = torch.nn.MultiheadAttention(12, 4, 0.25, batch_first=True)
    x, wrong = torch.randn(B, LQ, 12), torch.tensor(some(LQ, LQ))
    path = tmp_path / "calls.safetensors"
    with pytest.raises(SpecError, match="dropout=0.25 is active"), mha.capture(layer, path):
        layer(x, x, x)
    with pytest.raises(SpecError, match="is_causal=True says"), mha.capture(layer.eval(), path):
        layer(x, x, x, attn_mask=wrong, is_causal=True)
    with (
        pytest.raises(SpecError, match="torch.autocast is on: MultiheadAttention computes some operations in bfloat16"),
        mha.capture(layer.eval(), path),
        torch.autocast("cpu"),
    ):
        layer(x, x, x)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")  # by torch.compile itself
def test_a_compiled_module_is_refused(torch, layer):
    with pytest.raises(SpecError, match="what torch.compile made"):
        mha.capture(torch.compile(layer)).__enter__()


# Keras ----------------------------------------------------------------------------------------------------


@pytest.fixture
def keras(backend_names):
    if "tf" not in backend_names:
        pytest.skip("tf is not under test")
    import keras

    keras.utils.set_random_seed(0)
    return keras


def test_keras_is_called_query_value_key(keras):
    layer = keras.layers.MultiHeadAttention(4, 3, value_dim=6, output_shape=8)
    query, key, value = numbers(B, LQ, 7), numbers(B, LK, 9), numbers(B, LK, 11)
    layer(query, value, key)
    allowed = some(B, LQ, LK)
    with mha.capture(layer) as seen:
        layer(query, value, key, return_attention_scores=True)
        layer(query, value, key, attention_mask=allowed)
        layer(query, value, key, attention_mask=allowed.astype("int32"), use_causal_mask=True)
        layer(query, value, key, attention_mask=some(B, 4, LQ, LK))
    recording = assert_equal(seen.recording)
    assert len(recording.layers) == 1
    first = recording.calls[0]
    np.testing.assert_array_equal(first.inputs.keys, key)
    np.testing.assert_array_equal(first.inputs.values, value)
    assert first.outputs["weights"].shape == (B, 4, LQ, LK)
    np.testing.assert_array_equal(masks(recording)[1].allowed, allowed[:, None])
    assert [mask.causal for mask in masks(recording)] == [False, False, True, False]


def test_grouped_keras_layer_with_a_window(keras):
    layer = keras.layers.GroupQueryAttention(4, 6, 3, sliding_window=2)
    query, value = numbers(B, LQ, 7), numbers(B, LK, 7)
    layer(query, value)
    with mha.capture(layer) as seen:
        layer(query, value, return_attention_scores=True)
        layer(query, value, use_causal_mask=True)
    recording = assert_equal(seen.recording)
    assert [(mask.causal, mask.window) for mask in masks(recording)] == [(False, (1, 1)), (True, (1, 1))]
    assert recording.layers[0].config.num_kv_heads == 3


def test_masks_that_keras_carries_along(keras):
    tokens = keras.Input((LQ,), dtype="int32")
    x = keras.layers.Embedding(11, 12, mask_zero=True)(tokens)
    free = keras.layers.Embedding(11, 12)(tokens)
    model = keras.Model(tokens, keras.layers.MultiHeadAttention(4, 3, name="cross")(free, x))
    with mha.capture(model) as seen:
        model(np.array([[1, 2, 3], [4, 5, 0]]))
    recording = assert_equal(seen.recording)
    assert recording.names == ("cross",)
    assert masks(recording)[0].allowed[:, 0, 0].tolist() == [[True, True, True], [True, True, False]]


def test_an_embedding_mask_of_the_queries_empties_rows(keras):
    """Keras ANDs it in, and its fused path then averages all values: what it does, the definition does not."""
    tokens = keras.Input((LQ,), dtype="int32")
    x = keras.layers.Embedding(11, 12, mask_zero=True)(tokens)
    model = keras.Model(tokens, keras.layers.MultiHeadAttention(4, 3, name="own")(x, x))
    with mha.capture(model) as seen:
        model(np.array([[1, 2, 3], [4, 5, 0]]))
    (mask,) = masks(seen.recording)
    assert not mask.allowed[1, 0, 2].any()
    (result,) = judge_recording(seen.recording)
    assert result.mismatches[0].index[:2] == (1, 2)


def test_what_keras_can_not_show_is_refused(keras):
    tokens = keras.Input((LQ, 12))
    model = keras.Model(tokens, keras.layers.MultiHeadAttention(4, 3, dropout=0.25)(tokens, tokens))
    x = numbers(B, LQ, 12)
    with pytest.raises(SpecError, match="dropout=0.25 is active"), mha.capture(model):
        model(x, training=True)
    with pytest.raises(SpecError, match="numbers which are not there yet"), mha.capture(model):
        model.predict(x, verbose=0)
    with mha.capture(model) as seen:
        model(x)
    assert_equal(seen.recording)
    gated = keras.layers.MultiHeadAttention(4, 3, use_gate=True)
    with pytest.raises(SpecError, match="use_gate=True"):
        mha.capture(gated).__enter__()
    assert "call" not in vars(model.layers[1])


# Flax -----------------------------------------------------------------------------------------------------


@pytest.fixture
def jax(backend_names):
    if "jax" not in backend_names:
        pytest.skip("jax is not under test")
    import jax

    return jax


def test_linen_layers_are_found_by_name(jax):
    import flax.linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, y, mask=None, deterministic=True):
            x = nn.MultiHeadDotProductAttention(4, qkv_features=8, out_features=6, name="cross")(x, y, mask=mask)
            own = nn.MultiHeadDotProductAttention(2, dropout_rate=0.25, name="own")
            return own(x, deterministic=deterministic)

    model, x, y = Model(), numbers(B, LQ, 7), numbers(B, LK, 9)
    variables = model.init(jax.random.key(0), x, y)
    mask = some(B, 1, LQ, LK)
    with mha.capture(model) as seen:
        model.apply(variables, x, y)
        model.apply(variables, x, y, mask.astype(np.float32))
    recording = assert_equal(seen.recording)
    assert recording.names == ("cross#1", "own#1", "cross#2", "own#2")
    np.testing.assert_array_equal(masks(recording)[2].allowed, mask)
    with pytest.raises(SpecError, match="dropout=0.25 is active"), mha.capture(model):
        model.apply(variables, x, y, deterministic=False, rngs={"dropout": jax.random.key(1)})
    with pytest.raises(SpecError, match="that JAX traces"), mha.capture(model):
        jax.jit(model.apply)(variables, x, y)
    with pytest.raises(SpecError, match="nothing to record"), mha.capture(nn.MultiHeadDotProductAttention(4)):
        model.apply(variables, x, y)


def test_what_linen_can_not_say_in_weights_is_refused(jax):
    import flax.linen as nn

    layer, x = nn.MultiHeadDotProductAttention(4, normalize_qk=True), numbers(B, LQ, 8)
    variables = layer.init(jax.random.key(0), x)
    with pytest.raises(SpecError, match="normalize_qk must be False"), mha.capture(layer):
        layer.apply(variables, x)


def test_nnx_layers_are_found_by_name(jax):
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.cross = nnx.MultiHeadAttention(4, 7, 8, 6, in_kv_features=9, decode=False, rngs=rngs)
            self.own = nnx.MultiHeadAttention(2, 6, dropout_rate=0.25, decode=False, rngs=rngs)

        def __call__(self, x, y, deterministic=True, mask=None):
            return self.own(self.cross(x, y, mask=mask), deterministic=deterministic)

    model, x, y, mask = (
        Model(nnx.Rngs(0)),
        *map(jax.numpy.asarray, (numbers(B, LQ, 7), numbers(B, LK, 9))),
        some(4, LQ, LK),
    )
    before = nnx.MultiHeadAttention.__call__
    with mha.capture(model) as seen:
        model(x, y, mask=mask)
    recording = assert_equal(seen.recording)
    assert recording.names == ("cross", "own")
    np.testing.assert_array_equal(masks(recording)[0].allowed, mask)
    with pytest.raises(SpecError, match="dropout=0.25 is active"), mha.capture(model):
        model(x, y, deterministic=False)
    assert nnx.MultiHeadAttention.__call__ is before


# This project's own layers, and d2l.ai's, in all four ------------------------------------------------------

CONFIG = {"bias": True, "query_dim": 7, "key_dim": 9, "value_dim": 11}


def own_layer(name):
    """A function that calls a layer of ours, and the layer."""
    layers = __import__(f"backends.{name}", fromlist=["MultiHeadAttention"])
    if name == "torch":
        import torch

        layer = layers.MultiHeadAttention(12, 4, 0.25, num_kv_heads=2, **CONFIG)
        return layer, lambda *args, train, **more: layer.train(train)(
            *map(torch.tensor, args), **each_of(torch.tensor, more)
        )
    if name == "jax":
        import jax

        layer = layers.MultiHeadAttention(12, 4, 0.25, num_kv_heads=2, **CONFIG)
        shapes = numbers(1, 1, 7), numbers(1, 1, 9), numbers(1, 1, 11)
        variables = layer.init(jax.random.key(0), *shapes)
        rngs = {"dropout": jax.random.key(1)}
        return layer, lambda *args, train, **more: layer.apply(
            variables, *args, **more, deterministic=not train, rngs=rngs
        )
    if name == "tf":
        layer = layers.MultiHeadAttention(12, 4, 0.25, num_kv_heads=2, **CONFIG)
        return layer, lambda *args, train, **more: layer(*args, **more, training=train)
    from backends.mxnet.ops.framework import mx

    layer = layers.MultiHeadAttention(12, 4, 0.25, num_kv_heads=2, **CONFIG)
    layer.initialize()

    @mx.util.use_np
    def call(*args, train, **more):
        scope = mx.autograd.train_mode() if train else mx.autograd.predict_mode()
        with scope:
            return layer(*(mx.np.array(x, dtype=x.dtype) for x in args), **more)

    return layer, call


def test_our_own_layers_are_recorded_as_they_are_called(backend_name):
    layer, call = own_layer(backend_name)
    x = numbers(B, LQ, 7), numbers(B, LK, 9), numbers(B, LK, 11)
    keep, bias = some(B, 4, LQ, LK), numbers(1, 1, LQ, LK)
    with mha.capture(layer) as seen:
        call(*x, np.array([3, 4]), train=False, return_weights=True)
        call(*x, train=False, allowed=some(LQ, LK), bias=bias, causal=True, query_offset=2, window=(3, 1))
        call(*x, train=True, dropout_keep=keep)
    recording = assert_equal(seen.recording)
    assert recording.layers[0].kind == f"backends.{backend_name}.MultiHeadAttention"
    assert recording.layers[0].config.num_kv_heads == 2
    first, second, third = recording.calls
    assert first.inputs.mask.valid_lens.tolist() == [3, 4]
    assert first.outputs["weights"].shape == (B, 4, LQ, LK)
    assert (second.inputs.mask.causal, second.inputs.mask.query_offset, second.inputs.mask.window) == (True, 2, (3, 1))
    np.testing.assert_array_equal(second.inputs.mask.bias, bias)
    np.testing.assert_array_equal(third.inputs.dropout_keep, keep)
    with pytest.raises(SpecError, match="dropout=0.25 is active"), mha.capture(layer):
        call(*x, train=True)


def d2l_layer(name):
    module = __import__(f"backends.{name}.native.d2l", fromlist=["D2lMultiHeadAttention"])
    if name == "torch":
        import torch

        layer = module.D2lMultiHeadAttention(12, 4, 0.25)
        return layer, lambda *args, train: layer.train(train)(*(x if x is None else torch.tensor(x) for x in args))
    if name == "jax":
        import jax

        layer = module.D2lMultiHeadAttention(12, 4, 0.25)
        variables = layer.init(jax.random.key(0), *(numbers(1, 1, 12) for _ in range(3)), None)
        return layer, lambda *args, train: layer.apply(
            variables, *args, training=train, rngs={"dropout": jax.random.key(1)}
        )
    if name == "tf":
        layer = module.D2lMultiHeadAttention(12, 12, 12, 12, 4, 0.25)
        return layer, lambda *args, train: layer(*args, training=train)
    from backends.mxnet.ops.framework import mx

    layer = module.D2lMultiHeadAttention(12, 4, 0.25)
    layer.initialize()

    @mx.util.use_np
    def call(*args, train):
        with mx.autograd.train_mode() if train else mx.autograd.predict_mode():
            return layer(*(x if x is None else mx.np.array(x) for x in args))

    return layer, call


def test_d2l_is_recorded(backend_name):
    layer, call = d2l_layer(backend_name)
    queries, keys = numbers(B, LQ, 12), numbers(B, LK, 12)
    call(queries, keys, keys, None, train=False)  # widths
    with mha.capture(layer) as seen:
        call(queries, keys, keys, np.array([3, 5]), train=False)
        call(queries, keys, keys, None, train=False)
    recording = assert_equal(seen.recording)
    assert masks(recording)[0].valid_lens.tolist() == [3, 5]
    with pytest.raises(SpecError, match="is active"), mha.capture(layer):
        call(queries, keys, keys, None, train=True)
