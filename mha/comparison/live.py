"""Run a subject on the recorded calls of an original, and return its answers as a recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases.problem import Problem
from conformance.subjects.ask import CannotExpress, SubjectFailed, ask
from conformance.subjects.subject import Subject
from mha.recordings.recording import RecordedLayer, Recording
from mha_core import SpecError
from mha_core.dtypes import round_to, storage_dtype
from mha_core.stages import stage_shapes
from mha_core.weights import Weights, check_weights

OWN = "own_weights"
"""Attribute of a subject with weights of its own: canonical weights, or a mapping of them by the name of the layer."""


class Answers(Recording):
    """The recording of the calls that a subject answered, which may be none."""

    def __post_init__(self) -> None:
        if self.calls:
            super().__post_init__()


def answered(
    original: Recording, subject_in: Callable[[str], Subject], progress: Callable[[str], None]
) -> tuple[Recording, dict[str, str]]:
    """A recording of a subject's answers to the calls of the original; and call -> why an answer can't be compared.

    Args:
        original: the recording whose config, weights and inputs the subject is given, in the subject's dtype.
        subject_in: makes the subject for a dtype, or for another dtype where it can't compute in that.
        progress: is told what is being done.
    """
    subjects: dict[str, Subject] = {}
    layers = list(original.layers)
    answers, failed = [], {}
    for name, call, problem in zip(original.names, original.calls, original.problems, strict=True):
        dtype = original.layers[call.layer].dtype
        if dtype not in subjects:
            subjects[dtype] = subject_in(dtype)
        subject = subjects[dtype]
        progress(f"{subject.name}: {name}")
        layer = layers[call.layer]
        if layer is original.layers[call.layer]:
            weights = _weights_of(subject, layer)
            layer = layers[call.layer] = replace(layer, kind=subject.name, dtype=subject.dtype, weights=weights)
        given = replace(problem, weights=layer.weights).rounded(subject.dtype)
        try:
            answers.append(replace(call, inputs=given.inputs, outputs=_answer(subject, given)))
        except (CannotExpress, SubjectFailed) as reason:
            failed[name] = f"it can't express the call: {reason}" if isinstance(reason, CannotExpress) else str(reason)
    return Answers(tuple(layers), tuple(answers)), failed


def _answer(subject: Subject, given: Problem) -> dict[str, np.ndarray]:
    """The subject's output, and its weights if it returns them. SubjectFailed for an output of another form."""
    trace = ask(subject, given)
    sizes = given.inputs.check(given.config)
    shapes = stage_shapes(given.config, sizes.batch, sizes.query_len, sizes.key_len)
    outputs = {name: array for name, array in trace.stages() if name in ("output", "weights")}
    for name, array in outputs.items():
        wanted = storage_dtype(subject.dtype)
        if (array.shape, array.dtype) != (shapes[name], wanted):
            form = f"{array.dtype} {array.shape}; it must be {wanted} {shapes[name]}"
            raise SubjectFailed(f"its {name} is {form}")
    return outputs


def _weights_of(subject: Subject, layer: RecordedLayer) -> Weights:
    """The weights of the original's layer, or the subject's own, rounded to the subject's dtype."""
    own: Any = getattr(getattr(subject, "original", subject), OWN, None)
    own = layer.weights if own is None else own
    if not isinstance(own, Mapping):
        raise SpecError(f"{OWN} of {subject.name} must be a mapping of weights. Got {type(own).__qualname__}.")
    if any(isinstance(value, Mapping) for value in own.values()):
        if layer.name not in own:
            raise SpecError(f"{OWN} of {subject.name} lacks the layer {layer.name!r} (it has: {', '.join(own)})")
        own = own[layer.name]
    weights = {name: round_to(np.asarray(array), subject.dtype) for name, array in own.items()}
    return check_weights(layer.config, weights)
