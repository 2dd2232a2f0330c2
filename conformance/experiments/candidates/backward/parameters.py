"""Formulas of the projections: inputs, weights and biases, and gradients that are exchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.candidates.backward.formula import (
    Array,
    Formula,
    array_of,
    nothing,
    with_arrays,
)
from conformance.zoo.bug import DoesNotApply
from conformance.zoo.forward.heads import merge_interleaved
from mha_core.heads import merge_heads
from mha_core.reference import backward
from mha_core.reference.forward import PROJECTED
from mha_core.reference.state import State

DECAY_FIX = "A gradient is that of the layer alone: leave decay and penalties to the optimiser."


def _through(step: str, projection: str, weight: Callable[[NDArray], NDArray]) -> Array:
    return lambda state: state[step] @ weight(state.parameters[f"{projection}.weight"])


def _transposed(weight: NDArray) -> NDArray:
    if weight.shape[0] != weight.shape[1]:
        raise DoesNotApply("no square weight")
    return weight.T


def _transposed_array(step: str, name: str) -> Array:
    return lambda state: _transposed(state[step][name])


def of_projections() -> Iterator[Formula]:
    for projection, (given, made) in PROJECTED.items():
        step, from_step = f"d_{given}", f"d_{made}"
        words = f"{from_step} @ {projection}.weight^T, transposed once too often"
        yield Formula(step, "untransposed", words, _through(from_step, projection, _transposed))
        for other in PROJECTED:
            if other != projection:
                words = f"{from_step} @ {other}.weight"
                yield Formula(step, f"by-{other}", words, _through(from_step, other, lambda weight: weight))
        yield Formula(step, "unprojected", f"{from_step} as it is", array_of(from_step))
    for made, array in (("d_q_proj", "d_queries"), ("d_k_proj", "d_keys"), ("d_v_proj", "d_values")):
        yield Formula(made, "interleaved", f"{array} with heads merged as (d, h)", _merged_otherwise(array))
        yield Formula(made, "first-positions", f"the first positions of {array}, the past among them", _first(array))


def _merged_otherwise(array: str) -> Array:
    return lambda s: merge_interleaved(s[array][:, :, s.sizes.past_len if array != "d_queries" else 0 :])


def _first(array: str) -> Array:
    return lambda s: merge_heads(s[array][:, :, : s[array].shape[2] - s.sizes.past_len])


def of_parameters(state: State) -> Iterator[Formula]:
    step = "d_projection_parameters"
    for projection, (given, made) in PROJECTED.items():
        name = f"{projection}.weight"
        for slug, words, rows in ROWS:
            yield Formula(step, slug, words, _of_rows(projection, rows), name=name)
            yield Formula(step, slug, words, _bias_of_rows(made, rows), name=f"{projection}.bias")
        inputs = ("query_inputs", "key_inputs", "value_inputs", "q_proj", "k_proj", "v_proj")
        for other in (*inputs, "merged"):
            if other != given:
                words = f"d_{made}^T @ {other}"
                yield Formula(step, f"by-{other}", words, _by_other(f"d_{made}", other), name=name)
        for gradient in ("d_q_proj", "d_k_proj", "d_v_proj", "d_output"):
            if gradient != f"d_{made}":
                words = f"{gradient}^T @ {given}"
                yield Formula(step, f"by-{gradient}", words, _by_other(gradient, given), name=name)
        words = "with heads merged as (d, h)"
        yield Formula(step, "interleaved", words, _by_interleaved(f"d_{made}", given), name=name)
        yield Formula(step, "transposed", "transposed", _transposed_array(step, name), name=name)
    for dict_step in backward.BACKWARD:
        value = state.arrays.get(dict_step)
        if isinstance(value, dict):
            for one in value:
                yield nothing(dict_step, one)
                yield Formula(dict_step, "parameter", "the parameter itself", _parameter(one), name=one, fix=DECAY_FIX)
                for other in value:
                    if other != one and value[other].shape == value[one].shape:
                        yield Formula(
                            dict_step, f"of-{other}", f"the gradient of {other}", array_of(dict_step, other), name=one
                        )
    yield from _of_unpadded()


def _parameter(name: str) -> Array:
    return lambda state: state.parameters[name]


def _of_unpadded() -> Iterator[Formula]:
    for name in ("keys", "values"):
        words = "not set to 0 in padding"
        yield Formula("d_inputs", "padding", words, partial(_unpadded, name=name), name=name)


def _unpadded(state: State, name: str) -> NDArray:
    return backward.d_inputs(with_arrays(state, padding=np.zeros_like(state["padding"])))[name]


Rows = Callable[[NDArray], NDArray]

ROWS: tuple[tuple[str, str, Rows], ...] = (
    ("first-item", "that of the first item alone", lambda x: x[:1]),
    ("last-item", "that of the last item alone", lambda x: x[-1:]),
    ("first-position", "that of the first position alone", lambda x: x[:, :1]),
    ("last-position", "that of the last position alone", lambda x: x[:, -1:]),
    ("not-first-position", "that of all positions but the first", lambda x: x[:, 1:]),
    ("not-last-position", "that of all positions but the last", lambda x: x[:, :-1]),
)


def _read(state: State, name: str) -> NDArray:
    array: NDArray = merge_heads(state["heads"]) if name == "merged" else state[name]
    return array


def _of_rows(projection: str, rows: Rows) -> Array:
    given, made = PROJECTED[projection]
    return lambda s: np.einsum("blo,bli->oi", rows(s[f"d_{made}"]), rows(_read(s, given)))


def _bias_of_rows(made: str, rows: Rows) -> Array:
    return lambda s: rows(s[f"d_{made}"]).sum(axis=(0, 1))


def _by_other(gradient: str, given: str) -> Array:
    return lambda s: np.einsum("blo,bli->oi", s[gradient], _read(s, given))


def _by_interleaved(gradient: str, given: str) -> Array:
    def formula(state: State) -> NDArray:
        heads = state.config.num_heads if given == "merged" else None
        if heads is None:
            raise DoesNotApply("the output projection reads merged heads")
        return np.einsum("blo,bli->oi", state[gradient], merge_interleaved(state["heads"]))

    return formula
