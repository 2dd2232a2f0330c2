"""Replay and explanation of recordings: who is equal to what was recorded, and why something is not."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.bounds.precision import Precision
from conformance.judging.expected import answer
from conformance.subjects.backend import ReferenceSubject
from conformance.subjects.load import load_subject
from conformance.zoo.bug import BuggySubject
from conformance.zoo.registry import select
from mha import Recording
from mha.cli.porter.replay import replay as replay_command
from mha.cli.suite.diagnose import diagnose
from mha.recordings.explain import explain, intended
from mha.recordings.packing_bugs import packing_bugs
from mha.recordings.recording import RecordedCall, RecordedLayer
from mha.recordings.replay import judge_recording, replay
from mha_core import (
    AttentionConfig,
    AttentionInputs,
    AttentionMask,
    SpecError,
    Trace,
    init_weights,
    layouts,
    save_weights,
)
from mha_core.dtypes import round_to
from mha_core.reference import pipeline as reference
from mha_core.weights import check_weights

CONFIG = AttentionConfig(12, 4, bias=True)
MASKS = (AttentionMask(), AttentionMask(valid_lens=np.array([4, 2])), AttentionMask(causal=True))


def layer_of(dtype="float32", name="", seed=0, config=CONFIG):
    weights = {key: round_to(array, dtype) for key, array in init_weights(config, seed, bias_scale=1.0).items()}
    return RecordedLayer(name, "mine.Attention", dtype, config, check_weights(config, weights))


def recording_of(layer, *bugs, masks=MASKS, held=None):
    """Calls of a layer that has bugs, or holds other weights than it should."""
    calls = []
    for seed, mask in enumerate(masks):
        rng = np.random.default_rng(seed)
        widths = layer.config.query_dim, layer.config.key_dim, layer.config.value_dim
        arrays = [rng.normal(size=(2, length, width)) for length, width in zip((3, 5, 5), widths, strict=True)]
        inputs = AttentionInputs(*arrays, mask).rounded(layer.dtype)
        run = BuggySubject(*bugs).prepare(layer.config, layer.weights if held is None else held)
        calls.append(RecordedCall(0, inputs, {"output": round_to(run(inputs).output, layer.dtype)}))
    return Recording((layer,), tuple(calls), {"mine": "1.0"})


def packed(config, weights, layout):
    """The weights as `layout` packs them, in the names of torch.nn.MultiheadAttention."""
    arrays = layouts.get(layout).write(config, weights)
    names = {"ff_in": "in_proj", "ff_out": "out_proj"}
    return {
        name.replace("ff_in.", "in_proj_").replace("ff_out", "out_proj"): array
        for name, array in arrays.items()
        if name.split(".")[0] in names
    }


def wrongly_ported(layer):
    """The weights that torch.nn.MultiheadAttention holds if it is given MXNet's packed ones as they are."""
    arrays = packed(layer.config, layer.weights, "mxnet-selfatt")
    return layouts.get("torch").read(arrays, num_heads=layer.config.num_heads)[1]


# Judging ----------------------------------------------------------------------------------------------


def test_what_was_recorded_is_judged_in_its_dtype():
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        results = list(judge_recording(recording_of(layer_of(dtype))))
        assert [(result.case, result.dtype, result.status) for result in results] == [
            (f"layer#{number}", dtype, "equal") for number in (1, 2, 3)
        ]
    wrong = recording_of(layer_of(), *select(("scale-missing",)))
    assert {result.status for result in judge_recording(wrong)} == {"different"}
    assert [result.case for result in judge_recording(wrong, ["layer#2"])] == ["layer#2"]


def test_a_single_number_that_is_off_is_seen():
    recording = recording_of(layer_of())
    output = recording.calls[1].outputs["output"].copy()
    output[1, 2, 7] *= 1 + 1e-4
    calls = (recording.calls[0], replace(recording.calls[1], outputs={"output": output}), recording.calls[2])
    results = list(judge_recording(replace(recording, calls=calls)))
    assert [result.status for result in results] == ["equal", "different", "equal"]
    assert results[1].mismatches[0].index == (1, 2, 7)


