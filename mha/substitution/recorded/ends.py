"""What two models gave, and modules of them that are no attention layers, compared.

No reference says what stands behind an attention layer. So two ends are held against each other alone, under the
allowance of the inputs of a next layer (docs/recordings.md).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mha.recordings.ends import RecordedEnd
from mha.recordings.recording import Recording
from mha.substitution.recorded.arrays import Allowance
from mha.substitution.recorded.pairs import Pairing
from mha.substitution.reports.report import Difference, ModuleResult, Status

BEHIND = "behind its output projection"

PARTS_BEHIND = " (feed-forward layers, normalisation, a pooler, a head)"


@dataclass
class Before:
    """A record of the results of earlier pairs of calls, for the comparison of later pairs.

    Attributes:
        carried: the largest relative difference so far in inputs and outputs that agree; see `Allowance`.
        parted: whether outputs of an earlier pair differed by more than rounding, so that later inputs differ too.
        open: name of a port's call -> True if the layers of both models have code after the output projection, False if
            only one has. These are the calls for which this code was not compared.
        rows: bool (B, L), True at the last pair's queries outside padding; None if there is no pair yet.
    """

    carried: float = 0.0
    parted: bool = False
    open: dict[str, bool] = field(default_factory=dict)
    rows: NDArray[np.bool_] | None = None

    def up_to(self, name: str) -> str:
        """Return " up to its output projection" if the code after this projection was not compared; else ""."""
        return " up to its output projection" if name in self.open else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a sentence on each call in `open` where both models have code after the output projection."""
        return tuple(
            f"Not judged: what {name} does {BEHIND}, where both do something."
            for name, both in self.open.items()
            if both
        )

    @property
    def alone(self) -> tuple[str, ...]:
        """Return a phrase on each call in `open` where only one model has code after the output projection."""
        return tuple(f"what {name} does {BEHIND}" for name, both in self.open.items() if not both)

    def counted(self, array: NDArray) -> NDArray[np.bool_] | None:
        """Return `rows` with axes added to broadcast to `array` (B, L, ...); None if B or L differs, or is unknown."""
        if self.rows is None or array.ndim < 3 or array.shape[:2] != self.rows.shape:
            return None
        counted: NDArray[np.bool_] = self.rows.reshape(*self.rows.shape, *(1,) * (array.ndim - 2))
        return counted


def compare_ends(a: Recording, b: Recording, pairing: Pairing, before: Before) -> list[ModuleResult]:
    """Return verdicts on the outputs of port `b` against those of original `a`, except outputs of attention layers.

    The judged outputs are those recorded of the whole model, and of modules such as a pooler.
    """
    found = []
    layers = {*(a.behind or ()), *(b.behind or ())}
    for name in dict.fromkeys(end.name for end in a.ends or () if end.name not in layers):
        for one, other in zip(_named(a, name), _named(b, name), strict=False):
            behind = f"{_behind(a, b, pairing, (one.after, other.after), before)}{PARTS_BEHIND}"
            found.append(_compared(one, other, behind, before))
    return found


def compare_behind(a: Recording, b: Recording, pair: tuple[int, int], before: Before) -> ModuleResult | None:
    """Return the verdict on the final outputs of two layers; None if neither has code after its output projection.

    `pair`: positions of the original's and the port's call. A layer without such code has the output of its output
    projection as its final output. If final outputs can't be compared, add to `before.open` and return None.
    """
    names = a.layer_of(pair[0]).name, b.layer_of(pair[1]).name
    has = [name in (recording.behind or ()) for name, recording in zip(names, (a, b), strict=True)]
    if not any(has):
        return None
    alone = "" if all(has) else f", where the {'original' if has[0] else 'port'}'s layer alone does something"
    where = f"{BEHIND} (such as a residual or a norm){alone}"
    own, theirs = (_own_end(recording, at) for recording, at in zip((a, b), pair, strict=True))
    if own is not None and theirs is not None and None not in (a.behind, b.behind):
        each = [_compared(own, one, where, before) for one in _orders(theirs, own)]
        found = next((one for one in each if one.status == "equal"), each[0])
        if found.bound is not None:
            before.parted |= found.status == "wrong"
            name, original = b.names[pair[1]], a.names[pair[0]]
            return replace(found, name=name, original=original, depth=1, reason=BEHIND)
    before.open[b.names[pair[1]]] = all(has)
    return None


