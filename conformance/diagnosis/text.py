"""A Diagnosis in words: what differs, since which stage, which bug explains it, and what to change."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.diagnosis.diagnose import SHOWN, Diagnosis, Hypothesis
from conformance.measure.faults import is_measured
from conformance.measure.text import experiments_text, located_text
from conformance.zoo.bug import Bug
from mha_core import STAGES
from mha_core.errors import listed
from mha_core.features import FEATURES

ENDED = "The diagnosis ended early, so no reason is known:"
ENDED_AFTER = "The diagnosis ended early, so other reasons are possible:"


def describe(diagnosis: Diagnosis, *, details: bool = False) -> str:
    """The diagnosis in plain words, in several lines; with `details` also what each probe showed."""
    paragraphs = [_extent(diagnosis)]
    if diagnosis.exchanged is not None:
        return "\n\n".join([*paragraphs, EXCHANGED, describe(diagnosis.exchanged, details=details)])
    if diagnosis.ended is not None:
        reason = bool(diagnosis.explanations or diagnosis.partly or diagnosis.closest)
        paragraphs += [_place(diagnosis)] if diagnosis.mismatch is not None else []
        paragraphs += [cause(diagnosis)] if reason else []
        paragraphs.append(f"{ENDED_AFTER if reason else ENDED} {diagnosis.ended}")
    elif diagnosis.mismatch is not None:
        paragraphs += [_place(diagnosis), cause(diagnosis)]
        if diagnosis.located is not None:
            paragraphs.append(located_text(diagnosis.located, partly=bool(diagnosis.partly)))
        if diagnosis.measured is not None:
            said = bool(diagnosis.explanations or diagnosis.partly or diagnosis.closest)
            paragraphs += experiments_text(diagnosis.measured, details=details, said=said)
            paragraphs += _unasked(diagnosis)
    if diagnosis.again is not None:
        paragraphs.append(_again(diagnosis.again))
    if diagnosis.left_out:
        paragraphs.append(f"Left out, and so not explained:\n{_left_out(diagnosis)}")
    return "\n\n".join(paragraphs)


def _unasked(diagnosis: Diagnosis) -> list[str]:
    """That no experiment could have found what is wrong, where all that is wrong has a part that none asks for."""
    configs = () if diagnosis.measured is None else diagnosis.measured.asker.configs
    parts = [part for part in diagnosis.unasked if not any(part in config.parts for config in configs)]
    words = " and ".join(row.words for row in FEATURES if row.name in parts)
    said = f"Every case that fails has {words}, which no experiment asks for: what is wrong there is not known."
    return [said] if words and not (diagnosis.explanations or diagnosis.partly) else []


def _again(again: Diagnosis) -> str:
    """What differs in second calls."""
    total = len(again.failing) + len(again.passing)
    lines = [f"Each called twice, the second calls differ in {len(again.failing)} of {total} cases.", cause(again)]
    if again.located is not None:
        lines.append(located_text(again.located, partly=bool(again.partly)))
    return "\n".join(lines)


def _left_out(diagnosis: Diagnosis) -> str:
    """The cases that were left out: one line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for case, reason in diagnosis.left_out.items():
        by_reason.setdefault(reason, []).append(case)
    return "\n".join(f"  {listed(cases, SHOWN)}: {reason}" for reason, cases in by_reason.items())


def _extent(diagnosis: Diagnosis) -> str:
    total = len(diagnosis.failing) + len(diagnosis.passing)
    who = f"{diagnosis.subject} ({diagnosis.dtype})"
    if diagnosis.deviating:
        ids = ", ".join(dict.fromkeys(id for ids in diagnosis.deviating.values() for id in ids))
        who += f" differs in {_cases(len(diagnosis.deviating))} as is listed ({ids})"
        if not total:
            return f"{who}. There is nothing to explain."
        who += ". Else it"
    if not diagnosis.differs:
        return f"{who} is equal to the reference in {_all(total)}. There is nothing to explain."
    if not diagnosis.failing:
        said = " ".join(finding.sentence for finding in diagnosis.findings)
        return f"{who} is equal to the reference in {_all(total)}, asked once. But: {said}"
    shown = ", ".join(diagnosis.failing[:6]) + (", ..." if len(diagnosis.failing) > 6 else "")
    if total == 1:
        return f"{who} differs in the one case: {shown}."
    return f"{who} differs in {len(diagnosis.failing)} of {total} cases: {shown}."


def _all(total: int) -> str:
    return "the one case" if total == 1 else f"all {total} cases"


def _place(diagnosis: Diagnosis) -> str:
    assert diagnosis.mismatch is not None
    hidden = [stage for stage in STAGES if stage not in diagnosis.visible]
    seen = f"The first array over its bound is {diagnosis.mismatch.stage!r}:\n  {diagnosis.mismatch.message}"
    if hidden and len(hidden) == len(STAGES) - 1:
        return f"It shows only its output, so where it goes wrong is inferred. {seen}"
    if hidden:
        return f"It does not show {', '.join(hidden)}. {seen}"
    return f"{seen}\nEverything before that stage is right."


