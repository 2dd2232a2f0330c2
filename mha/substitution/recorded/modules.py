"""Two recordings of all modules of a model: the first modules that give other numbers, though they were given the same.

No original runs here. So what a pair of modules was given, and what it gave, are held against each other under the
allowance of the inputs of a next layer (docs/recordings.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mha.recordings.modules.arrays import open_modules
from mha.recordings.modules.names import holds_arrays
from mha.recordings.modules.recording import ArrayAt, ModuleCall, ModuleRecording, holds_modules
from mha.recordings.recording import Recording
from mha.substitution.allowance import number
from mha.substitution.calls import by_module, modules_of, uncovered
from mha.substitution.matching import match
from mha.substitution.pairing.pairs import Pairs
from mha.substitution.recorded.arrays import Allowance
from mha.substitution.recorded.ends import Before
from mha.substitution.recorded.walk import recordings_apart
from mha.substitution.reports.report import Difference, ModuleResult, WhereReport
from mha_core import SpecError

AnyRecording = ModuleRecording | Recording | str | os.PathLike[str]


def recorded_apart(
    original: AnyRecording, port: AnyRecording, pairs: Mapping[str, str] | None, progress: Callable[[str], None]
) -> WhereReport:
    """Return the report on two recordings: on their modules if both hold some, and on their attention layers.

    Raises:
        SpecError: a file is no recording, the two hold nothing that can be compared, or `pairs` contradict each other.
        FileNotFoundError: there is no such file.
    """
    files = [_opened(one) for one in (original, port)]
    calls = [one.attention if isinstance(one, ModuleRecording) else one for one in files]
    own, theirs = files
    first, second = calls
    if not (isinstance(own, ModuleRecording) and isinstance(theirs, ModuleRecording)):
        if first is None or second is None:
            raise SpecError("one recording holds modules and no attention layer, and the other no modules")
        return recordings_apart(first, second, pairs=pairs, progress=progress)
    before, layers = Before(), WhereReport((), (), theirs.dtype, theirs.versions, original="recording")
    if first is not None and second is not None:
        names = [{layer.name for layer in one.layers} for one in (first, second)]
        named = {one: other for one, other in (pairs or {}).items() if one in names[0] and other in names[1]}
        layers = recordings_apart(first, second, pairs=named, before=before, progress=progress)
    return modules_apart(own, theirs, layers, rows=before.rows, pairs=pairs, progress=progress)


def _opened(recording: AnyRecording) -> ModuleRecording | Recording:
    if isinstance(recording, (ModuleRecording, Recording)):
        return recording
    if holds_arrays(recording) or holds_modules(recording):
        return open_modules(recording)
    return Recording.load(recording)


def modules_apart(
    original: ModuleRecording,
    port: ModuleRecording,
    layers: WhereReport,
    *,
    rows: NDArray[np.bool_] | None = None,
    pairs: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> WhereReport:
    """Return the report on the modules of an original and of its port, in the order in which their calls ended.

    Args:
        original, port: recordings of one call of each model.
        layers: the report on their attention layers. What it finds wrong in a layer itself counts here too.
        rows: bool (B, L), the positions that are no padding; None for all.
        pairs: name of a module of the original -> name of the port's, where the search does not find it.
        progress: is told what is being done.

    Raises:
        SpecError: `pairs` contradict each other, or an array can't be read.
    """
    both = modules_of(original.modules, original.calls), modules_of(port.modules, port.calls)
    found, before = Pairs(*both, pairs or {}), Before(rows=rows)
    calls = by_module(original.calls), by_module(port.calls)
    known = {one.name.partition("#")[0]: one for one in reversed(layers.results) if one.allowance == "derived"}
    results: dict[int, ModuleResult] = {}
    for position in _inner_first(port.calls):
        module = port.calls[position].module
        partner, own = found.original_of(module), both[1][module]
        about = ModuleResult(own.name, own.kind, len(own.within), None, "", "not judged")
        if partner is None:
            results[module] = replace(about, reason="no module of the original is known to be it")
            continue
        progress(own.name or "the model")
        mate = both[0][partner]
        about = replace(about, original=mate.name, original_kind=mate.kind, how=found.how[partner])
        if len(calls[0][partner]) != len(calls[1][module]):
            mine, theirs = len(calls[0][partner]), len(calls[1][module])
            results[module] = replace(about, reason=f"the original calls it {mine} times and the port {theirs} times")
            continue
        other = original.calls[calls[0][partner][calls[1][module].index(position)]]
        inside = [results[one] for one in found.inside_ports[module] if one in results]
        one = _with_layer(_judged(about, (original, other), (port, port.calls[position]), before, inside), known)
        if module not in results or results[module].status == "equal":
            results[module] = one
    every = tuple(results[module] for module in range(len(port.modules)))
    open_ = uncovered(found, lambda module: every[module].status != "not judged")
    named = {both[0][one].name: both[1][other].name for one, other in found.found.items()}
    notes = tuple(note for note in layers.notes if not note.startswith(("Paired", "Not judged")))
    return replace(layers, results=every, uncovered=open_, dtype=port.dtype, pairs=named, notes=notes)


def _inner_first(calls: Sequence[ModuleCall]) -> list[int]:
    """The positions of calls in the order in which they ended."""
    ended: list[int] = []
    running: list[int] = []
    for position, call in enumerate(calls):
        while running and running[-1] != call.within:
            ended.append(running.pop())
        running.append(position)
    return [*ended, *reversed(running)]


Side = tuple[ModuleRecording, ModuleCall]


def _judged(about: ModuleResult, own: Side, other: Side, before: Before, inside: list[ModuleResult]) -> ModuleResult:
    """Compare one call of a pair of modules; `inside`: the results of the port's modules in it."""
    given, _ = _apart(own, other, own[1].given, other[1].given, before)
    ratio, message = _apart(own, other, own[1].gave or (), other[1].gave or (), before)
    if ratio is None:
        return replace(about, reason="nothing that both gave can be compared")
    about = replace(about, allowance="calibrated", bound=ratio)
    if ratio <= 1.0:
        return replace(about, status="equal")
    before.parted = True
    if given is not None and given > 1.0:
        return replace(about, status="caused upstream")
    if any(one.status in ("wrong", "through its parts") for one in inside):
        return replace(about, status="through its parts")
    first = next((one for one in inside if one.status == "caused upstream"), None)
    where = "" if first is None else f"its own lines are wrong, since what it gives to {first.name} differs already; "
    own_lines = any(one.status != "not judged" for one in inside)
    return replace(about, status="wrong", own_lines=own_lines, differences=(Difference("outputs", where + message),))


