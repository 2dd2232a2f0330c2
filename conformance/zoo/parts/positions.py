"""Rotary positions done wrong: where queries and keys are taken to stand, and with which axis each pair turns."""

import operator
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Steps, Table, after
from conformance.zoo.parts.rotary import has_rotary, settings_of
from mha_core.call.rotary import Tables, positions_of
from mha_core.parts.frequencies import Frequencies
from mha_core.parts.rotary import Rotary, axis_of_pairs
from mha_core.parts.rotary import Table as Angles
from mha_core.reference.state import State

Positions = tuple[NDArray[np.integer], NDArray[np.integer]]
"""Of queries, and of new keys."""


def is_given(state: State) -> bool:
    """Return whether the call gives tables of cosines and sines, not positions."""
    return has_rotary(state) and state.inputs.rotary is not None and state.inputs.rotary.has_tables


def is_counted(state: State) -> bool:
    return has_rotary(state) and state.inputs.rotary is None


def is_placed(state: State) -> bool:
    return is_computed(state) and state.inputs.rotary is not None


def is_computed(state: State) -> bool:
    return has_rotary(state) and not is_given(state)


def length_of(state: State, of_queries: NDArray, of_keys: NDArray) -> int:
    past = state.sizes.past_len
    return 1 + max(int(of_queries.max(initial=0)), int(of_keys.max(initial=0)), past - 1)


def made_tables(
    state: State,
    positions: Callable[[State, Positions], Positions] = lambda state, right: right,
    frequencies: Callable[[Rotary, int], Frequencies] = Rotary.frequencies,
    axes: Callable[[Rotary], NDArray[np.int64]] = axis_of_pairs,
    angles: Callable[[NDArray, NDArray], NDArray] = operator.mul,
) -> Tables:
    """Return the rotary tables (cosines, sines) of a call, made by these functions. The defaults are the right ones."""
    settings = settings_of(state)
    right = positions_of(state.inputs.rotary, state.inputs.mask.query_offset, state.sizes)
    places = positions(state, right)
    inverse, factor = frequencies(settings, length_of(state, *right))

    def table(given: NDArray) -> Angles:
        if given.ndim == 3:
            turned = np.moveaxis(given[axes(settings)], 0, -1)
        else:
            turned = (given if given.ndim == 2 else given[None])[..., None]
        angle = angles(inverse, turned)
        return Angles(factor * np.cos(angle), factor * np.sin(angle))

    return Tables(*map(table, places))


def _positions(change: Callable[[State, Positions], Positions], where: Callable[[State], bool] = is_computed) -> Steps:
    return after("rotary_tables", lambda state, right: made_tables(state, positions=change), where)


# Where tokens stand -------------------------------------------------------------------------------


def _of_first_item(array: NDArray) -> NDArray:
    """Positions (L,), (B, L) or (axes, B, L), those of item 0 for all."""
    return array if array.ndim == 1 or array.shape[-2] == 0 else np.broadcast_to(array[..., :1, :], array.shape)


def _keys_from_queries(state: State, right: Positions) -> Positions:
    first = right[0].reshape(-1, right[0].shape[-1])[:, :1]
    return right[0], first + np.arange(right[1].shape[-1])


def _as_counted(state: State, right: Positions) -> Positions:
    made = positions_of(None, state.inputs.mask.query_offset, state.sizes)
    axes = settings_of(state).axes
    return made if axes == 1 else tuple(np.broadcast_to(x, (axes, *x.shape)) for x in made)  # type: ignore[return-value]  # of the queries and of the keys


_row = Table("queries", "Query i stands at query_offset + i, new key j at Lp + j, unless the call says where.")
_keys = Table("keys", "New key j stands at Lp + j, behind the past, unless the call says where.")

POSITIONS = (
    _row(
        "rotary-offset-ignored",
        "Queries turn as if they stood at 0, 1, ...: the query offset is not counted.",
        _positions(
            lambda s, right: (right[0] - np.asarray(s.inputs.mask.query_offset).reshape(-1, 1), right[1]), is_counted
        ),
    ),
    _row(
        "rotary-offset-of-first-item",
        "Queries of every item turn from the query offset of item 0.",
        _positions(lambda s, right: (_of_first_item(right[0]), right[1]), is_counted),
    ),
    _row(
        "rotary-offset-one-more",
        "Queries turn as if they stood one place further: the offset is read after the cache has grown.",
        _positions(lambda s, right: (right[0] + 1, right[1])),
        seen_in="ml-explore/mlx-lm#1713, skyzh/tiny-llm#46",
    ),
    _row(
        "rotary-positions-from-one",
        "Positions begin at 1: the scores of new keys stay right.",
        _positions(lambda s, right: (right[0] + 1, right[1] + 1)),
    ),
    _row(
        "rotary-positions-ignored",
        "Positions that are given are not used: all items count from their first token, padding too.",
        _positions(_as_counted, is_placed),
        seen_in="huggingface/transformers#22161, unslothai/unsloth#3803",
    ),
    _row(
        "rotary-positions-of-first-item",
        "Every item turns by the positions of item 0.",
        _positions(lambda s, right: (_of_first_item(right[0]), _of_first_item(right[1])), is_placed),
    ),
    _keys(
        "rotary-keys-from-zero",
        "New keys count from 0 although a past stands before them.",
        _positions(lambda s, right: (right[0], right[1] - s.sizes.past_len), is_counted),
    ),
    _keys(
        "rotary-keys-from-queries",
        "New keys count from where the queries begin.",
        _positions(_keys_from_queries, lambda s: is_computed(s) and settings_of(s).axes == 1),
    ),
)


# Axes of positions --------------------------------------------------------------------------------


def _has_axes(state: State) -> bool:
    return is_computed(state) and settings_of(state).sections is not None


def _axes(of_pairs: Callable[[Rotary], NDArray[np.int64]]) -> Steps:
    return after("rotary_tables", lambda state, right: made_tables(state, axes=of_pairs), _has_axes)


_row = Table("queries", "Pair k turns with the axis that the sections give it: in a row, or taking turns.")

AXES = (
    _row(
        "rotary-axes-ignored",
        "All pairs turn with the first axis of positions.",
        _axes(lambda s: 0 * axis_of_pairs(s)),
        seen_in="kekzl/imp#1174, AI-Hypercomputer/maxtext#4616",
    ),
    _row(
        "rotary-axes-order-exchanged",
        "Axes have their pairs in a row where they should take turns, and the other way round.",
        _axes(lambda s: axis_of_pairs(replace(s, sections_interleaved=not s.sections_interleaved))),
        seen_in="alibaba/MNN#4133, Blaizzy/mlx-vlm#576",
    ),
)


BUGS = (*POSITIONS, *AXES)
