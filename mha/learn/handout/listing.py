"""docs/exercises.md, from the table: `python -m mha.learn.handout.listing > docs/exercises.md`."""

from __future__ import annotations

from mha.learn.exercise import Exercise, StepExercise
from mha.learn.exercises import TRACKS, all_exercises, chosen
from mha.learn.names import mistakes
from mha.learn.tracks.course import LESSONS, row_of
from mha_core.reference.rules import RULES


def page() -> str:
    """The page, in Markdown."""
    lines = [
        "# The exercises",
        "",
        "What there is to write, and how many of the zoo's mistakes are known in it. `mha learn` gives the exercises",
        "out and judges them: see [learn.md](learn.md). Rules are those of [definition.md](definition.md). Level 1 is",
        "a line, 2 a few lines and a trap, 3 several traps.",
    ]
    exercises = all_exercises(("numpy",))
    lines += ["", "The course asks, lesson by lesson (`--only course`):"]
    lines += [f"{', '.join(f'`{name}`' for name in names)};" for names in LESSONS.values()]
    lines[-1] = lines[-1].replace(";", ".")
    for track, about in TRACKS.items():
        lines += ["", f"## {track.capitalize()}", "", about, ""]
        if track == "translate":
            lines += ["One of each for NumPy, torch, tf, jax and mxnet; the names end in the framework's.", ""]
        lines += ["| exercise | level | minutes | what to write | rules | mistakes |", "|---|---|---|---|---|---|"]
        lines += [_row(one) for one in chosen(exercises, (track,))]
    return "\n".join(lines) + "\n"


def _row(one: Exercise) -> str:
    name = one.name.removesuffix("-in-numpy") + ("-in-..." if one.track == "translate" else "")
    task = one.task.removeprefix("Translate into NumPy: ").replace("|", "\\|")
    known = str(len(mistakes(one))) if isinstance(one, StepExercise) else ""
    rules = ", ".join(f"`{id}`" for id in one.rules if id in RULES)
    row = row_of(one)
    return f"| `{name}` | {row.level} | {row.minutes} | {task} | {rules} | {known} |"


if __name__ == "__main__":
    print(page(), end="")
