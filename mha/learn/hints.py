"""What is said of an exercise, level by level, so that the answer is not given away.

Level 1: right, or the first wrong element, as `mha learn check` says it. 2: what is wrong, in the sentence of a known
mistake; where none explains it, the smallest case that fails, in numbers. 3: what to change, where that is known. 4: a
short answer that is right.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from conformance.cases.table import all_cases, select
from conformance.workers.protocol import WorkerDied
from conformance.zoo.bug import Bug
from conformance.zoo.registry import select as select_bugs
from mha.learn.bench import Place, bench
from mha.learn.differences import location, relation
from mha.learn.exercise import CatchExercise, Exercise, LayerExercise, StepExercise
from mha.learn.exercises import exercise as exercise_of
from mha.learn.handout.folder import heading
from mha.learn.handout.sources import answer
from mha.learn.judge import TIME_LIMIT, Verdict, first_wrong, first_wrong_row, formed, judge, run_on
from mha.learn.moving import does_not_depend, fills, unmoved
from mha.learn.names import Answer, explained, other_shape, sentences
from mha.learn.running.catching import Chosen, chosen, never_asked
from mha.learn.running.layering import diagnosed, unread
from mha.learn.running.workshop import ask
from mha.learn.tracks.own import OTHER_SHAPES, candidates_of, for_other_arguments
from mha.learn.tracks.softmax import Candidate
from mha.learn.tracks.translate import FUNCTIONS
from mha.learn.words import described, foreign, given_to, in_words, rules_of, written_out

DEEPEST = 4
"""The level that gives the answer."""

SAME = "Yours gives what this mistake gives, in every case:\n"

EXPLAINED = "This explains yours in every case:"

UNKNOWN = "No known mistake, and no two of them, give what yours gives in every case."

OF_CASES, IN_EVERY_CASE = "One of these, which the cases can't tell apart:", "No known mistake; but in every case:"

HEADINGS = {SAME.strip(), EXPLAINED, "Two things are wrong:", OF_CASES, IN_EVERY_CASE}
"""Lines that stand above what is wrong."""

FIX, LOOK_AT = "    What to change: ", "    What to look at: "
"""How a line begins that the third level adds."""

MOST = 2
"""Most mistakes of a layer that are told together: more of them may give any numbers."""

NEEDS = 6
"""Most needs of a call that are listed."""


class Hint(NamedTuple):
    """A hint: its text, and the next level that says more (`deeper`, None if no level does)."""

    text: str
    deeper: int | None


def hint(exercise: Exercise, folder: Path, level: int, framework: str, *, time_limit: float = TIME_LIMIT) -> Hint:
    """Return the hint of one level for the learner's present file.

    Args:
        exercise, folder, time_limit: as for `judge`.
        level: 1 to `DEEPEST`.
        framework: the framework in which the deepest level shows an answer, in addition to NumPy.
    """
    if level == DEEPEST:
        return Hint(solved(exercise, framework), None)
    verdict = judge(exercise, folder, time_limit=time_limit)
    line = f"{exercise.name}: {verdict.status}, {verdict.line}"
    if level == 1:
        return Hint(line, 2)
    second, third = _deeper(exercise, verdict, folder, time_limit)
    more = level == 2 and second != third
    said = second if level == 2 else third
    return Hint(f"{line}\n\n{said}" if said else line, 3 if more else DEEPEST)


def solved(exercise: Exercise, framework: str) -> str:
    """Return a short right answer with imports; then one in `framework`, if the exercise has a translation into it."""
    if isinstance(exercise, CatchExercise):
        return f"{_case_that_shows(exercise)}\n\n\n{answer(exercise)}"
    shown = [exercise]
    if framework != exercise.dialect and exercise.name in FUNCTIONS:
        shown.append(exercise_of(f"{FUNCTIONS[exercise.name]}-in-{framework}"))
    return "\n\n\n".join(f"{heading(one)}\n\n\n{answer(one)}" for one in shown)


def _deeper(exercise: Exercise, verdict: Verdict, folder: Path, time_limit: float) -> tuple[str, str]:
    """Return the hints of the second and of the third level; "" where the verdict says it all."""
    if isinstance(exercise, LayerExercise) and exercise.alone and (verdict.why or verdict.status == "no answer"):
        return "", ""
    if isinstance(exercise, CatchExercise):
        return _of_hidden(exercise, folder)
    if verdict.status == "wrong" and isinstance(exercise, StepExercise):
        third = of_answers(exercise, verdict, folder)
    elif verdict.status == "no answer" and isinstance(exercise, StepExercise):
        third = f"{rules_of(exercise)}\n\n{given_to(exercise, bench(exercise).places[len(verdict.answers)])}"
    elif verdict.status == "wrong" and isinstance(exercise, LayerExercise):
        third = _of_layer(exercise, verdict, folder, time_limit)
    else:
        third = verdict.why or rules_of(exercise)
    return "\n".join(line for line in third.splitlines() if not line.startswith((FIX, LOOK_AT))), third


def mistake(verdict: Verdict, folder: Path) -> str:
    """Return a sentence on the mistake in a wrong file; "" if unknown. Whole layers are left out, as they take long."""
    exercise = verdict.exercise
    if verdict.status != "wrong" or not isinstance(exercise, StepExercise):
        return verdict.why
    if verdict.form:
        return "A shape or a dtype is wrong."
    lines = [line.strip() for line in of_answers(exercise, verdict, folder).splitlines()]
    said = next(line for line in lines if line not in HEADINGS)
    return "" if said.startswith(UNKNOWN) else said


# A step ------------------------------------------------------------------------------------------------


def of_answers(exercise: StepExercise, verdict: Verdict, folder: Path | None) -> str:
    """Return in words what is wrong with a learner's function; if unknown, the smallest case that fails, with numbers.

    A wrong shape or dtype is named first, then arguments without effect, then a cause that explains every case, then
    the place of the wrong numbers. `folder` has the learner's file, to run it again. `folder=None`: no run.
    """
    answers = verdict.answers
    if verdict.form:
        other = other_shape(exercise, answers, OTHER_SHAPES.get(exercise.name, ()))
        return f"{other or rules_of(exercise)}\n\n{given_to(exercise, _of_wrong_form(exercise, answers))}"
    run = None if folder is None else partial(_run, exercise, folder)
    still = () if run is None else unmoved(exercise, answers, run)
    known = _known(exercise, answers, () if run is None else fills(exercise, run), bool(still))
    if known:
        return "\n".join((*still, known))
    said = location(exercise, answers)
    lines = [
        *(still or [UNKNOWN]),
        *([f"  {said}"] * bool(said)),
        _look_at(exercise),
        *([] if folder is None else _smallest(exercise, verdict, folder)),
    ]
    return "\n".join(lines)


def _run(exercise: StepExercise, folder: Path, places: Sequence[Place]) -> list[Answer]:
    """Return the answers of the learner's file in further cases, up to the first that fails."""
    try:
        made = run_on(exercise, str((folder / exercise.file).resolve()), places).answers
    except WorkerDied:
        return []
    return [
        tuple(map(partial(formed, exercise), answer, place.wanted)) for place, answer in zip(places, made, strict=False)
    ]


