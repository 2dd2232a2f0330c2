r"""Solve: the array at any place with which a model gives the subject's output.

    X = \arg\min_x |o - m(x)|        o measured, m the model's output with x in place of its own array

by Gauss and Newton's method. Attention weights are linear in the output, and their logarithms nearly so in what scores
are made of: so weights are solved for first, and arrays before the softmax begin where these logarithms are right.
Elements that the outputs do not tell are NaN.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.kinds.change import Setting
from conformance.kinds.dependence import logs
from conformance.kinds.places import AFTER_WEIGHTS, BEFORE_SOFTMAX, OF_VALUES, PLACES, Place
from conformance.measure.changes import Sample
from conformance.measure.designs import changed
from conformance.measure.evidence import ROUNDOFFS, Evidence, PlacedCall
from conformance.zoo.bug import DoesNotApply

STEPS = 16  # most steps of Gauss and Newton
RANK = 1e-7  # singular values below this part of the largest count as 0
CLOSE = 1e-13  # of the numbers that are wanted, what may be left when no further step is made
AGAIN = 0.03  # while a step leaves less than this of what was left, the next one takes the same slopes


class Descent(NamedTuple):
    """A solution of G groups of equations: `found` (G, U), residuals `left` (G, E). `told` (G, U): True if unique."""

    found: NDArray
    left: NDArray
    told: NDArray[np.bool_]


def descended(made: Callable[[NDArray], NDArray], start: NDArray, wanted: NDArray, fixed: NDArray) -> Descent | None:
    """Solve made(unknowns) = wanted by Gauss-Newton steps; return a Descent, or None if they don't converge.

    Args:
        made: (n, G, U), n choices of the unknowns -> (n, G, E). A group's results depend on its own unknowns only.
        start: (G, U), the unknowns to start from.
        wanted: (G, E), the wanted results.
        fixed: (k, U), coefficients. In each group, the k sums `fixed @ unknowns` must stay as in `start`.
    """
    groups, unknowns = start.shape
    width = 1e-6 * max(1e-3, float(np.abs(start).max(initial=0.0)))
    here, inverse = start, None
    off = wanted - made(here[None])[0]
    size = np.linalg.norm(off)
    norm = max(np.linalg.norm(wanted), size)  # all that is wanted may be 0
    told = np.zeros(start.shape, bool)
    for step in range(STEPS):
        if inverse is None:
            units = here + width * np.eye(unknowns)[:, None, :]
            slopes = np.moveaxis(made(units) - (wanted - off), 0, -1) / width  # (G, E, U)
            if not np.isfinite(slopes).all():
                return None
            held = np.broadcast_to(fixed * np.abs(slopes).max(initial=0.0), (groups, *fixed.shape))
            left, sizes, right = np.linalg.svd(np.concatenate([slopes, held], axis=1), full_matrices=False)
            seen = sizes > RANK * sizes[:, :1]
            told = (np.where(seen[..., None], right, 0.0) ** 2).sum(axis=1) > 1.0 - 1e-9
            scaled = np.where(seen, 1.0 / np.where(seen, sizes, 1.0), 0.0)[..., None] * right
            inverse = scaled.swapaxes(1, 2) @ left.swapaxes(1, 2)  # (G, U, E + k)
        forward = (inverse[..., : off.shape[1]] @ off[..., None])[..., 0]
        for shorter in (1.0, 0.3, 0.1):
            after = here + shorter * forward
            rest = wanted - made(after[None])[0]
            if np.linalg.norm(rest) < size:
                break
        else:
            break
        before, size = size, np.linalg.norm(rest)
        here, off = after, rest
        if not np.isfinite(size) or (step > 3 and size > 0.5 * before and size > 1e-6 * norm):
            return None
        if size <= CLOSE * norm:
            break
        if size > AGAIN * before:
            inverse = None
    return Descent(here, off, told)


CODE = 2.0**-4
"""The number in place of 1 in the unit vectors: small, so that a layer that bounds its values leaves it as it is."""


def read_weights(answer: Callable[[Problem], NDArray | None], problem: Problem, code: float = CODE) -> NDArray | None:
    """Return attention weights (B, H, Lq, Lk), read from outputs `answer(problem)` for values `code` * unit vectors.

    What such a call gives without values is taken off.
    """
    config, sizes = problem.config, problem.sizes
    found = np.zeros((sizes.batch, config.num_heads, sizes.query_len, sizes.key_len))
    width = config.value_head_dim
    if config.projections:
        width = min(width, config.value_dim, config.output_dim)
    together, is_added = config.output_dim // width, None
    for head, key in product(range(0, config.num_heads, together), range(0, sizes.key_len, width)):
        heads = range(head, min(head + together, config.num_heads))
        keys = range(key, min(key + width, sizes.key_len))
        output = answer(_passing(problem, heads, keys, width, code))
        none = answer(_passing(problem, heads, range(0), width, code)) if is_added is not False else 0.0
        if output is None or none is None:
            return None
        output, is_added = output - none, is_added or bool(np.any(none))
        for place, one in enumerate(heads):
            found[:, one, :, keys.start : keys.stop] = output[:, :, place * width : place * width + len(keys)] / code
    return found


@lru_cache(maxsize=2048)
def _passing(problem: Problem, heads: range, keys: range, width: int, code: float) -> Problem:
    """Return the problem with values and W_v, W_o that show the weights of these heads on these keys."""
    config, sizes, channels = problem.config, problem.sizes, np.arange(width)
    dv = config.value_head_dim
    codes = np.zeros((sizes.key_len, width))
    codes[np.arange(keys.start, keys.stop), np.arange(len(keys))] = code
    v_proj = np.zeros((config.num_kv_heads * dv, config.value_dim))
    for group in range(config.num_kv_heads):
        v_proj[group * dv + channels, channels] = 1.0
    out_proj = np.zeros((config.output_dim, config.num_heads * dv))
    for place, head in enumerate(heads):
        out_proj[place * width + channels, head * dv + channels] = 1.0
    values = np.zeros((sizes.batch, sizes.key_len, config.value_dim))
    groups = 1 if config.projections else config.num_kv_heads
    values[:, :, : groups * width] = np.tile(codes, groups)
    inputs = {"values": values[:, sizes.past_len :]}
    if sizes.past_len:
        past = np.zeros((sizes.batch, config.num_kv_heads, sizes.past_len, dv))
        past[..., :width] = codes[None, None, : sizes.past_len]
        inputs["past_values"] = past
    weights: dict[str, NDArray | float] = {
        "v_proj.weight": v_proj,
        "out_proj.weight": out_proj,
        "v_proj.bias": 0.0,
        "out_proj.bias": 0.0,
    }
    return changed(problem, weights, **inputs)


MOST_UNKNOWN, MOST_CALLS = 400, 8
"""Elements of an array that are looked for, each a run of the model; and calls that it may take."""

MORE, OF_LOGARITHMS = 1.3, 1e-8
"""So many times as many equations as unknowns; what may be left of log weights, more in coarser arithmetic."""

Solved = tuple[NDArray, NDArray]
"""(measured, the model's): elements that the outputs don't tell are NaN."""


def solved(evidence: Evidence, problem: Problem, place: Place) -> Solved | None:
    """Return two arrays at `place`: one with which the model has the subject's output, and the model's own array.

    Return None if none is found or it has too many elements. More calls are run if needed, and results are cached.
    """
    known: dict[object, Solved | None] = evidence.asker.read
    key = tuple(bug.id for bug in evidence.model), problem, place.id
    if key not in known:
        try:
            with any_numbers:
                found = _solved(evidence, problem, place)
        except (DoesNotApply, np.linalg.LinAlgError):
            found = None
        if evidence.asker.out_of_time:  # an answer that lacks may come when there is time again
            return found
        known[key] = found
    return known[key]


def _solved(evidence: Evidence, problem: Problem, place: Place) -> Solved | None:
    first = PlacedCall(evidence, problem, place)
    own, got = first.own, evidence.asker.output(problem)
    if own is None or got is None or not 0 < own.size <= MOST_UNKNOWN or not np.isfinite(own).all():
        return None
    axes = _apart(first, own)
    start = _grouped(own[None], axes)[0]
    size = start.shape[1]
    each = np.eye(size).reshape(size, *_shape_of_group(own.shape, axes))  # sums along the gauge's axis stay as they are
    fixed = np.zeros((0, size)) if place.gauge is None else each.sum(axis=place.gauge).reshape(size, -1).T
    if place.id in BEFORE_SOFTMAX:
        found = _by_logarithms(first, axes, start, fixed)
        if found is not None:
            made = first.given(_put_together(found[0][None], own.shape, axes))[0]
            if np.abs(made - got).max(initial=0.0) <= evidence.allowed(got):
                return _put_together(found[1][None], own.shape, axes)[0], own
            start = found[0]
    calls = [first, *(PlacedCall(evidence, one, place) for one in _alike(evidence, problem, first))]
    answers = [evidence.asker.output(call.problem) for call in calls]
    given = [answer for answer in answers if answer is not None and np.isfinite(answer).all()]
    if len(given) < len(calls):
        return None
    of_output = axes and ((0, 1) if len(axes) > 1 else (0,))

    def made_by(groups: NDArray) -> NDArray:
        arrays = _put_together(groups, own.shape, axes)
        return np.concatenate([_grouped(call.given(arrays), of_output) for call in calls], axis=-1)

    wanted = np.concatenate([_grouped(answer[None], of_output) for answer in given], axis=-1)[0]
    descent = descended(made_by, start, wanted, fixed)
    made_first = made_by(start[None])
    if descent is None or np.abs(descent.left).max() > max(map(evidence.allowed, (wanted, made_first))):
        return None
    return _put_together(np.where(descent.told, descent.found, np.nan)[None], own.shape, axes)[0], own


Axes = tuple[int, ...]


def _apart(call: PlacedCall, own: NDArray) -> Axes:
    """Return the axes along which parts of an array make outputs of their own: items, and queries if it has them."""
    if not call.is_of_items:
        return ()
    axes: Axes = (0, call.place.axes.index("query")) if "query" in call.place.axes else (0,)
    if not call.evidence.model or (own.shape[0] == 1 and len(axes) == 1):
        return axes
    groups = _grouped(own[None], axes)
    moved = groups.copy()
    moved[:, 0] += 0.1 * (1.0 + np.abs(moved[:, 0]))
    before, after = call.given(_put_together(np.concatenate([groups, moved]), own.shape, axes))
    of_others = np.abs(after - before).reshape(*before.shape[: len(axes)], -1).max(axis=-1).ravel()[1:]
    return axes if of_others.max(initial=0.0) == 0.0 else ()


def _shape_of_group(shape: Sequence[int], axes: Axes) -> tuple[int, ...]:
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _grouped(arrays: NDArray, axes: Axes) -> NDArray:
    """Return (n, groups, unknowns) of (n, ...)."""
    moved = np.moveaxis(arrays, [axis + 1 for axis in axes], range(1, len(axes) + 1))
    return moved.reshape(len(arrays), int(np.prod(moved.shape[1 : len(axes) + 1])), -1)


def _put_together(groups: NDArray, shape: Sequence[int], axes: Axes) -> NDArray:
    """Return (n, *shape) of (n, groups, unknowns)."""
    first = [shape[axis] for axis in axes]
    moved = groups.reshape(len(groups), *first, *_shape_of_group(shape, axes))
    return np.moveaxis(moved, range(1, len(axes) + 1), [axis + 1 for axis in axes])


def _alike(evidence: Evidence, problem: Problem, call: PlacedCall) -> Iterable[Problem]:
    """Yield as many calls more as it takes to tell the array, which is the same in them."""
    assert call.own is not None
    place = call.place
    if place.step == "output":
        return
    sizes, config = problem.sizes, problem.config
    unknown = call.own.size
    if place.id in BEFORE_SOFTMAX:  # these calls tell the weights
        unknown = sizes.batch * config.num_heads * sizes.query_len * sizes.key_len
    # Outputs of more queries than keys are sums of those of some of them.
    outputs = sizes.batch * min(sizes.query_len, sizes.key_len) * config.output_dim
    names = ("out_proj.weight",) if place.id in OF_VALUES | AFTER_WEIGHTS else ("out_proj.weight", "values")
    fixed = evidence.asker.fixed_weights is not None
    for number in range(1, max(2, min(math.ceil(MORE * unknown / max(outputs, 1)), MOST_CALLS))):
        yield varied(problem, names, number, fixed=fixed)


@lru_cache(maxsize=2048)
def varied(problem: Problem, names: tuple[str, ...], number: int, *, fixed: bool = False) -> Problem:
    """Return the problem with new random arrays for `names`. If `fixed`, only inputs are new. `number`: the seed."""
    rng = np.random.default_rng([abs(number), int(number < 0)])
    weights = {name: rng.normal(size=problem.weights[name].shape) for name in names if name in problem.weights}
    given = {name: rng.normal(size=getattr(problem.inputs, name).shape) for name in names if "." not in name}
    return changed(problem, {} if fixed else weights, **given)


def _by_logarithms(call: PlacedCall, axes: Axes, start: NDArray, fixed: NDArray) -> tuple[NDArray, NDArray] | None:
    """Return the groups that make the logarithms of the weights right, and the same with NaN where they aren't told."""
    weights, model = weights_of(call.evidence, call.problem), call.state["kept_weights"]
    there = model > 0.0
    if weights is None or call.own is None or not np.isfinite(weights).all() or not (weights[there] > 0.0).all():
        return None
    shape, of_weights = call.own.shape, axes and ((0, 2) if len(axes) > 1 else (0,))

    def made(groups: NDArray) -> NDArray:
        return _grouped(logs(call.given(_put_together(groups, shape, axes), "kept_weights"), there), of_weights)

    found = descended(made, start, _grouped(logs(weights[None], there), of_weights)[0], fixed)
    if found is None or np.abs(found.left).max(initial=0.0) > max(OF_LOGARITHMS, ROUNDOFFS * call.evidence.asker.unit):
        return None
    return found.found, np.where(found.told, found.found, np.nan)


def weights_of(evidence: Evidence, problem: Problem) -> NDArray | None:
    """Return the subject's attention weights (B, H, Lq, Lk), inferred from its outputs; None if that fails."""
    known: dict[object, NDArray | None] = evidence.asker.read
    key = tuple(bug.id for bug in evidence.model), problem
    if key not in known:
        if evidence.asker.fixed_weights is None:
            known[key] = read_weights(evidence.asker.output, problem)
        else:
            read = solved(evidence, problem, PLACES["kept_weights"])
            known[key] = None if read is None else read[0]
    return known[key]


def samples_of(evidence: Evidence, problems: Iterable[Problem], place: Place) -> list[Sample]:
    """Return Samples of the array at `place`, one for each problem that has it; [] if `solved` fails in any of them."""
    found = []
    for problem in problems:
        own = PlacedCall(evidence, problem, place).own
        if own is None or not 0 < own.size <= MOST_UNKNOWN:
            continue
        read = solved(evidence, problem, place)
        if read is None:
            return []
        if np.isfinite(read[0]).any():
            unit = max(1e-11, 100.0 * evidence.asker.unit)
            least = OF_LOGARITHMS * float(np.abs(own).max(initial=0.0))
            found.append(Sample(*read, place.axes, Setting.of(problem), unit=unit, least=least))
    return found
