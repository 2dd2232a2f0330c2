"""Inferring an unknown mapping: every packing is recognised, and what can't be known is said."""

import numpy as np
import pytest

from conformance.cases.topics.trained import cases as trained_cases
from mha.infer import describe, evidence, infer
from mha.infer.find import BASES
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, QueryKeyNorm, Rotary
from mha_core.layouts import LAYOUTS, get
from mha_core.reference import pipeline as reference
from tests.mha.infer.recorded_layers import CONFIG, assert_is, call, drawn, norms, scrambled

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


@pytest.mark.nightly("layouts are inferred or said to be open", every=3)
@pytest.mark.parametrize(
    "layout",
    [
        *("canonical", "d2l-jax", "torch", "gpt2", "mxnet-selfatt", "mxnet-encdec", "torch-separate", "keras"),
        *("gpt-neox", "gpt-bigcode", "nanogpt", "phi3", "modernbert", "keras-heads-first"),
    ],
)
def test_every_layout_is_recognised_without_its_names(layout):
    weights = drawn(CONFIG)
    arrays = scrambled(get(layout).write(CONFIG, weights), norms(12))
    assert_is(infer(arrays, call(CONFIG, weights)), CONFIG, weights)


def test_all_kinds_of_layouts_are_among_those_tested():
    kinds = {type(layout) for layout in LAYOUTS.values()}
    tested = ("canonical", "torch", "mxnet-selfatt", "torch-separate", "keras", "keras-heads-first", "gpt-neox")
    assert {type(get(name)) for name in tested} == kinds


def packed(weights, axes):
    """q, k and v in one array whose rows stand in the order of `axes`, of (part, head, width)."""
    h = CONFIG.num_heads
    stack = np.stack([weights[f"{p}_proj.weight"].reshape(h, -1, 12) for p in "vqk"])
    biases = np.stack([weights[f"{p}_proj.bias"].reshape(h, -1) for p in "vqk"])
    return {
        "qkv": stack.transpose(*axes, 3).reshape(-1, 12),
        "qkv_bias": biases.transpose(axes).reshape(-1),
        "o": weights["out_proj.weight"],
        "o_bias": weights["out_proj.bias"],
    }


@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)])
def test_a_pack_in_any_order_of_its_axes_with_values_first(axes):
    weights = drawn(CONFIG)
    assert_is(infer(scrambled(packed(weights, axes)), call(CONFIG, weights)), CONFIG, weights)


def test_heads_in_the_fast_axis_of_every_matrix():
    weights = drawn(CONFIG)
    order = np.arange(12).reshape(3, 4).T.reshape(-1)
    arrays = {name: array[order] if not name.startswith("out") else array for name, array in weights.items()}
    arrays["out_proj.weight"] = weights["out_proj.weight"][:, order]
    found = infer(scrambled(arrays), call(CONFIG, weights))
    assert_is(found, CONFIG, weights)
    assert "(width, head)" in describe(found)


def test_the_output_projection_alone_in_another_order_of_heads():
    weights = dict(drawn(CONFIG))
    order = np.arange(12).reshape(3, 4).T.reshape(-1)
    stored = {**weights, "out_proj.weight": weights["out_proj.weight"][:, order]}
    found = infer(scrambled(stored), call(CONFIG, weights), num_heads=3)
    assert_is(found, CONFIG, weights)
    assert "columns (width, head)" in describe(found)
    assert "rows (head, width)" in describe(found)


def test_grouped_heads():
    config = AttentionConfig(24, 6, num_kv_heads=2, bias={"q_proj": True})
    weights = drawn(config)
    assert_is(infer(scrambled(weights), call(config, weights)), config, weights)


def test_grouped_heads_in_one_array():
    config = AttentionConfig(24, 6, num_kv_heads=2)
    weights = drawn(config)
    q, k, v = (weights[f"{p}_proj.weight"].reshape(2, -1, 4, 24) for p in "qkv")
    for pack in (
        np.concatenate([q, k, v], axis=1).reshape(-1, 24),
        np.concatenate([part.reshape(-1, 24) for part in (q, k, v)]),
    ):
        found = infer(scrambled({"qkv": pack, "o": weights["out_proj.weight"].T}), call(config, weights))
        assert_is(found, config, weights)


