"""Weights read otherwise: in another layout, parts of them, or with something added."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.candidates.steps import PARAMETERS, change_of_parameter, parameter_on, same_shape
from conformance.experiments.changes.axes import axis_changes
from conformance.experiments.designs import selector
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.reference.state import State

Read = Callable[[State, NDArray], NDArray]

WEIGHTS = ("v_proj.weight", "out_proj.weight")


def weights_otherwise() -> Iterator[Bug]:
    """Each weight of the two projections, read in each of the ways below."""
    for name in WEIGHTS:
        for slug, (words, read) in WEIGHT_READINGS.items():
            yield parameter_on(name, slug, _checked(read), words)
    # Its columns show only summed over the heads that share values.
    for change in axis_changes(PARAMETERS["out_proj.weight"][1].axes):
        yield change_of_parameter("out_proj.weight", change)


def square(weight: NDArray) -> NDArray:
    """The weight; raises DoesNotApply unless it is square."""
    if weight.shape[0] != weight.shape[1]:
        raise DoesNotApply(f"a weight of shape {weight.shape} is not square")
    return weight


def _head_blocks_transposed(state: State, weight: NDArray) -> NDArray:
    heads = state.config.num_heads
    blocks = square(weight).reshape(heads, -1, weight.shape[1])
    if blocks.shape[1] * heads != weight.shape[1]:
        raise DoesNotApply("the heads' rows do not make a square")
    return blocks.reshape(heads, blocks.shape[1], heads, -1).swapaxes(1, 3).reshape(weight.shape)


WEIGHT_READINGS: dict[str, tuple[str, Read]] = {
    "transposed": ("transposed", lambda s, w: square(w).T),
    "reshaped": ("reshaped to (in, out) where a transposition is due", lambda s, w: w.reshape(w.shape[::-1]).T),
    "blocks-transposed": ("with each block of two heads transposed in itself", _head_blocks_transposed),
    "identity": ("as if it were the identity: it is not applied", lambda s, w: np.eye(len(square(w)))),
    "cut-identity": ("as if it were the identity: channels are cut or filled with 0", lambda s, w: selector(*w.shape)),
    "plus-identity": ("with the identity added: its input is added to its result", lambda s, w: w + selector(*w.shape)),
    "minus-identity": ("with the identity subtracted", lambda s, w: w - selector(*w.shape)),
    "twice": ("twice, one after the other", lambda s, w: square(w) @ w),
    "lower-triangle": ("with what is above its diagonal 0", lambda s, w: np.tril(w)),
    "upper-triangle": ("with what is below its diagonal 0", lambda s, w: np.triu(w)),
    "diagonal": ("with all but its diagonal 0", lambda s, w: w * selector(*w.shape)),
    "without-diagonal": ("with its diagonal 0", lambda s, w: w * (1.0 - selector(*w.shape))),
    "symmetric": ("averaged with its transpose", lambda s, w: 0.5 * (square(w) + w.T)),
    "plus-transposed": ("with its transpose added", lambda s, w: square(w) + w.T),
    "absolute": ("without its signs", lambda s, w: np.abs(w)),
    "signs": ("as its signs alone", lambda s, w: np.sign(w)),
    "squared": ("squared", lambda s, w: w * w),
    "rows-normalised": (
        "with each row divided by its length",
        lambda s, w: _divided(w, np.linalg.norm(w, axis=1, keepdims=True)),
    ),
    "columns-normalised": (
        "with each column divided by its length",
        lambda s, w: _divided(w, np.linalg.norm(w, axis=0, keepdims=True)),
    ),
    "normalised": ("divided by its Frobenius norm", lambda s, w: _divided(w, float(np.linalg.norm(w)))),
    "rows-centred": ("with each row's mean subtracted", lambda s, w: w - w.mean(axis=1, keepdims=True)),
    "columns-centred": ("with each column's mean subtracted", lambda s, w: w - w.mean(axis=0, keepdims=True)),
    "column-major": ("read from memory column by column", lambda s, w: w.reshape(-1, order="F").reshape(w.shape)),
    "first-rows-of-each-head": (
        "with the first head's rows for every head",
        lambda s, w: _first_head(w, s.config.num_kv_heads),
    ),
    "first-columns-of-each-head": (
        "with the first head's columns for every head",
        lambda s, w: _first_head(w.T, s.config.num_heads).T,
    ),
}
"""Name -> (what is to be read after "is used", the reading)."""


def _checked(read: Read) -> Read:
    def change(state: State, parameter: NDArray) -> NDArray:
        try:
            return same_shape(parameter, np.asarray(read(state, parameter)))
        except ValueError as error:  # a reshape that these sizes do not allow
            raise DoesNotApply(str(error)) from error

    return change


def _divided(array: NDArray, by: NDArray | float) -> NDArray:
    with any_numbers:
        quotient: NDArray = np.where(np.asarray(by) == 0.0, 0.0, array / np.where(np.asarray(by) == 0.0, 1.0, by))
    return quotient


def _first_head(array: NDArray, heads: int) -> NDArray:
    """The rows of the first of some heads, repeated for all."""
    if len(array) % heads:
        raise DoesNotApply(f"{len(array)} rows are no {heads} heads")
    return np.concatenate([array[: len(array) // heads]] * heads)
