"""docs/exercises.md, made from the table: `python -m mha.learn.handout.listing > docs/exercises.md`."""

from __future__ import annotations

from mha.learn.exercise import Exercise, StepExercise
from mha.learn.exercises import TRACKS, all_exercises
from mha.learn.names import mistakes
from mha_core.reference.rules import RULES


def page() -> str:
    """The page, in Markdown."""
    lines = [
        "# The exercises",
        "",
        "What there is to write, and how many of the zoo's mistakes are known in it. `mha learn` gives the exercises",
        "out and judges them: see [learn.md](learn.md). Rules are those of [definition.md](definition.md).",
    ]
    exercises = all_exercises(("numpy",))
    for track, about in TRACKS.items():
        lines += ["", f"## {track.capitalize()}", "", about, ""]
        if track == "translate":
            lines += ["One of each for NumPy, torch, tf, jax and mxnet; the names end in the framework's.", ""]
        lines += ["| exercise | what to write | rules | mistakes |", "|---|---|---|---|"]
        lines += [_row(one) for one in exercises if one.track == track]
    return "\n".join(lines) + "\n"


def _row(one: Exercise) -> str:
    name = one.name.removesuffix("-in-numpy") + ("-in-..." if one.track == "translate" else "")
    task = one.task.removeprefix("Translate into NumPy: ").replace("|", "\\|")
    known = str(len(mistakes(one))) if isinstance(one, StepExercise) else ""
    rules = ", ".join(f"`{id}`" for id in one.rules if id in RULES)
    return f"| `{name}` | {task} | {rules} | {known} |"


if __name__ == "__main__":
    print(page(), end="")
