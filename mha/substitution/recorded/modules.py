"""Two recordings of all modules of a model: the first modules that give other numbers, though they were given the same.

No original runs here. So what a pair of modules was given, and what it gave, are held against each other under the
allowance of the inputs of a next layer (docs/recordings.md).
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mha.recordings.modules.arrays import open_modules
from mha.recordings.modules.names import header_of, holds_arrays
from mha.recordings.modules.recorder import METADATA_KEY
from mha.recordings.modules.recording import ModuleCall, ModuleRecording
from mha.recordings.recording import Recording
from mha.substitution.allowance import number
from mha.substitution.calls import by_module, holds, modules_of, uncovered
from mha.substitution.matching import match
from mha.substitution.pairing.pairs import Pairs
from mha.substitution.recorded.arrays import Allowance, apart, least_slice
from mha.substitution.recorded.ends import Before
from mha.substitution.recorded.walk import recordings_apart
from mha.substitution.reports.report import Difference, ModuleResult, WhereReport
from mha_core import SpecError
from mha_core.errors import listed

AnyRecording = ModuleRecording | Recording | str | os.PathLike[str]


def recorded_apart(
    original: AnyRecording, port: AnyRecording, pairs: Mapping[str, str] | None, progress: Callable[[str], None]
) -> WhereReport:
    """Return the report on the attention layers of two recordings, and on other modules if both recordings hold some.

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
    if holds_arrays(recording) or METADATA_KEY in header_of(recording).metadata:
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
    """Return a report with a verdict on each module of a port, by two recordings.

    Args:
        original, port: recordings of one call of each model.
        layers: the report on their attention layers. A layer that is wrong in `layers` is wrong in the result too.
        rows: bool (B, L), True at positions outside padding; None means all positions.
        pairs: name of a module of the original -> name of the port's, for pairs that the search would not find.
        progress: called with a text on the current step.

    Raises:
        SpecError: `pairs` contradict each other, or an array can't be read.
    """
    both = modules_of(original.modules, original.calls), modules_of(port.modules, port.calls)
    found, before = Pairs(*both, pairs or {}), Before(rows=rows)
    calls = by_module(original.calls), by_module(port.calls)
    known = {one.name.partition("#")[0]: one for one in reversed(layers.results) if one.allowance == "derived"}
    done: dict[int, Compared] = {}
    for position in _inner_first(port.calls):
        module = port.calls[position].module
        partner, own = found.original_of(module), both[1][module]
        about = ModuleResult(own.name, own.kind, len(own.within), None, "", "not judged")
        if partner is None:
            done[position] = Compared(replace(about, reason="no module of the original is known to be it"))
            continue
        progress(own.name or "the model")
        mate = both[0][partner]
        about = replace(about, original=mate.name, original_kind=mate.kind, how=found.how[partner])
        if len(calls[0][partner]) != len(calls[1][module]):
            mine, theirs = len(calls[0][partner]), len(calls[1][module])
            reason = f"the original calls it {mine} times and the port {theirs} times"
            done[position] = Compared(replace(about, reason=reason))
            continue
        other = calls[0][partner][calls[1][module].index(position)]
        sides = (original, original.calls[other]), (port, port.calls[position])
        later = range(position + 1, len(port.calls))
        inside = {one: done[one] for one in takewhile(partial(holds, port.calls, position), later)}
        read = {
            at: replace(each, result=_with_layer(each.result, known, mate.name))
            for at, each in inside.items()
            if each.result.original is None
        }
        one = _judged(about, *sides, before, [each.result for each in (inside | read).values()])
        one = replace(one, result=_with_layer(one.result, known))
        if one.result.status in DIFFERENT:
            done |= read
        if one.result.status == "equal" and (divided := _divided(one, inside, port.calls)):
            done |= divided
            before.parted = any(each.result.status in DIFFERENT for each in done.values())
            one = replace(one, gave=_apart(*sides, "gave", before))
        done[position] = one
    results: dict[int, ModuleResult] = {}
    for position, each in done.items():
        module = port.calls[position].module
        if module not in results or RIGHT.get(results[module].status, 9) < RIGHT.get(each.result.status, 9):
            results[module] = each.result
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


DIFFERENT = ("wrong", "through its parts", "caused upstream")
"""The verdicts on calls whose outputs differ, and not seen to be made up for."""

RIGHT = {"equal": 0, "divided otherwise": 1}
"""The verdicts on right calls, the one that says less first; any other verdict on a call of a module says more."""


@dataclass(frozen=True)
class Distances:
    """A summary of the differences of the paired arrays in two calls.

    Attributes:
        ratio: the largest difference / allowed difference; None if no arrays could be paired.
        words: the name of the array with that ratio, and its difference.
        least: the smallest root mean square of the differences in a slice (such as one position or one batch item) of
            the arrays that differ; see `least_slice`. It is 0 if the calls are equal in such a slice.
        allowed: the largest allowed difference (root mean square) of an array.
        size: the largest root mean square of an array.
    """

    ratio: float | None = None
    words: str = ""
    least: float = np.inf
    allowed: float = 0.0
    size: float = 0.0


@dataclass(frozen=True)
class Compared:
    """A verdict on one call of the port (`result`), and the difference of its outputs from the original's (`gave`)."""

    result: ModuleResult
    gave: Distances = Distances()


