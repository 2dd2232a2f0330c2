"""Wrong gradients that are not on file are measured, and what is said of them holds on other sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.designs import generic
from conformance.measure.asker import Asker
from conformance.measure.outcome import Measured
from conformance.measure.probes import all_probes
from conformance.measure.search.measure import Search
from conformance.zoo.bug import Bug, BuggySubject
from conformance.zoo.variants import Variants
from mha_core import AttentionConfig, AttentionMask
from mha_core.heads import merge_heads, sum_kv_groups
from mha_core.reference import backward
from mha_core.reference.state import State

pytestmark = pytest.mark.same_on_newest  # NumPy alone

Change = Callable[[State, Any], Any]


def wrong(**changes: Change) -> Bug:
    """A bug that changes the results of backward steps."""
    steps = {
        name: lambda state, name=name, change=change: change(state, backward.BACKWARD[name](state))
        for name, change in changes.items()
    }
    return Bug("own", "", "gradients", "", backward=steps)


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


def measured(bug: Bug, probes: tuple[str, ...]) -> Measured:
    return Search(Asker(BuggySubject(bug))).run([probe for probe in all_probes() if probe.id in probes])


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
    found = measured(bug, probes)
    assert not found.unexplained
    variants = Variants()
    for problem in fresh():
        truth = variants.run(problem, (bug,), gradients=True)
        said = variants.run(problem, found.models[0], gradients=True)
        assert truth
        assert said
        assert equal(truth, said)
