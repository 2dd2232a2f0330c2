"""Catch it: eight hidden bugs, each of which the call that a learner starts from does not show."""

from mha.learn.exercise import CatchExercise

_TASK = (
    "One bug is hidden in a layer. Change the call until its output differs from the right one. The level's target: "
    "a call that would show {} bugs of the zoo, each alone in the layer."
)

ROWS = (
    ("scale-missing", "prime", 80),
    ("mask-ignored", "valid-lens", 90),
    ("keys-and-values-exchanged", "ragged-square", 100),
    ("lens-per-query-read-per-item", "valid-lens-per-query", 110),
    ("causal-bottom-right", "causal-more-queries", 120),
    ("groups-tiled", "grouped-heads", 130),
    ("fill-lowest", "ragged-square", 140),
    ("maximum-of-tensor", "one-loud-item", 160),
)
"""The hidden bug, a case that shows it, and the level's target: how many bugs a call must show."""

EXERCISES = tuple(
    CatchExercise(
        name=f"catch-{number}",
        track="catch",
        task=_TASK.format(target),
        bug=bug,
        shown_by=shown_by,
        target=target,
    )
    for number, (bug, shown_by, target) in enumerate(ROWS, 1)
)