def _judged(about: ModuleResult, own: Side, other: Side, before: Before, inside: list[ModuleResult]) -> Compared:
    """Compare one call of a pair of modules; `inside`: the results of the port's calls in it, in their order."""
    given, gave = _apart(own, other, "given", before).ratio, _apart(own, other, "gave", before)
    if gave.ratio is None:
        return Compared(replace(about, reason="nothing that both gave can be compared"))
    about = replace(about, allowance="calibrated", bound=gave.ratio)
    if gave.ratio <= 1.0:
        return Compared(replace(about, status="equal"), gave)
    before.parted = True
    if given is not None and given > 1.0:
        return Compared(replace(about, status="caused upstream"), gave)
    if any(one.status in ("wrong", "through its parts") for one in inside):
        return Compared(replace(about, status="through its parts"), gave)
    first = next((at for at, one in enumerate(inside) if one.status == "caused upstream"), len(inside))
    alone = [one.name for one in inside[:first] if one.status == "not judged"]
    outer = tuple(name for name in alone if not name.startswith(tuple(f"{one}{dot}" for one in alone for dot in "./")))
    where = ""
    if inside[first:]:
        others = f", or {listed(outer, 4)}, which was not compared" if outer else ""
        where = f"its own lines are wrong{others}, since what it gives to {inside[first].name} differs already; "
    own_lines = any(one.status != "not judged" for one in inside)
    about = replace(about, status="wrong", own_lines=own_lines, unpaired=outer)
    return Compared(replace(about, differences=(Difference("outputs", where + gave.words),)), gave)


LEAST = 0.01
"""The least difference of a module that is divided otherwise, relative to its size. A smaller one, as of another
epsilon, may be hidden by the lines behind it."""


def _divided(around: Compared, inside: Mapping[int, Compared], calls: Sequence[ModuleCall]) -> dict[int, Compared]:
    """Return the calls inside an equal one that differ, as "divided otherwise" where it makes up for them; by position.

    They are made up for if an equal call stands behind all that only follow, and the difference of each is at every
    position large for its own size, and so large that it would be seen if it were added to what the equal one gave.
    """
    differ = {position: one for position, one in inside.items() if one.result.status in DIFFERENT}
    equal = [position for position, one in inside.items() if one.result.status == "equal"]
    if any(
        (one.result.status == "caused upstream" and position > max(equal, default=-1))
        or any(holds(calls, other, position) for other in equal)  # the nearest equal one did not make up for it
        or any(each.part != "outputs" or each.name for each in one.result.differences)  # said of attention by itself
        or one.gave.least <= max(around.gave.allowed, LEAST * one.gave.size)
        for position, one in differ.items()
    ):
        return {}
    name = around.result.name or "the model"
    reason = f"a line of it stands beside it in the other model: {name} is right with it"
    if len(differ) > 1:
        reason = f"it and other parts of {name} are written otherwise: {name} is right with them"

    def divided(one: ModuleResult) -> ModuleResult:
        return replace(one, status="divided otherwise", reason=reason, own_lines=False, unpaired=(), differences=())

    return {position: replace(one, result=divided(one.result)) for position, one in differ.items()}


def _apart(own: Side, other: Side, which: Literal["given", "gave"], before: Before) -> Distances:
    """The distances of the arrays that belong together, of those that two calls were given or gave."""
    mine, theirs = ([at for at in getattr(call, which) or () if at.floating] for _, call in (own, other))
    dtypes = [{at.place: at.dtype for at in side} for side in (mine, theirs)]
    arrays = [{at.place: of.array(at) for at in side} for (of, _), side in ((own, mine), (other, theirs))]
    found = Distances()
    for one in match(*arrays):
        array, counted = arrays[0][one.original], before.counted(arrays[0][one.original])
        allowance = Allowance.between(dtypes[0][one.original], dtypes[1][one.port], before.carried)
        distance = allowance.apart(array, one.array, counted)
        ratio = allowance.ratio(distance)
        if ratio <= 1.0 and not before.parted:
            before.carried = max(before.carried, distance.mean)
        if found.ratio is None or ratio > found.ratio:
            place = ".".join(one.original) or "its output"
            words = f"{place} differs {allowance.words(distance, 'its')}, {number(ratio)} times that"
            found = replace(found, ratio=ratio, words=words)
        least = min(found.least, least_slice(array, one.array, counted)) if ratio > 1.0 else found.least
        size = apart(array, array, counted).size
        allowed = max(found.allowed, allowance.mean * size)
        found = replace(found, least=least, allowed=allowed, size=max(found.size, size))
    return found


def _with_layer(one: ModuleResult, layers: Mapping[str, ModuleResult], around: str | None = None) -> ModuleResult:
    """The result with what the attention layer of its name has wrong by itself: mask, settings, weights or outputs.

    With `around`, a module of the original, a module without an original gets the layer's, if that is inside `around`.
    """
    layer = layers.get(one.name)
    causes = () if layer is None else [each for each in layer.causes if each.part != "inputs"]
    if layer is None or not causes:
        return one
    if around is not None:
        if layer.original is None or (around and not layer.original.startswith((f"{around}.", f"{around}/"))):
            return one
        one = replace(one, original=layer.original, original_kind=layer.original_kind, how=layer.how, reason="")
    return replace(one, status="wrong", differences=tuple(causes), parameters=layer.parameters, notes=layer.notes)
