"""The example in a file: what goes in, what must come out, in numbers that can be followed by hand."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.cases.case import Case
from mha.learn.answers.larger import cut_heads
from mha.learn.exercise import CatchExercise, Exercise, HeadsExercise, LayerExercise, NumbersExercise, StepExercise
from mha_core import AttentionConfig, init_weights
from mha_core.reference import pipeline as reference

DIGITS = 3
"""Digits of what is shown, behind the point."""


def example(exercise: Exercise) -> str:
    r"""Return the example in an exercise's file; "" if the file shows the whole call already.

    >>> from mha.learn.exercises import exercise
    >>> print(example(exercise("causal-offsets")).removeprefix("Example:\n"))
        query_len = 2
        key_len = 3
        offsets (1,) =
          [1]
      gives
        allowed (1, 1, 2, 3) =
          [[[[ True  True False]
             [ True  True  True]]]]
    """
    if isinstance(exercise, CatchExercise):
        return ""
    if isinstance(exercise, NumbersExercise):
        first = exercise.intervals[0]
        asked = ", ".join(map(str, first.arguments))
        return f"Example: {exercise.function}({asked}) lies in {first.low:g} to {first.high:g}."
    if isinstance(exercise, HeadsExercise):
        return _of_heads(exercise)
    assert isinstance(exercise, (StepExercise, LayerExercise))
    case = exercise.tiny if isinstance(exercise, LayerExercise) else exercise.tiny[:2][-1]
    return _of_case(exercise, case)


def _of_case(exercise: StepExercise | LayerExercise, case: Case) -> str:
    problem = case.build()
    backward = isinstance(exercise, StepExercise) and exercise.backward
    inputs = problem.inputs if backward else replace(problem.inputs, cotangent=None)
    state = reference.run_state(problem.config, problem.weights, inputs)
    given = {argument.name: argument.read(state) for argument in exercise.arguments}
    return _written(given, {one.name: np.asarray(one.read(state.arrays)) for one in exercise.returned})


def _of_heads(exercise: HeadsExercise) -> str:
    if exercise.kind == "importance":
        return "Example: a head that adds nothing, as its columns of out_proj.weight are 0, is the least important."
    weights = init_weights(AttentionConfig(2, 2), seed=0)
    made = cut_heads({**weights, "out_proj.bias": np.zeros(2)}, [1], 2)
    shown = {name: made[name] for name in weights}  # without the biases, which any reader can follow
    return _written({"weights": weights, "kept": [1], "num_heads": 2}, {"cut": shown})


def _written(given: Mapping[str, Any], made: Mapping[str, Any]) -> str:
    show = partial(textwrap.indent, prefix="    ")
    return "\n".join(["Example:", *map(show, _lines(given)), "  gives", *map(show, _lines(made))])


def _lines(values: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += _lines({f'{name}["{key}"]': one for key, one in value.items()})
        elif isinstance(value, np.ndarray):
            array = value + 0.0 if value.dtype.kind == "f" else value  # -0. is 0.
            with np.printoptions(precision=DIGITS, suppress=True, linewidth=90):
                lines += [f"{name} {value.shape} =", textwrap.indent(str(array), "  ")]
        else:
            lines.append(f"{name} = {round(value, DIGITS) if isinstance(value, float) else value}")
    return lines


__all__ = ["DIGITS", "example"]
