"""`exercises`: what the course asks, lesson by lesson, and a table of each track.

```{exercises}
```
"""

from mha.learn.exercise import Exercise, StepExercise
from mha.learn.exercises import TRACKS, all_exercises, chosen, exercise
from mha.learn.names import mistakes
from mha.learn.tracks.course import LESSONS, row_of
from mha_core.reference.rules import RULES


def markdown() -> str:
    """Return the lists and the tables."""
    exercises = (*all_exercises(("numpy",)), exercise("class-in-torch"))
    lines = ["The course asks, lesson by lesson (`--only course`):"]
    lines += [f"{', '.join(f'`{name}`' for name in names)};" for names in LESSONS.values() if names]
    lines[-1] = lines[-1].replace(";", ".")
    for track, about in TRACKS.items():
        lines += ["", f"### {track.capitalize()}", "", about, ""]
        if track == "translate":
            lines += ["One of each for NumPy, torch, tf, jax and mxnet; the names end in the framework's.", ""]
        if track == "layer":
            lines += ["The class is asked for in torch, tf, jax and mxnet: `mha learn start . --framework jax`.", ""]
        lines += ["| exercise | level | minutes | what to write | rules | mistakes |", "|---|---|---|---|---|---|"]
        lines += [_row(one) for one in chosen(exercises, (track,))]
    return "\n".join(lines)


def _row(one: Exercise) -> str:
    name = one.name.removesuffix("-in-numpy") + ("-in-..." if one.track == "translate" else "")
    name = name.replace("-in-torch", "-in-...")
    task = one.task.removeprefix("Translate into NumPy: ").replace("|", "\\|")
    known = str(len(mistakes(one))) if isinstance(one, StepExercise) else ""
    rules = ", ".join(f"`{id}`" for id in one.rules if id in RULES)
    row = row_of(one)
    return f"| `{name}` | {row.level} | {row.minutes} | {task} | {rules} | {known} |"
