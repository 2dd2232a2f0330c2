"""Mistakes in a softmax, each in rows of one kind: with finite scores, without a key, with a NaN.

In all other rows such a candidate is right, so that several of them can be true of one answer.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mha_core.reference.forward import softmax as right_softmax

Candidate: TypeAlias = tuple[str, Callable[..., Any]]
"""A sentence, and the function that has the mistake."""

Weights: TypeAlias = Callable[[NDArray, NDArray], NDArray]
"""(scores, allowed) -> weights."""

FILLS = (
    *(-1e9, 0.0, -1e2, -1e3, -1e4, -32768.0, -1e5, -1e6, -1e7, -1e8, -(2.0**32), -1e10, -1e12, -1e15, -1e18, -1e20),
    *(-1e30, float(np.finfo(np.float32).min), -1e100, -1e300, float(np.finfo(np.float64).min)),
)
"""Numbers that people write for minus infinity, the most frequent first."""

ADDED = (1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1.0)
"""Numbers that people add to a sum."""

NUMBERS, EMPTY, EMPTY_WITH_NAN, WITH_NAN, BEHIND_MASK, READ_FINITE = range(6)
"""Kinds of rows: finite scores and a key; finite and no key; no key and a NaN; a NaN of an allowed key; a NaN of masked
keys alone; finite scores of all allowed keys, if there are any.
"""

OWN_MAXIMUM = "Subtract from each row its own: scores.max(axis=-1, keepdims=True)."
COUNTS = "and not minus infinity: a masked key still counts."
WHERE = "np.where(allowed, weights, 0)"


NO_MASK = "The mask changes nothing: a masked key counts as any other. Mask with -inf."
NOT_INFINITY = "not minus infinity: a masked key still counts. Mask with -inf; a row without a key has weights of 0."


def _short(number: float) -> str:
    """A number as people write it.

    >>> _short(-1e9), _short(-32768.0), _short(0.0)
    ('-1e9', '-32768', '0')
    """
    return f"{number:g}".replace("e+0", "e").replace("e+", "e")


def _rows(scores: NDArray, allowed: NDArray) -> tuple[NDArray, ...]:
    """The rows of each kind, bool (...)."""
    finite, has_key = np.isfinite(scores).all(-1), allowed.any(-1)
    read_finite = np.isfinite(_opened(scores, allowed)).all(-1)
    sees_nan = (np.isnan(scores) & allowed).any(-1)
    behind = ~finite & has_key & ~sees_nan
    return read_finite & has_key, finite & ~has_key, ~finite & ~has_key, sees_nan, behind, read_finite


def _wrong_in(kind: int, weights: Weights, scores: NDArray, allowed: NDArray | None = None) -> NDArray:
    """A softmax with these weights in rows of one kind, and right in all others."""
    allowed = np.ones(scores.shape, bool) if allowed is None else allowed
    rows = _rows(scores, allowed)[kind][..., None]
    return np.where(rows, weights(scores, allowed), right_softmax(scores, allowed))


def _masked(scores: NDArray, allowed: NDArray) -> NDArray:
    return np.where(allowed, scores, -np.inf)


def _opened(scores: NDArray, allowed: NDArray) -> NDArray:
    return np.where(allowed, scores, 0.0)


def _shares(powers: NDArray, added: float = 0.0) -> NDArray:
    """Each number as a share of its row."""
    return np.asarray(powers / (powers.sum(-1, keepdims=True) + added))


def _softmax(scores: NDArray, over: int | tuple[int, ...] = -1, added: float = 0.0) -> NDArray:
    """The softmax of each row; `over` are the axes of the maximum, `added` is added to the sum."""
    return _shares(np.exp(scores - scores.max(over, keepdims=True)), added)


def _mean_subtracted(scores: NDArray, allowed: NDArray) -> NDArray:
    mean = _opened(scores, allowed).sum(-1, keepdims=True) / allowed.sum(-1, keepdims=True)
    return _shares(np.exp(_masked(scores, allowed) - mean))


def _divided_by_largest(scores: NDArray, allowed: NDArray) -> NDArray:
    return _shares(np.exp(_masked(scores, allowed) / _masked(scores, allowed).max(-1, keepdims=True)))


def _by_logarithm(scores: NDArray, allowed: NDArray) -> NDArray:
    largest = _masked(scores, allowed).max(-1, keepdims=True)
    sums = np.exp(_masked(scores, allowed) - largest).sum(-1, keepdims=True)
    return np.exp(_masked(scores, allowed) - (largest + np.log(sums)))


def _filled(fill: float, scores: NDArray, allowed: NDArray) -> NDArray:
    return _softmax(np.where(allowed, scores, fill))


def _fill_added(fill: float, scores: NDArray, allowed: NDArray) -> NDArray:
    return _softmax(scores + np.where(allowed, 0.0, fill))


def _with_sum(added: float, scores: NDArray, allowed: NDArray) -> NDArray:
    return _softmax(_masked(scores, allowed), added=added)


def _nan(scores: NDArray, allowed: NDArray) -> NDArray:
    return np.full(scores.shape, np.nan)


def _mistakes() -> Iterator[tuple[int, Weights, str]]:
    """Kind of rows, the weights in them, and the sentence."""
    for fill in FILLS:
        number = f"such as {_short(fill)}" if fill else "0"
        yield READ_FINITE, partial(_filled, fill), f"Masked scores become a number, {number}, {NOT_INFINITY}"
        words = f"A number is added to masked scores, {number}, {NOT_INFINITY}" if fill else NO_MASK
        yield READ_FINITE, partial(_fill_added, fill), words
    of_matrix = f"over the whole matrix, not over each row: rows far below it become 0 / 0. {OWN_MAXIMUM}"
    of_mean = "The mean of the row is subtracted, and not its maximum: the largest exponential can be infinite."
    of_signs = "Negative scores are set to 0 and the others divided by their sum. A softmax takes exponentials first."
    of_smallest = f"Masked scores become the smallest score of all, {COUNTS}"
    of_smallest_in_row = f"Masked scores become the smallest score of their row, {COUNTS}"
    inverted = "True is taken for masked, and False for allowed: True says that the query may attend to the key."
    yield NUMBERS, lambda s, a: _softmax(_masked(s, a), (-2, -1)), f"The maximum is taken {of_matrix}"
    yield (
        NUMBERS,
        lambda s, a: _softmax(_masked(s, a), -2),
        f"The maximum is taken over each column, not over each row. {OWN_MAXIMUM}",
    )
    yield NUMBERS, _mean_subtracted, of_mean
    yield NUMBERS, _by_logarithm, "Beside a very large score the logarithm of the sum is lost. Divide by the sum."
    yield NUMBERS, _divided_by_largest, "Scores are divided by the largest of their row. It must be subtracted."
    yield (
        NUMBERS,
        lambda s, a: _shares(_opened(s, a)),
        "Scores are divided by their sum, and no exponential is taken first.",
    )
    yield NUMBERS, lambda s, a: _shares(np.maximum(_opened(s, a), 0.0)), of_signs
    yield NUMBERS, lambda s, a: _softmax(np.where(a, s, s.min())), of_smallest
    yield NUMBERS, lambda s, a: _softmax(np.where(a, s, s.min(-1, keepdims=True))), of_smallest_in_row
    yield NUMBERS, lambda s, a: _softmax(np.where(a, -np.inf, s)), inverted
    for added in ADDED:
        sentence = f"{added:g} is added to the sum of the exponentials. Divide by the sum as it is."
        yield NUMBERS, partial(_with_sum, added), sentence
    of_nan = (
        "A row without a key is NaN: -inf - -inf is no number. Ask the mask whether there is a key, and give such a "
    )
    unmasked = (
        f"A row without a key has the weights of all its keys, as if there were no mask. They must be 0: {WHERE}."
    )
    hidden = (
        "A NaN among the scores is hidden: the row has weights of 0. Allowed keys of such a row must be NaN, so that a "
    )
    spread = f"In a row in which the score of an allowed key is NaN masked keys are NaN too. They must be 0: {WHERE}."
    behind = (
        "The NaN score of a masked key makes the whole row NaN: choose, np.where(allowed, scores, -np.inf), do not "
    )
    times_0 = f"A row without a key is NaN if a score is, as 0 * NaN is NaN: choose, {WHERE}, do not multiply."
    even = f"A row without a key has the same weight for all keys. They must be 0: {WHERE}."
    yield EMPTY, _nan, f"{of_nan}row weights of 0."
    yield EMPTY, lambda s, a: _softmax(s), unmasked
    yield EMPTY, lambda s, a: np.full(s.shape, 1.0 / s.shape[-1]), even
    yield EMPTY_WITH_NAN, _nan, times_0
    yield WITH_NAN, _nan, spread
    asked = "mistake somewhere else is seen. Ask the mask whether there is a key, and not the weights."
    yield WITH_NAN, lambda s, a: np.zeros(s.shape), f"{hidden}{asked}"
    yield BEHIND_MASK, _nan, f"{behind}add or multiply."


SOFTMAX: tuple[Candidate, ...] = tuple(
    (sentence, partial(_wrong_in, kind, weights)) for kind, weights, sentence in _mistakes()
)


def filled(fill: float, *, is_added: bool) -> Candidate:
    """Return (sentence, function) for the mistake of replacing masked scores by `fill`, or of adding `fill` to them."""
    weights = _fill_added if is_added else _filled
    what = f"{_short(fill)} is added to masked scores" if is_added else f"Masked scores become {_short(fill)}"
    words = f"{what}, {NOT_INFINITY}" if fill or not is_added else NO_MASK
    return words, partial(_wrong_in, READ_FINITE, partial(weights, fill))
