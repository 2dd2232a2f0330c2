"""The sentences of a diagnosis: who differs and where, an example, how sure the cause is, what was left out."""

from __future__ import annotations

import math
from collections import Counter

from conformance.diagnosis.diagnose import Diagnosis
from conformance.judging.compare import Mismatch
from conformance.judging.distance import worst
from conformance.measure.search import Measured, ProbeResult
from mha_core.errors import listed

ENDED = "The diagnosis ended early, so no reason is known:"
ENDED_AFTER = "The diagnosis ended early, so other reasons are possible:"
NOTHING = " There is nothing to explain."
CASES_SHOWN, REASONS_SHOWN, REFUSALS_SHOWN = 3, 2, 12


def cases(count: int) -> str:
    """Return a number of cases in words: "1 case", "2 cases"."""
    return "1 case" if count == 1 else f"{count} cases"


def _all(total: int) -> str:
    return "the one case" if total == 1 else f"all {total} cases"


def extent(diagnosis: Diagnosis) -> str:
    """Return one line: which subject was diagnosed, and in how many cases it differs."""
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
        return f"{who} is equal to the reference in {_all(total)}, but not in further calls: {probe.says}"
    if not diagnosis.failing:
        return f"{who} is equal to the reference in {_all(total)}, asked once. But:"
    if total == 1:
        return f"{who} differs in the one case: {diagnosis.failing[0]}."
    return f"{who} differs in {len(diagnosis.failing)} of {total} cases: {listed(diagnosis.failing, CASES_SHOWN)}."


def left_out(diagnosis: Diagnosis) -> list[str]:
    """Return one line about the cases that were left out, by reason; [] if none was."""
    said = []
    for raised, words in ((False, "more, which it does not take"), (True, "that raised")):
        reasons = [why for id, why in diagnosis.left_out.items() if (id in diagnosis.raised) is raised]
        if reasons:
            ranked = Counter(why.partition(";")[0].partition(" (")[0] for why in reasons).most_common()
            said.append(f"{cases(len(reasons))} {words} ({listed([why for why, _ in ranked], CASES_SHOWN)})")
    return [f"Not judged: {'; '.join(said)}."] if said else []


def shown(mismatch: Mismatch) -> str:
    """Return in words where an array differs most, and by how much."""
    if mismatch.index is None:
        return mismatch.message
    where = ", ".join(map(str, mismatch.index))
    both = f"{mismatch.stage}[{where}] is {mismatch.actual:.6g}, should be {mismatch.expected:.6g}"
    within = f"tolerance {mismatch.allowed:.3g}" if (mismatch.allowed or 0.0) > 1e-300 else "and must be exact"  # a 0
    off = f"; off by {mismatch.error:.3g}, {within}" * math.isfinite(mismatch.error or 0.0)
    return f"{both}{off} ({mismatch.wrong} of {mismatch.total} elements differ)"


def example(diagnosis: Diagnosis) -> list[str]:
    """Return a line about a plain case that differs; [] if none does.

    If only one case fails, and nothing explains it, the line also says what this case has and no other.
    """
    if diagnosis.mismatch is None and diagnosis.measured is not None and diagnosis.beyond is not None:
        return [f"Example: {_row(diagnosis.measured, diagnosis.beyond, says=False)}."]
    if diagnosis.mismatch is None:
        return []
    several = len(diagnosis.failing) + len(diagnosis.passing) > 1
    within = f", case {diagnosis.case}" if diagnosis.case and several else ""
    is_alone = diagnosis.alone and len(diagnosis.failing) == 1 and not diagnosis.explanations
    alone = f" It alone is one of {diagnosis.alone}." if is_alone else ""
    return [f"Example{within}: {shown(diagnosis.mismatch)}.{alone}"]


def precision(diagnosis: Diagnosis) -> str:
    """Return one line on what shows that the subject computes in a narrower dtype than its own."""
    if diagnosis.deviating:
        return f"What is listed errs as {diagnosis.inside} does; that is allowed for."
    alone = ", and already with one key, whose weight is 1" * (diagnosis.rounds == "heads")
    lost = f"a change of the queries by 1e-10 of their size is lost{alone}"
    said = lost if diagnosis.rounds else "every output is such a number"
    return f"It computes in {diagnosis.inside}, at least in part: {said}."


def label(diagnosis: Diagnosis) -> str:
    """Return the heading of the bugs that are named, such as "Cause" or "Likely cause"; "" if none are."""
    if diagnosis.explanations:
        return "Cause" * bool(diagnosis.explanations[0].bugs)
    return ("Cause in every ordinary case" if diagnosis.ordinary else "Likely cause") * bool(diagnosis.partly)


def how_sure(diagnosis: Diagnosis) -> str:
    """Return one sentence on how sure the causes are, such as how many cases they explain; "" if there are none."""
    if diagnosis.nans and not diagnosis.partly:
        total = len(diagnosis.failing) + len(diagnosis.passing)
        return f"The output is right in {_all(total)}{_further(diagnosis)}: nothing else is wrong."
    return _wholly(diagnosis) if diagnosis.explanations else _nearly(diagnosis) if diagnosis.partly else ""


