"""Catch it: eight hidden bugs, each of which the call that a learner starts from does not show."""

from __future__ import annotations

from mha.learn.exercise import CatchExercise

_TASK = "One bug is hidden in a layer. Change the call until its output differs from the right one."


def _catch(number: int, bug: str, shown_by: str) -> CatchExercise:
    return CatchExercise(name=f"catch-{number}", track="catch", task=_TASK, bug=bug, shown_by=shown_by)


EXERCISES = (
    _catch(1, "scale-missing", "prime"),
    _catch(2, "mask-ignored", "valid-lens"),
    _catch(3, "keys-and-values-exchanged", "ragged-square"),
    _catch(4, "lens-per-query-read-per-item", "valid-lens-per-query"),
    _catch(5, "causal-bottom-right", "causal-more-queries"),
    _catch(6, "groups-tiled", "grouped-heads"),
    _catch(7, "fill-lowest", "ragged-square"),
    _catch(8, "maximum-of-tensor", "one-loud-item"),
)
