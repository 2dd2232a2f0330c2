"""The bug zoo: every bug dies, shows where it says, and is another one than the rest; and `mha bugs`."""

import json
import re
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from click.testing import CliRunner

from conformance import zoo
from conformance.cases.table import all_cases
from conformance.cases.table import select as select_cases
from conformance.discovery import members
from conformance.runner import run_case
from conformance.zoo import backward
from conformance.zoo.bug import GRADIENTS, Bug, BuggySubject, Contradiction, DoesNotApply, Table, pipelines
from conformance.zoo.kill import first_difference, kill, smallest_cover
from conformance.zoo.registry import all_bugs, select
from conformance.zoo.variants import noted_run, rerun
from mha.cli.suite.bugs import bugs as command
from mha_core import STAGES, SpecError
from mha_core.reference import forward
from mha_core.reference import pipeline as reference
from mha_core.reference.backward import BACKWARD, collect_gradients
from mha_core.reference.forward import FORWARD
from tests.conformance.zoo.several import SEVERAL
from tests.conformance.zoo.smallest_set import SMALLEST_SET

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

BY_ID = {bug.id: bug for bug in all_bugs()}
PRIME, SQUARE = (next(case for case in all_cases() if case.id == id) for id in ("prime", "ragged-square"))


@pytest.fixture(scope="module")
def table():
    return kill(all_bugs(), [case for case in all_cases() if not case.expensive])


@pytest.fixture(scope="module")
def smallest():
    """Who kills whom among the cases that are enough: a sixth of them."""
    return kill(all_bugs(), select_cases(SMALLEST_SET))


def test_there_are_enough_and_all_say_what_they_are():
    assert len(all_bugs()) >= 75
    assert len(BY_ID) == len(all_bugs())
    for bug in all_bugs():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", bug.id), bug.id
        assert bug.sentence.endswith("."), bug.id
        assert bug.fix.endswith("."), bug.id
        assert bug.stage in (*STAGES, GRADIENTS), bug.id


def test_a_new_module_is_found_and_comes_last(tmp_path, monkeypatch):
    """Beside those of the folder, which are in the order that it gives."""
    harmless = 'BUGS = (Bug("harmless", "Nothing.", "weights", "Nothing.", forward={"weights": lambda state: 1.0}),)'
    (tmp_path / "another.py").write_text(f"from conformance.zoo.bug import Bug\n\n{harmless}\n")
    monkeypatch.setattr(backward, "__path__", [*backward.__path__, str(tmp_path)])
    try:
        assert [bug.id for bug in all_bugs.__wrapped__()] == [*BY_ID, "harmless"]
    finally:
        sys.modules.pop("conformance.zoo.backward.another", None)
        vars(backward).pop("another", None)


@pytest.mark.parametrize("package", [zoo, *members(zoo, folders=True)], ids=lambda package: package.__name__)
def test_an_order_names_what_there_is(package):
    assert set(package.ORDER) <= {
        module.__name__.rpartition(".")[2] for module in members(package, folders=package is zoo)
    }


def test_each_replaces_steps_that_exist():
    for bug in all_bugs():
        assert bug.steps, bug.id
        assert set(bug.forward) <= set(FORWARD), bug.id
        assert set(bug.backward) <= set(BACKWARD), bug.id
        assert (bug.stage == GRADIENTS) == (not bug.forward), bug.id


def test_a_row_with_a_step_that_does_not_exist_is_refused():
    with pytest.raises(SpecError, match="bug 'slip' replaces 'wieghts', which is no step of the definition"):
        Table("weights", "")("slip", "A slip.", {"wieghts": lambda state: 0.0})


def test_each_replaces_one_step_unless_it_is_listed():
    """A bug is one wrong step. One that needs several is a decision, made here."""
    several = {bug.id for bug in all_bugs() if len(bug.steps) > 1}
    assert several == {id for ids in SEVERAL.values() for id in ids.split()}
    assert len(several) == 99


