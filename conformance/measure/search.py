"""The search: one bug, or two, of the zoo or measured, that give every answer.

The isolating problems are asked in their order, so faults of several steps are met one at a time. At the first one that
differs, each bug of the zoo is tried, and the changes that are fitted to the arrays solved for there. If none of those
that give it gives everything, the likeliest are kept, and one bug more is looked for at the next one that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.behaviour import Behaviour, observe
from conformance.measure.changes import fit
from conformance.measure.evidence import Evidence, gives
from conformance.measure.faults import TROUBLE, Model, is_measured, only_in, unwarned
from conformance.measure.places import PLACES, fault
from conformance.measure.probes import PROBES, Probe
from conformance.measure.readings import readings
from conformance.measure.sample import Setting
from conformance.measure.solve import samples_of
from conformance.measure.where import conditions_of
from conformance.zoo.bug import Bug
from conformance.zoo.variants import Variants
from mha_core.stages import is_gradient

MOST_BUGS, KEPT, CONDITIONS = 2, 8, 3
"""Bugs of a model, models that are extended by another bug, conditions that are tried for one bug."""


@dataclass(frozen=True)
class Outcome:
    """What came of one row of problems.

    Attributes:
        probe: which.
        asked: the problems that the subject answered; none if it refused all of them.
        differing: of these, those in which it is not the definition.
    """

    probe: Probe
    asked: tuple[Problem, ...]
    differing: tuple[Problem, ...]


@dataclass(frozen=True)
class Measured:
    """The result of all problems on one subject.

    Attributes:
        models: those that give every answer.
        outcomes: of each row of problems, in their order.
        asker: whom was asked what.
        behaviour: whether it is a function. If it is none, no problem was asked.
        against: of models that were known to explain it elsewhere and do not give every answer, the first row that
            tells so.
    """

    models: tuple[Model, ...]
    outcomes: tuple[Outcome, ...]
    asker: Asker
    behaviour: Behaviour = field(default_factory=Behaviour)
    against: Outcome | None = None

    @property
    def first(self) -> Outcome | None:
        """The first row in which it differs from the definition."""
        return next((outcome for outcome in self.outcomes if outcome.differing), None)


@dataclass(eq=False)
class Search:
    """One search.

    Args:
        asker: asks the subject.
        zoo: the bugs on file.
        suffices: whether a model gives what else is known.
        progress: is told what is being done.
    """

    asker: Asker
    zoo: Sequence[Bug]
    suffices: Callable[[Model], bool] = lambda model: True
    progress: Callable[[str], None] = lambda what: None
    variants: Variants = field(default_factory=Variants)
    outcomes: tuple[Outcome, ...] = ()

    @unwarned()
    def run(self, start: Sequence[Model] = (), probes: Sequence[Probe] = PROBES) -> Measured:
        """Ask the problems, and look for what gives all answers; models of `start` that do are all that is wanted."""
        self.progress("asking the same again")
        behaviour = observe(self.asker)
        if not behaviour.is_function:
            return Measured((), (), self.asker, behaviour)
        self.progress("asking problems that isolate steps")
        self.outcomes = tuple(self._asked(probe) for probe in probes)
        if behaviour.shared:
            return Measured((), self.outcomes, self.asker, behaviour)
        found = [model for model in start if self._against(model) is None]
        against = self._against(start[0]) if start and not found else None
        models = found or self._found()
        return Measured(tuple(models), self.outcomes, self.asker, behaviour, against)

    def _asked(self, probe: Probe) -> Outcome:
        """Ask the problems of a row; of a subject whose calls take long the others only if the first one differs."""
        asked: list[Problem] = []
        differing: list[Problem] = []
        for problem in self.asker.made(probe.problems):
            if asked and not differing and self.asker.slow:
                break
            trace = self.asker.ask(problem, gradients=probe.gradients)
            if trace is None or (probe.gradients and not any(map(is_gradient, trace.arrays()))):
                continue
            asked.append(problem)
            if not self._gives((), probe, problem):
                differing.append(problem)
            if probe.gradients and self.asker.hides_gradients:
                break
        return Outcome(probe, tuple(asked), tuple(differing))

    def _gives(self, model: Model, probe: Probe, problem: Problem) -> bool:
        return gives(self.asker, self.variants, problem, model, gradients=probe.gradients)

    def _fits(self, model: Model, outcome: Outcome) -> bool:
        order = (*outcome.differing, *(one for one in outcome.asked if one not in outcome.differing))
        return all(self._gives(model, outcome.probe, problem) for problem in order)

    def _against(self, model: Model) -> Outcome | None:
        """Return the first row that a model does not give; a wrong forward bug's gradients are not held against it."""
        forward = any(bug.forward for bug in model)
        rows = (one for one in self.outcomes if not (one.probe.gradients and forward))
        return next((one for one in rows if not self._fits(model, one)), None)

    def _found(self) -> list[Model]:
        """Return the models of one bug, else of two, that give every answer."""
        bases: list[Model] = [()]
        for size in range(1, MOST_BUGS + 1):
            self.progress(f"trying {'a bug' if size == 1 else 'two bugs'}")
            partly: list[tuple[int, Model]] = []
            whole: list[Model] = []
            for base in bases:
                for model in self._extended(base):
                    if self._against(model) is None and self.suffices(model):
                        whole.append(model)
                    else:
                        partly.append((self._right(model), model))
                if whole:
                    return whole
            partly.sort(key=lambda one: -one[0])
            bases = [model for _, model in partly[:KEPT]]
        return []

    def _right(self, model: Model) -> int:
        """Return in how many rows a model gives the first problem that differs, or the first of all."""
        rows = [one for one in self.outcomes if one.asked and not one.probe.gradients]
        return sum(self._gives(model, one.probe, (*one.differing, *one.asked)[0]) for one in rows)

    def _extended(self, base: Model) -> Iterator[Model]:
        """Yield the models with one bug more that give the first row that `base` does not, and all before it."""
        outcome = self._against(base)
        if outcome is None:
            return
        before = [one for one in self.outcomes[: self.outcomes.index(outcome)] if one.asked]
        seen: set[str] = {bug.id for bug in base}
        for candidates in (self.zoo, self._measured(base, outcome)):
            for bug in candidates:
                if bug.id in seen or not self._fits((*base, bug), outcome):
                    continue
                seen.add(bug.id)
                broken = [one for one in before if not self._fits((*base, bug), one)]
                if not broken:
                    yield (*base, bug)
                if broken or self._against((*base, bug)) is not None:
                    yield from self._conditioned(base, bug, outcome)

    def _conditioned(self, base: Model, bug: Bug, outcome: Outcome) -> Iterator[Model]:
        """Yield the models with a bug in calls like those that differ alone, told by those that it would break."""
        wrong, right = [], []
        for one in self.outcomes:
            for problem in one.asked if not one.probe.gradients else ():
                if self._gives(base, one.probe, problem):
                    if not self._gives((*base, bug), one.probe, problem):
                        right.append(Setting.of(problem))
                elif self._gives((*base, bug), one.probe, problem):
                    wrong.append(Setting.of(problem))
        for where in list(conditions_of(wrong, right))[:CONDITIONS]:
            model = (*base, only_in(bug, where))
            if self._fits(model, outcome):
                yield model

    def _measured(self, base: Model, outcome: Outcome) -> Iterator[Bug]:
        """Yield the changes fitted to what is solved for at each place of a row, and what is read of it."""
        if outcome.probe.gradients:
            return
        evidence = Evidence(self.asker, self.variants, base)
        try:
            yield from readings(evidence, outcome.probe, self._differing(base, outcome))
            for place in (PLACES[id] for id in outcome.probe.places.split()):
                for problems in (outcome.asked, self._differing(base, outcome)):
                    found = fit(samples_of(evidence, _one_of_each(problems), place), place.gauge)
                    yield from (fault(place, change) for change in found)
                    if found:
                        break
        except TROUBLE:  # numbers that can't be read tell nothing
            return

    def _differing(self, base: Model, outcome: Outcome) -> list[Problem]:
        return [one for one in outcome.asked if not self._gives(base, outcome.probe, one)]


