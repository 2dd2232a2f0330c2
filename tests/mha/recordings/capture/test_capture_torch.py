"""Capture in PyTorch: what a layer can't be asked in terms of the definition, and what a captured model gives."""

from __future__ import annotations

import pytest

import mha
from tests.mha.recordings.capture.live_calls import assert_equal, refused

pytestmark = pytest.mark.same_on_newest  # PyTorch's release is the same there

B, LENGTH, WIDTH = 2, 5, 12


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
