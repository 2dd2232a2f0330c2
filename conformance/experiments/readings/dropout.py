"""What dropout does to the weights: those after it, read off the output, over those before it.

d_ij = kept_ij / a_ij, which should be keep_ij / (1 - p)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.experiments.changes.axes import axis_changes
from conformance.experiments.changes.parameter import snapped
from conformance.experiments.changes.sample import Setting
from conformance.experiments.designs import changed
from conformance.experiments.readings.softmax import AXES
from conformance.experiments.readings.weights import read_weights, undone
from conformance.experiments.view import View
from conformance.zoo.bug import DoesNotApply

Rate = Callable[[float], float]


@dataclass(frozen=True, eq=False)
class Dropped:
    """One problem with dropout: arrays (B, H, Lq, Lk).

    Args:
        measured: the weights after dropout.
        weights, scores: those of the model, before it.
        keep: the keep-mask; all True if none is given.
        unit: the relative error of what was measured.
    """

    measured: NDArray
    weights: NDArray
    scores: NDArray
    keep: NDArray[np.bool_]
    setting: Setting
    unit: float

    @property
    def rate(self) -> float:
        return float(self.setting.config.dropout)

    def is_given_by(self, made: NDArray) -> bool:
        most = float(np.abs(self.measured).max(initial=0.0))
        return bool(np.all(np.abs(made - self.measured) <= 1000.0 * self.unit * most))


def dropped(view: View) -> list[Dropped]:
    """The weights after dropout of each problem of the probe that can be read."""
    found = []
    for problem in view.problems:
        one = _read(view, problem)
        if one is not None:
            found.append(one)
    return found


def _read(view: View, problem: Problem) -> Dropped | None:
    keep = problem.inputs.dropout_keep
    without = problem if keep is None else changed(problem, dropout_keep=None)
    # As they are read: what is undone depends on the model's weights after dropout.
    got, ours = (replace(asked, undo=None) for asked in (view.got, view.made))
    made, measured = view.made_all(problem), read_weights(got, problem)
    if made is None or measured is None or not np.isfinite(measured).all():
        return None
    setting = Setting(problem.config, problem.sizes)
    expected = view.right(without)["weights"] if keep is None else read_weights(ours, without)
    back = None if expected is None else undone(expected, made["weights"], setting)
    if back is None:
        return None
    mask = np.ones(measured.shape, np.bool_) if keep is None else np.broadcast_to(keep, measured.shape).astype(bool)
    unit = min(max(1e-14, 10.0 * view.lab.unit), 2e-5)
    return Dropped(back(measured), made["weights"], made["scores"], mask, setting, unit)


# Other masks -------------------------------------------------------------------------------------------

Mask = Callable[[NDArray, Setting], NDArray]
"""(The keep-mask, the sizes) -> another one. It raises DoesNotApply where it can't be made."""


def masks() -> Iterator[tuple[str, str, Mask]]:
    """(Slug, words, the mask) of each that may stand in place of the keep-mask."""
    yield "as-given", "the keep-mask", lambda keep, setting: keep
    for slug, words, array in (
        ("transposed", "the keep-mask with queries and keys exchanged", _transposed),
        ("read-by-columns", "the keep-mask read as (.., Lk, Lq)", _by_columns),
        ("read-as-queries-first", "the keep-mask read as (B, Lq, H, Lk)", _queries_first),
        ("heads-exchanged-with-items", "the keep-mask with items and heads exchanged", _items_and_heads),
    ):
        yield slug, words, array
    for change in axis_changes(AXES):
        yield change.slug, f"the keep-mask {change.words}", _of_axis(change.apply)
    for position, axis in enumerate(AXES):
        for name, words, together in (("any", "kept in any", np.any), ("all", "kept in every", np.all)):
            yield f"{name}-{axis}", f"what is {words} {axis}", _together(together, position)


def _of_axis(apply: Callable[[NDArray, tuple[str, ...], Setting], NDArray]) -> Mask:
    return lambda keep, setting: apply(keep.astype(np.float64), AXES, setting).astype(bool)


