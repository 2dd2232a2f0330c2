"""Where: calls in which a fault acts, told by their sizes and by what they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from conformance.kinds.change import MASKS, SIZES, Setting
from mha_core.features import FEATURES


@dataclass(frozen=True, eq=False)
class Where:
    """Some calls: a name in kebab-case, words such as "calls with a past", and whether a call is one of them.

    is_kind: whether it is told by what calls have, and not by how long they are.
    """

    slug: str
    words: str
    holds: Callable[[Setting], bool]
    is_kind: bool = True


NAMED = {
    **{row.name: f"calls with {row.words}" for row in FEATURES if row.words},
    **{name: f"calls with {said}" for name, said in MASKS.items()},
}
"""Feature -> the calls that have it, in words."""

MASKING = frozenset((*MASKS, "bias"))


def _has(name: str) -> Where:
    return Where(f"with-{name}", NAMED[name], lambda s: name in s.has)


def _lacks(name: str) -> Where:
    words = "layers with projections" if name == "bare" else NAMED[name].replace("with", "without", 1)
    return Where(f"without-{name}", words, lambda s: name not in s.has)


KINDS: tuple[Where, ...] = (
    *map(_has, NAMED),
    Where("with-a-mask", "calls with a mask", lambda s: bool(s.has & MASKING)),
    Where("without-a-mask", "calls without a mask", lambda s: not s.has & MASKING),
    Where("of-several-items", "calls of more than one item", lambda s: s.sizes.batch > 1),
    Where("of-one-item", "calls of one item", lambda s: s.sizes.batch == 1),
    *map(_lacks, NAMED),
)
"""Kinds of calls to which a fault may be limited."""

LENGTHS = ("key length", "query length", "batch size", "past length")


def conditions_of(wrong: Sequence[Setting], right: Sequence[Setting]) -> Iterator[Where]:
    """Yield what the calls that differ have in common and none of the others has: features, two, then sizes."""
    if not right or not wrong:
        return

    def tells(where: Where) -> bool:
        return all(map(where.holds, wrong)) and not any(map(where.holds, right))

    found = list(filter(tells, KINDS))
    yield from found
    if not found:
        yield from filter(tells, (_both(one, other) for one, other in combinations(NAMED, 2)))
    if not found:  # what calls have says more than how long they are
        yield from filter(tells, _limits(wrong))


def _both(one: str, other: str) -> Where:
    words = f"{NAMED[one]} and {NAMED[other].removeprefix('calls with ')}"
    return Where(f"with-{one}-and-{other}", words, lambda s: one in s.has and other in s.has)


def _limits(wrong: Sequence[Setting]) -> Iterator[Where]:
    """Yield lower and upper limits of the lengths, two of them in an order, and two that are equal."""
    for name in LENGTHS:
        least, most = int(min(map(SIZES[name], wrong))), int(max(map(SIZES[name], wrong)))
        yield Where(f"{name}-from-{least}", f"calls where the {name} is at least {least}", _from(name, least), False)
        words = f"calls where the {name} is {most}" if least == most else f"calls where the {name} is at most {most}"
        yield Where(f"{name}-to-{most}", words, _to(name, most), False)
    for one, other in permutations(LENGTHS[:3], 2):
        words = f"{one} > {other}"
        yield Where(words.replace(" ", "-"), f"calls where the {words}", _above(one, other), False)
    for one, other in combinations((*LENGTHS[:3], "num_heads"), 2):
        words = f"{one} = {other}"
        yield Where(words.replace(" ", "-"), f"calls where the {words}", _equal(one, other), False)


def _from(name: str, least: int) -> Callable[[Setting], bool]:
    return lambda s: SIZES[name](s) >= least


def _to(name: str, most: int) -> Callable[[Setting], bool]:
    return lambda s: SIZES[name](s) <= most


def _equal(one: str, other: str) -> Callable[[Setting], bool]:
    return lambda s: SIZES[one](s) == SIZES[other](s)


def _above(one: str, other: str) -> Callable[[Setting], bool]:
    return lambda s: SIZES[one](s) > SIZES[other](s)