def test_cross_attention_of_other_widths():
    config = AttentionConfig(
        12, 3, head_dim=5, value_head_dim=2, query_dim=9, key_dim=7, value_dim=8, output_dim=11, bias=True
    )
    weights = drawn(config)
    found = infer(scrambled(weights, norms(15) + norms(6)), call(config, weights, lengths=(4, 13)))
    assert_is(found, config, weights)


@pytest.mark.parametrize("scale", [1.0, 12**-0.5, 0.25])
def test_another_scale(scale):
    config = AttentionConfig(12, 3, scale=scale)
    weights = drawn(config)
    assert_is(infer(scrambled(weights), call(config, weights)), config, weights)


def test_a_causal_layer_is_recognised_and_a_stated_mask_is_used():
    weights = drawn(CONFIG)
    record = call(CONFIG, weights, mask=AttentionMask(causal=True))
    found = infer(scrambled(weights), record)
    assert_is(found, CONFIG, weights)
    assert found.hypothesis.mask == "causal"
    told = infer(scrambled(weights), {**record, "causal": np.array(False)}, num_heads=3)
    assert told.verdict == "none"
    assert "If `causal` in the record may be wrong, leave it out" in describe(told)
    lens = np.array([5, 3])
    record = call(CONFIG, weights, mask=AttentionMask(valid_lens=lens))
    assert_is(infer(scrambled(weights), {**record, "valid_lens": lens}), CONFIG, weights)


def test_a_mask_for_each_head_and_a_row_without_a_key():
    weights = drawn(CONFIG)
    rng = np.random.default_rng(4)
    bias, allowed = rng.normal(size=(3, 5, 5)), rng.random((2, 1, 5, 5)) > 0.3
    allowed[0, 0, 2] = False
    record = call(CONFIG, weights, mask=AttentionMask(allowed=allowed, bias=bias))
    found = infer(scrambled(weights), {**record, "allowed": allowed, "bias": bias})
    assert_is(found, CONFIG, weights)
    assert found.hypothesis.mask == "allowed and bias"


def test_a_record_that_is_judged_in_pieces(monkeypatch):
    monkeypatch.setattr(evidence, "AT_ONCE", 200)
    weights = drawn(CONFIG)
    record = call(CONFIG, weights, mask=AttentionMask(valid_lens=np.array([4, 5])))
    record["valid_lens"] = np.array([4, 5])
    assert_is(infer(scrambled(weights), record, num_heads=3), CONFIG, weights)
    record["output"] = np.array(record["output"])
    record["output"][1, 1] += 1e-6
    assert infer(scrambled(weights), record, num_heads=3, time_limit=2.0).verdict == "none"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_weights_keep_their_dtype(dtype):
    weights = {name: array.astype(dtype) for name, array in drawn(CONFIG).items()}
    record = {name: array.astype("float32") for name, array in call(CONFIG, weights).items()}
    rounded = record["queries"].astype("float64")
    record["output"] = reference.run(CONFIG, weights, AttentionInputs(rounded, rounded, rounded)).output.astype("f4")
    found = infer(scrambled(weights), record)
    assert_is(found, CONFIG, weights)
    assert {str(array.dtype) for array in found.weights()[1].values()} == {dtype}


def test_a_trained_layer_among_its_neighbours():
    first, last = (case.build() for case in trained_cases())
    arrays = {**scrambled(first.weights), **{f"other {name}": array for name, array in last.weights.items()}}
    record = {
        "queries": first.inputs.queries,
        "output": first.recorded["output"],
        "valid_lens": first.inputs.mask.valid_lens,
        "causal": np.array(False),
    }
    assert_is(infer(arrays, record), first.config, first.weights)


# Rotary positions, which no array shows: found where they act --------------------------------------

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
