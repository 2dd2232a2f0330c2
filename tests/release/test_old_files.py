"""Files that builds of the week before 0.1.0 wrote, by the commit in their names: read, or refused in one sentence.

A torch.nn.MultiheadAttention(8, 2) between a norm and a linear layer was called once on (2, 3, 8), in float32.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from conformance.reports.html import render
from mha.recordings.modules.arrays import open_modules
from mha.recordings.recording import Recording
from mha_core import AttentionConfig, SpecError, load_weights, reference

pytestmark = pytest.mark.same_on_newest  # no framework has to do with it

OLD = Path(__file__).parent / "old"


def files(pattern: str) -> list[str]:
    found = sorted(path.name for path in OLD.glob(pattern))
    assert found
    return found


@pytest.mark.parametrize("name", files("calls-*"))
def test_recordings_are_read_and_give_their_numbers(name):
    recording = Recording.load(OLD / name)
    assert recording.names == ("attn",)
    (problem,) = recording.problems
    output = reference.run(problem.config, problem.weights, problem.inputs).output
    np.testing.assert_allclose(problem.recorded["output"], output, atol=1e-6)


def test_canonical_weights_are_read():
    config, weights = load_weights(OLD / "weights-dcfde860.safetensors")
    assert config == AttentionConfig(8, 2)
    assert weights["q_proj.weight"].shape == (8, 8)


def test_a_recording_of_modules_of_another_format_is_refused_in_a_sentence():
    with pytest.raises(SpecError, match="its format is 1, and this release reads 2") as caught:
        open_modules(OLD / "modules-ddff320c.safetensors")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", files("report-*"))
def test_reports_are_read(name):
    report = json.loads((OLD / name).read_text("utf-8"))
    assert "Multi-head attention" in render(report)
    with pytest.raises(SpecError, match="a report of schema 2 can't be shown; it must be 1"):
        render({**report, "schema": 2})
