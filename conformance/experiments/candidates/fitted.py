"""Changes that were fitted to what was read off, as bugs of every step or parameter that they may be of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.candidates.steps import PLACES, change_of_parameter, change_on
from conformance.experiments.changes.fit import fit
from conformance.experiments.changes.sample import Sample, Setting
from conformance.experiments.readings.weights import Answer
from conformance.experiments.view import View
from conformance.zoo.bug import Bug

Reading = Callable[[Answer, Problem], "NDArray | None"]


def samples_by(view: View, reading: Reading, axes: tuple[str, ...]) -> list[Sample]:
    """What is read of the subject beside what is read of the model, for each problem that both answer."""
    found = []
    for problem in view.problems:
        measured = reading(view.got, problem)
        expected = None if measured is None else reading(view.made, problem)
        if measured is not None and expected is not None:
            setting = Setting(problem.config, problem.sizes)
            found.append(Sample(measured, expected, axes, setting, unit=100 * view.lab.unit))
    return found


def fitted_steps(view: View, reading: Reading, axes: tuple[str, ...], steps: Iterable[str] = PLACES) -> Iterator[Bug]:
    """Every change that is read off, on each of the steps: later probes tell on which it is."""
    samples = samples_by(view, reading, axes)
    changes = fit(samples) if samples else []
    for change in changes:
        for step in steps:
            yield change_on(step, change)


def fitted_parameter(view: View, reading: Reading, axes: tuple[str, ...], name: str) -> Iterator[Bug]:
    """Every change of a parameter that is read off."""
    samples = samples_by(view, reading, axes)
    for change in fit(samples) if samples else []:
        yield change_of_parameter(name, change)


def output_of(answer: Answer, problem: Problem) -> NDArray | None:
    """The output itself, as a reading."""
    return answer(problem)
