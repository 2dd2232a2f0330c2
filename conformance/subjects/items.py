"""Choose or reorder the items of a call's batch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

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
