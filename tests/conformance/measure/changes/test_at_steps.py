"""Linear changes of a step's array, or of a part of it, are read off and put where they act; none is on file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.measure.probes.steps import biases, equal_scores, scores
from conformance.measure.search.measure import measure
from conformance.zoo.bug import Bug
from mha_core.call.masks import additive_bias
from mha_core.reference import forward
from mha_core.reference.state import State
from tests.conformance.measure.wrong import OutputAlone, fresh_problems, is_right, wrong_at

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


LONGER_SCORES, LONGER, BIAS = (
    tuple(one for one in module.PROBES if one.id == name)
    for module, name in ((scores, "scores-longer"), (equal_scores, "equal-scores-longer"), (biases, "score-bias"))
)
"""The probes that show them: each alone."""


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


FAULTS: dict[str, tuple[Bug, tuple]] = {
    "channels of one head": (wrong_at("queries", _exchanged_in_one_head), LONGER_SCORES),
    "heads of keys, as read": (wrong_at("unscaled", lambda s, a: _mixed_key_heads(s)), LONGER_SCORES),
    "weights of the next query": (
        wrong_at("weights", lambda s, a: 0.75 * a + 0.25 * np.roll(a, -1, axis=2)),
        LONGER_SCORES,
    ),
    "values from a key on": (wrong_at("new_values", _heads_mixed_at_late_keys), LONGER),
    "late queries": (
        wrong_at("heads", lambda s, a: a * np.where(np.arange(a.shape[2]) >= 4, 0.3, 1.0)[:, None]),
        LONGER,
    ),
    "bias of the next key": (
        wrong_at(
            "scores",
            lambda s, a: a if s.inputs.mask.bias is None else s["capped"] + _clamped(additive_bias(s.inputs.mask)),
        ),
        BIAS,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_it_is_measured(name: str) -> None:
    bug, probes = FAULTS[name]
    measured = measure(OutputAlone(bug), zoo=(), probes=probes)
    assert is_right(measured, (bug,), fresh_problems())
