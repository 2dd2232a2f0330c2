"""Families: slices that could together be the four projections of one layer, ordinary readings first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import gcd

from mha.infer.hypotheses.candidates import ROLES, Candidates, Slice
from mha.infer.hypotheses.hypothesis import DEFAULT_SCALE, SCALES, Hypothesis
from mha.infer.observed import Observed

RAREST = 7
"""The tier of the least ordinary readings that are tried."""

NARROW = 8
"""Heads narrower than this are rare in layers of at least NARROW * NARROW channels."""

Orders = tuple[str, str, str, str]


@dataclass(frozen=True, eq=False)
class Family:
    """Slices of sizes that go together: any q with any k, v and o.

    Attributes:
        q, k, v, o: the slices of each role.
        group: query heads for each key head.
        rarity: how unusual it is; 0 for what frameworks do.
    """

    q: tuple[Slice, ...]
    k: tuple[Slice, ...]
    v: tuple[Slice, ...]
    o: tuple[Slice, ...]
    group: int
    rarity: int

    @property
    def together(self) -> bool:
        """Whether queries, keys and values are cut from one array, so that their rows have one order."""
        return self.q[0].home == self.k[0].home == self.v[0].home and self.q[0].parts > 1

    def head_counts(self, num_heads: int | None) -> list[int]:
        """The numbers of heads that all rows can be split into."""
        most = gcd(self.q[0].count, self.o[0].count)
        wanted = range(1, most + 1) if num_heads is None else (num_heads,)
        return [h for h in wanted if most % h == 0 and h % self.group == 0]


@dataclass(frozen=True)
class Reading:
    """One family with heads, orders and scale chosen: all of a hypothesis but its slices, mask and query bias."""

    family: Family
    heads: int
    orders: Orders
    scale: str
    tiled: bool
    tied: bool

    @property
    def kv_heads(self) -> int:
        return self.heads // self.family.group

    def hypothesis(
        self, q: Slice, k: Slice, v: Slice, o: Slice, *, mask: str = "", bq: Slice | None = None
    ) -> Hypothesis:
        """The hypothesis with these slices."""
        return Hypothesis(q, k, v, o, self.orders, self.heads, self.kv_heads, self.scale, mask, self.tiled, bq)


def families(candidates: Candidates, observed: Observed) -> list[Family]:
    """Every family of the arrays that could have made the record."""
    widths = dict(zip(ROLES, (x.shape[-1] for x in (observed.queries, observed.keys, observed.values)), strict=True))
    whole: dict[str, dict[int, list[Slice]]] = {role: defaultdict(list) for role in (*ROLES, "o")}
    cut: dict[tuple, dict[str, list[Slice]]] = defaultdict(lambda: defaultdict(list))
    for role, width in widths.items():
        for part in candidates.slices(role, width):
            if part.kind == "whole":
                whole[role][part.count].append(part)
            else:
                cut[part.home][role].append(part)
    for source in candidates.matrices:
        if source.inputs == observed.output.shape[-1]:
            part = Slice(source)
            whole["o"][part.count].append(part)

    found: list[Family] = []

    def add(rarity: int, *choices: dict[int, list[Slice]]) -> None:
        for sizes in product(*choices, whole["o"]):
            q, k, v, o = sizes
            if q % k or o % v or q // k != o // v:
                continue
            of_q, of_k, of_v, of_o = (
                tuple(choice[size]) for choice, size in zip((*choices, whole["o"]), sizes, strict=True)
            )
            group = q // k
            found.append(Family(of_q, of_k, of_v, of_o, group, rarity + (group > 1) + (q != o)))

    add(0, *(whole[role] for role in ROLES))
    for (source, kind, parts, roles, _), by_role in cut.items():
        unusual = 3 * source.is_square + (kind == "inner")
        here: dict[str, dict[int, list[Slice]]] = {role: defaultdict(list) for role in by_role}
        for role, slices in by_role.items():
            for part in slices:
                here[role][part.count].append(part)
        if roles and set(here) == set(ROLES):
            add(3 * source.is_square + (roles != "qkv"), *(here[role] for role in ROLES))
        elif parts == 3 and set(here) == set(ROLES):
            add(unusual, *(here[role] for role in ROLES))
        elif parts == 2:
            for alone in ROLES:
                if set(here) >= set(ROLES) - {alone}:
                    choice = [whole[role] if role == alone else here[role] for role in ROLES]
                    add(unusual + (alone != "q"), *choice)
    return found


def readings(found: list[Family], observed: Observed, num_heads: int | None, tier: int) -> Iterator[Reading]:
    """Every reading of the families that belongs to one tier."""
    per_head = observed.mask_heads
    for family in found:
        if family.rarity > tier:
            continue
        for heads in family.head_counts(num_heads):
            if per_head > 1 and heads != per_head:
                continue
            width = family.q[0].count // heads
            narrow = width < NARROW and family.q[0].count >= NARROW * NARROW and num_heads is None
            left = tier - family.rarity - 3 * narrow
            if left < 0:
                continue
            for orders, scale, tiled, tied in _options(left):
                if tiled and (family.group == 1 or heads == family.group):
                    continue
                if (tied and family.together) or not _tells(family, heads, width, orders):
                    continue
                yield Reading(family, heads, orders, scale, tiled, tied)


@cache
def _options(rarity: int) -> list[tuple[Orders, str, bool, bool]]:
    """All (orders, scale, tiled, tied) of one rarity."""
    found = []
    for orders, scale, tiled, tied in product(product(("hd", "dh"), repeat=4), SCALES, (False, True), (False, True)):
        q, k, v, o = orders
        odd = 0 if set(orders) == {"hd"} else 1 if set(orders) == {"dh"} else 3 if q == k and v == o else 4
        total = odd + tiled + 2 * (scale != DEFAULT_SCALE) + 4 * tied
        if total == rarity:
            found.append(((q, k, v, o), scale, tiled, tied))
    return found


def _tells(family: Family, heads: int, width: int, orders: Orders) -> bool:
    """Whether these orders are possible, and choose other rows than the ordinary orders do."""
    if set(orders) == {"hd"}:
        return True
    if heads == 1 or width == family.o[0].count // heads == 1:
        return False
    return not family.together or orders[0] == orders[1] == orders[2]
