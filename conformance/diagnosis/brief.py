"""A Diagnosis in words: each cause with its stage and what to change, how sure that is; on one screen, or whole."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from conformance.diagnosis.diagnose import ALL_NAN, BIASED, STORED_IN, Diagnosis
from conformance.judging.compare import Mismatch
from conformance.judging.distance import worst
from conformance.judging.expected import CHANGES
from conformance.kinds.change import KINDS, OR_WITH, Setting
from conformance.kinds.made import FINITE, is_measured
from conformance.measure.search import Measured, ProbeResult
from conformance.reports.brief import DETAIL, FIRST, MADE, MEASURED, READINGS, Brief, Cause
from conformance.zoo.bug import Bug
from mha_core import STAGES
from mha_core.errors import listed
from mha_core.reference.forward import PART_OF
from mha_core.stages import DONE_AT

ONLY_EXTREME = "Right in every ordinary case: wrong only where {}. Frameworks differ there too: see `mha deviations`."
PLAIN = "Cause in plain calls"
EXTREMES = {1: "a query may attend to no key", 2: "a size is 0 or a number is huge, NaN or infinite"}

_OWN = "scale-in-float32 fill-lowest fill-1e9-averaged empty-row-nan padding-not-zeroed padding-of-values-not-zeroed"
OWN_LAYERS = frozenset(_OWN.split())  # bugs on file that layers of frameworks have, as is listed
COMMON = OWN_LAYERS | {
    "fill-1e9",
    "fill-added-1e9",
    FINITE,
}  # that much code has: beside others these are said last, and in short
AS_OWN_LAYERS = "Frameworks' own layers do all of this too: `mha deviations` lists it."
NOT_PROVED = ", inferred from outputs alone and not proved"
NO_CAUSE = "No mistake that `mha bugs` lists gives these numbers, nor do two of them."
# Advice for a subject that nothing explains and that shows its output alone: of what is done at the stage.
NEXT = f"Next: check {{}}. To have the steps compared, and not inferred, return them in a dict: {', '.join(STAGES)}."
ADDITIVE = "the additive score: its projections of queries and keys, its tanh, and the sum over its channels"
JOIN = "the join of past and new keys and values: its order, axis, heads and lengths"
OF_BIAS = "the bias of the projection of the {}: whether it is missing, added twice, or scaled"
MUST_BE = "and must be (B, Lq, Do)"
GIVES = " must give "  # in what is said of an array of another dtype, whose numbers tell something
HEED = "Next: compute what these have, or raise CannotExpress where they have it (docs/subjects.md)."
KEEP = {"scores": "scores and softmax", "heads": "attention weights and values", "": "every array"}  # what is narrower

FIXES = {  # words of a remark -> what to change
    "dropout is left on": "Call layer.eval() (Keras: training=False; Flax: deterministic=True), or seed it.",
    "dropout is active": "Switch dropout off outside training.",
    "added up": "Set gradients to zero before each call.",
    "kept": "Keep nothing of one layer for another.",
    "keeps": "Keep nothing of one call for the next.",
}


def brief(diagnosis: Diagnosis, *, details: bool = False) -> Brief:
    """Return a diagnosis in words. `details` adds the results of isolating problems (see `Probe`)."""
    told = Brief(diagnosis.subject, diagnosis.dtype, int(diagnosis.differs), extent(diagnosis))
    if details and diagnosis.measured is not None:
        told = replace(told, details=tuple(of_problems(diagnosis.measured)))
    if not diagnosis.differs:
        return replace(told, more=(*noticed(diagnosis), *left_out(diagnosis)))
    if diagnosis.formed is not None and diagnosis.form is not None:
        inner = brief(diagnosis.formed, details=details)
        axes = Cause(
            "output", f"Every output is {diagnosis.form.said}, {MUST_BE}.", diagnosis.form.change, label="Cause"
        )
        all_right = f"All is right then, in {cases(len(diagnosis.formed.passing))}."
        sure = inner.sure if diagnosis.formed.differs else all_right
        causes = (replace(one, is_common=bool(one.bugs) and COMMON.issuperset(one.bugs)) for one in inner.causes)
        shown = tuple(one for one in inner.seen if not one.startswith(ONLY_EXTREME.partition("{")[0]))
        return replace(inner, status=told.status, extent=told.extent, sure=sure, causes=(axes, *causes), seen=shown)
    if diagnosis.plain is not None:
        inner = brief(diagnosis.plain, details=details)
        causes = (replace(one, label=PLAIN if one.label == "Cause" else one.label) for one in inner.causes)
        more = (*example(diagnosis), *left_out(diagnosis))
        lines = (overlooked(diagnosis, diagnosis.plain), *inner.seen)
        return replace(inner, extent=told.extent, causes=tuple(causes), seen=lines, more=more)
    seen = diagnosis if diagnosis.again is None else diagnosis.again
    sure = how_sure(seen)
    ended = [] if diagnosis.ended is None else [f"{ENDED_AFTER if sure else ENDED} {diagnosis.ended}"]
    there = diagnosis.located  # said if it is the first wrong step, rather than an earlier one that is shown
    located = there.seen if there is not None and there.stage == diagnosis.first_step else ()
    is_drawn = len(located) > 1 and located[0].endswith(":")
    fact = "" if is_drawn or located == (ALL_NAN,) else " ".join(map(str.strip, located))
    found = (*_of_remarks(diagnosis), *_of_hypotheses(seen, fact))
    nans = tuple(Cause("weights", words, CHANGES[words], label="Cause") for words in diagnosis.nans)
    found = found if diagnosis.partly or not nans else nans
    located = () if fact and any(one.what.startswith(FIRST) for one in found) else located
    # A shape or a dtype that is wrong is said as such, whatever its numbers are.
    formal = diagnosis.mismatch is not None and diagnosis.mismatch.index is None
    right = diagnosis.explanations and not diagnosis.explanations[0].bugs
    known = diagnosis.explanations or diagnosis.partly or diagnosis.remarks or diagnosis.nans
    if diagnosis.mismatch is not None and ((formal and not known) or (right and not found)):
        found = (_formal(diagnosis.mismatch), *(found if GIVES in diagnosis.mismatch.message else ()))
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
    kinds = ", or ".join(EXTREMES[one] for one in sorted(huge.union(diagnosis.only_extreme)) if diagnosis.only_extreme)
    is_named = bool(kinds) and diagnosis.located is None and not diagnosis.is_usual_beyond
    extreme = [ONLY_EXTREME.format(kinds)] * is_named
    common = [COMMON.issuperset(one.bugs or (one.what,)) for one in found]
    alike = all(one.bugs and OWN_LAYERS.issuperset(one.bugs) for one in found)
    if any(common) and not all(common) and (diagnosis.explanations or diagnosis.ordinary):
        pairs = sorted(zip(common, found, strict=True), key=lambda pair: pair[0])
        found = tuple(replace(one, is_common=is_common) for is_common, one in pairs)
    extreme += [AS_OWN_LAYERS] * bool(diagnosis.explanations and found and alike and not extreme)
    found = (*found, *nans) if diagnosis.partly else found  # of cases with a NaN alone
    right_in = simplest(diagnosis) * bool(diagnosis.failing and diagnosis.passing and not known)
    again = f"Each called twice, the second calls differ in {cases(len(seen.failing))}."
    return replace(
        told,
        sure=sure,
        causes=found,
        is_answer_first=diagnosis.beyond is not None and not diagnosis.remarks,
        seen=(*ended, *extreme, *unexplained(seen), *located, *right_in),
        more=(*[again] * (seen is not diagnosis), *example(diagnosis), *left_out(diagnosis)),
        details=(*of_others(seen), *missed(seen), *_unasked(seen), *told.details),
    )


def _formal(mismatch: Mismatch) -> Cause:
    """Return the cause that an array has another shape or dtype."""
    narrow = " Or have its numbers judged as float32: --dtype float32." * (" is float32;" in mismatch.message)
    what_next = f"Next: give it the inputs' dtype, and what else is wrong is looked for.{narrow}"
    return Cause(mismatch.stage, f"{mismatch.message}.", what_next if GIVES in mismatch.message else "")


def describe(diagnosis: Diagnosis, *, details: bool = False) -> str:
    """Return the whole text of `brief`."""
    return brief(diagnosis, details=details).text


def _advice(diagnosis: Diagnosis, stage: str) -> str:
    is_shown = _is_shown(diagnosis)
    alone = f", in {diagnosis.alone}" * bool(diagnosis.alone)
    if OR_WITH in alone and not is_shown:
        return HEED
    there = diagnosis.located
    look = there.look if there is not None and there.stage == stage else ""
    is_past = there is not None and there.problem.sizes.past_len > 0 and stage in ("keys", "values")
    of_calls = JOIN if is_past else OF_BIAS.format(stage) * (diagnosis.alone == BIASED)
    done = ADDITIVE if "score 'additive'" in alone else look or of_calls
    return "" if is_shown else NEXT.format(done or f"{DONE_AT.get(stage, 'that')}{alone}")


def _unasked(diagnosis: Diagnosis) -> list[str]:
    if not diagnosis.unasked or diagnosis.explanations or diagnosis.partly:
        return []
    return [f"Every case that fails has {' and '.join(diagnosis.unasked)}, which further calls don't ask for."]


def _of_remarks(diagnosis: Diagnosis) -> Iterator[Cause]:
    """Yield what equal questions had other answers to, and in which precision it computes."""
    if diagnosis.inside is not None and not diagnosis.deviating:
        fix = f"Keep {KEEP[diagnosis.rounds]} in the inputs' dtype."
        yield Cause(diagnosis.rounds or "output", of_precision(diagnosis), fix, label="Cause")
    for remark in diagnosis.remarks:
        fix = next((fix for word, fix in FIXES.items() if word in remark), "")
        stage = "gradients" if remark.startswith("Gradients") else diagnosis.first_stage or "output"
        yield Cause(stage, remark, fix, label="Cause")


def _of_hypotheses(diagnosis: Diagnosis, fact: str = "") -> Iterator[Cause]:
    """Yield the first wrong step of what nothing explains, with a fact about it; else the bugs of all hypotheses.

    Those come one by one, and then those of which nothing says which it is.
    """
    told, label = diagnosis.explanations or diagnosis.partly, heading(diagnosis)
    common = [bug for bug in told[0].bugs if all(bug in one.bugs for one in told)] if told else []
    step = None if diagnosis.located is None else diagnosis.first_step
    if step is not None and not diagnosis.explanations and not diagnosis.remarks:
        alone = f", and only {diagnosis.alone} are wrong" if diagnosis.alone and len(diagnosis.failing) > 1 else ""
        made = f"{FIRST}{NOT_PROVED * (not _is_shown(diagnosis, step))}: the {MADE.get(step, step)}{alone}"
        first = f"Only {diagnosis.alone} are wrong" if OR_WITH in alone else made
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


def _is_shown(diagnosis: Diagnosis, step: str = "") -> bool:
    """Return whether steps are shown, or this one is the output where nothing before it can go wrong."""
    first = None if diagnosis.measured is None else diagnosis.measured.first
    isolated = first is not None and first.probe.stage == step == "output"
    return diagnosis.visible != ("output",) or diagnosis.recorded or isolated


def _of_bug(bug: Bug, label: str) -> Cause:
    *some, last = [one for one in STAGES[:3] if one in {PART_OF.get(step, step) for step in bug.forward}] or [bug.stage]
    where = f"{', '.join(some)} and {last}" * (bool(some) and bug.stage in (*some, last))
    return Cause(bug.stage, bug.sentence, bug.fix, () if is_measured(bug) else (bug.id,), label=label, where=where)


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


ENDED = "The diagnosis ended early, so no reason is known:"
ENDED_AFTER = "The diagnosis ended early, so other reasons are possible:"
NOTHING = " There is nothing to explain."
CASES_SHOWN, REASONS_SHOWN, REFUSALS_SHOWN = 3, 2, 12
SORTS = ("ordinary", "with a row without a key", "with NaN, infinity or a size of 0")


def cases(count: int) -> str:
    """Return a number of cases in words: "1 case", "2 cases"."""
    return "1 case" if count == 1 else f"{count} cases"


def _all(total: int) -> str:
    return "the one case" if total == 1 else f"all {total} cases"


def extent(diagnosis: Diagnosis) -> str:
    """Return one line: the subject's name, and in how many cases it differs from the reference."""
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
        is_all = not diagnosis.raised and diagnosis.beyond is None
        return f"{who} is equal to the reference in {_all(total)}.{NOTHING * is_all}"
    if diagnosis.beyond is not None and not diagnosis.remarks:
        probe = diagnosis.beyond.probe
        return f"{who} is equal to the reference in {_all(total)}, but not in further calls: {probe.says}"
    if not diagnosis.failing:
        return f"{who} is equal to the reference in {_all(total)}, asked once."
    if total == 1:
        return f"{who} differs in the one case: {diagnosis.failing[0]}."
    return f"{who} differs in {len(diagnosis.failing)} of {total} cases: {listed(diagnosis.failing, CASES_SHOWN)}."


