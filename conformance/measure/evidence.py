"""Evidence: what a probe's `propose` sees: the answers, the model's, and a subject that can be asked more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.faults import TROUBLE
from conformance.subjects.ask import CannotExpress
from conformance.zoo.bug import Bug
from conformance.zoo.variants import Variants
from mha_core.stages import Trace, is_gradient
from mha_core.weights import Weights

Arrays = Mapping[str, NDArray]


@dataclass(frozen=True)
class Asked:
    """Problem -> output; None if there is none.

    Args:
        answer: gives it.
        fixed: the weights that the subject has, if it takes no others.
    """

    answer: Callable[[Problem], NDArray | None]
    fixed: Weights | None = None

    def __call__(self, problem: Problem) -> NDArray | None:
        return self.answer(problem)


@dataclass(eq=False)
class Evidence:
    """One subject, one model of it, and the problems of one probe.

    Args:
        asker: asks the subject.
        variants: runs models.
        model: the bugs that explain all probes before this one.
        problems: those of this probe that the subject answered.
        gradients: whether this probe compares gradients.
        explained: whether one of the candidates so far explains all problems; a reading that costs much may be spared.
    """

    asker: Asker
    variants: Variants
    model: tuple[Bug, ...]
    problems: tuple[Problem, ...]
    gradients: bool = False
    explained: bool = False

    @property
    def got(self) -> Asked:
        """Problem -> the subject's output, float64; None if it refuses. It is asked once per Problem object."""
        return Asked(self.asker.output, self.asker.fixed_weights)

    @property
    def made(self) -> Asked:
        """Problem -> the model's output; None where the model can't be run."""
        return Asked(self._made, self.asker.fixed_weights)

    def got_all(self, problem: Problem) -> Arrays | None:
        """Every array that the subject shows, by name; gradients only if this probe compares them, "gradients.NAME"."""
        trace = self.asker.ask(problem, gradients=self.gradients)
        return None if trace is None else trace.arrays()

    def _made(self, problem: Problem) -> NDArray | None:
        arrays = self.made_all(problem)
        return None if arrays is None else arrays["output"]

    def made_all(self, problem: Problem) -> Arrays | None:
        """Every array of the model; gradients only if this probe compares gradients."""
        try:
            asked = self.asker.rounded(problem)
        except CannotExpress:
            return None
        return self.variants.run(asked, self.model, gradients=self.gradients) or None

    def right(self, problem: Problem) -> Arrays:
        """Every array of the definition."""
        return self.asker.wanted(problem, gradients=self.gradients).trace.arrays()

    def differing(self) -> Iterator[Problem]:
        """The problems that the model does not give."""
        for problem in self.problems:
            if not fits(self.asker, self.variants, problem, self.model, gradients=self.gradients):
                yield problem


def fits(
    asker: Asker, variants: Variants, problem: Problem, model: tuple[Bug, ...], *, gradients: bool = False
) -> bool:
    """Whether a model gives what the subject gives for a problem: its output, or with `gradients` its gradients.

    A model without bugs must be right within the bounds, as in the suite; another within `Asker.nearness`.
    """
    return all(good for _, good in _judged(asker, variants, problem, model, gradients=gradients))


def gives(asker: Asker, variants: Variants, problem: Problem, model: tuple[Bug, ...]) -> bool:
    """As `fits`; False where the model was measured in calls so unlike this one that it has no meaning here."""
    try:
        return fits(asker, variants, problem, model)
    except TROUBLE:
        return False


def agreeing(
    asker: Asker, variants: Variants, problem: Problem, model: tuple[Bug, ...], *, gradients: bool = False
) -> dict[str, bool]:
    """Name -> whether a model gives it as the subject does, as `fits` judges it: the output, or each gradient."""
    return dict(_judged(asker, variants, problem, model, gradients=gradients))


def _judged(
    asker: Asker, variants: Variants, problem: Problem, model: tuple[Bug, ...], *, gradients: bool
) -> Iterator[tuple[str, bool]]:
    """The items of `agreeing`, each judged when it is its turn."""
    if not (model or gradients):
        yield "output", asker.is_right(problem)
        return
    trace = asker.ask(problem, gradients=gradients)
    assert trace is not None
    arrays = _compared(trace, gradients=gradients)
    wanted = asker.wanted(problem, gradients=gradients)
    made: Arrays | None
    if model:
        made = variants.run(asker.rounded(problem), model, gradients=gradients)
    else:
        made = _compared(wanted.trace, gradients=gradients)
    allowed, near = wanted.allowed_error, asker.nearness.near
    for name, array in arrays.items():
        if not made or name not in made:
            yield name, False
        elif model:
            yield name, near(made[name], array, allowed[name])
        else:
            yield name, bool(np.all(_within(made[name], array, allowed[name])))


def _compared(trace: Trace, *, gradients: bool) -> Arrays:
    """What a probe compares of a trace, by name: its gradients, or its output alone."""
    if gradients:
        return {name: array for name, array in trace.arrays().items() if is_gradient(name)}
    assert trace.output is not None
    return {"output": trace.output}


def alike(evidence: Evidence, one: tuple[Bug, ...], other: tuple[Bug, ...]) -> bool:
    """Whether two models give the same arrays in a probe's problems."""
    for problem in evidence.problems:
        a, b = (
            evidence.variants.run(evidence.asker.rounded(problem), model, gradients=evidence.gradients)
            for model in (one, other)
        )
        if not a or not b:
            return False
        names = [name for name in a if is_gradient(name)] if evidence.gradients else ["output"]
        if not all(name in b and evidence.asker.nearness.near(a[name], b[name], 0.0) for name in names):
            return False
    return True


def _within(wanted: NDArray, array: NDArray, allowed: NDArray) -> NDArray:
    if wanted.shape != array.shape:
        return np.False_  # type: ignore[return-value]
    with any_numbers:
        near = np.abs(wanted - array) <= allowed
    return near | (wanted == array) | (np.isnan(wanted) & np.isnan(array))