def test_no_bug_replaces_a_step_by_what_it_is():
    for bug in all_bugs():
        for name, step in {**bug.forward, **bug.backward}.items():
            assert step not in (FORWARD.get(name), BACKWARD.get(name)), bug.id


@pytest.mark.nightly("the cases show every bug of the zoo")
def test_every_bug_is_killed_except_the_equivalent_ones(table):
    assert [bug.id for bug in table.not_killed()] == []
    assert [bug.id for bug in table.killed_equivalents()] == []


@pytest.mark.nightly("the cases show every bug of the zoo")
def test_every_bug_shows_first_where_it_says(table):
    assert {
        bug.id: sorted(table.stages(bug, "float64"))
        for bug in table.to_be_killed()
        if bug.stage not in table.stages(bug, "float64")
    } == {}


def by_gradients_alone(table):
    for bug in table.to_be_killed():
        if bug.stage == GRADIENTS:
            assert table.stages(bug, "float64") | table.stages(bug, "float32") == {GRADIENTS}, bug.id


@pytest.mark.nightly("the cases show every bug of the zoo")
def test_what_leaves_every_stage_right_is_found_by_gradients_alone_in_every_case(table):
    by_gradients_alone(table)


def test_what_leaves_every_stage_right_is_found_by_gradients_alone(smallest):
    by_gradients_alone(smallest)


def test_the_smallest_set_kills_every_bug_and_can_spare_no_case(smallest):
    assert [bug.id for bug in smallest.not_killed()] == []
    assert [bug.id for bug in smallest.killed_equivalents()] == []
    killers = {bug.id: set(smallest.killers(bug)) for bug in smallest.to_be_killed()}
    for case in SMALLEST_SET:
        assert any(cases == {case} for cases in killers.values()), f"{case} is not needed"


@pytest.mark.nightly("the cases show every bug of the zoo")
def test_no_two_bugs_are_the_same():
    """Case after case splits those that are still alike, by random sums over every stage and gradient."""
    alike = [list(all_bugs())]
    for case in [case for case in all_cases() if not case.expensive]:
        fingerprints = Fingerprints(case)
        alike = [part for group in alike for part in _split(group, fingerprints)]
    assert [[bug.id for bug in group] for group in alike] == []


def _split(group, fingerprints):
    """The bugs that a case can't tell apart, in groups of two or more."""
    parts = []
    for bug in group:
        mine = fingerprints.of(bug)
        for known, alike in parts:
            if known.shape == mine.shape and np.allclose(known, mine, rtol=1e-9, atol=0.0, equal_nan=True):
                alike.append(bug)
                break
        else:
            parts.append((mine, [bug]))
    return [members for _, members in parts if len(members) > 1]


class Fingerprints:
    """Of every array that bugs give in a case, a random sum of its numbers and one of the places where it has none."""

    def __init__(self, case):
        problem = case.build()
        self.right, self.reads = noted_run(problem.config, problem.weights, problem.inputs)
        self.factor = cache(lambda place, shape: np.random.default_rng(place).normal(size=shape))
        self.known = []
        self.known = [(array, self.sums(place, array)) for place, array in enumerate(self.arrays(self.right, False))]

    def of(self, bug):
        try:
            before, after = pipelines(bug)
            state, changed = rerun(self.right, before, bug.forward, reads=self.reads)
            state, _ = rerun(state, after, bug.backward, changed=changed, since=self.right, reads=self.reads)
        except DoesNotApply:
            return np.empty(0)
        arrays = self.arrays(state, bug.stage == "scores")
        return np.array([sum for place, array in enumerate(arrays) for sum in self.sums(place, array)])

    def arrays(self, state, excluded_scores):
        """Every stage and gradient; of the scores those that count, unless the bug is in them."""
        stages = {name: state[name] for name in STAGES}
        if not excluded_scores and state["scores"] is not self.right["scores"]:
            stages["scores"] = np.where(state["allowed"], state["scores"], 0.0)
        return [*stages.values(), *collect_gradients(state).values()]

    def sums(self, place, array):
        if place < len(self.known) and array is self.known[place][0]:
            return self.known[place][1]
        is_number = np.abs(array) < 1e100  # False for NaN
        factor = self.factor(place, array.shape)
        return (np.where(is_number, array, 0.0) * factor).sum(), (~is_number * factor).sum()


