"""Scores without a mask: queries against keys, their scale, and which key head a query head reads.

Ratios of weights tell differences of scores, whatever the softmax divides by:

    log a_ij - log a_ik = s_ij - s_ik
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.changes.expressions import Expression, expressions_of
from conformance.experiments.changes.fit import ratio
from conformance.experiments.changes.sample import Sample, Setting
from conformance.experiments.designs import NO_BIASES, generic
from conformance.experiments.lab import Lab
from conformance.experiments.measured import on_step
from conformance.experiments.probe import Probe
from conformance.experiments.readings.weights import read_scores
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from mha_core.reference.state import State

AXES = ("item", "head", "query", "key")


def samples_of_scores(view: View) -> list[Sample]:
    """The scores of each problem less their mean over the row, as measured and as the model gives them."""
    found = []
    for problem in view.problems:
        measured, expected = read_scores(view.got, problem), read_scores(view.made, problem)
        if measured is not None and expected is not None:
            setting = Setting(problem.config, problem.sizes)
            found.append(Sample(measured, expected, AXES, setting, unit=100 * view.lab.unit))
    return found


def _scale(view: View) -> Iterator[Bug]:
    """Scores times another factor."""
    samples = samples_of_scores(view)
    numbers = [(ratio(sample), sample.setting) for sample in samples]
    for expression in expressions_of(numbers, unit=100 * view.lab.unit):
        first = samples[0]
        scale = first.setting.config.softmax_scale
        yield on_step(
            "similarity",
            f"similarity-times-{expression.words.replace(' ', '')}",
            _times(expression),
            f"Scores are {expression.words} times the definition's: multiplied by {numbers[0][0] * scale:.4g} where "
            f"{scale:.4g} was expected.",
            "Multiply queries @ keys^T by the config's softmax_scale once.",
        )


def _times(expression: Expression) -> Callable[[State, NDArray], NDArray]:
    return lambda state, array: array * expression.at(setting_of(state))


def setting_of(state: State) -> Setting:
    return Setting(state.config, state.sizes)


def _generic(lab: Lab) -> Sequence[Problem]:
    return [generic(config, weights=NO_BIASES) for config in lab.configs]


PROBES = (
    Probe(
        "scores",
        "Queries and keys without biases or mask: the bilinear form of the scores.",
        r"\log a_{ij} - \log a_{ik} = c\, q_i^\top (k_j - k_k)",
        _generic,
        _scale,
    ),
)
