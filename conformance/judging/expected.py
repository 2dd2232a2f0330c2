"""The expected answer to a problem: the reference's stages and gradients, and the allowed error of each element.

`nan_weights` says in which way weights differ that do so beside a NaN alone, and leave the output as it is.
"""

import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.bounds.precision import Precision
from conformance.bounds.tolerance import AllowedError
from conformance.cases.case import Case
from conformance.cases.problem import Problem
from conformance.judging.compare import Mismatch, ParityError, compare, is_allowed
from conformance.judging.distance import distance, error_ratio
from conformance.subjects.handout import in_layout_of, input_arrays, with_arrays
from conformance.subjects.subject import Subject
from mha_core import Trace
from mha_core.dtypes import storage_dtype
from mha_core.files.kept import Kept
from mha_core.reference import pipeline as reference
from mha_core.stages import GRADIENT, is_gradient


@dataclass(frozen=True, eq=False)
class Expected:
    """The expected answer to one problem (a layer and one call of it) in one precision.

    Attributes:
        problem: the problem rounded to the storage dtype, as subjects get it.
        trace: the reference's stages and gradients in float64.
        allowed_error: stage name, or "gradients.NAME" -> the error allowed in each element.
        where: bool (B, H, Lq, Lk), where attention is allowed; scores are compared only there.
    """

    problem: Problem
    trace: Trace
    allowed_error: Mapping[str, NDArray]
    where: NDArray[np.bool_]

    def judge(self, trace: Trace, dtype: str, *, own: bool = False) -> tuple[dict[str, float], tuple[Mismatch, ...]]:
        """Compare a trace. Return name -> largest ratio of error to allowed error, and a Mismatch for each wrong array.

        `own`: whether float64 arrays are accepted in a run of another dtype, as `compare` does for a user's own code.
        """
        try:
            return compare(trace, self.trace, self.allowed_error, self.where, dtype, own=own), ()
        except ParityError as error:
            return error.ratios, tuple(error.mismatches)

    def judge_of(self, subject: Subject, trace: Trace) -> tuple[dict[str, float], tuple[Mismatch, ...]]:
        """Compare the `trace` that `subject` gave, as `judge` does."""
        return self.judge(trace, subject.dtype, own=getattr(subject, "own", False))

    def allows(self, name: str, array: NDArray, dtype: str) -> bool:
        """Return whether `judge` finds nothing wrong with one stage, or with the gradient "gradients.NAME"."""
        gradients = self.trace.gradients or {}
        right = gradients[name.removeprefix(GRADIENT)] if is_gradient(name) else getattr(self.trace, name)
        return is_allowed(name, array, right, self.allowed_error, self.where, dtype)

    def surely_allows(self, trace: Trace, dtype: str) -> bool:
        """Return True if a cheap test shows that all stages of a trace are right; if False, only `judge` can tell.

        Rows of queries that may attend to no key are not tested.
        """
        least = self.allowed_error.least() if isinstance(self.allowed_error, AllowedError) else {}
        has_key = self.where.any(axis=-1)
        for name, array in trace.stages():
            right = getattr(self.trace, name)
            if name not in least or (array.shape, array.dtype) != (right.shape, storage_dtype(dtype)):
                return False
            rows = has_key.all(axis=1) if name == "output" else has_key
            with any_numbers:
                error = np.abs(array - right)[rows]
                if not (np.isfinite(error) & (error <= least[name][rows])).all():
                    return False
        return True


def answer(problem: Problem, precision: Precision) -> Expected:
    """Return the expected answer to a problem rounded to the storage dtype. Its bounds are computed when first read."""
    rounded = problem.rounded(precision.storage)
    state = reference.run_state(rounded.config, rounded.weights, rounded.inputs, sizes=rounded.sizes)
    return Expected(rounded, reference.trace_of(state), AllowedError(state, precision), state["allowed"])


@lru_cache(maxsize=512)
def expected(case: Case, precision: Precision) -> Expected:
    """Return the expected answer to a case; it is cached by case and precision."""
    problem = case.build()
    kept = None if _shelf is None else _shelf.get(problem, precision)
    if kept is not None:
        return _as_given(problem, kept)
    found = answer(problem, precision)
    if _shelf is not None:
        found = _shelf.put(problem, precision, found)
    return _as_given(problem, found)


def _as_given(problem: Problem, found: Expected) -> Expected:
    """The answer with the arrays of its problem in memory as the case has them, which is how subjects get them."""
    rounded, given = found.problem, input_arrays(problem.inputs)
    arrays = input_arrays(rounded.inputs)
    inputs, weights = in_layout_of(arrays, given), in_layout_of(rounded.weights, problem.weights)
    if inputs is arrays and weights is rounded.weights:
        return found
    return replace(found, problem=replace(rounded, weights=weights, inputs=with_arrays(rounded.inputs, inputs)))


