"""Clipped projections done wrong, forward and backward: what is cut off, where, and what gradient passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import GRADIENTS
from conformance.zoo.rows import Steps, Table, Where, after, part, require
from mha_core.parts.clip_qkv import clip, clip_back
from mha_core.reference.forward import PROJECTED, project
from mha_core.reference.state import State

BEGINS = {"clip_qkv": ("clip-",)}

CLIPPED = {"queries": "q_proj", "keys": "k_proj", "values": "v_proj"}
"""What is cut off -> its projection."""


has_limit, limit_of = part("clip_qkv", float)

Cut = Callable[[State, str, NDArray], NDArray]
"""(state, the projection, its result (B, L, channels)) -> what is wrongly made of it."""


def _clipped(cut: Cut, names: tuple[str, ...] = tuple(CLIPPED), where: Where = has_limit) -> Steps:
    """`cut` in place of the limit, of queries, keys and values or of some of them."""

    def of(name: str) -> Steps:
        projection = CLIPPED[name]
        return after(f"clipped_{name}", lambda state, right: cut(state, projection, state[projection]), where)

    return {step: function for name in names for step, function in of(name).items()}


def _unclipped(state: State, projection: str, x: NDArray) -> NDArray:
    return x


def _before_bias(state: State, projection: str, x: NDArray) -> NDArray:
    """X W^T cut off, and then the bias added."""
    bias = state.parameters.get(f"{projection}.bias")
    return clip(x, limit_of(state)) if bias is None else clip(x - bias, limit_of(state)) + bias


def _inputs(state: State, projection: str, x: NDArray) -> NDArray:
    require(state.config.projections, "without projections, their inputs are what is cut off")
    return project(state, projection, clip(state[PROJECTED[projection][0]], limit_of(state)))


def _limited(step: str, where: Where = has_limit) -> Steps:
    """The result of another step cut off."""
    return after(step, lambda state, right: clip(right, limit_of(state)), where)


def _behind(steps: Mapping[str, str], field: str) -> Steps:
    """The results of later steps cut off in place of the projections, in layers whose config has this field."""

    def where(state: State) -> bool:
        return has_limit(state) and getattr(state.config, field) is not None

    found = dict(_clipped(_unclipped, tuple(steps), where))
    for step in steps.values():
        found |= _limited(step, where)
    return found


def _by_norm(state: State, projection: str, x: NDArray) -> NDArray:
    """A token whose largest channel is beyond the limit shrinks as a whole."""
    largest = np.abs(x).max(axis=-1, keepdims=True, initial=0.0)
    limit = limit_of(state)
    return x * np.where(largest > limit, limit / np.where(largest > 0.0, largest, 1.0), 1.0)


def _has_past(state: State) -> bool:
    return has_limit(state) and state.sizes.past_len > 0


_row = Table("queries", "Cut off all channels of projected queries, keys and values at +-c, behind the bias.")
_first = Table(
    "queries", "Cut off behind the bias and before everything else: before norm, rotation, cache and scores."
)

CUT = (
    _row("clip-ignored", "No projection is cut off.", _clipped(_unclipped)),
    _row(
        "clip-of-values-missing",
        "Queries and keys are cut off, values are not.",
        _clipped(_unclipped, ("values",)),
        stage="values",
    ),
    _row(
        "clip-of-queries-and-keys-missing",
        "Values are cut off, queries and keys are not.",
        _clipped(_unclipped, ("queries", "keys")),
    ),
    _row(
        "clip-of-queries-missing", "Keys and values are cut off, queries are not.", _clipped(_unclipped, ("queries",))
    ),
    _row(
        "clip-from-above-alone",
        "Numbers above c are cut off, those below -c are not.",
        _clipped(lambda state, name, x: np.where(x > limit_of(state), limit_of(state), x)),
    ),
    _row(
        "clip-from-zero",
        "Numbers are cut off at 0 and c, not at -c and c.",
        _clipped(lambda state, name, x: np.clip(x, 0.0, limit_of(state))),
    ),
    _row(
        "clip-to-zero",
        "Numbers beyond the limit become 0.",
        _clipped(lambda state, name, x: np.where(np.abs(x) > limit_of(state), 0.0, x)),
    ),
    _row(
        "clip-smooth",
        "The limit bends smoothly, as a softcap does: c * tanh(x / c).",
        _clipped(lambda state, name, x: limit_of(state) * np.tanh(x / limit_of(state))),
    ),
    _row("clip-by-largest", "A token whose largest channel is beyond c shrinks as a whole.", _clipped(_by_norm)),
    _row(
        "clip-at-twice-the-limit",
        "Numbers are cut off at 2 c.",
        _clipped(lambda state, name, x: clip(x, 2.0 * limit_of(state))),
    ),
    _row(
        "clip-by-token-width",
        "Each token is scaled to the length c at most, as gradients are clipped.",
        _clipped(
            lambda state, name, x: x * np.minimum(1.0, limit_of(state) / (np.linalg.norm(x, axis=-1, keepdims=True)))
        ),
    ),
)

ORDER_OF_STEPS = (
    _first("clip-before-bias", "The product is cut off, and then the bias added.", _clipped(_before_bias)),
    _first("clip-of-inputs", "The inputs of the projections are cut off, not their results.", _clipped(_inputs)),
    _first(
        "clip-behind-norm",
        "Queries and keys are cut off behind their norm.",
        _behind({"queries": "normed_queries", "keys": "normed_keys"}, "query_key_norm"),
    ),
    _first(
        "clip-behind-rotation",
        "Queries and keys are cut off behind the rotation.",
        _behind({"queries": "rotated_queries", "keys": "rotated_keys"}, "rotary"),
    ),
    _first(
        "clip-behind-value-norm",
        "Values are cut off behind their norm.",
        _behind({"values": "normed_values"}, "value_norm_eps"),
        stage="values",
    ),
    _first(
        "clip-of-past",
        "Keys and values of the past are cut off too.",
        _limited("keys", _has_past),
        _limited("values", _has_past),
        stage="keys",
    ),
    _first(
        "clip-of-scores",
        "Scores are cut off, not queries and keys.",
        _clipped(_unclipped, ("queries", "keys")),
        _limited("scores"),
    ),
)

# Backward -----------------------------------------------------------------------------------------

Back = Callable[[State, NDArray, NDArray], NDArray]
"""(state, gradient behind the limit, x in front of it) -> the wrong gradient of x."""


def _through(back: Back, names: tuple[str, ...] = tuple(CLIPPED)) -> Steps:
    def of(name: str) -> Steps:
        projection = CLIPPED[name]

        def step(state: State, right: NDArray) -> NDArray:
            return back(state, state[f"d_clipped_{name}"], state[projection])

        return after(f"d_{projection}", step, has_limit)

    return {step: function for name in names for step, function in of(name).items()}


def _at_limit(share: float) -> Back:
    def back(state: State, gradient: NDArray, x: NDArray) -> NDArray:
        right = clip_back(gradient, x, limit_of(state))
        return np.where(np.abs(x) == limit_of(state), share * gradient, right)

    return back


def _of_first_head(state: State, gradient: NDArray, x: NDArray, *, name: str) -> NDArray:
    """Where channel i of head 0 is beyond the limit, channel i of no head gets a gradient."""
    width = state[f"projected_{name}"].shape[-1]
    first = np.abs(x[..., :width]) > limit_of(state)
    return np.where(np.tile(first, x.shape[-1] // width), 0.0, gradient)


_row = Table(GRADIENTS, "The gradient passes within +-c, c itself included, and is 0 beyond.")

BACKWARD = (
    _row(
        "gradient-of-clip-straight-through",
        "The gradient passes beyond the limit too.",
        _through(lambda state, gradient, x: gradient),
    ),
    _row(
        "gradient-of-clip-of-values-straight-through",
        "The gradient of values passes beyond the limit, that of queries and keys does not.",
        _through(lambda state, gradient, x: gradient, ("values",)),
    ),
    _row(
        "gradient-of-clip-detached",
        "No gradient passes the limit at all.",
        _through(lambda state, gradient, x: np.zeros_like(gradient)),
    ),
    _row(
        "gradient-of-clip-from-above-alone",
        "The gradient passes below -c.",
        _through(lambda state, gradient, x: np.where(x > limit_of(state), 0.0, gradient)),
    ),
    _row(
        "gradient-of-clip-reversed",
        "The gradient passes beyond the limit, and is 0 within.",
        _through(lambda state, gradient, x: np.where(np.abs(x) > limit_of(state), gradient, 0.0)),
    ),
    _row("gradient-of-clip-zero-at-limit", "The gradient is 0 at exactly +-c.", _through(_at_limit(0.0))),
    _row(
        "gradient-of-clip-halved-at-limit",
        "Half of the gradient passes at exactly +-c, as that of jnp.clip.",
        _through(_at_limit(0.5)),
    ),
    _row(
        "gradient-of-clip-by-first-head",
        "Whether a channel is beyond the limit is taken from head 0 for all heads.",
        *(_through(partial(_of_first_head, name=name), (name,)) for name in CLIPPED),
    ),
)

BUGS = (*CUT, *ORDER_OF_STEPS, *BACKWARD)
