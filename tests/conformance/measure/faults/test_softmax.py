"""Softmaxes that are not in the zoo are measured: what is found gives the same on fresh problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conformance.measure.designs import CONFIGS, generic
from conformance.zoo.bug import Bug
from mha_core.reference import forward
from tests.conformance.measure.wrong import is_right, measured, said

# The diagnosis and its subjects are NumPy alone here.
pytestmark = pytest.mark.same_on_newest


def made(name, step, stage="weights"):
    return Bug(name, name, stage, "-", forward={stage: step})


def masked(state):
    return np.where(state["allowed"], state["scores"], -np.inf)


def exponentials(state):
    x = masked(state)
    return np.exp(x - x.max(axis=-1, keepdims=True))


def over(state, total):
    return np.where(state["allowed"], exponentials(state) / total(exponentials(state)), 0.0)


def total(e):
    return e.sum(axis=-1, keepdims=True)


def of_scores(change):
    return lambda state: forward.softmax(change(state["scores"]), state["allowed"])


def of_weights(change):
    return lambda state: change(forward.weights(state))


def normalised(w):
    return w / w.sum(axis=-1, keepdims=True)


def largest(w, k):
    return np.argsort(np.argsort(-w, axis=-1), axis=-1) < k


def of_heads(state, numbers):
    return np.resize(numbers, state.config.num_heads)[:, None, None]


def talking(heads):
    return np.eye(heads) + 0.2 * np.sin(1.0 + 2.0 * np.arange(heads)[:, None] + np.arange(heads))


WRONG = {
    "sum-plus-0.0371": lambda s: over(s, lambda e: total(e) + 0.0371),
    "raw-sum-plus-0.5": lambda s: np.exp(s["scores"]) / (total(np.exp(s["scores"])) + 0.5),
    "times-0.97": of_weights(lambda w: 0.97 * w),
    "over-length": of_weights(lambda w: w / w.shape[-1]),
    "over-norm": lambda s: over(s, lambda e: np.sqrt(total(e * e))),
    "over-root-of-sum": lambda s: over(s, lambda e: np.sqrt(total(e))),
    "over-heads-and-keys": lambda s: np.exp(masked(s)) / np.exp(masked(s)).sum(axis=(1, 3), keepdims=True),
    "undivided": lambda s: over(s, lambda e: 1.0),
    "temperature-0.83": of_scores(lambda x: 0.83 * x),
    "base-10": of_scores(lambda x: np.log(10.0) * x),
    "powers-of-weights": of_weights(lambda w: w**1.37),
    "relu-normalised-plus": lambda s: np.maximum(s["scores"], 0) / (total(np.maximum(s["scores"], 0)) + 0.013),
    "squares-normalised": lambda s: normalised(s["scores"] ** 2),
    "softmax-of-squares": of_scores(lambda x: x * x),
    "softplus-normalised": lambda s: normalised(np.logaddexp(0, s["scores"])),
    "sigmoid-less-log-n": lambda s: 1 / (1 + np.exp(np.log(s.sizes.key_len) - s["scores"])),
    "smoothed-0.11": of_weights(lambda w: 0.89 * w + 0.11 / w.shape[-1]),
    "own-key-0.2": of_weights(lambda w: 0.8 * w + 0.2 * np.eye(*w.shape[-2:])),
    "top-2": of_weights(lambda w: np.where(largest(w, 2), w, 0.0)),
    "top-2-normalised": of_weights(lambda w: normalised(np.where(largest(w, 2), w, 0.0))),
    "below-0.01-lost": of_weights(lambda w: np.where(w < 0.01, 0.0, w)),
    "below-0.004-lost-normalised": of_weights(lambda w: normalised(np.where(w < 0.004, 0.0, w))),
    "at-most-0.6": of_weights(lambda w: np.minimum(w, 0.6)),
    "scores-within-7.5": of_scores(lambda x: np.clip(x, -7.5, 7.5)),
    "scores-at-most-2.25": of_scores(lambda x: np.minimum(x, 2.25)),
    "8-bits": of_weights(lambda w: np.round(w * 255) / 255),
    "sums-of-next-row": lambda s: np.exp(masked(s)) / np.roll(total(np.exp(masked(s))), 1, axis=2),
    "taylor-2": lambda s: normalised(1 + s["scores"] + s["scores"] ** 2 / 2),
    "leaky-0.3": of_scores(lambda x: np.where(x < 0, 0.3 * x, x)),
    "keys-reversed": of_weights(lambda w: w[..., ::-1]),
    "blocks-of-2": lambda s: np.concatenate(
        [
            forward.softmax(s["scores"][..., j : j + 2], s["allowed"][..., j : j + 2])
            for j in range(0, s.sizes.key_len, 2)
        ],
        axis=-1,
    ),
    "minus": of_scores(lambda x: -x),
    "float16": of_weights(lambda w: w.astype(np.float16).astype(float)),
    "q-exponential": lambda s: normalised(
        np.maximum(1 + 0.3 * (s["scores"] - s["scores"].max(-1, keepdims=True)), 0) ** (1 / 0.3)
    ),
}


IN_PLACES = {
    "added-to-exponentials": lambda s: normalised(np.where(s["allowed"], exponentials(s) + 0.01, 0.0)),
    "smoothed-in-the-last-head": of_weights(
        lambda w: np.where(np.arange(w.shape[1])[:, None, None] == w.shape[1] - 1, 0.7 * w + 0.3 / w.shape[-1], w)
    ),
    "terms-of-the-last-key": lambda s: normalised(exponentials(s) * np.where(np.arange(s.sizes.key_len)[::-1], 1, 1.7)),
    "terms-of-earlier-keys": lambda s: normalised(
        exponentials(s) * np.where(np.tri(*s["scores"].shape[-2:], -1), 0.6, 1)
    ),
    "a-part-of-the-second-next-key": of_weights(lambda w: 0.9 * w + 0.1 * np.roll(w, -2, axis=-1)),
    "sum-plus-one-of-each-head": lambda s: over(s, lambda e: total(e) + of_heads(s, [0.9, 0.2, 1.7, 0.4, 1.1, 0.6])),
    "heads-mixed": of_weights(lambda w: np.einsum("gh,bhij->bgij", talking(w.shape[1]), w)),
}


def fresh():
    """Problems of other sizes and numbers than any probe's, with small and large scores."""
    for number, config in enumerate((*CONFIGS[:3], CONFIGS[7])):
        problem = generic(config, seed=90 + number, batch=1 + number % 2, query_len=6, key_len=9)
        yield problem
        yield replace(problem, inputs=replace(problem.inputs, queries=problem.inputs.queries * 2.5))


