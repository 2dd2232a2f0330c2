"""Trials: layers with faults drawn at random, each made again by its id, such as 1-17 or 1-17x2."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.case import Case
from conformance.cases.problem import Problem
from conformance.cases.table import all_cases
from conformance.discovery import members
from conformance.judging.compare import ParityError, compare
from conformance.judging.expected import expected
from conformance.subjects.ask import CannotExpress, SubjectFailed, ask
from conformance.trials import parts
from conformance.trials.equivalent import further_stages
from conformance.trials.faults import BACKWARD, Dice, Fault
from conformance.trials.layer import View
from conformance.trials.parts.states import STATE
from conformance.trials.parts.words import Parts
from conformance.trials.problems import draw_problem
from conformance.trials.subject import FaultySubject, Limits, hooks_of, run_view
from mha_core import STAGES, SpecError

ID = re.compile(r"(\d{1,18})-(\d{1,18})(?:x([123]))?(g)?(r)?", re.ASCII)

EFFECT = 1e-7
"""The least relative difference of outputs that counts as a fault."""


GRADIENTS, STATES = "gradients", "states"
"""The modules of `parts` with wrong gradients, and with faults that only a second call shows."""

OFTENER = 6
"""Every other module is drawn this many times as often as STATES."""


LEAST = 1e-3
"""The least scale of an array in `distance`, relative to the largest number of all arrays."""


@dataclass(frozen=True)
class Trial:
    """A wrong layer, and what is wrong with it.

    Attributes:
        id: SEED-NUMBER, then "x2" or "x3" for two or three faults, "g" for wrong gradients, "r" for a restricted layer.
        faults: what is wrong.
        stages: the stages at which calling it the first wrong one is right.
        limits: the calls that the layer takes.
    """

    id: str
    faults: tuple[Fault, ...]
    stages: frozenset[str]
    limits: Limits = field(default_factory=Limits)

    @property
    def gradients(self) -> bool:
        """Whether it is about gradients."""
        return any(fault.is_backward for fault in self.faults)

    @property
    def stateful(self) -> bool:
        """Whether its calls differ, so that no model of one call describes it."""
        return any(fault.kind == STATE for fault in self.faults)

    @property
    def needs(self) -> tuple[str, ...]:
        """The features without which a fault does nothing."""
        return tuple(dict.fromkeys(name for fault in self.faults for name in fault.needs))

    @property
    def words(self) -> str:
        limits = [f"(it takes only: {self.limits.words})"] if self.limits.words else []
        return "\n".join([*(fault.words for fault in self.faults), *limits])

    @property
    def roundoff(self) -> float:
        return max(fault.roundoff for fault in self.faults)

    def subject(self) -> FaultySubject:
        """The layer as a subject that gives its output, and its gradients if the trial is about gradients."""
        return FaultySubject(self.faults, gradients=self.gradients, limits=self.limits, name=f"trial {self.id}")


@cache
def families() -> dict[str, Parts]:
    """Module of `parts` -> its families: name -> function that draws one of its faults."""
    found = {module.__name__.rpartition(".")[2]: module for module in members(parts) if hasattr(module, "parts")}
    return {name: module.parts() for name, module in sorted(found.items())}


@cache
def modules(gradients: bool) -> tuple[str, ...]:
    """The modules to draw from, all with the same chance; STATES stands once, every other one OFTENER times."""
    forward = [name for name in families() if name not in (GRADIENTS, STATES)]
    return (GRADIENTS,) if gradients else (*forward * OFTENER, STATES)


def make(seed: int, number: int, faults: int = 1, gradients: bool = False, restricted: bool = False) -> Trial:
    """One trial: the same one for the same arguments.

    Args:
        seed, number: which one.
        faults: how many faults it has, 1 to 3, of different families.
        gradients: whether they are wrong gradients of a layer whose output is right.
        restricted: whether the layer takes only some configs, sizes or masks, raises on odd inputs, or is slow.

    Raises:
        SpecError: a number is out of range.

    >>> make(1, 17).id, make(1, 17, faults=2).id
    ('1-17', '1-17x2')
    """
    if seed < 0 or number < 0 or faults not in (1, 2, 3):
        raise SpecError(
            f"a trial has a seed and a number from 0 on, and 1 to 3 faults. Got {seed}, {number}, {faults}."
        )
    id = f"{seed}-{number}" + (f"x{faults}" if faults > 1 else "") + "g" * gradients + "r" * restricted
    dice = Dice("trial", id)
    while True:
        drawn = _drawn(dice, faults, gradients)
        limits = draw_limits(dice) if restricted else Limits()
        if all_act(drawn) and shows(drawn, limits):
            return Trial(id, drawn, _first_stages(drawn, limits), limits)


def of_id(id: str) -> Trial:
    """The trial of this id. Raises SpecError if it is none.

    >>> of_id("2-5x3g").faults[0].stages
    frozenset({'gradients'})
    """
    found = ID.fullmatch(id)
    if found is None:
        raise SpecError(
            f"a trial is SEED-NUMBER, then x2 or x3 for more faults, g for gradients, r for limits: 1-17x2. Got {id!r}."
        )
    return make(int(found[1]), int(found[2]), int(found[3] or 1), gradients=bool(found[4]), restricted=bool(found[5]))


def _drawn(dice: Dice, faults: int, gradients: bool) -> tuple[Fault, ...]:
    chosen: list[Fault] = []
    while len(chosen) < faults:
        there = families()[dice.one_of(modules(gradients))]
        fault = there[dice.one_of(list(there))](dice)
        if any(fault.family == other.family for other in chosen) or (faults > 1 and fault.kind == STATE):
            continue
        chosen.append(fault)
    return tuple(chosen)


def arrays_of(faults: tuple[Fault, ...], problem: Problem, *, gradients: bool, calls: int = 0) -> dict[str, NDArray]:
    """What a layer with these faults gives in a problem: its output, or its gradients by "gradients.NAME"."""
    view = View(problem.config, problem.weights, problem.inputs, hooks_of(faults), calls)
    arrays = run_view(view, gradients=gradients).arrays()
    if gradients:
        del arrays["output"]
    return arrays


def distance(a: dict[str, NDArray], b: dict[str, NDArray]) -> float:
    """The largest difference of two results, by the largest number of its array in `b`; a NaN equals a NaN.

    The scale of an array is at least LEAST times the largest number of all: the gradient of the keys' bias, for one,
    is 0 but for rounding, and its own numbers are no scale.
    """
    worst, sizes = 0.0, {name: np.abs(array[np.isfinite(array)]).max(initial=0.0) for name, array in b.items()}
    least = LEAST * max(sizes.values(), default=0.0)
    for name, array in b.items():
        if not array.size:
            continue
        with any_numbers:
            apart = np.abs(a[name] - array)
        same = (a[name] == array) | (np.isnan(a[name]) & np.isnan(array))
        apart = np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
        worst = max(worst, float(apart.max() / (max(sizes[name], least) or 1.0)))
    return worst


def all_act(faults: tuple[Fault, ...]) -> bool:
    """Whether the layer changes if any one of the faults is taken out, in problems with the features they need."""
    gradients = faults[0].is_backward
    together = tuple(dict.fromkeys(name for fault in faults for name in fault.needs))
    calls = int(any(fault.kind == STATE for fault in faults))

    def acts(fault: Fault) -> bool:
        dice, others = Dice("problems", "acting", *together), tuple(one for one in faults if one is not fault)
        for _ in range(8):
            problem = draw_problem(dice, together)
            whole = arrays_of(faults, problem, gradients=gradients, calls=calls)
            if distance(whole, arrays_of(others, problem, gradients=gradients, calls=calls)) > EFFECT:
                return True
        return False

    return all(map(acts, faults))


def draw_limits(dice: Dice) -> Limits:
    """Random limits of a restricted layer."""
    kind = dice.number(0, 5)
    if kind == 0:
        return Limits(config=dice.one_of([case.config for case in all_cases() if not case.expensive]))
    if kind == 1:
        return Limits(batches=(2,), query_lens=(5,) if dice.chance(0.5) else None, key_lens=(7,))
    if kind == 2:
        kept = [name for name in ("lens", "allowed", "bias", "causal", "window", "past", "dropout") if dice.chance(0.4)]
        return Limits(masks=tuple(kept))
    if kind == 3:
        return Limits(odd=("zeros", "one key", "huge"))
    if kind == 4:
        return Limits(seconds=0.005)
    return Limits(key_lens=(4, 5, 6, 7, 8), masks=("lens", "causal"), odd=("zeros",))


def shows(faults: tuple[Fault, ...], limits: Limits) -> bool:
    """Whether a case of the suite shows the faults: a layer that is right in all cases has no fault to find."""
    if any(fault.kind == STATE for fault in faults):
        return True  # a repeated call shows them
    subject = FaultySubject(faults, gradients=faults[0].is_backward, limits=replace(limits, seconds=0.0))
    return any(_differs(subject, case) for case in all_cases() if not case.expensive)


def _differs(subject: FaultySubject, case: Case) -> bool:
    wanted = expected(case, subject.precision)
    try:
        compare(ask(subject, wanted.problem), wanted.trace, wanted.allowed_error, wanted.where, subject.dtype)
    except ParityError:
        return True
    except (CannotExpress, SubjectFailed):
        return False
    return False


def _first_stages(faults: tuple[Fault, ...], limits: Limits) -> frozenset[str]:
    order = (*STAGES, BACKWARD)
    each = [fault.stages | further_stages(fault, limits.config) for fault in faults]
    return frozenset(min(chosen, key=order.index) for chosen in product(*each))
