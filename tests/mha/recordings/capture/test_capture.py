"""Capture: what live layers of each framework are given and give, in the terms of the definition.

A call that was captured is judged as any other: it is equal to the definition only if the weights, the order
of the inputs and every mask were read for what they mean.
"""

import numpy as np
import pytest

import mha
from mha.recordings.capture import register, unregister
from mha.recordings.replay import judge_recording
from mha_core import AttentionConfig, AttentionInputs, SpecError
from tests.mha.recordings.capture.live_calls import LK, LQ, B, assert_equal, masks, refused


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


def test_nothing_to_record_is_an_error_and_an_existing_file_is_refused_before_anything_runs(torch, layer, tmp_path):
    path = tmp_path / "calls.safetensors"
    refused("nothing to record", layer, lambda: None, path)
    assert not list(tmp_path.iterdir())
    path.write_text("mine")
    refused("is already there", layer, path=path)
    assert path.read_text() == "mine"
    refused("needs a layer or a model of PyTorch, Keras, Flax or Gluon. Got dict", {})
    refused(r"the model comes first: mha.capture\(model, 'calls.safetensors'\)", "calls.safetensors", path=layer)
    linear = torch.nn.Linear(2, 3)
    refused("Linear has no attention layer", linear, lambda: linear(torch.ones(2)))  # it could call a function


def test_layers_are_chosen_by_name(torch):
    model = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(12, 4, 7, batch_first=True), 2).eval()
    x, memory = torch.randn(B, LQ, 12), torch.randn(B, LK, 12)
    with mha.capture(model, layers="*.1.*") as seen:
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
        refused("mine.Doubled at 1 can't be recorded: doubled must not be negative", model)
    finally:
        unregister(adapter)
    assert assert_equal(seen.recording).names == ("1",)
    refused("has no attention layer", model, lambda: model(x))


def test_a_layer_that_computes_something_else_than_its_weights_say_is_refused_at_entry(torch, layer, tmp_path):
    x = torch.randn(B, LQ, 12)
    layer.register_forward_hook(lambda module, args, output: (2.0 * output[0], output[1]))
    model, path = torch.nn.ModuleDict({"attend": layer}), tmp_path / "calls.safetensors"
    refused("nn.MultiheadAttention at attend can't be recorded: .* does not compute what its weights", model, path=path)
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
    refused("Late does not compute what its weights say: in a probe of .* valid_lens, output", layer)
