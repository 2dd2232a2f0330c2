"""Subjects whose calls take long, as those that compile for every new size: asked less, and named all the same."""

from __future__ import annotations

import pytest

from conformance.measure import asker as asker_module
from conformance.measure.designs import CONFIGS, generic
from conformance.measure.asker import LEAST_CONFIGS, SECONDS, SLOW, Asker
from conformance.measure.probes import select_probes
from conformance.measure.search.measure import measure
from conformance.measure.text import experiments_text
from conformance.measure.budget import AGAIN, NEW, OTHER_MASK, PACE, Costs, answered
from conformance.subjects.ask import SubjectFailed
from conformance.zoo.bug import Bug, BuggySubject
from mha_core import AttentionMask, Trace
from mha_core.reference import forward

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

SCALED = Bug(
    "mine", "", "scores", "", forward={"similarity": lambda s: forward.similarity(s) * 1.3 * s.config.key_dim**-0.5}
)


class Compiled(BuggySubject):
    """A layer that compiles for all sizes of a call, in seconds of a clock of its own."""

    seconds = 0.7

    def __init__(self, *bugs: Bug) -> None:
        super().__init__(*bugs)
        self.now = 0.0
        self.sizes: set[object] = set()

    def perf_counter(self) -> float:
        return self.now

    def prepare(self, config, weights):
        run = super().prepare(config, weights)

        def timed(inputs):
            sizes = config, inputs.queries.shape, inputs.keys.shape
            self.now += 0.001 if sizes in self.sizes else self.seconds
            self.sizes.add(sizes)
            return Trace(output=run(inputs).output)

        return timed


@pytest.mark.parametrize("bugs", [(), (SCALED,)], ids=["right", "wrong"])
def test_a_compiled_subject_is_measured_in_time(monkeypatch, bugs):
    subject = Compiled(*bugs)
    monkeypatch.setattr(lab_module, "time", subject)
    lab = Asker(subject)
    found = measure(subject, lab=lab, probes=select_probes(["softmax"]), zoo=())
    assert len(lab.configs) == LEAST_CONFIGS
    assert lab.spent < 2 * SECONDS  # 80 sizes of 0.7 s, if it were asked everything
    assert lab.costs.spared > 50
    assert not lab.why_refused()
    assert not found.unexplained
    assert [len(model) for model in found.models] == [len(bugs)] * len(found.models)
    if bugs:
        assert "1.3" in found.models[0][0].sentence
    assert f"{lab.costs.spared} questions more were not asked" in "".join(experiments_text(found, details=True))


class Hangs(BuggySubject):
    """A layer that never answers a call with one key, in seconds of a clock of its own."""

    def __init__(self, *bugs: Bug) -> None:
        super().__init__(*bugs)
        self.now, self.limits = 0.0, []

    def perf_counter(self) -> float:
        return self.now

    def within(self, seconds):
        self.limit = min(seconds, 60.0)
        return self

    def prepare(self, config, weights):
        run = super().prepare(config, weights)

        def asked(inputs):
            if inputs.keys.shape[1] == 1:
                self.limits.append(self.limit)
                self.now += self.limit
                raise SubjectFailed(f"no answer within {self.limit:g} s")
            self.now += 0.001
            return Trace(output=run(inputs).output)

        return asked


def test_calls_that_have_no_answer_in_time_cost_no_others_theirs(monkeypatch):
    subject = Hangs(SCALED)
    monkeypatch.setattr(lab_module, "time", subject)
    found = measure(subject, probes=select_probes(["one-key", "scores"]), zoo=())
    assert subject.limits == [10.0, 1.0]  # and no more calls with one key
    silent = {outcome.probe.id for outcome in found.outcomes if not outcome.asked}
    assert "one-key" in silent
    assert "scores" not in silent
    assert "1.3" in found.models[0][0].sentence
    said = "\n".join(experiments_text(found, details=True))
    assert "calls with Lk=1 had no answer in time, so no more of them were made" in said


def test_what_a_call_costs_is_learned_from_those_of_its_kind():
    costs = Costs()
    plain = [generic(CONFIGS[0], key_len=keys) for keys in (4, 5, 6)]
    for problem, seconds in zip(plain, (0.3, 5.0, 0.4), strict=True):  # one was slow for another reason
        assert costs.newness(problem) == NEW
        costs.note(problem, seconds)
    assert costs.slow
    assert costs.expected(generic(CONFIGS[1])) == pytest.approx(0.35)
    assert costs.newness(generic(CONFIGS[0], key_len=4, seed=3)) == AGAIN
    causal = generic(CONFIGS[0], key_len=4, mask=AttentionMask(causal=True))
    assert costs.newness(causal) == OTHER_MASK
    assert not costs.is_dear(causal)  # not known to be


