"""The query offset taken wrongly: where the first query of each item stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.changes.axes import RULES, taken
from conformance.experiments.masks.sources import array_of, is_given, with_array
from conformance.experiments.measured import around, with_mask
from conformance.zoo.bug import Bug
from mha_core.reference.state import State, Step

OFFSET_FIX = "Query i stands at position query_offset + i of its batch item, for causal and for window."

Offset = Callable[[State, NDArray], NDArray]
"""(state, offset () or (B,)) -> another."""


def offset_bug(slug: str, words: str, rule: Offset, *, of: str = "") -> Bug:
    """A bug by which query_offset is taken to be `rule(state, offset)`; `of` one source alone: "causal" or "window"."""

    def changed(state: State, beneath: Step) -> NDArray:
        mask = state.inputs.mask
        if not mask.has_positions or (of and not is_given(mask, of)):
            return beneath(state)
        other = rule(state, np.asarray(mask.query_offset))
        moved = with_mask(state, query_offset=other if other.ndim else int(other))
        if of:
            moved = with_array(state, of, array_of(moved, of))
        result: NDArray = beneath(moved)
        return result

    source = f" for {'causal' if of == 'causal' else 'the window'} alone" if of else ""
    slug = f"offset-{slug}" + (f"-for-{of}" if of else "")
    return around("allowed", slug, changed, f"query_offset is taken as {words}{source}.", OFFSET_FIX)


@cache
def offset_bugs() -> tuple[Bug, ...]:
    """Every way of taking query_offset wrongly."""
    found = []
    for slug, words, rule in _offsets():
        found += [offset_bug(slug, words, rule, of=of) for of in ("", "causal", "window")]
    return tuple(found)


def _offsets() -> Iterator[tuple[str, str, Offset]]:
    yield "ignored", "0", lambda s, offset: 0 * offset
    yield "negated", "-query_offset", lambda s, offset: -offset
    yield "doubled", "2 * query_offset", lambda s, offset: 2 * offset
    for n in (1, -1, 2, -2):
        yield f"plus{n:+d}", f"query_offset {'+' if n > 0 else '-'} {abs(n)}", _plus_each(n)
        yield (
            f"plus{n:+d}-if-given",
            f"query_offset {'+' if n > 0 else '-'} {abs(n)} where it is not 0",
            _plus_if_given(n),
        )
    yield "half", "query_offset // 2", lambda s, offset: offset // 2
    yield "at-most-1", "at most 1", lambda s, offset: np.minimum(offset, 1)
    yield "at-most-difference", "at most Lk - Lq", lambda s, o: np.minimum(o, s.sizes.key_len - s.sizes.query_len)
    yield "less-past", "query_offset less the number of past keys", lambda s, offset: offset - s.sizes.past_len
    yield "difference", "Lk - Lq", lambda s, offset: 0 * offset + s.sizes.key_len - s.sizes.query_len
    yield (
        "difference-if-given",
        "Lk - Lq where it is not 0",
        lambda s, offset: np.where(offset != 0, s.sizes.key_len - s.sizes.query_len, 0),
    )
    yield "difference-on-top", "query_offset + Lk - Lq", lambda s, o: o + s.sizes.key_len - s.sizes.query_len
    yield "from-the-end", "Lk - Lq - query_offset", lambda s, o: s.sizes.key_len - s.sizes.query_len - o
    yield "longest", "that of the item where it is largest", lambda s, o: np.full_like(o, o.max(initial=-(2**31)))
    yield "shortest", "that of the item where it is least", lambda s, o: np.full_like(o, o.min(initial=2**31))
    for slug, (words, rule) in RULES.items():
        yield f"item-{slug}", f"those of the items {words}", _of_items(rule)


def _of_items(rule: Callable[[int], NDArray]) -> Offset:
    return lambda state, offset: taken(offset, rule(len(offset)), 0).astype(np.int64) if offset.ndim else offset


def _plus_each(n: int) -> Offset:
    return lambda state, offset: offset + n


def _plus_if_given(n: int) -> Offset:
    return lambda state, offset: offset + n * (offset != 0)
