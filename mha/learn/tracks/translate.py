"""Translate a step: the function is given in one framework, and is to be written in another."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mha.learn.exercise import NUMPY, StepExercise, Value
from mha.learn.tracks import write

SCALED = StepExercise(
    name="scaled-groups",
    task="q.k * scale, with grouped heads.",
    arguments=(*write.GROUPS.arguments, write.SCALE),
    returned=(Value("scores", "float64 (B, H, Lq, Lk)", "similarity"),),
    covers=("unscaled", "similarity"),
    rules=write.GROUPS.rules,
    cases=write.GROUPS.cases,
    tiny=write.GROUPS.tiny,
    answer=write.GROUPS.answer,
)


@dataclass(frozen=True)
class _Row:
    """What is translated.

    source: the exercise whose judge it shares. in_backend: where it is in a backend, below `backends.NAME`.
    in_numpy: where it is given in NumPy, module:symbol; "" where NumPy's is no function of arrays.
    function: what the learner writes. Default: the name in the backend.
    """

    source: str
    in_backend: str
    in_numpy: str = ""
    function: str = ""


_BY_NAME = {one.name: one for one in (*write.EXERCISES, SCALED)}

ROWS = (
    _Row("split", "ops.heads:split_heads", "mha_core.heads:split_heads"),
    _Row("merge", "ops.heads:merge_heads", "mha_core.heads:merge_heads"),
    _Row("scaled-groups", "ops.attention:dot_score"),
    _Row("softcap", "ops.attention:cap"),
    _Row("softmax", "ops.attention:masked_softmax", "mha_core.reference.forward:softmax", "softmax"),
    _Row("empty-row", "ops.attention:masked_softmax", "mha_core.reference.forward:softmax"),
    _Row("weighted-sum", "ops.attention:weighted_sum"),
)


def into(framework: str) -> tuple[StepExercise, ...]:
    """The translations into one framework.

    >>> [exercise.name for exercise in into("torch")][:2]
    ['split-heads-in-torch', 'merge-heads-in-torch']
    """
    return tuple(_translation(row, framework) for row in ROWS)


def _translation(row: _Row, framework: str) -> StepExercise:
    source = _BY_NAME[row.source]
    function = row.function or row.in_backend.partition(":")[2]
    other = "jax" if framework == "torch" else "torch"
    given = row.in_numpy if row.in_numpy and framework != NUMPY else f"backends.{other}.{row.in_backend}"
    return replace(
        source,
        name=f"{function.replace('_', '-')}-in-{framework}",
        track="translate",
        task=f"Translate into {'NumPy' if framework == NUMPY else framework}: {source.task}",
        answer_in=(row.in_backend,),
        dialect=framework,
        given=given,
        function_name=function,
    )
