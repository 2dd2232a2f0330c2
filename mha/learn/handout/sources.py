"""Short right answers, read from the files of `answers`: no framework is imported for it."""

import ast
from functools import cache
from pathlib import Path

from mha.learn.exercise import (
    NUMPY,
    CatchExercise,
    Exercise,
    HeadsExercise,
    LayerExercise,
    NumbersExercise,
    StepExercise,
)
from mha_core.errors import SpecError

ANSWERS = Path(__file__).parents[1] / "answers"


@cache
def source(file: str, symbol: str) -> str:
    """Return the source of the function or class `symbol` in answers/FILE.py.

    >>> print(source("in_numpy", "weighted_sum"))
    def weighted_sum(weights, values):
        return weights @ values
    >>> source("in_numpy", "weighted_some")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: answers/in_numpy.py has no 'weighted_some'
    """
    text = (ANSWERS / f"{file}.py").read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == symbol:
            return "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
    raise SpecError(f"answers/{file}.py has no {symbol!r}")


def answer(exercise: Exercise, dialect: str = "") -> str:
    """Return the code of a short right answer, which replaces the code in the learner's file.

    Args:
        dialect: the framework of the answer, if the exercise is translated into it. Default: the exercise's own.
    """
    if isinstance(exercise, CatchExercise):
        return source("larger", "problem")
    if isinstance(exercise, LayerExercise) and exercise.dialect != NUMPY:
        return source(f"in_{exercise.dialect}", "MultiHeadAttention")
    if isinstance(exercise, LayerExercise):
        return "\n\n\n".join(
            (source("larger", "Attention" if exercise.has_state else exercise.subject), source("larger", "softmax"))
        )
    if isinstance(exercise, (HeadsExercise, NumbersExercise)) or exercise.track == "experiment":
        return source("larger", exercise.function)
    assert isinstance(exercise, StepExercise)
    dialect = dialect or exercise.dialect
    if dialect != NUMPY:
        return source(f"in_{dialect}", exercise.function)
    name = (exercise.source or exercise.name).replace("-", "_")
    return source(f"in_{NUMPY}", name).replace(f"def {name}(", f"def {exercise.function}(", 1)
