"""Masks: what each source lets in is read as an array of 0 and 1, its numbers as integers; changes are fitted to both.

With equal scores the weights of a row are uniform over the allowed keys, whatever the projections, so that

    allowed[b, h, i, j] = (weights[b, h, i, j] > 0)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.measure.evidence import Evidence, fits
from conformance.measure.grammar.orders import RULES, taken
from conformance.measure.grammar.sample import Change, Sample, Setting, elementwise
from conformance.measure.grammar.where import part_changes
from conformance.measure.places import Place, fault
from conformance.measure.propose.mask_places import (
    ARRAYS,
    EVERY_LENGTH,
    INTEGERS,
    SIDES,
    SOURCES,
    far,
    given,
    mask_fault,
    with_zeroed_padding,
)
from conformance.measure.propose.mask_sources import combined, special
from conformance.measure.read.call import Call
from conformance.measure.read.fit import fit, gives
from conformance.measure.read.weights import read_weights
from conformance.measure.softmax.exclusion import excluded
from conformance.zoo.bug import Bug

# What is read -------------------------------------------------------------------------------------------------

NOTICEABLE = 1e-6
"""A weight above this share of its row's largest counts as one; below it may be rounding."""


def read_allowed(evidence: Evidence, problem: Problem) -> NDArray[np.bool_] | None:
    """Bool (B, H, Lq, Lk): the keys that have a weight, of a problem with equal scores; None if refused."""
    weights = read_weights(evidence.got, problem)
    if weights is None or not np.isfinite(weights).all():
        return None
    size = np.abs(weights)
    return np.asarray(size > NOTICEABLE * size.max(axis=-1, keepdims=True, initial=0.0))


def of_sources(*sources: str) -> Callable[[Evidence], Iterator[Bug]]:
    """What differs in these sources: their numbers first, then what they let in; "several" are combined otherwise."""

    def propose(evidence: Evidence) -> Iterator[Bug]:
        yield from _proposed(evidence, sources)

    return propose


def of_given(evidence: Evidence) -> Iterator[Bug]:
    """What differs in the sources that the first call that differs has."""
    wrong = next(evidence.differing(), None)
    if wrong is not None:
        yield from _proposed(evidence, given(wrong.inputs.mask))


def _proposed(evidence: Evidence, sources: Sequence[str]) -> Iterator[Bug]:
    differing = list(evidence.differing())
    if not differing:
        return
    likely: list[Bug] = []
    if "several" in sources:
        likely += combined()
        sources = given(differing[0].inputs.mask)
    read = [
        (problem, allowed) for problem in evidence.problems if (allowed := read_allowed(evidence, problem)) is not None
    ]
    for place in INTEGERS.values():
        for bounded in (False, True):
            samples = _read_integers(evidence, place, read, bounded=bounded)
            changes = _fitted(samples, integers=True)
            likely += (fault(place, change) for change in changes)
            if place.id.startswith("lengths"):
                likely += (fault(EVERY_LENGTH, change) for change in changes)
            if changes:
                break
    sides = SIDES if "window" in sources else ()
    for source in (*sources, *sides, "all", "always"):
        place = ARRAYS[source]
        likely += (mask_fault(place, change) for change in _fitted(_read_arrays(evidence, place, read)))
        if source in SOURCES:
            likely += special(source)
    yield from likely
    ignored = Change("ignored", "replaced by 1", lambda array, axes, setting: np.ones_like(array))
    yield with_zeroed_padding(mask_fault(ARRAYS["all"], ignored))
    model = evidence.model
    is_padded = {"valid_lens", "allowed"} & {*given(differing[0].inputs.mask)}
    if is_padded and not any(fits(evidence.asker, evidence.variants, differing[0], (*model, bug)) for bug in likely):
        yield from (with_zeroed_padding(bug) for bug in likely if set(bug.forward) == {"allowed"})
    if not evidence.explained:
        yield from excluded(evidence)


Read = Sequence[tuple[Problem, NDArray]]


def _read_arrays(evidence: Evidence, place: Place, read: Read) -> list[Sample]:
    """What a source lets in, of calls in which no other source hides what it does."""
    samples = []
    for problem, allowed in read:
        call = Call(evidence, problem, place)
        if call.own is None:
            continue
        everything = call.place.with_array(np.ones_like(call.own))["allowed"](call.state, call._steps["allowed"])
        measured = np.where(everything, allowed, np.nan).astype(np.float64)
        samples.append(_sample(problem, measured, call.own, place))
    return samples


