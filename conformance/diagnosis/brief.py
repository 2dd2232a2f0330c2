"""A Diagnosis in words: each cause with its stage and what to change, how sure that is; on one screen, or whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from conformance.diagnosis import text
from conformance.diagnosis.diagnose import ALL_NAN, STORED_IN, Diagnosis
from conformance.judging.nan_weights import CHANGES
from conformance.kinds.made import is_measured
from conformance.kinds.usual import FINITE
from conformance.reports.brief import DETAIL, MEASURED, READINGS, Brief, Cause
from conformance.zoo.bug import Bug
from mha_core import STAGES
from mha_core.errors import listed
from mha_core.stages import DONE_AT

ONLY_EXTREME = "Right in every ordinary case: wrong only where {}. Many frameworks do the same: `mha deviations`."
PLAIN = "Cause in plain calls"
EXTREMES = {1: "rows have no key", 2: "sizes are 0 or numbers huge or not finite"}

_OWN = "scale-in-float32 fill-lowest fill-1e9-averaged empty-row-nan padding-not-zeroed padding-of-values-not-zeroed"
OWN_LAYERS = frozenset(_OWN.split())  # bugs on file that layers of frameworks have, as is listed
COMMON = OWN_LAYERS | {"fill-added-1e9", FINITE}  # that much code has: beside others these are said last, and in short
AS_OWN_LAYERS = "Frameworks' own layers do all of this too: `mha deviations` lists it."
FIRST = "First wrong step"
NO_CAUSE = "No known bug explains it, alone or with another."
# Advice for a subject that nothing explains and that shows its output alone: of what is done at the stage.
NEXT = f"Next: check {{}}. To be sure of the step, return a dict of stages ({', '.join(STAGES)})."
ADDITIVE = "the additive score: its projections of queries and keys, its tanh, and the sum over its channels"
OR_WITH = " or with "  # between several kinds of calls that alone are wrong
MUST_BE = "and must be (B, Lq, Do)"
HEED = "Next: compute what these have, or raise CannotExpress where they have it (docs/subjects.md)."

KEEP = {"scores": "scores and softmax", "heads": "weights and values", "": "every array"}  # by the narrower stage

FIXES = {  # words of a remark -> what to change
    "dropout is left on": "Call layer.eval() (Keras: training=False; Flax: deterministic=True), or seed it.",
    "dropout is active": "Switch dropout off outside training.",
    "added up": "Set gradients to zero before each call.",
    "kept": "Keep nothing of one layer for another.",
    "keeps": "Keep nothing of one call for the next.",
}


def brief(diagnosis: Diagnosis, *, details: bool = False) -> Brief:
    """Return a diagnosis in words; with `details`, also what each isolating problem showed."""
    told = Brief(diagnosis.subject, diagnosis.dtype, int(diagnosis.differs), text.extent(diagnosis))
    if details and diagnosis.measured is not None:
        told = replace(told, details=tuple(text.problems(diagnosis.measured)))
    if not diagnosis.differs:
        return replace(told, more=tuple(text.left_out(diagnosis)))
    if diagnosis.formed is not None and diagnosis.form is not None:
        inner = brief(diagnosis.formed, details=details)
        axes = Cause(
            "output", f"Every output is {diagnosis.form.said}, {MUST_BE}.", diagnosis.form.change, label="Cause"
        )
        all_right = f"All is right then, in {text.cases(len(diagnosis.formed.passing))}."
        sure = inner.sure if diagnosis.formed.differs else all_right
        causes = (replace(one, is_common=bool(one.bugs) and COMMON.issuperset(one.bugs)) for one in inner.causes)
        shown = tuple(one for one in inner.seen if not one.startswith(ONLY_EXTREME.partition("{")[0]))
        return replace(inner, status=told.status, extent=told.extent, sure=sure, causes=(axes, *causes), seen=shown)
    if diagnosis.plain is not None:
        inner = brief(diagnosis.plain, details=details)
        causes = (replace(one, label=PLAIN if one.label == "Cause" else one.label) for one in inner.causes)
        more = (*text.example(diagnosis), *text.left_out(diagnosis))
        lines = (text.overlooked(diagnosis, diagnosis.plain), *inner.seen)
        return replace(inner, extent=told.extent, causes=tuple(causes), seen=lines, more=more)
    seen = diagnosis if diagnosis.again is None else diagnosis.again
    sure = text.how_sure(seen)
    ended = [] if diagnosis.ended is None else [f"{text.ENDED_AFTER if sure else text.ENDED} {diagnosis.ended}"]
    there = diagnosis.located  # said if it is the first wrong step, rather than an earlier one that is shown
    located = there.seen if there is not None and there.stage == diagnosis.first_step else ()
    fact = located if len(located) == 1 and located != (ALL_NAN,) else ()
    found = (*_of_remarks(diagnosis), *_of_hypotheses(seen, *fact))
    nans = tuple(Cause("weights", words, CHANGES[words], label="Cause") for words in diagnosis.nans)
    found = found if diagnosis.partly or not nans else nans
    located = () if fact and any(one.what.startswith(FIRST) for one in found) else located
    # A shape or a dtype that is wrong is said as such, whatever its numbers are.
    formal = diagnosis.mismatch is not None and diagnosis.mismatch.index is None
    right = diagnosis.explanations and not diagnosis.explanations[0].bugs
    known = diagnosis.explanations or diagnosis.partly or diagnosis.remarks or diagnosis.nans
    if diagnosis.mismatch is not None and ((formal and not known) or (right and not found)):
        found = (Cause(diagnosis.mismatch.stage, f"{diagnosis.mismatch.message}."),)
    stage = diagnosis.first_stage or (diagnosis.mismatch.stage if diagnosis.mismatch else "output")
    advice = _advice(diagnosis, stage)
    if located == (ALL_NAN,):
        found, located = (Cause("output", ALL_NAN, advice),), ()
    if not found and diagnosis.ended is None:
        only = f"Only {diagnosis.alone} are wrong. " * (OR_WITH in diagnosis.alone)
        found = (Cause(stage, only + NO_CAUSE, advice),)
    # What an isolating problem has shown may be wrong in ordinary numbers that no case has.
    asked = () if diagnosis.measured is None else diagnosis.measured.outcomes
    huge = {2} if any(one.differing and one.probe.id == "excluded-large" for one in asked) else set()
    kinds = " or ".join(EXTREMES[one] for one in sorted(huge.union(diagnosis.only_extreme)) if diagnosis.only_extreme)
    is_named = bool(kinds) and diagnosis.located is None and not diagnosis.is_usual_beyond
    extreme = [ONLY_EXTREME.format(kinds)] * is_named
    common = [COMMON.issuperset(one.bugs or (one.what,)) for one in found]
    alike = all(one.bugs and OWN_LAYERS.issuperset(one.bugs) for one in found)
    if any(common) and not all(common) and (diagnosis.explanations or diagnosis.ordinary):
        pairs = sorted(zip(common, found, strict=True), key=lambda pair: pair[0])
        found = tuple(replace(one, is_common=is_common) for is_common, one in pairs)
    extreme += [AS_OWN_LAYERS] * bool(diagnosis.explanations and found and alike and not extreme)
    found = (*found, *nans) if diagnosis.partly else found  # of cases with a NaN alone
    tells = bool(diagnosis.failing and diagnosis.passing and not known)
    right_in = [f"It is right in the cases {listed(diagnosis.passing, text.CASES_SHOWN)}."] * tells
    again = f"Each called twice, the second calls differ in {text.cases(len(seen.failing))}."
    return replace(
        told,
        sure=sure,
        causes=found,
        seen=(*ended, *extreme, *text.unexplained(seen), *located, *right_in),
        more=(*[again] * (seen is not diagnosis), *text.example(diagnosis), *text.left_out(diagnosis)),
        details=(*text.others(seen), *text.missed(seen), *_unasked(seen), *told.details),
    )


def describe(diagnosis: Diagnosis, *, details: bool = False) -> str:
    """Return the whole text of `brief`."""
    return brief(diagnosis, details=details).text


def _advice(diagnosis: Diagnosis, stage: str) -> str:
    is_shown = diagnosis.visible != ("output",) or diagnosis.recorded
    alone = f", in {diagnosis.alone}" * bool(diagnosis.alone)
    if OR_WITH in alone and not is_shown:
        return HEED
    done = ADDITIVE if "score 'additive'" in alone else f"{DONE_AT.get(stage, 'that')}{alone}"
    return "" if is_shown else NEXT.format(done)


def _unasked(diagnosis: Diagnosis) -> list[str]:
    if not diagnosis.unasked or diagnosis.explanations or diagnosis.partly:
        return []
    return [f"Every case that fails has {' and '.join(diagnosis.unasked)}, which further calls don't ask for."]


def _of_remarks(diagnosis: Diagnosis) -> Iterator[Cause]:
    """Yield what equal questions had other answers to, and in which precision it computes."""
    if diagnosis.inside is not None and not diagnosis.deviating:
        fix = f"Keep {KEEP[diagnosis.rounds]} in the inputs' dtype."
        yield Cause(diagnosis.rounds or "output", text.precision(diagnosis), fix, label="Cause")
    for remark in diagnosis.remarks:
        fix = next((fix for word, fix in FIXES.items() if word in remark), "")
        stage = "gradients" if remark.startswith("Gradients") else diagnosis.first_stage or "output"
        yield Cause(stage, remark, fix, label="Cause")


def _of_hypotheses(diagnosis: Diagnosis, fact: str = "") -> Iterator[Cause]:
    """Yield the first wrong step of what nothing explains, with a fact about it; else the bugs of all hypotheses.

    Those come one by one, and then those of which nothing says which it is.
    """
    told, label = diagnosis.explanations or diagnosis.partly, text.label(diagnosis)
    common = [bug for bug in told[0].bugs if all(bug in one.bugs for one in told)] if told else []
    step = None if diagnosis.located is None else diagnosis.first_step
    if step is not None and not diagnosis.explanations and not diagnosis.remarks:
        alone = f", and only {diagnosis.alone} are wrong" if diagnosis.alone and len(diagnosis.failing) > 1 else ""
        hidden = step not in ("queries", "output") and diagnosis.visible == ("output",) and not diagnosis.recorded
        told_by = ", inferred from the output alone" * hidden
        first = f"Only {diagnosis.alone} are wrong" if OR_WITH in alone else f"{FIRST}{told_by}{alone}"
        is_told = diagnosis.recorded or "no attention" in fact or STORED_IN.partition("{")[0] in fact
        told_all = bool(told or (fact and is_told))
        what = " ".join(filter(None, (f"{first}.", fact.strip(), NO_CAUSE * (not told_all))))
        yield Cause(step, what, "" if told_all else _advice(diagnosis, step))
    for bug in sorted(common, key=lambda bug: (bug in told[0].late, _position(bug))):
        yield _of_bug(bug, label)
    rest = [[bug for bug in one.bugs if bug not in common] for one in told]
    if len(rest) > 1:
        slots = _slots(rest)
        for slot in slots:
            yield _either([[bug for bug in one if bug in slot] for one in rest] if len(slots) > 1 else rest, label)


def _of_bug(bug: Bug, label: str) -> Cause:
    return Cause(bug.stage, bug.sentence, bug.fix, () if is_measured(bug) else (bug.id,), label=label)


def _slots(readings: list[list[Bug]]) -> list[list[Bug]]:
    """Return what takes each other's place: bugs of one step, where each reading has one of each; else all in one."""
    slots: list[list[Bug]] = []
    for bug in dict.fromkeys(bug for one in readings for bug in one):
        alike = [slot for slot in slots if any(bug.steps & other.steps for other in slot)]
        slots = [*(slot for slot in slots if slot not in alike), [*(other for slot in alike for other in slot), bug]]
    if any(sum(bug in slot for bug in one) != 1 for one in readings for slot in slots):
        return [[bug for one in readings for bug in one]]
    return sorted(slots, key=lambda slot: min(map(_position, slot)))