def _wholly(diagnosis: Diagnosis) -> str:
    total = len(diagnosis.failing) + len(diagnosis.passing)
    if not diagnosis.explanations[0].bugs and diagnosis.inside is None:
        return f"The numbers are right in {_all(total)}: nothing else is wrong."
    if not diagnosis.explanations[0].bugs:
        return f"Nothing else has to explain it: {_all(total)} are right then."
    where = "that case" if total == 1 else f"all {total} cases"
    what = "output" if diagnosis.explanations[0].others else "numbers"
    these = "this mistake" if len(diagnosis.explanations[0].bugs) == 1 else "these mistakes"
    return f"How sure: the definition with {these} gives the layer's {what} in {where}{_further(diagnosis)}."


def _further(diagnosis: Diagnosis) -> str:
    more = 0 if diagnosis.measured is None else sum(len(one.asked) for one in diagnosis.measured.outcomes)
    return f" and in {more} further calls" if more else ""


def _nearly(diagnosis: Diagnosis) -> str:
    best = diagnosis.partly[0]
    if diagnosis.ordinary:
        explains = f"it explains {best.failing} of {best.of_failing}" if best.failing else "it shows in none of the"
        return f"How sure: {diagnosis.ordinary} further calls confirm it; {explains} cases that fail."
    in_all = f", {best.explained} of {best.total} in all" if best.total > best.of_failing else ""
    head = f"How sure: this explains {best.failing} of {best.of_failing} failing cases{in_all}."
    if best.failing == best.of_failing and best.misses:
        passing = "1 case that passes" if len(best.misses) == 1 else f"{len(best.misses)} cases that pass"
        head = f"How sure: this explains what fails, though it would show in {passing} as well."
    against = None if diagnosis.measured is None else diagnosis.measured.against
    if best.explained == best.total and against is not None:
        beyond = f"{against.probe.id}: {against.probe.says}"
        return f"How sure: this explains every case. Further calls differ: more is wrong, or another cause. ({beyond})"
    return head


def overlooked(diagnosis: Diagnosis, plain: Diagnosis) -> str:
    """Return one line on the failing cases that a cause in plain calls is not said of, and what to declare."""
    others = len(diagnosis.failing) - len(plain.failing)
    fine = "If the layer does not take these, it is no fault: declare `capabilities` (docs/subjects.md)."
    return f"Not explained: {cases(others)} with {listed(diagnosis.extras, CASES_SHOWN)}. {fine}"


KINDS = ("ordinary", "with a row without a key", "with NaN, infinity or a size of 0")


def unexplained(diagnosis: Diagnosis) -> list[str]:
    """Return one line about the failing cases that the likely cause does not explain; [] if there are none."""
    told = () if diagnosis.explanations or diagnosis.nans else diagnosis.partly
    missed = [miss for one in told[:1] for miss in one.misses if miss.case in diagnosis.failing]
    kinds = [[miss.case for miss in missed if miss.extremity == extremity] for extremity in range(len(KINDS))]
    each = [f"{len(ids)} {kind} ({listed(ids, CASES_SHOWN)})" for ids, kind in zip(kinds, KINDS, strict=True) if ids]
    return [f"Not explained: {'; '.join(each)}."] if each else []


def others(diagnosis: Diagnosis) -> list[str]:
    """Return a line about arrays that the cause does not explain though it explains the output; [] if none."""
    told = (*diagnosis.explanations, *diagnosis.partly)
    counts = ", ".join(f"{name} ({cases(count)})" for one in told[:1] for name, count in one.others.items())
    return [f"Besides, it shows other arrays, which leave the output as it is: {counts}."] if counts else []


def missed(diagnosis: Diagnosis) -> list[str]:
    """Return a line for each of the first cases that the likely cause does not explain, with the numbers."""
    return [
        f"  Not in {miss.case}, {miss.message}" for one in diagnosis.partly[:1] for miss in one.misses[:REASONS_SHOWN]
    ]


def problems(measured: Measured) -> list[str]:
    """Return a line for each row of isolating problems, with its worst element, and lines about refused ones."""
    width = max((len(outcome.probe.id) for outcome in measured.outcomes), default=0)
    lines = [f"  {outcome.probe.id:{width}}  {_row(measured, outcome)}" for outcome in measured.outcomes]
    refused = [f"  {times} times: {reason}" for reason, times in measured.asker.refused.most_common(REFUSALS_SHOWN)]
    return ["Problems:", *lines, *(["Refused:", *refused] if refused else [])]


def _row(measured: Measured, outcome: ProbeResult, *, says: bool = True) -> str:
    if not outcome.differing:
        left_out = "no answer" if outcome.refused else "not asked: no case that it takes has this"
        return f"right in all {len(outcome.asked)}" if outcome.asked else left_out
    what = f": {outcome.probe.says}" if says else " such calls."
    said = f"differs in {len(outcome.differing)} of {len(outcome.asked)}{what}"
    problem = outcome.differing[0]
    got, wanted = measured.asker.output(problem), measured.asker.wanted(problem).trace.output
    if outcome.probe.gradients or got is None or wanted is None:
        return said
    place = worst(got, wanted, 1.0).index
    where = ", ".join(map(str, place))
    return f"{said} output[{where}] is {got[place]:.6g}, expected {wanted[place]:.6g}"
