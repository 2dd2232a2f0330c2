"""A Diagnosis in words, in at most a dozen lines: what differs, the cause, its stage, what to change, how sure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.diagnosis.diagnose import Diagnosis
from conformance.diagnosis.hypotheses import Hypothesis
from conformance.judging.compare import Mismatch
from conformance.kinds.made import is_measured
from conformance.measure.search import Located, Measured, ProbeResult
from conformance.zoo.bug import Bug
from mha_core.errors import listed

ENDED = "The diagnosis ended early, so no reason is known:"
ENDED_AFTER = "The diagnosis ended early, so other reasons are possible:"

NOTHING = " There is nothing to explain."

EXCHANGED = "Every output is (Lq, B, Do), and must be (B, Lq, Do): exchange axes 0 and 1. Then:"

ONE_OF = "  one of these, which nothing tells apart:"

CASES_SHOWN, REASONS_SHOWN, REFUSALS_SHOWN = 3, 2, 12


def describe(diagnosis: Diagnosis, *, details: bool = False) -> str:
    """Return the diagnosis in plain words; with `details` also a line about each isolating problem."""
    lines = [extent(diagnosis)]
    if diagnosis.exchanged is not None:
        return "\n".join([*lines, EXCHANGED, describe(diagnosis.exchanged, details=details)])
    if diagnosis.mismatch is not None:
        lines.append(first_over("First array over its bound", diagnosis))
        if diagnosis.ended is None or _said(diagnosis):
            lines += filter(None, [cause(diagnosis)])
        lines += diagnosis.remarks
    elif diagnosis.beyond is not None and not diagnosis.remarks:
        lines.append(cause(diagnosis))
    if diagnosis.ended is not None:
        lines.append(f"{ENDED_AFTER if _said(diagnosis) else ENDED} {diagnosis.ended}")
    if diagnosis.again is not None:
        again = diagnosis.again
        total = len(again.failing) + len(again.passing)
        lines += [
            f"Each called twice, the second calls differ in {len(again.failing)} of {cases(total)}.",
            cause(again),
        ]
    lines += left_out(diagnosis)
    if details and diagnosis.measured is not None:
        lines.append(_details(diagnosis.measured))
    return "\n".join(lines)


def _said(diagnosis: Diagnosis) -> bool:
    return bool(diagnosis.explanations or diagnosis.partly or diagnosis.closest)


def left_out(diagnosis: Diagnosis) -> list[str]:
    """Return one line about the cases that were left out, by reason."""
    said = []
    for raised, words in ((False, "can't be expressed"), (True, "raised")):
        reasons = [why for id, why in diagnosis.left_out.items() if (id in diagnosis.raised) is raised]
        if reasons:
            ranked = Counter(why.partition(";")[0].partition(" (")[0] for why in reasons).most_common()
            said.append(f"{cases(len(reasons))} {words} ({listed([why for why, _ in ranked], CASES_SHOWN)})")
    return [f"Left out: {'; '.join(said)}."] if said else []


def extent(diagnosis: Diagnosis) -> str:
    """Return in one line who was diagnosed, and in how many cases it differs."""
    total = len(diagnosis.failing) + len(diagnosis.passing)
    who = f"{diagnosis.subject} ({diagnosis.dtype})"
    if diagnosis.raised:
        who += f" raised in {cases(len(diagnosis.raised))} ({listed(diagnosis.raised, CASES_SHOWN)}). Else it"
    if diagnosis.deviating:
        ids = ", ".join(dict.fromkeys(id for ids in diagnosis.deviating.values() for id in ids))
        who += f" differs in {cases(len(diagnosis.deviating))} as is listed ({ids})"
        if not total:
            return f"{who}.{NOTHING}"
        who += ". Else it"
    if not diagnosis.differs:
        return f"{who} is equal to the reference in {_all(total)}.{NOTHING * (not diagnosis.raised)}"
    if diagnosis.beyond is not None and not diagnosis.remarks:
        probe = diagnosis.beyond.probe
        return (
            f"{who} is equal to the reference in {_all(total)}, and differs in further calls ({probe.id}: {probe.says})"
        )
    if not diagnosis.failing:
        return f"{who} is equal to the reference in {_all(total)}, asked once. But: {' '.join(diagnosis.remarks)}"
    if total == 1:
        return f"{who} differs in the one case: {diagnosis.failing[0]}."
    return f"{who} differs in {len(diagnosis.failing)} of {total} cases: {listed(diagnosis.failing, CASES_SHOWN)}."


def _all(total: int) -> str:
    return "the one case" if total == 1 else f"all {total} cases"


def shown(mismatch: Mismatch) -> str:
    """Return the worst place of an array that differs, in words."""
    if mismatch.index is None:
        return mismatch.message
    where = ", ".join(map(str, mismatch.index))
    both = f"got {mismatch.actual:.6g}, expected {mismatch.expected:.6g}"
    # The distance of a NaN or an infinity from a number says nothing more.
    off = f"; off by {mismatch.error:.3g}, allowed {mismatch.allowed:.3g}" * math.isfinite(mismatch.error or 0.0)
    return f"{mismatch.stage}, in {mismatch.wrong} of {mismatch.total} elements; worst at [{where}]: {both}{off}"


def first_over(what: str, diagnosis: Diagnosis) -> str:
    """Return a line about the array that differs first, and the case; and what a case that alone fails alone has."""
    assert diagnosis.mismatch is not None
    several = len(diagnosis.failing) + len(diagnosis.passing) > 1
    within = f", in case {diagnosis.case}" if diagnosis.case and several else ""
    alone = f" It alone is one of {diagnosis.alone}." if diagnosis.alone and not diagnosis.explanations else ""
    return f"{what}{within}: {shown(diagnosis.mismatch)}.{alone}"


def cause(diagnosis: Diagnosis) -> str:
    """Return the bugs that explain what differs, and what to change; or where it begins if none does."""
    inside = "" if diagnosis.inside is None else f"{precision(diagnosis)}\n"
    if diagnosis.explanations:
        return inside + _explained(diagnosis)
    lines = []
    if diagnosis.located is not None:
        lines += (
            [_located(diagnosis.located)] if is_located(diagnosis) else [f"First wrong step: {diagnosis.first_step}."]
        )
    if diagnosis.partly:
        lines.append(_partly(diagnosis))
    elif diagnosis.closest:
        lines += ["No bug on file explains all of it. The closest:", *map(_close, diagnosis.closest[:REASONS_SHOWN])]
    elif not diagnosis.remarks:
        lines.append("No bug on file, nor several of them, explains what it gives.")
    if diagnosis.unasked and not diagnosis.partly:
        lines.append(f"Every case that fails has {' and '.join(diagnosis.unasked)}, which further calls don't ask for.")
    return inside + "\n".join(lines)


def precision(diagnosis: Diagnosis) -> str:
    """Return in one line what shows that it computes in a narrower dtype than its own."""
    if diagnosis.deviating:
        return f"What is listed errs as {diagnosis.inside} does; that is allowed for."
    said = "every output is such a number"
    if diagnosis.rounds:
        said = "a move of the queries by 1e-10 is lost. What to change: keep scores and all else in the inputs' dtype"
    return f"It computes in {diagnosis.inside}, at least in part: {said}. What follows allows for that."


def _explained(diagnosis: Diagnosis) -> str:
    best = diagnosis.explanations[0]
    if not best.bugs:
        return how_sure(diagnosis)
    return "\n".join([how_sure(diagnosis), *_told(diagnosis.explanations), *_others(best)])


def how_sure(diagnosis: Diagnosis) -> str:
    """Return how sure the reasons are: in what they give the same numbers, in one sentence; "" if there are none."""
    if diagnosis.explanations:
        return _wholly(diagnosis)
    return _nearly(diagnosis) if diagnosis.partly else "The closest:" if diagnosis.closest else ""


def _wholly(diagnosis: Diagnosis) -> str:
    total = len(diagnosis.failing) + len(diagnosis.passing)
    if not diagnosis.explanations[0].bugs and diagnosis.inside is None:
        return f"The numbers are right in {_all(total)}: nothing else is wrong."
    if not diagnosis.explanations[0].bugs:
        return f"Nothing else has to explain it: {_all(total)} are right then."
    where = "that case" if total == 1 else f"all {total} cases, failing and passing"
    more = 0 if diagnosis.measured is None else sum(len(one.asked) for one in diagnosis.measured.outcomes)
    further = f", and {more} further calls confirm it" if more else ""
    what = f"the same {'output' if diagnosis.explanations[0].others else 'numbers'}"
    return f"Cause (it gives {what} in {where}{further}):"


def _nearly(diagnosis: Diagnosis) -> str:
    best = diagnosis.partly[0]
    in_all = f", {best.explained} of {best.total} in all" if best.total > best.of_failing else ""
    head = f"Likely: this explains {best.failing} of {best.of_failing} failing cases{in_all}:"
    if best.failing == best.of_failing and best.misses:
        passing = "1 case that passes" if len(best.misses) == 1 else f"{len(best.misses)} cases that pass"
        head = f"Likely: this explains what fails, though it would show in {passing} as well:"
    against = None if diagnosis.measured is None else diagnosis.measured.against
    if best.complete and against is not None:
        shown = _sizes(against.asked[0])
        head = f"This explains every case, but not further calls ({against.probe.id}, such as {shown}):"
    return head


KINDS = ("ordinary", "with a row without a key", "with NaN, infinity or a size of 0")
"""Kinds of cases, by their extremity (see `Observation.extremity`)."""


def unexplained(diagnosis: Diagnosis) -> list[str]:
    """Return one line about the failing cases that what is likely, or the closest, does not explain."""
    told = () if diagnosis.explanations else diagnosis.partly or diagnosis.closest
    missed = [miss for one in told[:1] for miss in one.misses if miss.case in diagnosis.failing]
    kinds = [[miss.case for miss in missed if miss.extremity == extremity] for extremity in range(len(KINDS))]
    each = [f"{len(ids)} {kind} ({listed(ids, CASES_SHOWN)})" for ids, kind in zip(kinds, KINDS, strict=True) if ids]
    return [f"Not explained: {'; '.join(each)}."] if each else []


def _partly(diagnosis: Diagnosis) -> str:
    best = diagnosis.partly[0]
    misses = [f"  Not in {miss.case}, {miss.message}" for miss in best.misses[:REASONS_SHOWN]]
    return "\n".join([how_sure(diagnosis), *_told(diagnosis.partly), *_others(best), *misses])


def _told(hypotheses: Sequence[Hypothesis]) -> list[str]:
    """Return lines about the bugs that all hypotheses share, and then a line about the other bugs of each."""
    common = [bug for bug in hypotheses[0].bugs if all(bug in other.bugs for other in hypotheses)]
    lines = [_bug(bug) for bug in common]
    if len(hypotheses) > 1:
        lines.append("  and one of these, which nothing tells apart:" if common else ONE_OF)
        rest = [[bug for bug in one.bugs if bug not in common] for one in hypotheses]
        lines += [
            "  - " + "; and ".join(f"{name_of(bug)} ({bug.stage}): {bug.sentence}" for bug in one) for one in rest
        ]
        fixes = dict.fromkeys(bug.fix for one in rest for bug in one if bug.fix)
        lines += [f"    What to change: {' Or: '.join(fixes)}"] * bool(fixes)
    return lines


def _others(hypothesis: Hypothesis) -> list[str]:
    """Return lines about arrays that are not those of the hypothesis, where its output is the subject's."""
    counts = ", ".join(f"{name} ({cases(count)})" for name, count in hypothesis.others.items())
    return [f"  Besides, it shows other arrays, which leave the output as it is: {counts}."] if counts else []


