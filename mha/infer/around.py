"""Neighbours of a hypothesis: all that differ from it in one property.

Those that fit the record as well are reported beside it, as indistinguishable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import permutations, product

from mha.infer.families import Family
from mha.infer.hypotheses.candidates import ORDERS, Candidates, Slice
from mha.infer.hypotheses.hypothesis import SCALES, Hypothesis
from mha.infer.observed import Observed


def around(
    found: Hypothesis,
    families: Iterable[Family],
    candidates: Candidates,
    observed: Observed,
    num_heads: int | None,
) -> Iterator[Hypothesis]:
    """Every readable hypothesis with one property unlike `found`: scale, mask, order, heads, array or query bias."""
    bare = replace(found, bv=None, bo=None)
    for changed in _all(bare, list(families), candidates, observed, num_heads):
        if changed.is_readable() and changed.is_plain():
            yield changed


def _all(
    bare: Hypothesis, families: list[Family], candidates: Candidates, observed: Observed, num_heads: int | None
) -> Iterator[Hypothesis]:
    yield from (replace(bare, scale=scale) for scale in SCALES if scale != bare.scale)
    yield from (replace(bare, mask=mask) for mask in observed.masks if mask != bare.mask)
    yield from (
        replace(bare, orders=orders)  # type: ignore[arg-type]  # four of them
        for orders in product(ORDERS, repeat=4)
        if orders != bare.orders
    )
    group = bare.heads // bare.kv_heads
    if num_heads is None and observed.mask_heads == 1:
        most = max(bare.q.count, bare.o.count)
        for heads in range(group, most + 1, group):
            if heads != bare.heads and bare.q.count % heads == 0 and bare.o.count % heads == 0:
                yield replace(bare, heads=heads, kv_heads=heads // group)
    if group > 1:
        yield replace(bare, tiled=not bare.tiled)
    yield replace(bare, bq=None)
    yield from (replace(bare, bq=bias) for bias in candidates.biases(bare.q))
    if bare.key_bias_acts:
        yield from (replace(bare, bk=bias) for bias in (None, *candidates.biases(bare.k)))
    yield from _other_arrays(bare, families)


def _other_arrays(bare: Hypothesis, families: list[Family]) -> Iterator[Hypothesis]:
    names = ("q", "k", "v", "o")
    for order in permutations(range(4)):
        moved = [bare.weights[i] for i in order]
        if all(_alike(new, old) for new, old in zip(moved, bare.weights, strict=True)):
            yield replace(bare, q=moved[0], k=moved[1], v=moved[2], o=moved[3])
    for role in names:
        there = getattr(bare, role)
        others = {part for family in families for part in getattr(family, role) if _alike(part, there)}
        for part in others:
            if part.home == there.home or (part.kind == there.kind == "whole"):
                yield replace(bare, **{role: part})
    for kind in ("blocks", "middle", "inner"):
        changed = {
            role: replace(getattr(bare, role), kind=kind)
            for role in "qkv"
            if getattr(bare, role).parts > 1 and not getattr(bare, role).roles
        }
        if changed:
            yield replace(bare, **changed)


def _alike(a: Slice, b: Slice) -> bool:
    """Whether the two slices have equal sizes, so that one can take the place of the other."""
    return a.count == b.count and a.source.inputs == b.source.inputs
