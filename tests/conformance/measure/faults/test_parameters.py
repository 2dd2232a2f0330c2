"""Parameters and inputs that are taken for others of their shape: found in layers of equal widths, right everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from conformance.cases.problem import Problem
from conformance.measure.designs import generic
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig, AttentionMask
from mha_core.reference.state import State
from tests.conformance.measure.wrong import Change, is_right, measured, said, wrong_at

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

FRESH = (
    AttentionConfig(20, 5, bias=True),
    AttentionConfig(18, 6, num_kv_heads=3, bias=True),
    AttentionConfig(16, 4, query_dim=8, bias=True),
    AttentionConfig(14, 2, key_dim=6, value_dim=6, head_dim=3, value_head_dim=5, output_dim=8, bias=True),
)


def reading(step: str, name: str, other: str) -> Bug:
    """A step that reads another parameter where that has the shape of its own."""

    def change(state: State, result: np.ndarray) -> np.ndarray:
        own, found = state.parameters[name], state.parameters[other]
        if own.shape != found.shape:
            return result
        given = {"q_proj": "query_inputs", "k_proj": "key_inputs", "v_proj": "value_inputs", "output": "merged"}[step]
        x = state[given]
        return result + (x @ (found - own).T if own.ndim == 2 else found - own)

    return wrong_at(step, change)


def given(name: str, share: float = 1.0) -> Change:
    """So much of an input of the layer in the place of a result of its shape."""

    def change(state: State, result: np.ndarray) -> np.ndarray:
        found = getattr(state.inputs, name)
        return result + share * (found - result) if found.shape == result.shape else result

    return change


def plus(name: str, share: float) -> Change:
    def change(state: State, result: np.ndarray) -> np.ndarray:
        found = getattr(state.inputs, name)
        return result + share * found if found.shape == result.shape else result

    return change


WRONG = {
    "W_q is W_o": reading("q_proj", "q_proj.weight", "out_proj.weight"),
    "W_v is W_q": reading("v_proj", "v_proj.weight", "q_proj.weight"),
    "W_o is W_k": reading("output", "out_proj.weight", "k_proj.weight"),
    "b_q is b_v": reading("q_proj", "q_proj.bias", "v_proj.bias"),
    "queries of half the keys": wrong_at("query_inputs", given("keys", 0.5)),
    "values of 0.3 of the queries": wrong_at("value_inputs", given("queries", 0.3)),
    "the output plus 0.7 of the values": wrong_at("output", plus("values", 0.7)),
}


def less_in_later_channels(state: State, result: np.ndarray) -> np.ndarray:
    bias = state.parameters.get("q_proj.bias", np.zeros(1))
    return result - bias * (1.0 - 1.0 / (1.0 + np.arange(bias.size)))


def plus_diagonal(given: str, name: str) -> Change:
    return lambda s, result: result + 0.1 * s[given] @ np.eye(*s.parameters[f"{name}.weight"].shape).T


READ_WHOLE: dict[str, tuple[Bug, str, bool]] = {
    "a diagonal of W_k": (wrong_at("k_proj", plus_diagonal("key_inputs", "k_proj")), "scores", True),
    "b_q less in later channels": (wrong_at("q_proj", less_in_later_channels), "projection-biases", True),
    # Designs of equal scores have W_q = 0, to which a layer may add: then nothing of them is isolated.
    "a diagonal of W_q": (wrong_at("q_proj", plus_diagonal("query_inputs", "q_proj")), "equal-scores", False),
    # In the first layers that are asked W_q and W_v have as many rows, though all other sizes differ.
    "b_q that should be 0 is b_v": (WRONG["b_q is b_v"], "equal-scores-with-biases", False),
    # It shows in single items, and is met before several are asked.
    "b_q and a half": (
        wrong_at("q_proj", lambda s, result: result + 0.5 * s.parameters.get("q_proj.bias", 0.0)),
        "items",
        False,
    ),
}
"""What is wrong -> the bug, the last probe that is asked, whether it is asked alone."""


@pytest.mark.parametrize("name", [*WRONG, *READ_WHOLE])
def test_arrays_taken_for_others_and_matrices_read_whole(name: str) -> None:
    wrong, probe, alone = READ_WHOLE.get(name) or (WRONG[name], "equal-widths*", True)
    found = measured(wrong, probes=[probe], alone=alone)
    assert is_right(found, (wrong,), fresh(), among=99), said(found)


def fresh() -> Iterator[Problem]:
    """Calls that no probe asks."""
    for config in FRESH:
        for query_len, key_len in ((5, 5), (2, 6)):
            mask = AttentionMask(valid_lens=np.array([key_len, 2]))
            yield generic(config, seed=7, batch=2, query_len=query_len, key_len=key_len, mask=mask)