def _sample(problem: Problem, measured: NDArray, own: NDArray, place: Place) -> Sample:
    setting = Setting.of(problem)
    return Sample(measured, own, place.axes, setting, least=1e-9)


def _read_integers(evidence: Evidence, place: Place, read: Read, *, bounded: bool) -> list[Sample]:
    """The integers with which the definition lets in what has a weight; of several the nearest to the right ones.

    With `bounded`, those are not known that may be any larger number.
    """
    samples = []
    for problem, allowed in read:
        call = Call(evidence, problem, place)
        if call.own is None or call.own.ndim != len(place.axes) or len(given(problem.inputs.mask)) > 1:
            continue
        numbers = _integers_of(call, allowed, bounded)
        if numbers is None:
            return []
        if np.isnan(numbers).all():
            continue
        samples.append(_sample(problem, numbers, call.own, place))
    return samples


def _integers_of(call: Call, allowed: NDArray, bounded: bool) -> NDArray | None:
    own = call.own
    assert own is not None
    far = call.problem.sizes.key_len + call.problem.sizes.query_len

    def gives_them(numbers: NDArray) -> NDArray:
        made = call.place.with_array(numbers)["allowed"](call.state, call._steps["allowed"])
        return np.asarray(made == allowed)

    found = own.copy()
    if call.place.id == "sides":
        choices = sorted(
            ((a, b) for a in range(-1, far + 1) for b in range(-1, far + 1)),
            key=lambda ab: abs(ab[0] - own[0]) + abs(ab[1] - own[1]),
        )
        return next((np.array(one, float) for one in choices if gives_them(np.array(one, float)).all()), None)
    # Each item, or query, has a number of its own.
    axes = (1, 2, 3) if own.ndim == 1 else (1, 3)

    def each(by: int) -> NDArray[np.bool_]:
        right = gives_them(own + by).all(axis=axes)
        return right if right.shape == own.shape else np.broadcast_to(right.all(), own.shape)

    open_ = np.ones(own.shape, bool)
    for by in sorted(range(-far, far + 1), key=abs):
        right = each(by)
        found = np.where(open_ & right, own + by, found)
        open_ &= ~right
        if not open_.any():
            return np.where(each(far), np.nan, found) if bounded else np.asarray(found)
    return None


# What is fitted -----------------------------------------------------------------------------------------------


def _fitted(samples: Sequence[Sample], *, integers: bool = False) -> list[Change]:
    if not any(sample.differs for sample in samples):
        return []
    ordered = sorted(samples, key=lambda sample: not sample.differs)
    own = _taken_as() if integers else _of_bools(ordered[0].axes)
    with any_numbers:
        found = [change for change in own if gives(change, ordered)]
        found += fit(ordered)
        if not found:
            inside = lambda inner: [change for change in own if gives(change, inner)]  # noqa: E731
            found = [change for change in part_changes(ordered, inside) if gives(change, ordered)]
    return found


def _at_least_0(n: int, x: NDArray, s: Setting) -> NDArray:
    return np.maximum(x + n, 0)


def _if_given(n: int, x: NDArray, s: Setting) -> NDArray:
    return x + n * (x != 0)


