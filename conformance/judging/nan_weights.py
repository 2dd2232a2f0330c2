"""Weights that differ beside a NaN alone, and leave the output as it is: in which way, and what to change."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from conformance.judging.compare import Mismatch
from conformance.judging.distance import distance, error_ratio
from conformance.judging.expected import Expected

EXCLUDED = "Excluded keys have NaN weights where another key is NaN."
NUMBERS = "Weights are numbers where another key of the row is NaN: theirs are NaN too."
EMPTY = "Rows without an allowed key have NaN weights."

CHANGES: Mapping[str, str] = {
    EXCLUDED: "Set the weights of excluded keys to 0 after the softmax.",
    NUMBERS: "Divide by the sum of the row, which is NaN.",
    EMPTY: "Give a row without an allowed key the weights 0.",
}


def nan_weights(cases: Iterable[tuple[Expected, Mapping[str, NDArray], Sequence[Mismatch]]]) -> tuple[str, ...]:
    """Return sentences on how weights differ in rows with a NaN; () if anything else differs in some case.

    Args:
        cases: for each case that differs: expected answer, name -> array that the subject returned, mismatches.
    """
    found: dict[str, None] = {}
    for wanted, arrays, mismatches in cases:
        own, right = arrays.get("weights"), wanted.trace.weights
        if [one.stage for one in mismatches] != ["weights"] or own is None or right is None or own.shape != right.shape:
            return ()
        off = error_ratio(distance(own, right), wanted.allowed_error["weights"]) > 1.0
        beside, empty = np.isnan(right).any(axis=-1, keepdims=True), ~wanted.where.any(axis=-1, keepdims=True)
        kinds = {
            EXCLUDED: np.isnan(own) & ~wanted.where & beside,
            NUMBERS: ~np.isnan(own) & np.isnan(right),
            EMPTY: np.isnan(own) & empty,
        }
        if (off & ~np.logical_or.reduce(list(kinds.values()))).any():
            return ()
        found |= {words: None for words, there in kinds.items() if (off & there).any()}
    return tuple(found)