def _one_of_each(problems: Iterable[Problem]) -> list[Problem]:
    """Return at most two problems of each layer: a fault is read in few, and tried in all."""
    count: dict[object, int] = {}
    found = []
    for problem in problems:
        count[problem.config] = count.get(problem.config, 0) + 1
        if count[problem.config] <= 2:
            found.append(problem)
    return found


def measure(
    subject: object,
    *,
    start: Sequence[Model] = (),
    asker: Asker | None = None,
    zoo: Sequence[Bug] = (),
    probes: Sequence[Probe] = PROBES,
    suffices: Callable[[Model], bool] = lambda model: True,
    progress: Callable[[str], None] = lambda what: None,
) -> Measured:
    """Return what the isolating problems show of a subject, and the bugs that give all its answers.

    Args:
        subject: anything with `prepare(config, weights) -> run(inputs) -> Trace`.
        start: models that are known to explain it elsewhere; if one of them gives every answer, nothing else is tried.
        asker: asks it. Default: one with the default limits.
        zoo: the bugs on file.
        probes: which rows of problems.
        suffices: whether a model gives what else is known of the subject.
        progress: is told what is being done.
    """
    return Search(Asker(subject) if asker is None else asker, zoo, suffices, progress).run(start, probes)


__all__ = ["Measured", "Outcome", "Search", "is_measured", "measure"]
