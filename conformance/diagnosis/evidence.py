"""Evidence: how well hypotheses reproduce the answers of a subject, case by case.

A hypothesis is the reference with some bugs of the zoo in it. It fits a case *whole* if it gives every array that the
subject shows. It *explains* the case if it gives what matters there: the output, where that is wrong. So a stage that
differs and does no harm, as queries that are scaled early, does not hide the bug.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF, Precision
from conformance.diagnosis.observations import Observation, Runs
from conformance.judging.distance import worst
from conformance.judging.expected import expected
from conformance.judging.near import Nearness
from conformance.measure.behaviour import narrower
from conformance.subjects.subject import Subject
from conformance.zoo.bug import Bug
from mha_core.stages import is_gradient

LAST_PLACES = 4.0
"""Units in the last place, of a narrower dtype, that a number may be off which needs no arithmetic there: a bias."""


@dataclass(frozen=True)
class Miss:
    """A case that a hypothesis does not explain, with the first array that shows it, in words."""

    case: str
    array: str
    message: str


class Evidence:
    """How well hypotheses fit each case of one subject.

    Args:
        runs: runs hypotheses.
        dtype: the subject's dtype.
        inside: the dtype in which it really computes, if that is another; the bounds are then those of this dtype.
    """

    def __init__(self, runs: Runs, dtype: str, inside: str | None = None) -> None:
        self.runs = runs
        self.inside = inside
        self.nearness = Nearness.of(UNIT_ROUNDOFF[inside or dtype], inside=inside is not None)
        self.wrong: Callable[[Observation], tuple[str, ...]] = cache(self._wrong)
        """The names of the arrays that are wrong in a case, in their order; empty if it passes."""
        self.whole: Callable[[Observation, tuple[Bug, ...]], bool] = cache(self._whole)
        """Whether the reference with these bugs gives all arrays that the subject exposes in a case."""
        self.explains: Callable[[Observation, tuple[Bug, ...]], bool] = cache(self._explains)
        """Whether these bugs explain a case."""

    def _wrong(self, observation: Observation) -> tuple[str, ...]:
        if self.inside is None:
            return tuple(mismatch.stage for mismatch in observation.mismatches)
        right = observation.wanted.trace.arrays()
        return tuple(
            name for name, array in observation.arrays.items() if not self.close(observation, name, right[name])
        )

    def _whole(self, observation: Observation, bugs: tuple[Bug, ...]) -> bool:
        arrays = self.runs.arrays(observation, bugs)
        if bugs and self.runs.is_unchanged(observation, arrays):
            return self.whole(observation, ())
        return self.alike(observation, arrays, observation.arrays)

    def _explains(self, observation: Observation, bugs: tuple[Bug, ...]) -> bool:
        if self.whole(observation, bugs):
            return True
        wrong, arrays = self.wrong(observation), self.runs.arrays(observation, bugs)
        if arrays is None:
            return not wrong  # where a bug can't be made, a right answer says nothing against it
        if len(observation.arrays) == 1:
            return False
        gradients = [name for name in observation.arrays if is_gradient(name)]
        return self._are_close(observation, ["output", *(gradients if "output" not in wrong else ())], arrays)

    def miss(self, observation: Observation, bugs: tuple[Bug, ...]) -> Miss:
        """The first array by which these bugs do not explain this case: the output, or a stage or gradient."""
        arrays = self.runs.arrays(observation, bugs)
        if arrays is None:
            return Miss(observation.case.id, "output", "where it cannot be made")
        names = sorted(observation.arrays, key=lambda name: name != "output")
        name = next(name for name in names if name not in arrays or not self.close(observation, name, arrays[name]))
        return Miss(observation.case.id, name, _difference(name, observation.arrays[name], arrays.get(name)))

    def others(self, observation: Observation, bugs: tuple[Bug, ...]) -> list[str]:
        """The names of arrays that these bugs give differently, in a case that they explain."""
        arrays = self.runs.arrays(observation, bugs)
        if arrays is None or self.whole(observation, bugs):
            return []
        return [name for name in observation.arrays if not self._are_close(observation, [name], arrays)]

    def changes(self, observation: Observation, bug: Bug) -> bool:
        """Whether a bug changes an array that the subject exposes, or can't be made here."""
        arrays = self.runs.arrays(observation, (bug,))
        if self.runs.is_unchanged(observation, arrays):
            return False
        return not self.alike(observation, arrays, observation.wanted.trace.arrays())

    def alike(
        self, observation: Observation, arrays: Mapping[str, NDArray] | None, others: Mapping[str, NDArray]
    ) -> bool:
        """Whether two runs agree in all arrays that the subject exposes."""
        return arrays is not None and all(
            name in arrays and self.close(observation, name, arrays[name], others[name]) for name in observation.arrays
        )

    def _are_close(self, observation: Observation, names: Sequence[str], arrays: Mapping[str, NDArray]) -> bool:
        return all(name in arrays and self.close(observation, name, arrays[name]) for name in names)

    def close(self, observation: Observation, name: str, array: NDArray, other: NDArray | None = None) -> bool:
        """Whether two arrays of one name are equal within rounding; the default for `other` is the subject's array."""
        other = observation.arrays[name] if other is None else other
        counts = observation.wanted.where if name == "scores" else None
        return self.nearness.near(array, other, self._bound(observation, name), counts)

    def _bound(self, observation: Observation, name: str) -> NDArray:
        if self.inside is None:
            return observation.wanted.allowed_error[name]
        own = np.abs(observation.wanted.trace.arrays()[name])
        rounding = LAST_PLACES * UNIT_ROUNDOFF[self.inside] * np.where(np.isfinite(own), own, 0.0)
        return expected(observation.case, Precision.of(self.inside)).allowed_error[name] + rounding


def _difference(name: str, own: NDArray, made: NDArray | None) -> str:
    """The place of the largest difference of two arrays, in words."""
    if made is None or own.shape != made.shape:
        shape = "nothing" if made is None else f"shape {made.shape}"
        return f"where {name} has shape {own.shape} and this gives {shape}"
    place = worst(own, made, 1.0).index
    return f"where {name}[{', '.join(map(str, place))}] is {own[place]:.6g} and this gives {made[place]:.6g}"


def inside_of(subject: Subject, observed: Sequence[Observation], deviating: Mapping[str, object]) -> str | None:
    """The dtype by whose errors the subject is judged, if it is narrower than its own.

    It gives numbers of that dtype alone; or it deviates from float64 as is listed, by no more than float32 errs.
    """
    inside = narrower([one.arrays["output"] for one in observed], subject.dtype)
    if subject.dtype != "float64":
        return inside
    listed = [one for one in observed if one.case.id in deviating]
    errs = bool(listed) and not any(map(Evidence(Runs(), subject.dtype, "float32").wrong, listed))
    return "float32" if inside or errs else None  # what rounds to less than float32 is a bug on top of that