def noticed(diagnosis: Diagnosis) -> list[str]:
    """Return [one line on the first wrong calls other than cases]. Return [] if there are none or a case is wrong."""
    if diagnosis.beyond is None:
        return []
    bugs = [bug for one in diagnosis.explanations[:1] for bug in one.bugs]
    why = "".join(f" {bug.sentence}{f' ({bug.id})' * (not is_measured(bug))}" for bug in bugs)
    return [f"No case asks it, but this would differ: {diagnosis.beyond.probe.says}{why}"]


def left_out(diagnosis: Diagnosis) -> list[str]:
    """Return a list with one line: how many cases were not judged, and why; [] if all were judged."""
    said = []
    for raised, words in ((False, "more, which it refused"), (True, "that raised")):
        reasons = [why for id, why in diagnosis.left_out.items() if (id in diagnosis.raised) is raised]
        if reasons:
            ranked = Counter(why.partition(";")[0].partition(" (")[0] for why in reasons).most_common()
            said.append(f"{cases(len(reasons))} {words} ({listed([why for why, _ in ranked], CASES_SHOWN)})")
    return [f"Not judged: {'; '.join(said)}."] if said else []


def shown(mismatch: Mismatch) -> str:
    """Return text on an array that differs: which element has the largest error, and how large the error is."""
    if mismatch.index is None:
        return mismatch.message
    where = ", ".join(map(str, mismatch.index))
    both = f"{mismatch.stage}[{where}] is {mismatch.actual:.6g}, should be {mismatch.expected:.6g}"
    within = f"tolerance {mismatch.allowed:.3g}" if (mismatch.allowed or 0.0) > 1e-300 else "tolerance 0"
    off = f"; off by {mismatch.error:.3g}, {within}" * math.isfinite(mismatch.error or 0.0)
    return f"{both}{off} ({mismatch.wrong} of {mismatch.total} elements differ)"


