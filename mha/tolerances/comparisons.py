"""Comparisons that tests of ports use in place of a bound: one tolerance for all numbers, a cosine, a divergence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from mha_core import SpecError


@dataclass(frozen=True)
class Comparison:
    """A way in which a test compares an output with the right one.

    Attributes:
        words: what is printed for it, such as "allclose(atol=0.001, rtol=0)".
        passes: (output, right output), both float64 of the same shape -> whether the test passes.
        each: whether each element is compared by itself, so that the whole fails if a part of it does.
    """

    words: str
    passes: Callable[[NDArray, NDArray], bool]
    each: bool = False


def chosen(
    atol: float | None = None, rtol: float | None = None, cosine: float | None = None, kl: float | None = None
) -> Comparison:
    """Return the comparison that the user asks for by one of these kinds of limits.

    Raises:
        SpecError: no kind of limit is given, or several are; or a number makes no sense.

    >>> chosen(atol=0.1).passes(np.array([1.05]), np.array([1.0])), chosen(cosine=1).words
    (True, 'cosine >= 1')
    """
    if sum(one is not None for one in (atol, cosine, kl)) != 1:
        raise SpecError(
            "give exactly one comparison: --atol (with --rtol or without), --cosine or --kl; such as --atol 1e-3"
        )
    if rtol is not None and atol is None:
        raise SpecError("--rtol belongs to --atol")
    for name, number in (("--atol", atol), ("--rtol", rtol), ("--kl", kl)):
        if number is not None and not 0.0 <= number < np.inf:
            raise SpecError(f"{name} must be a number from 0. Got {number:g}.")
    if cosine is not None and not -1.0 <= cosine <= 1.0:
        raise SpecError(f"--cosine must be a number from -1 to 1. Got {cosine:g}.")
    if atol is not None:
        return _allclose(atol, rtol or 0.0)
    if cosine is not None:
        return Comparison(f"cosine >= {cosine:g}", lambda one, right: cosine_of(one, right) >= cosine)
    return Comparison(f"KL divergence <= {kl:g}", lambda one, right: divergence(one, right) <= (kl or 0.0))


def _allclose(atol: float, rtol: float) -> Comparison:
    def passes(one: NDArray, right: NDArray) -> bool:
        return bool(np.allclose(one, right, atol=atol, rtol=rtol, equal_nan=True))

    return Comparison(f"allclose(atol={atol:g}, rtol={rtol:g})", passes, each=True)


def cosine_of(one: NDArray, right: NDArray) -> float:
    """Return the cosine of two outputs, each as one vector: 1 for equal ones, even zeros; NaN if any is not finite."""
    if np.array_equal(one, right):
        return 1.0
    with any_numbers:
        lengths = np.linalg.norm(one) * np.linalg.norm(right)
        return float(np.vdot(one, right) / lengths) if lengths else 0.0


def divergence(one: NDArray, right: NDArray) -> float:
    """Return the mean, over all rows, of the Kullback-Leibler divergence D(softmax(right) || softmax(one)), in nats."""
    if not right.size:
        return 0.0
    with any_numbers:
        mine, theirs = (x - x.max(axis=-1, keepdims=True) for x in (one, right))
        mine, theirs = (x - np.log(np.exp(x).sum(axis=-1, keepdims=True)) for x in (mine, theirs))
        return float(np.mean(np.sum(np.exp(theirs) * (theirs - mine), axis=-1)))
