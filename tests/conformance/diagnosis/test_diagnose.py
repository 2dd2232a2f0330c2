"""Diagnosis: the right first answer for every bug of the zoo, and for most pairs, from what a subject shows."""

from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest

from conformance.cases.table import all_cases
from conformance.diagnosis.brief import NO_CAUSE, describe
from conformance.diagnosis.diagnose import Runs, diagnose, observe
from conformance.diagnosis.hypotheses import Evidence
from conformance.subjects.ask import within
from conformance.subjects.seen import SecondCall
from conformance.zoo.bug import BuggySubject, compatible
from conformance.zoo.registry import all_bugs, bugs_of_large_blocks
from mha_core import STAGES, SpecError, Trace
from mha_core.reference.forward import FORWARD

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

CASES = [case for case in all_cases() if not case.expensive]


FEW = [case for case in CASES if case.key_len < 64][::4]
"""Enough of them where the search is long."""


class Showing(BuggySubject):
    """A buggy subject that shows its output, and nothing else unless told so."""

    def __init__(self, *bugs, gradients=False, stages=False, **keywords):
        super().__init__(*bugs, **keywords)
        self.gradients, self.stages = gradients, stages

    def prepare(self, config, weights):
        run = super().prepare(config, weights)

        def shown(inputs):
            trace = run(inputs if self.gradients else replace(inputs, cotangent=None))
            return trace if self.stages else Trace(output=trace.output, gradients=trace.gradients)

        return shown


FORWARD_BUGS = [bug for bug in all_bugs() if not bug.equivalent and bug.forward]
BACKWARD_BUGS = [bug for bug in all_bugs() if not bug.equivalent and not bug.forward]

RUNS = Runs()


@pytest.fixture
def runs():
    return RUNS


@cache
def from_its_output(bug):
    """The diagnosis of a subject with one bug that shows its output alone."""
    return diagnose(Showing(bug), CASES, runs=RUNS)


@pytest.mark.nightly("every bug on file is named", every=12)
@pytest.mark.parametrize("bug", FORWARD_BUGS, ids=lambda bug: bug.id)
def test_every_forward_bug_is_named_from_outputs_alone(bug, runs):
    found = from_its_output(bug)
    if not found.failing:
        # Not every wrong stage moves the output: a key bias, for one, shifts every score of a row alike.
        found = diagnose(Showing(bug, stages=True), CASES, runs=runs)
    assert bug.id in [explanation.name for explanation in found.explanations]
    assert all(explanation.explained == explanation.total for explanation in found.explanations)


@pytest.mark.nightly("every bug on file is named", every=12)
@pytest.mark.parametrize("bug", BACKWARD_BUGS, ids=lambda bug: bug.id)
def test_every_backward_bug_is_named_from_gradients(bug, runs):
    found = diagnose(Showing(bug, gradients=True), CASES, runs=runs)
    assert bug.id in [explanation.name for explanation in found.explanations]


@pytest.mark.nightly("every bug on file is named")
def test_few_bugs_are_left_with_more_than_one_explanation():
    """From outputs alone, some bugs give the very same numbers in every case; they are reported together."""
    sizes = [len(from_its_output(bug).explanations) for bug in FORWARD_BUGS]
    assert np.mean([size <= 1 for size in sizes]) > 0.8


def random_pairs(count):
    visible = [bug for bug in FORWARD_BUGS if from_its_output(bug).failing]
    pairs = [pair for pair in combinations(visible, 2) if compatible(*pair)]
    chosen = np.random.default_rng(0).choice(len(pairs), size=count, replace=False)
    return [pairs[int(index)] for index in chosen]


@pytest.mark.nightly("two bugs at once are named")
def test_at_least_8_of_10_random_pairs_are_named(runs):
    right = 0
    for pair in random_pairs(10):
        found = diagnose(Showing(*pair), CASES, runs=runs)
        names = [set(explanation.name.split(" + ")) for explanation in found.explanations]
        right += {bug.id for bug in pair} in names
    assert right >= 8


@pytest.mark.nightly("two bugs at once are named")
def test_three_bugs_at_once_are_named(runs):
    """What an ordinary layer tends to have: empty rows that are NaN, padding that leaks, and a mistake of its own."""
    bugs = [bug for bug in FORWARD_BUGS if bug.id in ("empty-row-nan", "padding-not-zeroed", "scale-query-dim")]
    found = diagnose(Showing(*bugs), FEW, runs=runs, experiments=True)
    assert {bug.id for bug in bugs} in [set(explanation.name.split(" + ")) for explanation in found.explanations]


