"""The search: probe after probe, the model of the subject grows by the bugs that each probe shows.

Probes isolate steps, the earliest and simplest first, so faults of several steps are met one at a time: a bug is
looked for among those of the zoo and those that were measured, given the bugs that earlier probes have shown. So the
work for several faults adds up and does not multiply. Of bugs that no probe so far can tell apart all are kept, up to
BEAM models, and later probes choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.faults import unwarned
from conformance.measure.outcome import Measured, Model, Outcome
from conformance.measure.probe import Probe
from conformance.measure.probes import all_probes
from conformance.measure.read.differences import own_gradients
from conformance.measure.search.behaviour import Behaviour, observe
from conformance.measure.search.model_search import BEAM, ModelSearch
from conformance.zoo.bug import Bug
from conformance.zoo.registry import all_bugs
from conformance.zoo.variants import Variants
from mha_core.stages import is_gradient


@dataclass(eq=False)
class Search:
    """One run of all probes on one subject.

    Args:
        asker: asks the subject.
        zoo: the bugs on file.
        progress: is told what is being done.
        on_file: whether only these are tried, one at a probe; then a probe that none of them explains ends it.
    """

    asker: Asker
    zoo: Sequence[Bug] = ()
    progress: Callable[[str], None] = lambda what: None
    variants: Variants = field(default_factory=Variants)
    on_file: bool = False
    _own: dict[Problem, bool | None] = field(default_factory=dict)
    _models: ModelSearch = field(init=False)

    def __post_init__(self) -> None:
        self._models = ModelSearch(self.asker, self.zoo, self.variants, self.on_file)

    @unwarned()
    def run(
        self,
        chosen: Sequence[Probe] | None = None,
        start: Sequence[Model] = ((),),
        suffices: Callable[[Sequence[Model]], bool] | None = None,
    ) -> Measured:
        """Run the probes.

        Args:
            chosen: which. Default: all.
            start: models from which to start: what is known already.
            suffices: whether models that give every answer are all that is looked for. If it is given, bugs on file are
                tried by themselves first, and only what they don't give is measured.
        """
        beam: list[Model] = list(start)
        self.progress("asking the same again")
        behaviour = observe(self.asker)
        if not behaviour.is_function:
            return Measured(tuple(beam), (), self.asker, behaviour)
        if behaviour.output is not None:
            beam += [(*model, behaviour.output) for model in beam]
        probes = all_probes() if chosen is None else chosen
        if suffices is not None and self.zoo:
            on_file = Search(self.asker, self.zoo, self.progress, self.variants, on_file=True, _own=self._own)
            found = on_file._probed(probes, beam, behaviour)
            if not found.unexplained and suffices(found.models):
                return found
        return self._probed(probes, beam, behaviour)

    def _probed(self, probes: Sequence[Probe], start: Sequence[Model], behaviour: Behaviour) -> Measured:
        """Every probe, one after the other; with `on_file`, up to one that is not explained."""
        beam: list[Model] = list(start)
        outcomes: list[Outcome] = []
        search = self._models
        for place, probe in enumerate(probes):
            search.later = [later for later in probes[place + 1 :] if not later.gradients]
            if probe.gradients and self.asker.hides_gradients:
                continue
            problems = self._answered(probe, beam)
            found = [model for model in beam if search.fits_all(model, problems, probe)]
            known = {bug.id for model in beam for bug in model}
            if not found and probe.gradients:
                problems = tuple(one for one in problems if not self._differentiated(one, beam))
                found = [model for model in beam if search.fits_all(model, problems, probe)]
            if not found:
                self.progress(f"probe {probe.id}")
                with self.asker.sparing():
                    found = [] if search.is_spent else search.grown(probe, beam, problems)
            if found:
                search.passed.append((probe, problems))
            else:
                search.unexplained(probe)
            beam = found[:BEAM] or beam
            added = dict.fromkeys(bug.id for model in beam for bug in model if bug.id not in known)
            differing = tuple(one for one in problems if not search.fits((), one, probe))
            outcomes.append(Outcome(probe, problems, differing, bool(found), tuple(added), self.asker.out_of_time))
            if self.on_file and not found:
                break
        return Measured(
            tuple(beam),
            tuple(self._explained_later(one, beam) for one in outcomes),
            self.asker,
            behaviour,
            tuple(search.troubles),
        )

    def _explained_later(self, outcome: Outcome, beam: Sequence[Model]) -> Outcome:
        """The outcome, explained if a bug that a later probe showed gives all answers of this one too."""
        if outcome.explained or not any(self._models.fits_all(model, outcome.asked, outcome.probe) for model in beam):
            return outcome
        return replace(outcome, explained=True)

    def _answered(self, probe: Probe, beam: Sequence[Model]) -> tuple[Problem, ...]:
        """The problems that it answers; of those that take long only as many as tell whether the models fit."""

        def as_expected(problem: Problem) -> bool | None:
            trace = self.asker.ask(problem, gradients=probe.gradients)
            if trace is None or (probe.gradients and not any(map(is_gradient, trace.arrays()))):
                return None
            return not self.asker.costs.slow or all(self._models.fits(model, problem, probe) for model in beam)

        return tuple(self.asker.answered(self.asker.made(probe.problems), as_expected, gradients=probe.gradients))

    def _differentiated(self, problem: Problem, beam: Sequence[Model]) -> bool:
        """Whether nothing is to be said of a problem's gradients: its outputs are wrong, and they may be theirs."""
        wrong = self._models.forward_unexplained or all(any(bug.forward for bug in model) for model in beam)
        if not wrong and self.asker.is_right(problem):
            return False
        trace = self.asker.ask(problem, gradients=True)
        assert trace is not None
        assert trace.gradients is not None
        if problem not in self._own:
            rounded = self.asker.rounded(problem)
            self._own[problem] = own_gradients(self.asker.output, rounded, trace.gradients, self.asker.unit)
        return self._own[problem] is not False


def measure(
    subject: object,
    *,
    start: Sequence[Model] = ((),),
    asker: Asker | None = None,
    zoo: Sequence[Bug] | None = None,
    probes: Sequence[Probe] | None = None,
    suffices: Callable[[Sequence[Model]], bool] = lambda models: True,
    progress: Callable[[str], None] = lambda what: None,
) -> Measured:
    """Run every probe on a subject.

    If bugs on file give every answer, nothing else is measured.

    Args:
        subject: anything with `prepare(config, weights) -> run(inputs) -> Trace`.
        start: models that are known to explain it elsewhere; probes tell them apart, and grow them.
        asker: asks it. Default: one with the default limits.
        zoo: the bugs on file. Default: all that differ from the definition.
        probes: which. Default: all.
        suffices: whether models of bugs on file that give every answer are all that is looked for.
        progress: is told what is being done.
    """
    known = [bug for bug in (all_bugs() if zoo is None else zoo) if not bug.equivalent]
    return Search(Asker(subject) if asker is None else asker, known, progress).run(probes, start, suffices)
