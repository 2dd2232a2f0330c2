"""What is said of wrong weights by calls in which one thing is changed."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.kinds.dependence import of_dependence, of_no_values, of_size
from conformance.measure.designs import BARE, CONFIGS, NO_BIASES, generic
from conformance.measure.problems import SMALL, scored
from conformance.reports.brief import Brief, Cause
from conformance.zoo.bug import pipelines
from mha_core.reference import pipeline as reference
from tests.conformance.measure.wrong import wrong_at

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

CALL = scored(CONFIGS[0], *SMALL)


def _ran(problem, *bugs):
    return reference.run(problem.config, problem.weights, problem.inputs, forward=pipelines(*bugs)[0])


def _by_distance(array):
    return np.cos(0.3 * np.subtract.outer(*map(np.arange, array.shape[2:])))


def _by_head(array):
    return 1.0 + np.arange(array.shape[1])[:, None, None]


def _whole(array):
    return array.sum(axis=-1, keepdims=True)


def _before(array):
    return np.concatenate([array[:, :, :1], array[:, :, :-1]], axis=2)


ALONE = "The score of a query and a key depends on"
SAID = {  # what is wrong -> (the step, its stage, what is done to its result, what is said, what to look at)
    "a vector of each head": (
        "queries",
        "queries",
        lambda s, x: x + _by_head(x),
        "added to the queries, the same",
        "learned",
    ),
    "a bias by distance": (
        "similarity",
        "scores",
        lambda s, x: x + _by_distance(x),
        "the distance from query to key alone",
        "added",
    ),
    "a factor by distance": (
        "similarity",
        "scores",
        lambda s, x: x * _by_distance(x),
        f"{ALONE} the distance from query to key too.",
        "rotary",
    ),
    "a mean query taken off": (
        "queries",
        "queries",
        lambda s, x: x - x.mean(2, keepdims=True),
        f"{ALONE} other queries too.",
        "mixes q",
    ),
    "a mean key of before": (
        "keys",
        "keys",
        lambda s, x: x + np.roll(x, 1, 2),
        f"{ALONE} other keys and their order too.",
        "keys",
    ),
    "keys smeared forwards": (
        "keys",
        "keys",
        lambda s, x: 0.7 * x + 0.3 * _before(x),
        f"{ALONE} other keys and their order too.",
        "convolution",
    ),
    "a temperature": (
        "queries",
        "queries",
        lambda s, x: x * (1.2 + np.tanh(_whole(x))),
        "The scores of each query are the right ones times one number",
        "a gate",
    ),
    "a scale by head": (
        "unscaled",
        "scores",
        lambda s, x: x * _by_head(x),
        "of each head are the right ones times one number, 1 to",
        "scales a head",
    ),
    "relu": ("queries", "queries", lambda s, x: np.maximum(x, 0.0), "not linear in the queries", "relu"),
    "relu of keys": ("keys", "keys", lambda s, x: np.maximum(x, 0.0), "not linear in the keys", "keys or scores"),
    "channels in another order": (
        "queries",
        "queries",
        lambda s, x: x[..., ::-1],
        "are linear in the queries",
        "layout",
    ),
    "scores of other heads": (
        "similarity",
        "scores",
        lambda s, x: np.roll(x, 1, 1),
        "are those of other heads",
        "which heads",
    ),
    "scores of several heads": (
        "similarity",
        "scores",
        lambda s, x: x + np.roll(x, 1, 1),
        "of several heads, mixed.",
        "mixes heads",
    ),
    "distances of keys": (
        "similarity",
        "scores",
        lambda s, x: x - np.square(_keys(s, x)),
        "more than products of queries",
        "made of queries and keys",
    ),
    "weights of several heads": (
        "weights",
        "weights",
        lambda s, x: 0.7 * x + 0.2 * np.roll(x, 1, 1),
        "of several heads, mixed.",
        "after",
    ),
    "a decay": (
        "weights",
        "weights",
        lambda s, x: x * (2.0 + _by_distance(x)),
        "not on its scores alone, but on the distance",
        "windows",
    ),
    "a top-k": ("weights", "weights", lambda s, x: _largest(x, 3), "scores alone, 3 of", "a top-k"),
    "a top-p": (
        "weights",
        "weights",
        lambda s, x: _largest(x, 2 + np.arange(x.shape[2])[:, None] % 3),
        "of its largest scores alone, 2 to 4 of",
        "a top-p or a threshold",
    ),
    "a factor of each head": (
        "weights",
        "weights",
        lambda s, x: x / _by_head(x),
        "of each head are the right weights times one number, 0.",
        "a factor of each head",
    ),
    "a sink": (
        "weights",
        "weights",
        lambda s, x: x * (0.5 + 0.4 * x.max(-1, keepdims=True)),
        "of each query are the right weights times one number, 0.",
        "a sink",
    ),
    "squares": ("weights", "weights", lambda s, x: x**2, "Larger scores have larger weights", "exp"),
}


def _largest(weights, count):
    """The weights of the `count` largest of each row."""
    return np.where((-weights).argsort(-1).argsort(-1) < count, weights, 0.0)


def _keys(state, array):
    keys = np.repeat(state["keys"], array.shape[1] // state["keys"].shape[1], axis=1)
    return _whole(np.abs(keys)).swapaxes(2, 3) * (1.0 + _whole(state["queries"]))


@pytest.mark.parametrize("name", SAID)
def test_what_weights_depend_on_is_said_with_what_to_look_at(name):
    step, stage, change, words, looked_at = SAID[name]
    bug = wrong_at(step, change)
    said = list(of_dependence(lambda one: _ran(one, bug).weights, CALL, _ran(CALL).weights, stage))
    assert [words in sentence and looked_at in look for sentence, look in said] == [True], said


@pytest.mark.parametrize("stage", ["queries", "keys", "scores", "weights"])
def test_of_right_weights_nothing_is_said(stage):
    assert not list(of_dependence(lambda one: _ran(one).weights, CALL, _ran(CALL).weights, stage))


def test_of_a_layer_without_projections_no_head_is_changed():
    call = scored(BARE[1], *SMALL)
    bug = wrong_at("queries", lambda s, x: np.maximum(x, 0.0))
    (said,) = of_dependence(lambda one: _ran(one, bug).weights, call, _ran(call).weights, "queries")
    assert "not linear in the queries" in said[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s, x: x / np.sqrt(_whole(np.square(x))), "twice as large give the same output"),
        (lambda s, x: x * _whole(x), "do not give an output twice as large"),
    ],
)
def test_an_output_that_does_not_grow_with_its_values_is_said(change, words):
    call = generic(CONFIGS[0], weights=NO_BIASES)
    (said,) = of_size(lambda one: _ran(one, wrong_at("output", change)).output, call, "output")
    assert words in said[0]
    assert not list(of_size(lambda one: _ran(one).output, call, "output"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s, x: x + 0.3, "neither queries nor keys, as a bias."),
        (lambda s, x: x + _whole(s["queries"]), "on the queries, as where queries are added."),
        (
            lambda s, x: x + s["similarity"].mean(-1, keepdims=True),
            "on the queries and keys: one more key than is given",
        ),
    ],
)
def test_what_is_there_without_any_value_is_said(change, words):
    call = generic(CONFIGS[0], key_len=1, weights=NO_BIASES, values=0.0)
    assert words in of_no_values(lambda one: _ran(one, wrong_at("heads", change)).output, call)[0]


def test_a_verb_is_no_symbol():
    """ "Do" is the width of the output in formulas alone."""
    told = Brief("mine", "float64", 1, causes=(Cause("queries", "They are turned back.", "Do not negate the sine."),))
    assert "output width" not in " ".join(told.said)
    formula = replace(told, causes=(Cause("output", "It is (B, Do)."),))
    assert "Do: output width" in " ".join(formula.said)
    top_p = replace(told, causes=(Cause("weights", "As by a top-p."),))
    assert "dropout rate" not in " ".join(top_p.said)


def test_a_cause_stands_at_what_it_changes():
    """A dropout that heads share was placed at the heads' outputs, a rotation of queries and keys at the queries."""
    shared = Cause("heads", "Dropout is one mask (1, 1, Lq, Lk) for all items and heads.", label="Cause")
    assert shared.lines()[0].startswith("Cause, at the dropout of the attention weights: Dropout is")
    turned = Cause("queries", "They are turned.", label="Cause", where="queries and keys")
    assert turned.lines() == ["Cause, at the queries and keys: They are turned."]
