"""Settings of parts: bad ones are refused in one line, and configs without them load as before."""

import json

import numpy as np
import pytest

from mha_core import AttentionConfig, QueryKeyNorm, Rotary, SpecError, init_weights, weight_shapes
from mha_core.parts import PARTS

BAD = [
    ({"rotary": {"width": 3}}, r"^rotary.width must be even and positive. Got 3\.$"),
    ({"rotary": {"width": 0}}, "rotary.width must be even and positive. Got 0"),
    ({"rotary": {"width": 12}}, "rotary.width must be even and at most head_dim=10. Got 12"),
    ({"rotary": True, "head_dim": 9}, "rotary.width must be even and at most head_dim=9. Got 9"),
    ({"rotary": {"interleaved": 1}}, "rotary.interleaved must be True or False. Got 1"),
    ({"rotary": {"start": "middle"}}, "rotary.start must be one of first, last. Got 'middle'"),
    ({"rotary": {"base": 1.0}}, "rotary.base must be a number above 1. Got 1.0"),
    ({"rotary": {"base": "1e4"}}, "rotary.base must be a number above 1. Got '1e4'"),
    ({"rotary": {"theta": 1e4}}, r"rotary has no field 'theta' \(known: width, interleaved, start, base, rule, "),
    ({"rotary": {"sections": (2, 2)}}, r"rotary.sections must add up to 5, half of width. Got \(2, 2\)"),
    ({"rotary": {"sections": (2, 0, 3)}}, r"rotary.sections must be numbers of pairs, one an axis. Got \(2, 0, 3\)"),
    ({"rotary": {"sections": {2, 3}}}, r"rotary.sections must be numbers of pairs, one an axis. Got \{2, 3\}"),
    ({"rotary": {"sections": ()}}, r"rotary.sections must be numbers of pairs, one an axis. Got \(\)"),
    ({"rotary": {"max_positions": 0}}, "rotary.max_positions must be a positive integer. Got 0"),
    ({"rotary": 10}, "rotary must be Rotary settings, a mapping of their fields, or None. Got 10"),
    ({"query_key_norm": "l2"}, "query_key_norm.kind must be one of rms, layer. Got 'l2'"),
    ({"query_key_norm": {"eps": 0.0}}, "query_key_norm.eps must be a positive number. Got 0.0"),
    ({"query_key_norm": {"eps": 0}}, "query_key_norm.eps must be a positive number. Got 0"),
    ({"query_key_norm": {"offset": 2}}, "query_key_norm.offset must be 0 or 1. Got 2"),
    ({"query_key_norm": {"offset": True}}, "query_key_norm.offset must be 0 or 1. Got True"),
    ({"query_key_norm": {"order": "between"}}, "query_key_norm.order must be one of before, after. Got 'between'"),
    ({"query_key_norm": {"scope": "all"}}, "query_key_norm.weight must be per_head or none with scope 'all'"),
    ({"query_key_norm": {"weight": "none", "bias": True}}, "query_key_norm.bias and offset belong to weights"),
    ({"query_key_norm": {"epsilon": 1e-6}}, r"query_key_norm has no field 'epsilon' \(known: kind, scope, "),
    ({"query_key_norm": True}, "query_key_norm must be QueryKeyNorm settings, a mapping of their fields, or None"),
]


@pytest.mark.parametrize(("settings", "message"), BAD, ids=lambda value: "")
def test_bad_settings_are_refused_in_one_line(settings, message):
    with pytest.raises(SpecError, match=message) as error:
        AttentionConfig(20, 2, **{"head_dim": 10, **settings})
    assert "\n" not in str(error.value)


def test_configs_without_parts_are_written_and_read_as_before():
    config = AttentionConfig(12, 3)
    assert not set(PARTS) & set(config.to_dict())
    assert AttentionConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert [getattr(config, name) for name in PARTS] == [None] * len(PARTS)
    assert not any("norm" in name for name in weight_shapes(config))


@pytest.mark.parametrize("name", ["clip_qkv", "value_norm_eps", "value_scale", "query_scale", "chunked_mask"])
def test_a_config_of_a_file_with_a_part_that_layers_lack_is_refused_by_its_name(name):
    with pytest.raises(SpecError, match=f"^config has no field '{name}' \\(known: embed_dim, num_heads, "):
        AttentionConfig.from_dict({**AttentionConfig(12, 3).to_dict(), name: 8})


def test_configs_with_parts_come_back_from_json():
    rule = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "truncate": False}
    config = AttentionConfig(
        *(40, 4),
        num_kv_heads=2,
        rotary=Rotary(6, interleaved=True, start="last", base=500.0, rule=rule, sections=(2, 1)),
        query_key_norm=QueryKeyNorm("layer", "all", "after", 1e-3, 1, "per_head", True, "dtype"),
    )
    again = AttentionConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert again.rotary.rule == config.rotary.rule
    assert hash(again) == hash(config)


def test_weights_of_a_norm_begin_where_they_change_nothing():
    for offset, weight in ((0, 1.0), (1, 0.0)):
        config = AttentionConfig(20, 4, num_kv_heads=2, query_key_norm={"offset": offset, "bias": True})
        weights = init_weights(config, seed=0)
        assert weights["q_norm.weight"].shape == weights["k_norm.bias"].shape == (5,)
        np.testing.assert_array_equal(weights["q_norm.weight"], np.full(5, weight))
        np.testing.assert_array_equal(weights["k_norm.bias"], np.zeros(5))