def test_subject_and_recording_are_within_the_sum_of_their_bounds():
    outcome = replay(recording_of(layer_of()), [ReferenceSubject()])
    assert [result.status for result in outcome.everything] == ["equal"] * 6
    for agreement in outcome.agreements:
        assert 0.0 < agreement.distance < 1e-5
        assert 0.0 < agreement.ratio < 1.0
    far = replay(recording_of(layer_of(), *select(("scale-missing",))), [ReferenceSubject()])
    assert [result.status for result in far.results] == ["equal"] * 3
    assert all(agreement.ratio > 1000 for agreement in far.agreements)


def test_the_sum_of_both_bounds_is_what_counts():
    """A subject that is 0.9 of both bounds off what was recorded, in one element."""
    recording = recording_of(layer_of("float32"), masks=MASKS[:1])
    (problem,) = recording.problems
    precision = Precision.of("float32")
    bound = answer(problem, precision).allowed_error["output"]
    off = problem.recorded["output"].astype(np.float64)
    off[1, 2, 3] += 0.9 * 2 * bound[1, 2, 3]

    class Off(BuggySubject):
        def prepare(self, config, weights):
            return lambda inputs: Trace(output=off.astype(np.float32))

    (agreement,) = replay(recording, [Off(dtype="float32")]).agreements
    assert agreement.ratio == pytest.approx(0.9, rel=0.05)
    assert agreement.distance == pytest.approx(1.8 * bound[1, 2, 3], rel=0.05)


def test_numbers_that_a_dtype_does_not_hold_are_not_compared_with_the_recording():
    class Half(BuggySubject):
        def __init__(self):
            super().__init__(dtype="float16")

    outcome = replay(recording_of(layer_of("float32")), [Half()])
    assert {result.status for result in outcome.results} == {"equal"}
    assert {agreement.ratio for agreement in outcome.agreements} == {None}
    outcome = replay(recording_of(layer_of("float16")), [ReferenceSubject()])
    assert all(agreement.ratio < 1.0 for agreement in outcome.agreements)


def test_calls_are_chosen_by_name_and_dtype():
    layers = layer_of("float32", "a"), layer_of("float64", "b")
    calls = [replace(recording_of(layer).calls[0], layer=position) for position, layer in enumerate(layers)]
    recording = Recording(layers, tuple(calls))
    chosen = replay(recording, [ReferenceSubject()], same_dtype=True)
    assert [result.case for result in chosen.results] == ["b"]
    assert [result.case for result in chosen.recorded] == ["a", "b"]
    chosen = replay(recording, [ReferenceSubject()], patterns=["a*"])
    assert [result.case for result in chosen.everything] == ["a", "a"]
    with pytest.raises(SpecError, match=r"no call is named 'c' \(there are: a, b\)"):
        replay(recording, [], patterns=["c"])


# Explaining -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bug", ["scale-missing", "lens-ignored", "split-d-h", "q-k-weights-exchanged"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_recorded_bug_is_named(bug, dtype):
    (found,) = explain(recording_of(layer_of(dtype), *select((bug,))))
    assert bug in [explanation.name for explanation in found.explanations]


def test_a_hypothesis_must_fit_every_call():
    """One call leaves several bugs open; another call, which passes, decides."""
    ignored = select(("lens-ignored",))
    one = recording_of(layer_of(), *ignored, masks=MASKS[1:2])
    (ambiguous,) = explain(one)
    names = {explanation.name for explanation in ambiguous.explanations}
    assert len(names) > 1
    (found,) = explain(recording_of(layer_of(), *ignored, masks=(*MASKS, AttentionMask(np.array([5, 4])))))
    fewer = {explanation.name for explanation in found.explanations}
    assert "lens-ignored" in fewer < names


def test_pairs_are_found():
    (found,) = explain(recording_of(layer_of(), *select(("scale-missing", "out-proj-bias-missing"))))
    assert {"scale-missing", "out-proj-bias-missing"} in [{bug.id for bug in one.bugs} for one in found.explanations]


def test_each_wrong_packing_is_named():
    """Every order that is known is found again from outputs alone, and no other one with it."""
    layer = layer_of()
    for bug in packing_bugs():
        (found,) = explain(recording_of(layer, bug))
        assert [explanation.name for explanation in found.explanations] == [bug.id]


