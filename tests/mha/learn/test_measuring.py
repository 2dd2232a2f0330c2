"""What no bug of the zoo names is measured: a wrong step in the definition, asked by experiments."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from conformance.zoo.bug import Bug
from mha.learn.bench import bench
from mha.learn.exercises import exercise
from mha.learn.hints import hint, told
from mha.learn.names import Found, explained
from mha.learn.running import layering
from mha.learn.running.measuring import said_of

# Nothing here depends on the version of a framework, and little on NumPy's.
pytestmark = pytest.mark.same_on_newest

AMPLE = 120.0
"""Seconds of computing, on however slow a machine."""


def measured(name, function):
    """What is said of a function that no bug explains."""
    one = exercise(name)
    answers = tuple((np.asarray(function(*place.arguments)),) for place in bench(one).places)
    assert explained(one, answers) == Found()
    return [
        said.sentence for said in said_of(one, lambda arguments, _: (function(*arguments),), answers, seconds=AMPLE)
    ]


def test_a_hint_says_what_was_measured_of_a_step(write):
    one, folder = write(
        "masked-softmax",
        """
        import warnings
        import numpy as np

        def masked_softmax(scores, allowed):
            warnings.warn("of no interest to anyone")
            if scores.shape[1] == 6:
                raise RuntimeError("no case has so many heads, but some questions have")
            scores = np.where(allowed, 0.7 * scores, -np.inf)
            powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
            return powers / powers.sum(axis=-1, keepdims=True)
        """,
    )
    text = hint(one, folder, 3, "numpy").text
    (said,) = [line for line in text.splitlines() if "cores are times 0.7" in line]
    assert f"{said}\n    What to change: " in text
    assert "smallest case" not in text


def test_what_is_wrong_without_an_argument_alone_is_said_with_it():
    def scores(queries, keys, scale):
        scale = (queries.shape[-1] + 1) ** -0.5 if scale is None else scale
        return queries @ keys.swapaxes(-1, -2) * scale

    (sentence,) = measured("scores", scores)
    assert sentence.startswith("Where scale is None: ")
    assert "1 / sqrt(head_dim + 1)" in sentence


def test_a_wrong_gradient_is_measured():
    def d_scores(weights, d_weights, allowed):
        total = (weights * d_weights).sum(axis=-1, keepdims=True)
        return np.where(allowed, weights * (d_weights - 0.9 * total), 0.0)

    (sentence,) = measured("gradient-of-softmax", d_scores)
    assert "rowsum(P * dP), is the definition's, times 0.9" in sentence


def test_nothing_is_said_of_what_does_not_give_every_case():
    """Measured in small calls, in which it is one thing, while the cases have more of it."""

    def weighted_sum(weights, values):
        return weights @ values * (0.9 if weights.shape[0] == 1 else 0.8 + 0.01 * weights[0, 0, 0, 0])

    assert measured("weighted-sum", weighted_sum) == []


def test_what_was_measured_of_a_whole_layer_reaches_the_learner_from_its_process(monkeypatch):
    bug = Bug(
        "measured:mine", "Scores are times 0.73.", "scores", "Leave them.", forward={"scores": lambda state: state}
    )
    explained = SimpleNamespace(explanations=(SimpleNamespace(bugs=(bug,)),), partly=())
    nothing = SimpleNamespace(explanations=())
    monkeypatch.setattr(
        layering, "diagnose", lambda subject, cases, **how: explained if "experiments" in how else nothing
    )
    is_whole, found = pickle.loads(pickle.dumps(layering.explained(None, ("prime",))))
    said = "  measured: Scores are times 0.73.\n    What to change: Leave them."
    assert (is_whole, told(found, exercise("plain-function"))) == (True, said)
