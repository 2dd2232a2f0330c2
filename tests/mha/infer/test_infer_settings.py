"""Inferring settings that no array shows: found where they act, and not said where they do not."""

import numpy as np
import pytest

from mha.infer import describe, infer, to_dict
from mha.infer.settings import BASES
from mha_core import (
    AttentionConfig,
    AttentionMask,
    QueryKeyNorm,
    Rotary,
)
from tests.mha.infer.recorded_layers import call, drawn, scrambled

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

CAUSAL = AttentionMask(causal=True)

DECODERS = {
    "rotary": {"rotary": Rotary(base=5e5)},
    "interleaved, of a half": {"rotary": Rotary(width=4, interleaved=True), "bias": True},
    "norm": {"query_key_norm": QueryKeyNorm(eps=1e-5)},
    "both": {"rotary": Rotary(base=1e6), "query_key_norm": QueryKeyNorm(), "num_kv_heads": 1},
    "neither": {},
    "norm behind": {"rotary": Rotary(), "query_key_norm": QueryKeyNorm(order="after", eps=1e-5)},
}


def recorded_decoder(**settings):
    """A config with heads 8 wide, its weights and a record, all float32."""
    config = AttentionConfig(16, 2, **settings)
    weights = {name: array.astype(np.float32) for name, array in drawn(config, seed=1).items()}
    record = call(config, weights, lengths=(12, 12), mask=CAUSAL, seed=5)
    return config, weights, {**{name: array.astype(np.float32) for name, array in record.items()}, "causal": True}


@pytest.mark.parametrize("name", DECODERS)
def test_rotary_positions_and_query_key_norm_are_found(name):
    config, weights, record = recorded_decoder(**DECODERS[name])
    found = infer(scrambled(weights), record, num_heads=2)
    assert found.verdict == "unique", describe(found)
    got_config, got = found.weights()
    assert got_config == config
    if "q_norm.weight" in weights and name != "both":  # only their product acts
        assert "may be swapped" in describe(found)
        got = dict(got)
        ours, theirs = (one.pop("q_norm.weight") * one.pop("k_norm.weight") for one in (got, weights))
        np.testing.assert_array_equal(ours, theirs)
    for key, array in weights.items():  # the key bias too: it acts
        np.testing.assert_array_equal(got[key], array, err_msg=key)
    assert set(to_dict(found)["fits"][0]["settings"]) == set(DECODERS[name]) - {"bias", "num_kv_heads"}


def test_a_base_that_no_channel_shows_comes_out_as_every_base():
    """Two channels turn by the position itself."""
    _, weights, record = recorded_decoder(rotary=Rotary(width=2, base=1e5))
    found = infer(scrambled(weights), record, num_heads=2)
    assert found.verdict == "ambiguous"
    assert {fit.hypothesis.settings["rotary"].base for fit in found.fits} == set(BASES)


def test_a_norm_whose_weights_are_not_there_is_not_found_and_said():
    _, weights, record = recorded_decoder(query_key_norm=QueryKeyNorm())
    there = {name: array for name, array in weights.items() if "norm" not in name}
    found = infer(scrambled(there), record, num_heads=2)
    assert found.verdict == "none"
    assert "No array is as wide as a head of the closest (8)" in describe(found)
