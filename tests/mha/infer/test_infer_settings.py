"""Inferring settings that no array shows: found where they act, and not said where they do not."""

import numpy as np
import pytest

from mha.infer import describe, infer, to_dict
from mha.infer.settings import BASES
from mha_core import (
    AttentionConfig,
    AttentionInputs,
    AttentionMask,
    ChunkedMask,
    QueryKeyNorm,
    QueryScale,
    Rotary,
)
from mha_core.dtypes import round_to
from mha_core.reference import pipeline as reference
from tests.mha.infer.recorded_layers import BARE, assert_is, call, drawn, norms, scrambled

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

CAUSAL = AttentionMask(causal=True)

FOUND = {
    "query_scale": QueryScale("llama4", beta=0.3, length=3),
    "query_scale of Ministral 3": QueryScale("ministral3", beta=-0.25, length=4),
    "chunked_mask": ChunkedMask(4),
    "clip_qkv": 0.8,
    "value_norm_eps": 1e-5,
    "value_scale": -0.707,
}


@pytest.mark.parametrize("name", FOUND)
def test_a_setting_that_no_array_shows_is_found(name):
    field = name.split(" ")[0]
    config = AttentionConfig(12, 3, **{field: FOUND[name]})
    weights = drawn(config)
    found = infer(scrambled(weights, norms(12)), call(config, weights, lengths=(9, 9), mask=CAUSAL), num_heads=3)
    assert_is(found, config, weights)
    assert found.weights()[0] == config, describe(found)
    assert f"  {field}" in describe(found)
    assert list(to_dict(found)["fits"][0]["settings"]) == [field]


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


SILENT = {
    "query_scale": QueryScale("llama4", beta=0.3, length=10),
    "chunked_mask": ChunkedMask(9),
    "clip_qkv": 20.0,
    "value_scale": 1.0,
}


@pytest.mark.parametrize("field", SILENT)
def test_a_setting_that_does_not_act_is_not_said(field):
    """The record has 9 positions, and projections below 20."""
    config = AttentionConfig(12, 3, **{field: SILENT[field]})
    weights = drawn(config)
    found = infer(scrambled(weights, norms(12)), call(config, weights, lengths=(9, 9), mask=CAUSAL), num_heads=3)
    assert_is(found, BARE, weights)
    assert found.weights()[0] == BARE
    assert to_dict(found)["fits"][0]["settings"] == {}


@pytest.mark.parametrize("field", ["chunked_mask", "value_scale"])
def test_settings_beside_biases_and_grouped_heads(field):
    config = AttentionConfig(24, 6, num_kv_heads=2, bias=True, **{field: FOUND[field]})
    weights = drawn(config)
    record = call(config, weights, lengths=(9, 9), mask=CAUSAL)
    found = infer(scrambled(weights), {**record, "causal": True}, num_heads=6)
    assert_is(found, config, weights)


def test_chunks_begin_behind_the_padding_on_the_left():
    config = AttentionConfig(12, 3, chunked_mask=4)
    weights = drawn(config)
    allowed = np.ones((2, 1, 1, 9), bool)
    allowed[0, ..., :3] = False
    mask = AttentionMask(causal=True, allowed=allowed, chunk_start=np.array([3, 0]))
    record = call(config, weights, lengths=(9, 9), mask=mask)
    found = infer(scrambled(weights), {**record, "allowed": allowed}, num_heads=3)
    assert_is(found, config, weights)
    assert found.weights()[0] == config


def test_numbers_that_the_record_can_not_tell_apart_are_all_named():
    """In bfloat16, an epsilon much below the squares of the values is none: 1e-5 as well as 1e-12."""
    config = AttentionConfig(12, 3, value_norm_eps=1e-6)
    weights = {name: round_to(array, "bfloat16") for name, array in drawn(config).items()}
    x = round_to(np.random.default_rng(1).normal(size=(2, 9, 12)), "bfloat16")
    output = round_to(reference.run(config, weights, AttentionInputs(x, x, x, CAUSAL)).output, "bfloat16")
    record = {"queries": x, "output": output, "dtype": "bfloat16", "causal": True}
    found = infer(scrambled(weights), record, num_heads=3)
    assert found.verdict == "ambiguous"
    assert {fit.hypothesis.settings["value_norm_eps"] for fit in found.fits} >= {1e-5, 1e-6, 1e-12}
    assert "value_norm_eps" not in to_dict(found)["common"]
