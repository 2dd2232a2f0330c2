"""mha audit: what a comparison lets pass on recorded calls, and what it refuses."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.bounds.precision import Precision
from conformance.cases.table import select as select_cases
from conformance.judging.expected import expected
from conformance.zoo.registry import select
from mha.cli.porter.audit import audit as command
from mha.tolerances.audit import audit, chosen, cosine_of, divergence
from mha.undetectable_bugs import find
from mha_core import AttentionMask
from mha_core.dtypes import round_to
from tests.mha.undetectable_bugs.test_undetectable_bugs import recording_of

LENS = AttentionMask(valid_lens=np.array([3, 7, 5]))


@pytest.mark.nightly("what a tolerance lets pass is right", every=4)
@pytest.mark.parametrize("asked", [{"atol": 0.3}, {"atol": 0.1, "rtol": 0.1}, {"cosine": 0.99}, {"kl": 1e-2}])
def test_what_passes_passes_in_every_call(asked):
    """Said of each bug what running it whole says, and each is in one list."""
    recording, comparison = recording_of(LENS, AttentionMask(causal=True)), chosen(**asked)
    found = audit(recording, comparison)
    assert sorted((*found.passed, *found.caught)) == sorted(found.unseen.seen)
    assert found.passed
    assert found.caught
    assert not found.late
    for name in (*found.passed, *found.caught[::5]):
        (bug,) = select((name,))
        passes = []
        for problem, call in zip(recording.problems, recording.calls, strict=True):
            try:
                output = bug.run_state(problem.config, problem.weights, problem.inputs)["output"]
            except ValueError:  # it can't be made here
                continue
            one, right = (round_to(x, "float32").astype(float) for x in (output, call.outputs["output"]))
            passes.append(one.shape == right.shape and comparison.passes(one, right))
        assert all(passes) == (name in found.passed), name


@pytest.mark.nightly("what a tolerance lets pass is right")
def test_a_larger_tolerance_lets_more_pass():
    recording = recording_of(LENS)
    small, large = (audit(recording, chosen(atol=atol)) for atol in (1e-3, 1.0))
    assert {*small.passed} < {*large.passed}
    assert "scale-missing" in {*large.passed} - {*small.passed}
    assert audit(recording, chosen(atol=0.0)).passed == ()
    assert audit(recording, chosen(atol=1e9)).caught == ("mask-times-infinity",)


def test_smaller_cases_would_show_what_passes():
    """Each bug that passed stands in one case at most, where the comparison fails; the others fail in none."""
    comparison = chosen(atol=0.1)
    found = audit(recording_of(LENS), comparison)
    shown = [bug for bugs in found.shown_in.values() for bug in bugs]
    assert len(shown) == len({*shown})
    assert {*shown} < {*found.passed}
    for case_id, bugs in found.shown_in.items():
        (case,) = select_cases((case_id,))
        problem = case.build().rounded("float32")
        right = expected(case, Precision.of("float32")).trace.output
        for bug in select(bugs):
            one = bug.run_state(problem.config, problem.weights, problem.inputs)["output"]
            assert one.shape != right.shape or not comparison.passes(one, right)
    assert f"in case {next(iter(found.shown_in))} (`mha check --list`) it would show" in found.text()
    assert "in no case tried: " in found.text()


def test_a_tolerance_below_the_bound_is_said():
    recording = recording_of(LENS, dtype="float16")
    strict, enough = (audit(recording, chosen(atol=atol)) for atol in (1e-6, 1.0))
    assert strict.strict > 1e-4
    assert "It may fail right layers: rounding may move an element by up to 0.0" in strict.text()
    assert enough.strict == 0.0
    assert "right layers" not in enough.text()


@pytest.mark.nightly("what a tolerance lets pass is right", every=2)
@pytest.mark.parametrize("asked", [{"atol": 0.1}, {"cosine": 0.999}])
def test_a_cut_call_says_the_same(monkeypatch, asked):
    """What shows in a part fails the whole element by element, but not in a cosine of the whole.

    The order may be another: a change in a part is held against the largest number of that part.
    """
    whole = audit(recording_of(LENS), chosen(**asked))
    assert whole.passed
    for name, value in {"LARGE": 0, "ROWS": 2, "ITEMS": 1}.items():
        monkeypatch.setattr(find, name, value)
    cut = audit(recording_of(LENS), chosen(**asked))
    assert sorted(cut.passed) == sorted(whole.passed)
    assert {*whole.caught} <= {*cut.caught}  # a part may have as many items as queries where the whole has not
    assert (cut.untried, cut.late) == ((), False)


def test_recorded_weights_do_not_help_the_bound():
    """The comparison sees the output alone, and so does the bound that it is held against."""
    recording = recording_of(LENS, dtype="float16", weight_scale=0.02)
    (call,), (problem,) = recording.calls, recording.problems
    weights = round_to(find.answer(problem, find.Precision.of("float16")).trace.weights, "float16")
    more = replace(recording, calls=(replace(call, outputs={**call.outputs, "weights": weights}),))
    assert audit(more, chosen(atol=1e-3)) == audit(recording, chosen(atol=1e-3))


def test_no_time_is_said():
    found = audit(recording_of(LENS), chosen(atol=0.1), seconds=0.0)
    assert found.late
    assert "--time-limit gives it more" in found.text()


def test_the_comparisons():
    zeros, x, nan = np.zeros((2, 3)), np.arange(6.0).reshape(2, 3), np.full((2, 3), np.nan)
    assert cosine_of(zeros, zeros) == 1.0
    assert cosine_of(zeros, x) == 0.0
    assert cosine_of(2 * x, x) == pytest.approx(1.0)
    assert divergence(x + 5.0, x) == pytest.approx(0.0)
    p, q = (np.exp(one) / np.exp(one).sum() for one in (x[0], x[0] * 2))
    assert divergence(x[:1] * 2, x[:1]) == pytest.approx(float((p * np.log(p / q)).sum()))
    assert divergence(zeros[:, :0], zeros[:, :0]) == 0.0
    for asked in ({"atol": 9.0}, {"cosine": -1.0}, {"kl": 9.0}):
        assert not chosen(**asked).passes(nan, x)
        assert chosen(**asked).passes(x, x)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give exactly one comparison"),
        (["--atol", "1", "--cosine", "1"], "give exactly one comparison"),
        (["--rtol", "1", "--kl", "1"], "--rtol belongs to --atol"),
        (["--rtol", "1"], "give exactly one comparison"),
        (["--atol", "-1"], "--atol must be a number from 0. Got -1."),
        (["--atol", "nan"], "--atol must be a number from 0. Got nan."),
        (["--atol", "inf"], "--atol must be a number from 0. Got inf."),
        (["--atol", "1", "--rtol", "nan"], "--rtol must be a number from 0. Got nan."),
        (["--kl", "-0.1"], "--kl must be a number from 0. Got -0.1."),
        (["--cosine", "1.1"], "--cosine must be a number from -1 to 1. Got 1.1."),
        (["--cosine", "nan"], "--cosine must be a number from -1 to 1. Got nan."),
        (["--atol", "1", "--case", "none"], "no call is named 'none'"),
        (["--atol", "1", "--time-limit", "nan"], "the time limit must be a number of seconds from 0. Got nan."),
    ],
)
def test_a_mistake_is_one_line(tmp_path, options, said):
    path = tmp_path / "calls.safetensors"
    recording_of(LENS).save(path)
    done = CliRunner().invoke(command, [str(path), *options])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"Error: {said}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("content", [None, b"", b"no recording"])
def test_what_is_no_recording_is_one_line(tmp_path, content):
    path = tmp_path / "calls.safetensors"
    if content is not None:
        path.write_bytes(content)
    done = CliRunner().invoke(command, [str(path), "--atol", "1"])
    assert (done.exit_code, done.stderr.count("\n"), done.stderr[:7]) == (2, 1, "Error: ")


def test_the_command(tmp_path):
    path, json_path = tmp_path / "calls.safetensors", tmp_path / "found.json"
    recording = recording_of(LENS, AttentionMask(causal=True))
    recording.save(path)
    done = CliRunner().invoke(command, [str(path), "--atol", "0.5", "--case", "layer#1", "--json", str(json_path)])
    assert done.exit_code == 0, done.output
    found = json.loads(json_path.read_text())
    again = audit(recording, chosen(atol=0.5), {"layer#1"})
    assert found == json.loads(json.dumps(again.to_dict()))
    first = done.stdout.splitlines()[0]
    assert first.startswith(f"On this call allclose(atol=0.5, rtol=0) lets {len(found['passed'])} of the ")
    assert first.endswith(", ".join(found["passed"][:16])) or first.endswith(f" and {len(found['passed']) - 16} more")
    assert "never asked: gradients (67)" in done.stdout
    assert math.isfinite(found["strict"])