@pytest.mark.nightly("the cases show every bug of the zoo")
def test_killing_agrees_with_judging_each_as_a_subject():
    """`kill` takes shortcuts; `run_case` does not."""
    for case, dtype in ((SQUARE, "float64"), (PRIME, "float32")):
        for bug in all_bugs():
            result = run_case(case, BuggySubject(bug, dtype=dtype))
            try:
                stage = first_difference(bug, case, dtype)
            except DoesNotApply:
                assert result.status == "unsupported", bug.id
                continue
            found = result.mismatches[0].stage.partition(".")[0] if result.mismatches else None
            assert (result.status, found) == ("equal" if stage is None else "different", stage), bug.id


def test_a_bug_that_cannot_be_made_is_neither_killed_nor_a_killer():
    bug = BY_ID["q-proj-weight-transposed"]
    table = kill([bug], [PRIME, SQUARE])
    assert table.impossible == {(bug.id, "prime")}
    assert table.killers(bug) == ["ragged-square"]
    assert table.killed_by(PRIME) == []


def test_a_bug_that_nothing_shows_survives_and_a_wrong_proof_is_found():
    harmless = Bug("harmless", "Nothing.", "weights", "Nothing.", forward={"weights": forward.weights})
    wrong_proof = replace(BY_ID["scale-missing"], equivalent="It is not.")
    table = kill([harmless, wrong_proof], [PRIME])
    assert table.not_killed() == [harmless]
    assert table.killed_equivalents() == [wrong_proof]
    assert table.smallest_set() == ()


def test_a_bug_in_one_dtype_only():
    bug = BY_ID["softmax-in-float32"]
    table = kill([bug], [PRIME])
    assert table.first_stages[bug.id]["prime"] == {"float64": "weights"}


def test_the_smallest_cover_is_smaller_than_a_greedy_one():
    rows = [frozenset(pair) for pair in ("ad", "bd", "be", "ae", "ce")]
    assert smallest_cover("cabde", rows) == ("d", "e")
    # Greedy takes c, which hits four of six, and then needs two more.
    assert smallest_cover("cab", [frozenset(s) for s in ("ca", "ca", "cb", "cb", "a", "b")]) == ("a", "b")


# Bugs together -----------------------------------------------------------------------------------


def test_two_bugs_compose():
    scale, merge = BY_ID["scale-missing"], BY_ID["merge-d-h"]
    first = run_case(PRIME, BuggySubject(scale, merge))
    assert first.subject == "scale-missing+merge-d-h"
    assert first.mismatches[0].stage == "scores"
    problem = PRIME.build()
    both = BuggySubject(scale, merge).prepare(problem.config, problem.weights)(problem.inputs)
    alone = BuggySubject(scale).prepare(problem.config, problem.weights)(problem.inputs)
    np.testing.assert_array_equal(both.heads, alone.heads)
    assert np.abs(both.output - alone.output).max() > 0.1


def test_two_bugs_in_one_step_compose_where_they_change_different_numbers():
    """One empties rows into NaN, the other lets quiet rows underflow: neither hides the other, in either order."""
    first, second = BY_ID["empty-row-nan"], BY_ID["maximum-of-tensor"]
    problem = next(case for case in all_cases() if case.id == "one-loud-item").build()
    mask = replace(problem.inputs.mask, allowed=np.arange(problem.inputs.queries.shape[1])[:, None] > 0)
    inputs = replace(problem.inputs, mask=mask)
    alone = [bug.run_state(problem.config, problem.weights, inputs)["weights"] for bug in (first, second)]
    right = reference.run(problem.config, problem.weights, inputs).weights
    places = [~np.isclose(one, right, rtol=1e-9, atol=0.0, equal_nan=True) for one in alone]
    assert places[0].any()
    assert places[1].any()
    assert not (places[0] & places[1]).any()
    for bugs in ((first, second), (second, first)):
        both = BuggySubject(*bugs).prepare(problem.config, problem.weights)(inputs).weights
        for one, place in zip(alone, places, strict=True):
            np.testing.assert_allclose(both[place], one[place], rtol=1e-9, atol=1e-300)
        np.testing.assert_allclose(both[~places[0] & ~places[1]], right[~places[0] & ~places[1]], rtol=1e-9)


