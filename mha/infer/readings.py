"""Readings: which slices could together be the four projections of one layer, ordinary ones first."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd

from mha.infer.arrays import ROLES, Candidates, Slice
from mha.infer.hypothesis import DEFAULT_SCALE, SCALES, Hypothesis
from mha.infer.observed import Observed

RAREST = 6
"""The tier of the least ordinary readings that are tried."""

Orders = tuple[str, str, str, str]

ORDERS: dict[Orders, int] = {
    ("hd", "hd", "hd", "hd"): 0,
    ("dh", "dh", "dh", "dh"): 1,
    ("hd", "hd", "hd", "dh"): 3,
    ("dh", "dh", "dh", "hd"): 3,
}
"""Orders of the rows of queries, keys, values and output -> how unusual they are."""


@dataclass(frozen=True, eq=False)
class Family:
    """A set of possible projections (rows of arrays): the sizes of any q, k, v and o of the set fit together.

    Attributes:
        q, k, v, o: the possible slices for each projection.
        group: query heads for each key head.
        rarity: how unusual it is to store projections in this way; 0 if frameworks do it.
    """

    q: tuple[Slice, ...]
    k: tuple[Slice, ...]
    v: tuple[Slice, ...]
    o: tuple[Slice, ...]
    group: int
    rarity: int

    def head_counts(self, num_heads: int | None) -> list[int]:
        """Return the numbers of heads that all rows can be split into."""
        most = gcd(self.q[0].count, self.o[0].count)
        wanted = range(1, most + 1) if num_heads is None else (num_heads,)
        return [h for h in wanted if most % h == 0 and h % self.group == 0]


@dataclass(frozen=True)
class Reading:
    """A Family (possible projections) with a number of heads, orders of rows and a scale, but no chosen projections."""

    family: Family
    heads: int
    orders: Orders
    scale: str

    @property
    def kv_heads(self) -> int:
        return self.heads // self.family.group

    def hypothesis(
        self, q: Slice, k: Slice, v: Slice, o: Slice, *, mask: str = "", bq: Slice | None = None
    ) -> Hypothesis:
        """Return the hypothesis with these slices."""
        return Hypothesis(q, k, v, o, self.orders, self.heads, self.kv_heads, self.scale, mask, bq)


def families(candidates: Candidates, observed: Observed) -> list[Family]:
    """Return every Family with sizes that fit the recorded call."""
    widths = dict(zip(ROLES, (x.shape[-1] for x in (observed.queries, observed.keys, observed.values)), strict=True))
    whole: dict[str, dict[int, list[Slice]]] = {role: defaultdict(list) for role in (*ROLES, "o")}
    cut: dict[tuple, dict[str, dict[int, list[Slice]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for role, width in widths.items():
        for part in candidates.slices(role, width):
            (whole[role] if part.kind == "whole" else cut[part.home][role])[part.count].append(part)
    for source in candidates.matrices:
        if source.inputs == observed.output.shape[-1]:
            whole["o"][source.count].append(Slice(source))
    found: list[Family] = []

    def add(rarity: int, *choices: dict[int, list[Slice]]) -> None:
        for sizes in product(*choices, whole["o"]):
            q, k, v, o = sizes
            if not (q % k or o % v or q // k != o // v):
                of_q, of_k, of_v = (tuple(choice[size]) for choice, size in zip(choices, (q, k, v), strict=True))
                found.append(Family(of_q, of_k, of_v, tuple(whole["o"][o]), q // k, rarity + (q != k) + (q != o)))

    add(0, *(whole[role] for role in ROLES))
    for (source, kind, parts, _), here in cut.items():
        unusual = 3 * source.is_square + (kind == "inner")
        if parts == 3 and set(here) == set(ROLES):
            add(unusual, *(here[role] for role in ROLES))
        for alone in ROLES if parts == 2 else ():
            if set(here) >= set(ROLES) - {alone}:
                add(unusual + (alone != "q"), *(whole[role] if role == alone else here[role] for role in ROLES))
    return found


def readings(found: list[Family], observed: Observed, num_heads: int | None, tier: int) -> Iterator[Reading]:
    """Yield the Readings (heads, orders, scale) of rarity `tier` (0: what frameworks do) that the families allow."""
    for family in found:
        for heads in family.head_counts(num_heads):
            if observed.mask_heads not in (1, heads):
                continue
            width = family.q[0].count // heads
            for (orders, odd), scale in product(ORDERS.items(), SCALES):
                rarity = family.rarity + odd + 2 * (scale != DEFAULT_SCALE)
                same = heads == 1 or width == family.o[0].count // heads == 1  # the orders choose the same rows
                if rarity == tier and not (same and odd):
                    yield Reading(family, heads, orders, scale)
