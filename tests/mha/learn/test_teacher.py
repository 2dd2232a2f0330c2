"""The zoo tests the teacher: every bug in a step with an exercise is named, or listed with what it equals there."""

import re
from dataclasses import replace

import numpy as np
import pytest

from conformance.zoo.bug import DoesNotApply
from conformance.zoo.registry import all_bugs, select
from mha.learn.bench import bench
from mha.learn.exercise import CatchExercise, StepExercise
from mha.learn.exercises import all_exercises, exercise
from mha.learn.handout.folder import text_of
from mha.learn.hints import of_answers, told
from mha.learn.judge import verdict_of
from mha.learn.names import OF_NO_EXERCISE, Found, explained, mistakes, same, steps_of
from mha.learn.running.attempt import Attempt
from mha.learn.running.catching import Shown, chosen
from mha_core.reference.rules import RULES
from tests.mha.learn.calling import answers_of

# Nothing here depends on the version of a framework, and little on NumPy's.
pytestmark = pytest.mark.same_on_newest

STEPS = [one for one in all_exercises(("numpy",)) if isinstance(one, StepExercise)]
OWN = [one for one in STEPS if one.track != "translate"]

TURN_OF_QUERIES = [
    {"rotary-ignored", "rotary-of-queries-missing"},
    {"rotary-offset-one-more", "rotary-positions-from-one"},
]

OTHER_END = [{"rotary-always-last", "rotary-other-end"}]
OTHER_NORM = [{"norm-always-layer", "norm-kind-exchanged"}, {"norm-always-over-all-heads", "norm-scope-exchanged"}]

ALIKE = {
    # Each has one of the two steps alone.
    "split": [{"split-and-merge-d-h", "split-d-h"}],
    "merge": [{"merge-d-h", "split-and-merge-d-h"}],
    "output": [{"merge-d-h", "split-and-merge-d-h"}],
    "masked-softmax": [{"fill-1e9", "fill-1e9-averaged"}],  # every query has a key there
    "scores": [{"products-in-bfloat16", "scores-in-bfloat16"}],
    "dot-products": [{"products-in-bfloat16", "scores-in-bfloat16"}],
    "window": [{"mask-ignored", "window-ignored"}, {"offset-ignored", "window-without-offset"}],
    "groups": [{"products-in-bfloat16", "scores-in-bfloat16"}, {"group-keys-tiled", "groups-tiled"}],
    "gradient-of-groups": [{"gradient-of-keys-without-scale", "gradient-without-scale"}],
    # An exercise has one layout, one end, one kind and one scope: always the other is exchanged.
    "turn-halves": [*TURN_OF_QUERIES, *OTHER_END, {"rotary-always-interleaved", "rotary-layout-exchanged"}],
    "turn-pairs": [*TURN_OF_QUERIES, *OTHER_END, {"rotary-always-halves", "rotary-layout-exchanged"}],
    # Where both have turned, only the difference of two angles counts: it is reversed.
    "turned-scores": [
        {"products-in-bfloat16", "scores-in-bfloat16"},
        {"rotary-cos-sin-exchanged", "rotary-reversed"},
        {"rotary-always-interleaved", "rotary-layout-exchanged"},
    ],
    "rms-norm": [{"norm-ignored", "norm-order-exchanged", "norm-always-after"}, *OTHER_NORM],
    "norm-and-turn": [*TURN_OF_QUERIES, *OTHER_NORM, {"rotary-always-interleaved", "rotary-layout-exchanged"}],
    "weights-by-angle": [
        {"scale-twice", "scale-without-root"},  # the width is 2
        {"products-in-bfloat16", "scores-in-bfloat16"},
    ],
}
"""Exercise -> its bugs that are the same where only its step is: no case of it could tell them apart."""

OF_RULES = ("rule-", "llama3-", "yarn-", "longrope-", "factor-", "given-", "axes-")
UNASKED = ("additive-", "allowed-", "bias-", "norm-", *OF_NO_EXERCISE, *(f"rotary-{what}" for what in OF_RULES))

IN_NO_EXERCISE = {
    # Of additive scores, a bias, `allowed`, several sources at once, dropout, a norm's bias or scope, rules of rotary
    # frequencies, axes of positions: no exercise gives them.
    *(bug.id for bug in all_bugs() if bug.id.startswith(UNASKED) and bug.id != "bias-infinity-nan"),
    *("lens-of-keys-where-as-many", "lens-of-queries-where-as-many", "rotary-always-first"),
    *("rotary-keys-from-zero", "rotary-of-past-again", "rotary-offset-ignored", "rotary-offset-of-first-item"),
    *("rotary-positions-in-bfloat16", "causal-dropped-with-padding", "dot-scaled"),
    *("dropout-as-exclusion", "dropout-in-returned-weights", "dropout-on-scores", "given-heads-length-first"),
    *("gradient-of-output-weight-d-h", "gradient-of-output-weight-missing", "gradient-of-weights-reads-padding"),
    *("gradient-recomputed-without-bias", "group-values-tiled", "padding-dropped-with-causal"),
    *("past-and-new-maxima-apart", "past-and-new-normalised-apart", "past-not-counted", "softcap-after-bias"),
    *("sources-combined-with-or", "window-dropped-with-causal"),
}
"""Bugs of steps that have exercises, of which no exercise's arguments could tell a learner enough to make them."""


