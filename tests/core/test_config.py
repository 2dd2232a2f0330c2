import json
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from mha_core import AttentionConfig, ProjectionBias, SpecError


def test_defaults_follow_embed_dim_and_num_heads():
    config = AttentionConfig(12, 3)
    assert (config.num_kv_heads, config.head_dim, config.value_head_dim) == (3, 4, 4)
    assert (config.query_dim, config.key_dim, config.value_dim, config.output_dim) == (12, 12, 12, 12)
    assert config.bias == ProjectionBias(False, False, False, False)
    assert config.softmax_scale == 0.5
    assert config.score_dim is None


def test_value_head_dim_follows_a_given_head_dim():
    assert AttentionConfig(12, 5, head_dim=7).value_head_dim == 7


def test_scale_of_each_score_function():
    assert AttentionConfig(12, 3, scale=0.25).softmax_scale == 0.25
    assert AttentionConfig(12, 3, score="dot").softmax_scale == 1.0
    assert AttentionConfig(12, 3, score="additive").score_dim == 4


def test_frozen_and_hashable():
    config = AttentionConfig(12, 3)
    with pytest.raises(FrozenInstanceError):
        config.embed_dim = 6
    assert hash(config) == hash(AttentionConfig(12, 3))
    assert replace(config, dropout=0.5).dropout == 0.5


def test_numpy_integers_are_integers():
    assert AttentionConfig(np.int64(12), np.int32(3)) == AttentionConfig(12, 3)


def test_survives_json():
    config = AttentionConfig(12, 6, num_kv_heads=2, bias={"v_proj": True}, score="additive", score_dim=5, dropout=0.1)
    assert AttentionConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"embed_dim": 10, "num_heads": 3},
            "embed_dim must be divisible by num_heads .* Got embed_dim=10, num_heads=3",
        ),
        ({"embed_dim": 12, "num_heads": 6, "num_kv_heads": 4}, "num_heads must be divisible by num_kv_heads"),
        ({"embed_dim": 12, "num_heads": 0}, "num_heads must be a positive integer. Got 0"),
        ({"embed_dim": 12.0, "num_heads": 3}, "embed_dim must be a positive integer. Got 12.0"),
        ({"embed_dim": True, "num_heads": 1}, "embed_dim must be a positive integer. Got True"),
        ({"embed_dim": 12, "num_heads": 3, "key_dim": -1}, "key_dim must be a positive integer. Got -1"),
        ({"embed_dim": 12, "num_heads": 3, "dropout": 1.0}, "dropout must lie in 0 <= dropout < 1. Got 1.0"),
        ({"embed_dim": 12, "num_heads": 3, "dropout": float("nan")}, "dropout must be a finite number"),
        ({"embed_dim": 12, "num_heads": 3, "score": "cosine"}, "'cosine' is not known .*scaled_dot, dot, additive"),
        ({"embed_dim": 12, "num_heads": 3, "score": "dot", "scale": 0.5}, "scale belongs to score='scaled_dot'"),
        ({"embed_dim": 12, "num_heads": 3, "score_dim": 5}, "score_dim belongs to score='additive'"),
        ({"embed_dim": 12, "num_heads": 3, "bias": "yes"}, "bias must be a bool.* Got 'yes'"),
        ({"embed_dim": 12, "num_heads": 3, "bias": {"o_proj": True}}, "no projection 'o_proj' .*out_proj"),
    ],
)
def test_bad_sizes_name_value_and_rule(arguments, message):
    with pytest.raises(SpecError, match=message):
        AttentionConfig(**arguments)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"embed_dim": 12}, "lacks 'num_heads'"),
        ({"embed_dim": 12, "num_heads": 3, "heads": 3}, "no field 'heads'"),
    ],
)
def test_from_dict_names_what_is_wrong(data, message):
    with pytest.raises(SpecError, match=message):
        AttentionConfig.from_dict(data)


def test_unknown_width_is_refused():
    with pytest.raises(SpecError, match="key_dim is not known yet"):
        AttentionConfig(12, 3).with_widths(5, None, 7)
