"""Equal shapes: another array in an array's place, or added to it, where it has that shape; elsewhere all is right.

In a layer whose sizes all differ no such mistake shows, and most others show before layers of equal sizes are met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.candidates.amounts import amounts_of
from conformance.experiments.candidates.parameters import WEIGHT_READINGS
from conformance.experiments.changes.expressions import Expression
from conformance.experiments.changes.sample import Setting
from conformance.experiments.measured import on_parameter, on_step
from conformance.experiments.view import View
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.reference.forward import PROJECTED
from mha_core.reference.state import State

Read = Callable[[State, NDArray], NDArray]
"""(State, the array) -> what stands for it; another shape means that the array is used as it is."""

WHERE = "where their shapes agree"
FIX = "Tell arrays apart by their names, not by their shapes: {} has one of its own."

GIVEN: dict[str, str] = {"query_inputs": "queries", "key_inputs": "keys", "value_inputs": "values"}
"""Step -> the input of the layer that it gives."""


def _fitting(read: Read) -> Read:
    """What is read if it has the array's shape, else the array."""

    def change(state: State, array: NDArray) -> NDArray:
        try:
            with any_numbers:
                found = np.asarray(read(state, array))
        except (DoesNotApply, KeyError, ValueError):  # this layer has no such array, or none that can be read so
            return array
        return found if found.shape == array.shape else array

    return change


# Parameters -----------------------------------------------------------------------------------------


@cache
def parameters_where_equal() -> tuple[Bug, ...]:
    """Each parameter replaced by another one, and each weight read otherwise, where shapes allow it."""
    return (*_of_others(), *_read_otherwise(), *_exchanged())


@cache
def biases_where_equal() -> tuple[Bug, ...]:
    """Each bias replaced by another one of its length, which some layers have whose widths all differ."""
    return tuple(bug for bug in parameters_where_equal() if ".bias" in bug.sentence)


def _of_others() -> Iterator[Bug]:
    for projection in PROJECTED:
        for other in PROJECTED:
            if other == projection:
                continue
            for kind in ("weight", "bias"):
                yield _parameter(f"{projection}.{kind}", f"of-{other}", f"{other}.{kind}", _taken(f"{other}.{kind}"))
            name, words = f"{other}.weight", f"{other}.weight, transposed,"
            yield _parameter(f"{projection}.weight", f"of-{other}-transposed", words, _taken(name, transposed=True))


def _read_otherwise() -> Iterator[Bug]:
    for projection in PROJECTED:
        for slug, (words, read) in WEIGHT_READINGS.items():
            yield _parameter(f"{projection}.weight", slug, f"itself, {words},", read)


def _exchanged() -> Iterator[Bug]:
    """Two weights exchanged, whichever reads them."""
    names = list(PROJECTED)
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            one, other = (_parameter(f"{a}.weight", f"of-{b}", b, _taken(f"{b}.weight")) for a, b in
                          ((first, second), (second, first)))  # fmt: skip
            yield replace(
                one,
                id=f"{one.id}-and-back",
                sentence=f"{first}.weight and {second}.weight are exchanged {WHERE}.",
                forward={**one.forward, **other.forward},
            )


def _taken(name: str, *, transposed: bool = False) -> Read:
    return lambda state, array: state.parameters[name].T if transposed else state.parameters[name]


def _parameter(name: str, slug: str, words: str, read: Read) -> Bug:
    return on_parameter(
        PROJECTED[name.split(".")[0]][1],
        name,
        f"{name.replace('.', '-')}-{slug}-where-shapes-agree",
        _fitting(read),
        f"In place of {name}, {words} is used {WHERE}.",
        FIX.format(name),
    )


# Inputs ---------------------------------------------------------------------------------------------


def _input(step: str, *, padded: bool = False) -> Read:
    """Another input of the layer, its padding set to 0, as `key_inputs` and `value_inputs` are, if asked."""

    def read(state: State, array: NDArray) -> NDArray:
        given: NDArray = getattr(state.inputs, GIVEN[step])
        if not padded or given.shape[:2] != array.shape[:2]:
            return given
        padding = state["padding"][:, state.sizes.past_len :, None]
        return np.where(padding, 0.0, given) if padding.shape[1] == given.shape[1] else given

    return read


@cache
def inputs_where_equal() -> tuple[Bug, ...]:
    """Each projection given the input of another."""
    return tuple(
        on_step(
            step,
            f"{step}-of-{other}{'-padded' if padded else ''}-where-shapes-agree",
            _fitting(_input(other, padded=padded)),
            f"The {step.replace('_', ' ')} are the layer's {GIVEN[other]} {WHERE}.",
            FIX.format(f"the layer's input of {GIVEN[step]}"),
        )
        for step in GIVEN
        for other in GIVEN
        if other != step
        for padded in (False, True)
    )


def added_where_equal(view: View) -> Iterator[Bug | tuple[Bug, ...]]:
    """So much of an input of the layer mixed into another, or added to a projection or the output."""
    for step in ("output", "merged", "v_proj"):
        for other in GIVEN:
            yield from amounts_of(view, partial(_added, step, other))
    for step in GIVEN:
        for other in GIVEN:
            if other != step:
                yield from amounts_of(view, partial(_added, step, other, is_mixture=True))


def _added(step: str, other: str, amount: Expression | None, *, is_mixture: bool = False) -> Bug:
    """The bug by which so much (default: all) of another input is added, or put in the place of so much of a step."""
    read = _fitting(_input(other))
    told = "1" if amount is None else amount.words

    def change(state: State, array: NDArray) -> NDArray:
        found = read(state, array)
        if found is array:
            return array
        share = 1.0 if amount is None else amount.at(Setting(state.config, state.sizes))
        result: NDArray = array + share * (found - array if is_mixture else found)
        return result

    what, how = step.replace("_", " "), "mixed in with a share of" if is_mixture else "added, times"
    return on_step(
        step,
        f"{step}-{'mixed-with' if is_mixture else 'plus'}-{told.replace(' ', '')}-{other}-where-shapes-agree",
        change,
        f"To the {what} the layer's {GIVEN[other]} are {how} {told}, {WHERE}.",
        "Give what the layer computes; what is added to it is the business of whoever calls it.",
    )


def where_equal(view: View) -> Iterator[Bug | tuple[Bug, ...]]:
    """All of them."""
    yield from parameters_where_equal()
    yield from inputs_where_equal()
    yield from added_where_equal(view)
