"""Oddities of arrays in words: one is a multiple of the right one, a row sums to 2, most of its numbers are right."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from mha_core import AttentionMask
from mha_core.errors import listed

TOLERANCE, LITTLE_OFF, MOST = 1e-8, 5e-3, 4
"""Relative differences up to which numbers are equal, and up to which they are said to be little; and how many places
of those that are wrong are said."""
TIMES = "the right one times"
OF_SEVERAL, OF_OTHERS = "of several heads, mixed.", "The outputs of heads"
ROUNDED = "as where numbers are rounded"
GATED = "as after a gate or a norm."
CHOSEN = "as where some heads are left out (routed, pruned or dropped)."
IN_PART = "are wrong, and the others right."
ITEMS = (
    "The output of an item depends on the other items of the batch.",
    "what mixes items: a reshape or a sum over them, or one sequence that is made of all of them",
)
OTHER_SCALE = 0.3
NEAR = 1e-6  # relative differences up to which what is read of an answer is equal


def overlooks_scale(output: Callable[[Problem], NDArray | None], problem: Problem) -> bool:
    """Return whether a layer ignores the config's scale: output(problem) is the same with another scale."""
    scaled = replace(problem, config=replace(problem.config, scale=OTHER_SCALE))
    own, other = output(problem), output(scaled)
    return own is not None and other is not None and np.array_equal(own, other, equal_nan=True)


def factors(heads: NDArray, right: NDArray, tolerance: float = TOLERANCE, *, of_weights: bool = False) -> Iterator[str]:
    """Yield a line if the heads are the right ones times one number, or times a number for each head and query.

    `of_weights`: whether the call has one key and a wrong weight for it. The line gives this weight, which should be 1.
    """
    with any_numbers:
        ratio = np.median(heads / right, axis=-1, keepdims=True)
    off = tolerance * np.abs(heads).max(initial=0.0)
    if not np.isfinite(ratio).all() or (np.abs(heads - ratio * right) > off).any() or not heads.any():
        # Of no more channels than heads everything is a sum.
        if heads.shape[3] > heads.shape[1] and np.isfinite(heads).all():
            yield from _mixed(heads, right)
        return
    axes = {name: ratio.sum(axis=axis) for axis, name in ((1, "heads"), (2, "queries")) if ratio.shape[axis] > 1}
    over = [name for name, sums in axes.items() if (np.abs(sums - 1.0) <= tolerance * max(sums.shape)).all()]
    axis = "summed over the {} they give 1: look at the axis of the softmax."
    is_chosen = (np.minimum(np.abs(ratio), np.abs(ratio - 1.0)) <= tolerance).all()
    why = axis.format(over[0]) if over else CHOSEN if is_chosen else GATED
    least, most = (f"{float(end) + 0.0:.4g}" for end in np.round((ratio.min(), ratio.max()), 12))
    if of_weights and least != most and not over:
        yield f"The attention weight {{}} should be 1, and is {least} to {most}, by head and query."
        return
    each = f"a number for each head and query, {least} {'or' if is_chosen else 'to'} {most}: {why}"
    is_one = np.ptp(ratio) <= tolerance * np.abs(ratio).max()
    times = f"{np.median(ratio):.4g}." if is_one else each
    yield f"The heads' outputs {{}} are {TIMES.replace('one', 'ones')} {times}"


def _mixed(heads: NDArray, right: NDArray) -> Iterator[str]:
    """Yield a line if each head's outputs are the right ones of another head, or sums of the right ones of several."""
    if (shares := mix_of(heads, right)) is None:
        return
    of = (np.abs(shares) > np.abs(shares).max(axis=1, keepdims=True) - NEAR).argmax(axis=1)
    if not near(heads, right[:, of]):
        yield f"The outputs of each head {{}} are the right outputs {OF_SEVERAL}"
        return
    own, read = (listed(list(map(str, some)), MOST) for some in (range(len(of)), of))
    yield f"{OF_OTHERS} {own} {{}} are the right ones of heads {read}."


def sums_of(weights: NDArray, allowed: NDArray, tolerance: float = TOLERANCE) -> Iterator[str]:
    """Yield a line if a row of attention weights does not sum to 1. It names another axis with sums of 1, if any."""
    sums = np.where(allowed.any(axis=-1), weights.sum(axis=-1), 1.0)
    if (np.abs(sums - 1.0) > tolerance).any():
        item, head, query = np.unravel_index(int(np.abs(sums - 1.0).argmax()), sums.shape)
        others = ((name, weights.sum(axis=axis)) for axis, name in enumerate(("items", "heads", "queries")))
        over = [name for name, total in others if (np.abs(total * (total - 1.0)) <= tolerance).all()]
        said = "".join(f"; summed over the {name} they give 1: look at the axis of the softmax" for name in over[:1])
        total = f"{sums[item, head, query]:.6g}, not to 1{said}"
        is_each = np.ptp(sums) <= tolerance and allowed.any(axis=-1).all()
        which = "each query" if is_each else f"query {query}, head {head}, item {item}"
        yield f"The attention weights of {which} sum to {total}."