def given_by(one: StepExercise, *bugs):
    """What a file with these bugs in it would give."""
    there = bench(one)
    return tuple(there.with_steps(place, steps_of(one, *bugs)) for place in there.places)


def told_apart(one):
    """The sets of the exercise's bugs that none of its cases tells apart, each of two or more ids."""
    groups = []
    for mistake in mistakes(one):
        for group in groups:
            if _alike(group[0], mistake, bench(one).places):
                group.append(mistake)
                break
        else:
            groups.append([mistake])
    return [frozenset(each.bug.id for each in group) for group in groups if len(group) > 1]


def _alike(a, b, places):
    answers = zip(a.answers, b.answers, places, strict=True)
    return all(x is y if x is None or y is None else same(x, y, place) for x, y, place in answers)


@pytest.mark.nightly("a beginner's wrong answer is named", every=3)
@pytest.mark.parametrize("one", STEPS, ids=lambda one: one.name)
def test_every_bug_of_a_step_is_named_or_listed_with_its_equals(one):
    assert mistakes(one)
    alike = {id: group for group in told_apart(one) for id in group}
    for mistake in mistakes(one):
        if None in mistake.answers:  # it can't be made in all cases, so that no file can hold it
            continue
        verdict = verdict_of(one, Attempt(tuple(mistake.answers)))
        assert verdict.status == "wrong", mistake.bug.id
        found = {bug.id for bugs in explained(one, verdict.answers or mistake.answers).explanations for bug in bugs}
        assert found == set(alike.get(mistake.bug.id, {mistake.bug.id})), mistake.bug.id


@pytest.mark.parametrize("one", OWN, ids=lambda one: one.name)
def test_the_cases_tell_all_pairs_of_bugs_apart(one):
    assert sorted(map(sorted, told_apart(one))) == sorted(map(sorted, ALIKE.get(one.name, [])))


def test_bugs_that_no_exercise_shows_are_listed():
    covered = {step for one in OWN for step in one.covers}
    shown = {mistake.bug.id for one in OWN for mistake in mistakes(one)}
    hidden = {bug.id for bug in all_bugs() if bug.steps & covered and not bug.equivalent} - shown
    assert hidden <= IN_NO_EXERCISE
    assert {id for id in IN_NO_EXERCISE if not id.startswith(UNASKED)} <= hidden


@pytest.mark.parametrize("one", STEPS, ids=lambda one: one.name)
def test_the_reference_itself_is_right(one):
    verdict = verdict_of(one, Attempt(given_by(one)))
    assert verdict.status == "right", verdict.line


def kinds_of(one):
    """What a learner must expect in the calls of an exercise -> a word of it that the file must have."""
    for place in bench(one).places:
        for argument, value in zip(one.arguments, place.arguments, strict=True):
            array = np.asarray(value if value is not None else 0.0)
            if value is None:
                yield f"{argument.name} is None", f"{argument.name}: {argument.about}", "None"
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                yield f"{argument.name} is not finite", text_of(one), "NaN"
            if array.dtype.kind == "f" and np.abs(array[np.isfinite(array)]).max(initial=0.0) > 700:
                yield f"exp({argument.name}) overflows", f"{argument.name}: {argument.about}", "any size"
            if array.dtype.kind in "iu" and array.ndim and (array < 0).any():
                yield f"{argument.name} is negative", f"{argument.name}: {argument.about}", "negative"
            if array.dtype.kind in "iu" and array.ndim and (array == 0).any():
                yield f"{argument.name} is 0", f"{argument.name}: {argument.about}", "0"
            if argument.name == "allowed" and not array.any(-1).all():
                yield "a row without a key", text_of(one), "no (allowed )?key"


@pytest.mark.parametrize("one", STEPS, ids=lambda one: one.name)
def test_no_case_has_anything_that_the_file_does_not_mention(one):
    for kind, text, word in kinds_of(one):
        assert re.search(word, text), f"{one.name}: {kind}"


