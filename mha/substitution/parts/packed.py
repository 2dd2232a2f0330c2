"""Projections that are one in the original and several in the port: each has a part of its numbers."""

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mha.recordings.modules.numbers import total
from mha.recordings.modules.values import Place
from mha.substitution.allowance import Judged, Runs
from mha.substitution.calls import Part, holds
from mha.substitution.matching import match
from mha.substitution.original import OriginalCall
from mha.substitution.parts.lines import Lines
from mha.substitution.parts.runs import Parts
from mha_core import SpecError
from mha_core.dtypes import divisors


@dataclass(frozen=True)
class Packed:
    """A packed projection of the original (such as q, k, v in one), and the port's several projections in its place.

    Attributes:
        original: position of the original's projection.
        leaves: position of each of the port's projections -> the comparison of its output.
        part: a Part that replaces the original's output by the port's concatenated outputs.
    """

    original: int
    leaves: dict[int, Judged]
    part: Part


def packed_in(parts: Parts, port: int, leaves: Sequence[int]) -> list[Packed]:
    """Return a Packed for each projection of the original that the port splits into several with the same input.

    Args:
        parts: both models.
        port: position of a module that was judged in one call.
        leaves: positions of submodules to search. They have parameters, but no submodules and no original.
    """
    groups: dict[bytes, list[int]] = defaultdict(list)
    for leaf in leaves:
        given = [at for at in parts.recording.calls[parts.calls[leaf][0]].given if at.floating]
        if len(given) == 1:
            groups[parts.recording.array(given[0]).tobytes()].append(leaf)
    found: list[Packed] = []
    for same in (True, False):  # whose numbers are the original's first: others are among what is left
        left = [each for each in groups.values() if not any(each[0] in one.leaves for one in found)]
        taken = {one.original for one in found}
        found += [one for each in left if (one := _one(parts, port, each, taken, same_numbers=same)) is not None]
    return found


def _one(parts: Parts, port: int, leaves: Sequence[int], taken: Set[int], *, same_numbers: bool) -> Packed | None:
    """What several projections stand for, among those that are not taken; None if that is not known."""
    mine, theirs = parts.ready[port][1][0]
    calls = [[one for one in parts.calls[leaf] if holds(parts.recording.calls, theirs, one)] for leaf in leaves]
    if len(leaves) < 2 or any(len(one) != 1 for one in calls):
        return None
    recorded = [parts.recording.calls[one] for (one,) in calls]
    gave = [[parts.recording.array(at) for at in one.gave or () if at.floating] for one in recorded]
    given = [{at.place: parts.recording.array(at) for at in one.given if at.floating} for one in recorded]
    if any(len(one) != 1 for one in (*gave, *given)):
        return None
    inputs = [next(iter(one.values())) for one in given]
    outputs = [one[0] for one in gave]
    if any(not np.array_equal(one, inputs[0]) for one in inputs) or len({one.shape for one in outputs}) != 1:
        return None
    numbers = total(parts.modules[leaf].numbers for leaf in leaves)
    shape = (*outputs[0].shape[:-1], sum(one.shape[-1] for one in outputs))
    found = []
    for own in (one for one in range(mine + 1, len(parts.own.calls)) if holds(parts.own.calls, mine, one)):
        call = parts.own.calls[own]
        module = parts.own.modules[call.module]
        if call.shapes != (shape,) or module.numbers.size != numbers.size or not parts.own.is_leaf(call):
            continue
        pair = parts.pairs.found.get(call.module)
        free = call.module not in taken and (pair is None or not parts.is_judged(pair))
        once = len(parts.own_calls[call.module]) == 1
        if free and once and (module.numbers == numbers or not same_numbers):
            found.append(call)
    return _packed(parts, found[0], given[0], leaves, outputs) if len(found) == 1 else None


def covered(parts: Parts, names: Sequence[str]) -> set[str]:
    """Return the modules in `names` that have no original, but are known to be right.

    These are modules whose floating-point outputs are all right, and right projections that the original packs into
    one. `parts`: both models.
    """
    ready, calls = parts.ready.get(0, ((), ()))
    inner = parts.outermost_inside(0, judged=True)
    judged = parts.with_parts(inner, ready, calls) if names and len(ready) == 1 else None
    if judged is None:
        return set()
    lines = Lines(parts.recording, calls[0][1], judged[0], set(inner), set())
    modules = [one for one, module in enumerate(parts.modules) if module.name in names]
    found = {one for one in modules if lines.are_right_in(one)}
    leaves = [one for one in modules if one not in found and not parts.inside[one]]
    for packed in packed_in(parts, 0, leaves):
        if all(one.equal for one in packed.leaves.values()):
            found |= set(packed.leaves)
    return {parts.modules[one].name for one in found}


def _packed(
    parts: Parts, call: OriginalCall, given: dict[Place, NDArray], leaves: Sequence[int], outputs: Sequence[NDArray]
) -> Packed | None:
    substituted = {one.original: one.array for one in match(call.given, given)}
    if not substituted:
        return None
    try:
        (exact,) = parts.own.run(call, [substituted], "float64")
        (rounded,) = parts.own.run(call, [substituted], parts.recording.dtype)
    except SpecError:
        return None
    ((place, whole),) = exact.items()
    best: dict[int, int] = {}
    blocks = next(_layouts(whole.shape[-1], len(leaves)))
    for layout in _layouts(whole.shape[-1], len(leaves)):
        fits: dict[int, int] = {}
        for leaf, array in enumerate(outputs):
            found = (
                one
                for one, block in enumerate(layout)
                if one not in fits.values() and _judged(whole, rounded[place], block, array, parts).equal
            )
            if (one := next(found, None)) is not None:
                fits[leaf] = one
        if len(fits) > len(best):
            best, blocks = fits, layout
    left = iter(one for one in range(len(leaves)) if one not in best.values())
    order = [best[leaf] if leaf in best else next(left) for leaf in range(len(leaves))]
    packed, verdicts = np.empty(whole.shape), {}
    for leaf, array, one in zip(leaves, outputs, order, strict=True):
        packed[..., blocks[one]] = array
        verdicts[leaf] = _judged(whole, rounded[place], blocks[one], array, parts)
    name = ", ".join(parts.modules[leaf].name for leaf in leaves)
    return Packed(call.module, verdicts, Part(call.module, name, [(call, None)], right=True, instead=[{place: packed}]))


def _judged(whole: NDArray, rounded: NDArray, block: NDArray, array: NDArray, parts: Parts) -> Judged:
    end: Place = ("",)
    return Runs({end: whole[..., block]}, [{end: rounded[..., block]}], {}, parts.recording.dtype).judge(array, end)


def _layouts(width: int, many: int) -> Iterator[list[NDArray]]:
    """Yield which channels each of `many` projections has: part after part, or in each of some heads."""
    if width % many == 0:
        channels = np.arange(width)
        yield list(channels.reshape(many, -1))
        for heads in divisors(width // many)[1:]:
            yield list(channels.reshape(heads, many, -1).swapaxes(0, 1).reshape(many, -1))
