"""The rules of frequencies against those of transformers, and the axes of positions against Qwen's."""

import numpy as np
import pytest

from mha_core import Rotary, SpecError
from mha_core.parts.frequencies import RULES, rule_of
from mha_core.parts.rotary import axis_of_pairs, tables

PAIRS = {64: 32, 24: 12}

GIVEN = [
    ("linear", {"factor": 4.0}, None),
    ("dynamic", {"factor": 2.0, "max_position_embeddings": 512}, None),
    ("dynamic", {"factor": 2.0, "max_position_embeddings": 512}, 512),
    ("dynamic", {"factor": 2.0, "max_position_embeddings": 512}, 1300),
    (
        "llama3",
        {
            **{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            "original_max_position_embeddings": 8192,
        },
        None,
    ),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 4096}, None),
    (
        "yarn",
        {
            **{"factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False},
            **{"beta_fast": 30.0, "beta_slow": 1.5},
        },
        None,
    ),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 1.7}, None),
    ("yarn", {"factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.7, "mscale_all_dim": 1.1}, None),
    ("yarn", {"factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.7}, None),
    ("longrope", {"factor": 16.0, "original_max_position_embeddings": 256}, 255),
    ("longrope", {"factor": 16.0, "original_max_position_embeddings": 256}, 256),
    ("longrope", {"factor": 16.0, "original_max_position_embeddings": 256}, 257),
    ("longrope", {"factor": 16.0, "original_max_position_embeddings": 256, "attention_factor": 1.25}, 300),
    ("proportional", {"partial_rotary_factor": 0.25}, None),
    ("proportional", {"partial_rotary_factor": 0.5, "factor": 8.0}, None),
]


def lists(width):
    """The factors of longrope, one a pair."""
    short = np.linspace(1.0, 3.0, width // 2)
    return {"short_factor": short.tolist(), "long_factor": (4.0 * short).tolist()}


@pytest.mark.parametrize("width", [64, 24])
@pytest.mark.parametrize(("name", "fields", "length"), GIVEN, ids=lambda value: value if isinstance(value, str) else "")
def test_a_rule_is_that_of_transformers(name, fields, length, width):
    """It computes in float32: a power, then a few operations; the error of an angle grows with the position."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    fields = {**fields, **(lists(width) if name == "longrope" else {})}
    parameters = {"rope_type": name, "rope_theta": 50000.0, **fields}
    config = transformers.LlamaConfig(
        hidden_size=4 * width,
        num_attention_heads=4,
        head_dim=width,
        max_position_embeddings=parameters.pop("max_position_embeddings", 2048),
        rope_parameters=parameters,
    )
    of_length = {} if length is None else {"seq_len": length}
    theirs, factor = ROPE_INIT_FUNCTIONS[name](config, **of_length)
    settings = Rotary(width, base=50000.0, rule={"rope_type": name, **fields})
    mine, attention = settings.frequencies(length or 100)
    u = 2.0**-24
    # Its exponent log(base) * 2 i / r is rounded too: relative to the frequency, that is up to log(base) of a rounding.
    allowed = (np.log(50000.0) + 8.0) * u
    assert attention == pytest.approx(factor, rel=4.0 * 2.0**-52)
    for position in (1, 1000, 131071):
        error = np.abs(position * mine - position * theirs.double().numpy())
        # yarn blends: what is lost is relative to the larger of both, the frequency without a rule
        size = position * (50000.0 ** (-np.arange(0, width, 2) / width) if name == "yarn" else np.abs(mine))
        assert (error <= allowed * size).all()


def test_every_rule_of_transformers_is_known():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert set(RULES) >= set(ROPE_INIT_FUNCTIONS)
    assert {name for name, _, _ in GIVEN} == set(RULES)


@pytest.mark.parametrize("in_turn", [False, True])
def test_axes_of_positions_are_those_of_qwen(in_turn):
    """Qwen2-VL has each axis' pairs in a row, Qwen3-VL lets axes take turns."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    if in_turn:
        from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig as Config
        from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding as Embedding
    else:
        from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig as Config
        from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding as Embedding
    sections, width = (6, 3, 3), 24
    positions = np.random.default_rng(0).integers(0, 90, size=(3, 2, 5))
    config = Config(
        hidden_size=4 * width,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=width,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "mrope_section": list(sections)},
    )
    cos, sin = Embedding(config)(torch.zeros(1), torch.from_numpy(positions))
    mine = tables(Rotary(width, base=100.0, sections=sections, sections_interleaved=in_turn), positions, 90)
    angle_error = 90 * (np.log(100.0) + 8.0) * 2.0**-24
    for theirs, own in ((cos, mine.cos), (sin, mine.sin)):
        for half in (theirs[..., : width // 2], theirs[..., width // 2 :]):
            np.testing.assert_allclose(own, half.double().numpy(), rtol=0, atol=angle_error)


def test_axes_take_turns_until_a_section_is_full():
    settings = Rotary(width=16, sections=(4, 1, 3), sections_interleaved=True)
    assert axis_of_pairs(settings).tolist() == [0, 1, 2, 0, 0, 2, 0, 0]  # as Qwen3-VL's slices: the rest is axis 0


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"factor": 2.0}, r"^rotary.rule must have a rope_type of default, linear, .* Got \{'factor': 2.0\}\.$"),
        ("linear", r"^rotary.rule must have a rope_type of default, .* Got 'linear'\.$"),
        ({"rope_type": "ntk"}, r"^rotary.rule 'ntk' is not known \(known: default, linear, "),
        ({"rope_type": "linear"}, r"^rotary.rule 'linear' lacks 'factor' \(it needs: factor\)$"),
        (
            {"rope_type": "default", "rope_theta": 5e5},
            r"^rotary.rule does not take 'rope_theta': give it as base=500000.0",
        ),
        (
            {"rope_type": "llama3", "partial_rotary_factor": 0.5},
            r"'partial_rotary_factor': give it as width=0.5 \* head_dim",
        ),
        ({"rope_type": "yarn", "factor": 4.0}, "lacks 'original_max_position_embeddings'"),
        ({"rope_type": "linear", "factr": 2.0}, r"has no field 'factr' \(its fields: factor\)$"),
        ({"rope_type": "linear", "factor": "2"}, r"'linear': factor must be a number. Got '2'\.$"),
        ({"rope_type": "linear", "factor": 0.0}, r"'linear': factor must be positive. Got 0.0\.$"),
        ({"rope_type": "linear", "factor": float("nan")}, "'linear': factor must be positive. Got nan"),
        (
            {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 8.5},
            "'dynamic': max_position_embeddings must be an integer. Got 8.5",
        ),
        (
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8, "truncate": 1},
            "'yarn': truncate must be a bool. Got 1",
        ),
    ],
)
def test_a_rule_that_is_none_is_refused_in_one_line(rule, message):
    with pytest.raises(SpecError, match=message) as error:
        rule_of(rule)
    assert "\n" not in str(error.value)


def test_lists_of_another_length_are_refused_where_the_width_is_known():
    rule = {"rope_type": "longrope", **lists(24), "original_max_position_embeddings": 8}
    assert Rotary(rule=rule).width is None
    with pytest.raises(SpecError, match="short_factor must have a number for each of the 4 pairs. Got 12"):
        Rotary(rule=rule).within(8)


def test_default_is_no_rule():
    assert rule_of({"rope_type": "default"}) is None
