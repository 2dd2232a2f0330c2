"""Target: the scores that were read off for one problem, and those that a model would give there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.changes.sample import Setting
from conformance.experiments.readings.queries import centred
from conformance.experiments.readings.weights import read_scores
from conformance.experiments.view import View
from conformance.zoo.bug import Bug, DoesNotApply, pipelines
from conformance.zoo.rerun import Reads, noted_run, rerun
from mha_core.reference.forward import FORWARD
from mha_core.reference.state import State

CLOSE = 1e-8
"""Most that a right model may be off, relative to the scores; more in coarser arithmetic."""

UP_TO_SCORES = tuple(FORWARD)[: tuple(FORWARD).index("scores") + 1]


@dataclass(eq=False)
class Target:
    """What was measured for one problem.

    Args:
        view: asks the subject, and has the model so far.
        problem: the problem.

    Attributes:
        measured: (B, H, Lq, Lk), scores less their mean over the keys; None if the subject refused.
        is_plain: whether the model so far has nothing wrong after the scores, so that they need no reading.
    """

    view: View
    problem: Problem
    measured: NDArray | None = field(init=False)
    is_plain: bool = field(init=False, default=False)
    _state: State = field(init=False, repr=False)
    _reads: Reads = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.measured = read_scores(self.view.got, self.problem)
        problem = self.view.lab.rounded(self.problem)
        inputs = replace(problem.inputs, cotangent=None)
        forward, _ = pipelines(*self.view.model)
        read = read_scores(self.view.made, self.problem)
        if read is None:
            self.measured = None
            return
        self._state, self._reads = noted_run(problem.config, problem.weights, inputs, forward=forward)
        direct = centred(self._state["scores"])
        self.is_plain = read.shape == direct.shape and bool(np.allclose(read, direct, rtol=1e-9, atol=1e-9))

    @property
    def state(self) -> State:
        """The model's arrays."""
        return self._state

    @property
    def setting(self) -> Setting:
        return Setting(self.problem.config, self.problem.sizes)

    @property
    def size(self) -> float:
        """The largest score that was measured."""
        assert self.measured is not None
        return float(np.nanmax(np.abs(self.measured), initial=0.0))

    def off(self, *bugs: Bug) -> NDArray | None:
        """What was measured less what the model with more bugs gives, flat; None where there is no such number."""
        made = self._made(bugs)
        if made is None or self.measured is None or made.shape != self.measured.shape:
            return None
        off: NDArray = (self.measured - made)[~np.isnan(self.measured)]
        return off if np.isfinite(off).all() else None

    def _made(self, bugs: tuple[Bug, ...]) -> NDArray | None:
        model = (*self.view.model, *bugs)
        try:
            if not self.is_plain:
                return read_scores(lambda one: self._output(one, model), self.problem)
            forward, _ = pipelines(*model)
            steps = {name: forward[name] for name in UP_TO_SCORES}
            state, _ = rerun(self._state, steps, {name for bug in bugs for name in bug.steps}, reads=self._reads)
            return centred(state["scores"])
        except (DoesNotApply, ValueError, IndexError):
            return None

    def _output(self, problem: Problem, model: tuple[Bug, ...]) -> NDArray | None:
        arrays = self.view.variants.run(self.view.lab.rounded(problem), model)
        return arrays["output"] if arrays else None

    def is_given_by(self, *bugs: Bug) -> bool:
        """Whether the model with more bugs gives what was measured."""
        off = self.off(*bugs)
        return off is not None and float(np.abs(off).max(initial=0.0)) <= self.enough

    @property
    def enough(self) -> float:
        """How much a right model may be off."""
        return max(CLOSE, 2e3 * self.view.lab.unit) * self.size


def targets(view: View, problems: Iterable[Problem]) -> list[Target]:
    """One for each layer, of the first of its problems that the model does not give."""
    found: list[Target] = []
    for problem in problems:
        if all(problem.config != one.problem.config for one in found):
            target = Target(view, problem)
            if target.measured is not None and target.off() is not None and not target.is_given_by():
                found.append(target)
    return found