def _apart(
    own: Side, other: Side, mine: Sequence[ArrayAt], theirs: Sequence[ArrayAt], before: Before
) -> tuple[float | None, str]:
    """The largest difference / allowed difference of the arrays that belong together, None without one; in words."""
    mine, theirs = [at for at in mine if at.floating], [at for at in theirs if at.floating]
    dtypes = [{at.place: at.dtype for at in side} for side in (mine, theirs)]
    arrays = [{at.place: of.array(at) for at in side} for (of, _), side in ((own, mine), (other, theirs))]
    worst, words = None, ""
    for one in match(*arrays):
        array = arrays[0][one.original]
        allowance = Allowance.between(dtypes[0][one.original], dtypes[1][one.port], before.carried)
        distance = allowance.apart(array, one.array, before.counted(array))
        ratio = allowance.ratio(distance)
        if ratio <= 1.0 and not before.parted:
            before.carried = max(before.carried, distance.mean)
        if worst is None or ratio > worst:
            place = ".".join(one.original) or "its output"
            worst, words = ratio, f"{place} differs {allowance.words(distance, 'its')}, {number(ratio)} times that"
    return worst, words


def _with_layer(one: ModuleResult, layers: Mapping[str, ModuleResult]) -> ModuleResult:
    """The result with what the attention layer of its name has wrong by itself: mask, settings, weights or outputs."""
    layer = layers.get(one.name)
    causes = () if layer is None else [each for each in layer.causes if each.part != "inputs"]
    if layer is None or not causes:
        return one
    return replace(one, status="wrong", differences=tuple(causes), parameters=layer.parameters, notes=layer.notes)
