"""A past, and faults of some calls or items alone: measured from outputs, limited to those, and right elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.designs import CONFIGS, changed, generic
from conformance.measure.faults import only_at
from conformance.measure.grammar.where import FEATURED, ITEMS
from conformance.measure.probes import select_probes
from conformance.measure.propose.equivalent_calls import AMONG_ITEMS, AMONG_MASKS, asked_in
from conformance.measure.search.measure import measure
from conformance.zoo.bug import Bug
from conformance.zoo.registry import select
from mha_core import AttentionConfig, AttentionMask, reference
from mha_core.reference.state import State
from tests.conformance.measure.wrong import Change, OutputAlone, is_right, measured, said, same_on, wrong_at

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def in_past(step: str, change: Callable[[NDArray], NDArray]) -> Bug:
    """A wrong layer that is not on file: the past part of a step's result is another."""

    def other(state: State, joined: NDArray) -> NDArray:
        at = state.sizes.past_len
        return np.concatenate([change(joined[:, :, :at]), joined[:, :, at:]], axis=2) if at else joined

    return wrong_at(step, other)


def behind_past(step: str, change: Callable[[NDArray], NDArray]) -> Bug:
    def other(state: State, joined: NDArray) -> NDArray:
        at = state.sizes.past_len
        return np.concatenate([joined[:, :, :at], change(joined[:, :, at:])], axis=2) if at else joined

    return wrong_at(step, other)


OF_PAST = {
    "values-of-next-head": in_past("values", lambda x: np.roll(x, -1, axis=1)),
    "keys-of-first-item": in_past("keys", lambda x: np.broadcast_to(x[:1], x.shape)),
    "keys-rolled": in_past("keys", lambda x: np.roll(x, 1, axis=2)),
    "values-sine": in_past("values", np.sin),
    "keys-zero": in_past("keys", np.zeros_like),
    "keys-times-0.7": in_past("keys", lambda x: 0.7 * x),
    "channels-reversed": in_past("keys", lambda x: x[..., ::-1]),
    "oldest-mixed": in_past("values", lambda x: 0.8 * x + 0.2 * x[:, :, :1]),
    "new-doubled": behind_past("values", lambda x: 2.0 * x),
    "new-reversed": behind_past("keys", lambda x: x[:, :, ::-1]),
}


def with_past(
    config: AttentionConfig, past: int, new: int, *, batch: int = 1, mask: AttentionMask | None = None
) -> Problem:
    """A problem of random numbers with a past, and as many queries as keys."""
    rng = np.random.default_rng([past, new, batch])
    of_each = (batch, config.num_kv_heads, past)
    return changed(
        generic(config, batch=batch, query_len=past + new, key_len=new),
        mask=AttentionMask() if mask is None else mask,
        past_keys=rng.normal(size=(*of_each, config.head_dim)),
        past_values=rng.normal(size=(*of_each, config.value_head_dim)),
    )


def with_other_pasts() -> list[Problem]:
    """Problems that no probe asks."""
    lens = AttentionMask(valid_lens=np.array([4, 6]))
    return [
        with_past(CONFIGS[3], 6, 3, batch=3),
        with_past(CONFIGS[4], 3, 5),
        with_past(CONFIGS[0], 4, 2, batch=2, mask=lens),
    ]


@pytest.mark.parametrize("name", OF_PAST)
def test_what_befalls_a_past_is_measured(name: str) -> None:
    found = measured(OF_PAST[name], probes=["past*"])
    assert is_right(found, (OF_PAST[name],), with_other_pasts(), among=1), said(found)


def test_what_befalls_every_past_is_not_limited_to_those_of_two_keys() -> None:
    def first_new_is_last_of_past(state: State, joined: NDArray) -> NDArray:
        at = state.sizes.past_len
        here = (np.arange(joined.shape[2]) == at)[:, None]
        return np.where(here & (at > 0), joined[:, :, max(at - 1, 0), None], joined)

    bug = wrong_at("keys", first_new_is_last_of_past)
    found = measured(bug, probes=["past"])
    assert found.models[0], said(found)
    assert all(same_on([with_past(CONFIGS[2], 1, 4)], (bug,), model) for model in found.models), said(found)


