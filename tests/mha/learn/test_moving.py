"""Does the answer move? What is said of an argument that is changed, and of a number in place of minus infinity."""

import re
from functools import partial

import numpy as np
import pytest

from mha.learn.bench import bench
from mha.learn.exercise import NumbersExercise, StepExercise
from mha.learn.exercises import all_exercises, exercise
from mha.learn.handout.folder import answered, heading
from mha.learn.hints import hint
from mha.learn.judge import judge, verdict_of
from mha.learn.moving import BELOW, GIVEN, changes, does_not_depend, fills, unmoved
from mha.learn.names import other_shape, sentences
from mha.learn.running.attempt import Attempt
from mha.learn.tracks.own import OTHER_SHAPES, candidates_of, right_function
from tests.mha.learn.calling import answers_of, softmax_of, verdict_on

pytestmark = pytest.mark.same_on_newest  # it computes in NumPy alone


def said_of(name, function):
    one = exercise(name)
    run = partial(answers_of, one, function)
    return unmoved(one, run(), run)


def with_argument(name, argument, value):
    """The right answer for a fixed value of an argument, or for what a function makes of it."""
    one = exercise(name)
    index, right = one.parameters.index(argument), right_function(one)

    def function(*given):
        other = value(given[index]) if callable(value) else value
        return right(*given[:index], other, *given[index + 1 :])

    return function


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("masked-softmax", "allowed", np.ones_like),
        ("rms-norm", "eps", 1e-6),
        ("norm-and-turn", "eps", 1e-5),  # a norm that takes no notice of a factor is no float32
        ("norm-and-turn", "order", "before"),
        ("turned-scores", "key_positions", np.zeros_like),
        ("turn-halves", "base", 10000.0),
        ("scores", "scale", None),
        ("softcap", "softcap", 1.0),
        ("project", "bias", None),
        ("lengths", "valid_lens", lambda lens: np.full_like(lens, 2)),
        ("gradient-of-scores", "scale", 1.0),
        ("weights-by-angle", "degrees", 30.0),
        ("past", "padding", np.zeros_like),
    ],
)
def test_an_argument_that_is_not_read_is_said(name, argument, value):
    assert said_of(name, with_argument(name, argument, value)) == (does_not_depend(argument),)


@pytest.mark.parametrize(
    ("name", "argument", "value", "sentence"),
    [
        ("causal-offsets", "offsets", lambda x: np.maximum(x, 0), "how far `offsets` lie below 0: one less gives"),
        ("window", "offsets", lambda x: np.maximum(x, 0), "how far `offsets` lie below 0: one less gives"),
        ("window", "right", lambda x: None if x is None else 0, "asks whether `right` is None, and does not depend"),
        ("dot-products", "keys", lambda x: x[:1, :1], "depends on keys[0, 0] alone"),
        ("scores", "keys", lambda x: np.float64(np.float32(x)), "As accurate as float32: a step is float32"),
        ("turn-halves", "base", lambda x: float(np.float32(x)), "1e-11 of it, `base` gives the same"),
    ],
)
def test_what_is_read_of_an_argument_in_part_is_said(name, argument, value, sentence):
    (said,) = said_of(name, with_argument(name, argument, value))
    assert sentence in said


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("weighted-sum", lambda weights, values: weights @ (values * 0.0 + values.sum())),
        ("empty-row", lambda scores, allowed: np.broadcast_to(allowed.mean(-1, keepdims=True), allowed.shape)),
        ("turn-halves", lambda x, positions, width, base: x * (positions - positions[:, :1])[:, None, :, None] * base),
    ],
)
def test_what_depends_on_a_sum_a_count_or_a_distance_depends(name, function):
    said = " ".join(said_of(name, function))
    for argument in ("values", "allowed", "positions"):
        assert does_not_depend(argument) not in said


STEPS = [one for one in all_exercises() if isinstance(one, StepExercise) and not one.source]


@pytest.mark.parametrize("one", STEPS, ids=lambda one: one.name)
def test_of_a_right_answer_nothing_is_said(one):
    assert said_of(one.name, right_function(one)) == ()


def test_offsets_below_0_are_changed_alone_and_a_given_bound_too():
    found = {(one.argument, one.what) for one in changes(exercise("window"))}
    assert {("offsets", BELOW), ("left", GIVEN), ("right", GIVEN)} <= found
    assert not {"query_len", "key_len"} & {argument for argument, _ in found}  # sizes


def test_nothing_is_said_of_an_argument_whose_change_could_not_be_run_or_of_nan_everywhere():
    one = exercise("masked-softmax")
    function = with_argument("masked-softmax", "allowed", np.ones_like)
    answers = answers_of(one, function)
    assert unmoved(one, answers, lambda places: answers_of(one, function, places[:1])) == ()
    lost = [(np.full_like(answer, np.nan),) for (answer,) in answers]
    assert unmoved(one, lost, lambda places: [(np.full_like(place.wanted[0], np.nan),) for place in places]) == ()


@pytest.mark.parametrize("number", [-1e30, -99999.0, -2e9, float(np.finfo(np.float32).min), -12345.0])
@pytest.mark.parametrize("name", ["masked-softmax", "empty-row"])
def test_a_number_in_place_of_minus_infinity_is_called_by_its_own_name(name, number):
    one = exercise(name)
    run = partial(answers_of, one, softmax_of(lambda s, a: np.where(a, s, number)))
    answers = run()
    if verdict_of(one, Attempt(answers)).status == "right":  # no row is without a key, and no score as low
        return
    said = sentences(one, answers, (*fills(one, run), *candidates_of(one)))
    written = re.match("Masked scores become (.*), not minus infinity", said[0])
    assert float(written[1]) == pytest.approx(number, rel=1e-5)


