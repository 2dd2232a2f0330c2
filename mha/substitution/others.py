"""Masks, indices and integers of a port that are others than the original's: no rounding explains them.

And what stands in the place of another array; and the padding in a part of the original's for which the port has none.
"""

from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import suppress
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from mha.recordings.modules.values import Place
from mha.substitution.allowance import Judged
from mha.substitution.calls import holds
from mha.substitution.masks import allowed_in, translated, uncounted_rows
from mha.substitution.matching import Matched, match
from mha.substitution.original import Original, OriginalCall
from mha_core import SpecError

MOST_KNOWN = 12
"""Most arrays of one shape of which sums are looked at."""


def other_masks(own: Collection[NDArray], given: Mapping[Place, NDArray]) -> Iterator[tuple[Place, Judged]]:
    """Yield (key path, comparison) for each mask of the port (in `given`) that equals none of the original (`own`)."""
    for place, array in given.items():
        read = [found for mask in own if (found := translated(array, mask)) is not None]
        if read and all(different for _, different in read):
            count = min(different for _, different in read)
            yield place, Judged(np.inf, (), float(count), 0.0, float(count), 0.0)


def other_indices(
    own: Mapping[Place, NDArray], given: Mapping[Place, NDArray], counted: Callable[[NDArray], NDArray | None]
) -> Iterator[tuple[Place, Judged]]:
    """Yield (key path, comparison) for each array of wrong indices (such as positions) that a port's submodule gets.

    `own`, `given`: key path -> input in the original, and in the port. Elements count where `counted(array)` is True;
    all count if it returns None.
    """
    for one in match({place: array for place, array in own.items() if array.dtype.kind in "iu"}, given):
        right, got = own[one.original], one.array
        rows = counted(got) if got.ndim > 1 else None
        other = (got != right) & (True if rows is None else rows)
        opposite = np.isin(right, (0, 1)).all() and (got == 1 - right).all()  # a mask of the other meaning
        if other.any() and not opposite:
            index = tuple(int(i) for i in np.argwhere(other)[0])
            there = float(got[index]), float(right[index])
            yield one.port, Judged(np.inf, index, *there, abs(there[0] - there[1]), 0.0)


def other_integers(own: Mapping[Place, NDArray], gave: Mapping[Place, NDArray]) -> Iterator[Place]:
    """Yield the key path of each output of the port (`gave`) that equals no integer output of the original (`own`)."""
    whole = {place: array for place, array in own.items() if array.dtype.kind in "iub"}
    same = {one.port for one in match(whole, gave) if np.array_equal(one.array, whole[one.original])}
    yield from (place for place in gave if place not in same)


def padding_inside(original: Original, around: OriginalCall, paired: Container[int]) -> NDArray | None:
    """Return bool (B, L), True at padding that was found in a call inside `around`; None if none was found.

    Args:
        original, around: the original model, and its call; calls made during this call are searched for padding.
        paired: positions of modules to skip, because they are judged on their own.
    """
    calls = original.calls
    (own,) = (number for number, call in enumerate(calls) if call is around)
    beside = {own}
    for inner, call in enumerate(calls[own + 1 :], own + 1):
        if not holds(calls, own, inner):
            return None
        if call.module in paired or call.within not in beside:
            continue
        beside.add(inner)
        masks = any(one.dtype.kind in "fb" and allowed_in(one) is not None for one in call.given.values())
        if not masks or not call.steady:
            continue

        def exact_on(given: Mapping[Place, NDArray], call: OriginalCall = call) -> Mapping[Place, NDArray]:
            return original.run(call, [given], "float64")[0]

        with suppress(SpecError):
            found = uncounted_rows(exact_on, call.given, other_mask=False)
            if found is not None:
                return found
    return None


def exchanged_in(name: str, pairs: Collection[Matched], own: Mapping[Place, NDArray], unit: float) -> Iterator[str]:
    """Yield a sentence for each two inputs of a submodule that the port exchanges, such as keys and values.

    Args:
        name, pairs: the submodule's name, and its inputs in the port, paired with those in the original.
        own: key path -> input of the submodule in the original, in float64.
        unit: the unit roundoff of the port's dtype.
    """
    for one, other in combinations(pairs, 2):
        right = own[one.original], own[other.original]
        if one.array.shape != other.array.shape or np.array_equal(*right):
            continue
        if _equal(one.array, right[1:], unit) and _equal(other.array, right[:1], unit):
            places = ".".join(one.port), ".".join(other.port)
            yield f"it gives {name} the {places[0]} where the {places[1]} is due, and the reverse: exchange them"


def other_terms(what: str, got: NDArray, right: NDArray, known: Mapping[str, NDArray], unit: float) -> str | None:
    """Return a sentence that names what `got` equals and what `right` equals: an array in `known`, or a sum of two.

    Return None if `got` or `right` equals no such array or sum, or more than one.

    Args:
        what: the array, in words.
        got, right: the port's array, and the original's in float64.
        known: name in words -> array of the port, to which both are compared.
        unit: the unit roundoff of the port's dtype.
    """
    fitting = {name: array for name, array in known.items() if array.shape == got.shape}
    if got.shape != right.shape or len(fitting) > MOST_KNOWN:
        return None
    terms = [names for count in (1, 2) for names in combinations(fitting, count)]
    said = []
    for array in (got, right):
        found = [names for names in terms if _equal(array, [fitting[name] for name in names], unit)]
        if len(found) != 1:  # none, or nothing tells which
            return None
        said.append(f"{'the sum of ' * (len(found[0]) - 1)}{' and '.join(found[0])}")
    return f"{what} is {said[0]}; in the original it is {said[1]}"


def _equal(array: NDArray, terms: Collection[NDArray], unit: float) -> bool:
    """Return whether an array is a sum of others but for rounding."""
    each = [one.astype(np.float64) for one in terms]
    size = np.sum(np.abs(each), axis=0)
    return bool(np.all(np.abs(array - np.sum(each, axis=0)) <= 8.0 * unit * size) and np.isfinite(array).all())
