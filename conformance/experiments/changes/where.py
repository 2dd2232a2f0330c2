"""Where: a change of a part alone: some indices of one or more axes, a part of the pairs of two, or some sizes.

The part is read off from which elements differ, axis by axis; inside it any other change may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.changes.expressions import SIZES, Size
from conformance.experiments.changes.rules.places import Flags, Place, Relation, places_seen, relations_seen
from conformance.experiments.changes.sample import Change, Sample, Setting

MOST_RULES = 5
"""Rules of one axis that are kept, of those that are right for every sample."""

COVERING = 3
"""Rules of one axis that hold more than what differs; of those the smallest."""

MOST_PARTS = 8


@dataclass(frozen=True, eq=False)
class Part:
    """A part of an array: slug, words to be read after "at", and (array's shape, setting) -> flags that broadcast."""

    slug: str
    words: str
    flags: Callable[[tuple[int, ...], Setting], Flags]


def parts_of(samples: Sequence[Sample]) -> list[list[Part]]:
    """The parts outside which no sample differs: lists of parts that are one and the same in all samples.

    The first list has the smallest part; the others leave the condition of one axis out.
    """
    differing = [sample for sample in samples if sample.differs]
    others = [sample for sample in samples if not sample.differs]
    axes = samples[0].axes
    choices: list[list[_Flagged]] = []
    covering: list[list[_Flagged]] = []
    for position, name in enumerate(axes):
        axis = position - len(axes)
        seen = [(_projected(s.differing, axis), _projected(s.known, axis), s.setting) for s in differing]
        if all((flags | ~known).all() for flags, known, _ in seen):
            continue
        quiet = [(_projected(s.differing, axis), _projected(s.known, axis), s.setting) for s in others]
        # Rules that hold nowhere in the others, if there are any: what is there may as well not show.
        if rules := places_seen([*seen, *quiet]) or places_seen(seen):
            choices.append([_along(name, axis, place) for place in rules[:MOST_RULES]])
        elif rules := (places_seen([*seen, *quiet], cover=True) or places_seen(seen, cover=True))[:COVERING]:
            # Not every element of the part need differ: those under a threshold, say.
            covering.append([_along(name, axis, place) for place in rules])
    pair = list(_pairs(differing, axes))
    sets = [list(product(*choices))] if choices else []
    if pair:
        # The pairs may say of the indices of their axes all that there is to say.
        shorter = [[one, *chosen] for chosen in product(*choices) for one in pair]
        sets = [[(one,) for one in pair] + [tuple(chosen) for chosen in shorter], *sets]
    if len(choices) > 1:
        sets += [list(product(*choices[:k], *choices[k + 1 :])) for k in range(len(choices))]
    if covering:
        sets.append(list(product(*choices, *covering)))
    return [found for chosen in sets if (found := _same(chosen[: 4 * MOST_PARTS], differing))]


_Flagged = tuple[str, str, Callable[[tuple[int, ...], Setting], Flags]]


def _same(choices: Sequence[Sequence[_Flagged]], samples: Sequence[Sample]) -> list[Part]:
    """The parts of these conditions that are as small as the smallest of them in every sample."""
    flags = [
        [_all_of([one for _, _, one in chosen])(s.expected.shape, s.setting) & s.known for s in samples]
        for chosen in choices
    ]
    sizes = [sum(int(one.sum()) for one in each) for each in flags]
    smallest = flags[int(np.argmin(sizes))]
    return [
        Part(
            "-and-".join(slug for slug, _, _ in chosen),
            " and ".join(words for _, words, _ in chosen),
            _all_of([flags for _, _, flags in chosen]),
        )
        for chosen, each in zip(choices, flags, strict=True)
        if all((one == other).all() for one, other in zip(each, smallest, strict=True))
    ][:MOST_PARTS]


def _projected(flags: Flags, *axes: int) -> Flags:
    others = tuple(axis for axis in range(-flags.ndim, 0) if axis not in axes)
    return flags.any(axis=others)


def _along(name: str, axis: int, place: Place) -> _Flagged:
    def flags(shape: tuple[int, ...], setting: Setting) -> Flags:
        wide = [1] * len(shape)
        wide[axis] = -1
        return place.rule(shape[axis], setting).reshape(wide)

    return f"{name.replace(' ', '-')}-{place.slug}", place.said(name), flags


def _pairs(samples: Sequence[Sample], axes: tuple[str, ...]) -> Iterator[_Flagged]:
    """Sets of pairs of two axes, where what differs is not a product of indices of each."""
    for (i, first), (j, second) in combinations(enumerate(axes), 2):
        a, b = i - len(axes), j - len(axes)
        seen = [(_projected(s.differing, a, b), _projected(s.known, a, b)) for s in samples]
        if all((flags | ~known | ~_product(flags)).all() for flags, known in seen):
            continue
        for relation in relations_seen(seen)[:MOST_RULES]:
            yield (
                f"{second}-{first}-{relation.slug}".replace(" ", "-"),
                relation.words.format(a=first, b=second),
                _paired(a, b, relation),
            )
        return


def _product(flags: Flags) -> Flags:
    return np.asarray(flags.any(axis=1)[:, None] & flags.any(axis=0)[None])


def _paired(a: int, b: int, relation: Relation) -> Callable[[tuple[int, ...], Setting], Flags]:
    def flags(shape: tuple[int, ...], setting: Setting) -> Flags:
        wide = [1] * len(shape)
        wide[a], wide[b] = shape[a], shape[b]
        return relation.rule(shape[a], shape[b]).reshape(wide)

    return flags


def _all_of(
    flags: Sequence[Callable[[tuple[int, ...], Setting], Flags]],
) -> Callable[[tuple[int, ...], Setting], Flags]:
    def together(shape: tuple[int, ...], setting: Setting) -> Flags:
        found = np.ones(shape, bool)
        for one in flags:
            found = found & one(shape, setting)
        return found

    return together


def conditions_of(samples: Sequence[Sample]) -> Iterator[Part]:
    """What the sizes of the samples that differ have in common, and those of the others have not."""
    wrong = [sample.setting for sample in samples if sample.differs]
    right = [sample.setting for sample in samples if not sample.differs]
    if not right or not wrong:
        return
    # Those of the call first: a layer's own are the same in all of its calls.
    axes = samples[0].axes
    for position, axis in enumerate(axes):
        k = position - len(axes)
        lengths = [(s.expected.shape[k], s.differs, s.setting) for s in samples]
        seen = [(np.full(n, differs), np.ones(n, bool), setting) for n, differs, setting in lengths]
        for place in places_seen(seen)[:2]:
            slug, words, flags = _along(axis, k, place)
            yield Part(slug, words, flags)
    names = sorted(SIZES, key=lambda name: not name.endswith(("length", "batch size")))
    for name, other in product(names, names):
        size, than = SIZES[name], SIZES[other]
        if name == other:
            yield from _limits(name, [size(s) for s in wrong], [size(s) for s in right])
        elif all(size(s) > than(s) for s in wrong) and not any(size(s) > than(s) for s in right):
            yield _where(f"{name}-above-{other}", f"{name} > {other}", _above(size, than))


def _limits(name: str, wrong: Sequence[float], right: Sequence[float]) -> Iterator[Part]:
    size = SIZES[name]
    if min(wrong) > max(right):
        yield _where(f"{name}-from-{min(wrong):g}", f"{name} >= {min(wrong):g}", lambda s: size(s) >= min(wrong))
        if max(right) != min(wrong) - 1:
            yield _where(f"{name}-above-{max(right):g}", f"{name} > {max(right):g}", lambda s: size(s) > max(right))
    elif max(wrong) < min(right):
        yield _where(f"{name}-to-{max(wrong):g}", f"{name} <= {max(wrong):g}", lambda s: size(s) <= max(wrong))
    for m in range(2, 9):
        for slug, words, rule in (
            ("multiple-of", "is a multiple of", lambda k, m: k % m == 0),
            ("no-multiple-of", "is no multiple of", lambda k, m: k % m != 0),
        ):
            if all(rule(k, m) for k in wrong) and not any(rule(k, m) for k in right):
                yield _where(
                    f"{name}-{slug}-{m}",
                    f"{name} {words} {m}",
                    _of_size(size, rule, m),
                )


def _above(size: Size, than: Size) -> Callable[[Setting], bool]:
    return lambda setting: size(setting) > than(setting)


def _of_size(size: Size, rule: Callable[[float, int], bool], m: int) -> Callable[[Setting], bool]:
    return lambda setting: rule(size(setting), m)


def _where(slug: str, words: str, rule: Callable[[Setting], bool]) -> Part:
    return Part(
        f"where-{slug.replace(' ', '-')}",
        f"calls where the {words}",
        lambda shape, setting: np.full((1,) * len(shape), rule(setting)),
    )


def part_changes(
    samples: Sequence[Sample], inner: Callable[[Sequence[Sample]], Sequence[Change]], *, most: int = MOST_RULES
) -> Iterator[Change]:
    """Changes of a part; `inner` finds those that may be inside it."""
    for parts in parts_of(samples):
        # All of them are the same part of the samples: they differ in what they are at other sizes.
        inside = [_inside(sample, parts[0]) for sample in samples if sample.differs]
        found = list(islice(inner(inside), most))
        for change in found:
            for part in parts:
                yield at_part(change, part)
        if found:
            break
    conditions = list(conditions_of(samples))
    if conditions:
        for change in islice(inner([sample for sample in samples if sample.differs]), most):
            for condition in islice(conditions, 2 * most):
                yield at_part(change, condition)


def _inside(sample: Sample, part: Part) -> Sample:
    return sample.within(part.flags(sample.expected.shape, sample.setting))


def at_part(change: Change, part: Part) -> Change:
    """The change in one part, and nothing elsewhere."""

    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        flags = part.flags(array.shape, setting)
        if not flags.any():
            return array
        return np.where(flags, change.apply(array, axes, setting), array)

    return Change(f"{change.slug}-at-{part.slug}", f"{change.words}, at {part.words} only", apply)
