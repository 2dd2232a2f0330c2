"""Formula: what a backward step may compute in place of its own array; how much of it a subject has is read off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import DoesNotApply
from mha_core.reference.state import State

Array = Callable[[State], Any]


@dataclass(frozen=True)
class Formula:
    """One formula.

    Args:
        step: the backward step in whose place it stands.
        slug: a name that no other formula of this step has.
        words: what it computes.
        array: State -> the array. It raises DoesNotApply, KeyError or ValueError where it can't be computed.
        name: of a step that gives several gradients, which one.
        fix: what to change. Default: a general line.
        is_zero: whether it is 0, so that only a factor on the step's own array remains.
    """

    step: str
    slug: str
    words: str
    array: Array
    name: str = ""
    fix: str = ""
    is_zero: bool = False


def where_open(state: State, array: NDArray) -> NDArray:
    return np.where(state["allowed"], array, 0.0)


def square(array: NDArray, state: State) -> NDArray:
    if array.shape[-2:] != (state.sizes.query_len, state.sizes.key_len):
        raise DoesNotApply("not as many queries as keys")
    return array


def tiled(array: NDArray, state: State) -> NDArray:
    """Key heads repeated as 0, 1, 0, 1 in place of 0, 0, 1, 1."""
    return np.tile(array, (1, state.config.num_heads // state.config.num_kv_heads, 1, 1))


def array_of(step: str, name: str = "") -> Array:
    """A step's array as it is; of a step that gives several, the one of this name."""
    return lambda state: state[step][name] if name else state[step]


def nothing(step: str, name: str = "") -> Formula:
    """The formula 0, of which a factor on the step's own array remains."""
    own = array_of(step, name)
    return Formula(step, "times", "0", lambda state: np.zeros_like(own(state)), name=name, is_zero=True)


def with_arrays(state: State, **arrays: Any) -> State:
    return replace(state, arrays={**state.arrays, **arrays})


GROUP_FIX = "Add up the gradients of all query heads that read a key head."


def grouped(
    per_head: Callable[[State], NDArray], reduce: Callable[[NDArray], NDArray], *, tiled: bool = False
) -> Array:
    """Query heads brought together otherwise: `reduce` of (B, G, heads of a group, L, width) over axis 2."""

    def formula(state: State) -> NDArray:
        array = per_head(state)
        batch, heads, length, width = array.shape
        groups = state.config.num_kv_heads
        if tiled:
            return reduce(array.reshape(batch, heads // groups, groups, length, width).swapaxes(1, 2))
        return reduce(array.reshape(batch, groups, heads // groups, length, width))

    return formula


def group_formulas(step: str, per_head: Callable[[State], NDArray]) -> Iterator[Formula]:
    reductions: tuple[tuple[str, str, Callable[[NDArray], NDArray]], ...] = (
        ("first-of-group", "that of the first query head of each group", lambda g: g[:, :, 0]),
        ("last-of-group", "that of the last query head of each group", lambda g: g[:, :, -1]),
        ("largest-of-group", "the largest of each group", lambda g: g.max(axis=2)),
        ("product-of-group", "the product over each group", lambda g: g.prod(axis=2)),
    )
    for slug, words, reduce in reductions:
        yield Formula(step, slug, words, grouped(per_head, reduce), fix=GROUP_FIX)
    tiled = grouped(per_head, lambda g: g.sum(axis=2), tiled=True)
    yield Formula(step, "tiled-groups", "that of query heads g, g + G, ... for key head g", tiled, fix=GROUP_FIX)