class TextbookSoftmax(Showing):
    """A layer around the softmax of a textbook: the maximum is that of the whole array, and no row is looked after."""

    def __init__(self, **keywords):
        super().__init__(**keywords)
        self.name = "TextbookSoftmax"
        self._forward = {**self._forward, "weights": self.weights}

    @staticmethod
    def weights(state):
        x = np.where(state["allowed"], state["scores"], -np.inf)
        exponentials = np.exp(x - x.max(initial=-np.inf))
        return exponentials / exponentials.sum(axis=-1, keepdims=True)


@pytest.mark.nightly("two bugs at once are named")
@pytest.mark.parametrize("stages", [False, True])
def test_two_bugs_of_one_step_are_named(stages, runs):
    found = diagnose(TextbookSoftmax(stages=stages), CASES, runs=runs)
    assert len(found.failing) > 20
    best = (found.explanations + found.partly + found.closest)[0]
    assert {bug.id for bug in best.bugs} == {"empty-row-nan", "maximum-of-tensor"}
    assert best.failing > 20


def test_bugs_that_contradict_each_other_explain_nothing(runs):
    """Of a layer with one of them, the other can't be in it too: no case is taken as explained by both."""
    one, other = (next(bug for bug in FORWARD_BUGS if bug.id == id) for id in ("scale-missing", "scale-twice"))
    found = diagnose(Showing(one), FEW, bugs=[one, other], runs=runs)
    assert [best.name for best in found.explanations] == ["scale-missing"]
    observations, _ = observe(Showing(one), FEW)
    evidence = Evidence(runs, "float64")
    assert {evidence.explains(observation, (one, other)) for observation in observations} <= {False, True}
    assert all(
        not evidence.explains(observation, (one, other)) for observation in observations if observation.mismatches
    )


@pytest.mark.nightly("the first wrong step is found")
def test_the_first_wrong_stage_is_named_where_stages_are_visible(runs):
    """A mask that is wrong shows at `weights`, and where it makes padding of other keys at `keys` already."""
    right, some = 0, FORWARD_BUGS[::7]
    for bug in some:
        found = diagnose(Showing(bug, stages=True), CASES, bugs=(), runs=runs)  # what differs stands before any search
        assert STAGES.index(found.mismatch.stage) <= STAGES.index(bug.stage), bug.id
        right += found.mismatch.stage == bug.stage
    assert right >= 0.9 * len(some)


def test_a_right_subject_has_nothing_to_explain(runs):
    found = diagnose(Showing(), CASES, runs=runs)
    assert not found.failing
    assert "There is nothing to explain" in describe(found)


@pytest.mark.nightly("no bug on file is named for an unknown one")
def test_of_an_unknown_bug_nothing_is_called_close(runs):
    """What "explains" only cases that are right anyway is no hypothesis."""

    class Unknown(Showing):
        def prepare(self, config, weights):
            run = super().prepare(config, weights)
            return lambda inputs: Trace(output=run(inputs).output * 1.001)

    found = diagnose(Unknown(), CASES, runs=runs)
    assert not found.explanations + found.partly + found.closest
    assert NO_CAUSE in describe(found)


class Changed(Showing):
    """A subject with a change to its output, told by the inputs."""

    def __init__(self, *bugs, change, **keywords):
        super().__init__(*bugs, **keywords)
        self.change = change

    def prepare(self, config, weights):
        run = super().prepare(config, weights)
        return lambda inputs: Trace(output=self.change(inputs, run(inputs).output))


def without_nan(inputs, output):
    return np.nan_to_num(output, nan=0.5, posinf=7.0)


@pytest.mark.nightly("two bugs at once are named")
def test_what_explains_all_but_a_few_cases_is_named_with_these(runs):
    bug = next(bug for bug in FORWARD_BUGS if bug.id == "scale-missing")
    found = diagnose(Changed(bug, change=without_nan), CASES, runs=runs)
    assert not found.explanations
    (best,) = found.partly
    assert best.name == "scale-missing"
    changed = {"nan-in-open-key", "infinity-in-open-value", "nan-under-softcap", "square-nan-in-query"}
    assert {miss.case for miss in best.misses} == changed
    assert (best.explained, best.failing) == (best.total - 4, best.of_failing - 4)
    text = describe(found)
    assert f"How sure: this explains {best.failing} of {best.of_failing} failing cases, {best.explained} of" in text
    assert "nan-in-open-key, where output[0, 1, 0] is 0.5, with this mistake nan" in text