def _known(exercise: StepExercise, answers: Sequence[Answer], measured: Sequence[Candidate], begun: bool) -> str:
    """The first of these that explains every case, in words: measured numbers, mistakes of the exercise, bugs of the
    zoo, a relation of all numbers to the right ones, the right answer for other arguments; "" if none does.
    """
    own = sentences(exercise, answers, (*measured, *candidates_of(exercise)))
    found = explained(exercise, answers)
    of_one = bool(found.explanations) and len(found.explanations[0]) == 1
    if len(own) == 1 or (own and (measured or not of_one)):
        return "\n  ".join((EXPLAINED, *own))
    if found.explanations:
        same_as = SAME if of_one and len(found.explanations) == 1 else ""
        rest = f"In {found.unknown} of the {found.rows} wrong rows both show, and what they give together is not known."
        return same_as + "\n".join([told(found.explanations, exercise), *([rest] * bool(found.unknown))])
    others = () if begun else sentences(exercise, answers, for_other_arguments(exercise))
    said = relation(exercise, answers)
    if begun and "float32" in said:
        return ""
    if said := said or (others[0] if len(others) == 1 else ""):
        return f"{IN_EVERY_CASE}\n  {said}"
    return ""


def _of_wrong_form(exercise: StepExercise, answers: Sequence[Answer]) -> Place:
    """The first case in which a shape or a dtype is wrong, if it is known."""
    places = bench(exercise).places
    forms = ([(one.shape, one.dtype) for one in answer] for answer in answers)
    wanted = ([(one.shape, one.dtype) for one in place.wanted] for place in places)
    return next((place for place, made, right in zip(places, forms, wanted, strict=False) if made != right), places[0])


