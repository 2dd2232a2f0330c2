"""A subject that is asked more than it can: what is wrong in plain calls is named, and the other calls are said."""

from dataclasses import replace

import pytest

from conformance.cases.table import select
from conformance.diagnosis.brief import PLAIN, brief
from conformance.diagnosis.diagnose import diagnose
from conformance.zoo.bug import BuggySubject
from conformance.zoo.registry import all_bugs
from mha_core import AttentionMask

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

PLAIN_CASES = ("square-causal", "square-lens-per-query", "square-self-attention", "square-window")
OTHERS = ("square-additive", "square-scale", "square-bias-per-head", "square-dropout")

ZOO = [bug for bug in all_bugs() if bug.id.startswith("softmax-over-")]


class Overlooking(BuggySubject):
    """A layer that computes every call as a plain one: no scale, score, bias or dropout that is given is looked at."""

    def prepare(self, config, weights):
        plain = replace(config, score="scaled_dot", score_dim=None, scale=None, dropout=0.0)
        known = {name: array for name, array in weights.items() if name.partition(".")[0].endswith("_proj")}
        run = super().prepare(plain, known)

        def overlooking(inputs):
            mask = inputs.mask if inputs.mask.bias is None else AttentionMask()
            return run(replace(inputs, mask=mask, dropout_keep=None))

        return overlooking


@pytest.mark.parametrize(
    "experiments", [False, pytest.param(True, marks=pytest.mark.nightly("a cause in plain calls is named"))]
)
def test_a_cause_in_plain_calls_is_named_though_others_fail_too(experiments):
    bug = next(bug for bug in ZOO if bug.id == "softmax-over-queries")
    found = diagnose(Overlooking(bug), select((*PLAIN_CASES, *OTHERS)), bugs=ZOO, experiments=experiments)
    told = brief(found)
    assert [one.bugs for one in told.causes] == [("softmax-over-queries",)], told.text
    assert told.causes[0].label == PLAIN
    assert found.plain is not None
    assert set(found.plain.failing) == set(PLAIN_CASES)
    assert "all 4 cases" in told.sure
    assert told.seen[0].startswith(
        "Not explained: 4 cases with an additive bias, a given scale, score 'additive' and 1"
    )
    assert "declare `capabilities`" in told.seen[0]


def test_a_layer_that_is_right_in_plain_calls_has_no_cause_there():
    found = diagnose(Overlooking(), select((*PLAIN_CASES, *OTHERS)), bugs=ZOO)
    assert set(found.failing) == set(OTHERS)
    assert found.plain is None
