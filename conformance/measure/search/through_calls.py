"""Through calls: a subject that differs in some kinds of calls alone is asked plain questions in such calls.

The probes so far are asked of the subject seen through one of these circumstances; what they show is a bug of such
calls, and of no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.evidence import Evidence, differing_items
from conformance.measure.faults import only_at
from conformance.measure.grammar.where import Where
from conformance.measure.outcome import Model
from conformance.measure.probe import Probe
from conformance.measure.propose.equivalent_calls import Circumstance, ThroughCall, is_plain, telling

Run = Callable[[Asker, Sequence[Probe], Sequence[Model]], Sequence[Model]]
"""(asker, probes, models to start from) -> models that explain them."""

MOST_SHARE = 0.5
"""Of the time that is left for questions, what those in one circumstance may take."""


def through_calls(
    probe: Probe, seen: Sequence[Evidence], passed: Sequence[tuple[Probe, tuple[Problem, ...]]], run: Run
) -> Iterator[Model]:
    """Models with bugs of some calls more; none if no condition tells those that differ from the others.

    Args:
        probe: its problems are not given by any model; without circumstances there is nothing to be found.
        seen: with each of the models that give all problems before.
        passed: the probes before with their problems; those are asked again whose problems are plain.
        run: runs probes on another asker.
    """
    if not seen or not probe.circumstances:
        return
    asker = seen[0].asker
    plain = [one for one, problems in passed if all(map(_is_plain, problems))]
    if asker.fixed_weights is not None or not plain:
        return
    for circumstance, conditions, bases in _told(probe, seen):
        seconds = MOST_SHARE * max(asker.seconds - asker.spent, 0.0)
        inner = Asker(ThroughCall(asker.subject, circumstance), seconds, asker.configs, sizes=asker.sizes)
        inner.precision, inner.inside = asker.precision, asker.inside
        models = run(inner, plain, bases)
        asker.questions, asker.spent = asker.questions + inner.questions, asker.spent + inner.spent
        for model in models:
            base = next((base for base in bases if model[: len(base)] == base and len(model) > len(base)), None)
            for condition in conditions if base is not None else ():
                limited = [only_at(bug, condition) for bug in model[len(base or ()) :]]
                if None not in limited:
                    yield (*(base or ()), *(bug for bug in limited if bug is not None))


def _is_plain(problem: Problem) -> bool:
    return problem.sizes.batch == 1 and is_plain(problem.config, problem.inputs)


def _told(probe: Probe, seen: Sequence[Evidence]) -> Iterator[tuple[Circumstance, list[Where], list[Model]]]:
    """(Circumstance, the conditions that hold where it changes answers, the models without its effect)."""
    found: dict[tuple[str, ...], tuple[Circumstance, list[Where], list[Model]]] = {}
    for evidence in seen:
        asked: list[tuple[Circumstance, Problem, bool]] = []
        for one in probe.circumstances:
            for problem in evidence.problems:
                if one.made(problem):
                    differs = differing_items(evidence, problem)
                    asked.append((one, problem, differs is None or bool(differs[one.item])))
        wrong = tuple(dict.fromkeys(one.name for one, _, differs in asked if differs))
        conditions = telling(asked)
        if wrong and conditions:
            first = next(one for one in probe.circumstances if one.name == wrong[0])
            found.setdefault(wrong, (first, conditions, []))[2].append(evidence.model)
    yield from found.values()