def _multiple(m: int, up: bool, x: NDArray, s: Setting) -> NDArray:
    return (-(-x // m) if up else x // m) * m


def _surplus(s: Setting) -> int:
    return s.sizes.key_len - s.sizes.query_len


TAKEN: tuple[tuple[str, str, Callable[[NDArray, Setting], NDArray]], ...] = (
    ("half", "halved and rounded down", lambda x, s: x // 2),
    ("half-up", "halved and rounded up", lambda x, s: -(-x // 2)),
    ("within-queries", "at most Lq", lambda x, s: np.minimum(x, s.sizes.query_len)),
    ("at-least-queries", "at least Lq", lambda x, s: np.maximum(x, s.sizes.query_len)),
    ("at-most-difference", "at most Lk - Lq", lambda x, s: np.minimum(x, _surplus(s))),
    ("difference-if-given", "replaced by Lk - Lq where not 0", lambda x, s: np.where(x != 0, _surplus(s), 0)),
    ("difference", "replaced by Lk - Lq", lambda x, s: 0 * x + _surplus(s)),
    ("plus-difference", "plus Lk - Lq", lambda x, s: x + _surplus(s)),
    ("larger-difference", "plus Lk - Lq, or 0 if that is larger", lambda x, s: x + max(_surplus(s), 0)),
    ("centred", "plus half of Lk - Lq, rounded down", lambda x, s: x + _surplus(s) // 2),
    ("less-past", "less the number of past keys", lambda x, s: x - s.sizes.past_len),
    ("plus-past", "plus the number of past keys", lambda x, s: x + s.sizes.past_len),
    ("zero-is-none", "replaced by None where 0", lambda x, s: np.where(x == 0, far(s), x)),
    ("none-is-zero", "replaced by 0 where None", lambda x, s: np.where(x >= far(s), 0, x)),
    ("none-is-other", "replaced by the other where None", lambda x, s: np.where(x >= far(s), x[::-1], x)),
    *(
        (f"plus{n:+d}-{slug}", f"{'plus' if n > 0 else 'less'} {abs(n)}{words}", partial(rule, n))
        for slug, words, rule in (
            ("at-least-0", ", and at least 0", _at_least_0),
            ("if-given", " where not 0", _if_given),
        )
        for n in (-1, -2, 1, 2)
    ),
    *(
        (f"{way}-{m}s", f"rounded {way} to a multiple of {m}", partial(_multiple, m, way == "up"))
        for m in (2, 3, 4, 8)
        for way in ("up", "down")
    ),
)
"""What an integer of a mask may be taken as besides what any array may be: slug, words, (x, setting) -> another."""


@cache
def _taken_as() -> tuple[Change, ...]:
    return tuple(Change(f"taken-{slug}", words, partial(_with_setting, rule)) for slug, words, rule in TAKEN)


def _with_setting(
    rule: Callable[[NDArray, Setting], NDArray], array: NDArray, axes: tuple[str, ...], setting: Setting
) -> NDArray:
    return np.asarray(rule(array, setting), np.float64)


@cache
def _of_bools(axes: tuple[str, ...]) -> tuple[Change, ...]:
    """What may be done to what is let in besides what any array may: neighbours, blocks, counts, running sums."""
    found: list[tuple[str, str, Callable[[NDArray], NDArray]]] = []
    for axis, name in enumerate(axes):
        for rule in ("shifted-+1", "shifted--1", "clamped-+2", "clamped--2"):
            words, order = RULES[rule]
            read = f"with its {name} axis {words}"
            for said, total in (("or", np.maximum), ("and", np.minimum)):
                found.append((f"{name}-{said}-{rule}", f"{said} {read}", partial(_beside, order, axis, total)))
            found.append((f"{name}-{rule}-open", f"{read}, and open there", partial(_open, order, axis)))
        for slug, words, total in (("any", "any", np.maximum), ("every", "every one", np.minimum)):
            for size in (2, 3, 4, 8):
                said = f"for whole blocks of {size} on the {name} axis, by {words} of them"
                found.append((f"{name}-blocks-of-{size}-{slug}", said, partial(_blocks, size, axis, total)))
            for end, side in (("", "before"), ("-back", "after")):
                said = f"up to each {name} by {words} {side} it"
                found.append((f"{name}-running-{slug}{end}", said, partial(_running, axis, total, bool(end))))
    found.append(("counted", "as the number of keys to let in, from the first", _counted))
    return tuple(elementwise(*one) for one in found)


def _beside(order: Callable[[int], NDArray], axis: int, total: np.ufunc, x: NDArray) -> NDArray:
    return np.asarray(total(x, taken(x, order(x.shape[axis]), axis)))


def _open(order: Callable[[int], NDArray], axis: int, x: NDArray) -> NDArray:
    read = order(x.shape[axis])
    shape = [1] * x.ndim
    shape[axis] = -1
    return np.where((read < 0).reshape(shape), 1.0, taken(x, read, axis))


def _blocks(size: int, axis: int, total: np.ufunc, x: NDArray) -> NDArray:
    starts = np.arange(0, x.shape[axis], size)
    return np.repeat(total.reduceat(x, starts, axis=axis), np.diff([*starts, x.shape[axis]]), axis=axis)


def _running(axis: int, total: np.ufunc, back: bool, x: NDArray) -> NDArray:
    found = total.accumulate(np.flip(x, axis) if back else x, axis=axis)
    return np.asarray(np.flip(found, axis) if back else found)


def _counted(x: NDArray) -> NDArray:
    return (np.arange(x.shape[-1]) < x.sum(axis=-1, keepdims=True)) * 1.0
