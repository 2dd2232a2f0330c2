"""Compare what two models gave, and modules of them that are no attention layers.

No reference says what stands behind an attention layer. So two ends are held against each other alone, under the
allowance of the inputs of a next layer (docs/compare.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mha.comparison.arrays import Allowance
from mha.recordings.ends import RecordedEnd
from mha.recordings.recording import Recording
from mha_core import SpecError


@dataclass(frozen=True)
class EndPair:
    """What a module of the original gave in one call, beside what the port's gave.

    Attributes:
        name: the module in words.
        arrays: the places of the arrays that were compared.
        left: the places of arrays that have no partner.
        ratio: the largest difference / allowed difference.
        message: the difference in words; "" if there is none.
        follows: whether it is a consequence of an earlier difference.
        after: the name of the last call of an attention layer before it; "" if there is none.
    """

    name: str
    arrays: tuple[str, ...]
    left: tuple[str, ...]
    ratio: float
    message: str
    follows: bool
    after: str


@dataclass
class Before:
    """What the comparison of earlier calls leaves for that of later ones.

    Attributes:
        carried: the largest relative difference so far, of inputs and outputs that agree; see `Allowance`.
        parted: whether outputs of an earlier pair differed by more than rounding, so that later inputs must differ.
        order: the order of the port's batch items, where it is not the original's.
        rows: bool (B, L), the queries of the last pair that are no padding; others reach nothing.
    """

    carried: float = 0.0
    parted: bool = False
    order: NDArray[np.intp] | None = None
    rows: NDArray[np.bool_] | None = None


def compare_ends(a: Recording, b: Recording, before: Before) -> list[EndPair]:
    """Compare the ends of two recordings, by the names of the modules, call by call; a: the original, b: the port."""
    found = []
    for name in dict.fromkeys(end.name for end in a.ends or ()):
        for one, other in zip(_named(a, name), _named(b, name), strict=False):
            found.append(_compared(one, other, a.names[one.after - 1] if one.after else "", before))
    return found


def check_also(recordings: Sequence[Recording], names: Sequence[str]) -> None:
    """Raise SpecError unless each recording holds what the modules of these names gave."""
    for name in names:
        for recording, whose in zip(recordings, ("original", "port"), strict=False):
            there = dict.fromkeys(end.words for end in recording.ends or ())
            if name not in there:
                raise SpecError(
                    f"the recording of the {whose} does not hold what {name!r} gave (it holds: "
                    f"{', '.join(there) or 'none'}); record it with mha.capture(model, file, also=[{name!r}])"
                )


def unjudged(a: Recording, b: Recording, pairs: Sequence[EndPair]) -> Iterator[str]:
    """Sentences on what of the models' ends was not compared."""
    last = a.names[-1]
    is_model = any(layer.name for layer in a.layers)
    if is_model and not any(pair.arrays and pair.name == "the model" for pair in pairs):
        lacking = [whose for one, whose in ((a, "original"), (b, "port")) if not any(e.arrays for e in _named(one, ""))]
        why = f"the recording of the {' and of the '.join(lacking)} lacks it" if lacking else "they have other shapes"
        yield f"Not judged: what stands after {last}, since that shows in what the model gives, and {why}."
    for pair in pairs:
        if pair.left:
            yield f"Not judged: {', '.join(map(repr, pair.left))} of what {pair.name} gave, which have no partner."
    own, other = ({end.words for end in one.ends or ()} for one in (a, b))
    for name in sorted(own ^ other):
        if name != "the model":
            yield f"Not judged: {name}, of which one recording alone holds what it gave."


def _named(recording: Recording, name: str) -> list[RecordedEnd]:
    return [end for end in recording.ends or () if end.name == name]


def _compared(a: RecordedEnd, b: RecordedEnd, after: str, before: Before) -> EndPair:
    pairs = _paired(a, b)
    largest, words = 0.0, []
    for own, theirs in pairs.items():
        one, other = a.arrays[own], b.arrays[theirs]
        if before.order is not None and len(other) == len(before.order):
            other = other[before.order]
        here = None
        if before.rows is not None and one.ndim > 2 and one.shape[:2] == before.rows.shape:
            here = before.rows.reshape(*before.rows.shape, *(1,) * (one.ndim - 2))
        allowance = Allowance.between(a.dtypes[own], b.dtypes[theirs], before.carried)
        distance = allowance.apart(one, other, here)
        largest = max(largest, allowance.ratio(distance))
        if allowance.ratio(distance) > 1.0:
            words.append(f"{own or 'its output'} {allowance.words(distance, 'its')}")
    left = dict.fromkeys(own for own in a.arrays if own not in pairs)
    left |= dict.fromkeys(own for own in b.arrays if own not in pairs.values())
    arrays = tuple(own or "its output" for own in pairs)
    return EndPair(a.words, arrays, tuple(left), largest, "; ".join(words), bool(words) and before.parted, after)


def _paired(a: RecordedEnd, b: RecordedEnd) -> dict[str, str]:
    """The places of arrays that belong together: of equal name, or if there are none, by their order."""
    common = [name for name in a.arrays if name in b.arrays]
    if common:
        return {name: name for name in common if a.arrays[name].shape == b.arrays[name].shape}
    shapes = [[array.shape for array in end.arrays.values()] for end in (a, b)]
    return dict(zip(a.arrays, b.arrays, strict=True)) if shapes[0] == shapes[1] else {}
