"""The table of exercises."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from functools import cache

from mha.learn.exercise import Exercise
from mha.learn.running.dialects import DIALECTS
from mha.learn.tracks import backwards, catch, classes, experiments, layer, translate, turning, write
from mha.learn.tracks.course import COURSE, LESSONS, row_of
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
    """Return every exercise. Of the translations, only those into these frameworks are returned.

    >>> [exercise.name for exercise in all_exercises(("numpy",))][:3]
    ['project', 'split', 'merge']
    """
    translations = tuple(one for name in frameworks for one in translate.into(name))
    return (
        *write.EXERCISES,
        *turning.EXERCISES,
        *translations,
        *catch.EXERCISES,
        *backwards.EXERCISES,
        *layer.EXERCISES,
        *(one for name in frameworks for one in classes.into(name)),
        *experiments.EXERCISES,
    )


def exercise(name: str) -> Exercise:
    """Return the exercise with this name, or whose function has this name.

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


OF_LESSONS = {name: number for number, name in enumerate(name for names in LESSONS.values() for name in names)}
"""Exercise of a lesson -> its place in the course."""


def in_order(one: Exercise) -> tuple[int, int, int, int]:
    """Return the sort key of an exercise.

    Exercises of the course come first, in the order of its lessons. The others follow track by track, easy before hard,
    then short before long.

    >>> [one.name for one in sorted(all_exercises(("numpy",)), key=in_order)[:3]]
    ['weighted-sum', 'dot-products', 'scores']
    """
    row = row_of(one)
    return OF_LESSONS.get(one.name, len(OF_LESSONS)), list(TRACKS).index(one.track), row.level, row.minutes


def chosen(exercises: Iterable[Exercise], only: Collection[str]) -> list[Exercise]:
    """Return the exercises in the tracks `only`, sorted by `in_order`. "course" in `only` stands for the course.

    >>> [one.name for one in chosen(all_exercises(("numpy",)), ["course"])][-2:]
    ['cut-heads', 'head-importance']
    """
    wanted = [one for one in exercises if one.track in only or (COURSE in only and one.name in OF_LESSONS)]
    return sorted(wanted, key=in_order)