def cause(diagnosis: Diagnosis) -> str:
    """The bugs that explain what differs, and what to change; or that none does."""
    inside = "" if diagnosis.inside is None else f"{_precision(diagnosis)}\n"
    total = len(diagnosis.failing) + len(diagnosis.passing)
    if diagnosis.explanations:
        return inside + _explained(diagnosis.explanations, total)
    if diagnosis.partly:
        return inside + _partly(diagnosis.partly)
    if diagnosis.closest:
        closest = "\n".join(map(_close, diagnosis.closest))
        return f"{inside}No bugs of the zoo explain {_all(total)}, or nearly all. The closest:\n{closest}"
    return f"{inside}No bug of the zoo, nor several of them, explains what it gives."


def _precision(diagnosis: Diagnosis) -> str:
    if diagnosis.deviating:
        return f"What is listed errs as {diagnosis.inside} does. What follows allows for that."
    return (
        f"Every output that it gives in {diagnosis.dtype} is a {diagnosis.inside} number: it computes in "
        f"{diagnosis.inside} inside. What follows allows for the errors of that."
    )


def _explained(explanations: Sequence[Hypothesis], total: int) -> str:
    if not explanations[0].bugs:
        return f"Nothing else explains it, and nothing else has to: {_all(total)} are right then."
    where = "that case" if total == 1 else f"all {total} cases, failing and passing"
    what = "explains" if explanations[0].others else "gives what it gives in"
    return "\n".join([f"This {what} {where}:", *_told(explanations), *_others(explanations[0])])


def _partly(hypotheses: Sequence[Hypothesis]) -> str:
    best = hypotheses[0]
    head = (
        f"This explains {best.explained} of {best.total} cases, {best.failing} of the {best.of_failing} "
        "failing ones among them:"
    )
    label = "Not explained"
    if best.failing == best.of_failing:
        label = "Where it would show"
        passing = "1 case that passes" if len(best.misses) == 1 else f"{len(best.misses)} cases that pass"
        head = f"This explains what fails, though it would show in {passing} as well:"
    misses = "\n".join(f"  {miss.case}, {miss.message}" for miss in best.misses[:MISSES_SHOWN])
    more = [miss.case for miss in best.misses[MISSES_SHOWN:]]
    rest = f"\n  and {len(more)} more: {', '.join(more)}" if more else ""
    return "\n".join([head, *_told(hypotheses), *_others(best), f"{label}:\n{misses}{rest}"])


def _told(hypotheses: Sequence[Hypothesis]) -> list[str]:
    """The bugs that all hypotheses share, and then the other bugs of each."""
    common = [bug for bug in hypotheses[0].bugs if all(bug in other.bugs for other in hypotheses)]
    lines = [_bug(bug) for bug in common]
    if len(hypotheses) > 1:
        lines.append("  and one of these, which what it shows cannot tell apart:" if common else ONE_OF)
        for hypothesis in hypotheses:
            rest = [bug for bug in hypothesis.bugs if bug not in common]
            lines += [_bug(bug, "  - " if position == 0 else "    ") for position, bug in enumerate(rest)]
    return lines


def _others(hypothesis: Hypothesis) -> list[str]:
    """Lines about arrays that differ from the hypothesis although the outputs are explained."""
    lines = []
    if hypothesis.others:
        counts = ", ".join(f"{name} ({_cases(count)})" for name, count in hypothesis.others.items())
        lines.append(f"  Of what it shows besides, this leaves unexplained: {counts}.")
    if hypothesis.first_stages:
        many = _cases(hypothesis.first_stages)
        lines.append(f"  Of {many} it explains the first wrong stage alone: what comes after is wrong in itself.")
    return lines


def _cases(count: int) -> str:
    return "1 case" if count == 1 else f"{count} cases"


ONE_OF = "  one of these, which what it shows cannot tell apart:"

EXCHANGED = "Every output is (Lq, B, Do), and must be (B, Lq, Do): exchange axes 0 and 1. Then:"

MISSES_SHOWN = 3
"""Most unexplained cases that are shown with numbers."""


def _close(hypothesis: Hypothesis) -> str:
    broken = hypothesis.total - hypothesis.explained - (hypothesis.of_failing - hypothesis.failing)
    against = f", and would fail {broken} that it passes" if broken else ""
    head = (
        f"  {_name(hypothesis)} explains {hypothesis.failing} of the {_cases(hypothesis.of_failing)} that fail{against}"
    )
    return "\n".join([head, *_others(hypothesis), *(_bug(bug, "    ") for bug in hypothesis.bugs)])


def _name(hypothesis: Hypothesis) -> str:
    return " + ".join("what was measured" if is_measured(bug) else bug.id for bug in hypothesis.bugs)


def _bug(bug: Bug, indent: str = "  ") -> str:
    """Three lines: the bug, where it shows, and what to change."""
    space = " " * len(indent)
    seen = f" (seen in {bug.seen_in})" if bug.seen_in else ""
    return (
        f"{indent}{'measured' if is_measured(bug) else bug.id}: {bug.sentence}\n"
        f"{space}  It first shows at {bug.stage!r}{seen}.\n"
        f"{space}  What to change: {bug.fix}"
    )
