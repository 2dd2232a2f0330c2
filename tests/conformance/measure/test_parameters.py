"""Parameters and inputs that are taken for others of their shape: found in layers of equal widths, right everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.measure.designs import generic
from conformance.measure.probes.steps import biases, equal_shapes, scores
from conformance.measure.probes import select_probes
from conformance.measure.search.measure import measure
from conformance.zoo.bug import Bug, pipelines
from mha_core import AttentionConfig, AttentionMask
from mha_core.reference import pipeline as reference
from mha_core.reference.state import State
from tests.conformance.measure.wrong import Change, OutputAlone, wrong_at

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


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_arrays_taken_for_others_of_their_shape(wrong: Bug) -> None:
    found = measure(OutputAlone(wrong), zoo=(), probes=equal_shapes.PROBES)
    assert not found.unexplained
    assert any(all(gives(model, wrong, config) for config in FRESH) for model in found.models)


def less_in_later_channels(state: State, result: np.ndarray) -> np.ndarray:
    bias = state.parameters.get("q_proj.bias", np.zeros(1))
    return result - bias * (1.0 - 1.0 / (1.0 + np.arange(bias.size)))


def plus_diagonal(state: State, result: np.ndarray) -> np.ndarray:
    diagonal = np.eye(*state.parameters["k_proj.weight"].shape)
    return result + 0.1 * state["key_inputs"] @ diagonal.T


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        (wrong_at("k_proj", plus_diagonal), ("scores",)),
        (wrong_at("q_proj", less_in_later_channels), ("projection-biases",)),
    ],
    ids=("a diagonal of W_k", "b_q less in later channels"),
)
def test_matrices_and_biases_of_scores_are_read_whole(wrong: Bug, names: tuple[str, ...]) -> None:
    probes = [probe for probe in (*scores.PROBES, *biases.PROBES) if probe.id in names]
    found = measure(OutputAlone(wrong), zoo=(), probes=probes)
    assert not found.unexplained
    assert any(all(gives(model, wrong, config) for config in FRESH) for model in found.models)


def test_a_matrix_of_queries_that_should_be_0_is_read_where_scores_show() -> None:
    """Designs of equal scores have W_q = 0, to which a layer may add: then nothing of them is isolated."""

    def plus_diagonal(state: State, result: np.ndarray) -> np.ndarray:
        return result + 0.1 * state["query_inputs"] @ np.eye(*state.parameters["q_proj.weight"].shape).T

    wrong = wrong_at("q_proj", plus_diagonal)
    found = measure(OutputAlone(wrong), zoo=(), probes=select_probes(["equal-scores"]))
    assert not found.unexplained
    assert any(all(gives(model, wrong, config) for config in FRESH) for model in found.models)


def test_what_shows_in_single_items_is_met_before_several_are_asked() -> None:
    wrong = wrong_at("q_proj", lambda state, result: result + 0.5 * state.parameters.get("q_proj.bias", 0.0))
    found = measure(OutputAlone(wrong), zoo=(), probes=select_probes(["projection-biases", "items"]))
    assert not found.unexplained
    assert any(all(gives(model, wrong, config) for config in FRESH) for model in found.models)


def gives(model: tuple[Bug, ...], wrong: Bug, config: AttentionConfig) -> bool:
    """Whether a model gives a wrong layer's output in a call that neither has seen."""
    for query_len, key_len in ((5, 5), (2, 6)):
        mask = AttentionMask(valid_lens=np.array([key_len, 2]))
        problem = generic(config, seed=7, batch=2, query_len=query_len, key_len=key_len, mask=mask)
        outputs = []
        for bugs in (model, (wrong,)):
            forward, backward = pipelines(*bugs)
            outputs.append(
                reference.run(
                    problem.config, problem.weights, problem.inputs, forward=forward, backward=backward
                ).output
            )
        if not np.allclose(*outputs, rtol=1e-6, atol=1e-9):
            return False
    return True


def test_a_bias_of_queries_that_should_be_0() -> None:
    """In the first layers that are asked W_q and W_v have as many rows, though all other sizes differ."""
    wrong = WRONG["b_q is b_v"]
    found = measure(OutputAlone(wrong), zoo=(), probes=select_probes(["equal-scores-with-biases"]))
    assert not found.unexplained
    assert any(all(gives(model, wrong, config) for config in FRESH) for model in found.models)


def test_right_layers_have_no_finding() -> None:
    found = measure(OutputAlone(), probes=equal_shapes.PROBES)
    assert found.models == ((),)
    assert not found.unexplained
