"""What is said of an exercise, level by level, so that the answer is not given away.

Level 1: right, or the first wrong element, as `mha learn check` says it. 2: what is wrong, in the bug's own sentence;
where no bug explains it, what experiments measure, else the smallest case that fails, in numbers. 3: what to change.
4: a short answer that is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from conformance.any_numbers import any_numbers
from conformance.cases.table import select
from conformance.measure.faults import is_measured
from conformance.workers.protocol import WorkerDied
from conformance.zoo.bug import Bug
from conformance.zoo.registry import select as select_bugs
from mha.learn.bench import Place, bench
from mha.learn.differences import location, relation
from mha.learn.exercise import CatchExercise, Exercise, LayerExercise, StepExercise
from mha.learn.exercises import exercise as exercise_of
from mha.learn.fills import fill_of
from mha.learn.handout.folder import heading
from mha.learn.handout.sources import answer
from mha.learn.judge import TIME_LIMIT, Verdict, first_wrong, first_wrong_row, judge, run_on, verdict_of
from mha.learn.names import Answer, explained, same
from mha.learn.running.catching import Chosen, chosen, never_asked
from mha.learn.running.layering import diagnosed
from mha.learn.running.measuring import Said, measured_in
from mha.learn.running.workshop import ask
from mha.learn.tracks.own import OWN
from mha.learn.tracks.translate import FUNCTIONS
from mha.learn.words import described, given_to, written_out
from mha_core.reference.rules import RULES

DEEPEST = 4
"""The level that gives the answer."""

SAME = "Yours gives what this mistake gives, in every case:\n"

NEEDS = 6
"""Most needs of a call that are listed."""

MEASURING_LIMIT = 2 * TIME_LIMIT
"""Seconds that measuring may take before its process is ended: it ends itself long before, unless a file hangs."""


def hint(exercise: Exercise, folder: Path, level: int, framework: str, *, time_limit: float = TIME_LIMIT) -> str:
    """The hint of one level, on what the learner's file gives now.

    Args:
        exercise, folder, time_limit: as `judge` takes them.
        level: 1 to `DEEPEST`.
        framework: whose answer is shown beside NumPy's, on the deepest level.
    """
    if level == DEEPEST:
        return solved(exercise, framework)
    verdict = judge(exercise, folder, time_limit=time_limit)
    lines = [f"{exercise.name}: {verdict.status}, {verdict.line}"]
    if level > 1:
        lines += ["", _deeper(exercise, verdict, folder, level)]
    return "\n".join(lines)


def solved(exercise: Exercise, framework: str) -> str:
    """A short answer that is right, with the imports of its file; the framework's too where there is one."""
    if isinstance(exercise, CatchExercise):
        return f"{_case_that_shows(exercise)}\n\n\n{answer(exercise)}"
    shown = [exercise]
    if framework != exercise.dialect and exercise.name in FUNCTIONS:
        shown.append(exercise_of(f"{FUNCTIONS[exercise.name]}-in-{framework}"))
    return "\n\n\n".join(f"{heading(one)}\n\n\n{answer(one)}" for one in shown)


def _deeper(exercise: Exercise, verdict: Verdict, folder: Path, level: int) -> str:
    if isinstance(exercise, CatchExercise):
        return _of_hidden(exercise, folder, level)
    if verdict.status == "wrong" and isinstance(exercise, StepExercise):
        return of_answers(exercise, verdict, folder, level)
    if verdict.status == "no answer" and isinstance(exercise, StepExercise):
        return f"{_rules(exercise)}\n\n{given_to(exercise, bench(exercise).places[len(verdict.answers)])}"
    if verdict.status == "wrong" and isinstance(exercise, LayerExercise):
        return _of_layer(exercise, folder, level)
    return _rules(exercise)


def _rules(exercise: Exercise) -> str:
    """What the lessons say of it, or the definition."""
    told = [f"The rule {id!r}. {RULES[id].plain}" for id in exercise.rules]
    return exercise.advice or "\n".join(told or [exercise.task])


# A step ------------------------------------------------------------------------------------------------


def of_answers(exercise: StepExercise, verdict: Verdict, folder: Path | None, level: int) -> str:
    """What is wrong with a step, as far as it is known, and else the smallest case that fails, in numbers.

    Known are the bugs that explain what it gives in every case; else how all its numbers lie to the right ones, or what
    was measured of it; else where it is wrong. If a shape or a dtype is wrong, as the verdict says, that comes first.
    """
    if verdict.form:
        return f"{_rules(exercise)}\n\n{given_to(exercise, bench(exercise).places[0])}"
    if said := own_mistake(exercise, verdict.answers) or fill_of(exercise, verdict.answers):
        return f"In every case:\n  {said}"
    found = explained(exercise, verdict.answers)
    if found.unknown:
        rest = f"In {found.unknown} of the {found.rows} wrong rows both show, and what they give together is not known."
        return f"{told(found.explanations, level)}\n{rest}"
    if found.explanations:
        single = len(found.explanations) == len(found.explanations[0]) == 1
        return f"{SAME if single else ''}{told(found.explanations, level)}"
    if said := relation(exercise, verdict.answers):
        return f"No known mistake; but in every case:\n  {said}"
    if folder is not None and (measured := _measured(exercise, verdict, folder, level)):
        return measured
    said = location(exercise, verdict.answers)
    smallest = "" if folder is None else _smallest(exercise, verdict, folder)
    lines = [
        "No known mistake, and no two of them, give what yours gives in every case.",
        *([f"  {said}"] * bool(said)),
        smallest,
    ]
    return "\n".join(lines).strip()


