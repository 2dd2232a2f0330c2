"""Formulas of backward steps: what may stand in place of a step's array. How much of it does is measured.

Most of them are made from the steps themselves: a step is run with another array in place of one that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.measure.grammar.functions import FUNCTIONS
from conformance.zoo.bug import DoesNotApply
from mha_core.dtypes import round_to
from mha_core.reference.backward import BACKWARD
from mha_core.reference.forward import dropout_factor, softmax, unscaled
from mha_core.reference.state import State

Array = Callable[[State], Any]

Function = Callable[[State, NDArray], NDArray]
"""What may be done to an array that a step reads."""


OWN = "the definition's, but with "
"""What a formula's words begin with if it is the step itself, but for one array that it reads."""


class Formula(NamedTuple):
    """What it computes, in words; State -> the array, or several by name.

    The latter raises DoesNotApply, KeyError or ValueError where it can't be computed.
    """

    words: str
    array: Array


def formulas_of(step: str, state: State) -> Iterator[Formula]:
    """Every formula for a step of a run."""
    yield from OF_STEP.get(step, ())
    for name in _read(step, state):
        for words, function in _in_place_of(name, step, state):
            yield Formula(f"{OWN}{words}", partial(_run, step, name, function))
    result = state[step]
    if isinstance(result, dict):
        yield Formula("the parameter itself", lambda s: s.parameters)
        for other in result:
            yield Formula(f"the gradient of {other}", partial(_of_another, step, other))


def _of_another(step: str, other: str, state: State) -> dict[str, NDArray]:
    return dict.fromkeys(state[step], state[step][other])


# A step with another array in place of one that it reads ----------------------------------------------


class _Noting(dict[str, Any]):
    """A dict that notes which of its keys are read."""

    def __init__(self, given: Mapping[str, Any], read: dict[str, None]) -> None:
        super().__init__(given)
        self.read = read

    def __getitem__(self, key: str) -> Any:
        self.read[key] = None
        return super().__getitem__(key)


def _read(step: str, state: State) -> list[str]:
    """The names of the arrays and parameters that a step reads."""
    read: dict[str, None] = {}
    noting = replace(state, arrays=_Noting(state.arrays, read), parameters=_Noting(state.parameters, read))
    with any_numbers:
        BACKWARD[step](noting)
    return list(read)


def _run(step: str, name: str, function: Function, state: State) -> Any:
    """The step with a function of an array, or of a parameter, in place of that one."""
    if name in state.parameters:
        parameters = {**state.parameters, name: function(state, state.parameters[name])}
        return BACKWARD[step](replace(state, parameters=parameters))
    return BACKWARD[step](replace(state, arrays={**state.arrays, name: function(state, state[name])}))


def _in_place_of(name: str, step: str, state: State) -> Iterator[tuple[str, Function]]:
    """Words for it, and what may be read in place of an array: others of its shape, and functions of it."""
    is_parameter = name in state.parameters
    # Of the arrays those that there are when the step runs.
    before = list(state.arrays)[: list(state.arrays).index(step)]
    others = state.parameters if is_parameter else {other: state[other] for other in before}
    seen = [(state.parameters if is_parameter else state.arrays)[name]]
    if not isinstance(seen[0], np.ndarray):
        return
    for other, array in others.items():
        alike = isinstance(array, np.ndarray) and array.shape == seen[0].shape
        if alike and not any(np.array_equal(array, one) for one in seen):
            seen.append(array)
            yield f"{other} in place of {name}", partial(_another, other)
    for words, function in (*(OF_PARAMETERS if is_parameter else OF_ARRAYS), *OF_ARRAY.get(name, ())):
        yield words.format(name), function


def _another(name: str, state: State, x: NDArray) -> NDArray:
    return np.asarray(1.0 * (state.parameters[name] if name in state.parameters else state[name]))


def _transposed(state: State, x: NDArray) -> NDArray:
    if x.ndim in (1, 3) or x.shape[-1] != x.shape[-2]:
        raise DoesNotApply("not square")
    return x.swapaxes(-1, -2)


def _unit(state: State, x: NDArray) -> NDArray:
    """What changes nothing: the unit matrix, or ones in place of a vector."""
    if x.ndim == 2 and x.shape[0] != x.shape[1]:
        raise DoesNotApply("no square matrix")
    return np.eye(len(x)) if x.ndim == 2 else np.ones_like(x)