def _look_at(exercise: Exercise) -> str:
    return LOOK_AT + " ".join(rules_of(exercise).splitlines())


def told(found: Sequence[tuple[Bug, ...]], exercise: Exercise) -> str:
    """Return explanations (tuples of bugs) in words, with the fix of each bug. Bugs common to all come first."""
    common = [bug for bug in found[0] if all(bug in other for other in found)]
    lines = []
    if len(found[0]) > 1:
        lines.append(f"{'Two' if len(found[0]) == 2 else len(found[0])} things are wrong:")
    lines += [_of_bug(bug, exercise) for bug in common]
    rest = [[bug for bug in one if bug not in common] for one in found]
    if len(found) > 1:
        lines.append(OF_CASES)
        lines += ["\n  and\n".join(_of_bug(bug, exercise) for bug in one) for one in rest]
    return "\n".join(lines)


def _of_bug(bug: Bug, exercise: Exercise) -> str:
    seen = f" (seen in {bug.seen_in})" if bug.seen_in else ""
    return f"  {bug.id}: {in_words(exercise, bug.sentence)}{seen}\n{FIX}{in_words(exercise, bug.fix)}"


def _smallest(exercise: StepExercise, verdict: Verdict, folder: Path) -> list[str]:
    """The smallest case in which it fails, in lines."""
    path, tiny = str((folder / exercise.file).resolve()), bench(exercise).tiny
    try:
        answers = run_on(exercise, path, tiny).answers
    except WorkerDied:
        answers = ()
    failing = [
        (place, shaped)
        for place, answer in [
            *zip(tiny, answers, strict=False),
            *zip(bench(exercise).places, verdict.answers, strict=False),
        ]
        if first_wrong(exercise, place, shaped := tuple(map(partial(formed, exercise), answer, place.wanted)))
    ]
    if not failing:
        return []
    place, answer = min(failing, key=lambda one: one[0].size)
    return ["The smallest case that fails:", written_out(exercise, place, answer, first_wrong_row(place, answer))]


# The others --------------------------------------------------------------------------------------------


def _of_layer(exercise: LayerExercise, verdict: Verdict, folder: Path, time_limit: float) -> str:
    path = str((folder / exercise.file).resolve())
    try:
        still = unread(exercise.dialect, path, exercise, verdict.case, time_limit)
        first = "".join(f"{does_not_depend(one)}\n" for one in still)
        shown = (case.id for case in exercise.own if exercise.alone)  # widths of their own tell more mistakes apart
        asked = dict.fromkeys((*exercise.first, verdict.case, *shown))
        cases = tuple(case.id for case in (*all_cases(), *exercise.own) if case.id in asked)
        found = diagnosed(exercise.dialect, path, exercise, cases, time_limit)
    except WorkerDied as death:
        return str(death)
    if isinstance(found, str):
        return first + found
    is_whole, explanations = found
    most = MOST if is_whole else 1
    explanations = tuple(
        one
        for one in explanations
        if len(one) <= most and not any(foreign(exercise, in_words(exercise, bug.sentence)) for bug in one)
    )
    if not explanations:
        stages = "" if exercise.alone else " Returned in a dict, its stages would say where it begins."
        return (first or f"No known mistakes give what yours gives.{stages}\n") + _look_at(exercise)
    nearly = "" if is_whole else "This gives what yours gives in nearly all cases that are wrong, and not in all:\n"
    return first + nearly + told(explanations, exercise)


def _of_hidden(exercise: CatchExercise, folder: Path) -> tuple[str, str]:
    """Where the hidden bug first shows, then what it is; and what the call would need to show more bugs."""
    bug = select_bugs((exercise.bug,))[0]
    found: Chosen = ask(exercise.dialect, TIME_LIMIT, chosen, str((folder / exercise.file).resolve()))
    needs = "" if found.problem is None else ", ".join(never_asked(found.problem)[:NEEDS])
    rest = f"\nYour call can't show bugs of what it never asks: {needs}." if needs else ""
    return f"The hidden bug first shows in the stage {bug.stage!r}.{rest}", f"The hidden bug: {bug.sentence}{rest}"


def _case_that_shows(exercise: CatchExercise) -> str:
    """A case of the suite that shows the hidden bug, and the fix."""
    bug = select_bugs((exercise.bug,))[0]
    case = select((exercise.shown_by,))[0]
    shows = f"The case {case.id} shows it: {described(case.build())}. It catches {case.catches}."
    return f"{_of_bug(bug, exercise)}\n  {shows}"
