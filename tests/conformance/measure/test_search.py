"""The search as a whole: right layers, faults of several steps, subjects that take only some calls, and its limits."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from conformance.cases.table import all_cases
from conformance.diagnosis.diagnose import diagnose
from conformance.diagnosis.text import describe
from conformance.measure.asker import Asker
from conformance.measure.designs import CONFIGS, generic
from conformance.measure.faults import bug_of, on_result, unwarned
from conformance.measure.probe import Probe
from conformance.measure.probes import all_probes, select_probes
from conformance.measure.search import model_search
from conformance.measure.search.measure import Search, measure
from conformance.measure.search.ranking import preference
from conformance.zoo.bug import Bug
from conformance.zoo.registry import select
from conformance.zoo.variants import Variants
from mha_core import SpecError, Trace
from mha_core.parts import PARTS
from mha_core.reference import forward
from tests.conformance.measure.wrong import OutputAlone

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

CASES = [case for case in all_cases() if not case.expensive]
SCALED = Bug(
    "mine", "", "scores", "", forward={"similarity": lambda s: forward.similarity(s) * 1.3 * s.config.key_dim**-0.5}
)


def test_odd_numbers_of_a_guess_warn_nobody_and_those_of_a_subject_do():
    with unwarned():
        warnings.warn_explicit("odd", RuntimeWarning, "guess.py", 1, module="conformance.measure.propose.guess")
        with pytest.raises(RuntimeWarning, match="odd"):
            warnings.warn_explicit("odd", RuntimeWarning, "layer.py", 1, module="my.layer")


def test_every_probe_has_a_name_of_its_own_and_says_what_it_isolates():
    ids = [probe.id for probe in all_probes()]
    assert len(ids) == len(set(ids))
    assert len(ids) > 40
    assert all(probe.says.endswith(".") and probe.formula for probe in all_probes())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_of_a_right_layer_nothing_is_found(dtype):
    found = measure(OutputAlone(dtype=dtype))
    assert found.models == ((),)
    assert not found.unexplained
    assert not found.differs
    assert not found.silent
    assert not found.troubles
    assert found.asker.questions < 700


def test_faults_of_two_steps_are_met_one_at_a_time():
    """One is on file, the other is in no zoo; the model is held against every case of the suite."""
    found = diagnose(OutputAlone(SCALED, *select(("v-proj-bias-missing",))), CASES, experiments=True)
    assert found.explanations
    best = found.explanations[0]
    assert best.complete
    assert "v-proj-bias-missing" in [bug.id for bug in best.bugs]
    text = describe(found, details=True)
    assert "1.3 * 1 / sqrt(key_dim)" in text or "1.3 * sqrt(1 / key_dim)" in text or "1.3 / sqrt(key_dim)" in text
    assert "All of them agree with this." in text
    assert "score-size" in text


def test_a_subject_of_one_size_is_asked_in_that_size():
    case = next(case for case in CASES if case.id == "prime")
    config = case.build().config
    only = OutputAlone(SCALED, takes=lambda given, inputs: given == config)
    found = diagnose(only, CASES, experiments=True)
    assert found.measured is not None
    assert found.measured.asker.configs == (config,)
    assert found.measured.differs


def test_a_subject_that_refuses_everything_ends_nothing():
    """It takes the case and not one question more."""
    case = next(case for case in CASES if case.id == "prime")
    queries = case.build().inputs.queries
    only = OutputAlone(SCALED, takes=lambda config, inputs: np.array_equal(inputs.queries, queries))
    found = diagnose(only, [case], experiments=True)
    assert found.failing == ("prime",)
    assert found.measured is not None
    assert "Experiments: " in describe(found)


def test_questions_stop_when_the_time_is_spent():
    asker = Asker(OutputAlone(SCALED), seconds=0.02)
    found = measure(asker.subject, asker=asker)
    assert asker.out_of_time
    assert any("was spent" in reason for reason in found.asker.why_refused())


def test_what_the_definition_gives_is_computed_once_for_every_layer():
    one, other = Asker(OutputAlone()), Asker(OutputAlone(SCALED))
    problem = generic(one.configs[0], seed=5)
    again = replace(problem, inputs=replace(problem.inputs, queries=problem.inputs.queries.copy()))
    assert one.wanted(problem) is other.wanted(again)
    assert one.wanted(problem) is not other.wanted(generic(one.configs[0], seed=6))


def test_a_candidate_that_cannot_be_made_is_noted_and_ends_nothing():
    def broken(evidence):
        raise OverflowError("too large for me")
        yield

    probe = select_probes(("scores",), alone=True)[0]
    found = measure(OutputAlone(SCALED), probes=[replace(probe, propose=broken)], zoo=())
    assert found.troubles == ("scores: OverflowError: too large for me",)
    assert found.differs


@pytest.mark.parametrize(("on_file", "suffices"), [(True, True), (True, False), (False, True)])
def test_what_bugs_on_file_give_is_not_measured(on_file, suffices):
    """It is where they explain the probes and not the cases, and where they explain nothing."""
    zoo, proposed = select(["scale-query-dim", "scale-missing"]), []
    probe = replace(select_probes(("scores",), alone=True)[0], propose=lambda evidence: proposed.append(evidence) or ())
    subject = OutputAlone(zoo[0] if on_file else SCALED)
    found = measure(subject, probes=[probe], zoo=zoo, suffices=lambda models: suffices)
    assert bool(proposed) is not (on_file and suffices)
    assert (found.models[0] == (zoo[0],)) is on_file


def test_names_of_probes():
    assert [probe.id for probe in select_probes(("one-key",), alone=True)] == ["one-key"]
    assert isinstance(select_probes(("one-key",))[0], Probe)
    with pytest.raises(SpecError, match="probe 'one-kez' is not known"):
        select_probes(("one-kez",))


def test_the_runs_of_models_are_limited(monkeypatch):
    few = select_probes(["score-size", "scores"], alone=True)
    variants = Variants()
    monkeypatch.setattr(model_search, "MOST_RUNS", 0)
    found = Search(Asker(OutputAlone(SCALED), configs=CONFIGS[:2]), variants=variants).run(few)
    assert {one.probe.id for one in found.unexplained} == {"score-size", "scores"}
    assert variants.runs < 20  # each problem without any, and no candidate


def test_what_differs_only_when_asked_again_is_said():
    class Counting(OutputAlone):
        def prepare(self, config, weights):
            run, calls = super().prepare(config, weights), []

            def counted(inputs):
                calls.append(1)
                return Trace(output=run(inputs).output * (1.0 + 0.1 * (len(calls) - 1)))

            return counted

    found = diagnose(Counting(), CASES[:6], bugs=[], experiments=True)
    assert not found.failing
    assert found.differs
    assert "asked once. But: A second call" in describe(found)
    assert np.isfinite(found.measured.behaviour.spread)
    (explained,) = {one.bugs for one in found.again.explanations}
    assert [bug.sentence.endswith("times 1.1.") for bug in explained] == [True]
    assert found.first_stage == "output"
    assert "Each called twice, the second calls differ in 6 of 6 cases.\nThis gives" in describe(found)


def _rolled(step, slug="rolled--1"):
    return bug_of(f"{step}-{slug}", "", "", step, on_result(lambda state, array: np.roll(array, -1, axis=-2)))


def test_a_number_is_preferred_to_a_size_of_several_words():
    number, size = _rolled("queries", "rolled--1"), _rolled("queries", "rolled--batch-size")
    assert preference((number,)) < preference((size,))


OF_PARTS = {
    "rotary": "rotary-offset-ignored",
    "query_key_norm": "norm-eps-missing",
}
"""Part -> a bug of it: one of each."""


@pytest.mark.parametrize("part", PARTS)
def test_a_layer_that_takes_no_call_without_a_part_is_asked_the_calls_that_it_has(part):
    """Some probes make calls that it has not, such as queries before position 0."""
    (bug,) = select((OF_PARTS[part],))
    asker = Asker(OutputAlone(bug, takes=lambda config, inputs: part in config.parts))
    assert not asker.configs
    problems = [case.build() for case in CASES]
    asker.learn([problem for problem in problems if part in problem.config.parts])
    found = measure(asker.subject, asker=asker, zoo=[bug], probes=select_probes(("empty-rows", "one-key"), alone=True))
    assert all(part in config.parts for config in asker.configs)
    assert found.models in (((),), ((bug,),))
    assert any(outcome.asked for outcome in found.outcomes) == bool(asker.configs)


def test_its_bug_is_named_after_experiments():
    (bug,) = select((OF_PARTS["query_key_norm"],))
    only = OutputAlone(bug, takes=lambda config, inputs: config.query_key_norm is not None)
    cases = [case for case in CASES if case.build().config.query_key_norm is not None]
    found = diagnose(only, cases, bugs=select(tuple(OF_PARTS.values())), experiments=True)
    assert found.ended is None
    assert found.measured is not None
    assert [explanation.name for explanation in found.explanations] == [bug.id]
