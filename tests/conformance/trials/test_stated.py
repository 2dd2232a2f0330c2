"""A few trials whose answers are stated: the diagnosis says the right stage, and the layer's own numbers."""

from __future__ import annotations

import pytest

from conformance.diagnosis.diagnose import Runs
from conformance.trials.unit import tried

pytestmark = pytest.mark.same_on_newest  # it computes in NumPy alone

STATED = {
    "0-68": ("the output: its square", "measured:output-square"),
    "1-25": ("the values that each query head reads: the first kv head for all", "value-heads-first"),
    "1-40": ("the mask of the lengths: inverted", "lens-inverted"),
    "3-16": ("the output's bias: its mean", "measured:out-proj-bias-mean"),
    "4-1g": ("gradient to k_proj.bias: times 0.578", "measured:d-projection-parameters-k-proj.bias-times-0.578"),
}
"""Trial -> what is wrong with its layer, and what is said of it."""


@pytest.fixture(scope="module")
def runs() -> Runs:
    """The runs of the bugs on file, which are the same for every trial."""
    return Runs()


@pytest.mark.parametrize("id", STATED)
def test_the_answer_is_the_stated_one(id: str, runs: Runs) -> None:
    outcome, _ = tried(id, runs)
    verdict = outcome.verdict
    assert verdict is not None
    assert outcome.words == STATED[id][0], "another layer than the one that this answer is of"
    assert (verdict.stage, verdict.described, verdict.wrong) == (True, True, False), verdict.said
    assert STATED[id][1] in verdict.said
