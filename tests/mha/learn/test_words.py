"""What a hint says in the words of the lessons, and what it leaves out; and which orders of heads are taken."""

import re

import numpy as np
import pytest

from conformance.cases.table import select
from mha.learn import judge as judging
from mha.learn.bench import bench
from mha.learn.exercises import exercise
from mha.learn.handout.folder import answered
from mha.learn.headwork import ENOUGH, left_out, place, trained
from mha.learn.hints import of_answers
from mha.learn.judge import first_wrong_row, judge, verdict_of
from mha.learn.names import explained, mistakes, sentences
from mha.learn.progress import learned
from mha.learn.running import layering
from mha.learn.running.attempt import Attempt
from mha.learn.running.layering import Layered, cases_of
from mha.learn.tracks.own import candidates_of
from mha.learn.words import written_out
from mha_core import SpecError
from mha_core.reference import pipeline as reference
from tests.mha.learn.calling import answers_of, learn

pytestmark = pytest.mark.same_on_newest  # it computes in NumPy alone


def products(queries, keys):
    return queries @ keys.swapaxes(-1, -2)


def softmax(scores):
    powers = np.exp(scores)
    return powers / powers.sum()


def by_angle(query, keys):
    return softmax(np.cos(query - keys) / 2**0.5)


TENTHS = 36 * np.arange(10)


@pytest.mark.parametrize(
    ("name", "function", "sentence"),
    [
        ("scores", lambda q, k, s: products(q, k) * (s or q.shape[-1] ** -0.5), "A scale of 0 is taken for none"),
        (
            "scores",
            lambda q, k, s: products(q, k) / (q.shape[-1] ** 0.5 if s is None else s),
            "Products are divided by a scale",
        ),
        ("weighted-sum", lambda w, v: w / w.sum(-1, keepdims=True) @ v, "It is divided by the sum of the weights"),
        ("weights-by-angle", lambda d: by_angle(d, TENTHS), "np.cos and np.sin take radians"),
        ("weights-by-angle", lambda d: by_angle(d, np.deg2rad(TENTHS)), "Of the query: np.cos and np.sin take radians"),
        ("weights-by-angle", lambda d: by_angle(np.deg2rad(d), TENTHS), "Of the keys: np.cos and np.sin take radians"),
    ],
)
def test_a_mistake_of_one_exercise_is_named_in_every_case_or_not_at_all(name, function, sentence):
    one = exercise(name)
    answers = answers_of(one, function)
    verdict = verdict_of(one, Attempt(answers))
    assert verdict.status == "wrong"
    assert of_answers(one, verdict, None).startswith(f"This explains yours in every case:\n  {sentence}")
    others = (tuple(array + 1.0 for array in answers[0]), *answers[1:])
    right = tuple(place.wanted for place in bench(one).places)
    assert [sentences(one, some, candidates_of(one)) for some in (others, right, answers[:-1])] == [(), (), ()]


def test_by_how_much_attention_prefers_a_direction_is_said_as_it_is():
    one = exercise("weights-by-angle")
    (weights,) = bench(one).places[0].wanted  # the query lies at key 0, and key 5 is opposite
    assert f"= {weights[0] / weights[5]:.1f} times" in learned(one)


def test_an_exercise_without_heads_has_no_mistake_of_heads():
    one = exercise("weights-by-angle")
    unscaled = answers_of(one, lambda degrees: softmax(np.cos(np.deg2rad(degrees - TENTHS))))
    assert [[bug.id for bug in bugs] for bugs in explained(one, unscaled).explanations] == [["scale-missing"]]
    assert not [mistake.bug.id for mistake in mistakes(one) if "heads" in mistake.bug.id]


def test_the_first_exercises_are_told_in_words_of_the_first_lessons():
    for name in ("weighted-sum", "dot-products", "scores", "softmax", "weights-by-angle"):
        for mistake in mistakes(exercise(name)):
            if mistake.bug.id.startswith(("scale-", "scores-", "maximum-")):
                assert not re.search("projections|allowed|tensor|config", f"{mistake.bug.sentence} {mistake.bug.fix}")


