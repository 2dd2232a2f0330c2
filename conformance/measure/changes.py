"""Changes: what turns expected arrays of samples into the measured ones: a factor, an order, a function, a rounding."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.kinds.change import EACH, FUNCTIONS, LEAVE_OUT, Apply, Change, Setting, elementwise
from conformance.kinds.expressions import Expression, expressions_of, neat
from conformance.kinds.orders import Order, change_of, indices_of, orders
from conformance.zoo.bug import DoesNotApply
from conformance.zoo.forward.precision import FORMATS, to_integers

APART = 1000.0  # roundoffs of the largest number that two numbers may be apart and count as equal


@dataclass(frozen=True, eq=False)
class Sample:
    """A measured array of one call, with the expected array.

    Args:
        measured, expected: two arrays of the same shape. An element that was not measured is NaN.
        axes: the name of each axis: "item", "head", "query", "key", "channel", "input channel", ...
        setting: the Setting of the problem that the arrays are from.
        unit: the relative error of `measured`.
        least: the smallest value that `tolerance` may have.
    """

    measured: NDArray
    expected: NDArray
    axes: tuple[str, ...]
    setting: Setting
    unit: float = 1e-13
    least: float = 0.0

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        """Return bools, True at the elements that are known (not NaN) in both arrays."""
        return ~(np.isnan(self.measured) | np.isnan(self.expected))

    @cached_property
    def pairs(self) -> tuple[NDArray, NDArray]:
        """Return (expected, measured) as flat arrays of the elements that are known in both."""
        return self.expected[self.known], self.measured[self.known]

    @cached_property
    def tolerance(self) -> float:
        """Return the absolute error within which numbers are equal."""
        measured = np.abs(self.measured[self.known])
        return max(self.least, APART * self.unit * float(measured[np.isfinite(measured)].max(initial=0.0)))

    def is_given_by(self, array: NDArray) -> bool:
        """Return whether an array equals `measured`, within `tolerance`, in all known elements."""
        if array.shape != self.measured.shape:
            return False
        with any_numbers:
            near = (np.abs(array - self.measured) <= self.tolerance) | (array == self.measured)
        return bool((near | ~self.known).all())

    @cached_property
    def differs(self) -> bool:
        """Return whether the measured array is not the expected one."""
        return not self.is_given_by(self.expected)


MOST, FEW = 6, 4  # changes that are returned: more can't be told apart by these samples. Numbers of many that are said

LEAST_HEADS, CLOSE = 8, 1e-7
"""Heads of a layer in which what each has of its own is told, and how near two readings of it must be."""

PRECISION = "Keep these numbers in the precision of the inputs."
INTEGER_BITS = (8, 4)


def fit(samples: Sequence[Sample], gauge: int | None = None) -> list[Change]:
    """Return the changes that turn all expected arrays into the measured ones, the simplest first.

    Args:
        samples: random samples of several sizes, so that few changes fit by chance.
        gauge: an axis along which adding a constant changes no output; None: there is no such axis.
    """
    if not any(sample.differs for sample in samples):
        return []
    found: dict[str, Change] = {}
    with any_numbers:
        for view in [samples] if gauge is None else _gauged(samples, gauge):
            telling = (sample for sample in view if sample.known.any())  # the mean of nothing makes NumPy warn
            differing = sorted(telling, key=lambda sample: not sample.differs)
            for change in _candidates(differing) if any(one.differs for one in differing) else ():
                if change.slug not in found and _gives(change, differing):
                    found[change.slug] = change
                    if change.slug == "times-0":  # whatever reads only zeros gives zeros too
                        return [change]
    return list(found.values())[:MOST]


def _candidates(samples: Sequence[Sample]) -> Iterator[Change]:
    factors = _factors(samples)
    yield from map(times, factors)
    if not factors:  # else the same number would be said twice
        yield from _numbers(samples)
    yield from _means(samples)
    yield from _of_heads(samples)
    yield from order_changes(samples)
    yield from _functions(samples)
    yield from _roundings(samples)


def _gives(change: Change, samples: Iterable[Sample]) -> bool:
    """Return whether a change gives every measured array; sizes at which it can't be made count for neither side."""
    made = 0
    for sample in samples:
        try:
            array = change.made(sample.expected, sample.axes, sample.setting)
        except DoesNotApply:
            if sample.differs:
                return False
            continue
        if not sample.is_given_by(array):
            return False
        made += 1
    return made > 0


