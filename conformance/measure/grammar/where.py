"""Where: the part of an array in which a change acts, or the calls in which it does.

Which elements differ is projected on each axis and on pairs of axes; which calls differ is told by their sizes and by
what they have. Inside, any other change may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product

import numpy as np
from numpy.typing import NDArray

from conformance.measure.grammar.expressions import SIZES
from conformance.measure.grammar.index_sets import (
    PLAIN,
    Flags,
    IndexSet,
    Relation,
    relations_seen,
    sets_seen,
)
from conformance.measure.grammar.sample import MASKS, Change, Sample, Setting
from conformance.zoo.bug import DoesNotApply
from mha_core.features import FEATURES

MOST_RULES, COVERING, MOST_PARTS = 5, 3, 8
"""Rules of one axis that are kept of those that fit; of those that hold more than what differs; parts that are one."""

Axes = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Where:
    """A part of an array, or some calls.

    Args:
        slug: in kebab-case.
        words: to be read after "at": "head 0", "calls with a past".
        flags: (shape, axes, setting) -> bool that broadcasts to the shape. Raises DoesNotApply without such an axis.
        axes: the names of the axes that it looks at; none: it is one of whole calls.
    """

    slug: str
    words: str
    flags: Callable[[tuple[int, ...], Axes, Setting], Flags]
    axes: Axes = ()

    def holds(self, setting: Setting) -> bool:
        """Whether it holds in a call; of one with axes: whether it may."""
        return bool(self.axes) or bool(self.flags((), (), setting))

    def __and__(self, other: Where) -> Where:
        return Where(
            f"{self.slug}-and-{other.slug}",
            f"{self.words} and {other.words}",
            lambda shape, axes, setting: self.flags(shape, axes, setting) & other.flags(shape, axes, setting),
            (*self.axes, *other.axes),
        )


def along(axis: str, chosen: IndexSet) -> Where:
    """The indices of a set on an axis."""

    def flags(shape: tuple[int, ...], axes: Axes, setting: Setting) -> Flags:
        place = _place(axes, axis)
        wide = [1] * len(shape)
        wide[place] = -1
        return chosen.rule(shape[place], setting).reshape(wide)

    return Where(f"{axis.replace(' ', '-')}-{chosen.slug}", chosen.said(axis), flags, (axis,))


def paired(first: str, second: str, relation: Relation) -> Where:
    """The pairs of indices of two axes that stand in a relation."""

    def flags(shape: tuple[int, ...], axes: Axes, setting: Setting) -> Flags:
        a, b = _place(axes, first), _place(axes, second)
        wide = [1] * len(shape)
        wide[a], wide[b] = shape[a], shape[b]
        found = relation.rule(shape[a], shape[b])
        return (found if a < b else found.T).reshape(wide)

    slug = f"{second}-{first}-{relation.slug}".replace(" ", "-")
    return Where(slug, relation.words.format(a=first, b=second), flags, (first, second))


def _place(axes: Axes, name: str) -> int:
    if name not in axes:
        raise DoesNotApply(f"there is no axis of {name}s")
    return axes.index(name)


def at(change: Change, where: Where) -> Change:
    """The change in one part, and nothing elsewhere."""

    def apply(array: NDArray, axes: Axes, setting: Setting) -> NDArray:
        flags = where.flags(array.shape, axes, setting)
        if not flags.any():
            return array
        return np.where(flags, change.apply(array, axes, setting), array)

    return Change(f"{change.slug}-at-{where.slug}", f"{change.words}, at {where.words} only", apply)


# Parts of an array --------------------------------------------------------------------------------------


def parts_of(samples: Sequence[Sample]) -> list[list[Where]]:
    """The parts outside which no sample differs: lists of parts that are one and the same in all samples.

    The first list has the smallest part; the others leave the condition of one axis out.
    """
    differing = [sample for sample in samples if sample.differs]
    quiet = [sample for sample in samples if not sample.differs]
    axes = samples[0].axes
    choices: list[list[Where]] = []
    covering: list[list[Where]] = []
    for position, name in enumerate(axes):
        seen = [_seen(sample, position) for sample in differing]
        if all((flags | ~known).all() for flags, known, _ in seen):
            continue
        every = [*seen, *(_seen(sample, position) for sample in quiet)]
        # Rules that hold nowhere in the others, if there are any: what is there may as well not show.
        if rules := sets_seen(every) or sets_seen(seen):
            choices.append([along(name, one) for one in rules[:MOST_RULES]])
        elif rules := (sets_seen(every, cover=True) or sets_seen(seen, cover=True))[:COVERING]:
            # Not every element of the part need differ: those under a threshold, say.
            covering.append([along(name, one) for one in rules])
    pairs = list(_pairs(differing, axes))
    sets: list[list[tuple[Where, ...]]] = [list(product(*choices))] if choices else []
    if pairs:
        # The pairs may say of the indices of their axes all that there is to say.
        longer = [(one, *chosen) for chosen in product(*choices) for one in pairs]
        sets = [[*((one,) for one in pairs), *longer], *sets]
    if len(choices) > 1:
        sets += [list(product(*choices[:k], *choices[k + 1 :])) for k in range(len(choices))]
    if covering:
        sets.append(list(product(*choices, *covering)))
    return [found for chosen in sets if (found := _same(chosen[: 4 * MOST_PARTS], differing))]


def _seen(sample: Sample, position: int) -> tuple[Flags, Flags, Setting]:
    return _projected(sample.differing, position), _projected(sample.known, position), sample.setting


def _projected(flags: Flags, *positions: int) -> Flags:
    return flags.any(axis=tuple(axis for axis in range(flags.ndim) if axis not in positions))


def _same(choices: Sequence[tuple[Where, ...]], samples: Sequence[Sample]) -> list[Where]:
    """The parts of these conditions that are as small as the smallest of them in every sample."""
    parts = [_all_of(chosen) for chosen in choices]
    flags = [
        [np.broadcast_to(part.flags(s.expected.shape, s.axes, s.setting), s.known.shape) & s.known for s in samples]
        for part in parts
    ]
    smallest = flags[int(np.argmin([sum(int(one.sum()) for one in each) for each in flags]))]
    return [
        part
        for part, each in zip(parts, flags, strict=True)
        if all((one == other).all() for one, other in zip(each, smallest, strict=True))
    ][:MOST_PARTS]


def _all_of(chosen: Sequence[Where]) -> Where:
    found = chosen[0]
    for one in chosen[1:]:
        found = found & one
    return found


def _pairs(samples: Sequence[Sample], axes: Axes) -> Iterator[Where]:
    """Sets of pairs of two axes, where what differs is not a product of indices of each."""
    for (a, first), (b, second) in combinations(enumerate(axes), 2):
        seen = [(_projected(s.differing, a, b), _projected(s.known, a, b)) for s in samples]
        if all((flags | ~known | ~_product(flags)).all() for flags, known in seen):
            continue
        for relation in relations_seen(seen)[:MOST_RULES]:
            yield paired(first, second, relation)
        return


def _product(flags: Flags) -> Flags:
    return np.asarray(flags.any(axis=1)[:, None] & flags.any(axis=0)[None])


# Calls --------------------------------------------------------------------------------------------------


def calls(slug: str, words: str, holds: Callable[[Setting], bool]) -> Where:
    """The calls of which something holds."""

    def flags(shape: tuple[int, ...], axes: Axes, setting: Setting) -> Flags:
        return np.full((1,) * len(shape), holds(setting))

    return Where(slug.replace(" ", "-"), words, flags)


def _words_of_features() -> dict[str, str]:
    words = {row.name: f"calls with {row.words}" for row in FEATURES if row.words}
    return words | {name: f"calls with {said}" for name, said in MASKS.items()}


NAMED = _words_of_features()
"""Feature -> the calls that have it, in words."""

MASKING = frozenset((*MASKS, "bias"))
CALLED = frozenset((*MASKING, "past", "dropout_keep"))
"""What a mask may have, and what a call may have."""


def _has(name: str) -> Where:
    return calls(f"with-{name}", NAMED[name], lambda s: name in s.has)


FEATURED: tuple[Where, ...] = (
    *(_has(name) for name in NAMED),
    *(
        calls(f"without-{name}", words.replace("with ", "without ", 1), lambda s, name=name: name not in s.has)  # type: ignore[misc]
        for name, words in NAMED.items()
    ),
    calls("with-a-mask", "calls with a mask", lambda s: bool(s.has & MASKING)),
    calls("without-a-mask", "calls without a mask", lambda s: not s.has & MASKING),
    calls("plain", "calls with no mask, past or dropout", lambda s: not s.has & CALLED),
    calls("of-several-items", "calls of more than one item", lambda s: s.sizes.batch > 1),
    calls("of-one-item", "calls of one item", lambda s: s.sizes.batch == 1),
    calls("with-keys", "calls with keys", lambda s: s.sizes.key_len > 0),
)
"""Kinds of calls to which a fault may be limited."""

ITEMS: tuple[Where, ...] = tuple(along("item", one) for one in PLAIN if one.slug in ("first", "last", "odd", "even"))
ITEMS += tuple(along("item", one) for one in PLAIN if one.slug in ("but-first", "but-last"))
ITEMS += tuple(
    along("item", IndexSet(f"index-{k}", f"{{one}} {k}", lambda n, s, k=k: np.arange(n) == k))  # type: ignore[misc]
    for k in range(1, 4)
)
"""Items to which a fault may be limited."""


def both_of(one: str, other: str) -> Where:
    """Calls in which two features meet."""
    words = f"{NAMED[one]} and {NAMED[other].removeprefix('calls with ')}"
    return calls(f"with-{one}-and-{other}", words, lambda s: one in s.has and other in s.has)


def conditions_of(wrong: Sequence[Setting], right: Sequence[Setting]) -> Iterator[Where]:
    """What the calls that differ have in common, and none of the others has: sizes first, then features, then two."""
    if not right or not wrong:
        return

    def tells(where: Where) -> bool:
        return all(map(where.holds, wrong)) and not any(map(where.holds, right))

    names = sorted(SIZES, key=lambda name: not name.endswith(("length", "batch size")))
    for name, other in product(names, names):
        size, than = SIZES[name], SIZES[other]
        if name == other:
            yield from _limits(name, [size(s) for s in wrong], [size(s) for s in right])
        elif all(size(s) > than(s) for s in wrong) and not any(size(s) > than(s) for s in right):
            yield calls(f"where-{name}-above-{other}", f"calls where the {name} > {other}", _above(size, than))
        elif name < other and all(size(s) == than(s) for s in wrong) and not any(size(s) == than(s) for s in right):
            yield calls(f"where-{name}-is-{other}", f"calls where the {name} is the {other}", _equal(size, than))
    found = list(filter(tells, FEATURED))
    yield from found
    if not found:
        yield from filter(tells, (both_of(one, other) for one, other in combinations(NAMED, 2)))


def _above(size: Callable[[Setting], float], than: Callable[[Setting], float]) -> Callable[[Setting], bool]:
    return lambda setting: size(setting) > than(setting)


def _equal(size: Callable[[Setting], float], than: Callable[[Setting], float]) -> Callable[[Setting], bool]:
    return lambda setting: size(setting) == than(setting)


SIZE_RULES: tuple[tuple[str, str, Callable[[float, float], bool]], ...] = (
    ("from-{:g}", ">= {:g}", lambda k, m: k >= m),
    ("above-{:g}", "> {:g}", lambda k, m: k > m),
    ("to-{:g}", "<= {:g}", lambda k, m: k <= m),
    ("multiple-of-{:g}", "is a multiple of {:g}", lambda k, m: k % m == 0),
    ("no-multiple-of-{:g}", "is no multiple of {:g}", lambda k, m: k % m != 0),
    ("rest-of-{:g}", "is more than {:g} and no multiple of it", lambda k, m: k > m and k % m != 0),
)


def _limits(name: str, wrong: Sequence[float], right: Sequence[float]) -> Iterator[Where]:
    """Limits of a size, and numbers that divide it, which tell calls that differ from the others."""
    ends = (min(wrong), max(right), max(wrong), *(2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 16.0, 32.0, 64.0, 128.0))
    for k, (slug, words, rule) in enumerate(SIZE_RULES):
        for number in (ends[k],) if k < 3 else ends[3:]:
            if all(rule(size, number) for size in wrong) and not any(rule(size, number) for size in right):
                said = f"calls where the {name} {words.format(number)}"
                yield calls(f"where-{name}-{slug.format(number)}", said, _of_size(name, rule, number))


def _of_size(name: str, rule: Callable[[float, float], bool], number: float) -> Callable[[Setting], bool]:
    return lambda setting: rule(SIZES[name](setting), number)


# Changes in parts ---------------------------------------------------------------------------------------


def part_changes(
    samples: Sequence[Sample], inner: Callable[[Sequence[Sample]], Iterable[Change]], *, most: int = MOST_RULES
) -> Iterator[Change]:
    """Changes of a part, or of some calls; `inner` finds those that may be inside it."""
    for parts in parts_of(samples):
        # All of them are the same part of the samples: they differ in what they are at other sizes.
        inside = [inside_of(sample, parts[0]) for sample in samples if sample.differs]
        found = list(islice(inner(inside), most))
        yield from (at(change, part) for change in found for part in parts)
        if found:
            break
    yield from calls_changes(samples, inner, most=most)


def calls_changes(
    samples: Sequence[Sample], inner: Callable[[Sequence[Sample]], Iterable[Change]], *, most: int = MOST_RULES
) -> Iterator[Change]:
    """Changes of those calls that differ."""
    conditions = list(islice(conditions_of_samples(samples), 2 * most))
    if conditions:
        for change in islice(inner([sample for sample in samples if sample.differs]), most):
            yield from (at(change, condition) for condition in conditions)


def conditions_of_samples(samples: Sequence[Sample]) -> Iterator[Where]:
    """What tells the samples that differ from the others: the length of an axis, sizes, features."""
    for position, axis in enumerate(samples[0].axes):
        lengths = [(s.expected.shape[position], s.differs, s.setting) for s in samples]
        seen = [(np.full(n, differs), np.ones(n, bool), setting) for n, differs, setting in lengths]
        for one in sets_seen(seen)[:2]:
            if any(not differs for _, differs, _ in lengths):
                yield along(axis, one)
    yield from conditions_of([s.setting for s in samples if s.differs], [s.setting for s in samples if not s.differs])


def inside_of(sample: Sample, part: Where) -> Sample:
    flags = part.flags(sample.expected.shape, sample.axes, sample.setting)
    return sample.within(np.broadcast_to(flags, sample.expected.shape))