def test_packings_do_what_they_say():
    """MXNet's order read as PyTorch's, by the layouts themselves."""
    layer = layer_of("float64")
    held = wrongly_ported(layer)
    inputs = recording_of(layer).calls[0].inputs
    bug = next(bug for bug in packing_bugs() if bug.id == "packed-per-head-read-as-thirds")
    wanted = reference.run(CONFIG, held, inputs)
    state = bug.run_state(CONFIG, layer.weights, inputs)
    for stage in ("queries", "keys", "values", "output"):
        np.testing.assert_array_equal(state[stage], getattr(wanted, stage))


def test_channels_in_the_other_order_are_named():
    layer = layer_of()
    channels = np.arange(12).reshape(4, 3).T.ravel()  # (d, h): where each of the right ones stands
    held = dict(layer.weights)
    for name in ("q_proj", "k_proj", "v_proj"):
        for kind in ("weight", "bias"):
            held[f"{name}.{kind}"] = held[f"{name}.{kind}"][channels]
    (found,) = explain(recording_of(layer, held=held))
    assert [explanation.name for explanation in found.explanations] == ["channels-d-h-read-as-h-d"]
    held["out_proj.weight"] = held["out_proj.weight"][:, channels]
    (found,) = explain(recording_of(layer, held=held))
    assert [explanation.name for explanation in found.explanations] == [
        "channels-d-h-read-as-h-d + output-channels-d-h-read-as-h-d"
    ]


def test_packings_that_sizes_rule_out_do_not_get_in_the_way():
    layer = layer_of(config=AttentionConfig(12, 4, num_kv_heads=2, key_dim=7, value_dim=9))
    (found,) = explain(recording_of(layer, *select(("scale-missing",))))
    assert "scale-missing" in [explanation.name for explanation in found.explanations]


def test_of_a_large_batch_two_items_decide(monkeypatch):
    """The second call is wrong in its item 4 alone; all sources of its mask go with the items."""
    monkeypatch.setattr("mha.recordings.explain.SMALL", 0)
    layer = layer_of()
    rng = np.random.default_rng(0)
    x, keys = rng.normal(size=(6, 3, 12)), rng.normal(size=(6, 5, 12))
    mask = AttentionMask(
        valid_lens=np.array([3, 4, 5, 5, 2, 5]),
        allowed=rng.random((6, 1, 3, 5)) < 0.9,
        bias=rng.normal(size=(4, 3, 5)),
        causal=True,
        query_offset=np.array([2, 3, 2, 4, 3, 2]),
    )
    calls = []
    for sources in (AttentionMask(), mask):
        inputs = AttentionInputs(x, keys, keys, sources, dropout_keep=None).rounded("float32")
        right = reference.run(CONFIG, layer.weights, inputs).output
        wrong = BuggySubject(*select(("lens-ignored",))).prepare(CONFIG, layer.weights)(inputs).output
        only = np.where(np.arange(6)[:, None, None] == 4, wrong, right)
        calls.append(RecordedCall(0, inputs, {"output": only.astype(np.float32)}))
    (found,) = explain(Recording((layer,), tuple(calls)))
    assert found.failing == ("layer#2",)
    assert found.mismatch.total == 2 * 3 * 12
    assert found.mismatch.index[0] == 0


# A wrong port, judged by what was ported ------------------------------------------------------------------


def test_a_wrong_port_is_right_by_its_own_weights_and_wrong_by_the_intended_ones(tmp_path):
    original = layer_of()
    held = wrongly_ported(original)
    port = recording_of(replace(original, weights=held))
    assert {result.status for result in judge_recording(port)} == {"equal"}
    save_weights(tmp_path / "source.safetensors", CONFIG, original.weights)
    meant, (line,) = intended(port, tmp_path / "source.safetensors")
    assert line.startswith("The layer holds other weights than ")
    assert line.endswith(
        "source.safetensors: q_proj.weight, q_proj.bias, k_proj.weight, k_proj.bias, v_proj.weight, v_proj.bias."
    )
    (found,) = explain(meant)
    assert [explanation.name for explanation in found.explanations] == ["packed-per-head-read-as-thirds"]