def test_what_is_added_to_a_score_is_no_fill_and_minus_infinity_is_no_number():
    one = exercise("empty-row")
    added = fills(one, partial(answers_of, one, softmax_of(lambda s, a: s + np.where(a, 0.0, -1e4))))
    assert added[0][0].startswith("-10000 is added to masked scores, not minus infinity")
    assert fills(one, partial(answers_of, one, softmax_of(lambda s, a: np.where(a, s, -np.inf)))) == ()
    assert fills(exercise("softmax"), lambda places: []) == ()


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda heads: heads.sum(1), "Heads are added."),
        (lambda heads: heads.mean(1), "Heads are averaged."),
        (lambda heads: heads[:, 0], "This is head 0 alone."),
        (lambda heads: heads[:, 1 % heads.shape[1]], ""),
    ],
)
def test_heads_that_are_added_are_said_though_the_shape_is_wrong(function, sentence):
    one = exercise("merge")
    answers = answers_of(one, function)
    assert other_shape(one, answers, OTHER_SHAPES["merge"]).startswith(sentence)
    assert bool(other_shape(one, answers, OTHER_SHAPES["merge"])) == bool(sentence)


MISTAKES = {
    "groups": (lambda queries, keys: queries @ keys[:, :1].swapaxes(-1, -2), "Every query head reads key head 0."),
    "turn-halves": (with_argument("turn-halves", "base", np.sqrt), "Pair k turns by position * base ** (-k / r)."),
    "turn-pairs": (with_argument("turn-pairs", "base", lambda x: 1.0 / x), "position * base ** (2 * k / r)."),
    "past": (
        lambda past, new, padding: new if past is None else np.concatenate([past, new], 2) * ~padding[:, None, :, None],
        "Padded rows of the cache are multiplied by 0, and 0 * NaN is NaN.",
    ),
    "output": (lambda heads, weight, bias: heads[:, 0] @ weight[:, : heads.shape[-1]].T, ""),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_an_exercise_is_said_in_its_words(name):
    function, sentence = MISTAKES[name]
    one = exercise(name)
    said = " ".join(sentences(one, answers_of(one, function), candidates_of(one)))
    assert sentence in said
    assert bool(said) == bool(sentence)


def test_padded_rows_of_new_keys_may_be_0_or_as_they_are_given():
    one = exercise("past")

    def whole(past, new, padding):
        keys = new if past is None else np.concatenate([past, new], axis=2)
        return np.where(padding[:, None, :, None], 0.0, keys)

    for function in (whole, right_function(one)):
        assert verdict_of(one, Attempt(answers_of(one, function))).status == "right"
    (place,) = [place for place in bench(one).places if place.case.id == "past-padded"]
    past, new, padding = place.arguments
    assert padding[:, past.shape[2] :].any()
    assert not new[np.broadcast_to(padding[:, None, past.shape[2] :], new.shape[:3])].any()


DEVIATIONS = {
    "s.var()": "This is the variance, the square of the deviation: use .std()",
    "s.std() * scale": "Where `scaled` is True, q.k is divided by head_dim.",
    "s.std() / scale": "Your answer does not depend on `scaled`: where it is True",
    "abs(s).mean()": "This is the mean of |q.k|, not the deviation",
    "s.std() * 3": "",
}


@pytest.mark.parametrize("returned", DEVIATIONS)
def test_what_is_wrong_with_a_deviation_is_said(returned, write):
    one, folder = write(
        "deviation-of-scores",
        f"""
        import numpy as np


        def deviation_of_scores(head_dim, scaled):
            q, k = np.random.default_rng(head_dim + scaled).standard_normal((2, 20_000, head_dim))
            scale = head_dim**-0.5 if scaled else 1.0
            s = (q * k).sum(-1) * scale
            return {returned}
        """,
    )
    assert isinstance(one, NumbersExercise)
    verdict = judge(one, folder)
    assert verdict.status == "wrong"
    assert verdict.why.startswith(DEVIATIONS[returned])
    assert bool(verdict.why) == bool(DEVIATIONS[returned])
    assert verdict.why in hint(one, folder, 2, "numpy").text


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2)", "NumPy's transpose wants the order of all axes"),
        ("x.reshape(*x.shape[:2], num_heads, -1).permute(0, 2, 1, 3)", "in NumPy it is transpose"),
        ("x.sum(dim=1)", "NumPy says axis and keepdims"),
    ],
)
def test_what_another_framework_writes_is_translated(code, sentence, tmp_path):
    one = exercise("split")
    source = f"{heading(one)}\n\n\ndef split(x, num_heads):\n    return {code}\n"
    assert sentence in verdict_on(source, tmp_path / "split.py", one).line


def test_a_hint_says_it_before_what_is_known(write):
    source = """
        import numpy as np


        def masked_softmax(scores, allowed):
            powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
            return powers / powers.sum(axis=-1, keepdims=True)
        """
    text = hint(*write("masked-softmax", source), 2, "numpy").text
    _, _, said = text.partition("\n\n")
    assert said.startswith(
        f"{does_not_depend('allowed')}\nThis explains yours in every case:\n  The mask changes nothing"
    )


def test_a_whole_layer_that_does_not_read_its_mask_is_told(write):
    right = answered(exercise("plain-function"))
    source = right.replace("softmax(scores, mask)", "softmax(scores, mask | ~mask)")
    assert source != right
    text = hint(*write("plain-function", source), 2, "numpy").text
    assert does_not_depend("mask") in text