def _together(together: Callable[..., NDArray], axis: int) -> Mask:
    return lambda keep, setting: np.broadcast_to(together(keep, axis=axis, keepdims=True), keep.shape)


def _transposed(keep: NDArray, setting: Setting) -> NDArray:
    if keep.shape[-1] != keep.shape[-2]:
        raise DoesNotApply("as many queries as keys")
    return keep.swapaxes(-1, -2)


def _by_columns(keep: NDArray, setting: Setting) -> NDArray:
    b, h, q, k = keep.shape
    return keep.reshape(b, h, k, q).swapaxes(-1, -2)


def _queries_first(keep: NDArray, setting: Setting) -> NDArray:
    b, h, q, k = keep.shape
    return keep.reshape(b, q, h, k).swapaxes(1, 2)


def _items_and_heads(keep: NDArray, setting: Setting) -> NDArray:
    b, h, q, k = keep.shape
    return keep.reshape(h, b, q, k).swapaxes(0, 1)


# Numbers that depend on the rate --------------------------------------------------------------------------

RATES: dict[str, Rate] = {
    "1 / (1 - p)": lambda p: 1.0 / (1.0 - p),
    "1": lambda p: 1.0,
    "1 - p": lambda p: 1.0 - p,
    "1 / p": lambda p: 1.0 / p if p else np.inf,
    "p": lambda p: p,
    "1 / (1 - p)^2": lambda p: (1.0 - p) ** -2,
    "(1 - p)^2": lambda p: (1.0 - p) ** 2,
    "1 / sqrt(1 - p)": lambda p: (1.0 - p) ** -0.5,
    "sqrt(1 - p)": lambda p: (1.0 - p) ** 0.5,
    "1 + p": lambda p: 1.0 + p,
    "1 / (1 + p)": lambda p: 1.0 / (1.0 + p),
    "p / (1 - p)": lambda p: p / (1.0 - p),
    "(1 - p) / p": lambda p: (1.0 - p) / p if p else np.inf,
    "1 / (1 - p^2)": lambda p: 1.0 / (1.0 - p * p),
    "1 / (1 - 2 p)": lambda p: 1.0 / (1.0 - 2.0 * p) if p != 0.5 else np.inf,
    "exp(p)": lambda p: float(np.exp(p)),
}
"""Words -> the number at a rate p."""


def rates(numbers: Sequence[tuple[float, float]], unit: float) -> Iterator[tuple[str, Rate]]:
    """What a number measured at several rates may be: one of RATES, or a constant times one; a constant.

    Args:
        numbers: (the number, the rate).
        unit: its relative error.
    """
    if all(number == 0.0 for number, _ in numbers):
        yield "0", lambda p: 0.0
        return
    close = max(1e-9, 1e4 * unit)
    for words, rate in RATES.items():
        with any_numbers:
            factors = [number / rate(p) for number, p in numbers]
        factor = snapped(factors[0], close)
        if not np.isfinite(factor) or not factor:
            continue
        if all(abs(one - factor) <= close * abs(factor) for one in factors):
            yield (words, rate) if factor == 1.0 else (f"{factor:.9g} * {words}", _times(factor, rate))


def _times(factor: float, rate: Rate) -> Rate:
    return lambda p: factor * rate(p)


def factors(samples: Iterable[Dropped], mask: Mask) -> list[tuple[float, float, float]] | None:
    """(Factor where the mask keeps, factor elsewhere, rate) of each sample; None if some factor is not one number."""
    found = []
    for one in samples:
        try:
            keep = mask(one.keep, one.setting)
        except DoesNotApply:
            continue
        inside, outside = _factor(one, keep), _factor(one, ~keep)
        if inside is None or outside is None or not one.is_given_by(one.weights * np.where(keep, inside, outside)):
            return None
        found.append((inside, outside, one.rate))
    return found or None


def _factor(one: Dropped, where: NDArray) -> float | None:
    """By how much the weights are multiplied in some places, by least squares; 0 where there are none."""
    weights = one.weights[where]
    square = float(weights @ weights)
    if not square or not np.isfinite(square):
        return 0.0 if not where.any() else None
    number = float(one.measured[where] @ weights) / square
    return 0.0 if abs(number) < 1e-12 else number