@pytest.mark.nightly("two bugs at once are named")
def test_a_narrow_bug_is_named_beside_other_differences(runs):
    """It fails in five ordinary cases, and in as many extreme ones for another reason."""
    bug = next(bug for bug in FORWARD_BUGS if bug.id == "bias-shared-by-heads")
    found = diagnose(Changed(bug, change=without_nan), CASES, runs=runs)
    assert [best.name for best in found.partly] == ["bias-shared-by-heads"]


def loud_beside_numbers_that_are_not_finite(inputs, output):
    return output + 0.5 * (not all(np.isfinite(array).all() for array in (inputs.keys, inputs.values)))


def test_what_is_wrong_in_ordinary_calls_is_named_beside_what_nothing_explains_in_extreme_ones():
    """Two bugs in ordinary calls, and two more in extreme ones, one of which is on no file."""
    some = [bug for bug in FORWARD_BUGS if bug.id in ("scale-given-ignored", "dot-scaled", "empty-row-nan")]
    asked = ("prime", "scale", "dot", "square-dot", "square-scale", "valid-lens", "causal", "nan-in-padding")
    cases = [case for case in CASES if case.id in asked]
    found = diagnose(Changed(*some, change=loud_beside_numbers_that_are_not_finite), cases, experiments=True)
    assert not found.explanations
    (best,) = found.partly
    assert {bug.id for bug in best.bugs} == {bug.id for bug in some}
    assert [miss.case for miss in best.misses] == ["nan-in-padding"]
    assert found.ordinary > 100
    said = describe(found)
    assert f"How sure: {found.ordinary} further calls confirm it; it explains 4 of 5 cases that fail." in said
    assert "Not explained: 1 with NaN, infinity or a size of 0 (nan-in-padding)." in said


class OtherStages(Showing):
    """Shows stages that are not as the definition has them, and do no harm: queries scaled early, keys unpadded."""

    def prepare(self, config, weights):
        run = super().prepare(config, weights)

        def shown(inputs):
            trace = run(replace(inputs, cotangent=None))
            noise = np.random.default_rng(0).normal(size=trace.keys.shape)
            lens = inputs.mask.valid_lens
            if lens is not None and np.ndim(lens) == 1:
                padded = np.arange(trace.keys.shape[2]) >= lens[:, None]
                trace = replace(trace, keys=trace.keys + noise * padded[:, None, :, None])
            return replace(trace, queries=trace.queries * config.softmax_scale)

        return shown


def test_harmless_stages_do_not_veto(runs):
    bug = next(bug for bug in FORWARD_BUGS if bug.id == "merge-reversed")
    found = diagnose(OtherStages(bug, stages=True), FEW, runs=runs)
    assert "merge-reversed" in [best.name for best in found.explanations + found.partly]
    best = (found.explanations + found.partly)[0]
    assert best.others["queries"] > len(FEW) / 2
    assert "Besides, it shows other arrays, which leave the output as it is: queries" in describe(found)


def test_float32_inside_is_said_and_does_not_hide_the_bug(runs):
    def rounded(inputs, output):
        return output.astype(np.float32).astype(np.float64)

    found = diagnose(Changed(change=rounded), CASES, runs=runs)
    assert (found.inside, found.explanations[0].name) == (None, "output-in-float32")
    bug = next(bug for bug in FORWARD_BUGS if bug.id == "scale-without-root")
    found = diagnose(Changed(bug, change=rounded), CASES, runs=runs)
    assert "scale-without-root" in [best.name for best in found.explanations + found.partly]
    assert "It computes in float32, at least in part: every output is such a number." in describe(found)


WINDOW, LONG = (next(case for case in all_cases() if case.id == id) for id in ("window", "blocks-long"))


class InLargeCases(Showing):
    """Wrong where there are many keys, as by another path; right elsewhere."""

    def prepare(self, config, weights):
        wrong, right = super().prepare(config, weights), Showing().prepare(config, weights)
        return lambda inputs: (wrong if inputs.keys.shape[1] > 50 else right)(inputs)


@pytest.mark.nightly("a bug of large cases alone is named")
def test_a_bug_in_one_expensive_case_alone_is_diagnosed(runs):
    bug = next(bug for bug in bugs_of_large_blocks() if bug.id == "online-never-rescaled-of-64")
    found = diagnose(Showing(bug), [*FEW, WINDOW, LONG], runs=runs)
    assert found.failing == ("blocks-long",)
    assert [best.name for best in found.explanations] == ["online-never-rescaled-of-64"]

    bug = next(bug for bug in FORWARD_BUGS if bug.id == "window-one-more-on-the-left")
    found = diagnose(InLargeCases(bug), [*FEW, WINDOW, LONG], runs=runs)
    assert found.failing == ("blocks-long",)
    assert [best.name for best in found.partly] == [bug.id]
    assert "How sure: this explains what fails, though it would show in" in describe(found)