def _own_end(recording: Recording, position: int) -> RecordedEnd | None:
    """Return what the layer of a call gave itself; None if that was not recorded."""
    layer, call = recording.layer_of(position), recording.calls[position]
    if layer.name not in (recording.behind or ()):
        arrays = {"": call.outputs["output"]}
        return RecordedEnd(layer.name, layer.kind, position + 1, arrays, {"": layer.dtype})
    calls = [one for one in range(len(recording.calls)) if recording.layer_of(one).name == layer.name]
    ends = [end for end in recording.ends or () if end.name == layer.name]
    end = ends[calls.index(position)] if len(calls) == len(ends) else None
    size = call.outputs["output"].size  # the other arrays are weights or a cache
    first = None if end is None else next((place for place, one in end.arrays.items() if one.size == size), None)
    if end is None or first is None:
        return None
    return replace(end, arrays={"": end.arrays[first]}, dtypes={"": end.dtypes[first]})


def _orders(end: RecordedEnd, like: RecordedEnd) -> list[RecordedEnd]:
    """Return the end with its one array in the shape of `like`, and where it fits with batch and length exchanged."""
    (array,), shape = end.arrays.values(), next(iter(like.arrays.values())).shape
    found = [array.reshape(shape)] if array.size == np.prod(shape) and array.ndim != len(shape) else [array]
    if array.ndim == len(shape) == 3 and array.shape[1::-1] == shape[:2]:
        found = [array, array.swapaxes(0, 1)] if array.shape == shape else [array.swapaxes(0, 1)]
    return [replace(end, arrays={"": one}) for one in found]


def unjudged(a: Recording, b: Recording, ends: Sequence[ModuleResult]) -> Iterator[str]:
    """Yield sentences on outputs of the model, and of modules other than attention layers, that were not compared."""
    is_model = any(layer.name for layer in a.layers)
    if is_model and not any(end.status != "not judged" for end in ends if not end.name):
        lacking = [whose for one, whose in ((a, "original"), (b, "port")) if not any(e.arrays for e in _named(one, ""))]
        whose = " and of the ".join(lacking)
        why = f"the recording of the {whose} has none" if lacking else "the two have other shapes"
        yield f"Not judged: code after {a.names[-1]}. It would show in the model's output, but {why}."
    for end in ends:
        if end.uncompared:
            names = ", ".join(map(repr, end.uncompared))
            yield f"Not judged: {names} of what {end.name or 'the model'} gave, which have no partner."
    layers = {*(a.behind or ()), *(b.behind or ())}
    own, other = ({end.words for end in one.ends or () if end.name not in layers} for one in (a, b))
    for name in sorted(own ^ other):
        if name != "the model":
            yield f"Not judged: {name}, of which one recording alone holds what it gave."


def _named(recording: Recording, name: str) -> list[RecordedEnd]:
    return [end for end in recording.ends or () if end.name == name]


def _behind(a: Recording, b: Recording, pairing: Pairing, until: tuple[int, int], before: Before) -> str:
    """Where to look if two ends differ and no call of attention before them does."""
    last, skipped = pairing.stands_before(a, b, until)
    if skipped:
        return (
            f"nothing was compared at attention that may stand before it ({skipped}): look there first, then elsewhere"
        )
    if last is None:
        return "no attention layer stands before it"
    return f"{a.names[last[0]]}'s outputs agree{before.up_to(b.names[last[1]])}: look behind it"


def _compared(a: RecordedEnd, b: RecordedEnd, behind: str, before: Before) -> ModuleResult:
    pairs = _paired(a, b)
    largest, words = 0.0, []
    for own, theirs in pairs.items():
        one, other = a.arrays[own], b.arrays[theirs]
        allowance = Allowance.between(a.dtypes[own], b.dtypes[theirs], before.carried)
        distance = allowance.apart(one, other, before.counted(one))
        largest = max(largest, allowance.ratio(distance))
        if allowance.ratio(distance) > 1.0:
            words.append(f"{own or 'its output'} {allowance.words(distance, 'its')}")
    left = dict.fromkeys(own for own in a.arrays if own not in pairs)
    left |= dict.fromkeys(own for own in b.arrays if own not in pairs.values())
    message = f"{behind}: {'; '.join(words)}"
    status: Status = "equal" if pairs and not words else "wrong" if pairs and not before.parted else "caused upstream"
    return ModuleResult(
        b.name,
        b.kind,
        0,
        a.name,
        "name",
        status if pairs else "not judged",
        allowance="calibrated" if pairs else "",
        bound=largest if pairs else None,
        reason="" if pairs else "what both gave has other shapes",
        uncompared=tuple(left),
        differences=(Difference("outputs", message, follows=before.parted),) if words else (),
        original_kind=a.kind,
    )


def _paired(a: RecordedEnd, b: RecordedEnd) -> dict[str, str]:
    """The places of arrays that belong together: of equal name, or if there are none, by their order."""
    common = [name for name in a.arrays if name in b.arrays]
    if common:
        return {name: name for name in common if a.arrays[name].shape == b.arrays[name].shape}
    shapes = [[array.shape for array in end.arrays.values()] for end in (a, b)]
    return dict(zip(a.arrays, b.arrays, strict=True)) if shapes[0] == shapes[1] else {}
