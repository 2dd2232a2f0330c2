"""Translate a step: the function is given in one framework, and is to be written in another."""

from __future__ import annotations

from dataclasses import dataclass

from mha.learn.exercise import NUMPY, Argument, StepExercise
from mha.learn.tracks import write


@dataclass(frozen=True)
class _Row:
    """What is translated.

    source: the exercise whose judge it shares. function: its name in every backend. of: its arguments, if others.
    in_numpy: where it is given in NumPy, module:symbol; "" where NumPy's is no function of arrays.
    in_backend: where it is in a backend, below `backends.NAME`.
    """

    source: str
    function: str
    in_backend: str
    in_numpy: str = ""
    of: tuple[Argument, ...] = ()


_BY_NAME = {one.name: one for one in write.EXERCISES}
_SCALE = Argument("scale", "float", lambda state: state.config.softmax_scale)

ROWS = (
    _Row("split", "split_heads", "ops.heads:split_heads", "mha_core.heads:split_heads"),
    _Row("merge", "merge_heads", "ops.heads:merge_heads", "mha_core.heads:merge_heads"),
    _Row(
        "groups",
        "dot_score",
        "ops.attention:dot_score",
        of=(*_BY_NAME["groups"].arguments, _SCALE),
    ),
    _Row("softcap", "cap", "ops.attention:cap"),
    _Row("softmax", "softmax", "ops.attention:masked_softmax", "mha_core.reference.forward:softmax"),
    _Row("empty-row", "masked_softmax", "ops.attention:masked_softmax", "mha_core.reference.forward:softmax"),
    _Row("weighted-sum", "weighted_sum", "ops.attention:weighted_sum"),
)


def into(framework: str) -> tuple[StepExercise, ...]:
    """The translations into one framework.

    >>> [exercise.name for exercise in into("torch")][:2]
    ['split-heads-in-torch', 'merge-heads-in-torch']
    """
    return tuple(_translation(row, framework) for row in ROWS)


def _translation(row: _Row, framework: str) -> StepExercise:
    source = _BY_NAME[row.source]
    other = "jax" if framework == "torch" else "torch"
    given = row.in_numpy if row.in_numpy and framework != NUMPY else f"backends.{other}.{row.in_backend}"
    scaled = bool(row.of)
    what = "q.k * scale, with grouped heads." if scaled else source.task
    return StepExercise(
        name=f"{row.function.replace('_', '-')}-in-{framework}",
        track="translate",
        task=f"Translate into {'NumPy' if framework == NUMPY else framework}: {what}",
        rules=source.rules,
        answer=source.answer,
        answer_in=(row.in_backend,),
        dialect=framework,
        arguments=row.of or source.arguments,
        returned=_scaled() if scaled else source.returned,
        covers=("unscaled", "similarity") if scaled else source.covers,
        cases=source.cases,
        tiny=source.tiny,
        given=given,
        function_name=row.function,
    )


def _scaled() -> tuple[write.Returned, ...]:
    return (write.Returned("scores", "float64 (B, H, Lq, Lk)", write.step("similarity")),)