def _means(samples: Sequence[Sample]) -> Iterator[Change]:
    """Yield the mean over one axis in place of each."""
    for axis, name in enumerate(samples[0].axes):
        yield Change(
            f"mean-over-{name}".replace(" ", "-"),
            f"replaced by their mean over the {name} axis",
            lambda x, axes, s, axis=axis: np.broadcast_to(x.mean(axis=axis, keepdims=True), x.shape),  # type: ignore[misc]
            LEAVE_OUT,
        )


def _factors(samples: Sequence[Sample]) -> list[Expression]:
    numbers = []
    for sample in samples:
        expected, measured = sample.pairs
        square = float(expected @ expected)
        number = float(expected @ measured) / square if square else float("nan")
        if np.abs(number * expected).max(initial=0.0) <= sample.tolerance:
            number = 0.0
        numbers.append((number, sample.setting))
    return expressions_of(numbers, unit=samples[0].unit)


def _numbers(samples: Sequence[Sample]) -> Iterator[Change]:
    """Yield an expression in place of a number of the config."""
    if samples[0].axes == ("number",):
        read = [(float(one.measured[0]), one.setting) for one in samples if one.differs]
        for number in expressions_of(read, unit=samples[0].unit):
            to = lambda x, axes, setting, number=number: np.full_like(x, number.at(setting))  # noqa: E731
            yield Change(f"is-{number.slug}", f"replaced by {number.words}", to, LEAVE_OUT)


def times(number: Expression) -> Change:
    """Return the array times a number."""
    words = {"-1": "negated", "0": "replaced by 0"}.get(number.words, f"multiplied by {number.words}")
    return Change(f"times-{number.slug}", words, lambda x, axes, setting: x * number.at(setting), LEAVE_OUT)


def table_of_heads(read: Sequence[Sequence[float | None]]) -> list[float]:
    """Return the longest row of `read` (layer, head); [] if it is constant or does not begin with every other row."""
    longest = max(read, key=len)
    if any(number is None for row in read for number in row):
        return []
    table = [number or 0.0 for number in longest]
    tells = all(np.allclose(row, table[: len(row)], rtol=CLOSE) for row in read)  # type: ignore[arg-type]
    return table if tells and len(table) >= LEAST_HEADS and np.ptp(table) > CLOSE else []


def by_head(table: Sequence[float], heads: int) -> NDArray:
    """Return the first `heads` numbers of a table, (H,). Raises DoesNotApply if it has fewer."""
    if heads > len(table):
        raise DoesNotApply(f"the number of head {heads - 1} was not read")
    return np.array(table[:heads])


def _of_heads(samples: Sequence[Sample]) -> Iterator[Change]:
    """Yield a factor of each head."""
    if "head" not in (axes := samples[0].axes):
        return
    place = axes.index("head")
    sides = [[np.moveaxis(x, place, 0).reshape(x.shape[place], -1) for x in (s.expected, s.measured)] for s in samples]
    if any(np.isnan(side).any() for pair in sides for side in pair):
        return
    shape = [-1 if axis == place else 1 for axis in range(len(axes))]
    factors = [[float(e @ m / (e @ e)) if e.any() else None for e, m in zip(*pair, strict=True)] for pair in sides]
    if table := table_of_heads(factors):
        words = ", ".join(f"{number:.{FEW}g}" for number in table[:FEW])
        said = f"multiplied by a number of each head: {words}, ... ({len(table)} in all)"
        yield Change(
            "times-of-heads", said, lambda x, axes, s: x * by_head(table, x.shape[place]).reshape(shape), LEAVE_OUT
        )


