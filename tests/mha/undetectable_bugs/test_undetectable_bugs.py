"""Undetectable bugs: which bugs of the zoo recorded calls would not have shown, and why."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.cases import table as cases
from conformance.zoo.registry import all_bugs, select
from mha.cli.porter.replay import replay
from mha.cli.porter.where import where
from mha.cli.suite.diagnose import diagnose
from mha.recordings.recording import RecordedCall, RecordedLayer, Recording
from mha.recordings.replay import judge_recording
from mha.undetectable_bugs import find as module
from mha.undetectable_bugs.find import undetectable_bugs
from mha.undetectable_bugs.needed_calls import NEEDS, is_of_gradients, need_of
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights
from mha_core.dtypes import round_to
from mha_core.reference import pipeline as reference
from mha_core.weights import check_weights
from tests.conformance.zoo.smallest_set import SMALLEST_SET

CONFIG = AttentionConfig(12, 4, bias=True, value_head_dim=5)


def recording_of(*masks, dtype="float32", batch=3, length=7, config=CONFIG, weight_scale=1.0, names=None):
    """Calls of one layer, of self-attention."""
    weights = {
        name: round_to(weight_scale * array, dtype) for name, array in init_weights(config, 0, bias_scale=1.0).items()
    }
    layer = RecordedLayer("", "mine.Attention", dtype, config, check_weights(config, weights))
    calls = []
    for seed, mask in enumerate(masks or (AttentionMask(),)):
        x = round_to(np.random.default_rng(seed).normal(size=(batch, length, 12)), dtype)
        inputs = AttentionInputs(x, x, x, mask)
        output = round_to(reference.run(config, layer.weights, inputs).output, dtype)
        calls.append(RecordedCall(0, inputs, {"output": output}))
    return Recording((layer,), tuple(calls), {"mine": "1.0"})


def test_every_bug_is_in_one_list():
    found = undetectable_bugs(recording_of(AttentionMask(valid_lens=np.array([3, 7, 5]))))
    lists = (found.seen, found.within, found.idle, found.impossible, found.untried, *found.never_asked.values())
    names = [name for one in lists for name in one]
    assert sorted(names) == sorted(bug.id for bug in all_bugs() if not bug.equivalent)
    assert found.missed == len(names) - len(found.seen) - len(found.impossible) - len(found.untried)
    assert {"scale-missing", "lens-ignored", "lens-inverted", "v-proj-bias-missing"} <= set(found.seen)
    assert "k-proj-bias-missing" in found.within  # the softmax takes it away
    assert "causal-ignored" in found.never_asked["a causal mask"]
    assert len(found.never_asked["gradients"]) > 40


def test_what_is_seen_would_have_been_different():
    """A recording with such a bug in it is not equal, and with one that is not seen it is."""
    mask = AttentionMask(valid_lens=np.array([3, 7, 5]))
    recording = recording_of(mask)
    found = undetectable_bugs(recording)
    for name in (*found.seen[::9], *found.within, *found.idle[::3]):
        (bug,) = select((name,))
        (problem,) = recording.problems
        output = bug.run_state(problem.config, problem.weights, problem.inputs)["output"]
        wrong = replace(recording.calls[0], outputs={"output": output.astype(np.float32)})
        (result,) = judge_recording(replace(recording, calls=(wrong,)))
        assert (result.status == "different") == (name in found.seen), name


def test_one_token_and_small_weights_do_not_show_a_wrong_scale():
    one = undetectable_bugs(recording_of(length=1))
    assert {"scale-missing", "scale-twice", "q-k-weights-exchanged"} <= {*one.within, *one.idle}
    small = undetectable_bugs(recording_of(dtype="float16", weight_scale=0.02))
    assert "scale-missing" in small.within
    assert "scale-missing" in undetectable_bugs(recording_of()).seen
    assert {*one.seen} < {*undetectable_bugs(recording_of()).seen}


def test_another_call_shows_more():
    masks = AttentionMask(), AttentionMask(causal=True), AttentionMask(valid_lens=np.array([3, 7, 5]))
    every, first = undetectable_bugs(recording_of(*masks)), undetectable_bugs(recording_of(*masks), {"layer#1"})
    assert "a causal mask" not in every.never_asked
    assert {"causal-ignored", "lens-ignored"} <= {*every.seen} - {*first.seen}
    assert (first.calls, every.calls) == (1, 3)


def test_large_calls_are_cut_and_tell_the_same(monkeypatch):
    rng = np.random.default_rng(2)
    bias, lens = rng.normal(size=(4, 7, 7)).astype(np.float32), np.array([3, 7, 5, 1, 6])
    for mask in (
        AttentionMask(valid_lens=lens),
        AttentionMask(allowed=rng.random((5, 1, 7, 7)) < 0.7, bias=bias),
        AttentionMask(valid_lens=lens, causal=True),
        AttentionMask(window=(2, 0)),
    ):
        whole = undetectable_bugs(recording_of(mask, batch=5), seconds=60)
        with monkeypatch.context() as small:
            small.setattr(module, "LARGE", 0)
            small.setattr(module, "ROWS", 4)
            small.setattr(module, "FIRST", 6)
            recording = recording_of(mask, batch=5)
            cut = undetectable_bugs(recording, seconds=60)
            call = module._Call("layer", "float32", recording.problems[0])
            assert [is_cut for _, is_cut in module._in_order([call])] == [True, False]
            assert module._cut(call.problem).inputs.queries.shape == (2, 6 if mask.has_positions else 4, 12)
        assert (cut.seen, cut.impossible) == (whole.seen, whole.impossible)


def test_no_time_is_said():
    masks = AttentionMask(), AttentionMask(causal=True)
    found = undetectable_bugs(recording_of(*masks), seconds=0.0)
    assert found.seen == found.within == ()
    assert f"not tried, for want of time: {len(found.untried)}" in found.text()


def test_what_bugs_need():
    """A bug that needs something shows in no call without it; and one that needs nothing shows in an ordinary call."""
    zoo = [bug for bug in all_bugs() if not bug.equivalent and not is_of_gradients(bug)]
    for id in SMALLEST_SET:
        (case,) = cases.select((id,))
        problem = case.build()
        call = module._Call(id, "float64", replace(problem, recorded=dict.fromkeys(["output"])))
        shows = module._shows(call, False)
        for bug in zoo:
            need = need_of(bug)
            if need is not None and not need[1](problem):
                found = module._run(bug, shows)
                assert found is None or not found[0], (id, bug.id, need[0])
    plain = undetectable_bugs(recording_of(dtype="float64", config=replace(CONFIG, query_dim=12), batch=3), bugs=zoo)
    assert {*plain.within, *plain.idle} <= {
        *("k-proj-bias-missing", "denominator-epsilon", "maximum-of-tensor", "maximum-missing", "maximum-clamped"),
        *("softmax-of-clamped", "block-maximum-shared", "mask-after-softmax-renormalised"),
        *("block-of-last-queries-moved-back",),
    }


def test_every_need_names_bugs():
    for words, _, patterns in NEEDS:
        own = [bug for bug in all_bugs() if (need_of(bug) or ("",))[0] == words]
        assert own, (words, patterns)


# The commands -----------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "calls"
    recording_of(length=1).save(path)
    return path


def test_the_commands_say_it(file, tmp_path):
    for command, arguments in (
        (replay, (file, "--subject", "examples.subject_numpy:attention")),
        (where, (file, file)),
        (diagnose, (file,)),
    ):
        done = CliRunner().invoke(command, list(map(str, arguments)))
        assert done.exit_code == 0, done.output
        counted = re.search(
            r"^This call would not have shown (\d+ of \d+ bugs) \(--unseen lists them\)\.$", done.output, re.M
        )
        assert counted
        assert "scale-missing" not in done.output
        done = CliRunner().invoke(command, [*map(str, arguments), "--unseen"])
        assert f"This call would not have shown {counted[1]} that can be made here" in done.output
        assert "scale-missing" in done.output
        done = CliRunner().invoke(command, [*map(str, arguments), "--no-unseen"])
        assert done.exit_code == 0, done.output
        assert "would not have shown" not in done.output
    for command, arguments, field in (
        (replay, (file, "--subject", "examples.subject_numpy:attention"), "unseen"),
        (where, (file, file), "undetectable"),
    ):
        CliRunner().invoke(command, [*map(str, arguments), "--json", str(tmp_path / "report.json")])
        written = json.loads((tmp_path / "report.json").read_text())
        assert "scale-missing" in written[field]["within"]