def cases(count: int) -> str:
    """Return so many cases in words."""
    return "1 case" if count == 1 else f"{count} cases"


def _close(hypothesis: Hypothesis) -> str:
    broken = hypothesis.total - hypothesis.explained - (hypothesis.of_failing - hypothesis.failing)
    against = f", and would fail {broken} that it passes" if broken else ""
    sentences = " ".join(f"{name_of(bug)}: {bug.sentence}" for bug in hypothesis.bugs)
    return f"  {sentences} (explains {hypothesis.failing} of the {cases(hypothesis.of_failing)} that fail{against})"


def name_of(bug: Bug) -> str:
    """Return a bug's id, or that it was measured."""
    return "measured" if is_measured(bug) else bug.id


def _bug(bug: Bug) -> str:
    """Return two lines: the bug; the stage at which it shows first, and what to change where that is known."""
    seen = f" Seen in {bug.seen_in}." if bug.seen_in else ""
    fix = f" What to change: {bug.fix}" if bug.fix else ""
    return f"  {name_of(bug)}: {bug.sentence}\n    First wrong stage: {bug.stage}.{fix}{seen}"


# What the isolating problems showed ---------------------------------------------------------------------------

LEGEND = {"B": "items", "Lq": "queries", "Lk": "keys", "H": "heads", "G": "key/value heads", "d": "channels of a head"}


