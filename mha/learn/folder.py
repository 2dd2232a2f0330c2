"""The files that a learner starts from. What is done is what passes: nothing else is kept."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jinja2

from mha.learn.exercise import CatchExercise, Exercise, HeadsExercise, LayerExercise, NumbersExercise, StepExercise
from mha.learn.exercises import all_exercises
from mha.learn.running.dialects import DIALECTS
from mha.learn.sources import source
from mha_core.errors import SpecError
from mha_core.files.writing import write_whole
from mha_core.reference.rules import RULES

TEMPLATES = {
    StepExercise: "step.py.j2",
    CatchExercise: "catch.py.j2",
    LayerExercise: "layer.py.j2",
    NumbersExercise: "numbers.py.j2",
    HeadsExercise: "heads.py.j2",
}


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("mha.learn"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # it is Python
    )


def text_of(exercise: Exercise) -> str:
    """The file of an exercise as it is given out."""
    given = exercise.given if isinstance(exercise, StepExercise) else ""
    return (
        _environment()
        .get_template(TEMPLATES[type(exercise)])
        .render(
            exercise=exercise,
            task=textwrap.fill(exercise.task, 98),
            rules=[textwrap.fill(RULES[id].plain, 98, subsequent_indent="  ") for id in exercise.rules],
            heading=DIALECTS[exercise.dialect].heading,
            given="\n".join(f"#     {line}".rstrip() for line in source(given).splitlines()) if given else "",
            given_name=given.partition(":")[0],
        )
    )


def start(folder: Path, frameworks: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Write the files of every exercise, with translations into these frameworks; none that is there is touched.

    Returns:
        The files that were written, and those that were there.

    Raises:
        SpecError: the folder is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"{folder} is a file; give a folder for the exercises")
    written, kept = [], []
    for exercise in all_exercises(tuple(frameworks)):
        path = folder / exercise.file
        if path.exists():
            kept.append(path)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text_of(exercise).encode())
        written.append(path)
    return written, kept


def there(folder: Path) -> list[Exercise]:
    """The exercises whose files are in a folder.

    Raises:
        SpecError: there are none.
    """
    found = [exercise for exercise in all_exercises() if (folder / exercise.file).is_file()]
    if not found:
        raise SpecError(f"there are no exercises in {folder}; `mha learn start {folder}` writes them")
    return found


def in_folder(exercise: Exercise, folder: Path) -> Exercise:
    """The exercise, whose file is in the folder.

    Raises:
        SpecError: it is not, or no exercise is.
    """
    if not (folder / exercise.file).is_file():
        there(folder)
        raise SpecError(f"there is no {exercise.file} in {folder}; `mha learn start {folder}` writes it")
    return exercise