def near(array: NDArray, other: NDArray, least: float = 1e-300) -> bool:
    """Return whether max |array - other| is at most NEAR times the larger of max |other| and `least`."""
    return bool(np.allclose(array, other, rtol=0.0, atol=NEAR * float(np.abs(other).max(initial=least))))


def is_of_several(shares: NDArray) -> bool:
    """Return whether `shares` (H, H) is not diagonal. shares[h, g] is how much of head g is in head h."""
    return bool((np.abs(shares)[~np.eye(len(shares), dtype=bool)] > NEAR).any())


def follow(measured: NDArray, expected: NDArray) -> bool:
    """Return whether the elements of each row have the same ranking in `measured` (up to ties) as in `expected`."""
    order = np.argsort(expected, axis=-1)
    return bool((np.diff(np.take_along_axis(measured, order, -1), axis=-1) >= -NEAR).all())


def are_alike(array: NDArray, axes: tuple[int, ...]) -> bool:
    """Return whether an array is the same all along some axes."""
    first = array
    for axis in axes:
        first = np.take(first, [0], axis=axis)
    return near(array, np.broadcast_to(first, array.shape))


def rank(arrays: NDArray) -> int:
    """Return the highest rank of matrices (.., m, n)."""
    sizes = np.linalg.svd(arrays, compute_uv=False)
    return int((sizes > NEAR * sizes[..., :1]).sum(axis=-1).max())


def is_product(array: NDArray, factor: NDArray) -> bool:
    """Return whether `array` (..., Lq, Lk) equals x @ factor^T for some x; `factor` is (..., Lk, d)."""
    found = array @ np.linalg.pinv(factor.swapaxes(2, 3))
    return near(found @ factor.swapaxes(2, 3), array)


CLOSEST, SMOOTH = 0.1, 0.01
"""The share of neighbouring scores that are nearest, and of all differences what a function may differ between them."""


def is_function(measured: NDArray, scores: NDArray) -> bool:
    """Return whether log weights `measured`, less the log weight of a key with score 0, depend on the scores alone."""
    zero = np.abs(scores).max(axis=(0, 1, 2)) <= NEAR
    if not zero.any():
        return False
    x, y = scores.ravel(), (measured - measured[..., zero][..., :1]).ravel()
    order = np.argsort(x)
    gaps, steps = np.diff(x[order]), np.abs(np.diff(y[order]))
    nearest = np.argsort(gaps)[: max(int(CLOSEST * len(gaps)), 1)]
    return bool(np.median(steps[nearest]) <= SMOOTH * np.ptp(y))


def mix_of(array: NDArray, heads: NDArray) -> NDArray | None:
    """Return m (H, H) such that array[:, h] is the sum over g of m[h, g] * heads[:, g]; None if no m fits."""
    count = heads.shape[1]
    x, y = (one.swapaxes(0, 1).reshape(count, -1) for one in (heads, array))
    if count < 2 or x.shape[1] < 2 * count:
        return None
    shares = np.linalg.lstsq(x.T, y.T, rcond=None)[0].T
    return shares if np.abs(shares @ x - y).max() <= NEAR * np.abs(y).max(initial=1e-300) else None


def is_kept(measured: NDArray, expected: NDArray) -> bool:
    """Return whether sorted scores have many of the expected gaps and some of 0. This is so if scores are clamped."""
    order = np.argsort(expected, axis=-1)
    steps, right = (np.diff(np.take_along_axis(x, order, -1), axis=-1) for x in (measured, expected))
    least = NEAR * np.abs(right).max(initial=0.0)
    is_tied = (np.abs(steps) <= least) & (right > least / SMOOTH)
    return bool((np.abs(steps - right) <= least).mean() > CLOSEST and is_tied.any())


def are_moved(array: NDArray, right: NDArray) -> bool:
    """Return whether an array (B, ...) has the right items in another order."""
    same = np.array([[near(one, other) for other in right] for one in array])
    return bool(same.any(axis=0).all() and same.any(axis=1).all())


