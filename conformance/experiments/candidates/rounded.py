"""A step or a parameter rounded to fewer digits: tried wherever a subject is only a little off."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.changes.elements.roundings import to_bits
from conformance.experiments.measured import on_parameter, on_step
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from conformance.zoo.forward.precision import to_tf32
from mha_core.dtypes import round_to
from mha_core.reference.state import State

LITTLE = 0.1
"""Of the largest number of an output; what rounds to eight bits is off by less."""

FIX = "Keep every step in the dtype of the inputs."

STEPS = {
    "query_inputs": "The queries' inputs",
    "key_inputs": "The keys' inputs",
    "value_inputs": "The values' inputs",
    "queries": "Queries",
    "keys": "Keys",
    "values": "Values",
    "unscaled": "Scores before the scale",
    "similarity": "Scores before the bias",
    "scores": "Scores",
    "weights": "Weights",
    "heads": "Heads",
    "output": "Outputs",
}

MATRICES = {
    "q_proj": "q_proj.weight",
    "k_proj": "k_proj.weight",
    "v_proj": "v_proj.weight",
    "output": "out_proj.weight",
}
"""Step -> its matrix."""


def _of(dtype: str) -> Callable[[NDArray], NDArray]:
    return lambda array: round_to(array, dtype).astype(np.float64)


def _bits(array: NDArray) -> NDArray:
    """127 steps of the largest number to either side."""
    with any_numbers:
        step = np.abs(array).max(initial=0.0) / 127.0
        return np.round(array / step) * step if step > 0.0 and np.isfinite(step) else array


def _decimals(count: int) -> Callable[[NDArray], NDArray]:
    return lambda array: np.round(array, count)


KINDS: dict[str, Callable[[NDArray], NDArray]] = {
    "bfloat16": _of("bfloat16"),
    "float16": _of("float16"),
    "float32": _of("float32"),
    "TF32": to_tf32,
    "8 significant bits": lambda array: to_bits(array, 8),  # bfloat16 without a way through float32
    "8 bits of the largest": _bits,
    **{f"{count} decimals": _decimals(count) for count in (1, 2, 3, 4)},
}


def rounded(view: View) -> Iterator[Bug]:
    """Each step and each matrix rounded to each kind, if the first differing output is only a little off."""
    problem = next(view.differing(), None)
    if problem is None:
        return
    got, made = view.got(problem), view.made(problem)
    if got is None or made is None or not np.isfinite(got).all():
        return
    if np.abs(got - made).max(initial=0.0) > LITTLE * np.abs(made).max(initial=0.0):
        return
    for kind, change in KINDS.items():
        for step, words in STEPS.items():
            slug = f"{step}-rounded-to-{kind.replace(' ', '-')}"
            yield on_step(step, slug, _second(change), f"{words} are rounded to {kind}.", FIX)
        for step, name in MATRICES.items():
            slug, sentence = f"{name}-rounded-to-{kind.replace(' ', '-')}", f"{name} is rounded to {kind}."
            yield on_parameter(step, name, slug, _second(change), sentence, FIX)


def _second(change: Callable[[NDArray], NDArray]) -> Callable[[State, NDArray], NDArray]:
    return lambda state, array: change(array)
