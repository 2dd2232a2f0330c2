"""How far two calls that should give the same may be apart.

Where the model computes in float64 throughout: 64 units in the last place of the largest number, or 8 times the largest
of the model's own rounding terms, whichever is more. Else, in its own dtype, the latter alone. The terms are measured:
every module's output, and inputs of floating-point numbers, are moved by a unit in the last place. docs/invariants.md
has how far right models go.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF
from conformance.judging.distance import distance
from mha.invariance.given import Given
from mha.invariance.live import Live
from mha.invariance.trial import Template, Trial

UNITS = 64.0
"""Units in the last place of the largest number that are always allowed."""

FACTOR = 8.0
"""How many times the measured rounding is allowed, as of `mha where`."""

DRAWS = 3
"""How often the rounding is measured."""

SMALL, LARGER = 1e-10, 1e-6
"""Two moves: where a model has float32 inside, the first is lost in its rounding, and the second is not."""

SMOOTH = 5e-4
"""How far the two slopes of a model in float64 may be apart."""


@dataclass(frozen=True)
class Allowance:
    """An allowance: how much rounding may change the output of a model.

    Attributes:
        dtype: the dtype in which the model is called.
        rounding: the output's largest measured rounding error / its largest number.
    """

    dtype: str
    rounding: float

    def of(self, largest: float) -> float:
        """Return the allowed error of an output whose largest number is `largest`.

        >>> Allowance("float64", 1e-16).of(2.0) == 64 * 2.0 * 2**-52, Allowance("float32", 1e-7).of(2.0)
        (True, 1.6e-06)
        """
        return max(self._units, FACTOR * self.rounding) * largest

    @property
    def _units(self) -> float:
        """What is allowed whatever the rounding: where it was measured in a dtype below float64, nothing."""
        return UNITS * 2.0 * UNIT_ROUNDOFF[self.dtype] if self.dtype == "float64" or not self.rounding else 0.0

    @property
    def said(self) -> str:
        """Return the allowance in words."""
        by_units = self._units >= FACTOR * self.rounding
        what = f"{UNITS:.0f} units in the last place" if by_units else f"{FACTOR:.0f} times its own rounding"
        return f"{what} in {self.dtype}: {self.of(1.0):.1e} of the largest number"


@dataclass(frozen=True)
class Apart:
    """A comparison of two arrays: the largest difference (`error`), its `index`, the numbers there, and `allowed`."""

    error: float
    allowed: float
    index: tuple[int, ...]
    first: float
    second: float

    @property
    def ratio(self) -> float:
        """Return the error over the allowed one."""
        return 0.0 if self.error == 0.0 else float(np.divide(self.error, self.allowed))


def apart(first: NDArray, second: NDArray, allowance: Allowance) -> Apart:
    """Return a comparison of two arrays of equal shape: their largest difference, and the one that is allowed."""
    if not first.size:
        return Apart(0.0, 0.0, (), 0.0, 0.0)
    with np.errstate(all="ignore"):
        error = distance(first, second)
    index = tuple(int(one) for one in np.unravel_index(int(np.argmax(error)), error.shape))
    sizes = np.abs(np.concatenate([first.ravel(), second.ravel()]))
    largest = float(sizes[np.isfinite(sizes)].max(initial=0.0))
    return Apart(float(error[index]), allowance.of(largest), index, float(first[index]), float(second[index]))


def measure(live: Live, template: Template, *dtypes: str) -> Allowance:
    """Return how much rounding may change a model's output, measured in the first of `dtypes` in which it runs."""
    for dtype in dict.fromkeys((*dtypes, live.dtype)):
        try:
            allowance = _measured(live, template, dtype)
        except (Exception, SystemExit):  # it has another dtype inside, or none is moved
            if dtype == live.dtype:
                raise
            continue
        if allowance is not None:
            return allowance
    return Allowance(live.dtype, 2.0 * UNIT_ROUNDOFF[live.dtype])


def _measured(live: Live, template: Template, dtype: str) -> Allowance | None:
    """The allowance in a dtype; None if it is float64 and something inside is not."""
    plain = _run(live, template, dtype, 0.0, 0)
    size = float(np.abs(plain[np.isfinite(plain)]).max(initial=0.0)) or 1.0
    if dtype == "float64":
        slopes = [(_run(live, template, dtype, by, 1) - plain) / by for by in (SMALL, LARGER)]
        largest = np.abs(slopes[1]).max(initial=0.0, where=np.isfinite(slopes[1]))
        off = np.abs(slopes[0] - slopes[1])
        if off.max(initial=0.0, where=np.isfinite(off)) > SMOOTH * largest:
            return None
    unit = 2.0 * UNIT_ROUNDOFF[dtype]
    terms = []
    for seed in range(2, 2 + DRAWS):
        off = distance(_run(live, template, dtype, unit, seed), plain)
        terms.append(float(off.max(initial=0.0, where=np.isfinite(off))) / size)
    return Allowance(dtype, max(terms))


def _run(live: Live, template: Template, dtype: str, by: float, seed: int) -> NDArray:
    """What the model gives with its roundings moved."""
    moved = template
    if by and not template.tokens:
        rng = np.random.default_rng(seed)
        done: dict[str, Given] = {}
        sequences: Mapping[str, Given] = {}
        for name, one in template.sequences.items():
            if one.text not in done:
                done[one.text] = Given(one.array * (1.0 + by * rng.choice([-1.0, 1.0], one.array.shape)), one.text)
            sequences = {**sequences, name: done[one.text]}
        moved = replace(template, sequences=sequences)
    own = live.fresh()

    def answered() -> Any:
        with own.running(dtype) as run:
            trial = Trial(own, run, moved, template.whole, dtype)
            return trial.call(trial.x()).out.array

    if not by:
        return answered()
    try:
        with own.moved(by, seed):
            return answered()
    except Exception:
        if template.tokens:
            raise
        return answered()