def _tiled(state: State, x: NDArray) -> NDArray:
    """Key heads repeated as 0, 1, 0, 1 in place of 0, 0, 1, 1."""
    heads, groups = state.config.num_heads, state.config.num_kv_heads
    if x.ndim != 4 or x.shape[1] != groups:
        raise DoesNotApply("no key heads")
    return np.tile(x, (1, heads // groups, 1, 1))


def _one_of_group(place: int, state: State, x: NDArray) -> NDArray:
    """One query head of each group, and 0 in place of the others."""
    heads, groups = state.config.num_heads, state.config.num_kv_heads
    if heads == groups or x.ndim < 4 or x.shape[1] != heads:
        raise DoesNotApply("no groups of query heads")
    kept = np.arange(heads) % (heads // groups) == place % (heads // groups)
    return np.where(kept.reshape(-1, *(1,) * (x.ndim - 2)), x, 0.0)


def _one_item(index: int, state: State, x: NDArray) -> NDArray:
    """One item, and 0 in place of the others."""
    found = np.zeros_like(x)
    found[index] = x[index]
    return found


def _elementwise(name: str, state: State, x: NDArray) -> NDArray:
    return FUNCTIONS[name][1](1.0 * x)


def _uniform(state: State, x: object = None) -> NDArray:
    return state["allowed"] / np.maximum(state["allowed"].sum(axis=-1, keepdims=True), 1)


def _over_queries(state: State, x: NDArray) -> NDArray:
    return softmax(state["scores"].swapaxes(-1, -2), state["allowed"].swapaxes(-1, -2)).swapaxes(-1, -2)


def _exchanged(state: State) -> NDArray:
    assert state.inputs.dropout_keep is not None
    return np.asarray((1.0 - state.inputs.dropout_keep) / (1.0 - state.config.dropout))


FACTORS: tuple[tuple[str, Array], ...] = (
    ("with keep in place of keep / (1 - p)", lambda s: s.inputs.dropout_keep),
    ("with dropout's factor squared", lambda s: np.square(dropout_factor(s))),
    ("with dropped and kept exchanged", _exchanged),
)
"""Words, and what is in place of dropout's factor."""


def _dropped(array: str, factor: Array, state: State, x: object = None) -> Any:
    if state.inputs.dropout_keep is None:
        raise DoesNotApply("no keep-mask")
    return state[array] * factor(state)


OF_ARRAYS: tuple[tuple[str, Function], ...] = (
    ("{} transposed", _transposed),
    ("heads of {} tiled: 0, 1, 0, 1 in place of 0, 0, 1, 1", _tiled),
    ("{} of the first query head of each group alone", partial(_one_of_group, 0)),
    ("{} of the last query head of each group alone", partial(_one_of_group, -1)),
    ("the first item of {} alone", partial(_one_item, 0)),
    ("the last item of {} alone", partial(_one_item, -1)),
    *((f"{{}} {FUNCTIONS[name][0]}", partial(_elementwise, name)) for name in ("squared", "abs", "sign")),
)

OF_PARAMETERS: tuple[tuple[str, Function], ...] = (
    ("{} transposed once too often", _transposed),
    ("{} left out", _unit),
)

WEIGHTS: tuple[tuple[str, Function], ...] = (
    ("uniform weights in place of {}", _uniform),
    ("a softmax over queries in place of {}", _over_queries),
    ("1 - {}", partial(_elementwise, "one-minus")),
)

OF_ARRAY: dict[str, tuple[tuple[str, Function], ...]] = {
    "weights": WEIGHTS,
    "kept_weights": (*WEIGHTS, *((f"{{}} {words}", partial(_dropped, "weights", factor)) for words, factor in FACTORS)),
    "padding": (("nothing as {}", lambda state, x: np.zeros_like(x)),),
}
"""Array -> words and functions of it alone."""


# Softmax, slopes, dropout -----------------------------------------------------------------------------


def where_open(state: State, array: NDArray) -> NDArray:
    return np.where(state["allowed"], array, 0.0)


def along(state: State) -> NDArray:
    """P * dP, whose sum over a row the softmax's backward step takes."""
    return where_open(state, state["weights"] * state["d_weights"])


def _sum(array: Array, state: State, axis: int = -1) -> NDArray:
    return np.asarray(array(state).sum(axis=axis, keepdims=True))


SUMS: tuple[tuple[str, Array], ...] = (
    ("rowsum(P * dP)", partial(_sum, along)),
    ("P * dP", along),
    ("the sum of P * dP over queries", partial(_sum, along, axis=-2)),
    ("the sum of P * dP over heads", partial(_sum, along, axis=1)),
    ("rowsum(P * dP before dropout)", partial(_sum, lambda s: where_open(s, s["weights"] * s["d_kept_weights"]))),
    ("rowsum(dP)", partial(_sum, lambda s: where_open(s, s["d_weights"]))),
    ("the mean of dP", partial(_sum, lambda s: _uniform(s) * s["d_weights"])),
    ("max(dP)", lambda s: s["d_weights"].max(axis=-1, keepdims=True)),
    ("0", lambda s: 0.0 * s["d_weights"]),
)
"""Words, and what may be subtracted in the softmax's backward step."""

SIDES: tuple[tuple[str, Array], ...] = (("P * ", lambda s: s["weights"]), ("", lambda s: 1.0))


def _of_softmax() -> Iterator[Formula]:
    """Other forms of P * dP - P * rowsum(P * dP)."""
    for left, first in SIDES:
        for right, second in SIDES:
            for words, total in SUMS:
                yield Formula(f"{left}dP - {right}{words}", partial(_softmax_form, first, second, total))
    yield Formula("P * P * (dP - rowsum(P * dP))", lambda s: s["weights"] * s["d_scores"])


def _softmax_form(first: Array, second: Array, total: Array, s: State) -> NDArray:
    return where_open(s, first(s) * s["d_weights"] - second(s) * total(s))


SLOPES: tuple[tuple[str, Callable[[NDArray], NDArray]], ...] = (
    ("1", np.ones_like),
    ("1 - tanh", lambda t: 1.0 - t),
    ("1 - |tanh|", lambda t: 1.0 - np.abs(t)),
    ("the slope's square", lambda t: (1.0 - t * t) ** 2),
    ("1 - tanh(tanh)^2", lambda t: 1.0 - np.tanh(t) ** 2),
    ("1 / slope", lambda t: 1.0 / (1.0 - t * t)),
)
"""Words, and what is in place of the tanh's slope 1 - t^2."""

Slope = Callable[[NDArray], NDArray]


def _of_softcap(slope: Slope, state: State) -> NDArray:
    cap = state.config.softcap
    if cap is None:
        raise DoesNotApply("no softcap")
    return where_open(state, state["d_scores"] * slope(np.tanh(unscaled(state) * state.config.softmax_scale / cap)))


def _of_hidden(slope: Slope, s: State) -> NDArray:
    return np.asarray(s["d_similarity"][..., None] * s.parameters["score.vector"] * slope(s["additive_hidden"]))


def _of_slopes(of: Callable[[Slope, State], NDArray]) -> tuple[Formula, ...]:
    return tuple(Formula(f"{OWN}{words} as the tanh's slope", partial(of, slope)) for words, slope in SLOPES)


def _of_tiled_groups(step: str, state: State) -> Any:
    """The query heads of a group are g, g + G, ... in place of neighbours."""
    heads = state.config.num_heads
    order = np.arange(heads).reshape(-1, state.config.num_kv_heads).T.ravel()
    others = {
        name: array[:, order]
        for name, array in state.arrays.items()
        if isinstance(array, np.ndarray) and array.ndim > 3 and array.shape[1] == heads
    }
    return BACKWARD[step](replace(state, arrays={**state.arrays, **others}))


OF_STEP: dict[str, tuple[Formula, ...]] = {
    "d_weights": tuple(
        Formula(f"d_kept_weights {words}", partial(_dropped, "d_kept_weights", factor)) for words, factor in FACTORS
    ),
    "d_scores": tuple(_of_softmax()),
    "d_similarity": _of_slopes(_of_softcap),
    "d_additive_hidden": _of_slopes(_of_hidden),
    **{
        step: (Formula("that of query heads g, g + G, ... for key head g", partial(_of_tiled_groups, step)),)
        for step in ("d_keys", "d_values")
    },
}
"""Step -> its formulas that no other array in place of one that it reads gives."""


def roundings(step: str) -> Iterator[Formula]:
    """The array of a step, rounded: for those that can't be read."""
    for dtype in ("float32", "float16", "bfloat16"):
        yield Formula(f"{OWN}numbers rounded to {dtype}", partial(_rounded, step, dtype))


def _rounded(step: str, dtype: str, state: State) -> NDArray:
    return round_to(state[step], dtype).astype(float)
