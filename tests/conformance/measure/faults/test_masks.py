"""Wrong masks that are not on file are measured from outputs alone: each source, several, and what is excluded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.measure.designs import generic
from conformance.measure.faults import with_inputs
from conformance.zoo.bug import Bug, OnTop
from mha_core import AttentionMask
from mha_core.call.masks import allowed_keys
from mha_core.reference.forward import FORWARD
from mha_core.reference.state import State, Step
from tests.conformance.measure.wrong import FRESH, is_right, measured, said, wrong_at

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

OWN = ("mask*", "excluded*", "empty-rows", "padding", "open-nan", "no-keys")


def given_as(change: Callable[[State], dict[str, Any]]) -> Bug:
    """Sources of the mask given otherwise."""

    def changed(state: State, beneath: Step) -> Any:
        return beneath(with_inputs(state, **change(state)))

    return Bug(
        "wrong-source", "a source is wrong", "weights", "", forward={"allowed": OnTop(FORWARD["allowed"], changed)}
    )


def _lens(rule: Callable[[State, NDArray], NDArray]) -> Bug:
    def change(state: State) -> dict[str, Any]:
        lens = state.inputs.mask.valid_lens
        return {} if lens is None else {"valid_lens": rule(state, np.asarray(lens))}

    return given_as(change)


def _window(rule: Callable[[int | None, int | None], Any]) -> Bug:
    return given_as(lambda s: {} if s.inputs.mask.window is None else {"window": rule(*s.inputs.mask.window)})


def _causal(rule: Callable[[State, NDArray], NDArray]) -> Bug:
    """causal by `rule(state, how far ahead)`."""

    def change(state: State) -> dict[str, Any]:
        mask = state.inputs.mask
        if not mask.causal:
            return {}
        offset = np.asarray(mask.query_offset).reshape(-1, 1, 1, 1)
        own = rule(state, np.arange(state.sizes.key_len) - np.arange(state.sizes.query_len)[:, None] - offset)
        return {"causal": False, "allowed": own if mask.allowed is None else own & mask.allowed}

    return given_as(change)


def _allowed(rule: Callable[[State, NDArray], NDArray]) -> Bug:
    """`allowed` at full size by `rule`."""

    def change(state: State) -> dict[str, Any]:
        allowed = state.inputs.mask.allowed
        shape = state.sizes.batch, state.config.num_heads, state.sizes.query_len, state.sizes.key_len
        return {} if allowed is None else {"allowed": rule(state, np.broadcast_to(allowed, shape))}

    return given_as(change)


def _exchanged(state: State, allowed: NDArray) -> NDArray:
    """allowed[j, i] for query i and key j, each around the end of the other's axis."""
    queries, keys = np.arange(state.sizes.query_len), np.arange(state.sizes.key_len)
    return allowed[:, :, keys % state.sizes.query_len][..., queries % state.sizes.key_len].swapaxes(2, 3)


def _any_source(state: State) -> dict[str, Any]:
    """Every source lets in what it allows: the sides of a window are two, and a bias is one, whatever it holds."""
    mask = state.inputs.mask
    left, right = mask.window or (None, None)
    sources = [(name, getattr(mask, name)) for name in ("valid_lens", "allowed", "bias")]
    sources += [("causal", mask.causal or None)]
    sources += [("window", None if left is None else (left, None))]
    sources += [("window", None if right is None else (None, right))]
    each = [AttentionMask(**{name: one}, query_offset=mask.query_offset) for name, one in sources if one is not None]
    if len(each) < 2:
        return {}
    let_in = [allowed_keys(one, state.sizes, state.config.num_heads) for one in each]
    bias = None if mask.bias is None else np.where(np.isneginf(mask.bias), 0.0, mask.bias)
    together = np.logical_or.reduce(np.broadcast_arrays(*let_in))
    return {"valid_lens": None, "causal": False, "window": None, "bias": bias, "allowed": together}


def _over_all(scores: Callable[[State], NDArray]) -> Bug:
    """The softmax of other scores over all keys; rows without a key are 0."""

    def change(state: State, beneath: Step) -> Any:
        arrays = {**state.arrays, "scores": scores(state), "allowed": np.ones_like(state["allowed"])}
        return np.where(state["allowed"].any(-1, keepdims=True), beneath(replace(state, arrays=arrays)), 0.0)

    return Bug("wrong-fill", "a fill", "weights", "", forward={"weights": OnTop(FORWARD["weights"], change)})


def _empty(rule: Callable[[State, NDArray], Any]) -> Bug:
    return wrong_at("weights", lambda s, a: np.where(s["allowed"].any(-1, keepdims=True), a, rule(s, a)))


SINGLE: dict[str, Bug] = {
    "length-plus-3": _lens(lambda s, lens: lens + 3),
    "diagonal-plus-2": _causal(lambda s, ahead: ahead <= 2),
    "window-halved": _window(lambda left, right: tuple(x if x is None else x // 2 for x in (left, right))),
    "offset-plus-1": given_as(lambda s: {"query_offset": np.asarray(s.inputs.mask.query_offset) + 1}),
    "allowed-heads-rolled": _allowed(lambda s, a: np.roll(a, 1, 1)),
    "allowed-exchanged": _allowed(_exchanged),
    "any-source-or-side": given_as(_any_source),
    "fill-minus-4321": _over_all(lambda s: np.where(s["allowed"], s["scores"], -4321.0)),
    "empty-last": _empty(lambda s, a: np.arange(s.sizes.key_len) == s.sizes.key_len - 1),
}


def fresh() -> list[Any]:
    """Masks of every source, of sizes and numbers that no probe has."""
    rng = np.random.default_rng(3)
    found = []
    for config in FRESH:
        for batch, query_len, key_len in ((1, 5, 9), (2, 6, 8)):
            shape = batch, config.num_heads, query_len, key_len
            some = rng.random(shape) < 0.6
            some[..., 4] = True
            lens = rng.integers(3, key_len - 1, batch)
            masks = [
                AttentionMask(valid_lens=lens),
                AttentionMask(valid_lens=rng.integers(3, key_len, (batch, query_len))),
                AttentionMask(allowed=some),
                AttentionMask(allowed=rng.random((query_len, key_len)) < 0.5),
                AttentionMask(bias=np.where(some, rng.normal(size=shape), -np.inf)),
                AttentionMask(causal=True),
                AttentionMask(causal=True, query_offset=rng.integers(0, 3, batch)),
                AttentionMask(window=(2, 3)),
                AttentionMask(window=(3, 1), query_offset=2),
                AttentionMask(window=(3, 2), valid_lens=lens + 1),
                AttentionMask(window=(4, 2), allowed=some, causal=True),
            ]
            found += [
                generic(config, seed=9, batch=batch, query_len=query_len, key_len=key_len, mask=mask) for mask in masks
            ]
    return found


@pytest.mark.parametrize("name", SINGLE)
def test_a_mask_that_is_wrong_in_a_way_not_on_file_is_measured(name: str) -> None:
    bug = SINGLE[name]
    found = measured(bug, probes=OWN)
    assert is_right(found, (bug,), fresh()), said(found)