def marks(row: NDArray) -> str:
    """Return a row of bools as text: "#" for True, "." for False.

    >>> marks(np.array([True, False]))
    '#.'
    """
    return "".join("#" if one else "." for one in row)


def sources_of(mask: AttentionMask) -> str:
    """Return in words the arguments of a mask that are given.

    >>> sources_of(AttentionMask(causal=True, window=(2, 1)))
    'causal True, window [2, 1]'
    """
    given = {name: getattr(mask, name) for name in ("valid_lens", "causal", "window", "query_offset")}
    said = [f"{name} {np.array(value).tolist()}" for name, value in given.items() if np.any(value)]
    said += [f"{name} given" for name in ("allowed", "bias") if getattr(mask, name) is not None]
    return ", ".join(said) or "no mask"


SIZED = {"bfloat16": 2.0**-9, "8 bits": 2.0**-8, "float16": 2.0**-11, "TF32": 2.0**-11, "float32": 2.0**-24}
"""Precision -> the relative error of one rounding."""


def size(output: NDArray, right: NDArray, stage: str) -> Iterator[tuple[str, str]]:
    """Yield (a line with max |output - right| / max |right|, what to look at), if this ratio is small."""
    off = float(np.abs(output - right).max() / np.abs(right).max(initial=1e-300))
    if off <= LITTLE_OFF:
        names = [name for name, unit in SIZED.items() if unit / 30.0 <= off <= 30.0 * unit]
        exp = " (the softmax's shows as wrong scores)" * (stage == "scores")
        look = (
            f"{f'casts (to {listed(names, MOST)}), ' * bool(names)}added numbers (eps), and approximations of exp{exp}"
        )
        yield f"The output {{}} is off by at most {off:.1g} of its largest number: {ROUNDED}.", look


def _some(off: NDArray, name: str) -> str:
    """Return in words which of some items, queries or channels `off` holds.

    >>> _some(np.array([False, True, True]), "queries"), _some(np.array([True, False, True]), "items")
    ('all 3 queries but the first', 'items 0, 2 (of 3, counted from 0)')
    """
    count, wrong = len(off), int(off.sum())
    if wrong == count - 1 > 1 and not (off[0] and off[-1]):
        return f"all {count} {name} but the {'last' if off[0] else 'first'}"
    for end, some in (("first", off[:wrong]), ("last", off[count - wrong :])):
        if some.all() and wrong > 1:
            return f"the {end} {wrong} of {count} {name}"
    return f"{name} {listed(list(map(str, np.flatnonzero(off))), MOST)} (of {count}, counted from 0)"


def place_of(wrong: NDArray, mask: AttentionMask) -> str:
    """Return in words the first (item, head) of bools (B, H) that are True, which alone are so, and the mask.

    >>> place_of(np.array([[False, True, True], [False, True, True]]), AttentionMask(causal=True))
    'item 0, head 1 (wrong only in all 3 heads but the first), causal True'
    """
    item, head = map(int, np.argwhere(wrong)[0])
    axes = ((wrong.any(axis=1), "items"), (wrong.any(axis=0), "heads"))
    some = " of ".join(_some(off, name).partition(" (of")[0] for off, name in axes if not off.all())
    return f"item {item}, head {head}{f' (wrong only in {some})' * bool(some)}, {sources_of(mask)}"


def facts(output: NDArray, right: NDArray, wrong: NDArray, *, masked: bool = False) -> Iterator[str]:
    """Yield lines on what is odd in an output: NaN, all 0, a multiple of the right one, or errors at some indices only.

    Args:
        output, right: the output and the right one.
        wrong: bools of the shape of the output: where it is wrong.
        masked: whether the call has a mask. If so, no multiple is reported, because other errors look like a multiple.
    """
    with any_numbers:
        ratio = output / right
    if strange := int((~np.isfinite(output) & np.isfinite(right)).sum()):
        yield f"{strange} of {output.size} numbers of the output {{}} are NaN or infinite."
        return
    for axis, name in enumerate(("items", "queries", "output channels")):
        off = wrong.any(axis=tuple(other for other in range(3) if other != axis))
        if off.any() and not off.all():
            yield f"In the output {{}} {_some(off, name)} {IN_PART}"
    if not output.any():
        yield "Every number of the output {} is 0."
    elif not masked and np.isfinite(ratio).all() and np.ptp(ratio) <= TOLERANCE * np.abs(ratio).max():
        yield f"Every number of the output {{}} is {TIMES} {ratio.flat[0]:.6g}."
    if output.min() >= 0.0 > right.min():
        below = int((right < 0.0).sum())
        yield f"No number of the output {{}} is below 0, as after a ReLU; {below} of {right.size} should be."
