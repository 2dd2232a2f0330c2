"""What experiments showed, in words: a line if they agree with what is said, and every probe for those who ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import numpy as np

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.measure.faults import is_measured
from conformance.measure.localise import SIDES, Located
from conformance.measure.outcome import Measured, Outcome
from conformance.zoo.bug import GRADIENTS

SHOWN = 3
"""Most probes, or reasons, that are named without `details`."""

REFUSALS_SHOWN = 12
"""Most reasons of refusals that are listed with them."""


def experiments_text(measured: Measured, *, details: bool = False, said: bool = True) -> list[str]:
    """Paragraphs about what the subject was asked besides the cases, and what that leaves open.

    Args:
        measured: what was asked, and what came of it.
        details: whether every probe is shown.
        said: whether something was said before that explains the cases, at least some of them.
    """
    remarks = " ".join(measured.behaviour.remarks)
    if not measured.behaviour.is_function:
        return [f"Experiments: {remarks}"]
    paragraphs = [*([remarks] if remarks else []), _agreement(measured, said), *_of_one_size(measured)]
    if measured.silent and (details or not any(measured.models)):
        unknown = "\n".join(f"  {outcome.probe.id}: {outcome.probe.unknown}" for outcome in measured.silent)
        paragraphs.append(f"Not known, because it gave no answer:\n{unknown}")
    if measured.late:
        names = ", ".join(outcome.probe.id for outcome in measured.late)
        paragraphs.append(f"Not asked, because its time was over: {names}.")
    if details:
        paragraphs.append("\n".join(["Probes:", *_lines(measured)]))
        if measured.troubles:
            paragraphs.append("\n".join(["Could not be tried:", *(f"  {trouble}" for trouble in measured.troubles)]))
        spared = measured.asker.costs.spared
        if spared:
            which = "calls" if measured.asker.costs.always_slow else "first calls of new sizes"
            paragraphs.append(f"Its {which} take long, so {spared} questions more were not asked.")
        if measured.asker.refused:
            paragraphs.append("\n".join(["Refused:", *_refusals(measured.asker.why_refused())]))
    return paragraphs


def _refusals(refused: Mapping[str, int]) -> Iterator[str]:
    for reason, times in islice(refused.items(), REFUSALS_SHOWN):
        yield f"  {'once' if times == 1 else f'{times} times'}: {reason}"
    if (more := len(refused) - REFUSALS_SHOWN) > 0:
        yield f"  and {sum(list(refused.values())[-more:])} times for {more} other reasons"


def located_text(located: Located, *, partly: bool) -> str:
    """Which step is the first wrong one, where what it does was not found, or only `partly`.

    An array at that step gives every answer, and none at a step before it does: so several of those may be wrong.
    """
    several = "" if located.stage in (GRADIENTS, *(stage for _, stage in SIDES)) else " (or several before it at once)"
    said = f"First wrong step: {located.stage}{several}, seen in calls such as {_sizes(located.problem)}."
    return said if partly else f"{said} What it does was not found."


def _of_one_size(measured: Measured) -> Iterator[str]:
    """What is not known of a subject that takes one batch or one length alone."""
    names = ("B", "Lq", "Lk")
    only = [f"{name}={size}" for name, size in zip(names, measured.asker.sizes, strict=True) if size is not None]
    if only:
        sizes = " ".join(only)
        yield f"Of what it was asked it took {sizes} alone: how anything depends on this was not measured."


def _agreement(measured: Measured, said: bool) -> str:
    asked = sum(bool(outcome.asked) for outcome in measured.outcomes)
    head = f"Experiments: {asked} {'probe' if asked == 1 else 'probes'}, {measured.asker.questions} questions."
    if not asked:
        return f"{head} It answered none, so nothing was measured."
    if measured.unexplained:
        named = ", ".join(_place(outcome) for outcome in measured.unexplained[:SHOWN])
        more = len(measured.unexplained) - SHOWN
        rest = f", and {more} more" if more > 0 else ""
        if any(measured.models):
            return f"{head} This does not explain all of them: {named}{rest}."
        return f"{head} It differs since {named}{rest}, and nothing that was tried explains that."
    if not any(measured.models):
        return f"{head} In none of them does it differ."
    if not said:
        return f"{head} What was measured in them explains them, but not the cases."
    return f"{head} All of them agree with this."


def _place(outcome: Outcome) -> str:
    """A probe with the sizes of the smallest problem that differs."""
    sizes = outcome.differing[0].sizes if outcome.differing else outcome.asked[0].sizes
    where = f"B={sizes.batch} Lq={sizes.query_len} Lk={sizes.key_len}"
    return f"{outcome.probe.id!r} ({len(outcome.differing)} of {len(outcome.asked)} problems differ, such as {where})"


def _lines(measured: Measured) -> Iterator[str]:
    bugs = {bug.id: bug for model in measured.models for bug in model}
    width = max((len(outcome.probe.id) for outcome in measured.outcomes), default=0)
    for outcome in measured.outcomes:
        if not outcome.asked:
            said = "not asked" if outcome.late else "refused"
        elif not outcome.differing:
            said = f"right in all {len(outcome.asked)}"
        else:
            said = f"differs in {len(outcome.differing)} of {len(outcome.asked)}"
            said += ", explained" if outcome.explained else ", not explained"
        found = [bugs[id] for id in outcome.added if id in bugs]
        if found:
            names = "; ".join(bug.sentence if is_measured(bug) else bug.id for bug in found)
            said += f" by: {names}"
        yield f"  {outcome.probe.id:{width}}  {said}"


def probe_text(measured: Measured, outcome: Outcome) -> str:
    """One probe: what it isolates, and of each problem what was expected and given at the worst place."""
    probe = outcome.probe
    lines = [f"{probe.id}: {probe.says}"]
    for problem in outcome.asked:
        lines.append(f"  {_sizes(problem)}: {_worst(measured, problem)}")
    if not outcome.asked:
        lines.append(f"  It gave no answer. {probe.unknown}".rstrip())
    bugs = {bug.id: bug for model in measured.models for bug in model}
    lines += [f"  Explained by: {bugs[id].sentence}" for id in outcome.added if id in bugs]
    return "\n".join(lines)


def _sizes(problem: Problem) -> str:
    config, sizes = problem.config, problem.sizes
    heads = f"H={config.num_heads} G={config.num_kv_heads} d={config.head_dim} dv={config.value_head_dim}"
    return f"B={sizes.batch} Lq={sizes.query_len} Lk={sizes.key_len} {heads}"


def _worst(measured: Measured, problem: Problem) -> str:
    got, wanted = measured.asker.output(problem), measured.asker.wanted(problem).trace.output
    assert got is not None  # it was answered
    assert wanted is not None
    if not got.size:
        return "nothing to compare"
    with any_numbers:
        distance = np.where((got == wanted) | (np.isnan(got) & np.isnan(wanted)), 0.0, np.abs(got - wanted))
    distance = np.where(np.isnan(distance), np.inf, distance)
    place = np.unravel_index(int(np.argmax(distance)), distance.shape)
    where = ", ".join(str(int(i)) for i in place)
    said = "right" if measured.asker.is_right(problem) else "differs"
    return f"{said}; output[{where}] is {got[place]:.9g}, expected {wanted[place]:.9g}"
