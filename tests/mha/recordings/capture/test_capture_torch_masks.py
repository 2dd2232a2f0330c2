"""Capture of torch.nn.MultiheadAttention: masks, dtypes, fast paths, and the calls that are refused."""

from __future__ import annotations

import numpy as np
import pytest

import mha
from tests.mha.recordings.capture.live_calls import LK, LQ, B, assert_equal, each_of, masks, numbers, refused, some

pytestmark = pytest.mark.same_on_newest  # PyTorch's release is the same there


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
    assert {name: array.shape for name, array in call.outputs.items()} == {"output": (1, LQ, 12)}  # no averaged weights


def test_bfloat16_is_recorded_exactly(torch, tmp_path):
    layer = torch.nn.MultiheadAttention(12, 4, batch_first=True, dtype=torch.bfloat16).eval()
    x = torch.randn(B, LQ, 12, dtype=torch.bfloat16)
    with torch.no_grad(), mha.capture(layer, tmp_path / "calls.safetensors"):
        output, _ = layer(x, x, x)
    recording = mha.Recording.load(tmp_path / "calls.safetensors")
    assert recording.dtypes == ("bfloat16",)
    np.testing.assert_array_equal(recording.calls[0].outputs["output"], output.float())
    assert_equal(recording)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
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
    said = refused(message, model, path=tmp_path / "calls.safetensors")
    assert "torch.nn.MultiheadAttention at 1 can't be recorded" in said


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")  # by torch.compile itself
def test_calls_that_no_recording_can_hold_are_refused(torch, layer, tmp_path):
    dropping = torch.nn.MultiheadAttention(12, 4, 0.25, batch_first=True)
    x, wrong = torch.randn(B, LQ, 12), torch.tensor(some(LQ, LQ))
    path = tmp_path / "calls.safetensors"
    refused("dropout=0.25 is active", dropping, lambda: dropping(x, x, x), path)
    refused("is_causal=True says", layer, lambda: layer(x, x, x, attn_mask=wrong, is_causal=True), path)
    refused("what torch.compile made", torch.compile(layer), path=path)

    def in_bfloat16():
        with torch.autocast("cpu"):
            layer(x, x, x)

    refused("torch.autocast is on: MultiheadAttention computes some operations in bfloat16", layer, in_bfloat16, path)
    assert not list(tmp_path.iterdir())
