"""Reads: what a step reads that may be another array: (get it, run the step with another one)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.any_numbers import any_numbers
from conformance.measure.faults import with_arrays, with_inputs, with_parameters
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


def _scale(state: State, beneath: Step) -> Any:
    return np.array([state.config.softmax_scale]) if state.config.score == "scaled_dot" else None


def _softcap(state: State, beneath: Step) -> Any:
    return None if state.config.softcap is None else np.array([state.config.softcap])


def _with_number(name: str, state: State, beneath: Step, array: Any) -> Any:
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


SCALE: tuple[Get, Put] = _scale, partial(_with_number, "scale")
SOFTCAP: tuple[Get, Put] = _softcap, partial(_with_number, "softcap")


def _bias(state: State, beneath: Step) -> Any:
    mask = state.inputs.mask
    return None if mask.bias is None else np.broadcast_to(additive_bias(mask), state["capped"].shape)


def _with_bias(state: State, beneath: Step, array: Any) -> Any:
    return beneath(with_inputs(state, bias=array)) if state.inputs.mask.bias is not None else beneath(state)


BIAS: tuple[Get, Put] = _bias, _with_bias


def _inside(state: State, beneath: Step) -> Any:
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


INSIDE: tuple[Get, Put] = _inside, lambda state, beneath, array: np.tanh(array)


def _fraction(state: State, beneath: Step) -> Any:
    return None if state.config.softcap is None else state["similarity"] / state.config.softcap


def _of_fraction(state: State, beneath: Step, array: Any) -> Any:
    return beneath(state) if state.config.softcap is None else state.config.softcap * array


FRACTION: tuple[Get, Put] = _fraction, _of_fraction


def past(name: str) -> tuple[Get, Put]:
    def get(state: State, beneath: Step) -> Any:
        past = getattr(state.inputs, name)
        return past if past is not None and past.size else None

    def put(state: State, beneath: Step, array: Any) -> Any:
        return beneath(with_inputs(state, **{name: array}))

    return get, put


def _sums(state: State, beneath: Step) -> Any:
    """(B, H, Lq): the sums of the exponentials less the maximum of each row."""
    scored = Scored.right(state["scores"], state["allowed"], Setting.of(state))
    return scored.stable_sum[..., 0] if state["scores"].size else None


def _over_sums(state: State, beneath: Step, array: Any) -> Any:
    scored = Scored.right(state["scores"], state["allowed"], Setting.of(state))
    with any_numbers:
        return scored.kept(scored.stable / array[..., None])


SUMS: tuple[Get, Put] = _sums, _over_sums


def _keep(state: State, beneath: Step) -> Any:
    if state.inputs.dropout_keep is None or not state["weights"].size:
        return None
    return np.broadcast_to(dropout_factor(state), state["weights"].shape)


KEEP: tuple[Get, Put] = _keep, lambda state, beneath, array: state["weights"] * array
