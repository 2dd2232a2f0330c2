"""Compare what two models gave, and modules of them that are no attention layers.

No reference says what stands behind an attention layer. So two ends are held against each other alone, under the
allowance of the inputs of a next layer (docs/compare.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

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

    def to_dict(self) -> dict[str, Any]:
        """The pair as a dict of JSON values."""
        return {**asdict(self), "arrays": list(self.arrays), "left": list(self.left)}


def compare_ends(
    a: Recording,
    b: Recording,
    carried: float,
    *,
    parted: bool,
    order: NDArray[np.intp] | None,
    rows: NDArray[np.bool_] | None,
) -> list[EndPair]:
    """Compare the ends of two recordings, by the names of the modules, call by call.

    Args:
        a, b: the original and the port.
        carried: see `Allowance`.
        parted: whether something differed before.
        order: the order of the port's batch items, where it is not the original's.
        rows: bool (B, L), the positions of the last call that are no padding; others reach nothing.
    """
    found = []
    for name in dict.fromkeys(end.name for end in a.ends or ()):
        ours, theirs = _named(a, name), _named(b, name)
        for one, other in zip(ours, theirs, strict=False):
            after = a.names[one.after - 1] if one.after else ""
            found.append(_compared(one, other, carried, after, parted=parted, order=order, rows=rows))
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


def _compared(
    a: RecordedEnd,
    b: RecordedEnd,
    carried: float,
    after: str,
    *,
    parted: bool,
    order: NDArray[np.intp] | None,
    rows: NDArray[np.bool_] | None,
) -> EndPair:
    pairs = _paired(a, b)
    worst, words = 0.0, []
    for own, theirs in pairs:
        one, other = a.arrays[own], b.arrays[theirs]
        if order is not None and len(other) == len(order):
            other = other[order]
        counts = rows is not None and one.ndim > 2 and one.shape[:2] == rows.shape
        here = rows.reshape(*rows.shape, *(1,) * (one.ndim - 2)) if counts and rows is not None else None
        allowance = Allowance.between(a.dtypes[own], b.dtypes[theirs], carried)
        distance = allowance.apart(one, other, here)
        ratio = allowance.ratio(distance)
        worst = max(worst, ratio)
        if ratio > 1.0:
            words.append(f"{own or 'its output'} {allowance.words(distance, 'its')}")
    compared, theirs_compared = {own for own, _ in pairs}, {theirs for _, theirs in pairs}
    left = [*(own for own in a.arrays if own not in compared), *(own for own in b.arrays if own not in theirs_compared)]
    arrays = tuple(own or "its output" for own, _ in pairs)
    return EndPair(a.words, arrays, tuple(dict.fromkeys(left)), worst, "; ".join(words), bool(words) and parted, after)


def _paired(a: RecordedEnd, b: RecordedEnd) -> list[tuple[str, str]]:
    """The places of arrays that belong together: of equal name, or if there are none, by their order."""
    common = [name for name in a.arrays if name in b.arrays]
    if common:
        return [(name, name) for name in common if a.arrays[name].shape == b.arrays[name].shape]
    shapes = [array.shape for array in a.arrays.values()]
    if shapes == [array.shape for array in b.arrays.values()]:
        return list(zip(a.arrays, b.arrays, strict=True))
    return []
