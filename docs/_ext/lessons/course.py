"""The course: its lessons in their order, their exercises and minutes, and what stands above and below each text.

`course` is the table of the lessons, for the page that begins.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from _ext.common import escaped, table
from _ext.lessons.judged import editors
from lessons import runner
from mha.learn.exercises import exercise
from mha.learn.tracks.course import CLASSES, EXTRA, LESSONS, row_of

PAGES = Path(__file__).parents[2]

WORDS, LINES, FIGURES = 150, 10, 1
"""That a reader who thinks along takes in a minute: words of prose, lines of code, figures."""

BLOCKS = re.compile(r"^```\{.*?^```$", re.MULTILINE | re.DOTALL)
"""Cells, figures and formulas in the text of a lesson."""

DRAWN = re.compile(r"^```\{plot\} ", re.MULTILINE)
"""Figures in it."""

BEYOND = re.compile(r"^(?=## Beyond the course: )", re.MULTILINE)
"""Where a section begins that stands after the exercises, and takes none of the minutes."""


CLASS = """\
### The class in your framework

The course leads here: a class in one framework. A page runs NumPy alone, so it has no editor for it; a command judges
it in [a clone](start.md#the-exercises), with `pip install '.[torch]'` (or `tf`, with Keras, `jax`, `mxnet`). In the
folder `play`, `mha learn start . --framework torch` adds its file. Close the framework's tab above first: it holds
the answer.

You write `MultiHeadAttention(num_hiddens, num_heads, dropout)`. What it makes is called with queries (B, Lq, Dq), keys
(B, Lk, Dk), values (B, Lk, Dv) and `valid_lens` (B,), at least 1 for each item, and gives (B, Lq, num_hiddens).

What a framework's class has, and the one in NumPy has not:

- a **base class** (`Module`, `Layer`, `Block`), which finds the layers that are set in `__init__` once
  `super().__init__()` has run; Flax has fields instead, and names its layers where it calls them;
- a method that is run when the object is called: `forward` in PyTorch and Gluon, `call` in Keras, `__call__` in Flax;
- a switch for dropout: `eval()` in PyTorch, an argument `training` in Keras and Flax (whose `apply` needs `rngs` then),
  `autograd.record()` in Gluon;
- parameters to read and to set: `state_dict()` in PyTorch, `kernel` of a layer, (in, out), in Keras, what `init`
  returns in Flax, `collect_params()` in Gluon."""
"""What stands above the table of a lesson's class."""


@dataclass(frozen=True)
class Lesson:
    """One lesson.

    Attributes:
        name: of its folder in `lessons`.
        page: where it stands, without ".md".
    """

    name: str
    page: str

    @property
    def exercises(self) -> tuple[str, ...]:
        """Those of `mha learn --only course` that belong to it."""
        return LESSONS[self.name]

    @property
    def classes(self) -> tuple[str, ...]:
        """Its class, in each framework."""
        return CLASSES.get(self.name, ())

    @property
    def extra(self) -> tuple[str, ...]:
        """Those that its page makes possible, beyond the course."""
        return EXTRA.get(self.name, ())

    @property
    def title(self) -> str:
        """The heading of its page: the question that it answers."""
        return (PAGES / f"{self.page}.md").read_text("utf-8").splitlines()[0].removeprefix("# ")

    @cached_property
    def reading(self) -> int:
        """Minutes that reading it takes, code and figures with it."""
        folder = runner.HERE / self.name
        text, _ = parted((folder / "lesson.md").read_text("utf-8"))
        cells = runner.cells_of((folder / "in_numpy.py").read_text("utf-8"))
        shown = [code for name, code in cells.items() if f"```{{cell}} {name}\n" in text]
        lines = sum(bool(line.strip()) for code in shown for line in code.splitlines())
        figures = len(DRAWN.findall(text))
        return round(len(BLOCKS.sub("", text).split()) / WORDS + lines / LINES + figures / FIGURES)

    @property
    def solving(self) -> int:
        """Minutes that its exercises take, without the extra ones."""
        return minutes(self.exercises)


PLACES = {
    "kernel": "attention",
    "angle": "scores",
    "scaling": "scale",
    "softmax": "softmax",
    "masks": "masks",
    "projections": "projections",
    "heads": "heads-lesson",
    "layer": "layer-in-code",
    "positions": "positions",
    "block": "block",
    "own": "own-heads",
}
"""Lesson -> its page."""

COURSE = tuple(Lesson(name, PLACES[name]) for name in LESSONS)
"""The lessons in the order in which `mha learn` has their exercises."""


def named(name: str) -> Lesson:
    """The lesson of this folder. Raises KeyError if the course has none."""
    return {lesson.name: lesson for lesson in COURSE}[name]


def parted(text: str) -> tuple[str, str]:
    r"""The text of a lesson up to its summary, and its sections beyond the course; "" for none.

    >>> parted("A lesson." + chr(10) + "## Beyond the course: more")
    ('A lesson.\n', '## Beyond the course: more')
    """
    lesson, *beyond = BEYOND.split(text)
    return lesson, "".join(beyond)


def minutes(exercises: Iterable[str]) -> int:
    """What `mha learn` says that these take."""
    return sum(row_of(exercise(name)).minutes for name in exercises)


def above(lesson: Lesson) -> str:
    """The line under the heading."""
    place = f"*Lesson {COURSE.index(lesson) + 1} of {len(COURSE)}: {lesson.reading} minutes to read"
    if not lesson.exercises:
        return f"{place}.*\n"
    noun = "exercise" if len(lesson.exercises) == 1 else "exercises"
    listed = ", ".join(f"`{one}`" for one in lesson.exercises)
    return f"{place}, {lesson.solving} for its* [{noun}](#exercises) {listed}\n"


def below(lesson: Lesson) -> str:
    """The exercises, and the way to the next lesson."""
    asked = _asked(lesson.exercises)
    parts = []
    if asked:
        parts += [
            "## Exercises",
            "In the folder that `mha learn start play --only course` [made](start.md#the-exercises):",
            asked,
            editors(lesson.exercises),
            "A wrong answer is [told what is wrong](learn.md): `mha learn hint NAME`.",
        ]
    if lesson.classes:
        parts += [CLASS, _asked(lesson.classes)]
    parts += [f"Next: [{one.title}]({one.page}.md)" for one in COURSE[COURSE.index(lesson) + 1 :][:1]]
    return "\n\n".join(parts) + "\n"


def extra(lesson: Lesson) -> str:
    """The extra exercises, for the end of the page; "" for none."""
    asked = _asked(lesson.extra)
    told = "No later lesson needs them. `mha learn start .` adds their files:"
    return f"## Extra exercises\n\n{told}\n\n{asked}\n\n{editors(lesson.extra)}\n" if asked else ""


def _asked(names: Iterable[str]) -> str:
    """A table of exercises; "" for none."""
    rows, tasks = [], set()
    for one in map(exercise, names):
        task = "The same." if one.task in tasks else escaped(one.task)
        tasks.add(one.task)
        rows.append([f"`{one.file}`", task, f"`mha learn check {one.name}`", str(minutes([one.name]))])
    return table(["file", "what to write", "judge it", "minutes"], rows, numbers=["minutes"]) if rows else ""


def markdown() -> str:
    """The lessons as a table, with what they take in sum."""
    rows = [
        [
            str(number),
            f"[{one.title}]({one.page}.md)",
            str(one.reading),
            ", ".join(f"`{name}`" for name in one.exercises),
            str(one.solving) if one.exercises else "",
        ]
        for number, one in enumerate(COURSE, start=1)
    ]
    reading, solving = sum(one.reading for one in COURSE), sum(one.solving for one in COURSE)
    hours, rest = divmod(reading + solving, 60)
    head = ["", "question", "reading", "exercises", "solving"]
    sums = ["", f"**in sum: {hours} hours {rest} minutes**", str(reading), "", str(solving)]
    return table(head, [*rows, sums], numbers=["", "reading", "solving"])
