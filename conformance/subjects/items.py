"""Choose or reorder the items of a call's batch; choose some of its queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.subjects.handout import input_arrays, with_arrays
from mha_core import AttentionInputs
from mha_core.stages import GRADIENT


def has_items(name: str, array: NDArray, batch: int) -> bool:
    """Whether the first axis of an array of a call, or of a gradient by it, counts the items of the batch.

    `allowed` and `bias` may be broadcast over them, and `query_offset` may be one number.

    >>> has_items("bias", np.zeros((3, 5, 7)), batch=3), has_items("bias", np.zeros((3, 1, 5, 7)), batch=3)
    (False, True)
    """
    axes = 4 if name in ("allowed", "bias") else max(array.ndim, 1)
    return array.ndim == axes and array.shape[0] == batch


def take_items(inputs: AttentionInputs, items: NDArray[np.integer]) -> AttentionInputs:
    """The call with these items of its batch, in this order, in every array that has an axis for them."""
    batch = inputs.queries.shape[0]
    arrays = input_arrays(inputs)
    return with_arrays(
        inputs, {name: array[items] if has_items(name, array, batch) else array for name, array in arrays.items()}
    )


def items_of(problem: Problem, items: NDArray[np.integer]) -> Problem:
    """The problem with these items of its batch, in its inputs and in what was recorded."""
    recorded = {name: array[items] for name, array in problem.recorded.items()}
    return replace(problem, inputs=take_items(problem.inputs, items), recorded=recorded)


def take_positions(inputs: AttentionInputs, queries: slice, keys: slice) -> AttentionInputs:
    """The call with these queries and keys alone, in every array that has an axis for them.

    Past keys stay; where there are some, `keys` must be all, because a mask counts both.

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
        taken = {"queries": queries, "keys": keys, "values": keys}
        return array[..., taken[name], :] if name in taken else array

    return with_arrays(inputs, {name: cut(name, array) for name, array in input_arrays(inputs).items()})


def reordered(arrays: Mapping[str, NDArray], inputs: AttentionInputs, order: NDArray[np.integer]) -> dict[str, NDArray]:
    """Reorder the batch items in arrays that belong to the stages and gradients of a call.

    Args:
        arrays: the values, or the allowed errors, by the names of `Trace.arrays`.
        inputs: the call.
        order: every item of its batch once.
    """
    given, batch = input_arrays(inputs), inputs.queries.shape[0]

    def counts_items(name: str, array: NDArray) -> bool:
        gradient = name.removeprefix(GRADIENT)
        return gradient == name or (gradient in given and has_items(gradient, array, batch))

    return {name: array[order] if counts_items(name, array) else array for name, array in arrays.items()}
