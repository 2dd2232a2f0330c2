"""Trials are the same ones for the same id, and the truth that they carry is true."""

from __future__ import annotations

from itertools import islice

import pytest

from conformance.trials.changes import Factor, Only
from conformance.trials.equivalent import further_stages
from conformance.trials.faults import Dice, Fault
from conformance.trials.judge import fresh_problems
from conformance.trials.made import all_act, arrays_of, distance, families, make, of_id, shows
from conformance.trials.problems import draw_problem
from conformance.trials.subject import Limits
from mha_core import SpecError

pytestmark = pytest.mark.same_on_newest  # it computes in NumPy alone


def test_a_trial_is_made_again_by_its_id():
    for id in ("3-1", "3-1x2", "3-1x3", "3-1g", "3-2x2g", "3-1r", "3-4r"):
        first, again = of_id(id), of_id(id)
        assert first.id == again.id == id
        assert first.words == again.words
        assert first.stages == again.stages
        problem = draw_problem(Dice("again", id), first.needs)
        arrays = (arrays_of(trial.faults, problem, gradients=trial.gradients) for trial in (first, again))
        assert distance(*arrays) == 0.0


def test_what_is_drawn_stays():
    """Ids in reports would lie if draws changed by accident: a change here is one of every published figure."""
    assert [make(1, number).words for number in range(3)] == [
        "the values: to the power of 1.5, with its sign",
        "the scores: its absolute value",
        "the projected queries: without q_proj.bias, only where Lk > 8",
    ]


def test_faults_of_one_trial_are_different_and_each_acts():
    for number in range(6):
        trial = make(4, number, 3)
        assert len({fault.family for fault in trial.faults}) == 3
        problems = [draw_problem(Dice("each", index), trial.needs) for index in range(20)]
        for left_out in trial.faults:
            others = tuple(fault for fault in trial.faults if fault is not left_out)
            assert any(
                distance(*(arrays_of(faults, problem, gradients=False) for faults in (trial.faults, others))) > 1e-7
                for problem in problems
            ), (trial.id, left_out.words)


def hidden(where):
    """A factor on the output, where the call is so."""
    chosen = Only(Factor("2", lambda view: 2.0), "there", lambda array, point, view: where(view))
    return (Fault("factor", (("output", chosen),)),)


def test_what_no_case_shows_is_drawn_again():
    assert shows(hidden(lambda view: view.Lk > 4), Limits())
    assert not shows(hidden(lambda view: view.Lk > 5000), Limits())
    assert not shows(hidden(lambda view: view.Lk > 4), Limits(key_lens=(1, 2)))
    assert all_act(hidden(lambda view: view.Lk > 4))
    assert not all_act(hidden(lambda view: view.Lk > 5000))


@pytest.mark.parametrize("id", ["", "1", "1-2x4", "1-2x0", "-1-2", "1-2gg"])
def test_what_is_no_id_is_refused(id):
    with pytest.raises(SpecError, match="a trial is SEED-NUMBER"):
        of_id(id)


def test_there_are_many_families():
    names = [name for module in families().values() for name in module]
    assert len(names) == len(set(names)) >= 300
    assert len(families()["gradients"]) >= 60


@pytest.mark.parametrize(
    ("point", "stages"),
    [
        ("q", {"queries", "keys", "scores"}),
        ("v", {"values", "weights", "heads", "output"}),
        ("weights", {"values", "weights", "heads", "output"}),
        ("scores", {"scores"}),
        ("output", {"output"}),
    ],
)
def test_where_a_factor_does_the_same(point, stages):
    fault = Fault("factor", ((point, Factor("0.9", lambda view: 0.9)),))
    assert fault.stages | further_stages(fault) == stages


def test_a_restricted_layer_takes_less_and_still_shows_its_fault():
    limited = [of_id(f"3-{number}r") for number in range(8)]
    assert all(trial.limits.words in trial.words for trial in limited)
    assert len({trial.limits.words for trial in limited}) > 2


def test_a_layer_of_one_config_is_judged_by_problems_of_this_config():
    trial = next(one for one in (of_id(f"3-{number}r") for number in range(60)) if one.limits.config is not None)
    problems = list(islice(fresh_problems(trial), 6))
    assert {problem.config for problem in problems} == {trial.limits.config}
    assert all(trial.subject().supports(problem.config, problem.inputs) is None for problem in problems)
