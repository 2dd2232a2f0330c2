"""Elements, calls and arrays in words."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from conformance.cases.problem import Problem
from mha.learn.bench import Place
from mha.learn.exercise import StepExercise

LARGE = 60
"""Elements of an array that is still printed whole."""


def at(index: tuple[int, ...]) -> str:
    """An index as it is written.

    >>> at((1, 0, 2)), at(())
    ('[1, 0, 2]', '')
    """
    return f"[{', '.join(map(str, index))}]" if index else ""


def described(problem: Problem) -> str:
    """The sizes and the mask of a problem, such as "B=2 H=3 Lq=5 Lk=7, causal"."""
    sizes, config, mask = problem.sizes, problem.config, problem.inputs.mask
    named = {"B": sizes.batch, "H": config.num_heads, "Lq": sizes.query_len, "Lk": sizes.key_len}
    if config.num_kv_heads != config.num_heads:
        named["G"] = config.num_kv_heads
    if sizes.past_len:
        named["Lp"] = sizes.past_len
    parts = [" ".join(f"{name}={size}" for name, size in named.items())]
    if mask.valid_lens is not None:
        parts.append(f"lengths {np.asarray(mask.valid_lens).tolist()}")
    parts += ["causal"] if mask.causal else []
    parts += [f"window {mask.window}"] if mask.window is not None else []
    if mask.has_positions and np.any(mask.query_offset):
        parts.append(f"offset {np.asarray(mask.query_offset).tolist()}")
    parts += [name for name in ("allowed", "bias") if getattr(mask, name) is not None]
    return ", ".join(parts)


def given_to(exercise: StepExercise, place: Place) -> str:
    """What the function gets in a case, and must return: dtypes and shapes."""
    named = dict(zip(exercise.parameters, place.arguments, strict=True))
    made = {f"to be returned: {one.name}": array for one, array in zip(exercise.returned, place.wanted, strict=True)}
    lines = [f"case {place.case.id}: {described(place.problem)}"]
    for name, value in {**named, **made}.items():
        lines.append(f"  {name}: {f'{value.dtype} {value.shape}' if isinstance(value, np.ndarray) else value}")
    return "\n".join(lines)


def written_out(exercise: StepExercise, place: Place, answer: tuple[Any, ...], row: tuple[int, ...]) -> str:
    """A case with its arguments, what was returned and what is right, in numbers; `row` alone of large arrays."""
    lines = [f"case {place.case.id}: {described(place.problem)}"]
    named = dict(zip(exercise.parameters, place.arguments, strict=True))
    for one, array, wanted in zip(exercise.returned, answer, place.wanted, strict=True):
        named[f"your {one.name}"] = array
        named[f"right {one.name}"] = wanted
    rows = place.wanted[0].shape[: len(row)]
    with np.printoptions(precision=4, suppress=True, threshold=LARGE, linewidth=100):
        for name, value in named.items():
            if not isinstance(value, np.ndarray):
                shown = str(value)
            elif row and value.size > LARGE and value.shape[:-1] == rows:
                shown = f"{value.shape}, of which {at(row)}\n{value[row]!s}"
            elif row and value.size > LARGE and value.shape[:-2] == rows[:-1]:
                shown = f"{value.shape}, of which {at(row[:-1])}\n{value[row[:-1]]!s}"
            else:
                shown = f"{value.shape}\n{value!s}"
            lines.append(textwrap.indent(f"{name} {shown}", "  "))
    return "\n".join(lines)
