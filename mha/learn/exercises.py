"""The table of exercises."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache

from mha.learn.exercise import NUMPY, Exercise
from mha.learn.running.dialects import DIALECTS
from mha.learn.tracks import backwards, catch, experiments, layer, translate, write
from mha.learn.tracks.course import lesson
from mha_core.errors import SpecError

TRACKS = {
    "write": "Write a step: one function of NumPy, judged by the float64 bound.",
    "translate": "Translate a step that is given in another framework.",
    "catch": "Choose a call that shows a hidden bug.",
    "backwards": "Write a gradient.",
    "layer": "Write the whole layer, judged as any subject of `mha check`.",
    "experiment": "Measure something, and find the number that is to be expected.",
}
"""Track -> what is done in it, in the order of `mha learn list`."""


@cache
def all_exercises(frameworks: tuple[str, ...] = tuple(DIALECTS)) -> tuple[Exercise, ...]:
    """Every exercise; translations into these frameworks alone.

    >>> [exercise.name for exercise in all_exercises(("numpy",))][:3]
    ['project', 'split', 'merge']
    """
    translations = tuple(one for name in frameworks for one in translate.into(name))
    return (
        *write.EXERCISES,
        *translations,
        *catch.EXERCISES,
        *backwards.EXERCISES,
        *layer.EXERCISES,
        *experiments.EXERCISES,
    )


def exercise(name: str) -> Exercise:
    """The exercise of this name, which may also be written as its function is.

    >>> exercise("empty_row").track
    'write'
    >>> exercise("sofmax")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: exercise 'sofmax' is not known; did you mean 'softmax'? `mha learn list` lists them
    """
    named = {one.name: one for one in all_exercises()}
    wanted = name.replace("_", "-")
    if wanted in named:
        return named[wanted]
    near = get_close_matches(wanted, named, n=1)
    meant = f" did you mean {near[0]!r}?" if near else ""
    raise SpecError(f"exercise {name!r} is not known;{meant} `mha learn list` lists them")


def in_course(one: Exercise) -> tuple[int, int, int]:
    """Where an exercise stands in the course: its track, then easy ones before hard ones, and short before long ones.

    >>> min(all_exercises(("numpy",)), key=in_course).name
    'weighted-sum'
    """
    row = lesson(one)
    return list(TRACKS).index(one.track), row.level, row.minutes


__all__ = ["NUMPY", "TRACKS", "all_exercises", "exercise", "in_course"]
