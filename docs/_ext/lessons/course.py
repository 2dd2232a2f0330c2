"""The course: its lessons in their order, and what stands above and below the text of each.

`course` is the table of the lessons, for the page that begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from _ext.common import escaped, table
from mha.learn.exercises import exercise

PAGES = Path(__file__).parents[2]


@dataclass(frozen=True)
class Lesson:
    """One lesson.

    Attributes:
        name: of its folder in `lessons`.
        page: where it stands, without ".md".
        minutes: that reading it takes, without its exercises.
        exercises: of `mha learn`, those that belong to it.
    """

    name: str
    page: str
    minutes: int
    exercises: tuple[str, ...]

    @property
    def title(self) -> str:
        """The heading of its page: the question that it answers."""
        return (PAGES / f"{self.page}.md").read_text("utf-8").splitlines()[0].removeprefix("# ")


COURSE = (
    Lesson("kernel", "attention", 7, ("weighted-sum",)),
    Lesson("angle", "scores", 8, ("weights-by-angle", "scores")),
    Lesson("scaling", "scale", 6, ("deviation-of-scores",)),
    Lesson("softmax", "softmax", 8, ("softmax",)),
    Lesson("masks", "masks", 9, ("lengths", "causal", "empty-row")),
    Lesson("projections", "projections", 7, ("project",)),
    Lesson("heads", "heads-lesson", 9, ("split", "output")),
    Lesson("layer", "layer-in-code", 12, ("merge", "groups", "plain-function")),
    Lesson("positions", "positions", 8, ("window",)),
    Lesson("block", "block", 8, ("module-with-state",)),
    Lesson("own", "own-heads", 9, ("head-importance", "cut-heads")),
)


def named(name: str) -> Lesson:
    """The lesson of this folder. Raises KeyError if the course has none."""
    return {lesson.name: lesson for lesson in COURSE}[name]


def above(lesson: Lesson) -> str:
    """The line under the heading."""
    number = COURSE.index(lesson) + 1
    listed = ", ".join(f"`{one}`" for one in lesson.exercises)
    noun = "exercise" if len(lesson.exercises) == 1 else "exercises"
    return f"*Lesson {number} of {len(COURSE)}, {lesson.minutes} minutes;* [{noun}](#exercise) {listed}\n"


def below(lesson: Lesson) -> str:
    """The exercises, and the way to the next lesson."""
    rows = [[f"`mha learn check {one}`", escaped(exercise(one).task)] for one in lesson.exercises]
    following = COURSE[COURSE.index(lesson) + 1 :][:1]
    onward = [f"Next: [{one.title}]({one.page}.md)" for one in following]
    return "\n".join(
        [
            "## Exercise",
            "",
            "`mha learn start play` writes the files, once; then, in the folder `play`:",
            "",
            table(["", "what to write"], rows),
            "",
            "A wrong answer is [told what is wrong](learn.md): `mha learn hint NAME`.",
            "",
            *onward,
            "",
        ]
    )


def markdown() -> str:
    """The lessons as a table."""
    rows = [
        [
            str(number),
            f"[{one.title}]({one.page}.md)",
            str(one.minutes),
            ", ".join(f"`{name}`" for name in one.exercises),
        ]
        for number, one in enumerate(COURSE, start=1)
    ]
    total = sum(one.minutes for one in COURSE)
    return table(["", "question", "minutes", "exercises"], [*rows, ["", "", str(total), ""]], numbers=["", "minutes"])
