"""Cut heads are masked heads: in every backend by the bound, in a live model, and in the file that is written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mha.heads.importance import MEASURES
from mha.heads.proof import pairs_of, prove
from mha.heads.prune import cut, cut_inputs, kept_groups, removed_first, write_layers
from mha.heads.subject import Layer, of_recording
from mha.recordings.parts import RecordedCall, RecordedLayer
from mha.recordings.recording import Recording
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError, init_weights, reference
from mha_core.backend import load

CONFIG = AttentionConfig(20, 4, head_dim=3, value_head_dim=5, output_dim=7, bias=True)
GROUPED = AttentionConfig(12, 6, num_kv_heads=3, head_dim=2, bias={"v_proj": True})


def inputs_of(config, seed=0):
    """Inputs with a mask and a bias of each head, and padding."""
    rng = np.random.default_rng(seed)
    x, keys = rng.standard_normal((2, 3, config.query_dim)), rng.standard_normal((2, 5, config.key_dim))
    allowed = rng.random((2, config.num_heads, 3, 5)) < 0.8
    bias = rng.standard_normal((config.num_heads, 3, 5))
    return AttentionInputs(x, keys, keys, AttentionMask(np.array([5, 3]), allowed, bias))


def recording_of(*configs, dtype="float64", weights=None):
    layers, calls = [], []
    for index, config in enumerate(configs):
        own = init_weights(config, seed=index, bias_scale=0.5) if weights is None else weights[index]
        inputs = inputs_of(config).rounded(dtype)
        own = {name: array.astype(dtype) for name, array in own.items()}
        output = reference.run(config, own, inputs).output.astype(dtype)
        layers.append(RecordedLayer(f"layer.{index}", "mine.Attention", dtype, config, own))
        calls.append(RecordedCall(index, inputs, {"output": output}))
    return Recording(tuple(layers), tuple(calls))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_cut_is_masked_in_every_backend(backend_name, dtype):
    subject = of_recording("small", recording_of(CONFIG, GROUPED, dtype=dtype))
    pairs = pairs_of(subject, [[1, 2], [0, 1, 4, 5]])
    (proof,) = prove(pairs, [load(backend_name)])
    assert proof["failed"] == ""
    assert proof["equal"]
    assert 0.0 < proof["worst"] <= 1.0


def test_a_recording_whose_outputs_are_not_those_of_its_weights_is_refused():
    right = recording_of(CONFIG, GROUPED)
    call = right.calls[1]
    wrong = replace(right, calls=(right.calls[0], replace(call, outputs={"output": 1.01 * call.outputs["output"]})))
    with pytest.raises(SpecError, match="small holds outputs that are not those of its weights, .* 'layer.1': output"):
        of_recording("small", wrong)


def test_proof_sees_a_wrong_cut(monkeypatch):
    """Columns of another head in the output projection: equal shapes, other numbers."""
    from mha.heads import proof

    def wrong(config, weights, kept):
        smaller, found = cut(config, weights, kept)
        return smaller, {**found, "out_proj.weight": cut(config, weights, [0, 3])[1]["out_proj.weight"]}

    monkeypatch.setattr(proof, "cut", wrong)
    (found,) = prove(pairs_of(of_recording("small", recording_of(CONFIG)), [[1, 2]]), [load("torch")])
    assert not found["equal"]


@pytest.mark.parametrize("kept", [[0, 1], [4, 5], [0, 2, 4], [1, 3, 5], [0, 1, 2, 3]])
def test_groups_are_cut_whole_or_evenly(kept):
    inputs = inputs_of(GROUPED)
    weights = init_weights(GROUPED, seed=1, bias_scale=0.5)
    from mha.heads.prune import masked_inputs

    masked = reference.run(GROUPED, weights, masked_inputs(GROUPED, inputs, kept)).output
    smaller, own = cut(GROUPED, weights, kept)
    assert np.allclose(reference.run(smaller, own, cut_inputs(GROUPED, inputs, kept)).output, masked, atol=1e-13)


def test_uneven_groups_are_refused():
    with pytest.raises(SpecError, match="Group 0 would keep heads 0, 1 and group 1 head 2"):
        kept_groups(GROUPED, [0, 1, 2])
    with pytest.raises(SpecError, match="at least one head"):
        kept_groups(GROUPED, [])
    with pytest.raises(SpecError, match="there is no head 6"):
        kept_groups(GROUPED, [6])


def test_past_keys_are_those_of_the_groups_that_are_left():
    rng = np.random.default_rng(0)
    past = {name: rng.standard_normal((2, 3, 4, 2)) for name in ("past_keys", "past_values")}
    x = rng.standard_normal((2, 1, 12))
    inputs = AttentionInputs(x, x, x, AttentionMask(causal=True, query_offset=4), **past)
    assert np.array_equal(cut_inputs(GROUPED, inputs, [4, 5]).past_keys, past["past_keys"][:, [2]])


def test_every_layer_keeps_one():
    subject = of_recording("two", recording_of(CONFIG, CONFIG))
    order = [(0, head) for head in range(4)] + [(1, head) for head in range(4)]
    removed = removed_first(subject, order, 6)
    assert removed.tolist() == [[True, True, True, False], [True, True, True, False]]
    with pytest.raises(SpecError, match="at most 6 of 8 heads of two can be cut: every layer keeps one. Got 7"):
        removed_first(subject, order, 7)


def test_groups_go_whole():
    subject = of_recording("grouped", recording_of(GROUPED))
    order = [(0, head) for head in (5, 0, 2, 3, 4, 1)]
    assert removed_first(subject, order, 2).tolist() == [[False, False, True, True, False, False]]
    with pytest.raises(SpecError, match="whole groups of 2 alone. Got 3"):
        removed_first(subject, order, 3)


@pytest.mark.parametrize("name", MEASURES)
def test_a_head_that_adds_nothing_has_importance_0(name):
    """Not so of measures that look at the attention weights alone, or at nothing."""
    weights = {**init_weights(CONFIG, seed=0, bias_scale=0.5)}
    out = weights["out_proj.weight"].copy()
    out[:, 5:10] = 0.0
    weights["out_proj.weight"] = out
    scores = MEASURES[name].function(of_recording("dead", recording_of(CONFIG, weights=[weights])))
    assert scores.shape == (1, 4)
    assert scores[0, 1] == 0.0
    assert (scores[0, [0, 2, 3]] > 0.0).all()


def test_measures_of_a_recording_agree_with_their_definitions():
    """Leaving a head out is the reference with `allowed[:, head] = False`; the gradient is its limit."""
    from mha.heads.prune import masked_inputs

    subject = of_recording("one", recording_of(CONFIG))
    problem = subject.calls[0][0].problem
    whole = reference.run(CONFIG, problem.weights, problem.inputs).output
    loo = MEASURES["leave-one-out"].function(subject)[0]
    for head in range(4):
        rest = [other for other in range(4) if other != head]
        masked = reference.run(CONFIG, problem.weights, masked_inputs(CONFIG, problem.inputs, rest)).output
        cosine = (whole * masked).sum(-1) / np.linalg.norm(whole, axis=-1) / np.linalg.norm(masked, axis=-1)
        rows = subject.calls[0][0].rows
        assert loo[head] == pytest.approx((1 - cosine)[rows].mean(), abs=1e-12)
    small = {**problem.weights}
    out = small["out_proj.weight"].copy()
    out[:, :5] *= 1e-3  # head 0
    small["out_proj.weight"] = out
    nearly = of_recording("small", recording_of(CONFIG, weights=[small]))
    assert MEASURES["gradient"].function(nearly)[0, 0] == pytest.approx(
        MEASURES["leave-one-out"].function(nearly)[0, 0], rel=0.01
    )


def test_what_is_written_is_what_mha_convert_reads(tmp_path):
    from mha.convert.convert import convert

    weights = init_weights(CONFIG, seed=0, bias_scale=0.5)
    layers = [
        Layer(f"encoder.{index}", *cut(CONFIG, weights, kept), "float64") for index, kept in enumerate(([1, 2], [3]))
    ]
    write_layers(tmp_path / "cut.safetensors", layers)
    found = convert(tmp_path / "cut.safetensors", to_layout="canonical", out=tmp_path / "again.safetensors", every=True)
    assert [layer.config.num_heads for layer in found.layers] == [2, 1]
    assert [layer.config.output_dim for layer in found.layers] == [7, 7]


def test_nothing_half_written(tmp_path, monkeypatch):
    from mha.heads import prune

    def broken(*arguments):
        raise SpecError("it reads otherwise")

    monkeypatch.setattr(prune, "check_same", broken)
    layer = Layer("layer", CONFIG, init_weights(CONFIG, seed=0), "float64")
    with pytest.raises(SpecError, match="otherwise"):
        write_layers(tmp_path / "cut.safetensors", [layer])
    assert list(tmp_path.iterdir()) == []
