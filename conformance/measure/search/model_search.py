"""What the answers to one more probe add to the models: a bug more, or two or three, of what is tried."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.designs import generic
from conformance.measure.evidence import Evidence, agreeing, alike, fits, gives
from conformance.measure.faults import TROUBLE, is_measured, only_at
from conformance.measure.grammar.sample import Setting
from conformance.measure.grammar.where import conditions_of
from conformance.measure.outcome import Model
from conformance.measure.probe import Probe
from conformance.measure.probes import all_probes
from conformance.measure.propose.equivalent_calls import revisions
from conformance.measure.propose.steps import anywhere
from conformance.measure.search.ranking import distinct
from conformance.zoo.bug import Bug
from conformance.zoo.variants import Variants
from mha_core.errors import one_line

BEAM = 12
"""Most models that are followed at once."""

AT_ONCE = 3
"""Most bugs that one probe may add."""

MOST_TRIED_HERE, MOST_TRIED, MOST_RUNS = 10_000, 30_000, 60_000
"""Most runs of candidates at one probe, and at all of them; and of models, whatever for: some 12 s of the processor."""

MOST_TRIED_IN_VAIN = 8_000
"""Most runs at all probes after one that nothing explained: that step shows in most of them."""

MOST_RANKED, MOST_RANKINGS = 120, 4000
"""Most models of which it is asked which are the likeliest, and most runs for that."""

MOST_CURVED = 8
"""Earlier problems used to fit a change of one step that would replace the last bug."""

MOST_BUGS, MOST_TURNS, MOST_LOOKS, MOST_CONDITIONED = 3, 4, 12, 12
"""Bugs of a model for which any place is looked at, how often, and how often for all models; models whose last bug is
limited to some calls."""

PARTLY, PARTLY_OF_GRADIENTS = 6, 3
"""Most candidates that explain a part of a probe's problems and are extended by another bug. In probes of gradients
each array counts by itself, so the first ones are mostly right."""


@dataclass(eq=False)
class ModelSearch:
    """Grows models, probe after probe.

    Args:
        asker: asks the subject.
        zoo: the bugs on file.
        variants: runs models.
        on_file: whether only the bugs on file are tried, one at a probe.

    Attributes:
        passed: the probes so far that a model explains, with what was asked.
        later: the forward probes that are still to come.
        left: how many runs of candidates are left.
        forward_unexplained, gradients_unexplained: whether some probe of these was not explained.
        troubles: of candidates that could not be made or run.
    """

    asker: Asker
    zoo: Sequence[Bug]
    variants: Variants
    on_file: bool = False
    passed: list[tuple[Probe, tuple[Problem, ...]]] = field(default_factory=list)
    later: Sequence[Probe] = ()
    left: int = MOST_TRIED
    forward_unexplained: bool = False
    gradients_unexplained: bool = False
    troubles: dict[str, None] = field(default_factory=dict)
    _left_here: int = 0
    _turns: dict[Model, int] = field(default_factory=dict)
    _looks: int = MOST_LOOKS

    def unexplained(self, probe: Probe) -> None:
        """Notes that nothing explains a probe: less is tried from here on, for that step shows in most others."""
        if probe.gradients:
            self.gradients_unexplained = True
            return
        self.forward_unexplained = True
        self.left = min(self.left, MOST_TRIED_IN_VAIN)

    @property
    def is_spent(self) -> bool:
        return self.variants.runs >= MOST_RUNS

    def fits(self, model: Model, problem: Problem, probe: Probe) -> bool:
        return fits(self.asker, self.variants, problem, model, gradients=probe.gradients)

    def _agreeing(self, model: Model, problem: Problem, probe: Probe) -> list[bool]:
        return list(agreeing(self.asker, self.variants, problem, model, gradients=probe.gradients).values())

    def fits_all(self, model: Model, problems: Iterable[Problem], probe: Probe) -> bool:
        return all(self.fits(model, problem, probe) for problem in problems)

    def grown(self, probe: Probe, beam: Sequence[Model], problems: tuple[Problem, ...]) -> list[Model]:
        """Models of the beam with one bug more that give every problem of this probe; or with two, or three.

        A bug that an earlier probe added may have been the wrong one of those that nothing told apart: so models from
        before it are extended as well, by bugs that explain all the earlier probes too.
        """
        self._left_here = min(MOST_TRIED_HERE, self.left)
        if limited := self._limited(probe, beam, problems):
            return self._likeliest(distinct(limited))
        bases = list(beam)
        earlier = [base for base in dict.fromkeys(model[:-1] for model in beam if model) if base not in beam]
        arrays = sum(len(self._agreeing((), problem, probe)) for problem in problems)
        # What nothing explained was not explained by two bugs, and is in the later probes too.
        in_vain = self.gradients_unexplained if probe.gradients else self.forward_unexplained
        in_vain |= self.on_file
        rounds = 1 if in_vain else AT_ONCE
        if curved := [model for base in earlier for model in self._curved(probe, base, problems)]:
            return distinct(curved)
        for size in range(rounds):
            whole: list[Model] = []
            partly: list[tuple[int, Model]] = []
            helpful: list[tuple[Model, list[Model]]] = []
            broken: list[Model] = []
            evidence = Evidence(self.asker, self.variants, (), problems, probe.gradients)
            for base in (*bases, *(earlier if size == 0 else ())):
                # What helps one of several models that give the same here is what helps the others.
                only = next((bugs for other, bugs in helpful if alike(evidence, other, base)), None)
                if only is None and helpful and self._left_here <= 0:  # then what helps the others at least
                    only = [bugs for _, others in helpful for bugs in others]
                extended = list(self._extended(probe, base, problems, only))
                if only is None:
                    helpful.append((base, [bugs[len(base) :] for bugs, _ in extended]))
                for bugs, right in extended:
                    if right < arrays:
                        partly.append((right, bugs))
                    elif self._fits_passed(bugs):
                        whole.append(bugs)
                    elif base not in earlier:
                        broken.append(bugs)
            whole += [one for model in broken[:MOST_CONDITIONED] for one in self._conditioned(model, probe, problems)]
            whole = whole or [model for base in bases for model in self._curved(probe, base, problems)] or broken
            if whole:
                return self._likeliest(distinct(whole))
            partly.sort(key=lambda one: -one[0])
            bases = [model for _, model in partly[: PARTLY_OF_GRADIENTS if probe.gradients else PARTLY]]
        return []

    def _curved(self, probe: Probe, base: Model, problems: tuple[Problem, ...]) -> Iterator[Model]:
        """Extensions by a function of one step; of a model that does not explain what is passed, those that do."""
        if probe.gradients or self.on_file:
            return
        passed = (one for before, there in self.passed for one in there if not self.fits(base, one, before))
        evidence = Evidence(self.asker, self.variants, base, (*problems, *islice(passed, MOST_CURVED)))
        if len(base) > MOST_BUGS or self._turns.get(base, 0) >= MOST_TURNS or self._looks <= 0:
            return
        self._turns[base], self._looks = self._turns.get(base, 0) + 1, self._looks - 1
        for bug in anywhere(evidence, list(islice(evidence.differing(), 3))):
            if self._explains((*base, bug), probe, problems, passed=evidence.problems != problems):
                yield (*base, bug)

    def _limited(self, probe: Probe, beam: Sequence[Model], problems: tuple[Problem, ...]) -> list[Model]:
        """Models of the beam with one of their bugs in some calls alone, that give all so far."""
        if probe.gradients or self.on_file:
            return []
        views = (Evidence(self.asker, self.variants, base, problems) for base in beam)
        revised = (model for evidence in views for model in revisions(evidence.model, next(evidence.differing())))
        return [model for model in revised if self._explains(model, probe, problems)]

    def _conditioned(self, model: Model, probe: Probe, problems: tuple[Problem, ...]) -> Iterator[Model]:
        """A model that gives a probe's problems and breaks earlier ones: its last bug in calls like these alone."""
        if probe.gradients or not is_measured(model[-1]):
            return
        wrong = [Setting.of(one) for one in problems if not self.fits(model[:-1], one, probe)]
        asked = [(one, before) for before, there in self.passed for one in there]
        right = [Setting.of(one) for one, before in asked if not self._explains(model, before, (one,), passed=False)]
        for where in islice(conditions_of(wrong, right), 4):
            limited = only_at(model[-1], where)
            if limited is not None and self._explains((*model[:-1], limited), probe, problems):
                yield (*model[:-1], limited)

    def _explains(self, model: Model, probe: Probe, problems: tuple[Problem, ...], *, passed: bool = True) -> bool:
        """Whether a model gives a probe's problems, and if asked for those of every probe so far."""
        try:
            return self.fits_all(model, problems, probe) and (not passed or self._fits_passed(model))
        except TROUBLE:
            return False

    def _fits_passed(self, model: Model) -> bool:
        """Whether a model explains every probe so far; the latest are the likeliest to tell it apart."""
        return all(self.fits_all(model, problems, probe) for probe, problems in reversed(self.passed))

    def _likeliest(self, models: list[Model]) -> list[Model]:
        """The models; if there are more than can be followed, those first that give most plain calls and later probes.

        A step that is wrong in the right way gives all calls in which no other fault acts; one that only looks alike in
        the problems of one probe gives few.
        """
        if len(models) <= BEAM or self.asker.costs.slow:
            return models
        later = (one for probe in self.later for one in self.asker.made(probe.problems)[:1])
        asked = self.asker.nearest([*map(generic, self.asker.configs), *later])
        answered = [one for one in asked if self.asker.output(one) is not None]
        telling = [one for one in answered if not self.asker.is_right(one)]
        most = min(MOST_RANKED, MOST_RANKINGS // max(1, len(telling)))
        right = {model: sum(gives(self.asker, self.variants, one, model) for one in telling) for model in models[:most]}
        return [*sorted(models[:most], key=lambda model: -right[model]), *models[most:]]

    def _extended(
        self, probe: Probe, base: Model, problems: tuple[Problem, ...], only: Sequence[Model] | None = None
    ) -> Iterator[tuple[Model, int]]:
        """Each extension of a model that explains more of the problems' arrays than it, and how many it explains.

        The arrays are the outputs, or all gradients: of two wrong steps of one problem the first may explain some.
        With `only`, these are the extensions that are tried.
        """
        before = [self._agreeing(base, problem, probe) for problem in problems]
        explained = sum(map(sum, before))
        # The differing ones first: nearly all candidates are dropped there.
        order = sorted(range(len(problems)), key=lambda index: all(before[index]))
        evidence = Evidence(self.asker, self.variants, base, problems, probe.gradients)
        tried: set[str] = {bug.id for bug in base}
        for proposed in chain(self.zoo, self._proposed(probe, evidence)) if only is None else only:
            bugs = proposed if isinstance(proposed, tuple) else (proposed,)
            name = "+".join(bug.id for bug in bugs)
            if name in tried or (probe.gradients and any(bug.forward for bug in bugs)):
                continue  # what is wrong in the forward direction was looked for by the outputs
            tried.add(name)
            model = (*base, *bugs)
            right, left = 0, sum(map(len, before))
            if (only is None and self._left_here <= 0) or self.is_spent:
                return
            for index in order:
                self._left_here, self.left = self._left_here - 1, self.left - 1
                try:
                    now = self._agreeing(model, problems[index], probe)
                except TROUBLE as error:
                    self.troubles[f"{name}: {one_line(error)}"] = None
                    right = -1
                    break
                right, left = right + sum(now), left - len(now)
                broken = any(old and not new for old, new in zip(before[index], now, strict=True))
                if broken or right + left <= explained:  # it breaks what was explained, or can't explain more
                    right = -1
                    break
            if right > explained:
                evidence.explained |= right == sum(map(len, before))
                yield model, right

    def _proposed(self, probe: Probe, evidence: Evidence) -> Iterator[Bug | tuple[Bug, ...]]:
        """What those propose whose candidates are tried everywhere, which are few; and what the probe proposes."""
        if self.on_file:
            return
        others = [] if probe.gradients else [one for one in all_probes() if one.propose is not probe.propose]
        first = [other for other in others if other.everywhere == "first" and not self.asker.costs.slow]
        last = [other for other in others if other.everywhere and other not in first]
        for one in (*first, probe, *last):
            if one in last and evidence.explained:
                return
            try:
                yield from one.propose(evidence)
            except TROUBLE as error:
                self.troubles[f"{one.id}: {one_line(error)}"] = None