def test_a_past_is_measured_beside_a_softmax_over_all_queries() -> None:
    (over_both,) = select(["softmax-over-both"])
    bugs = (over_both, OF_PAST["keys-rolled"])
    probes = select_probes(["past-values", "past"], alone=True)
    found = measure(OutputAlone(*bugs), start=[(over_both,)], probes=probes, zoo=())
    assert is_right(found, bugs, with_other_pasts()), said(found)


# Dropout ------------------------------------------------------------------------------------------------------


def in_training(seed: int) -> Problem:
    """A call of several items in which a keep-mask drops weights, which no probe asks."""
    config = replace(CONFIGS[seed], dropout=0.3)
    keep = np.random.default_rng(seed).random((3, config.num_heads, 4, 6)) < 0.7
    return generic(config, seed=60 + seed, batch=3, query_len=4, key_len=6, dropout_keep=keep)


def test_factors_of_dropout_are_read_in_layers_of_several_items() -> None:
    def next_item_too(state: State, kept: NDArray) -> NDArray:
        if state.inputs.dropout_keep is None:
            return kept
        factor = state.inputs.dropout_keep / (1.0 - state.config.dropout)
        following = np.minimum(np.arange(len(factor)) + 1, len(factor) - 1)
        return state["weights"] * (0.8 * factor + 0.2 * factor[following])

    bug = wrong_at("kept_weights", next_item_too)
    found = measured(bug, probes=["dropout", "dropout-items"])
    assert is_right(found, (bug,), [in_training(seed) for seed in range(4)], among=1), said(found)


# Of some calls or items alone ---------------------------------------------------------------------------------

PLAIN_PROBES = ("one-key", "equal-scores", "scores", "softmax", "items", "calls-alike-of-equal-scores", "calls-alike")


def where(slug: str, step: str, change: Change) -> Bug:
    condition = next(one for one in (*FEATURED, *ITEMS) if one.slug == slug)
    bug = only_at(wrong_at(step, change), condition)
    assert bug is not None
    return bug


SOME_CALLS = {
    "heads-with-lens": where("with-valid_lens", "heads", lambda s, x: 0.7 * x),
    "queries-without-causal": where("without-causal", "queries", lambda s, x: x[..., ::-1]),
    "output-in-last-item": where("item-last", "output", lambda s, x: x[..., ::-1]),
}


@pytest.mark.parametrize("name", SOME_CALLS)
def test_what_is_wrong_in_some_calls_is_limited_to_these(name: str) -> None:
    found = measured(SOME_CALLS[name], probes=PLAIN_PROBES)
    plain = [generic(CONFIGS[1], seed=7, query_len=4, key_len=6)]
    # What it does where several masks meet was not asked, so all may be explained and not said of those.
    assert found.models[0]
    assert same_on([*plain, *asked_in((*AMONG_ITEMS, *AMONG_MASKS), plain)], (SOME_CALLS[name],), found.models[0])


def test_a_length_of_0_is_left_alone() -> None:
    """1 / Lk has no value there, so a factor that is right elsewhere is one of calls with keys."""
    bug = wrong_at("output", lambda state, x: x / max(state.sizes.key_len, 1))
    found = measured(bug, probes=("equal-scores", "equal-scores-with-biases", "no-keys"))
    assert is_right(found, (bug,), [generic(CONFIGS[1], key_len=keys) for keys in (0, 1, 4)]), said(found)


def test_equivalent_calls_change_nothing() -> None:
    problem = generic(CONFIGS[0])

    def output(one: Problem) -> NDArray:
        found = reference.run(one.config, one.weights, one.inputs).output
        assert found is not None
        return found

    for circumstance in (*AMONG_ITEMS, *AMONG_MASKS):
        item = output(circumstance.of(problem))[circumstance.item]
        np.testing.assert_allclose(item, output(problem)[0], rtol=1e-12, atol=1e-12)
