"""What two models gave, and modules of them that are no attention layers, compared.

No reference says what stands behind an attention layer. So two ends are held against each other alone, under the
allowance of the inputs of a next layer (docs/recordings.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mha.recordings.ends import RecordedEnd
from mha.recordings.recording import Recording
from mha.substitution.recorded.arrays import Allowance
from mha.substitution.recorded.pairs import Pairing
from mha.substitution.reports.report import Difference, ModuleResult, Status


@dataclass
class Before:
    """A note of what the comparison of earlier calls found, for the comparison of later ones.

    Attributes:
        carried: the largest relative difference so far, of inputs and outputs that agree; see `Allowance`.
        parted: True if outputs of an earlier pair differed by more than rounding, so that later inputs must differ.
        rows: bool (B, L), True for queries of the last pair that are no padding; padding reaches no other row.
    """

    carried: float = 0.0
    parted: bool = False
    rows: NDArray[np.bool_] | None = None

    def counted(self, array: NDArray) -> NDArray[np.bool_] | None:
        """Return bools: True for elements of an array that are in no row of padding. None if it has no such rows."""
        if self.rows is None or array.ndim < 3 or array.shape[:2] != self.rows.shape:
            return None
        counted: NDArray[np.bool_] = self.rows.reshape(*self.rows.shape, *(1,) * (array.ndim - 2))
        return counted


def compare_ends(a: Recording, b: Recording, pairing: Pairing, before: Before) -> list[ModuleResult]:
    """Return verdicts on the ends of port `b` beside those of original `a`.

    Ends are the recorded outputs of the whole model, and of modules that are no attention layers (such as a pooler).
    """
    found = []
    for name in dict.fromkeys(end.name for end in a.ends or ()):
        for one, other in zip(_named(a, name), _named(b, name), strict=False):
            found.append(_compared(one, other, _behind(a, b, pairing, (one.after, other.after)), before))
    return found


def unjudged(a: Recording, b: Recording, ends: Sequence[ModuleResult]) -> Iterator[str]:
    """Yield sentences on ends (recorded outputs of the model or of other modules) that were not compared."""
    is_model = any(layer.name for layer in a.layers)
    if is_model and not any(end.status != "not judged" for end in ends if not end.name):
        lacking = [whose for one, whose in ((a, "original"), (b, "port")) if not any(e.arrays for e in _named(one, ""))]
        why = f"the recording of the {' and of the '.join(lacking)} lacks it" if lacking else "they have other shapes"
        yield f"Not judged: what stands after {a.names[-1]}, since that shows in what the model gives, and {why}."
    for end in ends:
        if end.uncompared:
            names = ", ".join(map(repr, end.uncompared))
            yield f"Not judged: {names} of what {end.name or 'the model'} gave, which have no partner."
    own, other = ({end.words for end in one.ends or ()} for one in (a, b))
    for name in sorted(own ^ other):
        if name != "the model":
            yield f"Not judged: {name}, of which one recording alone holds what it gave."


def _named(recording: Recording, name: str) -> list[RecordedEnd]:
    return [end for end in recording.ends or () if end.name == name]


def _behind(a: Recording, b: Recording, pairing: Pairing, until: tuple[int, int]) -> str:
    """Where to look if two ends differ and no call of attention before them does."""
    last, skipped = pairing.stands_before(a, b, until)
    if skipped:
        return (
            f"nothing was compared at attention that may stand before it ({skipped}): look there first, then elsewhere"
        )
    return f"{a.names[last[0]]}'s outputs agree: look behind it" if last else "no attention layer stands before it"


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
    message = f"{behind} (feed-forward layers, normalisation, a pooler, a head): {'; '.join(words)}"
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
