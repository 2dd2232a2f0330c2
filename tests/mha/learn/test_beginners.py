"""What the teacher says of beginners' answers, in the words of the course: none is right, and a sentence is said of
other numbers too.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

from conformance.zoo.registry import select as select_bugs
from mha.learn import hints
from mha.learn.exercise import StepExercise
from mha.learn.exercises import OF_LESSONS, exercise
from mha.learn.headwork import cut_calls, trained, wrong_cut, wrong_order
from mha.learn.hints import DEEPEST, FIX, LOOK_AT, hint, of_answers
from mha.learn.judge import Verdict
from mha.learn.names import mistakes, sentences
from mha.learn.tracks.own import candidates_of
from mha.learn.words import in_words
from tests.mha.learn.answers.beginners import ANSWERS
from tests.mha.learn.answers.layer import PLAIN
from tests.mha.learn.calling import answers_of, verdict_on

pytestmark = pytest.mark.same_on_newest  # it computes in NumPy alone

NAMED = {answer.name: answer for answer in ANSWERS}
STEPS = [answer for answer in ANSWERS if isinstance(exercise(answer.exercise), StepExercise)]


def said_of(answer, path, one=None):
    """What check and the third level of a hint say."""
    one = one or exercise(answer.exercise)
    verdict = verdict_on(answer.source, path, one)
    return f"{verdict.line}\n{of_answers(one, verdict, None) if verdict.status == 'wrong' else ''}"


def test_there_are_beginners_in_every_exercise_of_the_course():
    assert {answer.exercise for answer in ANSWERS} == set(OF_LESSONS)
    assert sum(not answer.right for answer in ANSWERS) >= 75


@pytest.mark.parametrize("name", [name for name in OF_LESSONS if isinstance(exercise(name), StepExercise)])
def test_what_is_said_is_said_of_other_numbers_too(name, tmp_path):
    one = exercise(name)
    again = replace(one, cases=tuple(replace(case, id=f"{case.id}-again") for case in one.judged_by))

    def without_numbers(text):
        return re.sub(r"[\d.]+ in case|such as [^,]+|-again", "", text.partition("\n")[2])

    for answer in STEPS:
        if answer.exercise == name:
            first, second = (said_of(answer, tmp_path / "file.py", exercise) for exercise in (one, again))
            assert without_numbers(first) == without_numbers(second), answer.name


WHERE = "masked keys are NaN too. They must be 0: np.where(allowed, weights, 0)."

SENTENCES = {
    "softmax/maximum-of-matrix": "The maximum is taken over the whole matrix, not over each row",
    "softmax/maximum-of-columns": "The maximum is taken over each column, not over each row.",
    "softmax/mean-subtracted": "The mean of the row is subtracted, and not its maximum",
    "softmax/positive-scores": "Negative scores are set to 0 and the others divided by their sum.",
    "softmax/divided-by-maximum": "Scores are divided by the largest of their row. It must be subtracted.",
    "empty-row/zeroed-by-has-key": WHERE,
    "empty-row/times-has-key": WHERE,
    "empty-row/times-allowed": WHERE,
    "empty-row/small-number-added": "1e-12 is added to the sum of the exponentials.",
    "empty-row/nan-is-zero": "A NaN among the scores is hidden: the row has weights of 0.",
    "masked-softmax/filled-very-low": "Masked scores become a number, such as ",
    "masked-softmax/filled-with-minimum": "Masked scores become the smallest score of all, and not minus infinity",
    "masked-softmax/scores-times-allowed": "0, not minus infinity: a masked key still counts. Mask with -inf",
    "masked-softmax/inverted-by-minus": "True is taken for masked, and False for allowed",
    "causal/itself-alone": "Each query is allowed its own key alone.",
    "causal-offsets/at-the-end": "as if offsets were key_len - query_len",
    "causal-offsets/largest-offset": "It would be right with the largest of offsets, for all, in place of offsets.",
    "weights-by-angle/sine-first": "It would be right with 90 - degrees in place of degrees.",
    "weights-by-angle/query-in-degrees": "Of the query: np.cos and np.sin take radians",
    "scores/scale-of-one": "Where the scale is None, products are not scaled.",
    "scores/scale-or-one": "products are not scaled. Multiply by 1 / sqrt(d) there.\n  A scale of 0 is taken for 1.",
    "scores/divided-by-d": "It would be right with sqrt(abs(scale)) in place of scale.",
    "scores/root-of-keys": "it is the right one times sqrt(d / Lq)",
    "dot-products/keys-of-length-1": "Keys are divided by their length.",
    "dot-products/last-key-forgotten": "the last key is wrong, and every other one is right.",
    "weighted-sum/values-transposed": "the last axis of a meets the last but one of b. Here Lk (7) meets dv (13)",
    "weighted-sum/zero-rows-averaged": "it is wrong only in rows of weights that are all 0.",
    "output/weight-as-it-is": "Here in (39) meets out (29)",
    "lengths/one-axis-less": "axis 1 is missing, and x[:, None] puts it there, of size 1",
    "lengths/lengths-as-they-are": "can't be broadcast: from the last axis on, Lk (7) meets B (2)",
    "causal-offsets/no-axes": "can't be broadcast: from the last axis on, Lq (5) meets B (2)",
    "split/head-last": "Channels are split as reshape(B, L, d, H) does, and not as reshape(B, L, H, d).",
    "split/first-head-repeated": "each head has what the first one must have.",
}
"""Answer -> what is said of it."""


@pytest.mark.parametrize("name", SENTENCES)
def test_a_frequent_mistake_is_said(name, tmp_path):
    text = said_of(NAMED[name], tmp_path / "file.py")
    assert SENTENCES[name] in text
    assert not re.search(r"times a number of its own|(^|\n) *[a-z][a-z ]*\.$|axis \d\d", text)


ORDERS = {
    "what-is-left": "your order is reversed",
    "one-over": "your order is reversed",
    "order-of-heads": "np.argsort gives the order of the heads, and not a number for each head",
}
"""Answer to head-importance -> what is wrong with it."""


def function_of(name):
    space = {}
    exec(NAMED[name].source, space)
    return space[exercise(NAMED[name].exercise).function]


def test_what_is_wrong_with_an_order_of_heads_is_said():
    for name, sentence in ORDERS.items():
        importance = function_of(f"head-importance/{name}")
        assert wrong_order([importance(*one.arguments) for one in trained()]).startswith(sentence), name
    constant = [np.ones(one.measured.config.num_heads) for one in trained()]
    assert wrong_order(constant) == "every head has the same number"
    rng = np.random.default_rng(5)
    assert "reversed" not in wrong_order([rng.random(one.measured.config.num_heads) for one in trained()])


CUTS = {
    "columns-of-projections": "q_proj.weight, k_proj.weight, v_proj.weight: shape (",
    "values-forgotten": "v_proj.weight, v_proj.bias: missing (",
    "output-halved": "out_proj.weight: not what these heads have in the whole layer; output differs in",
    "one-row-a-head": "q_proj.weight, k_proj.weight, v_proj.weight: shape (4, 384), and it must be (128, 384)",
}


def test_what_is_wrong_with_a_cut_is_said():
    arguments = cut_calls()[0]
    assert wrong_cut(0, function_of("cut-heads/rows")(*arguments)) == ""
    for name, sentence in CUTS.items():
        assert wrong_cut(0, function_of(f"cut-heads/{name}")(*arguments)).startswith(sentence), name


LAYERS = {
    "padding-inverted": "Of keys and values, padding is read the wrong way round: True marks the rows that become 0.",
    "padding-of-keys-inverted": "Of the keys, padding is read the wrong way round: True marks the rows that become 0.",
    "padding-of-values-inverted": "Of the values, padding is read the wrong way round",
    "padding-multiplied": "0 * NaN is NaN.\n    What to change: Choose, np.where(padding[..., None], 0, keys), and",
    "values-of-keys": "Here Dk (19) meets Dv (23), and an axis must meet its like (case no-bias: B=2 H=3 Lq=5 Lk=7)",
}
"""Answer to plain-function -> what is said of it."""


@pytest.mark.parametrize("name", LAYERS)
def test_a_frequent_mistake_of_a_layer_is_said(name, write):
    (source,) = (answer.source for answer in PLAIN if answer.name == f"plain-function/{name}")
    text = hint(*write("plain-function", source), 3, "numpy").text
    assert LAYERS[name] in text
    assert not re.search("things are wrong|additive bias|projected as they are", text)


def test_of_a_layer_no_large_composition_is_said_and_none_of_what_it_has_not(monkeypatch, tmp_path):
    one, verdict = exercise("plain-function"), Verdict(exercise("plain-function"), "wrong", "", case="prime")
    missing, twice, merged = select_bugs(("scale-missing", "values-from-keys", "merge-d-h"))
    of_bias = replace(missing, id="of-bias", sentence="Scores with the additive bias are another's.")
    for is_whole, found, said in (
        (True, (missing, merged), True),
        (True, (missing, merged, twice), False),
        (False, (missing, merged), False),
        (False, (missing,), True),
        (True, (of_bias,), False),
    ):
        monkeypatch.setattr(hints, "diagnosed", lambda *given, it=(is_whole, (found,)): it)
        text = hints._of_layer(one, verdict, tmp_path, time_limit=60.0)
        assert text.startswith("No known mistakes give what yours gives.") != said, found


def test_two_mistakes_of_one_exercise_are_said_where_each_shows_alone():
    one = exercise("scores")
    answers = answers_of(one, function_of("scores/scale-or-one"))
    assert len(sentences(one, answers, candidates_of(one))) == 2
    assert sentences(one, ((answers[0][0] * 3.0,), *answers[1:]), candidates_of(one)) == ()


def test_a_layer_is_explained_by_the_case_that_it_fails_too(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        hints, "diagnosed", lambda dialect, path, subject, cases, limit: asked.append(cases) or (False, ())
    )
    one = exercise("plain-function")
    for case in ("nan-in-open-key", "prime"):
        hints._of_layer(one, Verdict(one, "wrong", "", case=case), tmp_path, time_limit=60.0)
    assert set(asked[0]) - set(asked[1]) == {"nan-in-open-key"}
    assert set(asked[1]) == set(one.first)


def test_a_case_that_is_shown_fails(write):
    """A mask may be given in any shape that broadcasts: that of a small case is no reason to show it."""
    one, folder = write("lengths", NAMED["lengths/queries-too"].source)
    shown = hint(one, folder, 2, "numpy").text.partition("The smallest case that fails:\n")[2]
    made, right = (re.search(rf"{whose} allowed (.*?)(?=\n  \w|$)", shown, re.S)[1] for whose in ("your", "right"))
    assert made != right


@pytest.mark.parametrize(
    ("name", "deeper"),
    [
        ("softmax/maximum-of-matrix", DEEPEST),  # its sentence says what to change
        ("lengths/first-item", 3),
        ("project/transposed-result", DEEPEST),
        ("lengths/queries-too", 3),
    ],
)
def test_a_level_is_offered_that_says_more(name, deeper, write):
    one, folder = write(NAMED[name].exercise, NAMED[name].source)
    second, third = (hint(one, folder, level, "numpy") for level in (2, 3))
    assert (second.deeper, third.deeper) == (deeper, DEEPEST)
    assert (second.text == third.text) == (deeper == DEEPEST)
    assert not re.search(f"{FIX}|{LOOK_AT}", second.text)


LATER = r"query_offset|head_dim|underflow|tensor|packed|batch item|valid_len\b|window|block of|online"
"""Words of the zoo that no lesson has before its exercise."""


@pytest.mark.parametrize("name", [name for name in OF_LESSONS if isinstance(exercise(name), StepExercise)])
def test_a_mistake_is_said_in_words_of_the_course(name):
    one = exercise(name)
    for mistake in mistakes(one):
        text = in_words(one, f"{mistake.bug.sentence} {mistake.bug.fix}")
        assert not re.search(LATER, text), mistake.bug.id