def textbook(scores, allowed):
    scores = np.where(allowed, scores, -np.inf)
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def test_the_textbooks_softmax_is_explained_by_its_pair():
    one = exercise("empty-row")
    found = explained(one, answers_of(one, textbook)).explanations
    assert {frozenset(bug.id for bug in bugs) for bugs in found} == {frozenset({"maximum-of-tensor", "empty-row-nan"})}
    text = told(found, one)
    assert text.startswith("Two things are wrong:")
    assert text.count("What to change") == 2


def ahead_of(query_len, key_len, offsets):
    return np.arange(key_len) - (offsets[:, None] + np.arange(query_len))[..., None]


def strict(query_len, key_len, offsets, left, right):
    ahead = ahead_of(query_len, key_len, offsets)
    left, right = 99 if left is None else left, 99 if right is None else right
    return ((-left < ahead) & (ahead < right))[:, None]


def truthy(query_len, key_len, offsets, left, right):
    ahead = ahead_of(query_len, key_len, offsets)
    return ((-(left or 99) <= ahead) & (ahead <= (right or 99)))[:, None]


@pytest.mark.parametrize(
    ("window", "wanted"),
    [
        (strict, {"window-counts-self-on-the-left", "window-counts-self-on-the-right"}),
        (truthy, {"window-zero-is-none"}),  # `if left:` takes 0 for None
    ],
)
def test_mistakes_of_a_window_are_told_apart(window, wanted):
    one = exercise("window")
    found = explained(one, answers_of(one, window))
    assert found.unknown == 0
    assert {frozenset(bug.id for bug in bugs) for bugs in found.explanations} == {frozenset(wanted)}


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("scores", ("scores-transposed", "scale-missing")),
        ("scores", ("scale-without-root", "scores-cosine")),
        ("output", ("merge-d-h", "out-proj-bias-missing")),
        ("output", ("merge-reversed", "output-bias-twice")),
        ("gradient-of-scores", ("gradient-of-keys-without-scale", "queries-detached")),
    ],
)
def test_a_pair_in_different_steps_is_found(name, pair):
    one = exercise(name)
    bugs = select(pair)
    try:
        answers = given_by(one, *bugs)
    except DoesNotApply:  # a transposition needs square sizes
        one = replace(one, cases=tuple(case for case in one.cases if str(case).startswith("ragged")))
        answers = given_by(one, *bugs)
    assert frozenset(pair) in {frozenset(bug.id for bug in found) for found in explained(one, answers).explanations}


def test_what_nothing_explains_is_said():
    one = exercise("masked-softmax")
    answers = answers_of(one, lambda scores, allowed: np.where(allowed, 0.123, 0.0))
    assert explained(one, answers) == Found()
    verdict = verdict_of(one, Attempt(answers))
    assert verdict.status == "wrong"
    assert "No known mistake" in of_answers(one, verdict, None)


@pytest.mark.parametrize(
    "name", ["lengths", "causal-offsets", "window", "masked-softmax", "empty-row", "scores", "groups"]
)
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_named_that_does_not_explain_it(name, seed):
    one, rng = exercise(name), np.random.default_rng(seed)
    right = given_by(one)
    spoilt = []
    for arrays in right:
        (array,) = (np.array(part) for part in arrays)
        places = rng.random(array.shape) < 0.2
        array[places] = ~array[places] if array.dtype == bool else rng.normal(size=places.sum())
        spoilt.append((array,))
    assert explained(one, spoilt) == Found()
    half = [right[0], *spoilt[1:]]
    assert explained(one, half) == Found()


def test_the_call_that_catching_starts_from_shows_none_of_the_hidden_bugs(tmp_path):
    path = tmp_path / "catch.py"
    path.write_text(text_of(exercise("catch-1")))
    problem = chosen(str(path)).problem
    assert problem is not None
    start = Shown(problem)
    hidden = [one for one in all_exercises() if isinstance(one, CatchExercise)]
    assert [one.bug for one in hidden if start.by(select((one.bug,))[0])] == []
    assert start.all()[0] == 53 < min(one.target for one in hidden)
    assert [one.target for one in hidden] == sorted(one.target for one in hidden)


def test_a_hidden_bug_is_shown_by_the_case_that_the_last_hint_names():
    from conformance.cases.table import select as cases

    for one in all_exercises():
        if isinstance(one, CatchExercise):
            assert Shown(cases((one.shown_by,))[0].build()).by(select((one.bug,))[0]), one.name


def test_every_exercise_has_a_name_and_a_file_of_its_own_and_rules_that_are_there():
    everything = all_exercises()
    assert len({one.name for one in everything}) == len({one.file for one in everything}) == len(everything)
    for one in everything:
        assert set(one.rules) <= set(RULES), one.name
        assert not isinstance(one, StepExercise) or 4 <= len(one.cases) <= 7, one.name
