"""Replay and explanation of recordings: who is equal to what was recorded, and why something is not."""

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
from mha.cli.porter.replay import replay as replay_command
from mha.cli.suite.diagnose import diagnose
from mha.recordings.replay import judge_recording, replay
from mha_core import SpecError, Trace, save_weights
from tests.mha.recordings.wrong_ports import CONFIG, MASKS, layer_of, recording_of, together, wrongly_ported


def test_what_was_recorded_is_judged_in_its_dtype():
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        results = list(judge_recording(recording_of(layer_of(dtype))))
        assert [(result.case, result.dtype, result.status, result.recorded) for result in results] == [
            (f"layer#{number}", dtype, "equal", {"output": 0.0}) for number in (1, 2, 3)
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
    recording = together(*(recording_of(layer, masks=MASKS[:1]) for layer in layers))
    chosen = replay(recording, [ReferenceSubject()], same_dtype=True)
    assert [result.case for result in chosen.results] == ["b"]
    assert [result.case for result in chosen.recorded] == ["a", "b"]
    assert [case.id for case in recording.cases("float64")] == ["b"]
    chosen = replay(recording, [ReferenceSubject()], patterns=["a*"])
    assert [result.case for result in chosen.everything] == ["a", "a"]
    with pytest.raises(SpecError, match=r"no call is named 'c' \(there are: a, b\)"):
        replay(recording, [], patterns=["c"])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "calls.safetensors"
    recording_of(layer_of()).save(path)
    return path


def run(command, *arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.mark.same_on_newest_of("torch", "tf")  # their releases are the same there
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
    moved = ", ".join(f"{name}.{kind}" for name in ("q_proj", "k_proj", "v_proj") for kind in ("weight", "bias"))
    assert f"The layer holds other weights than {source}: {moved}." in done.output.replace("\n", " ")
    assert "A weight packed head by head, (head, [q, k, v], width)" in done.output
    assert "packed-per-head-read-as-thirds" in done.output


def test_diagnose_tells_layers_that_differ_alike_together(tmp_path):
    scale, lens = select(("scale-missing",)), select(("lens-ignored",))
    layers = [layer_of(name=name, seed=seed) for seed, name in enumerate("abcd")]
    bugs = zip(layers, (scale, scale, lens, ()), strict=True)
    made = [recording_of(layer, *some, masks=MASKS[1:2]) for layer, some in bugs]
    path = tmp_path / "port.safetensors"
    together(*made).save(path)
    done = run(diagnose, path)
    assert done.exit_code == 1, done.output
    alike, other, right = done.output.split("\n\n")
    assert alike.startswith("a, and likewise b:\nCause, at the scores: Scores are not scaled.\n")
    assert "\nrecorded (float32) differs in 2 of 2 cases: a, b.\n" in alike
    assert "scale-missing" in alike
    assert other.startswith("Cause, at the attention weights: Lengths are ignored.")
    assert "\nrecorded (float32) differs in the one case: c.\n" in other
    assert "lens-ignored" in other
    assert right == "Right: d.\n"
    assert len(done.output.splitlines()) < 25
