"""Bugs of attention functions inside models: each is told from the others by what a recorded call gave."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.diagnosis.diagnose import diagnose
from conformance.zoo.bug import Bug, BuggySubject
from mha.recordings.function_bugs import MASK_BUGS, SOFTMAX_BUG, bugs_of_functions
from mha.recordings.recording import RecordedCall, RecordedLayer, Recording
from mha.recordings.replay import RecordedSubject
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, reference

CONFIG = AttentionConfig(8, 2, head_dim=4, softcap=2.0, scale=0.4, projections=False)
LENGTHS = (8, 6, 7)
WINDOW = 3


def inputs_of(query_len: int, key_len: int, seed: int) -> AttentionInputs:
    """Three texts of other lengths, causal, with a window, in one mask that is handed over whole."""
    rng = np.random.default_rng(seed)
    own = np.arange(query_len)[:, None] + key_len - query_len
    keys = np.arange(key_len)
    allowed = (keys <= own) & (keys > own - WINDOW)
    allowed = allowed & (keys < np.array(LENGTHS)[:, None, None, None])
    states = (rng.normal(size=(3, 2, length, 4)) for length in (query_len, key_len, key_len))
    return AttentionInputs(*states, AttentionMask(allowed=allowed)).rounded("float32")


def recorded(bug: Bug | None = None, config: AttentionConfig = CONFIG) -> Recording:
    """A text and a step of decoding, as a layer with this bug computes them in float32."""
    layer = RecordedLayer("attention", "mine.Attention", "float32", config, {})
    calls = []
    for inputs in (inputs_of(8, 8, 1), inputs_of(1, 8, 2)):
        run = reference.run if bug is None else lambda config, _, x: BuggySubject(bug).prepare(config, {})(x)
        found = run(config, {}, inputs)
        stages = {name: getattr(found, name).astype(np.float32) for name in ("weights", "output")}
        calls.append(RecordedCall(0, inputs, stages))
    return Recording((layer,), tuple(calls))


def named(recording: Recording) -> list[str]:
    subject, cases = RecordedSubject(recording, "float32"), recording.cases("float32")
    found = diagnose(subject, cases, bugs=bugs_of_functions(recording))
    return [bug.id for one in found.explanations for bug in one.bugs]


@pytest.mark.parametrize("bug", [*MASK_BUGS, SOFTMAX_BUG, None], ids=lambda bug: bug.id if bug else "right")
def test_each_bug_is_told_from_the_others_and_a_right_call_has_none(bug):
    assert named(recorded(bug)) == ([bug.id] if bug else [])


@pytest.mark.parametrize(("scale", "words"), [(1 / 3, "1 / sqrt(9)"), (7**-0.5, "1 / sqrt(7)"), (1.2345, "1.2345")])
def test_a_scale_is_read_off_the_weights(scale, words):
    config = replace(CONFIG, softcap=None)
    others = recorded(config=replace(config, scale=scale)).calls
    recording = replace(recorded(config=config), calls=others)
    (bug,) = (one for one in bugs_of_functions(recording) if one.id == "scale-other")
    assert bug.sentence == f"The scale of the scores is {words}, which is not the layer's."
    assert named(recording) == ["scale-other"]


def test_no_scale_is_read_off_a_right_call_or_one_with_another_mistake():
    config = replace(CONFIG, softcap=None)
    for recording in (recorded(config=config), *(recorded(bug, config) for bug in MASK_BUGS[:1])):
        assert not [one for one in bugs_of_functions(recording) if one.id == "scale-other"]
