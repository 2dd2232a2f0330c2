"""Capture in PyTorch: masks, dtypes and fast paths, what a captured model gives, and the calls that are refused."""

import numpy as np
import pytest

import mha
from tests.mha.recordings.capture.live_calls import LK, LQ, B, assert_equal, each_of, numbers, refused, some

pytestmark = pytest.mark.same_on_newest  # PyTorch's release is the same there

LENGTH, WIDTH = 5, 12


def encoder_of(torch, *dropout):
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 7, *dropout, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2)


def test_is_causal_without_a_mask_is_refused(torch, layer):
    x, encoder = torch.randn(B, LENGTH, WIDTH), encoder_of(torch).eval()
    with torch.no_grad():
        refused("is_causal=True needs an attn_mask beside it", layer, lambda: layer(x, x, x, is_causal=True))
        refused(r"layers.0.self_attn can't be recorded: is_causal=True", encoder, lambda: encoder(x, is_causal=True))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_and_tensors_without_numbers_are_refused(torch, layer):
    nested = torch.nested.nested_tensor([torch.randn(3, WIDTH), torch.randn(5, WIDTH)])
    with torch.no_grad():
        refused("a nested tensor, whose rows have", layer, lambda: layer(*[nested] * 3, need_weights=False))
        x = torch.randn(B, LENGTH, WIDTH)
        refused("can't be recorded: RuntimeError: ", layer, lambda: torch.func.vmap(lambda y: layer(y, y, y)[0])(x))


def test_a_subclass_that_is_called_otherwise_is_refused(torch):
    class Own(torch.nn.MultiheadAttention):
        def forward(self, x):
            return super().forward(x, x, x)[0]

    class Bare(torch.nn.MultiheadAttention):
        def forward(self, query, key, value, **more):
            return super().forward(query, key, value, **more)[0]

    x = torch.randn(B, LENGTH, WIDTH)
    own, bare = (kind(WIDTH, 4, batch_first=True).eval() for kind in (Own, Bare))
    refused("Own", own, lambda: own(x))
    refused("Bare", bare, lambda: bare(x, x, x))


def test_a_subclass_that_hands_its_arguments_down_is_recorded(torch):
    class Passing(torch.nn.MultiheadAttention):
        def forward(self, query, key, value, **more):
            return super().forward(query, key, value, **more)

    layer, x = Passing(WIDTH, 4, batch_first=True).eval(), torch.randn(B, LENGTH, WIDTH)
    mask = torch.arange(LENGTH) > torch.arange(LENGTH)[:, None]
    with mha.capture(layer) as seen:
        layer(x, x, x)
        layer(x, x, x, attn_mask=mask, is_causal=True)
    assert_equal(seen.recording)
    assert [call.inputs.mask.causal for call in seen.calls] == [False, True]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("grad", [False, True])
def test_a_padded_encoder_gives_what_it_gives_without_capture(grad, torch):
    encoder = encoder_of(torch).eval()
    model, x = torch.nn.Sequential(encoder), torch.randn(B, LENGTH, WIDTH)
    padding = torch.tensor([[False] * LENGTH, [False] * 3 + [True] * 2])

    def call():
        with torch.set_grad_enabled(grad):
            return encoder(x, src_key_padding_mask=padding)

    before = call()
    with mha.capture(model) as seen:
        first, second = call(), call()
    assert torch.equal(first, before)
    assert torch.equal(second, before)
    assert first[1, 3:].any() == grad  # the fast path leaves zeros there
    names = [f"0.layers.{layer}.self_attn#{n}" for n in (1, 2) for layer in (0, 1)]
    assert list(assert_equal(seen.recording).names) == names
    assert all((call.inputs.mask.allowed == ~padding.numpy()[:, None, None]).all() for call in seen.calls)
    assert encoder.use_nested_tensor
    assert not encoder._forward_hooks
    assert not encoder.layers[0].self_attn._forward_hooks


def test_an_encoder_in_training_is_called_once(torch):
    encoder = encoder_of(torch, 0.0)
    padding = torch.tensor([[False] * LENGTH, [False] * 3 + [True] * 2])
    calls = []
    encoder.layers[0].linear1.register_forward_hook(lambda *_: calls.append(1))
    with mha.capture(encoder):
        encoder(torch.randn(B, LENGTH, WIDTH), src_key_padding_mask=padding)
    assert len(calls) == 1


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


def test_models_of_transformers_are_known(torch):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 7}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=11, **sizes)).eval()
    with torch.no_grad(), mha.capture(model) as seen:
        model(torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]]))
    assert assert_equal(seen.recording).names == ("encoder.layer.0.attention", "encoder.layer.1.attention")


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
