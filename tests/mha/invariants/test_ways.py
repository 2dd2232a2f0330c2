"""A relation is asked in several ways, and none of them accuses a model of what it does not say."""

from __future__ import annotations

import numpy as np

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
