"""Inferring settings that no array shows: found where they act, and not said where they do not."""

import numpy as np
import pytest

from mha.infer import describe, infer, to_dict
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, ChunkedMask, QueryScale
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
