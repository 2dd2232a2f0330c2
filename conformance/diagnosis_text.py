"""A Diagnosis in words: what differs, since which stage, which bug explains it, and what to change."""

from __future__ import annotations

from conformance.bug import Bug
from conformance.diagnose import Diagnosis, Hypothesis
from mha_core import STAGES


def describe(diagnosis: Diagnosis) -> str:
    """The answer as one would give it to a colleague; several lines."""
    paragraphs = [_extent(diagnosis)]
    if diagnosis.mismatch is not None:
        paragraphs += [_place(diagnosis), _cause(diagnosis)]
    if diagnosis.left_out:
        paragraphs.append(f"Left out, and so not explained:\n{_left_out(diagnosis)}")
    return "\n\n".join(paragraphs)


def _left_out(diagnosis: Diagnosis) -> str:
    """One line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for case, reason in diagnosis.left_out.items():
        by_reason.setdefault(reason, []).append(case)
    return "\n".join(f"  {', '.join(cases)}: {reason}" for reason, cases in by_reason.items())


def _extent(diagnosis: Diagnosis) -> str:
    total = len(diagnosis.failing) + len(diagnosis.passing)
    who = f"{diagnosis.subject} ({diagnosis.dtype})"
    if not diagnosis.failing:
        return f"{who} is equal to the reference in {_all(total)}. There is nothing to explain."
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


def _cause(diagnosis: Diagnosis) -> str:
    total = len(diagnosis.failing) + len(diagnosis.passing)
    explanations = diagnosis.explanations
    if not explanations and not diagnosis.closest:
        return "No bug of the zoo, nor several of them, gives what it gives in any case."
    if not explanations:
        closest = "\n".join(_hypothesis(hypothesis) for hypothesis in diagnosis.closest)
        return f"No bugs of the zoo explain {_all(total)}. The closest:\n{closest}"
    common = [bug for bug in explanations[0].bugs if all(bug in other.bugs for other in explanations)]
    where = "that case" if total == 1 else f"all {total} cases, failing and passing"
    lines = [f"This gives what it gives in {where}:"]
    lines += [_bug(bug) for bug in common]
    if len(explanations) > 1:
        lines.append("  and one of these, which what it shows cannot tell apart:" if common else ONE_OF)
        for explanation in explanations:
            rest = [bug for bug in explanation.bugs if bug not in common]
            lines += [_bug(bug, "  - " if position == 0 else "    ") for position, bug in enumerate(rest)]
    return "\n".join(lines)


ONE_OF = "  one of these, which what it shows cannot tell apart:"


def _hypothesis(hypothesis: Hypothesis) -> str:
    head = f"  {hypothesis.name} explains {hypothesis.explained} of {hypothesis.total} cases"
    return "\n".join([head, *(_bug(bug, "    ") for bug in hypothesis.bugs)])


def _bug(bug: Bug, indent: str = "  ") -> str:
    """Three lines: the bug, where it shows, and what to change."""
    space = " " * len(indent)
    seen = f" (seen in {bug.seen_in})" if bug.seen_in else ""
    return (
        f"{indent}{bug.id}: {bug.sentence}\n"
        f"{space}  It first shows at {bug.stage!r}{seen}.\n"
        f"{space}  What to change: {bug.fix}"
    )
