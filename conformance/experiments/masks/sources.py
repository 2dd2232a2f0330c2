"""Sources of a mask, each alone as a bool array; and bugs that change one of them, or all together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.measured import PREFIX, around, with_mask
from conformance.zoo.bug import Bug, OnTop
from mha_core import AttentionMask
from mha_core.call.masks import allowed_keys, padding_keys
from mha_core.reference.forward import FORWARD
from mha_core.reference.state import State, Step

SOURCES: Mapping[str, str] = {
    "valid_lens": "valid_lens",
    "allowed": "allowed",
    "bias": "-inf in the bias",
    "causal": "causal",
    "window": "the window",
}
"""Each source of a mask -> how a sentence calls it."""

SIDES: Mapping[str, str] = {"left": "the left side of the window", "right": "the right side of the window"}
"""The sides of a window, each of which may be wrong by itself as a source may."""

FIXES: Mapping[str, str] = {
    "valid_lens": "Key j is allowed iff j < valid_len of its batch item (or of its batch item and query).",
    "allowed": "allowed broadcasts to (B, H, Lq, Lk); True means that the query may attend to the key.",
    "bias": "Exclude a key where the bias is -inf, and nowhere else.",
    "causal": "Key j is allowed iff j <= query_offset + i for query i.",
    "window": "Key j is allowed iff position - left <= j <= position + right, position = query_offset + i.",
    "all": "Combine all sources of the mask with AND, as bool (B, H, Lq, Lk): queries before keys, True = may attend.",
}
"""What to change; "all" for the combined mask."""

NOTHING: Mapping[str, object] = {"valid_lens": None, "allowed": None, "bias": None, "causal": False, "window": None}

Change = Callable[[State, NDArray], NDArray]
"""(state, bool (B, H, Lq, Lk)) -> another one."""


def is_given(mask: AttentionMask, source: str) -> bool:
    """Whether a mask has a source, or a side of a window; a bias without -inf excludes nothing, and is none."""
    if source in SIDES:
        return mask.window is not None and mask.window[list(SIDES).index(source)] is not None
    if source == "bias":
        return mask.bias is not None and bool(np.isneginf(mask.bias).any())
    return bool(mask.causal) if source == "causal" else getattr(mask, source) is not None


def given(mask: AttentionMask) -> tuple[str, ...]:
    """The sources that a mask has, in the order of SOURCES.

    >>> given(AttentionMask(causal=True, valid_lens=[2]))
    ('valid_lens', 'causal')
    """
    return tuple(source for source in SOURCES if is_given(mask, source))


def without(state: State, *sources: str) -> State:
    """The State with a mask that lacks some sources."""
    if sources and sources[0] in SIDES:
        left, right = state.inputs.mask.window or (None, None)
        return with_mask(state, window=(None, right) if sources[0] == "left" else (left, None))
    return with_mask(state, **{source: NOTHING[source] for source in sources})


def array_of(state: State, source: str) -> NDArray[np.bool_]:
    """Bool (B, H, Lq, Lk): what one source allows."""
    whole = "window" if source in SIDES else source
    alone = without(state, *(other for other in SOURCES if other != whole))
    if source in SIDES:
        alone = without(alone, "right" if source == "left" else "left")
    return allowed_keys(alone.inputs.mask, state.sizes, state.config.num_heads)


def with_array(state: State, source: str, array: NDArray) -> State:
    """The State with an array in place of a source."""
    rest = without(state, source)
    others = rest.inputs.mask.allowed
    return with_mask(rest, allowed=array if others is None else array & others)


def on_source(source: str, slug: str, change: Change, words: str) -> Bug:
    """A bug by which a source is another array; "all" is the combined mask.

    Args:
        source: one of SOURCES or SIDES; "all" is the combined mask where there is one, "always" also where not.
        slug: of the rule; the id has the source too.
        change: (state, what the source allows) -> what it allows instead.
        words: read after the source's name: "is ignored".
    """
    if source in ("all", "always"):

        def changed(state: State, beneath: Step) -> NDArray:
            some = source == "always" or given(state.inputs.mask)
            return change(state, beneath(state)) if some else beneath(state)

        whole = "The whole mask" if source == "all" else "With a mask or without, attention"
        slug = f"mask-{slug}" if source == "all" else f"attention-{slug}"
        return around("allowed", slug, changed, f"{whole} {words}.", FIXES["all"])

    def of_one(state: State, beneath: Step) -> NDArray:
        if not is_given(state.inputs.mask, source):
            return beneath(state)
        result: NDArray = beneath(with_array(state, source, change(state, array_of(state, source))))
        return result

    sentence = f"{_capital({**SOURCES, **SIDES}[source])} {words}."
    fix = FIXES["window" if source in SIDES else source]
    return around("allowed", f"{source.replace('_', '-')}-{slug}", of_one, sentence, fix)


def on_value(source: str, slug: str, change: Callable[[State], State], sentence: str, fix: str = "") -> Bug:
    """A bug by which a source has another value: `change(state)` is the State with that, where it has the source."""

    def changed(state: State, beneath: Step) -> NDArray:
        result: NDArray = beneath(change(state) if is_given(state.inputs.mask, source) else state)
        return result

    return around("allowed", f"{source.replace('_', '-')}-{slug}", changed, sentence, fix or FIXES[source])


def with_zeroed_padding(bug: Bug) -> Bug:
    """The bug in a layer that still replaces by 0 the keys and values that are padding by the definition."""
    step = OnTop(FORWARD["padding"], lambda state, beneath: padding_keys(state.inputs.mask, state.sizes))
    return replace(
        bug,
        id=f"{bug.id}-padding-zeroed",
        sentence=f"{bug.sentence} Padded keys and values are 0 all the same.",
        forward={**bug.forward, "padding": step},
    )


def only_where(bug: Bug, name: str, words: str, where: Callable[[State], NDArray]) -> Bug:
    """The bug in some heads, items or queries alone.

    Args:
        bug: one of a single step, whose result is (B, H, Lq, Lk).
        name, words: of the places: "first-head", "the first head".
        where: (state) -> bool, broadcastable to (B, H, Lq, Lk).
    """
    ((step, inner),) = bug.forward.items()
    assert isinstance(inner, OnTop)
    whole = inner.change

    def changed(state: State, beneath: Step) -> NDArray:
        return np.where(where(state), whole(state, beneath), beneath(state))

    slug = f"{bug.id.removeprefix(PREFIX)}-in-{name}"
    return around(step, slug, changed, f"{bug.sentence[:-1]}: {words} alone.", bug.fix)


def _capital(words: str) -> str:
    return words if words.startswith(("valid_lens", "allowed")) else words[0].upper() + words[1:]
