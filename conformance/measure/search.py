"""The search: one bug, or two, of the zoo or measured, that give every answer.

The isolating problems are asked in their order, so faults of several steps are met one at a time. At the first one that
differs, each bug of the zoo is tried, and the changes that are fitted to the arrays solved for there. If none of those
that give it gives everything, the likeliest are kept, and one bug more is looked for at the next one that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import chain, product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.kinds.change import MASKS, Setting, conditions_of
from conformance.kinds.made import TROUBLE, Model, is_measured, only_in, unwarned
from conformance.measure.asker import Asker, Behaviour, observe
from conformance.measure.evidence import ROUNDOFFS, Evidence
from conformance.measure.probes import PROBES, Probe
from conformance.zoo.bug import Bug
from conformance.zoo.variants import Variants
from mha_core.stages import is_gradient

if TYPE_CHECKING:
    from conformance.kinds.places import Place

EXTREME, HUGE, LARGE = "extreme", 1e20, 1e9  # LARGE as scores are that a finite number for excluded ones lets pass
OPTIONAL = frozenset((*MASKS, "additive", "dot", "scale", "bias", "dropout_keep", "softcap", "bare", "past", EXTREME))
"""What a call or a layer may have, and is asked with only if some case has it."""

MOST_BUGS, KEPT, ALIKE, CONDITIONS = 3, 8, 2, 5
"""Bugs of a model (an ordinary layer differs in padding and empty rows too), models that are extended by another bug,
also of those that give the same rows, and conditions that are tried for one bug."""


def features_of(problem: Problem, huge: float = HUGE) -> frozenset[str]:
    """Return the features of a call, with EXTREME among them if inputs reach `huge` or are NaN, or a row has no key."""
    usual = all((np.abs(getattr(problem.inputs, name)) < huge).all() for name in ("queries", "keys", "values"))
    extreme = not usual or not problem.allowed().any(axis=-1).all()
    return Setting.of(problem).has | ({EXTREME} if extreme else frozenset())


@dataclass(frozen=True)
class ProbeResult:
    """The result of one group of isolating problems (calls whose answers depend on few steps).

    Attributes:
        probe: the group of problems.
        asked: the problems that the subject answered; empty if it refused them all.
        differing: the problems in `asked` with a wrong answer.
        refused: whether the subject refused any problem.
    """

    probe: Probe
    asked: tuple[Problem, ...]
    differing: tuple[Problem, ...]
    refused: bool = False


@dataclass(frozen=True)
class Measured:
    """The results of all isolating problems on one subject.

    Attributes:
        models: the models (tuples of bugs in the reference) that reproduce every answer.
        outcomes: the result of each group of problems, in order.
        asker: the Asker that asked the subject; it has the answers.
        behaviour: whether the subject is a function. If it is not, no problem was asked.
        against: None if a model in `start` (see `Probing.run`) fits all groups; else the first that start[0] misses.
    """

    models: tuple[Model, ...]
    outcomes: tuple[ProbeResult, ...]
    asker: Asker
    behaviour: Behaviour = field(default_factory=Behaviour)
    against: ProbeResult | None = None

    @property
    def first(self) -> ProbeResult | None:
        """Return the first ProbeResult (group of problems) in which the subject is wrong; None if there is none."""
        return next((outcome for outcome in self.outcomes if outcome.differing), None)

    @property
    def is_usual(self) -> bool:
        """Return whether any answer to a problem with ordinary numbers is wrong."""
        return any(EXTREME not in features_of(one, LARGE) for row in self.outcomes for one in row.differing)


@dataclass(frozen=True)
class Located:
    """The first wrong step of a subject.

    Attributes:
        stage: the first wrong stage, such as "scores".
        problem: a problem in which the stage is wrong.
        seen: lines on what the subject's answer to the problem shows.
        look: what to look at in the code, in words; "" means all that computes the stage.
    """

    stage: str
    problem: Problem
    seen: tuple[str, ...] = ()
    look: str = ""


@dataclass(eq=False)
class Probing:
    """A search for the models (tuples of bugs in the reference) that reproduce every answer of one subject.

    Args:
        asker: the Asker of the subject.
        zoo: the bugs to try.
        suffices: model -> whether it also explains what is known of the subject besides these answers.
        like: problems. An isolating problem is run only if `like` has all its features (a past, say). None: run all.
        progress: called with a text on what is being done.
        known: a cache, (model, problem, whether gradients) -> whether the model reproduces the answer.
        nearly: a list that the search fills: models that reproduce every answer, but for which `suffices` is False.
    """

    asker: Asker
    zoo: Sequence[Bug]
    suffices: Callable[[Model], bool] = lambda model: True
    like: Sequence[Problem] | None = None
    progress: Callable[[str], None] = lambda what: None
    variants: Variants = field(default_factory=Variants)
    outcomes: tuple[ProbeResult, ...] = ()
    known: dict[object, bool] = field(default_factory=dict, repr=False)
    nearly: list[Model] = field(default_factory=list, repr=False)
    _fitting: dict[str, list[Bug]] = field(init=False, default_factory=dict, repr=False)
    _told: tuple[Model, list[tuple[Probe, Problem, bool, Setting]]] | None = field(init=False, default=None, repr=False)

    @cached_property
    def _features(self) -> frozenset[str]:
        return OPTIONAL if self.like is None else frozenset().union(*map(features_of, self.like))

    @unwarned()
    def run(self, start: Sequence[Model] = (), probes: Sequence[Probe] = PROBES) -> Measured:
        """Run the groups of problems; return the results and the models (tuples of bugs) that reproduce every answer.

        Models in `start` are tried first. Other models are tried only if none of these reproduces every answer.
        """
        self.progress("asking the same again")
        behaviour = observe(self.asker)
        if not behaviour.is_function:
            return Measured((), (), self.asker, behaviour)
        self.progress("asking problems that isolate steps")
        self.outcomes = tuple(self._asked(probe) for probe in probes)
        if behaviour.shared:
            return Measured((), self.outcomes, self.asker, behaviour)
        found = list(filter(self.gives_all, start))
        against = self._against(start[0]) if start and not found else None
        return Measured(tuple(found or self._found()), self.outcomes, self.asker, behaviour, against)

    def _asked(self, probe: Probe) -> ProbeResult:
        """Ask the problems of a row; of a subject whose calls take long the others only if the first one differs."""
        asked: list[Problem] = []
        differing: list[Problem] = []
        refused = False
        for problem in self.asker.made(probe.problems):
            if asked and not differing and self.asker.slow:
                break
            if not features_of(problem) & OPTIONAL <= self._features:
                continue
            trace = self.asker.ask(problem)
            if trace is None:
                refused = True
                continue
            if probe.gradients and not any(map(is_gradient, trace.arrays())):
                refused = True
                break
            asked.append(problem)
            if not self._gives((), probe, problem):
                differing.append(problem)
        return ProbeResult(probe, tuple(asked), tuple(differing), refused)

    def _gives(self, model: Model, probe: Probe, problem: Problem) -> bool:
        # Asked again and again: of what every model extends, and of every model that is tried whole. What was measured
        # is not kept, since it holds arrays.
        key = model, id(problem), probe.gradients
        known = self.known.get(key)
        if known is None:
            known = gives(self.asker, self.variants, problem, model, gradients=probe.gradients)
            if not any(map(is_measured, model)):
                self.known[key] = known
        return known

    def _fits(self, model: Model, outcome: ProbeResult) -> bool:
        order = (*outcome.differing, *(one for one in outcome.asked if one not in outcome.differing))
        return all(self._gives(model, outcome.probe, problem) for problem in order)

    def _against(self, model: Model) -> ProbeResult | None:
        """Return the first row that a model does not give; a wrong forward bug's gradients are not held against it."""
        forward = any(bug.forward for bug in model)
        rows = (one for one in self.outcomes if not (one.probe.gradients and forward))
        return next((one for one in rows if not self._fits(model, one)), None)

    def gives_all(self, model: Model) -> bool:
        """Return whether a model gives every answer."""
        return self._against(model) is None

    def ordinary(self, suffices: Callable[[Model], bool]) -> tuple[list[Model], int]:
        """Return (models that reproduce every answer to ordinary numbers, the number of these answers).

        Three cases are distinguished:
        - `suffices` is True for models in `nearly`: return these, and the number of all answers.
        - All wrong answers are ordinary, or all are extreme: return ([], 0).
        - Otherwise: models of known bugs or one from `families`. If it helps, a bug in rows without a key is added.
        """
        if nearly := list(filter(suffices, dict.fromkeys(self.nearly))):
            return nearly, sum(len(row.asked) for row in self.outcomes)

        def kept(problems: Sequence[Problem]) -> tuple[Problem, ...]:
            return tuple(one for one in problems if EXTREME not in features_of(one, LARGE))

        usual = tuple(replace(row, asked=kept(row.asked), differing=kept(row.differing)) for row in self.outcomes)
        differing = [sum(len(row.differing) for row in rows) for rows in (usual, self.outcomes)]
        if not differing[0] or differing[0] == differing[1]:
            return [], 0
        of_usual = replace(self, outcomes=usual, suffices=suffices)
        found = of_usual._found(measuring=False)
        if not found:
            from conformance.kinds.families import families  # many

            of_family = of_usual._extended((), lambda base, row: iter([families(row.probe.stage)]), conditions=False)
            found = list(filter(of_usual._is_whole, of_family))
        beside = [(*model, *other) for model in found for other in self._companions if other[0] not in model]
        found += filter(of_usual._is_whole, beside)
        every = [(row.probe, one) for row in self.outcomes for one in row.asked]
        rank = {model: (sum(self._gives(model, *one) for one in every), -len(model)) for model in found}
        best = [model for model in found if rank[model] == max(rank.values())]
        return best, sum(len(row.asked) for row in usual)

    def _found(self, *, measuring: bool = True) -> list[Model]:
        """Return the models of one bug, else of two, or three, that give every answer.

        Bugs on file come first, in all calls and then in some calls alone: to try them, nothing has to be measured.
        """
        plain = partial(self._extended, candidates=self._on_file, conditions=False)
        extended = cache(partial(self._extended, candidates=self._on_file))
        measured = partial(self._extended, candidates=self._measured)
        kinds: list[list[Callable[[Model], list[Model]]]] = [[plain], [extended], [extended, measured]]
        for ways in kinds[: 3 if measuring else 2]:
            bases: list[Model] = [()]
            for size in range(1, MOST_BUGS + 1):
                self.progress(f"trying {size} at once")
                partly: list[Model] = []
                for some, way in product((bases, self._companions if size == 1 else []), ways):
                    if some is not bases and way is measured and partly:
                        continue  # what fits alone is extended by bugs on file after this
                    tried = [model for base in some for model in way(base)]
                    whole = list(filter(self._is_whole, tried))
                    if whole:
                        return whole
                    partly += tried
                right = {model: self._right(model) for model in partly}
                ranked = sorted(right, key=lambda model: -sum(right[model]))
                before = {model: [right[one] for one in ranked[:n]] for n, model in enumerate(ranked)}
                bases = [one for one in ranked if before[one].count(right[one]) < ALIKE][: KEPT // size]
        return []

    def _on_file(self, base: Model, outcome: ProbeResult) -> Iterator[Iterable[Bug]]:
        return iter([self.zoo])

    def _is_whole(self, model: Model) -> bool:
        if not self.gives_all(model):
            return False
        found = self.suffices(model)
        self.nearly += [model] * (not found)
        return found

    @cached_property
    def _companions(self) -> list[Model]:
        """Return bugs on file that give rows without a key: such rows turn up where another fault empties them."""
        empty = [one for one in self.outcomes if one.probe.id == "empty-rows" and one.differing]
        fitting: list[Model] = [(bug,) for one in empty for bug in self.zoo if self._fits((bug,), one)]
        if empty and not fitting:  # another fault fills these rows and empties others: all that act in such rows alone
            usual = [one for row in self.outcomes for one in row.asked if EXTREME not in features_of(one, LARGE)]
            fitting = [(b,) for b in self.zoo if self._acts(b, empty[0].asked) and not self._acts(b, usual)]
        return fitting[:CONDITIONS]

    def _acts(self, bug: Bug, problems: Iterable[Problem]) -> bool:
        asked = map(self.asker.rounded, problems)
        return any(self.variants.run(one, (bug,)) is not self.variants.kept(one) for one in asked)

    def _right(self, model: Model) -> list[bool]:
        """Return of each row whether a model gives the first problem that differs, or the first of all."""
        rows = [one for one in self.outcomes if one.asked and not one.probe.gradients]
        return [self._gives(model, one.probe, (*one.differing, *one.asked)[0]) for one in rows]

    def _extended(self, base: Model, candidates: Candidates, *, conditions: bool = True) -> list[Model]:
        """Return the models with one bug more that give the first row that `base` does not, and all before it.

        Where some of these give everything, what comes after them is not tried, nor any of them in some calls alone;
        without `conditions` none is tried so.
        """
        outcome = self._against(base)
        if outcome is None:
            return []
        before = [one for one in self.outcomes[: self.outcomes.index(outcome) + 1] if one.asked]
        wrong = [one for one in outcome.asked if not self._gives(base, outcome.probe, one)]
        fitting: list[Bug] = []
        seen, found = {bug.id for bug in base}, []
        asked, beside = candidates(base, outcome), candidates == self._on_file and base in self._companions
        if beside and outcome.probe.id in self._fitting and not self._acts(base[0], wrong):
            of_masks = ([bug for bug in some if bug.stage == "weights"] for some in asked)  # they may make such rows
            asked = chain([self._fitting[outcome.probe.id]], of_masks)  # what fits without it, and these
        elif not base and candidates == self._on_file:
            self._fitting[outcome.probe.id] = fitting
        for some in asked:
            for bug in some:
                if bug.id in seen or not all(self._gives((*base, bug), outcome.probe, one) for one in wrong):
                    continue
                seen.add(bug.id)
                fitting.append(bug)
                if all(self._fits((*base, bug), one) for one in before):
                    found.append((*base, bug))
            if any(map(self._is_whole, found)):
                return found
        some = fitting[:KEPT] if conditions else ()
        return found + [model for bug in some for model in self._conditioned(base, bug, outcome)]

    def _conditioned(self, base: Model, bug: Bug, outcome: ProbeResult) -> Iterator[Model]:
        """Yield the models with a bug in calls like those that differ alone, told by those that it would break."""
        plain: Model = () if base in self._companions else base  # as good as with it to tell calls, and known
        if not self._told or self._told[0] != plain:
            rows = [(one.probe, problem) for one in self.outcomes if not one.probe.gradients for problem in one.asked]
            self._told = plain, [(*row, self._gives(plain, *row), Setting.of(row[1])) for row in rows]
        sides: tuple[list[Setting], list[Setting]] = [], []  # what is wrong without it, and right with it, and broken
        for probe, problem, is_right, setting in self._told[1]:
            if self._gives((*plain, bug), probe, problem) != is_right:
                sides[is_right].append(setting)
        for where in list(conditions_of(*sides))[:CONDITIONS]:
            model = (*base, only_in(bug, where))
            if self._fits(model, outcome):
                yield model

    def _measured(self, base: Model, outcome: ProbeResult) -> Iterator[Iterable[Bug]]:
        """Yield what is read of a row, and the changes fitted to what is solved for at each of its places.

        Where the row does not tell the stage, the later ones that do not may show the array at which it is.
        """
        # Most layers have a mistake that is on file: the modules that measure are imported where one has not.
        from conformance.kinds.families import families
        from conformance.kinds.places import PLACES
        from conformance.measure.readings import readings

        if outcome.probe.gradients:
            return
        evidence = Evidence(self.asker, self.variants, base)
        yield _tried(readings(evidence, outcome.probe))
        if not base or (len(base) == 1 and not is_measured(base[0])):  # two of what was measured are read
            yield families(outcome.probe.stage)
        later = self.outcomes[self.outcomes.index(outcome) + 1 :] if not outcome.probe.stage else ()
        for one in (outcome, *(row for row in later if not row.probe.stage)):
            differing = [problem for problem in one.asked if not self._gives(base, one.probe, problem)]
            places = (PLACES[id] for id in one.probe.places.split() if differing)
            yield (bug for place in places for bug in _tried(self._fitted(evidence, place, (one.asked, differing))))

    def _fitted(self, evidence: Evidence, place: Place, several: Iterable[Sequence[Problem]]) -> Iterator[Bug]:
        from conformance.kinds.places import ALIKE, PLACES, fault, fault_of_all
        from conformance.measure.changes import fit
        from conformance.measure.solve import samples_of

        for problems in several:
            found = fit(samples_of(evidence, _few_of_each(problems), place), place.gauge)
            for change in found:
                yield fault(place, change)
                alike = [PLACES[id] for id in ALIKE.get(place.id, ())]
                yield from (fault_of_all([place, *alike[: n + 1]], change) for n in range(len(alike)))
            if found:
                return


def gives(asker: Asker, variants: Variants, problem: Problem, model: Model, *, gradients: bool = False) -> bool:
    """Return whether a model (tuple of bugs) gives the subject's output for a problem; with `gradients`, its gradients.

    Error bounds are the suite's without bugs, and `Asker.nearness` with bugs. A model that can't be run gives False.
    """
    if not (model or gradients):
        return asker.is_right(problem)
    trace = asker.ask(problem)
    assert trace is not None
    wanted = asker.wanted(problem)
    arrays: Mapping[str, NDArray] = trace.arrays()
    names = [name for name in arrays if is_gradient(name)] if gradients else ["output"]
    if not model:
        return all(wanted.allows(name, arrays[name], "float64") for name in names)
    try:
        made = variants.run(asker.rounded(problem), model, gradients=gradients)
    except TROUBLE:
        return False
    near, allowed = asker.nearness.near, wanted.allowed_error
    if made is None:  # a bias that is missing, in a layer without projections: what the others give
        possible = tuple(bug for bug in model if variants.run(asker.rounded(problem), (bug,)) is not None)
        return len(possible) < len(model) and gives(asker, variants, problem, possible, gradients=gradients)
    if not made:
        return False
    if made is variants.kept(asker.rounded(problem), gradients=gradients) and gives(
        asker, variants, problem, (), gradients=gradients
    ):
        return True  # what is right needs no bug that acts elsewhere
    if _hangs_on_rounding(made, asker.unit):
        return True
    return all(name in made and near(made[name], arrays[name], allowed[name]) for name in names)


def _hangs_on_rounding(made: Mapping[str, NDArray], unit: float) -> bool:
    """Return whether a model lets in keys whose scores are so large that rounding decides which of them is the highest.

    No two layers need agree then, whatever is wrong with them.
    """
    with any_numbers:
        scores = np.where(made["weights"] > 0.0, made["scores"], -np.inf)
        highest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        close = (made["scores"] >= highest - ROUNDOFFS * unit * np.abs(highest)).sum(axis=-1) > 1
        return bool((close & (np.abs(highest[..., 0]) > HUGE) & np.isfinite(highest[..., 0])).any())


Candidates = Callable[[Model, ProbeResult], Iterator[Iterable[Bug]]]
"""Several at a time, the likeliest first."""


def _tried(bugs: Iterator[Bug]) -> Iterator[Bug]:
    """Yield the bugs up to the first that can't be read."""
    with suppress(*TROUBLE):
        yield from bugs


def _few_of_each(problems: Iterable[Problem]) -> list[Problem]:
    """Return at most two problems of each layer: a fault is read in few, and tried in all."""
    found: dict[object, list[Problem]] = {}
    for problem in problems:
        found.setdefault(problem.config, []).append(problem)
    return [problem for several in found.values() for problem in several[:2]]
