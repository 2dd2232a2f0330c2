"""Oddities of arrays in words: one is a multiple of the right one, a row sums to 2, most of its numbers are right."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from mha_core.errors import listed

TOLERANCE, LITTLE_OFF, MOST = 1e-8, 2e-3, 4
"""Relative differences up to which numbers are equal, and up to which they are said to be little; and how many places
of those that are wrong are said."""
TIMES = "the right one times"
OTHER_SCALE = 0.3
NEAR = 1e-6  # relative differences up to which what is read of an answer is equal


def overlooks_scale(output: Callable[[Problem], NDArray | None], problem: Problem) -> bool:
    """Return whether a layer ignores the config's scale: output(problem) is the same with another scale."""
    scaled = replace(problem, config=replace(problem.config, scale=OTHER_SCALE))
    own, other = output(problem), output(scaled)
    return own is not None and other is not None and np.array_equal(own, other, equal_nan=True)


def factors(heads: NDArray, right: NDArray, tolerance: float = TOLERANCE) -> Iterator[str]:
    """Yield a line if `heads` (B, H, Lq, dv) is `right` times one number, or times a number for each head and query."""
    with any_numbers:
        ratio = np.median(heads / right, axis=-1, keepdims=True)
    off = tolerance * np.abs(heads).max(initial=0.0)
    if not np.isfinite(ratio).all() or (np.abs(heads - ratio * right) > off).any() or not heads.any():
        return
    sums = ratio.sum(axis=2)
    over_queries = ratio.shape[2] > 1 and (np.abs(sums - 1.0) <= tolerance * max(sums.shape)).all()
    why = "summed over the queries they give 1: look at the axis of the softmax"
    why = why if over_queries else "as behind a gate or a norm"
    each = f"a number for each head and query, {ratio.min():.4g} to {ratio.max():.4g}: {why}"
    is_one = np.ptp(ratio) <= tolerance * np.abs(ratio).max()
    yield f"The heads {{}} are {TIMES.replace('one', 'ones')} {f'{np.median(ratio):.4g}' if is_one else each}."


def sums_of(weights: NDArray, allowed: NDArray, tolerance: float = TOLERANCE) -> Iterator[str]:
    """Yield a line on a row of attention weights that does not sum to 1, and on an axis along which all sums are 1."""
    sums = np.where(allowed.any(axis=-1), weights.sum(axis=-1), 1.0)
    if (np.abs(sums - 1.0) > tolerance).any():
        item, head, query = np.unravel_index(int(np.abs(sums - 1.0).argmax()), sums.shape)
        others = ((name, weights.sum(axis=axis)) for axis, name in enumerate(("items", "heads", "queries")))
        over = [name for name, total in others if (np.abs(total * (total - 1.0)) <= tolerance).all()]
        said = "".join(f"; summed over the {name} they give 1: look at the axis of the softmax" for name in over[:1])
        total = f"{sums[item, head, query]:.6g}, not to 1{said}"
        yield f"The attention weights of query {query}, head {head}, item {item} sum to {total}."


def mix_of(array: NDArray, heads: NDArray) -> NDArray | None:
    """Return m (H, H) such that array[:, h] is the sum over g of m[h, g] * heads[:, g]; None if no m fits."""
    count = heads.shape[1]
    x, y = (one.swapaxes(0, 1).reshape(count, -1) for one in (heads, array))
    if count < 2 or x.shape[1] < 2 * count:
        return None
    shares = np.linalg.lstsq(x.T, y.T, rcond=None)[0].T
    return shares if np.abs(shares @ x - y).max() <= NEAR * np.abs(y).max(initial=1e-300) else None


def rank_of(arrays: NDArray) -> int:
    sizes = np.linalg.svd(arrays, compute_uv=False)
    return int((sizes > NEAR * sizes[..., :1]).sum(axis=-1).max())


def is_product(array: NDArray, factor: NDArray) -> bool:
    """Return whether (.., Lq, Lk) is x @ factor^T for some x, with factor (.., Lk, d)."""
    found = array @ np.linalg.pinv(factor.swapaxes(2, 3))
    return bool(np.allclose(found @ factor.swapaxes(2, 3), array, rtol=0.0, atol=NEAR * float(np.abs(array).max())))


def follow(measured: NDArray, expected: NDArray) -> bool:
    """Return whether the keys of every row stand in the order of their right scores."""
    order = np.argsort(expected, axis=-1)
    return bool((np.diff(np.take_along_axis(measured, order, -1), axis=-1) >= -NEAR).all())


