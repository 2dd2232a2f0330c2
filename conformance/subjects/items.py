"""Choose or reorder the items of a call's batch; choose some of its queries and keys."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.subjects.handout import input_arrays, with_arrays
from mha_core import AttentionInputs
from mha_core.call.rotary import POSITIONS, TABLES, RotaryInputs, positions_of
from mha_core.stages import GRADIENT

AXES = {**dict.fromkeys(("allowed", "bias"), 4), **dict.fromkeys(POSITIONS, 2), **dict.fromkeys(TABLES, 3)}
"""Array that may be broadcast over the items of the batch -> its axes where it is not."""


def axis_of_items(name: str, array: NDArray, batch: int) -> int | None:
    """Return the batch axis (0 or 1) of a call's array `name`, or of the gradient of this name; None if there is none.

    An array that broadcasts over the batch has no batch axis. Rotary positions of shape (axes, B, L) have it at axis 1.

    >>> axis_of_items("bias", np.zeros((3, 5, 7)), batch=3), axis_of_items("bias", np.zeros((3, 1, 5, 7)), batch=3)
    (None, 0)
    """
    if name in POSITIONS and array.ndim == 3:
        return 1 if array.shape[1] == batch else None
    axes = AXES.get(name, max(array.ndim, 1))
    return 0 if array.ndim == axes and array.shape[0] == batch else None


def take_items(inputs: AttentionInputs, items: NDArray[np.integer]) -> AttentionInputs:
    """Return the call with only these batch items, in this order, in every array that has an axis for them."""
    batch = inputs.queries.shape[0]
    arrays = input_arrays(inputs)
    axes = {name: axis_of_items(name, array, batch) for name, array in arrays.items()}
    return with_arrays(
        inputs, {name: array if axes[name] is None else array.take(items, axes[name]) for name, array in arrays.items()}
    )


def items_of(problem: Problem, items: NDArray[np.integer]) -> Problem:
    """Return the problem with only these batch items, in its inputs and in its recorded arrays."""
    recorded = {name: array[items] for name, array in problem.recorded.items()}
    return replace(problem, inputs=take_items(problem.inputs, items), recorded=recorded)


def take_positions(inputs: AttentionInputs, queries: slice, keys: slice) -> AttentionInputs:
    """Return the call with only these queries and new keys, in every array that has an axis for them.

    All past keys are kept. In a call with past keys, `keys` must select all new keys, because a mask's last axis spans
    past and new keys. With rotary positions, `inputs` must have positions of queries and keys (see `with_positions`).

    >>> x = np.zeros((2, 5, 6))
    >>> taken = take_positions(AttentionInputs(x, x, x), slice(3, None), slice(4))
    >>> taken.queries.shape, taken.keys.shape
    ((2, 2, 6), (2, 4, 6))
    """

    def cut(name: str, array: NDArray) -> NDArray:
        if name in ("allowed", "bias"):
            array = array[..., queries, :] if array.ndim >= 2 and array.shape[-2] > 1 else array
            return array[..., keys] if array.ndim and array.shape[-1] > 1 else array
        if name == "valid_lens":
            array = array[:, queries] if array.ndim == 2 else array
            return array if keys.stop is None else np.minimum(array, keys.stop)
        if name == "dropout_keep":
            return array[:, :, queries, keys]
        if name in POSITIONS:
            return array[..., keys if name.startswith("key") else queries]
        taken = {"queries": queries, "keys": keys, "values": keys, "cos": queries, "sin": queries}
        taken |= {"key_cos": keys, "key_sin": keys}
        return array[..., taken[name], :] if name in taken else array

    return with_arrays(inputs, {name: cut(name, array) for name, array in input_arrays(inputs).items()})


def with_positions(problem: Problem) -> AttentionInputs:
    """Return the problem's inputs. For a layer with rotary positions, add positions of queries and new keys.

    `take_positions` needs these positions. Without them, the first query or key that it takes would have position 0.
    """
    inputs = problem.inputs
    if problem.config.rotary is None:
        return inputs
    given = inputs.rotary
    if given is not None and given.has_tables:
        own = given if given.key_cos is not None else replace(given, key_cos=given.cos, key_sin=given.sin)
        return replace(inputs, rotary=own)
    of_queries, of_keys = (
        array[0] if array.ndim == 2 and len(array) == 1 else array
        for array in positions_of(given, inputs.mask.query_offset, problem.sizes)
    )
    own = replace(given or RotaryInputs(), positions=of_queries, key_positions=of_keys)
    return replace(inputs, rotary=own)


def reordered(arrays: Mapping[str, NDArray], inputs: AttentionInputs, order: NDArray[np.integer]) -> dict[str, NDArray]:
    """Return a new dict of the arrays, with batch items reordered in each array that has an axis for them.

    Args:
        arrays: name as in `Trace.arrays` -> a stage or gradient, or its allowed errors.
        inputs: the call.
        order: int (B,), for each new batch index the old one.
    """
    given, batch = input_arrays(inputs), inputs.queries.shape[0]

    def counts_items(name: str, array: NDArray) -> bool:
        gradient = name.removeprefix(GRADIENT)
        return gradient == name or (gradient in given and axis_of_items(gradient, array, batch) == 0)

    return {name: array[order] if counts_items(name, array) else array for name, array in arrays.items()}
