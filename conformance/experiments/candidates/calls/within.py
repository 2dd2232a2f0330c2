"""Within: a subject that differs in some kinds of calls alone is asked plain questions in such calls.

The probes so far are asked of the subject seen through one of these circumstances; what they show is a bug of such
calls, and of no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

from conformance.cases.problem import Problem
from conformance.experiments.candidates.calls.circumstances import (
    CONDITIONS,
    Circumstance,
    Within,
    explaining,
    holding,
    in_the_past_too,
    is_plain,
)
from conformance.experiments.candidates.calls.conditions import Condition, only_where
from conformance.experiments.candidates.calls.places import differing_places
from conformance.experiments.lab import Lab
from conformance.experiments.outcome import Model
from conformance.experiments.probe import Probe
from conformance.experiments.view import View
from conformance.zoo.bug import Bug

Run = Callable[[Lab, Sequence[Probe], Sequence[Model]], Sequence[Model]]
"""(lab, probes, models to start from) -> models that explain them."""

MOST_SHARE = 0.5
"""Of the time that is left for questions, what those in one circumstance may take."""


def within_circumstances(
    probe: Probe, views: Sequence[View], passed: Sequence[tuple[Probe, tuple[Problem, ...]]], run: Run
) -> Iterator[Model]:
    """Models with bugs of some calls more; none if no condition tells those that differ from the others.

    Args:
        probe: its problems are not given by any model; without circumstances there is nothing to be found.
        views: of the models that give all problems before.
        passed: the probes before with their problems; those are asked again whose problems are plain.
        run: runs probes on another lab.
    """
    if not views or not probe.circumstances:
        return
    lab = views[0].lab
    plain = [one for one, problems in passed if all(_is_plain(problem) for problem in problems)]
    if lab.fixed_weights is not None or not plain:
        return
    for circumstance, conditions, bases in _told(probe, views):
        seconds = MOST_SHARE * max(lab.seconds - lab.spent, 0.0)
        inner = Lab(Within(lab.subject, circumstance), seconds, lab.configs, sizes=lab.sizes)
        inner.precision, inner.inside = lab.precision, lab.inside
        models = run(inner, plain, bases)
        lab.questions, lab.spent = lab.questions + inner.questions, lab.spent + inner.spent
        for model in models:
            base = next((base for base in bases if model[: len(base)] == base and len(model) > len(base)), None)
            if base is None:
                continue
            # What plain calls show of new keys or values may be of those of a past as well.
            for bugs in product(*((bug, *in_the_past_too(bug)) for bug in model[len(base) :])):
                for condition in conditions:
                    limited = [only_where(bug, condition) for bug in bugs]
                    if None not in limited:
                        yield (*base, *(bug for bug in limited if bug is not None))


def _is_plain(problem: Problem) -> bool:
    return problem.sizes.batch == 1 and is_plain(problem.inputs)


def _told(probe: Probe, views: Sequence[View]) -> Iterator[tuple[Circumstance, list[Condition], list[Model]]]:
    """A circumstance that changes answers, the conditions that say which do, and the models that lack what it does."""
    found: dict[tuple[str, ...], tuple[Circumstance, list[Condition], list[Model]]] = {}
    for view in views:
        asked: list[tuple[Circumstance, Problem, bool]] = []
        for one in probe.circumstances:
            for problem in view.problems:
                if one.made(problem):
                    differs = differing_places(view, problem, "item")
                    asked.append((one, problem, differs is None or bool(differs[one.item])))
        wrong = tuple(dict.fromkeys(one.name for one, _, differs in asked if differs))
        conditions = explaining(asked)
        if wrong and conditions:
            first = next(one for one in probe.circumstances if one.name == wrong[0])
            found.setdefault(wrong, (first, conditions, []))[2].append(view.model)
    yield from found.values()


def in_some_calls(view: View, bugs: Iterable[Bug]) -> Iterator[Bug]:
    """The bugs in those kinds of calls alone that are the ones among a probe's problems that differ."""
    differing = set(view.differing())
    conditions = [
        condition
        for condition in CONDITIONS
        if condition.axis is None
        and all(bool(holding(condition, problem).all()) == (problem in differing) for problem in view.problems)
    ]
    for bug in bugs if conditions else ():
        for condition in conditions:
            limited = only_where(bug, condition)
            if limited is not None:
                yield limited