def example(diagnosis: Diagnosis) -> list[str]:
    """Return a list with one line on the plainest wrong case; [] if none is wrong.

    If only this case is wrong, and no bug explains it, the line also says what sets it apart from the right cases.
    """
    if diagnosis.mismatch is None and diagnosis.measured is not None and diagnosis.beyond is not None:
        return [f"Example: {_row(diagnosis.measured, diagnosis.beyond, says=False)}."]
    if diagnosis.mismatch is None:
        return []
    within = f", case {diagnosis.case}" * bool(diagnosis.case and len(diagnosis.failing) + len(diagnosis.passing) > 1)
    is_alone = diagnosis.alone and len(diagnosis.failing) == 1 and not diagnosis.explanations
    alone = f" It alone is one of {diagnosis.alone}." if is_alone else ""
    return [f"Example{within}: {shown(diagnosis.mismatch)}.{alone}"]


def simplest(diagnosis: Diagnosis) -> list[str]:
    """Return [one line: the simplest wrong calls]. If all isolating problems are right, the line lists right cases."""
    rows = () if diagnosis.measured is None else diagnosis.measured.outcomes
    first = next((place for place, row in enumerate(rows) if row.differing), None)
    if first is None:
        return [f"It is right in the cases {listed(diagnosis.passing, CASES_SHOWN)}."]
    wrong = [Setting.of(one) for row in rows for one in row.differing]
    kinds = [one for one in KINDS if one.words == diagnosis.alone and all(map(one.holds, wrong))]
    if "calls with " in diagnosis.alone and (kinds or diagnosis.alone == BIASED):
        return [f"Still right: all {diagnosis.alone.replace('with', 'without', 1)}."]
    less = [row for row in rows[1:first] if row.asked and Setting.of(row.asked[0]).has <= wrong[0].has]
    less.sort(key=lambda row: (len(Setting.of(row.asked[0]).has), not row.probe.stage))
    right = [f" Still right: calls with {row.probe.says}" for row in less[-1:]]
    right = [" Still right: all further calls without a cache."] if all("past" in one.has for one in wrong) else right
    return [f"Already wrong: calls with {rows[first].probe.says}{''.join(right)}"]


