"""Bench: one problem that a subject answers otherwise than a model of it, and arrays put into that model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.designs import generic
from conformance.experiments.lab import Lab
from conformance.experiments.measured import around
from conformance.experiments.outcome import Model
from conformance.experiments.view import fits
from conformance.zoo.bug import Bug
from conformance.zoo.variants import Variants
from mha_core import AttentionConfig

OF_THE_EFFECT = 0.02
"""What may be left of a difference that is explained, in ordinary problems."""

ROUNDOFFS = 1e4
"""And of the largest number, in roundoffs."""

LARGE = 16.0
"""Factor on the values: those of a projection are not small, and what is cut off shows only in large ones."""


@dataclass(frozen=True, eq=False)
class Bench:
    """One problem that the subject answers otherwise than a model of it.

    Args:
        share: what may be left of a difference that is explained.
    """

    lab: Lab
    variants: Variants
    model: Model
    problem: Problem
    share: float = OF_THE_EFFECT

    def got(self, problem: Problem) -> NDArray | None:
        """The subject's output; None if it refuses."""
        return self.lab.output(problem)

    def made(self, problem: Problem, put: dict[str, NDArray] | None = None) -> NDArray | None:
        """The model's output, with other arrays in place of its own by the names of their steps."""
        return self.put(problem, put or {}).get("output")

    def arrays(self, problem: Problem) -> dict[str, NDArray]:
        """Every stage of the model."""
        return self.put(problem, {})

    def put(self, problem: Problem, put: dict[str, NDArray]) -> dict[str, NDArray]:
        """Every stage of the model, with other arrays in place of its own; none where it can't be run."""
        bugs = (_put(step, array) for step, array in put.items())
        return self.variants.run(self.lab.rounded(problem), (*self.model, *bugs)) or {}

    def near(self, a: NDArray | None, b: NDArray | None, effect: float = 0.0) -> bool:
        """Whether two arrays are equal but for rounding and a small part of an effect."""
        if a is None or b is None or a.shape != b.shape:
            return False
        counts: NDArray[np.bool_] = np.isfinite(a) & np.isfinite(b)
        if (np.isfinite(a) != np.isfinite(b)).any():
            return False
        size = float(np.abs(b[counts]).max(initial=0.0))
        allowed = max(ROUNDOFFS * self.lab.unit * size, self.share * effect)
        return bool((np.abs(a - b)[counts] <= allowed).all())

    def fits(self, problem: Problem) -> bool:
        """Whether the model gives what the subject gives."""
        return fits(self.lab, self.variants, problem, self.model)

    def is_of_matrices(self) -> bool:
        """Whether like calls of a layer without projections are right."""
        config, inputs, sizes = self.problem.config, self.problem.inputs, self.problem.sizes
        if not config.projections:
            return False
        plain = AttentionConfig(
            config.num_heads * config.head_dim,
            config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            value_head_dim=config.value_head_dim,
            score=config.score,
            softcap=config.softcap,
            dropout=config.dropout,
            projections=False,
        )
        for size in (1.0, LARGE):
            like = generic(
                plain,
                batch=sizes.batch,
                query_len=sizes.query_len,
                key_len=sizes.key_len - sizes.past_len,
                mask=inputs.mask,
                past_keys=inputs.past_keys,
                past_values=inputs.past_values,
                values=size,
            )
            if self.lab.ask(like) is None or not self.fits(like):
                return False
        return True

    def gives(self, put: dict[str, NDArray]) -> bool:
        """Whether the model with these arrays in place of its own gives the subject's output."""
        got, made = self.got(self.problem), self.made(self.problem)
        return self.near(self.made(self.problem, put), got, distance(got, made))


def _put(step: str, array: NDArray) -> Bug:
    """The bug by which a step gives this array."""
    return around(step, f"{step}-as-read", lambda state, beneath: array, "", "")


def distance(a: NDArray | None, b: NDArray | None) -> float:
    """The largest difference of two arrays."""
    return 0.0 if a is None or b is None else size_of(a - b)


def size_of(array: NDArray) -> float:
    """The largest finite number."""
    finite = array[np.isfinite(array)]
    return float(np.abs(finite).max(initial=0.0))