def two_layers(names, seeds=(0, 1)):
    layers = tuple(layer_of(name=name, seed=seed) for name, seed in zip(names, seeds, strict=True))
    calls = [replace(recording_of(layer).calls[0], layer=position) for position, layer in enumerate(layers)]
    return Recording(layers, tuple(calls))


def test_layers_of_the_original_are_taken_by_name_or_in_order(tmp_path):
    path = tmp_path / "original.safetensors"
    two_layers(("a", "b")).save(path)
    _, lines = intended(two_layers(("b", "a"), seeds=(1, 0)), path)
    assert lines == [f"b holds the weights of {path}.", f"a holds the weights of {path}."]
    _, lines = intended(two_layers(("layer_0", "layer_1")), path)
    assert lines == [f"layer_0 holds the weights of {path}.", f"layer_1 holds the weights of {path}."]
    with pytest.raises(SpecError, match="must have the layers that were recorded, or as many. It has 'a', 'b'"):
        intended(recording_of(layer_of()), path)
    save_weights(path, CONFIG, layer_of().weights)
    with pytest.raises(SpecError, match="holds one layer, and 2 were recorded: a, b"):
        intended(two_layers(("a", "b")), path)


# The commands ---------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "calls.safetensors"
    recording_of(layer_of()).save(path)
    return path


def run(command, *arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_replay_judges_a_backend_that_never_met_the_recorded_one(file, backend_name):
    done = run(replay_command, file, "--backend", backend_name)
    assert done.exit_code == 0, done.output
    assert "3 calls of mine.Attention, recorded with mine 1.0" in done.output
    assert "All 9 results are equal to the reference." in done.output
    assert "over bounds" in done.output


def test_replay_takes_subjects_and_writes_json(file, tmp_path):
    spec = "examples.subject_numpy:attention"
    assert load_subject(spec, "float32")
    done = run(replay_command, file, "--subject", spec, "--json", tmp_path / "report.json")
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["made_with"] == {"mine": "1.0"}
    assert [result["case"] for result in written["results"]] == ["layer#1", "layer#2", "layer#3"]
    assert all(agreement["ratio"] < 1.0 for agreement in written["agreements"])


def test_replay_says_when_the_recording_is_wrong(tmp_path):
    path = tmp_path / "calls.safetensors"
    recording_of(layer_of(), *select(("scale-missing",))).save(path)
    done = run(replay_command, path, "--subject", "examples.subject_numpy:attention", "--case", "layer#2")
    assert done.exit_code == 1
    assert "recorded float32 on cpu, case layer#2: different since stage 'output'" in done.output
    assert f"explain: mha diagnose {path}" in done.output.replace("\n", "")


def test_commands_refuse_what_they_can_not_use(file, tmp_path):
    for command in (replay_command, diagnose):
        done = run(command, tmp_path / "absent.safetensors")
        assert (done.exit_code, "no such file" in done.output) == (2, True)
        file.write_bytes(file.read_bytes()[:500])
        done = run(command, file)
        assert (done.exit_code, "not a whole safetensors file" in done.output) == (2, True)
    assert run(diagnose).exit_code == 2
    assert run(diagnose, file, "--subject", "mine:f").exit_code == 2
    assert run(diagnose, "--subject", "mine:f", "--weights", file).exit_code == 2
    assert run(diagnose, file, "--dtype", "float32").exit_code == 2


def test_diagnose_explains_a_file(tmp_path):
    original = layer_of()
    port, source = tmp_path / "port.safetensors", tmp_path / "source.safetensors"
    recording_of(replace(original, weights=wrongly_ported(original))).save(port)
    save_weights(source, CONFIG, original.weights)
    done = run(diagnose, port)
    assert done.exit_code == 0
    assert "There is nothing to explain." in done.output
    done = run(diagnose, port, "--weights", source)
    assert done.exit_code == 1
    assert "The layer holds other weights than" in done.output
    assert "packed-per-head-read-as-thirds: A weight packed head by head" in done.output
