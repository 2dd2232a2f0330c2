r"""Differences: whether the gradients that a subject gives are those of the outputs that it gives.

Along a direction v, with loss L(x) = sum of cotangent * output(x), a subject differentiates itself rightly if

    sum of gradient(x) * v = L'(0),   L'(0) ~ (4 D(h/2) - D(h)) / 3,   D(h) = (L(x + h v) - L(x - h v)) / 2h

whatever the output is. So a layer with a wrong forward direction that is rightly differentiated is told from one
whose gradients are wrong as well, and no more than its wrong outputs is held against it. This is needed: a model of a
wrong layer keeps the definition's backward steps, and for most bugs on file (82 of 113 at two problems) these do not
give the derivative of what the model computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from mha_core import AttentionInputs

Arrays = Mapping[str, NDArray]

ROUGH = 1e-2
"""No judgement where the difference quotient is known only up to this part of its terms."""

ROUNDOFFS = 300.0
"""Roundoffs of the loss's terms that a difference may be off, for the rounding inside the subject."""

SHRINKING = 0.25
"""Part of the change from D(h) to D(h/2) that the extrapolated value may be off; it is h^2 of it where L is smooth."""


def own_gradients(
    answer: Callable[[Problem], NDArray | None], problem: Problem, gradients: Arrays, unit: float
) -> bool | None:
    """Whether gradients are those of the outputs; None if the differences can't tell: refused, or not smooth.

    Args:
        answer: problem -> output, or None; it is asked eight times.
        problem: where; it has a cotangent.
        gradients: name -> the gradient that was given with the output of `problem`.
        unit: the unit roundoff of the outputs.

    >>> from conformance.measure.designs import CONFIGS, generic
    >>> from mha_core import reference
    >>> run = lambda one: reference.run(one.config, one.weights, one.inputs)
    >>> trace = run(problem := generic(CONFIGS[0]))
    >>> own_gradients(lambda one: run(one).output, problem, trace.gradients, 1e-16)
    True
    >>> own_gradients(lambda one: 1.01 * run(one).output, problem, trace.gradients, 1e-16)
    False
    """
    verdicts = [_along(answer, problem, gradients, direction, unit) for direction in _directions(problem, gradients)]
    if False in verdicts:
        return False
    return True if True in verdicts else None


def _directions(problem: Problem, gradients: Arrays) -> Iterator[dict[str, NDArray]]:
    """One direction in all inputs, one in all parameters; as large as they are, and 0 where they are not finite."""
    for arrays in (problem.inputs.leaves(), problem.weights):
        rng = np.random.default_rng(0)
        direction = {}
        for name, array in arrays.items():
            finite = np.isfinite(array)
            size = np.sqrt(np.mean(np.square(array[finite]))) if finite.any() else 0.0
            steps = rng.normal(size=array.shape) * (size or 1.0)
            if name in gradients and gradients[name].shape == array.shape:
                direction[name] = np.where(finite, steps, 0.0)
        if direction:
            yield direction


def _along(
    answer: Callable[[Problem], NDArray | None], problem: Problem, gradients: Arrays, v: Arrays, unit: float
) -> bool | None:
    h = unit**0.2
    cotangent = problem.inputs.cotangent
    assert cotangent is not None
    quotients, terms = [], 0.0
    for step in (h, h / 2):
        pair = [answer(_moved(problem, v, sign * step)) for sign in (1.0, -1.0)]
        if pair[0] is None or pair[1] is None:
            return None
        quotients.append(float((cotangent * (pair[0] - pair[1])).sum()) / (2.0 * step))
        terms = max(terms, float(np.abs(cotangent * pair[0]).sum()))
    slope = (4.0 * quotients[1] - quotients[0]) / 3.0
    error = SHRINKING * abs(slope - quotients[1]) + ROUNDOFFS * unit * terms / h
    given = [float((gradients[name] * direction).sum()) for name, direction in v.items()]
    size = max(abs(slope), np.sqrt(np.sum([np.sum(np.square(gradients[name] * d)) for name, d in v.items()])))
    if not np.isfinite(slope) or error > ROUGH * size:
        return None
    return bool(abs(sum(given) - slope) <= error)


def _moved(problem: Problem, v: Arrays, step: float) -> Problem:
    """The problem at x + step * v."""

    def moved(name: str, array: NDArray) -> NDArray:
        return array + step * v[name] if name in v else array

    inputs: AttentionInputs = problem.inputs
    mask = inputs.mask.map_arrays(lambda name, array: moved(name, array) if name == "bias" else array)
    leaves: dict[str, Any] = {name: moved(name, array) for name, array in inputs.leaves().items() if name != "bias"}
    weights = {name: moved(name, array) for name, array in problem.weights.items()}
    return replace(problem, weights=weights, inputs=replace(inputs, mask=mask, **leaves))
