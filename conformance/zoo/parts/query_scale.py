"""The query scale done wrong: what is scaled, by factors of which positions, and where in the pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import GRADIENTS
from conformance.zoo.parts.query_key_norm import has_norm, steps_of
from conformance.zoo.parts.query_key_norm import settings_of as norm_of
from conformance.zoo.rows import Steps, Table, Where, after, part
from mha_core.call.rotary import positions_of
from mha_core.parts.query_scale import QueryScale
from mha_core.parts.rotary import rotate
from mha_core.reference.state import State

BEGINS = {"query_scale": ("query-scale-",)}


has_scale, settings_of = part("query_scale", QueryScale)


def is_given(state: State) -> bool:
    return has_scale(state) and state.inputs.rotary is not None and state.inputs.rotary.query_scale is not None


def is_computed(state: State) -> bool:
    """Whether the factors follow from positions, by a rule."""
    return has_scale(state) and not is_given(state)


def is_placed(state: State) -> bool:
    """Whether these positions are given."""
    return is_computed(state) and state.inputs.rotary is not None and state.inputs.rotary.positions is not None


def is_counted(state: State) -> bool:
    return is_computed(state) and not is_placed(state)


def places(state: State, side: int = 0) -> NDArray[np.integer]:
    """(1 or B, L): where queries stand, or new keys (side 1)."""
    return np.atleast_2d(positions_of(state.inputs.rotary, state.inputs.mask.query_offset, state.sizes)[side])


def _factors(change: Callable[[State, NDArray], NDArray], where: Where = has_scale) -> Steps:
    """`change(state, factors (1 or B, Lq))` in place of the factors."""
    return after("query_scale", change, where)


def _of_positions(change: Callable[[State, NDArray], NDArray]) -> Steps:
    """The factors of other positions: `change(state, positions)` in place of those that are counted."""
    return _factors(lambda state, right: settings_of(state).factors(change(state, places(state))), is_counted)


def _formula(factor: Callable[[QueryScale, NDArray], NDArray]) -> Steps:
    """`factor(settings, (position + shift) / length)` in place of 1 + beta log(1 + floor(...))."""

    def change(state: State, right: NDArray) -> NDArray:
        settings = settings_of(state)
        assert settings.length is not None
        return factor(settings, (places(state) + settings.shift) / settings.length)

    return _factors(change, is_computed)


def _beta(settings: QueryScale) -> float:
    assert settings.beta is not None
    return settings.beta


def _with_rule(rule: str) -> Steps:
    """The other rule's shift, in a layer with this one."""
    other = "ministral3" if rule == "llama4" else "llama4"

    def change(state: State, right: NDArray) -> NDArray:
        return replace(settings_of(state), rule=other).factors(places(state))  # type: ignore[arg-type]  # a rule

    return _factors(change, lambda s: is_computed(s) and settings_of(s).rule == rule)


def _counted_from_past(state: State, right: NDArray) -> NDArray:
    return settings_of(state).factors(state.sizes.past_len + np.arange(state.sizes.query_len)[None])


def _on_keys(state: State, right: NDArray) -> NDArray:
    """New keys times the factors of their own positions."""
    return right * settings_of(state).factors(places(state, 1))[:, None, :, None]


def _on_all_keys(state: State, right: NDArray) -> NDArray:
    """Keys, past and new, times the factors of where they stand in the cache."""
    return right * settings_of(state).factors(np.arange(state.sizes.key_len))[:, None]


def _first(state: State) -> NDArray:
    """(1 or B, 1, Lq, 1): the right factors, beside heads."""
    return state["query_scale"][:, None, :, None]


def _before_norm(state: State, right: NDArray) -> NDArray:
    """Scaled first, then normed (and turned, where the norm comes before the rotation)."""
    order, rotary = norm_of(state).order, state.config.rotary
    given = state["projected_queries" if order == "before" else "rotated_queries"]
    made = steps_of(state, "q_norm", given * _first(state)).result
    return made if order == "after" or rotary is None else rotate(made, state["rotary_tables"].queries, rotary)


_row = Table("queries", "Multiply each query by its factor, after norm and rotation; keys and values have none.")
_rule = Table("queries", "The factor is 1 + beta log(1 + floor((position + shift) / length)); llama4 shifts by 1.")
_place = Table("queries", "Query i stands at query_offset + i, unless the call says where, or gives its factor.")
_back = Table(GRADIENTS, "The gradient of a query is multiplied by the same factor.")