def _either(readings: list[list[Bug]], label: str) -> Cause:
    """Return one cause of several readings, which nothing tells apart."""
    said: dict[object, list[Bug]] = {}
    for one in readings:
        said.setdefault(tuple((bug.sentence, bug.fix) for bug in one), one)
    readings = list(said.values())
    if len(readings) == 1 and len(readings[0]) == 1:
        return _of_bug(readings[0][0], label)
    told_here = readings[:READINGS]
    stages = dict.fromkeys(min(one, key=_position).stage for one in told_here if one)
    parts = [[bug.sentence.partition(DETAIL) for bug in one] for one in told_here]
    sentences = dict.fromkeys(" ".join(what for what, _, _ in one) for one in parts)
    details = dict.fromkeys(detail for one in parts for _, _, detail in one if detail)
    if len(readings) > READINGS:
        more = len(readings) - READINGS
        some = details if len(sentences) == 1 and details else sentences
        some[f"{more} more reading{'s' * (more > 1)}."] = None
    fixes = dict.fromkeys(bug.fix for one in told_here for bug in one if bug.fix)
    ids = [" + ".join(MEASURED if is_measured(bug) else bug.id for bug in one) for one in readings]
    what = " Or: ".join(sentences).replace(
        " Or: ", " Or (no call told them apart): ", 1
    ) + f"{DETAIL}{' Or: '.join(details)}" * bool(details)
    return Cause(" or ".join(stages), what, " Or: ".join(fixes), tuple(ids), label=label)


def _position(bug: Bug) -> int:
    return STAGES.index(bug.stage) if bug.stage in STAGES else len(STAGES)
