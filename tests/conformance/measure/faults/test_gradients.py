"""Wrong gradients: what is measured of them holds elsewhere; what is differentiated rightly is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.designs import CONFIGS, generic
from conformance.measure.outcome import Measured
from conformance.measure.probe import Probe
from conformance.measure.probes import all_probes, select_probes
from conformance.measure.read.differences import own_gradients
from conformance.measure.search.measure import Search, measure
from conformance.subjects.backend import BackendSubject
from conformance.zoo.bug import Bug, BuggySubject
from conformance.zoo.registry import all_bugs, bugs_of_parts
from conformance.zoo.variants import Variants
from mha_core import AttentionConfig, AttentionMask, Trace, reference
from mha_core.backend import Run, load
from mha_core.heads import merge_heads, sum_kv_groups
from mha_core.reference.state import State
from mha_core.weights import Weights
from tests.conformance.measure.faults.layers import Differentiated
from tests.conformance.measure.wrong import Change
from tests.conformance.measure.wrong import wrong_gradients as wrong

Scores = Callable[[Tensor, Tensor, AttentionConfig], Tensor]

pytestmark = pytest.mark.same_on_newest  # PyTorch's release is the same there, and the rest is NumPy's arithmetic

PROBES = [probe for probe in all_probes() if probe.gradients]


def measured(subject: object, *, file: tuple[Bug, ...] = (), probes: Sequence[Probe] = PROBES) -> Measured:
    """The result of probes of gradients alone, as if the forward direction were right; with these bugs on file."""
    return measure(subject, zoo=file, probes=probes)


def on_file() -> tuple[Bug, ...]:
    return tuple(bug for bug in all_bugs() if not bug.equivalent)


def test_right_layers_have_no_finding() -> None:
    for dtype in ("float64", "float32"):
        found = measured(BuggySubject(dtype=dtype), file=on_file())
        assert found.models == ((),)
        assert not found.unexplained


GRADIENTS = [bug for bug in on_file() if bug.stage == "gradients" and bug.id not in bugs_of_parts()]
"""Those that probes can show: they ask for no layer with parts."""


@pytest.mark.parametrize("bug", GRADIENTS[::7], ids=lambda bug: bug.id)
def test_bugs_on_file_are_named(bug: Bug) -> None:
    found = measured(BuggySubject(bug), file=on_file())
    assert any([one.id for one in model] == [bug.id] for model in found.models)
    assert not found.unexplained


def test_subjects_without_gradients_are_not_asked() -> None:
    def prepare(config: AttentionConfig, weights: Weights) -> Run:
        return lambda inputs: Trace(output=reference.run(config, weights, inputs).output)

    subject = BuggySubject()
    subject.prepare = prepare  # type: ignore[method-assign]
    assert Search(Asker(subject)).run(PROBES).outcomes == ()


def _wrong_scores(q: Tensor, k: Tensor, config: AttentionConfig) -> Tensor:
    """Queries and keys of length 1, times a number: no bug that any probe of gradients knows."""
    return 1.7 * torch.nn.functional.normalize(q, dim=-1) @ torch.nn.functional.normalize(k, dim=-1).mT


@pytest.mark.parametrize("scores", [_wrong_scores, lambda q, k, config: q @ k.mT / config.num_heads])
def test_a_wrong_layer_that_is_differentiated_rightly_is_not_told_that_its_gradients_are_wrong(scores: Scores) -> None:
    asker = Asker(layer := Differentiated(scores))
    assert not asker.is_right(generic(CONFIGS[0]))
    found = Search(asker, on_file()).run(PROBES)
    assert found.models == ((),)
    assert not found.unexplained
    assert measured(layer, file=on_file()).models == ((),)


def test_wrong_of_a_wrong_layer_are_noticed() -> None:
    wrong = Differentiated(_wrong_scores, lambda given: {**given, "keys": 1.01 * given["keys"]})
    assert measured(wrong, probes=PROBES[:1]).unexplained


def test_a_layer_of_a_framework_has_no_finding() -> None:
    assert not measured(Differentiated(), file=on_file()).differs
    backend = BackendSubject(load("torch"), "float32", "cpu")
    assert not measured(backend, file=on_file()).differs


def test_rough_outputs_can_not_be_differentiated() -> None:
    problem = generic(CONFIGS[0])
    run = BuggySubject().prepare(problem.config, problem.weights)
    given = run(problem.inputs).gradients
    assert given is not None

    def rough(one: Problem) -> NDArray:
        output = BuggySubject().prepare(one.config, one.weights)(one.inputs).output
        assert output is not None
        return np.round(output, 2)

    assert own_gradients(rough, problem, given, 1e-16) is None
    assert own_gradients(lambda one: None, problem, given, 1e-16) is None


# On no file ---------------------------------------------------------------------------------------------------------


def of(name: str, change: Change) -> Change:
    """A change of one gradient of several."""

    def changed(state: State, result: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
        return {**result, name: change(state, result[name])} if name in result else result

    return changed


def unless_none(change: Change) -> Change:
    return lambda state, result: None if result is None else change(state, result)


def _row_sum(state: State) -> NDArray:
    total: NDArray = (state["weights"] * state["d_weights"]).sum(axis=-1, keepdims=True)
    return state["weights"] * total


def _row_sum_of_the_next(state: State, result: NDArray) -> NDArray:
    total: NDArray = (state["weights"] * state["d_weights"]).sum(axis=-1, keepdims=True)
    return result + np.where(state["allowed"], state["weights"] * (total - np.roll(total, -1, axis=2)), 0.0)


def _from_dropped(state: State, result: NDArray) -> NDArray:
    if state.inputs.dropout_keep is None:
        return result
    kept = state["weights"] * state.inputs.dropout_keep
    return sum_kv_groups(kept.swapaxes(-1, -2) @ state["d_heads"], state.config.num_kv_heads)


def _tiled_groups(state: State, result: NDArray) -> NDArray:
    per_head = state["kept_weights"].swapaxes(-1, -2) @ state["d_heads"]
    return per_head.reshape(per_head.shape[0], -1, state.config.num_kv_heads, *per_head.shape[2:]).sum(axis=1)


def _interleaved(state: State, result: NDArray) -> NDArray:
    return state["d_queries"].transpose(0, 2, 3, 1).reshape(result.shape)


def _last_item(state: State, result: NDArray) -> NDArray:
    return np.einsum("blo,bli->oi", state["d_output"][-1:], merge_heads(state["heads"])[-1:])


def _softcap_slope(state: State, result: NDArray) -> NDArray:
    if state.config.softcap is None:
        return result
    return state["d_scores"] * (1.0 - np.abs(np.tanh(state["similarity"] / state.config.softcap)))


PLAIN = ("gradients", "gradients-of-items", "gradients-of-square-calls")

WITH_PAST = (*PLAIN, "gradients-with-past")

WITH_LENGTHS = (*PLAIN, "gradients-with-lengths")

CALLS: dict[str, tuple[Bug, tuple[str, ...]]] = {
    "output times 0.7": (wrong(d_output=lambda s, r: 0.7 * r), PLAIN),
    "output over heads": (wrong(d_output=lambda s, r: r / s.config.num_heads), PLAIN),
    "merged times a root": (wrong(d_merged=lambda s, r: r * s.config.num_heads**0.5), PLAIN),
    "heads rolled": (wrong(d_heads=lambda s, r: np.roll(r, 1, axis=1)), PLAIN),
    "head 0 times 0.3": (wrong(d_heads=lambda s, r: r - 0.7 * r * (np.arange(r.shape[1]) == 0)[:, None, None]), PLAIN),
    "values reversed": (wrong(d_values=lambda s, r: r[:, :, ::-1]), WITH_PAST),
    "values tiled": (wrong(d_values=_tiled_groups), PLAIN),
    "value 0 without": (wrong(d_values=lambda s, r: r * (np.arange(r.shape[2]) > 0)[:, None]), WITH_PAST),
    "kept weights": (wrong(d_kept_weights=lambda s, r: 1.3 * r), PLAIN),
    "part of the row sum": (wrong(d_scores=lambda s, r: r + 0.6 * _row_sum(s)), PLAIN),
    "row sum of the next query": (wrong(d_scores=_row_sum_of_the_next), PLAIN),
    "queries of the next item": (wrong(d_queries=lambda s, r: np.roll(r, 1, axis=0)), PLAIN),
    "keys of the next head": (wrong(d_keys=lambda s, r: np.roll(r, 1, axis=1)), WITH_PAST),
    "decay": (
        wrong(d_projection_parameters=of("q_proj.weight", lambda s, r: r + 0.03 * s.parameters["q_proj.weight"])),
        PLAIN,
    ),
    "diagonal": (wrong(d_scores=lambda s, r: s["weights"] * (1.0 - s["weights"]) * s["d_weights"]), PLAIN),
    "scores clipped": (wrong(d_similarity=lambda s, r: np.clip(r, -0.3, 0.3)), (*PLAIN, "gradients-with-softcap")),
    "half precision": (wrong(d_scores=lambda s, r: r.astype(np.float16).astype(np.float64)), PLAIN),
    "queries by a quarter": (wrong(d_queries=lambda s, r: r * s.config.head_dim**-0.25), PLAIN),
    "queries' channels": (wrong(d_queries=lambda s, r: r[..., ::-1]), PLAIN),
    "keys negated": (wrong(d_keys=lambda s, r: -r), WITH_PAST),
    "queries merged otherwise": (wrong(d_q_proj=_interleaved), PLAIN),
    "twice a weight": (wrong(d_projection_parameters=of("q_proj.weight", lambda s, r: 2.0 * r)), PLAIN),
    "last item's weight": (wrong(d_projection_parameters=of("out_proj.weight", _last_item)), PLAIN),
    "bias of a mean": (wrong(d_projection_parameters=of("v_proj.bias", lambda s, r: r / s.sizes.key_len)), PLAIN),
    "clipped": (wrong(d_inputs=of("queries", lambda s, r: np.clip(r, -0.5, 0.5))), PLAIN),
    "items exchanged": (wrong(d_inputs=of("values", lambda s, r: np.roll(r, 1, axis=0))), WITH_LENGTHS),
    "mask's bias": (wrong(d_bias=unless_none(lambda s, r: 2.5 * r)), ("gradients-of-bias",)),
    "softcap": (wrong(d_similarity=_softcap_slope), ("gradients-with-softcap",)),
    "a factor under the softcap": (
        wrong(d_similarity=lambda s, r: r if s.config.softcap is None else 0.4 * r),
        ("gradients", "gradients-with-softcap"),
    ),
    "past halved": (wrong(d_inputs=of("past_keys", lambda s, r: 0.5 * r)), ("gradients-with-past",)),
    "keep alone": (wrong(d_values=_from_dropped), ("gradients-with-dropout",)),
    "score's vector": (
        wrong(d_score_parameters=of("score.vector", lambda s, r: 0.5 * r)),
        ("gradients-of-additive-score",),
    ),
    "values and a weight": (
        wrong(
            d_values=lambda s, r: 0.5 * r,
            d_projection_parameters=of("q_proj.weight", lambda s, r: 3.0 * r),
        ),
        WITH_PAST,
    ),
    "row sum and keys": (wrong(d_scores=lambda s, r: r + _row_sum(s), d_keys=lambda s, r: -r), WITH_PAST),
}


@lru_cache
def fresh() -> tuple[Problem, ...]:
    return tuple(_fresh())


def _fresh() -> Iterator[Problem]:
    rng = np.random.default_rng(5)
    config = AttentionConfig(12, 6, num_kv_heads=3, value_head_dim=5, value_dim=8, output_dim=14, bias=True)
    yield generic(config, seed=7, batch=4, query_len=7, key_len=6)
    bias = rng.normal(size=(config.num_heads, 4, 8))
    mask = AttentionMask(valid_lens=np.array([8, 3, 1]), bias=bias)
    yield generic(config, seed=8, batch=3, query_len=4, key_len=8, mask=mask)
    keep = rng.random((2, config.num_heads, 5, 6)) > 0.4
    dropped = replace(config, dropout=0.4)
    yield generic(dropped, batch=2, query_len=5, key_len=6, mask=AttentionMask(causal=True), dropout_keep=keep)
    yield generic(replace(config, score="additive"), batch=2, query_len=5, key_len=6)
    yield generic(replace(config, softcap=2.0), batch=2, query_len=5, key_len=6)
    past = {
        "past_keys": rng.normal(size=(2, 3, 3, config.head_dim)),
        "past_values": rng.normal(size=(2, 3, 3, config.value_head_dim)),
    }
    yield generic(config, batch=2, query_len=4, **past)


def equal(a: Mapping[str, NDArray], b: Mapping[str, NDArray]) -> bool:
    largest = max(float(np.abs(array).max()) for array in a.values())
    return all(np.allclose(a[name], b[name], rtol=1e-6, atol=1e-9 * largest) for name in a)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_measured_holds_at_other_sizes(name: str) -> None:
    bug, probes = CALLS[name]
    found = measured(BuggySubject(bug), probes=select_probes(probes, alone=True))
    assert not found.unexplained, found.models
    variants = Variants()
    for problem in fresh():
        truth = variants.run(problem, (bug,), gradients=True)
        said = variants.run(problem, found.models[0], gradients=True)
        assert truth
        assert said
        assert equal(truth, said)