CLOSEST, SMOOTH = 0.1, 0.01
"""The share of neighbouring scores that are nearest, and of all differences what a function may differ between them."""


def is_function(measured: NDArray, scores: NDArray) -> bool:
    """Return whether log weights less that of the key that scores 0 are a function of the scores, however it bends."""
    zero = np.abs(scores).max(axis=(0, 1, 2)) <= NEAR
    if not zero.any():
        return False
    x, y = scores.ravel(), (measured - measured[..., zero][..., :1]).ravel()
    order = np.argsort(x)
    gaps, steps = np.diff(x[order]), np.abs(np.diff(y[order]))
    nearest = np.argsort(gaps)[: max(int(CLOSEST * len(gaps)), 1)]
    return bool(np.median(steps[nearest]) <= SMOOTH * np.ptp(y))


def is_kept(measured: NDArray, expected: NDArray) -> bool:
    """Return whether a part of neighbouring scores differ as they should, as where scores are clamped."""
    order = np.argsort(expected, axis=-1)
    steps, right = (np.diff(np.take_along_axis(x, order, -1), axis=-1) for x in (measured, expected))
    return bool((np.abs(steps - right) <= NEAR * np.abs(right).max(initial=0.0)).mean() > CLOSEST)


def of_scores(scores: NDArray, right: NDArray, others: NDArray, tolerance: float = TOLERANCE) -> Iterator[str]:
    """Yield a line if scores (B, H, Lq, Lk), less their row means, have a bias by position or are mixed across heads.

    Args:
        scores, right: the subject's scores and the right ones.
        others: scores - right in another call of the same shape.
    """
    added = scores - right
    size = np.abs(added).max(initial=0.0)
    if size > tolerance and np.abs(added - others).max(initial=0.0) <= NEAR * size:
        steps = np.diff(added, axis=-1)
        is_of_distance = np.abs(steps[:, :, 1:, 1:] - steps[:, :, :-1, :-1]).max(initial=0.0) <= NEAR * size
        what = "the distance from query to key" if is_of_distance and min(added.shape[2:]) > 2 else "positions"
        yield f"Something is added to the scores that depends on {what} alone, and not on queries and keys."
        return
    shares = mix_of(scores, right)
    there = np.zeros((1, 1), dtype=bool) if shares is None else np.abs(shares) > NEAR
    if there[~np.eye(len(there), dtype=bool)].any():
        said = "sums of the right ones of several heads" if there.sum() > len(there) else "those of other heads"
        yield f"The scores of each head are {said}."


def size(output: NDArray, right: NDArray) -> Iterator[str]:
    """Yield a line with max |output - right| / max |right|, if this ratio is small."""
    off = float(np.abs(output - right).max() / np.abs(right).max(initial=1e-300))
    if off <= LITTLE_OFF:
        yield f"The output {{}} is off by at most {off:.1g} of its largest number: as where numbers are rounded."


def facts(output: NDArray, right: NDArray, wrong: NDArray, *, masked: bool = False) -> Iterator[str]:
    """Yield lines on what is odd in an output: NaN, errors at some indices of an axis only, all 0, a multiple.

    Args:
        output, right: the output and the right one.
        wrong: bools of the shape of the output: where it is wrong.
        masked: whether the call has a mask. Then a multiple is not reported, because other errors look like one.
    """
    with any_numbers:
        ratio = output / right
    if strange := int((~np.isfinite(output) & np.isfinite(right)).sum()):
        yield f"{strange} of {output.size} numbers of the output {{}} are NaN or infinite."
        return
    for axis, name in enumerate(("items", "queries", "output channels")):
        off = wrong.any(axis=tuple(other for other in range(3) if other != axis))
        if off.any() and not off.all():
            some = listed(list(map(str, np.flatnonzero(off))), MOST)
            yield f"In the output {{}} {name} {some} (of {len(off)}, counted from 0) are wrong, and the others right."
    if not output.any():
        yield "Every number of the output {} is 0."
    elif not masked and np.isfinite(ratio).all() and np.ptp(ratio) <= TOLERANCE * np.abs(ratio).max():
        yield f"Every number of the output {{}} is {TIMES} {ratio.flat[0]:.6g}."
    if output.min() >= 0.0 > right.min():
        yield f"No number of the output {{}} is below 0; {int((right < 0.0).sum())} of {right.size} should be."
