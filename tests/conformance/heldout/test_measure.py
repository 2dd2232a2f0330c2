"""The measure of the diagnosis tells a description from a claim that does not hold; no diagnosis is run here."""

from types import SimpleNamespace

import numpy as np
import pytest

from conformance.diagnosis.hypotheses import Hypothesis
from mha_core import reference
from tests.conformance.heldout import measure
from tests.conformance.heldout.measure import DESCRIBED, NEW, NOT_DESCRIBED, QUIET, WRONG_CLAIM
from tests.conformance.heldout.rows import half, pair_rows, single_rows

pytestmark = pytest.mark.same_on_newest  # no diagnosis is run, and no framework

ROW = single_rows()["scale-one-over-width"]
CLAIM = Hypothesis((), explained=1, total=1)


class Model:
    """Stands for the runs of a hypothesis: the outputs of a layer, plus an error."""

    def __init__(self, layer, error=0.0):
        self.layer, self.error = layer, error

    def arrays(self, observation, bugs):
        problem = observation.wanted.problem
        output = self.layer(problem.config, problem.weights, problem.inputs).output()
        return {"output": output + self.error * np.abs(output).max(initial=0.0)}


def test_the_layer_itself_is_a_description():
    assert measure.tries(ROW, [CLAIM], None, Model(ROW.layer)) == (NEW,)


def test_the_definition_and_another_fault_are_none():
    (given,) = measure.tries(ROW, [CLAIM], None)
    assert given <= QUIET
    other = single_rows()["scale-number-of-heads"]
    assert measure.tries(ROW, [CLAIM], None, Model(other.layer))[0] < NEW


def test_errors_count_against_the_largest_number_and_against_the_change():
    assert measure.tries(ROW, [CLAIM], None, Model(ROW.layer, 1e-5)) == (0,)
    small = single_rows()["epsilon-in-the-sum"]
    assert measure.tries(small, [CLAIM], None)[0] <= QUIET  # the definition is within 1e-6, and no description
    assert measure.tries(small, [CLAIM], None, Model(small.layer)) == (NEW,)


def test_rounding_is_allowed_in_the_dtype_that_is_said():
    assert measure.tries(ROW, [CLAIM], "float32", Model(ROW.layer, 1e-6)) == (NEW,)
    assert measure.tries(ROW, [CLAIM], "float32", Model(ROW.layer, 1e-4)) == (0,)


def test_nothing_is_tried_without_a_claim():
    assert measure.tries(ROW, (), None) == ()


@pytest.mark.parametrize("id", [*single_rows(), *pair_rows()])
def test_most_new_problems_show_the_fault(id):
    row = {**single_rows(), **pair_rows()}[id]
    cases = measure.new_cases(row)
    changed = 0
    for problem in (case.build() for case in cases):
        given = problem.config, problem.weights, problem.inputs
        changed += not np.allclose(row.layer(*given).output(), reference.run(*given).output, rtol=0, atol=1e-10)
    assert len(cases) == NEW
    assert changed >= NEW - QUIET


def bug(stage):
    return SimpleNamespace(stage=stage)


def diagnosis(**said):
    return SimpleNamespace(**{"explanations": (), "partly": (), "closest": (), "first_stage": None, **said})


def test_the_first_stage_is_that_of_the_claim_then_where_it_is_localised_then_what_is_listed():
    two = SimpleNamespace(bugs=(bug("weights"), bug("keys")))
    assert measure.first_stage(diagnosis(explanations=(two,), first_stage="output")) == "keys"
    assert measure.first_stage(diagnosis(partly=(two,), first_stage="output")) == "output"
    assert measure.first_stage(diagnosis(closest=(two,))) == "keys"
    assert measure.first_stage(diagnosis()) is None


def test_totals_and_choices():
    row = {"stages": ("scores",), "claims": (), "given": (), "ended": None, "said": "", "differs": True}
    results = [
        measure.Result("a", verdict=DESCRIBED, stage="scores", stage_is_right=True, seconds=1.0, **row),
        measure.Result("b", verdict=WRONG_CLAIM, stage="keys", stage_is_right=False, seconds=3.0, **row),
        measure.Result("c", verdict=NOT_DESCRIBED, stage=None, stage_is_right=False, seconds=2.0, **row),
    ]
    assert measure.totals(results) == [
        "described      1 of 3 (33%)",
        "stage right    1 of 3 (33%)",
        "wrong claims   1",
        "processor time 6 s, 2 s each",
    ]
    assert "keys (scores)" in measure.line(results[1])
    ids = measure.chosen(half(single_rows(), "open"), [], 5)
    assert len(set(ids)) == 5
    with pytest.raises(SystemExit, match="no row 'x' in this half"):
        measure.chosen(half(single_rows(), "open"), ["x"], None)