def of_precision(diagnosis: Diagnosis) -> str:
    """Return one line: in which narrower dtype the subject computes, and which numbers show it."""
    if diagnosis.deviating:
        return f"What is listed errs as {diagnosis.inside} does; that is allowed for."
    alone = ", and already with one key, whose weight is 1" * (diagnosis.rounds == "heads")
    lost = f"a change of the queries by 1e-10 of their size is lost{alone}"
    said = lost if diagnosis.rounds else "every output is such a number"
    return f"It computes in {diagnosis.inside}, at least in part: {said}."


def heading(diagnosis: Diagnosis) -> str:
    """Return the heading for the bugs that were found, such as "Cause" or "Likely cause"; "" if none was found."""
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
    return f"How sure: the reference with {these} in it gives the same {what} in {where}{_further(diagnosis)}."


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
    """Return a line: how many failing cases have optional features, which the cases of `plain` lack; and what to do."""
    fine = "If the layer does not take these, it is no fault: declare `capabilities` (docs/subjects.md)."
    others = len(diagnosis.failing) - len(plain.failing)
    return f"Not explained: {cases(others)} with {listed(diagnosis.extras, CASES_SHOWN)}. {fine}"


def unexplained(diagnosis: Diagnosis) -> list[str]:
    """Return a list with one line on the failing cases that the likely cause does not explain; [] if there are none."""
    told = () if diagnosis.explanations or diagnosis.nans else diagnosis.partly
    left = [miss for one in told[:1] for miss in one.misses if miss.case in diagnosis.failing]
    kinds = [[miss.case for miss in left if miss.extremity == extremity] for extremity in range(len(SORTS))]
    each = [f"{len(ids)} {kind} ({listed(ids, CASES_SHOWN)})" for ids, kind in zip(kinds, SORTS, strict=True) if ids]
    return [f"Not explained: {'; '.join(each)}."] if each else []


def of_others(diagnosis: Diagnosis) -> list[str]:
    """Return a list with one line on wrong arrays, besides the output, that the cause does not explain; [] if none."""
    told = (*diagnosis.explanations, *diagnosis.partly)
    counts = ", ".join(f"{name} ({cases(count)})" for one in told[:1] for name, count in one.others.items())
    return [f"Besides, it shows other arrays, which leave the output as it is: {counts}."] if counts else []


def missed(diagnosis: Diagnosis) -> list[str]:
    """Return lines on the first cases that the likely cause does not explain. Each shows one element that differs."""
    return [
        f"  Not in {miss.case}, {miss.message}" for one in diagnosis.partly[:1] for miss in one.misses[:REASONS_SHOWN]
    ]


def of_problems(measured: Measured) -> list[str]:
    """Return a line per group of isolating problems (see `Probe`), then lines on why the subject refused some."""
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
    return f"{said} output[{', '.join(map(str, place))}] is {got[place]:.6g}, should be {wanted[place]:.6g}"