WHAT = (
    _row("query-scale-ignored", "Queries are not scaled.", _factors(lambda s, right: np.ones_like(right))),
    _row(
        "query-scale-of-keys",
        "New keys are scaled in place of queries.",
        after("queries", lambda s, right: s["unscaled_queries"], is_computed),
        after("new_keys", _on_keys, is_computed),
    ),
    _row(
        "query-scale-of-keys-too",
        "New keys are scaled by their positions as well.",
        after("new_keys", _on_keys, is_computed),
        stage="keys",
    ),
    _row(
        "query-scale-of-cache",
        "Keys of the cache are scaled in every call, those of the past once more.",
        after("keys", _on_all_keys, is_computed),
        stage="keys",
    ),
    _row("query-scale-twice", "Queries are multiplied by their factors twice.", _factors(lambda s, right: right**2)),
    _row("query-scale-divides", "Queries are divided by their factors.", _factors(lambda s, right: 1.0 / right)),
    _row(
        "query-scale-before-norm",
        "Queries are scaled before they are normed, which takes the scale away again.",
        after("queries", _before_norm, lambda s: has_scale(s) and has_norm(s)),
    ),
    _row(
        "query-scale-on-scores",
        "Rows of scores are scaled behind softcap and bias, and queries are not.",
        after("queries", lambda s, right: s["unscaled_queries"], has_scale),
        after("scores", lambda s, right: right * _first(s), has_scale),
    ),
    _row(
        "query-scale-on-heads",
        "What comes out of attention is scaled as well.",
        after("heads", lambda s, right: right * _first(s), has_scale),
        stage="heads",
    ),
    _row(
        "query-scale-in-float32",
        "The factors are computed in float32 in a float64 layer.",
        _factors(lambda s, right: right.astype(np.float32).astype(np.float64)),
    ),
)

RULES = (
    _rule(
        "query-scale-floor-of-position",
        "The position is divided where Llama 4 divides position + 1: each jump comes one position late.",
        _with_rule("llama4"),
    ),
    _rule(
        "query-scale-floor-of-next-position",
        "Position + 1 is divided where Ministral 3 divides the position: each jump comes one position early.",
        _with_rule("ministral3"),
    ),
    _rule(
        "query-scale-without-floor",
        "The logarithm is of a quotient that is not rounded down.",
        _formula(lambda settings, quotient: 1.0 + _beta(settings) * np.log1p(quotient)),
    ),
    _rule(
        "query-scale-rounded",
        "The quotient is rounded to the nearest integer, not down.",
        _formula(lambda settings, quotient: 1.0 + _beta(settings) * np.log1p(np.round(quotient))),
    ),
    _rule(
        "query-scale-ceiling",
        "The quotient is rounded up, not down.",
        _formula(lambda settings, quotient: 1.0 + _beta(settings) * np.log1p(np.ceil(quotient))),
    ),
    _rule(
        "query-scale-without-inner-one",
        "The logarithm is of the floor, and of 1 where that is 0.",
        _formula(lambda settings, quotient: 1.0 + _beta(settings) * np.log(np.maximum(np.floor(quotient), 1.0))),
    ),
    _rule(
        "query-scale-without-outer-one",
        "The factor is beta times the logarithm, without the 1 in front: queries of the first length become 0.",
        _formula(lambda settings, quotient: _beta(settings) * np.log1p(np.floor(quotient))),
    ),
    _rule(
        "query-scale-linear",
        "The factor grows with the floor itself, not with its logarithm.",
        _formula(lambda settings, quotient: 1.0 + _beta(settings) * np.floor(quotient)),
    ),
    _rule(
        "query-scale-base-2",
        "The logarithm has base 2.",
        _formula(lambda settings, quotient: 1.0 + _beta(settings) * np.log2(1.0 + np.floor(quotient))),
    ),
)

PLACES = (
    _place(
        "query-scale-offset-ignored",
        "Queries count from 0 although a past, or an offset, stands before them.",
        _of_positions(lambda s, right: np.arange(s.sizes.query_len)[None]),
    ),
    _place(
        "query-scale-offset-of-first-item",
        "Queries of every item are scaled from the query offset of item 0.",
        _of_positions(lambda s, right: right[:1]),
    ),
    _place(
        "query-scale-counted-from-past",
        "Queries count from the length of the past, whatever the call says: left padding shifts their factors.",
        _factors(_counted_from_past, is_computed),
        seen_in="transformers 5.23 models/llama4/modeling_llama4.py:359",
    ),
    _place(
        "query-scale-of-last-query",
        "All queries have the factor of the last one.",
        _factors(lambda s, right: np.broadcast_to(right[:, -1:], right.shape)),
    ),
    _place(
        "query-scale-given-ignored",
        "Factors that the call gives are not used.",
        _factors(lambda s, right: np.ones_like(right), is_given),
    ),
    _place(
        "query-scale-given-of-first-item",
        "Queries of every item have the factors that are given for item 0.",
        _factors(lambda s, right: right[:1], is_given),
    ),
)

BACKWARD = (
    _back(
        "gradient-of-query-scale-missing",
        "The gradient passes by the scale unchanged.",
        after("d_unscaled_queries", lambda s, right: s["d_queries"], has_scale),
    ),
    _back(
        "gradient-of-query-scale-inverse",
        "The gradient is divided by the factor.",
        after("d_unscaled_queries", lambda s, right: s["d_queries"] / _first(s), has_scale),
    ),
)

BUGS = (*WHAT, *RULES, *PLACES, *BACKWARD)
