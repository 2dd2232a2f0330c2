"""View: what a probe's `propose` sees: the answers, those of the model so far, and a subject that can be asked more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.lab import Lab
from conformance.experiments.measured import TROUBLE
from conformance.subjects.ask import CannotExpress
from conformance.zoo.bug import Bug
from conformance.zoo.variants import Variants
from mha_core.stages import is_gradient
from mha_core.weights import Weights

Arrays = Mapping[str, NDArray]


@dataclass(frozen=True)
class Asked:
    """Problem -> output; None if there is none. `fixed`: the weights that the subject has, if it takes no others."""

    answer: Callable[[Problem], NDArray | None]
    fixed: Weights | None = None

    def __call__(self, problem: Problem) -> NDArray | None:
        return self.answer(problem)


@dataclass(eq=False)
class View:
    """One subject, one model of it, and the problems of one probe.

    Args:
        lab: asks the subject.
        variants: runs models.
        model: the bugs that explain all probes before this one.
        problems: those of this probe that the subject answered.
        gradients: whether this probe compares gradients.
        explained: whether one of the candidates so far explains all problems; a reading that costs much may be spared.
    """

    lab: Lab
    variants: Variants
    model: tuple[Bug, ...]
    problems: tuple[Problem, ...]
    gradients: bool = False
    explained: bool = False

    @property
    def got(self) -> Asked:
        """Problem -> the subject's output, float64; None if it refuses. It is asked once per Problem object."""
        return Asked(self.lab.output, self.lab.fixed_weights)

    @property
    def made(self) -> Asked:
        """Problem -> the model's output; None where the model can't be run."""
        return Asked(self._made, self.lab.fixed_weights)

    def got_all(self, problem: Problem) -> Arrays | None:
        """Every array that the subject shows, by name; gradients only if this probe compares them, "gradients.NAME"."""
        trace = self.lab.ask(problem, gradients=self.gradients)
        return None if trace is None else trace.arrays()

    def _made(self, problem: Problem) -> NDArray | None:
        arrays = self.made_all(problem)
        return None if arrays is None else arrays["output"]

    def made_all(self, problem: Problem) -> Arrays | None:
        """Every array of the model; gradients only if this probe compares gradients."""
        try:
            asked = self.lab.rounded(problem)
        except CannotExpress:
            return None
        return self.variants.run(asked, self.model, gradients=self.gradients) or None

    def right(self, problem: Problem) -> Arrays:
        """Every array of the definition."""
        return self.lab.wanted(problem, gradients=self.gradients).trace.arrays()

    def differing(self) -> Iterator[Problem]:
        """The problems that the model does not give."""
        for problem in self.problems:
            if not fits(self.lab, self.variants, problem, self.model, gradients=self.gradients):
                yield problem


def fits(lab: Lab, variants: Variants, problem: Problem, model: tuple[Bug, ...], *, gradients: bool = False) -> bool:
    """Whether a model gives what the subject gives for a problem: its output, or with `gradients` its gradients.

    A model without bugs must be right within the bounds, as in the suite; another within `Lab.nearness`.
    """
    return all(agreeing(lab, variants, problem, model, gradients=gradients).values())


def gives(lab: Lab, variants: Variants, problem: Problem, model: tuple[Bug, ...]) -> bool:
    """As `fits`; False where the model was measured in calls so unlike this one that it has no meaning here."""
    try:
        return fits(lab, variants, problem, model)
    except TROUBLE:
        return False


def agreeing(
    lab: Lab, variants: Variants, problem: Problem, model: tuple[Bug, ...], *, gradients: bool = False
) -> dict[str, bool]:
    """Name -> whether a model gives it as the subject does, as `fits` judges it: the output, or each gradient."""
    trace = lab.ask(problem, gradients=gradients)
    assert trace is not None
    arrays = trace.arrays()
    names = [name for name in arrays if is_gradient(name)] if gradients else ["output"]
    wanted = lab.wanted(problem, gradients=gradients)
    made: Arrays | None = wanted.trace.arrays()
    if model:
        made = variants.run(lab.rounded(problem), model, gradients=gradients)
    elif not gradients:
        return {"output": lab.is_right(problem)}
    if not made:
        return dict.fromkeys(names, False)
    allowed = wanted.allowed_error
    if not model:
        return {name: bool(np.all(_within(made[name], arrays[name], allowed[name]))) for name in names}
    near = lab.nearness.near
    return {name: name in made and near(made[name], arrays[name], allowed[name]) for name in names}


def alike(view: View, one: tuple[Bug, ...], other: tuple[Bug, ...]) -> bool:
    """Whether two models give the same arrays in a probe's problems."""
    for problem in view.problems:
        a, b = (view.variants.run(view.lab.rounded(problem), model, gradients=view.gradients) for model in (one, other))
        if not a or not b:
            return False
        names = [name for name in a if is_gradient(name)] if view.gradients else ["output"]
        if not all(name in b and view.lab.nearness.near(a[name], b[name], 0.0) for name in names):
            return False
    return True


def _within(wanted: NDArray, array: NDArray, allowed: NDArray) -> NDArray:
    if wanted.shape != array.shape:
        return np.False_  # type: ignore[return-value]
    with np.errstate(all="ignore"):
        near = np.abs(wanted - array) <= allowed
    return near | (wanted == array) | (np.isnan(wanted) & np.isnan(array))