def own_mistake(exercise: StepExercise, answers: Sequence[Answer]) -> str:
    """The sentence of the exercise's own mistake that gives these answers in every case; "" if none does."""
    places = bench(exercise).places
    if len(answers) != len(places):
        return ""
    for sentence, function in OWN.get(exercise.name, ()):
        with any_numbers:
            made = [(np.asarray(function(*place.arguments)),) for place in places]
        if all(map(same, made, answers, places)):
            return sentence
    return ""


def told(found: Sequence[tuple[Bug, ...]], level: int) -> str:
    """Explanations in words: what all of them share, then the rest of each."""
    common = [bug for bug in found[0] if all(bug in other for other in found)]
    lines = []
    if len(found[0]) > 1:
        lines.append(f"{'Two' if len(found[0]) == 2 else len(found[0])} things are wrong:")
    lines += [_of_bug(bug, level) for bug in common]
    rest = [[bug for bug in one if bug not in common] for one in found]
    if len(found) > 1:
        lines.append("One of these, which the cases can't tell apart:")
        lines += ["\n  and\n".join(_of_bug(bug, level) for bug in one) for one in rest]
    return "\n".join(lines)


def _of_bug(bug: Bug, level: int) -> str:
    seen = f" (seen in {bug.seen_in})" if bug.seen_in else ""
    lines = [f"  {'measured' if is_measured(bug) else bug.id}: {bug.sentence}{seen}"]
    if level > 2:
        lines.append(f"    What to change: {bug.fix}")
    return "\n".join(lines)


def _measured(exercise: StepExercise, verdict: Verdict, folder: Path, level: int) -> str:
    """What experiments show of a step that no bug explains; "" if they don't, or its process ends."""
    path = str((folder / exercise.file).resolve())
    try:
        found: tuple[Said, ...] = ask(
            exercise.dialect, MEASURING_LIMIT, measured_in, path, exercise.name, verdict.answers
        )
    except WorkerDied:
        return ""
    lines = ["No known mistake; measured, and the same as yours in every case:"] if found else []
    for said in found:
        lines.append(f"  {said.sentence}")
        if level > 2:
            lines.append(f"    What to change: {said.fix}")
    return "\n".join(lines)


def _smallest(exercise: StepExercise, verdict: Verdict, folder: Path) -> str:
    """The smallest case in which it fails."""
    path = str((folder / exercise.file).resolve())
    tiny = bench(exercise).tiny
    tried: list[tuple[Place, tuple]] = []
    if tiny:
        try:
            attempt = run_on(exercise, path, tiny)
            tried = list(zip(tiny, attempt.answers, strict=False))
        except WorkerDied:
            tried = []
    tried += list(zip(bench(exercise).places, verdict.answers, strict=False))
    failing = [(place, answer) for place, answer in tried if first_wrong(exercise, place, answer)]
    if not failing:
        return ""
    place, answer = min(failing, key=lambda one: one[0].size)
    return "The smallest case that fails:\n" + written_out(exercise, place, answer, first_wrong_row(place, answer))


# The others --------------------------------------------------------------------------------------------


def _of_layer(exercise: LayerExercise, folder: Path, level: int) -> str:
    path = str((folder / exercise.file).resolve())
    try:
        found = diagnosed(exercise.dialect, path, exercise.subject, exercise.first)
    except WorkerDied as death:
        return str(death)
    if isinstance(found, str):
        return found
    if not found:
        return "No known mistakes give what yours gives. Returned in a dict, its stages would say where it begins."
    return told(found, level)


def _of_hidden(exercise: CatchExercise, folder: Path, level: int) -> str:
    """Where the hidden bug first shows, or what it is; and what the call would need to show more bugs."""
    bug = select_bugs((exercise.bug,))[0]
    lines = [
        f"The hidden bug first shows in the stage {bug.stage!r}." if level == 2 else f"The hidden bug: {bug.sentence}"
    ]
    found: Chosen = ask(exercise.dialect, TIME_LIMIT, chosen, str((folder / exercise.file).resolve()))
    if found.problem is not None:
        lines.append(
            f"Your call can't show bugs of what it never asks: {', '.join(never_asked(found.problem)[:NEEDS])}."
        )
    return "\n".join(lines)


def _case_that_shows(exercise: CatchExercise) -> str:
    """A case of the suite that shows the hidden bug, and the fix."""
    bug = select_bugs((exercise.bug,))[0]
    case = select((exercise.shown_by,))[0]
    return (
        f"{_of_bug(bug, DEEPEST)}\n  The case {case.id} shows it: {described(case.build())}. It catches {case.catches}."
    )


__all__ = ["DEEPEST", "hint", "of_answers", "solved", "told", "verdict_of"]
