r"""Solved: the array at any step, parameter or number of the layer with which a model gives the subject's output.

    X = \arg\min_x |o - m(x)|        o measured, m the model's output with x in place of its own array

by Gauss and Newton's method, from the model's own array. Where several calls have the same array there, all of them
are equations for it. Elements that the outputs do not tell are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.experiments.changes.sample import Sample, Setting
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
    state: State = field(init=False, repr=False)
    _steps: dict[str, Step] = field(init=False)
    _runs: dict[int, tuple[State, Reads]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.problem = self.view.lab.rounded(self.problem)
        self._steps, _ = pipelines(*self.view.model)
        state, _ = self._run(1)
        self.state = state
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
    sizes = problem.sizes
    # Outputs of more queries than keys are sums of those of some of them.
    outputs = sizes.batch * min(sizes.query_len, sizes.key_len) * problem.config.output_dim
    varied = VARIED.get(name, ("out_proj.weight", "values"))
    count = math.ceil(1.3 * call.own.size / max(outputs, 1)) if varied else 1
    return [problem, *(_varied(view, problem, varied, number) for number in range(1, min(count, MOST_CALLS)))]


def _varied(view: View, problem: Problem, names: tuple[str, ...], number: int) -> Problem:
    rng = np.random.default_rng(abs(number) + 1000 * (number < 0))
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


# Matrices -----------------------------------------------------------------------------------------------

INPUTS: Mapping[str, str] = {"q_proj": "queries", "k_proj": "keys", "v_proj": "values", "out_proj": "values"}
"""Projection -> the layer's input that makes other rows for it."""

MOST_ROWS = 40
"""Calls that one matrix may take."""


def solved_matrix(view: View, problem: Problem, projection: str) -> tuple[NDArray, NDArray] | None:
    """The weight (out, in) of a projection as it takes effect, and the model's own; None if it can't be told.

    Y, what the projection gives, is solved for in calls of other inputs X, and Y = X W^T + b for W.
    """
    before, step = PROJECTED[projection]
    rows: list[NDArray] = []
    results: list[NDArray] = []
    own = problem.weights.get(f"{projection}.weight")
    count, gauge = 0, -2 if projection == "k_proj" else None
    while own is not None and count < MOST_ROWS and (not rows or _rank(rows) < own.shape[1]):
        call = _varied(view, problem, (INPUTS[projection],), -count) if count else problem
        read = solved(view, alike(view, call, step), step, gauge)
        if read is None or not np.isfinite(read[0]).all():
            return None
        state = _Call(view, call, step).state
        x, y = state[before], read[0] - state.parameters.get(f"{projection}.bias", 0.0)
        if gauge is not None:
            x, y = (array - array.mean(axis=gauge, keepdims=True) for array in (x, y))
        rows.append(x.reshape(-1, x.shape[-1]))
        results.append(y.reshape(-1, y.shape[-1]))
        count += 1
    if own is None or not rows or _rank(rows) < own.shape[1]:
        return None
    x, y = np.concatenate(rows), np.concatenate(results)
    found = np.linalg.lstsq(x, y, rcond=RANK)[0].T
    left = np.abs(x @ found.T - y).max(initial=0.0)
    return (found, own) if left <= max(1e2 * LEFT, 2e5 * view.lab.unit) * np.abs(y).max(initial=1e-300) else None


def _rank(rows: Sequence[NDArray]) -> int:
    return int(np.linalg.matrix_rank(np.concatenate(rows)))


# Samples ------------------------------------------------------------------------------------------------

Read = tuple[tuple[NDArray, NDArray], Problem]


def read_all(view: View, problems: Iterable[Problem], name: str, gauge: int | None = None) -> list[Read]:
    """What is solved for beside the model's own, for each problem that has such an array; none if one can't be."""
    found = []
    for problem in problems:
        calls = alike(view, problem, name)
        if not calls:
            continue
        projection, _, kind = name.partition(".")
        if kind == "weight" and projection in PROJECTED:
            read = solved_matrix(view, problem, projection)
        else:
            read = solved(view, calls, name, gauge)
        if read is None:
            return []
        if np.isfinite(read[0]).any():
            found.append((read, problem))
    return found


def sample_of(view: View, problem: Problem, measured: NDArray, own: NDArray, axes: tuple[str, ...]) -> Sample:
    unit, least = max(1e-12, 100.0 * view.lab.unit), 1e-9 * float(np.abs(own).max(initial=0.0))
    return Sample(measured, own, axes, Setting(problem.config, problem.sizes), unit=unit, least=least)


def samples_of(
    view: View, problems: Iterable[Problem], name: str, axes: tuple[str, ...], gauge: int | None = None
) -> list[Sample]:
    return [sample_of(view, problem, *read, axes) for read, problem in read_all(view, problems, name, gauge)]
