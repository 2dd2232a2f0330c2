"""Explain: find the bug, or pair of bugs, that gives the recorded outputs where they differ from the definition."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from conformance.diagnosis.diagnose import Diagnosis
from conformance.diagnosis.diagnose import diagnose as find_bugs
from conformance.subjects.items import take_items
from conformance.zoo.registry import all_bugs
from mha.recordings.packing_bugs import packing_bugs
from mha.recordings.recording import Recording
from mha.recordings.replay import RecordedSubject, check_reproduced, judge_recording, selected
from mha_core import AttentionConfig, SpecError
from mha_core.weights import Weights, load_weights


def explain(
    recording: Recording, *, patterns: Sequence[str] = ("*",), progress: Callable[[str], None] = lambda what: None
) -> list[Diagnosis]:
    """Diagnose a recording that differs from the definition, once for each dtype in it.

    A hypothesis must give the recorded output in every call of that dtype. The zoo's bugs are tried, and the
    ways in which packed weights can be read wrongly. Of a large batch two items are looked at: the one that
    is furthest off and another one.
    """
    recording = _two_items_each(recording)
    known = selected(recording, patterns)
    found = []
    for dtype in recording.dtypes:
        cases = [case for case in recording.cases(dtype) if case.id in known]
        if cases:
            bugs = [*all_bugs(), *packing_bugs()]
            subject = RecordedSubject(recording, dtype)
            found.append(find_bugs(subject, cases, bugs=bugs, progress=progress))
    return found


SMALL = 100_000
"""Elements of an output below which the whole batch is used."""


def _two_items_each(recording: Recording) -> Recording:
    """The recording with at most two batch items in each call that has a large output: the worst one and another."""
    worst = {result.case: result.mismatches[0].index for result in judge_recording(recording) if result.mismatches}
    calls = []
    for name, call in zip(recording.names, recording.calls, strict=True):
        batch = call.inputs.queries.shape[0]
        if batch > 2 and call.outputs["output"].size > SMALL:
            first = (worst.get(name) or (0,))[0]
            items = np.array([first, (first + 1) % batch])
            outputs = {name: array[items] for name, array in call.outputs.items()}
            call = replace(call, inputs=take_items(call.inputs, items), outputs=outputs)
        calls.append(call)
    return replace(recording, calls=tuple(calls))


def intended(recording: Recording, path: str | os.PathLike[str]) -> tuple[Recording, list[str]]:
    """The recording with the weights of a file in its layers, and a line for each layer that names the differences.

    Args:
        recording: calls of a layer, or of several, that were ported.
        path: canonical weights, for a recording of one layer; or a recording of the original, whose layers are
            taken by name or, if it has other names, in their order.

    Raises:
        SpecError: the file holds neither, or its layers do not fit.
    """
    names = list(dict.fromkeys(layer.name for layer in recording.layers))
    original = meant_by(path)
    if isinstance(original, Recording):
        theirs = {layer.name: (layer.config, layer.weights) for layer in original.layers}
        if not set(names) <= set(theirs):
            if len(names) != len(theirs):
                raise SpecError(
                    f"{path} must have the layers that were recorded, or as many. It has "
                    f"{', '.join(map(repr, theirs))}; recorded were {', '.join(map(repr, names))}."
                )
            theirs = dict(zip(names, theirs.values(), strict=True))
    elif len(names) > 1:
        raise SpecError(
            f"{path} holds one layer, and {len(names)} were recorded: {', '.join(names)}. "
            "Give a recording of the original."
        )
    else:
        theirs = {names[0]: original}
    meant = recording.with_weights({name: theirs[name] for name in names})
    lines = []
    for held, right in zip(recording.layers, meant.layers, strict=True):
        both = right.weights.keys() & held.weights.keys()
        other = [name for name in right.weights if name in both]
        other = [name for name in other if not np.array_equal(right.weights[name], held.weights[name])]
        other += sorted(right.weights.keys() ^ held.weights.keys())
        what = f"other weights than {path}: {', '.join(other)}" if other else f"the weights of {path}"
        lines.append(f"{held.name or 'The layer'} holds {what}.")
    return meant, lines


def meant_by(path: str | os.PathLike[str]) -> Recording | tuple[AttentionConfig, Weights]:
    """Read a file that describes the original layers: a Recording, or the config and weights of one layer.

    Raises:
        SpecError: it is neither, or holds outputs that are not those of its weights.
        FileNotFoundError: there is no such file.
    """
    try:
        recording = Recording.load(path)
    except SpecError:
        return load_weights(path)
    return check_reproduced(recording, path)
