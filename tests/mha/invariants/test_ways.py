"""A relation is asked in several ways, and none of them accuses a model of what it does not say."""

import threading

import numpy as np
import pytest

import mha


def ids(report, status="broken"):
    return [one.id for one in report.of(status)]


def beside(x, memory, mask=None):
    """Each item has a memory of its own."""
    real = np.ones(x.shape[:2], bool) if mask is None else mask
    return x + np.where(real[..., None], x, 0.0).sum(1, keepdims=True) + memory.mean(1, keepdims=True)


def test_an_item_alone_has_what_stands_beside_it():
    rng = np.random.default_rng(0)
    report = mha.invariants(beside, (rng.standard_normal((3, 7, 5)), rng.standard_normal((3, 4, 5))))
    report.assert_holds()
    assert {"padding-length", "batch-alone", "batch-order"} <= set(ids(report, "holds"))


def both(decoder_x, features, attention_mask=None, decoder_attention_mask=None):
    """As Whisper: `attention_mask` is about the features."""
    real = np.ones(decoder_x.shape[:2], bool) if decoder_attention_mask is None else decoder_attention_mask
    return np.cumsum(np.where(real[..., None], decoder_x, 0.0), 1) + features.mean((1, 2))[:, None, None]


def test_the_mask_of_an_encoder_is_not_that_of_its_decoder():
    rng = np.random.default_rng(0)
    report = mha.invariants(both, (rng.standard_normal((3, 7, 5)), rng.standard_normal((3, 4, 6))))
    report.assert_holds()
    assert "mask: decoder_attention_mask (keys)" in report.found
    assert "mask: attention_mask (keys)" not in report.found
    assert "padding-content-left" in ids(report, "holds")


local = threading.local()
local.scale = 0.5


def test_the_thread_that_asks_is_one_of_two():
    report = mha.invariants(lambda x: x * getattr(local, "scale", 1.0))
    assert ids(report) == ["state-thread"]


def test_a_way_that_raises_does_not_take_the_others_along():
    def strict(x, mask=None, return_weights=False):
        if mask is not None and return_weights:
            raise ValueError("no weights with a mask")
        real = np.ones(x.shape[:2], bool) if mask is None else mask
        out = x + np.where(real[..., None], x, 0.0).sum(1, keepdims=True)
        return (out * 1.1, real) if return_weights else out

    assert ids(mha.invariants(strict)) == ["returned-return_weights"]


def test_two_items_with_padding_hide_each_their_own():
    def two(x, mask=None):
        real = np.ones(x.shape[:2], bool) if mask is None else mask
        real = real | ((~real).any(1).sum() > 2)
        return x + np.where(real[..., None], x, 0.0).sum(1, keepdims=True)

    assert {"padding-content-left", "padding-length"} <= set(ids(mha.invariants(two)))


def test_an_odd_number_of_positions_is_asked():
    def odd(x, mask=None):
        real = np.ones(x.shape[:2], bool) if mask is None else mask
        real = np.roll(real, x.shape[1] == 7, 1)
        return x + np.where(real[..., None], x, 0.0).sum(1, keepdims=True)

    assert ids(mha.invariants(odd)) == ["padding-content"]


def test_only_the_last_item_is_wrong():
    def third(x):
        return x * np.where(np.arange(len(x)) > 1, 1.1, 1.0)[:, None, None]

    assert {"batch-alone", "batch-order"} <= set(ids(mha.invariants(third)))


def test_what_a_mask_hides_is_hidden_in_another_order_too():
    """Each item but the first is hidden by the mask of the item before."""

    def shifted(x, mask=None):
        real = np.ones(x.shape[:2], bool) if mask is None else mask[np.maximum(np.arange(len(x)) - 1, 0)]
        return x + np.where(real[..., None], x, 0.0).sum(1, keepdims=True)

    assert "batch-order" in ids(mha.invariants(shifted))


def test_positions_of_each_item_are_its_own():
    torch = pytest.importorskip("torch")
    from types import SimpleNamespace

    class Rotary(torch.nn.Module):
        def __init__(self, wrong):
            super().__init__()
            self.tokens, self.wrong = torch.nn.Embedding(11, 8), wrong
            self.config = SimpleNamespace(model_type="own", rope_theta=10.0, vocab_size=11)

        def forward(self, input_ids, position_ids=None):
            x = self.tokens(input_ids)
            at = torch.arange(x.shape[1]).expand(len(x), -1) if position_ids is None else position_ids
            at = (at - at[:1, :1]) if self.wrong else at
            angles = at[..., None] * torch.tensor([1.0, 0.3, 0.1, 0.03], dtype=x.dtype)
            turned = torch.polar(torch.ones_like(angles), angles) * torch.complex(*x.chunk(2, -1))
            scores = (turned @ turned.conj().mT).real + 0.0 * at[..., None]
            if self.wrong:
                scores = scores * (1.0 + 0.01 * at[:, :1, None])
            return scores.softmax(-1) @ x

    assert not ids(mha.invariants(Rotary(wrong=False)))
    assert "positions-moved" in ids(mha.invariants(Rotary(wrong=True)))


def test_two_items_of_three_are_asked():
    def even(x):
        return x * (1.1 if len(x) == 2 else 1.0)

    assert ids(mha.invariants(even)) == ["batch-alone"]


@pytest.mark.parametrize("wrong", [False, True])
def test_two_masks_are_asked_at_once(wrong):
    """A key is hidden only where both masks hide it."""

    def attend(x, attn_mask=None, key_padding_mask=None):
        square = (
            np.ones((x.shape[1],) * 2, bool)[None] if attn_mask is None else attn_mask.reshape(-1, *(x.shape[1],) * 2)
        )
        keys = np.ones(x.shape[:2], bool)[:, None] if key_padding_mask is None else ~key_padding_mask[:, None]
        either = wrong and attn_mask is not None and key_padding_mask is not None
        scores = np.where(square | keys if either else square & keys, x @ x.swapaxes(1, 2), -1e30)
        exp = np.exp(scores - scores.max(-1, keepdims=True))
        return exp / exp.sum(-1, keepdims=True) @ x

    assert ids(mha.invariants(attend)) == ["padding-content"] * wrong