def test_dear_questions_are_asked_only_if_an_answer_is_not_as_expected():
    problems = [generic(CONFIGS[0], key_len=keys) for keys in (4, 5, 6, 7)]
    costs = Costs()
    costs.note(problems[2], 1.0)  # so that alone is cheap

    def asking(*wrong):
        asked = []
        return asked, lambda one: (asked.append(one), one not in wrong)[1]

    def plain(problem):
        return problem

    asked, answer = asking()
    costs._seconds[AGAIN] = [0.001]
    assert answered(problems, costs, plain, answer) == asked == [problems[2]]
    assert costs.spared == 3
    asked, answer = asking(problems[2])
    assert answered(problems, costs, plain, answer) == problems
    assert answered(problems, costs, plain, lambda one: None) == []


def test_dear_questions_are_asked_where_those_before_took_little():
    costs, problem = Costs(), generic(CONFIGS[0])
    costs.note(problem, 2 * PACE)
    other = generic(CONFIGS[1])
    assert costs.is_dear(other)
    costs.spared += 2  # on average these three took less than PACE, and four with another will
    assert not costs.is_dear(other)
    costs.note(problem, 10 * PACE)
    assert costs.is_dear(other)


def test_gradients_are_asked_for_only_where_they_are_compared():
    asked = []

    class Counting(BuggySubject):
        def prepare(self, config, weights):
            run = super().prepare(config, weights)
            return lambda inputs: (asked.append(inputs.cotangent is not None), run(inputs))[1]

    lab = Asker(Counting())
    assert asked == [True, *[False] * (len(lab.configs) - 1)]
    assert not lab.hides_gradients
    found = measure(lab.subject, lab=lab, probes=select_probes(["one-key", "gradients"], alone=True), zoo=())
    assert [bool(outcome.asked) for outcome in found.outcomes] == [True, True]
    forward, backward = (outcome.asked for outcome in found.outcomes)
    assert all(lab.ask(problem).gradients is None for problem in forward)
    assert all(lab.ask(problem, gradients=True).gradients for problem in backward)


def test_the_cheapest_problem_of_a_probe_is_asked_first():
    costs, asked = Costs(), []
    known, new = generic(CONFIGS[0]), generic(CONFIGS[1])
    costs.note(known, 0.5)
    costs.note(known, 0.03)
    assert answered([new, known], costs, lambda one: one, lambda one: (asked.append(one), True)[1]) == [known]
    assert asked == [known]


def test_one_search_leaves_time_for_what_follows(monkeypatch):
    subject = Compiled()
    monkeypatch.setattr(lab_module, "time", subject)
    lab = Asker(subject, configs=CONFIGS[:1])
    lab.ask(generic(CONFIGS[0]))
    sizes = iter(range(6, 200))
    with lab.sparing():
        while not lab.out_of_time:
            lab.ask(generic(CONFIGS[0], key_len=next(sizes)))
        refused = generic(CONFIGS[0], key_len=next(sizes))
        assert lab.ask(refused) is None
    assert 0.4 < lab.spent / (SLOW * SECONDS) < 0.6
    assert lab.ask(refused) is not None


def test_what_there_was_no_time_for_is_not_said_to_be_refused(monkeypatch):
    subject = Compiled()
    subject.seconds = 7.0
    monkeypatch.setattr(lab_module, "time", subject)
    found = measure(subject, lab=Asker(subject), probes=select_probes(["one-key", "lengths"], alone=True))
    assert [outcome.late for outcome in found.outcomes] == [False, True]
    assert not found.silent
    said = "\n".join(experiments_text(found))
    assert "Not asked, because its time was over: lengths." in said
    assert "gave no answer" not in said


def test_what_was_slow_stays_slow():
    costs = Costs()
    for seconds, lengths in ((1.0, range(1, 9)), (0.001, range(9, 30))):
        for keys in lengths:
            costs.note(generic(CONFIGS[0], key_len=keys), seconds)
    assert costs.slow
    first = Costs()
    for keys in range(1, 9):
        first.note(generic(CONFIGS[0], key_len=keys), 1.0 if keys == 1 else 0.001)
    assert not first.slow
