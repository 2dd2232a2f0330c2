"""How wrong numbers lie to the right ones, and what is wrong with a form: a sentence is said where it is true alone."""

import re

import numpy as np
import pytest

from mha.learn.bench import bench
from mha.learn.differences import location, relation
from mha.learn.exercises import exercise
from mha.learn.hints import of_answers
from mha.learn.judge import verdict_of
from mha.learn.names import sentences
from mha.learn.running.attempt import Attempt
from mha.learn.tracks.own import candidates_of
from tests.mha.learn.calling import answers_of, softmax_of

pytestmark = pytest.mark.same_on_newest  # it computes in NumPy alone


def spoilt(name, change):
    """(exercise, what a function gives whose right arrays are changed so in every case)."""
    one = exercise(name)
    with np.errstate(all="ignore"):
        return one, tuple(tuple(change(array, place) for array in place.wanted) for place in bench(one).places)


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("weighted-sum", lambda x, place: x / place.arguments[0].shape[-1], "it is the right one times 1 / Lk"),
        ("weighted-sum", lambda x, place: x * 0.7, "it is the right one times 0.7"),
        ("project", lambda x, place: np.maximum(x, 0.0), "negative numbers are 0"),
        ("project", lambda x, place: np.round(x, 3), "it is rounded to 3 decimals"),
        ("project", lambda x, place: np.float64(np.float32(x)), "it is as accurate as float32"),
        ("split", lambda x, place: x[:, ::-1], "each head has what stands at the other end"),
        ("split", lambda x, place: np.broadcast_to(x[:, :1], x.shape), "each head has what the first one must have"),
        ("masked-softmax", lambda x, place: np.nan * x, "every number is NaN where one is wrong"),
        ("causal-offsets", lambda x, place: ~x, "True and False are exchanged"),
    ],
)
def test_a_relation_is_told_in_all_cases_or_not_at_all(name, change, sentence):
    one, answers = spoilt(name, change)
    assert sentence in relation(one, answers)
    right = tuple(place.wanted for place in bench(one).places)
    assert relation(one, right) == location(one, right) == ""
    other = tuple(array | True if array.dtype == bool else array + 1.0 for array in right[-1])
    assert sentence not in relation(one, (*answers[:-1], other))
    assert relation(one, answers[:-1]) == ""


def third(allowed):
    return np.arange(allowed.shape[-1]) == 3


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("scores", lambda x, p: x + (p.arguments[2] is not None), "it is wrong where scale is given, and right"),
        (
            "empty-row",
            lambda x, p: np.where(p.arguments[1].any(-1, keepdims=True), x, 0.1),
            "it is wrong only in rows without an allowed key",
        ),
        (
            "weighted-sum",
            lambda x, p: np.where(np.arange(x.shape[1])[:, None, None] > 0, x + 1, x),
            "the first index of axis 1 is right",
        ),
        ("causal-offsets", lambda x, p: x | third(x), "it lets in keys that it must exclude, and excludes none"),
        ("causal-offsets", lambda x, p: x & ~third(x), "it excludes keys that it must let in, and lets in none"),
    ],
)
def test_where_it_is_wrong(name, change, sentence):
    one, answers = spoilt(name, change)
    assert sentence in location(one, answers)
    everywhere = tuple((np.logical_not(x) if x.dtype == bool else x - 3.0,) for (x,) in answers)
    assert sentence not in location(one, everywhere)


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("split", lambda x: x.transpose(3, 0, 1, 2), "transpose(1, 2, 3, 0) puts them right"),
        ("split", lambda x: x[..., None], "axis 4 is one too many"),
        ("split", lambda x: x.sum(1), "axis 1 is missing"),
        ("split", lambda x: x[:, :, 1:], "axis 2 has size 4, not 5"),
        ("merge", lambda x: x.reshape(*x.shape[:2], -1, 13), "axes 2 and 3 must be joined"),
        ("split", np.float16, "is float16; it must be float64: a step of yours makes float16 of it"),
        ("causal-offsets", lambda x: np.where(x, 0.0, -1e9), "it is a mask to be added to scores"),
        ("causal-offsets", lambda x: x.astype(int), "these are numbers; True must say that a query may attend"),
        ("causal-offsets", lambda x: x[:, 0], "axis 1 is missing"),
        ("causal-offsets", lambda x: x[0, 0].T, "axes are put side by side from the last one on"),
    ],
)
def test_a_form_comes_first(name, change, sentence):
    one = exercise(name)
    verdict = verdict_of(one, Attempt(tuple((change(place.wanted[0]),) for place in bench(one).places)))
    assert verdict.status == "wrong"
    assert verdict.form == verdict.line
    assert sentence in verdict.line


def test_arrays_in_another_order():
    one = exercise("gradient-of-scores")
    verdict = verdict_of(one, Attempt(tuple(place.wanted[::-1] for place in bench(one).places)))
    assert verdict.line.startswith("what it returns is (d_keys, d_queries); it must be (d_queries, d_keys)")


@pytest.mark.parametrize("name", ["masked-softmax", "empty-row"])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda s, a: np.where(a, s, -1e9),
            "Masked scores become a number, such as -1e9, not minus infinity: a masked key still counts",
        ),
        (lambda s, a: np.where(a, s, np.finfo(float).min), "Masked scores become "),
        (lambda s, a: s + np.where(a, 0.0, -1e9), "number is added to masked scores, "),
        (lambda s, a: np.where(a, s, 0.0), "Masked scores become a number, 0, "),
        (lambda s, a: np.where(a, 0.7 * s, -1e9), ""),
        (lambda s, a: np.where(a, s, -np.inf), ""),
    ],
)
def test_a_finite_fill_is_told_before_any_bug(name, change, sentence):
    one = exercise(name)
    answers = answers_of(one, softmax_of(change))
    verdict = verdict_of(one, Attempt(answers))
    if verdict.status == "right":  # each query of that exercise has a key, and no score is as low
        return
    said = " ".join(sentences(one, answers, candidates_of(one)))
    assert sentence in said
    assert bool(sentence) == ("not minus infinity" in said)
    text = of_answers(one, verdict, None)
    assert not sentence or re.search("asked scores become|added to (masked|excluded) scores", text)
    assert not sentence or "Two things are wrong" not in text
