"""Rotary positions, which no array shows: found where they act."""

import numpy as np
import pytest

from mha.infer import describe, infer
from mha.infer.find import BASES
from mha_core import AttentionConfig, AttentionMask, QueryKeyNorm, Rotary
from tests.mha.infer.recorded_layers import call, drawn, scrambled

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

CAUSAL = AttentionMask(causal=True)

DECODERS = {
    "rotary": {"rotary": Rotary(width=8, base=5e5)},
    "interleaved, of a half": {"rotary": Rotary(width=4, interleaved=True), "bias": True},
    "grouped": {"rotary": Rotary(width=8, base=1e6), "num_kv_heads": 1},
    "neither": {},
}


def recorded_decoder(**settings):
    """A config with heads 8 wide, its weights and a record, all float32."""
    config = AttentionConfig(16, 2, **settings)
    weights = {name: array.astype(np.float32) for name, array in drawn(config, seed=1).items()}
    record = call(config, weights, lengths=(12, 12), mask=CAUSAL, seed=5)
    return config, weights, {**{name: array.astype(np.float32) for name, array in record.items()}, "causal": True}


@pytest.mark.parametrize("name", DECODERS)
def test_rotary_positions_are_found(name):
    config, weights, record = recorded_decoder(**DECODERS[name])
    found = infer(scrambled(weights), record, num_heads=2)
    assert found.verdict == "unique", describe(found)
    got_config, got = found.weights()
    assert got_config == config
    assert ("\n  rotary " in describe(found)) == (name != "neither")
    for key, array in weights.items():  # the key bias too: it acts
        np.testing.assert_array_equal(got[key], array, err_msg=key)


def test_a_base_that_no_channel_shows_comes_out_as_every_base():
    """Two channels turn by the position itself."""
    _, weights, record = recorded_decoder(rotary=Rotary(width=2, base=1e5))
    found = infer(scrambled(weights), record, num_heads=2)
    assert found.verdict == "ambiguous"
    assert {fit.hypothesis.rotary.base for fit in found.fits} == set(BASES)


def test_a_query_key_norm_is_not_looked_for_and_said():
    _, weights, record = recorded_decoder(query_key_norm=QueryKeyNorm())
    found = infer(scrambled(weights), record, num_heads=2)
    assert found.verdict == "none"
    assert "norms of queries or keys, rotary positions with a rule" in describe(found)