def test_a_nan_is_shown_before_other_wrong_numbers():
    one = exercise("softmax")
    answers = answers_of(one, lambda scores: np.exp(scores) / np.exp(scores).sum(-1, keepdims=True))
    assert re.match(r"weights\[[\d, ]+\] is nan, expected", verdict_of(one, Attempt(answers)).line)


def test_of_a_large_call_one_matrix_is_written_out():
    one = exercise("scores")
    place = bench(one).places[0]
    row = first_wrong_row(place, (place.wanted[0] + 1.0,))
    text = written_out(one, place, (place.wanted[0] + 1.0,), row)
    assert "keys (2, 3, 7, 11), of which [0, 0]\n" in text
    assert len(text.splitlines()) < 25


def test_of_a_wrong_shape_no_numbers_are_shown():
    one = exercise("causal-offsets")
    answers = [(place.wanted[0][:, 0],) for place in bench(one).places]
    text = of_answers(one, verdict_of(one, Attempt(tuple(answers))), None)
    assert "Give the heads an axis, of size 1:" in text
    assert "to be returned: allowed: bool (2, 1, 5, 7)" in text
    assert "smallest" not in text


def test_an_order_of_heads_that_is_reversed_is_called_so(write):
    reversed_key = answered(exercise("head-importance")).replace("return np.linalg", "return -np.linalg")
    assert judge(*write("head-importance", reversed_key)).line.endswith("; 0.9 is enough; your order is reversed")


def test_of_a_layer_the_cases_are_counted_before_and_behind(write, monkeypatch):
    one, folder = write("plain-function", "def attention(): pass")
    monkeypatch.setattr(judging, "judged", lambda *given: Layered(right=37, unsupported=6))
    shown = learn("check", one.name, "--folder", folder).output
    assert f"Comparing {len(cases_of(one))} cases ..." in shown
    assert "equal to the reference in 37 cases; 6 cases ask for things that this exercise leaves out" in shown


def test_a_layer_whose_process_was_ended_has_printed_nothing_and_is_said_to_be_no_longer_loaded():
    assert layering.printed_by("class_in_jax.py") == ""
    with pytest.raises(SpecError, match=r"class_in_jax\.py is no longer loaded: its process was ended"):
        layering.layer_of("class_in_jax.py")


def test_an_order_by_the_weights_alone_is_not_enough():
    assert place([left_out(one) for one in trained()]) == 1.0
    by_weights = []
    for one in trained():
        config, weights = one.measured.config, one.measured.weights
        values = weights["v_proj.weight"].reshape(config.num_heads, config.value_head_dim, -1)
        out = weights["out_proj.weight"].reshape(-1, config.num_heads, config.value_head_dim).swapaxes(0, 1)
        by_weights.append(np.linalg.norm(out @ values, axis=(1, 2)))
    assert place(by_weights) < ENOUGH


def test_what_a_head_brings_before_the_output_projection_is_not_enough():
    """A loud head may have a small block of W_o."""
    before, behind = [], []
    for one in trained():
        problem = one.measured
        heads = reference.run_state(problem.config, problem.weights, problem.inputs)["heads"]
        blocks = np.split(problem.weights["out_proj.weight"], problem.config.num_heads, axis=1)
        before.append(np.sqrt((heads**2).sum(axis=(0, 2, 3))))
        behind.append([np.linalg.norm(heads[:, h] @ block.T) for h, block in enumerate(blocks)])
    assert place(before) < 0.0
    assert place(np.array(behind)) >= ENOUGH


def test_loud_heads_leave_the_layer_as_it_was():
    for one in trained():
        case = select((one.name,))[0].build()
        whole = reference.run(case.config, case.weights, case.inputs).output
        assert np.array_equal(reference.run(case.config, one.measured.weights, case.inputs).output, whole)