def test_two_bugs_that_change_the_same_number_contradict_each_other():
    problem = PRIME.build()
    run = BuggySubject(BY_ID["scale-missing"], BY_ID["scale-twice"]).prepare(problem.config, problem.weights)
    with pytest.raises(Contradiction, match="two bugs change the same number in one step"):
        run(problem.inputs)
    assert run_case(PRIME, BuggySubject(BY_ID["scale-missing"], BY_ID["scale-twice"])).status == "unsupported"


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_subject_without_bugs_is_right_in_every_dtype(dtype):
    subject = BuggySubject(dtype=dtype)
    assert run_case(PRIME, subject).status == "equal"
    assert (subject.name, subject.dtype) == ("reference", dtype)


def test_bugs_are_found_by_pattern():
    assert [bug.id for bug in select(("scale-given-*",))] == ["scale-given-ignored", "scale-given-on-top"]
    assert select(()) == list(all_bugs())
    with pytest.raises(SpecError, match="bug 'scale-mising' is not known"):
        select(("scale-missing", "scale-mising"))


# The command -------------------------------------------------------------------------------------


def mha_bugs(*arguments):
    return CliRunner(env={"COLUMNS": "200"}).invoke(command, arguments)


def test_bugs_lists_every_bug():
    result = mha_bugs()
    assert result.exit_code == 0
    for bug in all_bugs():
        assert bug.id in result.output
    assert "Seen in lucidrains/vit-pytorch#65." in result.output
    assert "Equivalent: " in result.output


def test_kill_prints_who_kills_whom(tmp_path):
    path = tmp_path / "kill.json"
    chosen = ["-b", "scale-*", "-b", "q-proj-weight-transposed", "-c", "prime", "-c", "ragged-square", "-c", "scale"]
    result = mha_bugs("--kill", *chosen, "--json", str(path))
    assert result.exit_code == 0, result.output
    count = len(select(("scale-*", "q-proj-weight-transposed")))
    assert f"{count} of {count} bugs killed by 3 cases in float64 and float32 together." in result.output
    assert re.search(r"scale-given-ignored +scores +1 +scale\n", result.output)
    assert re.search(r"ragged-square +\d+ +q-proj-weight-transposed", result.output)
    assert "The fewest cases that kill as many: 3 (ragged-square, prime, scale)." in result.output
    report = json.loads(path.read_text())
    assert report["schema"] == 1
    (transposed,) = (bug for bug in report["bugs"] if bug["id"] == "q-proj-weight-transposed")
    assert transposed["killed_by"] == {"ragged-square": {"float64": "queries", "float32": "queries"}}
    assert transposed["impossible_in"] == ["prime", "scale"]


def test_kill_exits_1_if_a_bug_survives():
    result = mha_bugs("--kill", "-b", "scale-given-ignored", "-c", "prime")
    assert result.exit_code == 1
    assert "0 of 1 bugs killed by 1 cases" in result.output
    assert "survives: scale-given-ignored. A given scale is ignored" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bug", "scale-mising"], "bug 'scale-mising' is not known; `mha bugs` lists them"),
        (["--kill", "--case", "primes"], "case 'primes' is not known"),
        (["--kill", "--json", "/no/such/folder/kill.json"], "There is no /no/such/folder"),
        (["--case", "prime"], "--case and --json belong to --kill"),
        (["--json", "kill.json"], "--case and --json belong to --kill"),
    ],
)
def test_bad_arguments_exit_2_before_anything_runs(arguments, message):
    result = mha_bugs(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "killed" not in result.output
