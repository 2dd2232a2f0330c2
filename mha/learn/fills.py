"""Which finite number a softmax with a mask puts in place of excluded scores, or adds to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from mha.learn.bench import Place, bench
from mha.learn.exercise import StepExercise

FILLS: tuple[float, ...] = (
    *(0.0, -1e2, -1e3, -1e4, -32768.0, -1e5, -1e6, -1e7, -1e8, -1e9, -(2.0**32), -1e10, -1e12, -1e15, -1e18, -1e20),
    *(-1e30, float(np.finfo(np.float32).min), float(np.finfo(np.float64).min)),
)
"""Numbers that people write for minus infinity."""

NEAR = 1e-9

HOW: dict[str, Callable[[NDArray, NDArray, float], NDArray]] = {
    "Excluded scores become {}": np.where,
    "{} is added to excluded scores": lambda allowed, scores, fill: scores + np.where(allowed, 0.0, fill),
}


def fill_of(exercise: StepExercise, answers: Sequence[Sequence[NDArray]]) -> str:
    """A sentence, if a softmax gives these answers that fills excluded scores with a finite number; else ""."""
    places = bench(exercise).places
    if exercise.covers != ("weights",) or exercise.parameters != ("scores", "allowed") or len(answers) != len(places):
        return ""
    for sentence, change in HOW.items():
        with any_numbers:
            fits = [
                fill
                for fill in FILLS
                if all(_gives(change, fill, place, answer[0]) for place, answer in zip(places, answers, strict=True))
            ]
        if fits:
            likely = -1e9 if -1e9 in fits else fits[len(fits) // 2]
            number = f"{likely:g}".replace("e+0", "e").replace("e+", "e")
            return (
                f"{sentence.format(number if len(fits) == 1 else f'a finite number, such as {number}')}: an excluded "
                "key counts where scores lie as low, or where no key is allowed. Exclude with -inf; a row without a "
                "key has weights of 0."
            )
    return ""


def _gives(change: Callable[[NDArray, NDArray, float], NDArray], fill: float, place: Place, made: NDArray) -> bool:
    """Whether the softmax of scores that are filled so is what was returned, in rows whose scores are all finite."""
    scores, allowed = place.arguments
    rows = np.isfinite(scores).all(-1)
    filled = np.asarray(change(allowed, scores, fill))[rows]
    powers = np.exp(filled - filled.max(-1, keepdims=True, initial=-np.inf))
    return made.shape == scores.shape and bool(
        (np.abs(powers / powers.sum(-1, keepdims=True) - made[rows]) <= NEAR).all()
    )
