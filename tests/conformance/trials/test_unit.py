"""What is tried by its id, the figures of it, and the command."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from rich.console import Console

from conformance.diagnosis.diagnose import Diagnosis, Hypothesis
from conformance.measure.search.behaviour import Behaviour
from conformance.trials import report, unit
from conformance.trials.judge import Verdict
from conformance.trials.unit import (
    Known,
    Outcome,
    found_by,
    home_of,
    ids_of_backends,
    ids_of_natives,
    ids_of_rewritten,
    ids_of_right,
    ids_of_zoo,
    judged,
    tried,
    units_of,
)
from conformance.zoo.bug import BuggySubject
from conformance.zoo.registry import all_bugs
from mha.cli.main import main
from mha_core import SpecError

pytestmark = pytest.mark.same_on_newest  # it computes in NumPy alone


def diagnosis(*bugs):
    hypotheses = tuple(Hypothesis((bug,), 1, 1, 1, 1) for bug in bugs)
    failing = ("a",) if bugs else ()
    return Diagnosis("it", "float64", failing, (), {}, None, ("output",), explanations=hypotheses)


BUGS = {bug.id: bug for bug in all_bugs()}


def test_every_id_means_something():
    assert len(ids_of_zoo()) > 200
    assert len(ids_of_rewritten()) > 60
    assert len(ids_of_right()) > 24
    for id in (ids_of_zoo()[0], ids_of_rewritten()[-1], ids_of_right()[-1], "1-17"):
        truth, subject = found_by(id)
        assert truth.id == id
        assert subject.device == "cpu"


@pytest.mark.parametrize("id", ["zoo:nothing", "rewritten:1000", "rewritten:x", "right:nothing:float64", "nothing"])
def test_what_means_nothing_is_refused(id):
    with pytest.raises(SpecError):
        found_by(id)


def test_a_bug_of_the_zoo_is_described_by_its_name():
    truth, subject = found_by("zoo:empty-row-nan")  # which fresh problems do not show
    named = judged(truth, subject, diagnosis(BUGS["empty-row-nan"]))
    assert (named.stage, named.described, named.wrong) == (True, True, False)
    other = judged(truth, subject, diagnosis(BUGS["scale-missing"]))
    assert (other.stage, other.described, other.wrong) == (False, False, True)


def test_whatever_is_said_of_a_right_layer_is_wrong():
    truth, subject = found_by("right:plain:float32")
    assert judged(truth, subject, diagnosis(BUGS["scale-missing"])).wrong
    assert not judged(truth, subject, diagnosis()).wrong
    assert judged(truth, subject, replace(diagnosis(), failing=("a",))).wrong
    probed = SimpleNamespace(differs=True, models=((),), behaviour=Behaviour())
    assert judged(truth, subject, replace(diagnosis(), measured=probed)).wrong


def test_backends_are_right_layers_each_tried_in_its_own_process():
    backends = [
        SimpleNamespace(name="jax", dtypes=lambda device: ("float32", "bfloat16")),
        SimpleNamespace(name="torch", dtypes=lambda device: ("float64",)),
    ]
    ids = ids_of_backends(backends)
    assert ids == ["right:jax:float32", "right:jax:bfloat16", "right:torch:float64"]
    units = units_of(["right:plain:float32", *ids, "zoo:scale-missing"])
    assert [(unit.home.name, len(unit)) for unit in units] == [("numpy", 1), ("jax", 2), ("torch", 1), ("numpy", 1)]


def test_native_layers_are_right_where_their_deviations_are_listed(monkeypatch):
    ids = ids_of_natives([SimpleNamespace(name="torch")])
    assert len(ids) == 2  # and no alias
    assert all(home_of(id).startswith("backends.torch.native") for id in ids)
    assert ids_of_natives([]) == []
    truth = Known("native:torch:float32", None, "", frozenset(), "")
    table = SimpleNamespace(listed_for=lambda subject, case, dtype: [case] if case == "listed" else [])
    monkeypatch.setattr(unit, "load", lambda: table)
    subject = BuggySubject(BUGS["empty-row-nan"])
    said = diagnosis(BUGS["empty-row-nan"])
    assert not judged(truth, subject, replace(said, failing=("listed",))).wrong
    assert judged(truth, subject, replace(said, failing=("listed", "another"))).wrong
    probed = SimpleNamespace(differs=True, models=((),), behaviour=Behaviour())
    assert judged(truth, subject, replace(diagnosis(), measured=probed)).wrong


def test_a_right_layer_is_tried():
    outcome, found = tried("right:online:float32")
    assert found.failing == ()
    assert found.measured is not None
    assert len(found.measured.outcomes) > 40  # every probe, though no case fails
    assert outcome.verdict is not None
    assert not outcome.verdict.wrong
    assert outcome.group == "right"


def test_units_hold_every_id_and_can_be_sent():
    units = units_of([f"1-{number}" for number in range(9)])
    assert sum(map(len, units)) == 9
    assert pickle.loads(pickle.dumps(units)) == units
    lost = units[0].lost(1, "it died")
    assert (lost.id, lost.verdict, lost.failed) == ("1-1", None, "it died")


def outcome(id, seconds=1.0, **verdict):
    said = {"differs": True, "stage": True, "described": True, "wrong": False, "silent": False, "said": "it"}
    return Outcome(id, "factor", "[what] is wrong", Verdict(**said | verdict), seconds, seconds)


OUTCOMES = [
    outcome("1-0"),
    outcome("1-1", 3.0, described=False, wrong=True, stage=False),
    outcome("1-2", 2.0, described=False, stage=False, silent=True),
    outcome("1-0x2", described=False, stage=False),
    outcome("1-0x3"),
    outcome("1-0g"),
    Outcome("zoo:scale-missing", "", "", None, failed="it died"),
]


def test_figures_are_by_group_and_kind():
    found = report.to_json(OUTCOMES, seed=1, experiments=True, environment={})
    assert list(found["groups"]) == ["singles", "pairs", "triples", "gradients", "zoo"]
    singles = found["groups"]["singles"]
    assert (singles["tried"], singles["stage"], singles["described"], singles["wrong"]) == (3, 1, 1, 1)
    assert (singles["median"], singles["worst"]) == (2.0, 3.0)
    assert singles["kinds"]["factor"]["tried"] == 3
    assert found["groups"]["zoo"]["failed"] == 1
    assert json.loads(json.dumps(found))["outcomes"][1]["verdict"]["wrong"]


def test_what_went_wrong_is_listed_with_its_command():
    console = Console(record=True, width=100)
    report.print_outcomes(console, OUTCOMES)
    text = console.export_text()
    assert "Claimed wrongly: 1\n  mha trials --trial 1-1\n    truth: [what] is wrong\n    said:  it\n" in text
    assert "Called another stage: 1\n  mha trials --trial 1-0x2\n" in text
    assert "Did not run: 1\n  mha trials --trial zoo:scale-missing\n" in text
    assert "7 tried: right first stage of 42.9 %" in text


def mha(*arguments):
    return CliRunner().invoke(main, ["trials", *arguments])


def test_the_command_shows_the_truth_beside_the_diagnosis():
    result = mha("--no-experiments", "--trial", "zoo:softcap-clip")
    assert result.exit_code == 0, result.output
    assert "A right first stage: scores." in result.output
    assert "    softcap-clip: " in result.output
    assert "Judged: differs yes, stage yes, described yes, wrong no, silent no" in result.output


def test_the_command_counts_and_writes(tmp_path):
    path = tmp_path / "trials.json"
    result = mha("--no-experiments", "--singles", "1", "--seed", "1", "--workers", "0", "--json", str(path))
    assert result.exit_code in (0, 1), result.output
    assert "1 tried: right first stage of" in result.output
    written = json.loads(path.read_text())
    assert [one["id"] for one in written["outcomes"]] == ["1-0"]
    assert written["seed"] == 1


def test_the_command_refuses_what_is_no_id():
    result = mha("--trial", "17")
    assert result.exit_code == 2
    assert "a trial is SEED-NUMBER" in result.output
