"""Weighed: weights that were read, beside what they should have been made of; and the bug of another softmax."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.measure.evidence import Evidence
from conformance.measure.faults import bug_of
from conformance.measure.grammar.sample import Sample, Setting
from conformance.measure.places import FIX
from conformance.measure.read.weights import AXES, read_weights
from conformance.measure.softmax.scored import Make, Scored
from conformance.zoo.bug import Bug
from mha_core.reference.state import State, Step


def softmax_bug(slug: str, make: Make, sentence: str, *, excluded: bool = False) -> Bug:
    """A bug that makes other weights of the scores. With `excluded`, excluded keys get what it makes for them too."""

    def change(state: State, beneath: Step) -> NDArray:
        weights: NDArray = beneath(state)
        if not state["scores"].size:  # nothing to normalise
            return weights

        def softmax(scores: NDArray) -> NDArray:
            found: NDArray = beneath(replace(state, arrays={**state.arrays, "scores": scores}))
            return found

        scored = Scored(state["scores"], state["allowed"], weights, Setting.of(state), softmax)
        with any_numbers:
            return scored.kept(make(scored), excluded=excluded)

    return bug_of(f"softmax-{slug}{'-of-all' if excluded else ''}", sentence, FIX["weights"], "weights", change)


@dataclass(frozen=True, eq=False)
class Weighed:
    """Measured weights (B, H, Lq, Lk) and what they should have been made of.

    Args:
        sample: the weights as measured, and as the model gives them, in the places where they are in the model.
        scored: the scores of the model.
    """

    sample: Sample
    scored: Scored

    @property
    def lost(self) -> NDArray[np.bool_]:
        """Where a key has the weight 0 that has another in the model."""
        return (self.sample.measured == 0.0) & self.scored.allowed & (self.scored.weights > 0.0)

    def off(self, made: NDArray) -> NDArray:
        """What is missing from `made` to the measured weights; NaN where there is none counts as 0."""
        with any_numbers:
            distance = np.where(self.sample.known & (made != self.sample.measured), made - self.sample.measured, 0.0)
        return np.where(np.isnan(distance), np.inf, distance).ravel()

    def of_head(self, head: int) -> Weighed:
        """Those of one head alone."""
        one, s = slice(head, head + 1), self.sample
        sample = replace(s, measured=s.measured[:, one], expected=s.expected[:, one], least=s.tolerance)
        allowed = np.broadcast_to(self.scored.allowed, self.scored.scores.shape)[:, one]
        return Weighed(sample, Scored.right(self.scored.scores[:, one], allowed, self.scored.setting))

    def made(self, make: Make) -> NDArray:
        with any_numbers:
            return self.scored.kept(make(self.scored))

    def is_given_by(self, made: NDArray) -> bool:
        return made.shape == self.sample.measured.shape and bool(
            (np.abs(self.off(made)) <= self.sample.tolerance).all()
        )


def weighed(evidence: Evidence, problems: Iterable[Problem]) -> list[Weighed]:
    """The weights of each problem that can be read off."""
    found: list[Weighed] = []
    unit = min(max(1e-14, 10.0 * evidence.asker.unit), 2e-5)
    for problem in problems:
        made, measured = evidence.made_all(problem), read_weights(evidence.got, problem)
        expected = read_weights(evidence.made, problem)
        if made is None or measured is None or expected is None or not np.isfinite(measured).all():
            continue
        if np.allclose(expected, made["weights"], rtol=1e-6, atol=1e-9, equal_nan=True):
            setting = Setting.of(problem)
            scored = Scored.right(made["scores"], problem.allowed(), setting)
            found.append(Weighed(Sample(measured, made["weights"], AXES, setting, unit), scored))
    return found
