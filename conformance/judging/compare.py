"""Compare a trace with the expected one; raises a ParityError that describes every array that differs."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.judging.distance import worst
from conformance.subjects.answers import of_other_dtype
from mha_core import Trace
from mha_core.dtypes import storage_dtype
from mha_core.stages import is_gradient


@dataclass(frozen=True)
class Mismatch:
    """One array that differs from the expected one, described at its worst element.

    `stage` is a stage's name, or "gradients.NAME". `index` is None where shapes, dtypes or names differ, and `message`
    says so. `call` names the repeated call that differs (see `conformance.judging.repeats`); "" for the first call.
    """

    stage: str
    message: str
    index: tuple[int, ...] | None = None
    actual: float | None = None
    expected: float | None = None
    error: float | None = None
    allowed: float | None = None
    wrong: int = 0
    total: int = 0
    call: str = ""


class ParityError(AssertionError):
    """An error: computed stages or gradients differ from the expected ones.

    Attributes:
        mismatches: one for every array that differs, in the order of the stages.
        ratios: name -> largest ratio of error to allowed error, of every array that could be compared.
    """

    def __init__(self, mismatches: list[Mismatch], ratios: dict[str, float]) -> None:
        super().__init__("\n".join(mismatch.message for mismatch in mismatches))
        self.mismatches = mismatches
        self.ratios = ratios


def compare(
    actual: Trace, expected: Trace, allowed: Mapping[str, NDArray], where: NDArray, dtype: str, *, own: bool = False
) -> dict[str, float]:
    """Compare every stage and gradient that `actual` has.

    Args:
        actual: the stages and gradients that the subject computed.
        expected: all stages and gradients of the reference.
        allowed: name -> the allowed error of each element, as `bounds.tolerance.AllowedError` gives it.
        where: bool (B, H, Lq, Lk), where attention is allowed; scores are compared only there.
        dtype: the dtype that `actual` must have.
        own: whether `actual` comes from a user's own code; then float64 arrays are accepted too (see `in_float64`).

    Returns:
        Name -> largest ratio of error to allowed error in each array; at most 1.

    Raises:
        ParityError: some array has another shape or dtype, is absent, or is too far off somewhere.
    """
    ratios: dict[str, float] = {}
    mismatches: list[Mismatch] = []
    for name, array, wanted in _pairs(actual, expected, mismatches):
        mismatch = _check_form(name, array, wanted, dtype, own)
        if mismatch is None:
            # The same bits are right whatever is allowed: what is allowed need not be computed.
            same = same_bits({name: array}, {name: wanted})
            ratios[name], mismatch = (
                (0.0, None) if same else check_values(name, array, wanted, allowed[name], _counted(name, wanted, where))
            )
        if mismatch is not None:
            mismatches.append(mismatch)
    if mismatches:
        raise ParityError(mismatches, ratios)
    return ratios


def is_allowed(
    name: str, array: NDArray, expected: NDArray, allowed: Mapping[str, NDArray], where: NDArray, dtype: str
) -> bool:
    """Return whether `compare` would find no mismatch in the array `name`. It is faster: it computes no ratios."""
    if _check_form(name, array, expected, dtype) is not None:
        return False
    if same_bits({name: array}, {name: expected}):
        return True
    with any_numbers:
        error = np.abs(array - expected)
        near = error <= allowed[name]
    if name == "scores":
        error, near = error[where], near[where]
    if np.isfinite(error).all():
        return bool(near.all())
    return check_values(name, array, expected, allowed[name], _counted(name, expected, where))[1] is None


def _counted(name: str, array: NDArray, where: NDArray) -> NDArray[np.bool_]:
    return where if name == "scores" else np.ones(array.shape, dtype=bool)


def _pairs(actual: Trace, expected: Trace, mismatches: list[Mismatch]) -> list[tuple[str, NDArray, NDArray]]:
    pairs = [(name, array, getattr(expected, name)) for name, array in actual.stages()]
    if expected.gradients is None or actual.gradients is None:
        return pairs
    given = actual.arrays()
    for name, wanted in expected.arrays().items():
        if is_gradient(name) and name in given:
            pairs.append((name, given[name], wanted))
        elif is_gradient(name):
            mismatches.append(Mismatch(name, f"{name} is missing"))
    return pairs


def in_float64(trace: Trace, dtype: str) -> tuple[str, ...]:
    """Return the names of float64 arrays in a run in another dtype; none if `dtype` is "float64".

    A user's own function may return them unintentionally: in NumPy 2, x / np.sqrt(8) is float64 even for a float32 x.
    They are compared under the bounds of the run's dtype.

    >>> in_float64(Trace(output=np.ones((1, 2, 3))), "float32"), in_float64(Trace(output=np.ones((1, 2, 3))), "float64")
    (('output',), ())
    """
    if storage_dtype(dtype) == np.float64:
        return ()
    return tuple(name for name, array in trace.arrays().items() if array.dtype == np.float64)


def _check_form(name: str, array: NDArray, wanted: NDArray, dtype: str, own: bool = False) -> Mismatch | None:
    if array.shape != wanted.shape:
        merge = _unmerged(array.shape, wanted.shape) if name == "output" else ""
        return Mismatch(name, f"{name} has shape {array.shape}; it must be {wanted.shape}{merge}")
    if array.dtype != storage_dtype(dtype) and not (own and array.dtype == np.float64):
        return Mismatch(name, of_other_dtype(name, array, dtype))
    return None


def _unmerged(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Return what to do with an output whose heads are apart, for a message; "" for any other shape.

    >>> _unmerged((2, 3, 5, 4), (2, 5, 12)), _unmerged((2, 5), (2, 5, 12))
    (': merge the heads, transpose(0, 2, 1, 3).reshape(B, Lq, H * d), before the output projection', '')
    """
    if len(shape) != 4 or shape[0] != wanted[0] or wanted[1] not in shape[1:3]:
        return ""
    turn = "transpose(0, 2, 1, 3)." if shape[2] == wanted[1] else ""
    return f": merge the heads, {turn}reshape(B, Lq, H * d), before the output projection"


def check_values(
    name: str, array: NDArray, wanted: NDArray, allowed: NDArray, counts: NDArray
) -> tuple[float, Mismatch | None]:
    """Return (largest ratio error / allowed where `counts`, mismatch). The mismatch is None if the ratio is <= 1."""
    if not counts.any():
        return 0.0, None
    found = worst(array, wanted, allowed, counts)
    if found.ratio <= 1.0:
        return found.ratio, None
    got, right, total = float(array[found.index]), float(wanted[found.index]), int(counts.sum())
    digits = next((few for few in (6, 9) if f"{got:.{few}g}" != f"{right:.{few}g}"), 17)
    message = (
        f"{name} differs in {found.wrong} of {total} elements ({100 * found.wrong / total:.3g} %), worst at "
        f"[{', '.join(map(str, found.index))}]: got {got:.{digits}g}, expected {right:.{digits}g}, "
        f"error {found.error:.3g}, allowed {found.allowed:.3g}"
    )
    mismatch = Mismatch(name, message, found.index, got, right, found.error, found.allowed, found.wrong, total)
    return found.ratio, mismatch


def same_bits(arrays: Mapping[str, NDArray], others: Mapping[str, NDArray]) -> bool:
    """Return whether two dicts have the same names and equal arrays, bit for bit."""
    return arrays.keys() == others.keys() and all(
        array is others[name]
        or (
            (array.shape, array.dtype) == (others[name].shape, others[name].dtype)
            and array.tobytes() == others[name].tobytes()
        )
        for name, array in arrays.items()
    )