def is_located(diagnosis: Diagnosis) -> bool:
    """Return whether the first wrong step is the one that was read, rather than an earlier one that is shown."""
    return diagnosis.located is not None and diagnosis.located.stage == diagnosis.first_step


def _located(located: Located) -> str:
    """Return which step is the first wrong one, and what was read there."""
    return "\n".join([f"First wrong step: {located.stage}.", *located.seen])


def _sizes(problem: Problem) -> str:
    """Return the sizes of a call, with what they are."""
    config, size = problem.config, problem.sizes
    numbers = (size.batch, size.query_len, size.key_len, config.num_heads, config.num_kv_heads, config.head_dim)
    return ", ".join(f"{name}={n} {words}" for (name, words), n in zip(LEGEND.items(), numbers, strict=True))


def _details(measured: Measured) -> str:
    """Return a line about each row of problems, with the worst place where it differs, and what was refused."""
    width = max((len(outcome.probe.id) for outcome in measured.outcomes), default=0)
    lines = [f"  {outcome.probe.id:{width}}  {_row(measured, outcome)}" for outcome in measured.outcomes]
    refused = [f"  {times} times: {reason}" for reason, times in measured.asker.refused.most_common(REFUSALS_SHOWN)]
    return "\n".join(["Problems:", *lines, *(["Refused:", *refused] if refused else [])])


def _row(measured: Measured, outcome: ProbeResult) -> str:
    if not outcome.differing:
        return f"right in all {len(outcome.asked)}" if outcome.asked else "no answer"
    said = f"differs in {len(outcome.differing)} of {len(outcome.asked)}: {outcome.probe.says}"
    problem = outcome.differing[0]
    got, wanted = measured.asker.output(problem), measured.asker.wanted(problem).trace.output
    if outcome.probe.gradients or got is None or wanted is None:
        return said
    with any_numbers:
        distance = np.where((got == wanted) | (np.isnan(got) & np.isnan(wanted)), 0.0, np.abs(got - wanted))
    place = np.unravel_index(int(np.argmax(np.where(np.isnan(distance), np.inf, distance))), distance.shape)
    where = ", ".join(str(int(i)) for i in place)
    return f"{said} output[{where}] is {got[place]:.6g}, expected {wanted[place]:.6g}"
