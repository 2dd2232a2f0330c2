r"""Solved: the array at any step, parameter or number of the layer with which a model gives the subject's output.

    X = \arg\min_x |o - m(x)|        o measured, m the model's output with x in place of its own array

by Gauss and Newton's method, from the model's own array. Where several calls have the same array there, all of them
are equations for it. Elements that the outputs do not tell are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.experiments.designs import changed, resized
from conformance.experiments.view import View
from conformance.zoo.bug import DoesNotApply, pipelines
from conformance.zoo.rerun import Reads, noted_run, rerun
from mha_core import AttentionConfig
from mha_core.errors import SpecError
from mha_core.reference.forward import PROJECTED
from mha_core.reference.state import State, Step

MOST_UNKNOWN = 400
"""Elements of an array that are looked for: each takes a run of the model."""

STEPS = 12
"""Most steps of Gauss and Newton."""

LEFT = 1e-9
"""Of the largest output, what may be left; more in coarser arithmetic."""

RANK = 1e-7
"""Singular values below this part of the largest count as 0."""

NUMBERS = ("scale", "softcap")
"""Numbers of a layer's config that may be read as arrays of one element."""

READERS: Mapping[str, str] = {
    "score.query.weight": "additive_hidden",
    "score.key.weight": "additive_hidden",
    "score.vector": "unscaled",
    "scale": "similarity",
    "softcap": "capped",
    **{f"{name}.{kind}": step for name, (_, step) in PROJECTED.items() for kind in ("weight", "bias")},
}
"""Parameter, or number of the config -> the step that reads it."""


def number_of(config: AttentionConfig, name: str) -> float | None:
    """One of NUMBERS: the scale that scores are multiplied by, also one that is not given; None if there is none."""
    if name == "scale":
        return config.softmax_scale if config.score == "scaled_dot" else None
    return config.softcap


def with_number(config: AttentionConfig, name: str, number: float) -> AttentionConfig:
    """The config with another of NUMBERS.

    Raises:
        DoesNotApply: it can't be that number.
    """
    given: dict[str, Any] = {name: number}
    try:
        return replace(config, **given)
    except SpecError as error:
        raise DoesNotApply(str(error)) from error


@dataclass(eq=False)
class _Call:
    """One call of the subject, and the model's run of it, with another array in one place.

    Args:
        view: has the subject and the model.
        problem: the call.
        name: a step, a parameter, or one of NUMBERS.
    """

    view: View
    problem: Problem
    name: str
    own: NDArray | None = field(init=False)
    _steps: dict[str, Step] = field(init=False)
    _runs: dict[int, tuple[State, Reads]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.problem = self.view.lab.rounded(self.problem)
        self._steps, _ = pipelines(*self.view.model)
        state, _ = self._run(1)
        if self.name in NUMBERS:
            number = number_of(state.config, self.name)
            self.own = None if number is None else np.array([number])
        else:
            self.own = state.parameters.get(self.name) if self.name in READERS else state[self.name]

    def _run(self, copies: int) -> tuple[State, Reads]:
        """The model's run, every item so many times."""
        if copies not in self._runs:
            sizes = self.problem.sizes
            call = resized(self.problem, copies * sizes.batch, sizes.query_len, sizes.key_len)
            inputs = replace(call.inputs, cotangent=None)
            self._runs[copies] = noted_run(call.config, call.weights, inputs, forward=self._steps)
        return self._runs[copies]

    def outputs(self, arrays: NDArray) -> NDArray:
        """(n, elements of the output): with each of n arrays in the place of the model's own."""
        if self.name in READERS:
            return np.stack([self._with_parameter(array) for array in arrays])
        state, reads = self._run(len(arrays))
        joined = arrays.reshape(-1, *arrays.shape[2:])
        found, _ = rerun(state, {**self._steps, self.name: lambda state: joined}, {self.name}, reads=reads)
        return np.asarray(found["output"].reshape(len(arrays), -1))

    def _with_parameter(self, array: NDArray) -> NDArray:
        state, reads = self._run(1)
        changed = state.copy()
        if self.name in NUMBERS:
            changed.config = with_number(state.config, self.name, float(array[0]))
        else:
            changed.parameters = {**state.parameters, self.name: array}
        found, _ = rerun(changed, self._steps, {READERS[self.name]}, reads=reads)
        return np.asarray(found["output"].ravel())


def solved(
    view: View, problems: Sequence[Problem], name: str, gauge: int | None = None
) -> tuple[NDArray, NDArray] | None:
    """The array with which the model gives what the subject does, and the model's own.

    Args:
        view: has the subject and the model.
        problems: calls in all of which the array is the same one.
        name: a step, a parameter, or one of NUMBERS.
        gauge: the axis along which a number that is the same for all elements changes no output; such numbers are
            chosen so that the mean along it stays as it is.

    Returns:
        (measured, the model's); elements that the outputs don't tell are NaN. None if there is no such array, or it
        has too many elements.
    """
    try:
        with any_numbers:
            return _solved([_Call(view, problem, name) for problem in problems], gauge)
    except (DoesNotApply, np.linalg.LinAlgError):
        return None


def _solved(calls: Sequence[_Call], gauge: int | None) -> tuple[NDArray, NDArray] | None:
    view, own = calls[0].view, calls[0].own
    answers = [view.got(call.problem) for call in calls]
    if own is None or not 0 < own.size <= MOST_UNKNOWN or any(answer is None for answer in answers):
        return None
    if any(call.own is None or not np.array_equal(call.own, own) for call in calls):
        return None
    wanted = np.concatenate([np.ravel(answer) for answer in answers if answer is not None])
    if not np.isfinite(wanted).all() or not np.isfinite(own).all():
        return None
    fixed = _sums(own.shape, gauge)

    def outputs(arrays: NDArray) -> NDArray:
        return np.concatenate([call.outputs(arrays) for call in calls], axis=1)

    found = _descended(outputs, np.asarray(own, np.float64), wanted, fixed)
    if found is None:
        return None
    array, left, slopes = found
    if left > max(LEFT, 2e3 * view.lab.unit) * np.abs(wanted).max(initial=1e-300):
        return None
    return np.where(_told(slopes).reshape(own.shape), array, np.nan), own


VARIED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("output", "merged"), ()),
    **dict.fromkeys(("heads", "values", "new_values", "v_proj", "value_inputs", "v_proj.weight"), ("out_proj.weight",)),
    **dict.fromkeys(("queries", "q_proj", "query_inputs"), ("out_proj.weight", "values", "keys")),
    **dict.fromkeys(("keys", "new_keys", "k_proj", "key_inputs"), ("out_proj.weight", "values", "queries")),
}
"""Step -> the weight and inputs that don't change its array; of others: the output's weight, the values."""

