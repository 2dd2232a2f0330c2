"""Judge a file in a page, by Pyodide: one process, one thread, and NumPy alone. `docs/_static/judge.js` asks."""

from collections.abc import Iterator

from mha.learn.exercise import NUMPY, LayerExercise
from mha.learn.exercises import exercise
from mha.learn.handout.folder import answered
from mha.learn.hints import hint
from mha.learn.judge import Verdict, judge
from mha.learn.progress import learned
from mha.learn.running.attempt import KEPT
from mha.learn.running.here import written
from mha.learn.running.layering import rehearsed as rehearsed_layer
from mha_core.errors import shown


def said(name: str, text: str, level: int) -> tuple[str, str, int]:
    """Return the verdict or the hint that a web page shows for an exercise's file with this `text`.

    Args:
        level: 1 for the verdict of `mha learn check`; from 2 on, the level of `mha learn hint`.

    Returns:
        (status, text to show, next level with more to say or 0). The status is "" if `level` is above 1.
    """
    one = exercise(name)
    with written(one, text) as folder:
        if level > 1:
            found = hint(one, folder, level, NUMPY)
            return "", found.text, found.deeper or 0
        verdict = judge(one, folder)
        return verdict.status, "\n".join(_lines(verdict)), 0 if verdict.status == "right" else 2


def rehearsed(name: str) -> Iterator[None]:
    """Judge the right answer to an exercise, and yield between steps. Later verdicts reuse what was computed."""
    one = exercise(name)
    with written(one, answered(one)) as folder:
        if isinstance(one, LayerExercise):
            yield from rehearsed_layer(one, str(folder / one.file))
        else:
            yield
            judge(one, folder)


def _lines(verdict: Verdict) -> Iterator[str]:
    yield f"{verdict.exercise.name}: {verdict.status}, {verdict.line}"
    if verdict.status == "right":
        yield f"Learned: {learned(verdict.exercise)}"
    if verdict.printed:
        yield "it printed: " + "\n            ".join(map(shown, verdict.printed.splitlines()))
        if len(verdict.printed) == KEPT:
            yield f"            ... and more: the first {KEPT} characters are kept"
