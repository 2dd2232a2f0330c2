"""Wrong queries, keys and scores that are not on file are measured from outputs alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.measure.outcome import Measured
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig, AttentionMask
from mha_core.call.masks import additive_bias
from mha_core.reference import forward
from mha_core.reference.state import State
from tests.conformance.measure.wrong import FRESH, fresh_problems, is_right, measured, said, wrong_at

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


SCORES = ("score-size", "queries", "keys", "scores", "scores-square", "scores-longer")
AROUND_SCORES = (
    *("projection-biases", "given-scale", "dot-score", "softcap", "key-biases", "additive-score", "score-bias*"),
)

PLAIN = fresh_problems(masks=[AttentionMask()])


def _rows(scores: NDArray) -> NDArray:
    return np.arange(scores.shape[2])[:, None]


SINGLE: dict[str, Bug] = {
    "scale": wrong_at("similarity", lambda s, a: a * 1.37),
    "scale-of-widths": wrong_at("similarity", lambda s, a: a * (s.config.head_dim / s.config.key_dim) ** 0.5),
    "heads-reversed": wrong_at("queries", lambda s, a: a[:, ::-1]),
    "key-heads-rolled": wrong_at("new_keys", lambda s, a: np.roll(a, 1, axis=1)),
    "channels-reversed": wrong_at("queries", lambda s, a: a[..., ::-1]),
    "neighbour": wrong_at("queries", lambda s, a: a + 0.31 * np.roll(a, 1, axis=2)),
    "talking-heads": wrong_at("similarity", lambda s, a: a + 0.2 * a.mean(axis=1, keepdims=True)),
    "queries-through-tanh": wrong_at("queries", lambda s, a: np.tanh(a)),
    "scores-clipped": wrong_at("similarity", lambda s, a: np.clip(a, -0.52, 0.52)),
    "over-the-head's-number": wrong_at("scores", lambda s, a: a / (1.0 + np.arange(a.shape[1]))[:, None, None]),
    "over-their-spread": wrong_at("scores", lambda s, a: a / (a.std(axis=-1, keepdims=True) + 1e-5)),
    "distances": wrong_at("similarity", lambda s, a: a - 0.11 * np.abs(np.arange(a.shape[3]) - _rows(a))),
    "first-head": wrong_at(
        "similarity", lambda s, a: a * np.where(np.arange(a.shape[1]) == 0, 0.6, 1.0)[:, None, None]
    ),
}


@cache
def diagnosed(name: str) -> Measured:
    """What a layer with this fault shows, for every test that looks at it."""
    return measured(SINGLE[name], probes=SCORES)


@pytest.mark.parametrize("name", SINGLE)
def test_a_fault_that_is_not_on_file_is_measured(name: str) -> None:
    found = diagnosed(name)
    assert is_right(found, (SINGLE[name],), PLAIN), said(found)


def test_a_factor_is_told_as_what_it_is_of_the_sizes() -> None:
    found = diagnosed("scale-of-widths")
    assert any("sqrt(head_dim / key_dim)" in bug.sentence for model in found.models for bug in model), said(found)


def test_two_faults_at_once() -> None:
    bugs = (wrong_at("q_proj", lambda s, a: a * s.config.query_dim**-0.5), SINGLE["key-heads-rolled"])
    found = measured(*bugs, probes=SCORES)
    assert is_right(found, bugs, PLAIN), said(found)


def _hidden_with_more_of_queries(state: State, hidden: NDArray | None) -> NDArray | None:
    if hidden is None:
        return None
    from_query = state["queries"] @ state.parameters["score.query.weight"].T
    from_key = state.heads_of("keys") @ state.parameters["score.key.weight"].T
    return np.tanh(1.3 * from_query[:, :, :, None, :] + from_key[:, :, None, :, :])


def _before_tanh(number: float) -> Bug:
    def changed(state: State, hidden: NDArray | None) -> NDArray | None:
        return None if hidden is None else np.tanh(number * np.arctanh(hidden))

    return wrong_at("additive_hidden", changed)


def _exchanged(state: State, hidden: NDArray | None) -> NDArray | None:
    """Units 1 and 2 of the hidden layer exchanged."""
    return None if hidden is None else hidden[..., [0, 2, 1, *range(3, hidden.shape[-1])]]


def _query_matrix_transposed_if_square(state: State, hidden: NDArray | None) -> NDArray | None:
    matrix = state.parameters.get("score.query.weight", np.zeros((1, 2)))
    if hidden is None or matrix.shape[0] != matrix.shape[1]:
        return hidden
    from_key = state.heads_of("keys") @ state.parameters["score.key.weight"].T
    return np.tanh((state["queries"] @ matrix)[:, :, :, None, :] + from_key[:, :, None, :, :])


def _capped_at(factor: Callable[[AttentionConfig], float]) -> Bug:
    def changed(state: State, capped: NDArray) -> NDArray:
        if state.config.softcap is None:
            return capped
        c = state.config.softcap * factor(state.config)
        return c * np.tanh(state["similarity"] / c)

    return wrong_at("capped", changed)


AROUND: dict[str, Bug] = {
    "additive-matrix-transposed-if-square": wrong_at("additive_hidden", _query_matrix_transposed_if_square),
    "softcap-over-root-of-head-dim": _capped_at(lambda config: config.head_dim**-0.5),
    "additive-before-tanh": _before_tanh(0.9),
    "additive-units": wrong_at("additive_hidden", _exchanged),
    "softcap-of-heads": _capped_at(lambda config: config.num_heads),
    "additive-query-factor": wrong_at("additive_hidden", _hidden_with_more_of_queries),
    "scale-given-squared": wrong_at(
        "similarity", lambda s, a: a if s.config.scale is None else s["unscaled"] * s.config.scale**2
    ),
    "bias-halved": wrong_at(
        "scores", lambda s, a: a if s.inputs.mask.bias is None else s["capped"] + 0.5 * additive_bias(s.inputs.mask)
    ),
    "query-bias-tripled": wrong_at("q_proj", lambda s, a: a + 2.0 * s.parameters.get("q_proj.bias", 0.0)),
}


@pytest.mark.parametrize("name", AROUND)
def test_what_is_around_the_scores_is_measured(name: str) -> None:
    given, additive = FRESH
    configs = (*FRESH, replace(given, scale=0.77), replace(additive, score="additive"), replace(given, softcap=0.9))
    bug = AROUND[name]
    found = measured(bug, probes=(*SCORES, *AROUND_SCORES))
    assert is_right(found, (bug,), fresh_problems(configs)), said(found)


# Linear changes of a step's array, or of a part of it -------------------------------------------------------------


def _exchanged_in_one_head(state: State, queries: NDArray) -> NDArray:
    found = queries.copy()
    if queries.shape[1] > 1 and queries.shape[-1] > 2:
        found[:, 1] = queries[:, 1][..., [0, 2, 1, *range(3, queries.shape[-1])]]
    return found


def _heads_mixed_at_late_keys(state: State, values: NDArray) -> NDArray:
    found = values.copy()
    found[:, 1:, 2:] = 0.5 * values[:, 1:, 2:] + 0.5 * values[:, :-1, 2:]
    return found


def _mixed_key_heads(state: State) -> NDArray:
    keys = state.heads_of("keys")
    mixed = 0.75 * keys + 0.25 * np.roll(keys, -1, axis=1)
    return forward.unscaled(replace(state, arrays={**state.arrays, "keys": mixed}))


def _clamped(bias: NDArray) -> NDArray:
    return bias[..., [*range(1, bias.shape[-1]), bias.shape[-1] - 1]]


OF_PARTS: dict[str, tuple[Bug, str]] = {
    "channels of one head": (wrong_at("queries", _exchanged_in_one_head), "scores-longer"),
    "heads of keys, as read": (wrong_at("unscaled", lambda s, a: _mixed_key_heads(s)), "scores-longer"),
    "weights of the next query": (
        wrong_at("weights", lambda s, a: 0.75 * a + 0.25 * np.roll(a, -1, axis=2)),
        "scores-longer",
    ),
    "values from a key on": (wrong_at("projected_values", _heads_mixed_at_late_keys), "equal-scores-longer"),
    "late queries": (
        wrong_at("heads", lambda s, a: a * np.where(np.arange(a.shape[2]) >= 4, 0.3, 1.0)[:, None]),
        "equal-scores-longer",
    ),
    "bias of the next key": (
        wrong_at(
            "scores",
            lambda s, a: a if s.inputs.mask.bias is None else s["capped"] + _clamped(additive_bias(s.inputs.mask)),
        ),
        "score-bias",
    ),
}


@pytest.mark.parametrize("name", OF_PARTS)
def test_a_change_of_a_part_is_measured(name: str) -> None:
    bug, probe = OF_PARTS[name]
    found = measured(bug, probes=[probe])
    assert is_right(found, (bug,), fresh_problems()), said(found)