MOST_CALLS = 6


def alike(view: View, problem: Problem, name: str) -> list[Problem]:
    """As many calls with the same array as there must be to tell it; none if there is no such array of a usual size."""
    call = _Call(view, problem, name)
    if call.own is None or not 0 < call.own.size <= MOST_UNKNOWN:
        return []
    outputs = problem.sizes.batch * problem.sizes.query_len * problem.config.output_dim
    varied = VARIED.get(name, ("out_proj.weight", "values"))
    count = math.ceil(1.3 * call.own.size / max(outputs, 1)) if varied else 1
    return [problem, *(_varied(view, problem, varied, number) for number in range(1, min(count, MOST_CALLS)))]


def _varied(view: View, problem: Problem, names: tuple[str, ...], number: int) -> Problem:
    rng = np.random.default_rng(number)
    fixed = view.lab.fixed_weights is not None
    weights = {name: rng.normal(size=problem.weights[name].shape) for name in names if name in problem.weights}
    given = {name: rng.normal(size=getattr(problem.inputs, name).shape) for name in names if "." not in name}
    return changed(problem, {} if fixed else weights, **given)


def _sums(shape: tuple[int, ...], gauge: int | None) -> NDArray:
    """(k, elements): what each sum along an axis is made of; no rows without an axis."""
    size = int(np.prod(shape))
    if gauge is None:
        return np.zeros((0, size))
    return np.eye(size).reshape(size, *shape).sum(axis=gauge).reshape(size, -1).T


def _descended(
    outputs: Callable[[NDArray], NDArray], array: NDArray, wanted: NDArray, fixed: NDArray
) -> tuple[NDArray, float, NDArray] | None:
    """(the array, the largest difference that is left, the outputs' slopes there); None if they don't come closer."""
    width = 1e-6 * max(1e-3, float(np.abs(array).max(initial=0.0)))
    units = width * np.eye(array.size).reshape(-1, *array.shape)

    def slopes_at(array: NDArray) -> tuple[NDArray, NDArray]:
        made = outputs(np.concatenate([array[None], array + units]))
        slopes = (made[1:] - made[0]).T / width
        return wanted - made[0], np.concatenate([slopes, fixed * np.abs(slopes).max(initial=0.0)])

    off, slopes = slopes_at(array)
    size = np.linalg.norm(off)
    for step in range(STEPS):
        if not np.isfinite(slopes).all() or not np.isfinite(size):
            return None
        forward = np.linalg.lstsq(slopes, np.concatenate([off, np.zeros(len(fixed))]), rcond=RANK)[0]
        for shorter in (1.0, 0.3, 0.1):
            after = array + shorter * forward.reshape(array.shape)
            left = np.linalg.norm(wanted - outputs(after[None])[0])
            if left < size:
                break
        else:
            break
        if step > 3 and left > 0.5 * size and left > 1e-6 * np.linalg.norm(wanted):
            return None
        array, size = after, left
        off, slopes = slopes_at(array)
        if size <= 1e-14 * np.linalg.norm(wanted):
            break
    return array, float(np.abs(off).max(initial=0.0)), slopes


def _told(slopes: NDArray) -> NDArray[np.bool_]:
    """Which elements the outputs tell: those that no combination without effect contains."""
    _, sizes, directions = np.linalg.svd(slopes, full_matrices=True)
    rank = int((sizes > RANK * sizes[0]).sum()) if len(sizes) and sizes[0] > 0.0 else 0
    return np.asarray(np.abs(directions[rank:]).max(axis=0, initial=0.0) < 1e-6)
