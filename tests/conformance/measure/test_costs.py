"""Subjects whose calls take long, or that take some sizes alone: asked less, or nearby, and explained all the same."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.cases.table import all_cases
from conformance.diagnosis.diagnose import diagnose
from conformance.measure import asker as asker_module
from conformance.measure.asker import LEAST_CONFIGS, SECONDS, SLOW, Asker
from conformance.measure.designs import CONFIGS, NO_BIASES, generic, resized
from conformance.measure.evidence import Evidence
from conformance.measure.probes import select_probes
from conformance.measure.search.measure import measure
from conformance.measure.text import experiments_text
from conformance.subjects.ask import SubjectFailed
from conformance.zoo.bug import Bug, BuggySubject
from conformance.zoo.variants import Variants
from mha_core import AttentionMask, Trace
from tests.conformance.measure.wrong import OutputAlone, wrong_at

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

SCALED = wrong_at("similarity", lambda s, scores: s["unscaled"] * s.config.softmax_scale * 1.3 * s.config.key_dim**-0.5)


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
    monkeypatch.setattr(asker_module, "time", subject)
    asker = Asker(subject)
    found = measure(subject, asker=asker, probes=select_probes(["softmax"]), zoo=())
    assert len(asker.configs) == LEAST_CONFIGS
    assert asker.spent < 2 * SECONDS  # 80 sizes of 0.7 s, if it were asked everything
    assert asker.costs.spared > 50
    assert not asker.why_refused()
    assert not found.unexplained
    assert [len(model) for model in found.models] == [len(bugs)] * len(found.models)
    if bugs:
        assert "1.3" in found.models[0][0].sentence
    assert f"{asker.costs.spared} questions more were not asked" in "".join(experiments_text(found, details=True))


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
    monkeypatch.setattr(asker_module, "time", subject)
    found = measure(subject, probes=select_probes(["one-key", "scores"]), zoo=())
    assert subject.limits == [10.0, 1.0]  # and no more calls with one key
    silent = {outcome.probe.id for outcome in found.outcomes if not outcome.asked}
    assert "one-key" in silent
    assert "scores" not in silent
    assert "1.3" in found.models[0][0].sentence
    said = "\n".join(experiments_text(found, details=True))
    assert "calls with Lk=1 had no answer in time, so no more of them were made" in said


def test_gradients_are_asked_for_only_where_they_are_compared():
    asked = []

    class Counting(BuggySubject):
        def prepare(self, config, weights):
            run = super().prepare(config, weights)
            return lambda inputs: (asked.append(inputs.cotangent is not None), run(inputs))[1]

    asker = Asker(Counting())
    assert asked == [True, *[False] * (len(asker.configs) - 1)]
    assert not asker.hides_gradients
    found = measure(asker.subject, asker=asker, probes=select_probes(["one-key", "gradients"], alone=True), zoo=())
    assert [bool(outcome.asked) for outcome in found.outcomes] == [True, True]
    forward, backward = (outcome.asked for outcome in found.outcomes)
    assert all(asker.ask(problem).gradients is None for problem in forward)
    assert all(asker.ask(problem, gradients=True).gradients for problem in backward)


def test_one_search_leaves_time_for_what_follows(monkeypatch):
    subject = Compiled()
    monkeypatch.setattr(asker_module, "time", subject)
    asker = Asker(subject, configs=CONFIGS[:1])
    asker.ask(generic(CONFIGS[0]))
    sizes = iter(range(6, 200))
    with asker.sparing():
        while not asker.out_of_time:
            asker.ask(generic(CONFIGS[0], key_len=next(sizes)))
        refused = generic(CONFIGS[0], key_len=next(sizes))
        assert asker.ask(refused) is None
    assert 0.4 < asker.spent / (SLOW * SECONDS) < 0.6
    assert asker.ask(refused) is not None


def test_what_there_was_no_time_for_is_not_said_to_be_refused(monkeypatch):
    subject = Compiled()
    subject.seconds = 7.0
    monkeypatch.setattr(asker_module, "time", subject)
    found = measure(subject, asker=Asker(subject), probes=select_probes(["one-key", "lengths"], alone=True))
    assert [outcome.late for outcome in found.outcomes] == [False, True]
    assert not found.silent
    said = "\n".join(experiments_text(found))
    assert "Not asked, because its time was over: lengths." in said
    assert "gave no answer" not in said


# Of some sizes alone ---------------------------------------------------------------------------------------------

CASES = [case for case in all_cases() if not case.expensive]
MIXED = wrong_at("output", lambda state, output: output + 0.5 * np.roll(output, -1, axis=1))


def of_sizes(*bugs: Bug, batches=(), query_lens=(), key_lens=()) -> OutputAlone:
    """A layer with bugs that takes only some sizes."""

    def takes(config, inputs):
        sizes = (*inputs.queries.shape[:2], inputs.keys.shape[1])
        limits = zip(sizes, (batches, query_lens, key_lens), strict=True)
        return not inputs.is_split and all(not taken or size in taken for size, taken in limits)

    return OutputAlone(*bugs, takes=takes)


def test_what_a_problem_is_made_for_stays_in_other_sizes():
    channels = np.broadcast_to(np.arange(1.0, 6.0)[None, :, None], (1, 5, CONFIGS[0].key_dim))
    problem = generic(CONFIGS[0], keys=channels, values=0.0, queries=np.ones((1, 3, CONFIGS[0].query_dim)))
    given = resized(problem, 2, 4, 7).inputs
    np.testing.assert_allclose(given.keys[1, :, 0], [1.0, 2.0, 3.0, 4.0, 5.0, -0.7, -1.4])
    assert np.ptp(given.keys, axis=-1).max() == 0.0
    assert given.values.shape == (2, 7, CONFIGS[0].value_dim)
    assert not given.values.any()
    assert (given.queries == 1.0).all()


def test_masks_and_dropout_have_the_other_sizes_too():
    mask = AttentionMask(
        valid_lens=np.array([5, 2]),
        allowed=np.eye(3, 5, dtype=bool)[None, None],
        bias=np.arange(5.0),
        causal=True,
        query_offset=np.array([0, 3]),
    )
    problem = generic(CONFIGS[0], batch=2, mask=mask, dropout_keep=np.ones((2, 4, 3, 5), bool))
    given = resized(problem, 3, 2, 4).inputs
    np.testing.assert_array_equal(given.mask.valid_lens, [4, 2, 4])
    np.testing.assert_array_equal(given.mask.allowed, np.eye(2, 4, dtype=bool)[None, None])
    np.testing.assert_array_equal(given.mask.bias, np.arange(4.0))
    np.testing.assert_array_equal(given.mask.query_offset, [0, 3, 0])
    assert given.dropout_keep.shape == (3, 4, 2, 4)


def test_what_has_the_sizes_or_nothing_of_them_is_left_as_it_is():
    problem, none = generic(CONFIGS[0]), generic(CONFIGS[0], key_len=0)
    assert resized(problem, 1, 3, 5) is problem
    assert resized(none, 2, 3, 7) is none


@pytest.mark.parametrize(
    ("taken", "sizes"),
    [
        ({"batches": (2,), "key_lens": (7,)}, (2, None, 7)),
        ({"batches": (2,), "query_lens": (5,), "key_lens": (7,)}, (2, 5, 7)),
    ],
)
def test_which_sizes_a_subject_takes_is_learnt_from_the_calls_that_it_answered(taken, sizes):
    asker = Asker(of_sizes(**taken))
    assert not asker.configs
    asker.learn([generic(CONFIGS[0], batch=2, query_len=5, key_len=7)])
    assert asker.sizes == sizes
    assert asker.configs == CONFIGS[:4]
    assert asker.output(asker.generic(CONFIGS[1], batch=3, key_len=4)) is not None


def test_a_subject_that_takes_the_usual_sizes_is_asked_as_ever():
    asker = Asker(of_sizes())
    asked = asker.questions
    asker.learn([generic(CONFIGS[0], batch=2, query_len=5, key_len=7)])
    problem = generic(CONFIGS[0])
    assert asker.sizes == (None, None, None)
    assert asker.questions == asked
    assert asker.nearest([problem, problem]) == [problem, problem]


def test_of_a_subject_that_takes_one_size_a_fault_on_no_file_is_measured():
    subject = of_sizes(MIXED, batches=(2,), query_lens=(5,), key_lens=(7,))
    asker = Asker(subject)
    asker.learn([generic(CONFIGS[0], batch=2, query_len=5, key_len=7)])
    found = measure(subject, asker=asker, zoo=(), probes=select_probes(("chosen-keys",), alone=True))
    assert all(outcome.differing and outcome.explained for outcome in found.outcomes)
    other = asker.generic(CONFIGS[4], seed=3, weights=NO_BIASES)  # nothing was read off one of this layer
    assert not list(Evidence(asker, Variants(), found.models[0], (other,)).differing())
    assert list(Evidence(asker, Variants(), (), (other,)).differing())
    assert "Of what it was asked it took B=2 Lq=5 Lk=7 alone" in "\n".join(experiments_text(found))


def test_of_a_right_subject_that_takes_one_size_nothing_is_found():
    subject = of_sizes(batches=(2,), query_lens=(5,), key_lens=(7,))
    found = diagnose(subject, CASES, experiments=True)
    assert not found.differs
    assert found.measured.asker.sizes == (2, 5, 7)
