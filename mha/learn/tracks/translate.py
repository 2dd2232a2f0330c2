"""Translate a step: the function is given in one framework, and is to be written in another."""

from dataclasses import replace

from mha.learn.exercise import NUMPY, StepExercise, Value
from mha.learn.tracks import turning, write
from mha.learn.tracks.table import SCALE

SCALED = replace(
    write.GROUPS,
    name="scaled-groups",
    task="q.k * scale, with grouped heads.",
    arguments=(*write.GROUPS.arguments, SCALE),
    returned=(Value("scores", "float64 (B, H, Lq, Lk)", "similarity"),),
    covers=("unscaled", "similarity"),
)

FUNCTIONS = {
    "split": "split_heads",
    "merge": "merge_heads",
    "scaled-groups": "dot_score",
    "softcap": "cap",
    "softmax": "softmax",
    "masked-softmax": "masked_softmax",
    "empty-row": "empty_row",
    "weighted-sum": "weighted_sum",
    **{one.name: one.function for one in turning.EXERCISES},
}
"""The exercise whose judge a translation shares -> the function to write."""

_BY_NAME = {one.name: one for one in (*write.EXERCISES, *turning.EXERCISES, SCALED)}


def into(framework: str) -> tuple[StepExercise, ...]:
    """Return the exercises that are translated into one framework.

    >>> [exercise.name for exercise in into("torch")][:2]
    ['split-heads-in-torch', 'merge-heads-in-torch']
    """
    return tuple(_translation(_BY_NAME[name], function, framework) for name, function in FUNCTIONS.items())


def _translation(source: StepExercise, function: str, framework: str) -> StepExercise:
    return replace(
        source,
        name=f"{function.replace('_', '-')}-in-{framework}",
        track="translate",
        task=f"Translate into {'NumPy' if framework == NUMPY else framework}: {source.task}",
        dialect=framework,
        source=source.name,
        function_name=function,
    )