class Shelf:
    """A cache on disk, in `kept`, of the reference's answers and bounds, shared by worker processes and later runs.

    The key of an answer covers all that it depends on: the problem, the precision, and (in the folder's name) this
    project's code, NumPy, its threads and the machine. So a cached answer has the same bits as one computed again.
    """

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def get(self, problem: Problem, precision: Precision) -> Expected | None:
        """Return the cached answer; None if there is none, or its file is damaged."""
        data = self._kept.get(_key(problem, precision))
        if data is None:
            return None
        arrays = _arrays(data)
        trace = Trace.of_arrays(_named(arrays, TRACE))
        stages, gradients = _named(arrays, ALLOWED), partial(self._of_gradients, problem, precision, None)
        allowed = _Bounds(stages, tuple(filter(is_gradient, trace.arrays())), gradients)
        return Expected(problem.rounded(precision.storage), trace, allowed, arrays[WHERE])

    def put(self, problem: Problem, precision: Precision, found: Expected) -> Expected:
        """Store the answer `found`. Return a copy that computes gradients' bounds on first access, and stores them."""
        stages = {name: found.allowed_error[name] for name in found.allowed_error if not is_gradient(name)}
        arrays = {WHERE: found.where, **_numbered(found.trace.arrays(), TRACE), **_numbered(stages, ALLOWED)}
        self._kept.put(_key(problem, precision), _data(arrays))
        gradients = partial(self._of_gradients, problem, precision, found.allowed_error)
        names = tuple(filter(is_gradient, found.allowed_error))
        return replace(found, allowed_error=_Bounds(stages, names, gradients))

    def _of_gradients(
        self, problem: Problem, precision: Precision, allowed: Mapping[str, NDArray] | None
    ) -> dict[str, NDArray]:
        """The bounds of gradients: those that are kept, else those of `allowed`, else computed anew."""
        key = f"{GRADIENT}{_key(problem, precision)}"
        data = self._kept.get(key)
        if data is not None:
            return _named(_arrays(data), ALLOWED)
        every = answer(problem, precision).allowed_error if allowed is None else allowed
        found = {name: every[name] for name in every if is_gradient(name)}
        self._kept.put(key, _data(_numbered(found, ALLOWED)))
        return found


class _Bounds(Mapping[str, NDArray]):
    """Bounds of which those of gradients are found when one is looked at: many subjects show none.

    Args:
        stages: the bounds of stages.
        names: those of the gradients.
        gradients: gives their bounds.
    """

    def __init__(
        self, stages: dict[str, NDArray], names: tuple[str, ...], gradients: Callable[[], dict[str, NDArray]]
    ) -> None:
        self._found, self._names, self._gradients = dict(stages), (*stages, *names), gradients

    def __getitem__(self, name: str) -> NDArray:
        if name not in self._found and name in self._names:
            self._found |= self._gradients()
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _numbered(arrays: Mapping[str, NDArray], kind: str) -> dict[str, NDArray]:
    """Arrays under names that begin with a number: a file has them in an order of its own."""
    return {f"{kind}{number:03}.{name}": array for number, (name, array) in enumerate(arrays.items())}


def _named(arrays: Mapping[str, NDArray], kind: str) -> dict[str, NDArray]:
    return {name.split(".", 2)[2]: arrays[name] for name in sorted(arrays) if name.startswith(kind)}


def _data(arrays: Mapping[str, NDArray]) -> bytes:
    from safetensors.numpy import save

    return bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))


def _arrays(data: bytes) -> dict[str, NDArray]:
    from safetensors.numpy import load

    return dict(load(data))


TRACE, ALLOWED, WHERE = "trace.", "allowed.", "where"
"""What the names of arrays in a kept answer begin with, and are."""

_shelf: Shelf | None = None


def keep_answers(shelf: Shelf | None) -> None:
    """Set the cache in which `expected` looks up and stores answers in this process. `shelf=None` means no cache."""
    global _shelf
    _shelf = shelf


def _key(problem: Problem, precision: Precision) -> str:
    return (
        f"{precision!r} {hashlib.sha256(pickle.dumps((problem.config, problem.weights, problem.inputs))).hexdigest()}"
    )


EXCLUDED = "Excluded keys have NaN weights where another key is NaN."
NUMBERS = "Attention weights are numbers where another key of the row is NaN: theirs are NaN too."
EMPTY = "Rows without an allowed key have NaN weights."

CHANGES: Mapping[str, str] = {
    EXCLUDED: "Set the weights of excluded keys to 0 after the softmax.",
    NUMBERS: "Divide by the sum of the row, which is NaN.",
    EMPTY: "Give a row without an allowed key the weights 0.",
}


def nan_weights(cases: Iterable[tuple[Expected, Mapping[str, NDArray], Sequence[Mismatch]]]) -> tuple[str, ...]:
    """Return sentences on how weights differ in rows with a NaN or without a key; () if other rows or arrays differ.

    `cases` has a tuple for each case that differs: (expected answer, the subject's arrays by name, mismatches).
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