def _functions(samples: Sequence[Sample]) -> Iterator[Change]:
    first = next(sample for sample in samples if sample.differs)
    x, y = first.pairs
    if len(x) < 2 or not np.isfinite(y).all() or np.ptp(np.concatenate([one.pairs[0] for one in samples])) == 0.0:
        return  # every function makes one number another
    for name, (words, function) in FUNCTIONS.items():
        made = function(x)
        times = float(made @ y / (made @ made)) if made.any() else 1.0
        if (np.abs(times * made - y) <= first.tolerance).all():
            digits, number = neat(times, CLOSE)
            formula, slug = (words, name) if digits == "1" else (f"{digits} * {words}", f"{digits}-{name}")
            yield Change(slug, EACH.format(formula), _with(partial(_times, function), number), LEAVE_OUT)
    for name, words, of, read in (
        ("plus", EACH.format("x + {}"), np.add, lambda x, y: float(np.mean(y - x))),
        (
            "leaky",
            "multiplied by {} where they are below 0, as by a leaky ReLU",
            lambda x, c: np.where(x < 0.0, c * x, x),
            _of_negative,
        ),
        ("clipped", "clipped to +-{}", lambda x, c: np.clip(x, -c, c), lambda x, y: float(np.abs(y).max())),
    ):
        for said in expressions_of([(read(*one.pairs), one.setting) for one in samples], unit=first.unit)[:2]:
            yield Change(f"{name}-{said.slug}", words.format(said.words), _with(of, said), LEAVE_OUT)


def _times(function: Callable[[NDArray], NDArray], x: NDArray, number: float) -> NDArray:
    return number * function(x)


def _of_negative(x: NDArray, y: NDArray) -> float:
    below = np.minimum(x, 0.0)
    slope = float(below @ y / max(below @ below, 1e-300))
    return slope if slope > -1.0 + CLOSE else float("nan")  # |x| is no ReLU


def _with(of: Callable[[NDArray, float], NDArray], number: Expression | float) -> Apply:
    return lambda array, axes, setting: of(array, number if isinstance(number, float) else number.at(setting))


def _roundings(samples: Sequence[Sample]) -> Iterator[Change]:
    first = next(sample for sample in samples if sample.differs)
    x, y = first.pairs
    if not (np.isfinite(x).all() and np.isfinite(y).all()) or np.abs(y - x).max() > np.abs(x).max() / 2:
        return
    for dtype, narrow in FORMATS.items():
        yield replace(elementwise(dtype, f"rounded to {dtype}", narrow), fix=PRECISION)
    for bits in INTEGER_BITS:
        for axis in ("", *first.axes):
            over = f"one for each index of the {axis} axis" if axis else "one for all"
            words = f"rounded to {bits}-bit integers times a scale, {over}"
            yield Change(f"int{bits}-{axis}", words, partial(_to_integers, bits, axis), PRECISION)


def _to_integers(bits: int, axis: str, array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
    others = tuple(place for place, name in enumerate(axes) if name != axis) if axis else None
    return to_integers(array, bits, others)


def _gauged(samples: Sequence[Sample], axis: int) -> Iterator[list[Sample]]:
    """Yield the samples such that both arrays compare: less their means, then with the expected mean, or first."""
    mean = partial(np.mean, axis=axis, keepdims=True)
    yield [replace(s, measured=s.measured - mean(s.measured), expected=s.expected - mean(s.expected)) for s in samples]
    for part in (mean, lambda x: np.take(x, [0], axis=axis)):
        yield [replace(s, measured=s.measured + part(s.expected - s.measured)) for s in samples]


def order_changes(samples: Sequence[Sample]) -> Iterator[Change]:
    """Yield changes that reorder one axis and may fit the samples. The caller must check them on the whole arrays."""
    for position, name in enumerate(samples[0].axes):
        axis = position - len(samples[0].axes)
        read = [(one.setting, *_matches(one, axis)) for one in samples]
        if any(not (same.any(axis=1) | zero).all() for _, same, zero in read):
            continue
        if all(np.diagonal(same).all() for _, same, _ in read):
            continue
        for order in orders():
            if all(_agrees(order, *one) for one in read):
                yield change_of(name, axis, order)


def _matches(sample: Sample, axis: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return (n, n): which expected slice each measured one equals; and (n,): which of them are 0."""
    n = sample.measured.shape[axis]
    m, e = (np.moveaxis(array, axis, 0).reshape(n, -1) for array in (sample.measured, sample.expected))
    with any_numbers:
        off = np.abs(m[:, None] - e[None]) > sample.tolerance
        return ~off.any(axis=2), ~(np.abs(m) > sample.tolerance).any(axis=1)


def _agrees(order: Order, setting: Setting, same: NDArray, zero: NDArray) -> bool:
    n = len(zero)
    try:
        indices = indices_of(order, n, setting)
    except DoesNotApply:
        return bool(np.diagonal(same).all())
    return bool(np.where(indices >= 0, same[np.arange(n), indices], zero).all())
