"""Tolerance: what a layer must give, and how far each element of it may lie off, for a test of one's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.judging.compare import compare
from conformance.judging.expected import Expected, answer
from conformance.subjects.answers import kind_of
from conformance.subjects.handout import given_arrays, with_arrays
from mha.recordings.recording import Recording
from mha_core import AttentionConfig, AttentionInputs, SpecError, Trace
from mha_core.dtypes import check_dtype, check_held, storage_dtype
from mha_core.errors import one_line


@dataclass(frozen=True, eq=False)
class Tolerance:
    """The right result of one stage of attention (such as "scores"), and the rounding error allowed in each element.

    Attributes:
        stage: "output", another stage's name, or "gradients.NAME".
        dtype: the dtype in which the judged layer computes.
        answer: the reference's stages and their allowed errors, for weights and inputs rounded to `dtype`.
    """

    stage: str
    dtype: str
    answer: Expected

    def at(self, stage: str) -> Tolerance:
        """Return the Tolerance of another stage, or of a gradient ("gradients.keys") if the inputs have a cotangent.

        Raises:
            SpecError: there is no such stage.
        """
        names = tuple(self.answer.allowed_error)
        if stage not in names:
            raise SpecError(f"there is no stage {stage!r} (there are: {', '.join(names)})")
        return Tolerance(stage, self.dtype, self.answer)

    @property
    def expected(self) -> NDArray[np.float64]:
        """Return the right result: the reference's in float64, from weights and inputs that are rounded to `dtype`."""
        return self.answer.trace.arrays()[self.stage]

    @property
    def allowed(self) -> NDArray[np.float64]:
        """Return the allowed error of each element, float64; 0 where rounding can cause no error.

        It is infinity for the score of a masked key, which may be any number.
        """
        found = self.answer.allowed_error[self.stage]
        return np.where(self.answer.where, found, np.inf) if self.stage == "scores" else found

    def assert_close(self, actual: Any) -> None:
        """Raise AssertionError if an element is further off than is allowed, with the same message as in `mha check`.

        A NaN equals only NaN, and an infinity only itself.

        Args:
            actual: an array of any framework, or of NumPy.

        Raises:
            AssertionError: an element differs.
            SpecError: `actual` has another shape, or numbers that `dtype` can't hold.
        """
        array, wanted = as_numpy(self.stage, actual), self.expected
        if array.shape != wanted.shape:
            raise SpecError(f"{self.stage} must have shape {wanted.shape}. Got {array.shape}.")
        if array.dtype.kind != "f":
            raise SpecError(f"{self.stage} must hold floating-point numbers. Got {array.dtype}.")
        check_held(self.stage, array, self.dtype)
        given = Trace.of_arrays({self.stage: array.astype(storage_dtype(self.dtype))})
        right = Trace.of_arrays({self.stage: wanted})
        compare(given, right, self.answer.allowed_error, self.answer.where, self.dtype)


def tolerance(config: AttentionConfig, weights: Mapping[str, Any], inputs: AttentionInputs, dtype: str) -> Tolerance:
    """Return the right results of a layer with these weights and inputs, and the allowed error of each element.

    The bounds are those of `mha check`, derived for a layer that computes in `dtype`, with products and softmax in at
    least float32. Weights and inputs are rounded to `dtype` first; give the layer the rounded ones too.

    Args:
        config, weights, inputs: the layer (canonical name -> weight) and its call. Arrays may be of any framework.
        dtype: "float64", "float32", "float16" or "bfloat16".

    Raises:
        SpecError: config, weights and inputs do not fit each other, or there is no such dtype.

    >>> from mha_core import init_weights
    >>> config = AttentionConfig(6, 2)
    >>> weights, x = init_weights(config, seed=0), np.random.default_rng(0).normal(size=(1, 3, 6))
    >>> found = tolerance(config, weights, AttentionInputs(x, x, x), "float32")
    >>> found.allowed.shape == found.expected.shape, bool(found.allowed.max() < 1e-5)
    (True, True)
    >>> found.assert_close(found.expected.astype("float32"))
    """
    if not isinstance(config, AttentionConfig) or not isinstance(inputs, AttentionInputs):
        odd, kind = (
            (config, "AttentionConfig") if not isinstance(config, AttentionConfig) else (inputs, "AttentionInputs")
        )
        raise SpecError(f"tolerance takes (config, weights, inputs, dtype); expected an {kind}. Got {kind_of(odd)}.")
    if not isinstance(weights, Mapping):
        raise SpecError(f"weights must be a dict by canonical name. Got {kind_of(weights)}.")
    arrays = {name: as_numpy(name, one) for name, one in given_arrays(inputs).items()}
    inputs = with_arrays(inputs, arrays)
    held = {name: as_numpy(str(name), array) for name, array in weights.items()}
    return _of(Problem(config, held, inputs), dtype)


def tolerance_of(
    recording: Recording | str | os.PathLike[str], call: str | int = 0, dtype: str | None = None
) -> Tolerance:
    """Return the right results of a recorded call and their allowed errors, as `mha.tolerance` does.

    Args:
        recording: a recording by `mha.capture`, or its file.
        call: the call's name (`Recording.names`), or its position.
        dtype: the dtype in which the judged layer computes. Default: that of the recorded layer.

    Raises:
        SpecError: there is no such call or dtype, or the file is no recording.
    """
    held = recording if isinstance(recording, Recording) else Recording.load(recording)
    names = held.names
    position = names.index(call) if call in names else call
    if isinstance(position, bool) or not isinstance(position, int) or not -len(names) <= position < len(names):
        raise SpecError(f"there is no call {call!r} (there are {len(names)}: {', '.join(names)})")
    return _of(held.problems[position], held.layer_of(position).dtype if dtype is None else dtype)


def _of(problem: Problem, dtype: str) -> Tolerance:
    if not isinstance(dtype, str):
        raise SpecError(f"dtype must be a name, such as 'float32'. Got {kind_of(dtype)}.")
    return Tolerance("output", dtype, answer(problem, Precision.of(check_dtype(dtype))))


def as_numpy(name: str, value: Any) -> NDArray:
    """Return an array of any framework as a NumPy array; bfloat16 becomes float32, which holds it exactly.

    Raises:
        SpecError: it is no array.
    """
    try:
        if hasattr(value, "asnumpy"):  # MXNet's, which have `detach` too
            value = value.asnumpy()
        elif hasattr(value, "detach"):  # PyTorch's
            value = value.detach().cpu()
            value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        array = np.asarray(value)
    except Exception as error:  # whatever a framework says of an array without numbers, or of lists of several lengths
        raise SpecError(f"{name} can't be made an array of NumPy: {one_line(error)}") from error
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
