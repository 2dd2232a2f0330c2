"""Reads: what a step reads that may be another array: (get it, run the step with another one)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.any_numbers import any_numbers
from conformance.measure.faults import (
    with_arrays,
    with_inputs,
    with_parameters,
)
from conformance.measure.grammar.sample import Setting
from conformance.measure.softmax.scored import Scored
from conformance.zoo.bug import DoesNotApply
from mha_core.call.masks import additive_bias
from mha_core.errors import SpecError
from mha_core.reference.forward import dropout_factor
from mha_core.reference.state import State, Step

Get = Callable[[State, Step], Any]
Put = Callable[[State, Step, Any], Any]


def parameter(name: str) -> tuple[Get, Put]:
    def put(state: State, beneath: Step, array: Any) -> Any:
        given = name in state.parameters
        return beneath(with_parameters(state, {name: np.asarray(array)}) if given else state)

    return lambda state, beneath: state.parameters.get(name), put


def scale(state: State, beneath: Step) -> Any:
    return np.array([state.config.softmax_scale]) if state.config.score == "scaled_dot" else None


def softcap(state: State, beneath: Step) -> Any:
    return None if state.config.softcap is None else np.array([state.config.softcap])


def with_number(name: str, state: State, beneath: Step, array: Any) -> Any:
    found = state.copy()
    given: dict[str, Any] = {name: float(array[0])}
    try:
        found.config = replace(state.config, **given)
    except SpecError as error:
        raise DoesNotApply(str(error)) from error
    return beneath(found)


def read_by_heads(what: str) -> tuple[Get, Put]:
    """What each query head reads, repeated from the key heads: (B, H, Lk, width)."""

    def put(state: State, beneath: Step, array: Any) -> Any:
        if array.shape[1] != state.config.num_heads:
            raise DoesNotApply("there is one for each query head")
        return beneath(with_arrays(state, **{what: array}))

    return lambda state, beneath: state.heads_of(what), put


def bias(state: State, beneath: Step) -> Any:
    mask = state.inputs.mask
    return None if mask.bias is None else np.broadcast_to(additive_bias(mask), state["capped"].shape)


def with_bias(state: State, beneath: Step, array: Any) -> Any:
    return beneath(with_inputs(state, bias=array)) if state.inputs.mask.bias is not None else beneath(state)


def inside(state: State, beneath: Step) -> Any:
    """A q + C k of the additive score; of a model with another one, what gives its hidden units."""
    hidden = beneath(state)
    if hidden is None:
        return None
    weights = state.parameters
    of_query = state["queries"] @ weights["score.query.weight"].T
    inside = of_query[:, :, :, None] + (state.heads_of("keys") @ weights["score.key.weight"].T)[:, :, None]
    if np.array_equal(np.tanh(inside), hidden):
        return inside
    with any_numbers:
        return np.arctanh(hidden)


def capped_fraction(state: State, beneath: Step) -> Any:
    return None if state.config.softcap is None else state["similarity"] / state.config.softcap


def of_fraction(state: State, beneath: Step, array: Any) -> Any:
    return beneath(state) if state.config.softcap is None else state.config.softcap * array


def past(name: str) -> tuple[Get, Put]:
    def get(state: State, beneath: Step) -> Any:
        past = getattr(state.inputs, name)
        return past if past is not None and past.size else None

    def put(state: State, beneath: Step, array: Any) -> Any:
        return beneath(with_inputs(state, **{name: array}))

    return get, put


def sums(state: State, beneath: Step) -> Any:
    """(B, H, Lq): the sums of the exponentials less the maximum of each row."""
    scored = Scored.right(state["scores"], state["allowed"], Setting.of(state))
    return scored.stable_sum[..., 0] if state["scores"].size else None


def over_sums(state: State, beneath: Step, array: Any) -> Any:
    scored = Scored.right(state["scores"], state["allowed"], Setting.of(state))
    with any_numbers:
        return scored.kept(scored.stable / array[..., None])


def keep(state: State, beneath: Step) -> Any:
    if state.inputs.dropout_keep is None or not state["weights"].size:
        return None
    return np.broadcast_to(dropout_factor(state), state["weights"].shape)


def with_factor(state: State, beneath: Step, array: Any) -> Any:
    return state["weights"] * array