def test_what_cannot_be_run_is_left_out_with_its_reason(runs):
    class Partial(Showing):
        def prepare(self, config, weights):
            if config.score == "additive":
                raise NotImplementedError("additive scores are not for us")
            return super().prepare(config, weights)

    found = diagnose(Partial(FORWARD_BUGS[0]), CASES, runs=runs)
    assert found.left_out["additive"] == "NotImplementedError: additive scores are not for us"
    names = [name for name, why in found.left_out.items() if "additive" in why]
    assert names[0] == "additive"
    said = f"raised in {len(names)} cases ({', '.join(names[:3])} and {len(names) - 3} more). Else it differs in"
    assert said in describe(found)
    assert f"{len(names)} cases that raised (NotImplementedError: additive scores are not for us)" in describe(found)


def test_nothing_to_go_by_is_an_error():
    class Broken(Showing):
        def prepare(self, config, weights):
            raise RuntimeError("no kernel")

    with pytest.raises(SpecError, match="could not run a single case: RuntimeError: no kernel"):
        diagnose(Broken(), CASES[:2])


class Moved(Showing):
    """A buggy subject whose output has its axes in another order."""

    order = (1, 0, 2)

    @classmethod
    def by(cls, order, *bugs):
        found = cls(*bugs)
        found.order = order
        return found

    def prepare(self, config, weights):
        run = super().prepare(config, weights)
        return lambda inputs: {"output": run(inputs).output.transpose(self.order)}


def test_of_outputs_with_exchanged_axes_that_is_said_and_what_else_is_wrong():
    bug = next(bug for bug in FORWARD_BUGS if bug.id == "out-proj-bias-missing")
    found = diagnose(Moved(bug), FEW, runs=RUNS)
    assert found.failing
    assert found.formed is not None
    assert [[one.id for one in told.bugs] for told in found.formed.explanations] == [["out-proj-bias-missing"]]
    assert "Every output is (Lq, B, Do), and must be (B, Lq, Do). Change: Exchange axes 0 and 1." in describe(found)
    assert diagnose(Showing(bug), FEW, runs=RUNS).formed is None
    turned = describe(diagnose(Moved.by((0, 2, 1), bug), FEW, runs=RUNS))
    assert "Every output is (B, Do, Lq), and must be (B, Lq, Do). Change: Exchange axes 1 and 2." in turned
    rolled = describe(diagnose(Moved.by((2, 0, 1)), FEW, runs=RUNS))
    assert "output: Every output is (Do, B, Lq), and must be (B, Lq, Do).\nChange: Transpose it by (1, 2, 0)." in rolled
    right = diagnose(Moved(), FEW, runs=RUNS)
    assert right.differs
    assert "\nAll is right then, in 28 cases.\n" in describe(right)


def test_second_calls_have_the_shorter_time_limit_of_their_subject_if_it_has_one():
    class Limited(Showing):
        def within(self, seconds):
            self.limit = seconds
            return self

    for subject in (Limited(), Showing()):
        assert isinstance(within(SecondCall(subject), 3.0), SecondCall)
    limited = Limited()
    within(SecondCall(limited), 3.0)
    assert limited.limit == 3.0


def test_rounded_parameters_explain_no_other_rounding(runs):
    """Scores in float16 are as far off as a rounded weight would be; but that one gives what it gives to the bit."""
    right, bfloat16 = FORWARD["unscaled"], next(bug for bug in all_bugs() if bug.id == "scores-in-bfloat16")
    rounded = [bug for bug in all_bugs() if bug.id in ("q-proj-weight-in-float16", "parameters-in-bfloat16")]
    narrow = replace(bfloat16, forward={"unscaled": lambda state: right(state).astype(np.float16).astype(np.float64)})
    evidence = Evidence(runs, "float32")
    for bug, explained in ((narrow, [False, False]), (rounded[0], [True, False]), (rounded[1], [False, True])):
        several, _ = observe(Showing(bug, stages=True, dtype="float32"), FEW[:6])
        seen = next(one for one in several if one.mismatches)
        assert [evidence.explains(seen, (other,)) for other in rounded] == explained