@pytest.mark.parametrize("name", [*[*WRONG][::3], *IN_PLACES])  # a third: each takes a second
def test_a_wrong_softmax_is_measured(name):
    bug = made(name, {**WRONG, **IN_PLACES}[name])
    found = measured(bug, probes=["softmax*"], zoo=None)
    assert is_right(found, (bug,), fresh(), among=1), said(found)


@pytest.mark.parametrize("least", [1.0003, 1.02])
def test_a_sum_that_is_at_least_a_little_more_than_1(least):
    """Only rows in which one key has nearly all of the weight show it, of several keys few."""
    wrong = made("sum-at-least", lambda s: over(s, lambda e: np.maximum(total(e), least)))
    found = measured(wrong, probes=["equal-channels"], alone=False)
    assert not found.unexplained, said(found)
    assert any(f"at least {least}" in bug.sentence for model in found.models for bug in model), said(found)


def test_a_part_of_the_weights_in_the_last_block_of_queries():
    """Of two layers that are asked one has no such block: of all queries that differ the last one is, and not there."""
    rows = np.arange(99)[:, None]

    def change(state):
        w, n = forward.weights(state), state.sizes.query_len
        part = (rows[:n] >= n // 2 * 2) & (n > 2)
        return np.where(part, normalised(np.where(largest(w, 3), w, 0.0)), w)

    wrong = made("top-3-in-the-last-block", change)
    found = measured(wrong, probes=["scores"])
    problem = generic(CONFIGS[7], seed=91, query_len=7, key_len=9)
    assert is_right(found, (wrong,), [problem], among=1), said(found)
