"""Reading: bugs made of numbers that are read off the measured weights, whatever these numbers are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.experiments.masks.exclusion import added, filled
from conformance.experiments.masks.lengths import plus
from conformance.experiments.masks.positions import diagonal, sides
from conformance.experiments.readings.masks import distances, log_ratios, prefix, read_allowed
from conformance.experiments.readings.weights import read_weights
from conformance.experiments.view import View
from conformance.zoo.bug import Bug


def read_off(view: View, wrong: Problem, source: str) -> Iterator[Bug]:
    """Numbers larger than those that are tried anyway."""
    measured = read_allowed(view.got, wrong)
    if measured is None or not measured.any():
        return
    mask = wrong.inputs.mask
    if source == "valid_lens" and mask.valid_lens is not None:
        counts = prefix(measured)
        if counts is not None:
            lens = np.asarray(mask.valid_lens)
            off = np.unique(counts - (lens[:, None, None] if lens.ndim == 1 else lens[:, None, :]))
            if len(off) == 1 and off[0]:
                yield plus(int(off[0]))
    if isinstance(mask.query_offset, int) and source in ("causal", "window"):
        inside, outside = distances(measured, mask.query_offset)
        if not inside or inside & outside:
            return
        if source == "causal" and max(inside):
            yield diagonal(max(inside))
        if source == "window" and mask.window is not None and None not in mask.window:
            left, right = (side or 0 for side in mask.window)
            yield sides(-min(inside) - left, max(inside) - right)


def read_exclusion(view: View, problem: Problem) -> Iterator[Bug]:
    """The constant that excluded scores have, or that is added to them, from the weights that they still have."""
    for number in read_constants(view, problem):
        yield from filled(number)
        yield from added(number)


def read_constants(view: View, problem: Problem) -> list[float]:
    """What would have to stand in place of every excluded score, and what would have to be added: those that are one.

    Rows of several allowed keys count with the logarithm of their mean weights and scores.
    """
    weights, model = read_weights(view.got, problem), view.made_all(problem)
    if weights is None or model is None:
        return []
    allowed = problem.allowed()
    found = log_ratios(_with_padding(problem, weights), allowed)
    scores = np.asarray(model["scores"])
    with any_numbers:
        open_mean = np.where(allowed, scores, 0.0).sum(axis=-1, keepdims=True) / allowed.sum(axis=-1, keepdims=True)
    unit = view.lab.unit * max(1.0, float(np.abs(scores).max(initial=0.0)))
    numbers = (_constant(found + open_mean, unit), _constant(found + open_mean - scores, unit))
    return [number for number in numbers if number is not None]


def _with_padding(problem: Problem, weights: np.ndarray) -> np.ndarray:
    """The weights with what rows lack of 1 shared by the padded keys, whose values are 0 and show nothing."""
    hidden = np.broadcast_to(problem.padding()[:, None, None, :], weights.shape) & (weights == 0.0)
    missing = 1.0 - weights.sum(axis=-1, keepdims=True)
    share = np.where(missing > MISSING, missing, 0.0) / np.maximum(hidden.sum(axis=-1, keepdims=True), 1)
    return np.where(hidden, share, weights)


MISSING = 1e-9
"""What a row may lack of 1 by rounding."""

ROUNDOFFS = 2000.0
"""Unit roundoffs by which what is read off may be wrong."""


def _constant(array: np.ndarray, unit: float) -> float | None:
    """The number that all finite entries are, in as few digits as their error allows; None if they differ."""
    known = array[np.isfinite(array)]
    if not known.size:
        return None
    middle = float(np.median(known))
    error = ROUNDOFFS * max(unit, unit * abs(middle))
    if np.ptp(known) > error:
        return None
    if abs(middle) <= error:
        return 0.0
    shorter = (float(f"{middle:.{digits}g}") for digits in range(1, 17))
    return next((number for number in shorter if abs(number - middle) <= error), middle)
