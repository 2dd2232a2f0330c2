"""The places of a mask: what each source lets in, as an array of 0 and 1, and its numbers as integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.measure.faults import bug_of, with_inputs
from conformance.measure.grammar.sample import Change, Setting
from conformance.measure.places import SCORED, Place, fault
from conformance.measure.reads import Put
from conformance.zoo.bug import Bug
from mha_core import AttentionMask
from mha_core.call.masks import allowed_keys, padding_keys
from mha_core.reference.state import State, Step

SOURCES: Mapping[str, tuple[str, str]] = {
    "valid_lens": (
        "valid_lens",
        "Key j is allowed iff j < valid_len of its batch item (or of its batch item and query).",
    ),
    "allowed": ("allowed", "allowed broadcasts to (B, H, Lq, Lk); True means that the query may attend to the key."),
    "bias": ("-inf in the bias", "Exclude a key where the bias is -inf, and nowhere else."),
    "causal": ("causal", "Key j is allowed iff j <= query_offset + i for query i."),
    "window": (
        "the window",
        "Key j is allowed iff position - left <= j <= position + right, position = query_offset + i.",
    ),
}
"""Each source of a mask -> how a sentence calls it, and what to do where it is wrong."""

SIDES: Mapping[str, str] = {"left": "the left side of the window", "right": "the right side of the window"}

OF_ALL = "Combine all sources of the mask with AND, as bool (B, H, Lq, Lk): queries before keys, True = may attend."
OF_OFFSET = "Query i stands at position query_offset + i of its batch item, for causal and for window."

NOTHING: Mapping[str, object] = {"valid_lens": None, "allowed": None, "bias": None, "causal": False, "window": None}


def given(mask: AttentionMask) -> tuple[str, ...]:
    """The sources that a mask has, in the order of SOURCES; a bias without -inf excludes nothing, and is none.

    >>> given(AttentionMask(causal=True, valid_lens=[2]))
    ('valid_lens', 'causal')
    """
    there = {name: getattr(mask, name) is not None and getattr(mask, name) is not False for name in SOURCES}
    there["bias"] = mask.bias is not None and bool(np.isneginf(mask.bias).any())
    return tuple(name for name, is_there in there.items() if is_there)


def sides_of(mask: AttentionMask) -> tuple[str, ...]:
    """The sides of the window that a mask has, of SIDES."""
    return tuple(name for name, side in zip(SIDES, mask.window or (None, None), strict=True) if side is not None)


def without(state: State, *sources: str) -> State:
    """The State with a mask that lacks some sources, or a side of its window."""
    left, right = state.inputs.mask.window or (None, None)
    if sources and sources[0] in SIDES:
        return with_inputs(state, window=(None, right) if sources[0] == "left" else (left, None))
    return with_inputs(state, **{source: NOTHING[source] for source in sources}) if sources else state


def array_of(state: State, source: str) -> NDArray[np.bool_]:
    """Bool (B, H, Lq, Lk): what one source, or side of the window, allows."""
    alone = without(state, *(other for other in SOURCES if other != ("window" if source in SIDES else source)))
    if source in SIDES:
        alone = without(alone, "right" if source == "left" else "left")
    return allowed_keys(alone.inputs.mask, state.sizes, state.config.num_heads)


def positions(state: State) -> NDArray[np.int64]:
    """(B or 1, 1, Lq, 1): the position of each query among the keys."""
    offset = np.asarray(state.inputs.mask.query_offset, np.int64).reshape(-1, 1, 1, 1)
    return np.asarray(offset + np.arange(state.sizes.query_len)[:, None])


def with_array(state: State, source: str, array: NDArray) -> State:
    """The State with an array in place of a source."""
    rest = without(state, source)
    others = rest.inputs.mask.allowed
    return with_inputs(rest, allowed=array if others is None else array & others)


# Places of masks ----------------------------------------------------------------------------------------------


def _of_source(source: str) -> Place:
    def get(state: State, beneath: Step) -> NDArray | None:
        there = source in given(state.inputs.mask) or source in sides_of(state.inputs.mask)
        return array_of(state, source) if there else None

    def put(state: State, beneath: Step, array: NDArray) -> NDArray:
        found: NDArray = beneath(with_array(state, source, np.asarray(array) > 0.5))
        return found

    words, fix = SOURCES.get(source) or (SIDES[source], SOURCES["window"][1])
    return Place(f"mask-{source}", words, fix, SCORED, ("allowed",), get, put)


def _of_all(id: str, words: str, always: bool) -> Place:
    def get(state: State, beneath: Step) -> NDArray | None:
        return beneath(state) if always or given(state.inputs.mask) else None

    return Place(id, words, OF_ALL, SCORED, ("allowed",), get, lambda state, beneath, array: np.asarray(array) > 0.5)


def _lengths(axes: int, state: State, beneath: Step) -> NDArray | None:
    lens = state.inputs.mask.valid_lens
    return None if lens is None or np.ndim(lens) != axes else np.asarray(lens, np.float64)


def _every_length(state: State, beneath: Step) -> NDArray | None:
    lens = state.inputs.mask.valid_lens
    return None if lens is None else np.ravel(lens).astype(np.float64)


def _offset(state: State, beneath: Step) -> NDArray | None:
    mask = state.inputs.mask
    return np.atleast_1d(np.asarray(mask.query_offset, np.float64)) if mask.has_positions else None


def far(state: State | Setting) -> int:
    """A side of a window that bounds nothing."""
    return int(state.sizes.key_len + state.sizes.query_len)


def _window(state: State, beneath: Step) -> NDArray | None:
    sides = state.inputs.mask.window
    return None if sides is None else np.array([float(far(state) if side is None else side) for side in sides])


def _diagonal(state: State, beneath: Step) -> NDArray | None:
    return np.zeros(1) if state.inputs.mask.causal else None


def _with(source: Callable[[State, NDArray], dict[str, Any]]) -> Put:
    """The step with another source of the mask, made of integers."""

    def put(state: State, beneath: Step, array: NDArray) -> Any:
        integers = np.clip(np.floor(np.asarray(array) + 1e-9), -(2**31), 2**31 - 1).astype(np.int64)
        return beneath(with_inputs(state, **source(state, integers)))

    return put


def _of_lengths(state: State, lens: NDArray) -> dict[str, Any]:
    return {"valid_lens": lens.reshape(np.shape(state.inputs.mask.valid_lens))}


def _of_offset(state: State, offset: NDArray) -> dict[str, Any]:
    return {"query_offset": int(offset[0]) if len(offset) == 1 else offset}


def _of_window(state: State, sides: NDArray) -> dict[str, Any]:
    return {"window": tuple(None if side >= far(state) else int(side) for side in sides)}


def _of_diagonal(state: State, moved: NDArray) -> dict[str, Any]:
    alone = without(state, *(source for source in SOURCES if source != "causal"))
    offset = np.asarray(state.inputs.mask.query_offset) + int(moved[0])
    array = array_of(with_inputs(alone, query_offset=offset if offset.ndim else int(offset)), "causal")
    others = state.inputs.mask.allowed
    return {"causal": False, "allowed": array if others is None else array & others}


_OF_LENGTHS = SOURCES["valid_lens"][1]
_ALLOWED = ("allowed",)
EVERY_LENGTH = Place(
    *("every length", "lengths, of items and of queries,", _OF_LENGTHS, ("length",), _ALLOWED),
    *(_every_length, _with(_of_lengths)),
)
INTEGERS: Mapping[str, Place] = {
    place.id: place
    for place in (
        Place("lengths", "the lengths", _OF_LENGTHS, ("item",), _ALLOWED, partial(_lengths, 1), _with(_of_lengths)),
        Place(
            *("lengths of queries", "the lengths of queries", _OF_LENGTHS, ("item", "query"), _ALLOWED),
            *(partial(_lengths, 2), _with(_of_lengths)),
        ),
        Place("offset", "query offsets", OF_OFFSET, ("item",), _ALLOWED, _offset, _with(_of_offset)),
        Place(
            *("diagonal", "the causal diagonal's offsets", SOURCES["causal"][1], ("number",), _ALLOWED),
            *(_diagonal, _with(_of_diagonal)),
        ),
        Place("sides", "the window's sides", SOURCES["window"][1], ("side",), _ALLOWED, _window, _with(_of_window)),
    )
}
ARRAYS: Mapping[str, Place] = {
    **{source: _of_source(source) for source in (*SOURCES, *SIDES)},
    "all": _of_all("mask", "the whole mask", always=False),
    "always": _of_all("attention", "with a mask or without, what is let in", always=True),
}

WORDS = {
    "replaced by 1 - x": "is read the wrong way round",
    "replaced by 1": "lets in every key",
    "replaced by 0": "lets in no key",
}


def mask_fault(place: Place, change: Change) -> Bug:
    """The bug of another array of what a source lets in."""
    words = next((said + change.words[len(of) :] for of, said in WORDS.items() if change.words.startswith(of)), "")
    bug = fault(place, change)
    return replace(bug, sentence=sentence_of(place.words, words or f"is used {change.words}"))


def sentence_of(what: str, rest: str) -> str:
    """A sentence; names of arguments keep their small letters."""
    return f"{what if what.startswith(('valid', 'allow')) else what[0].upper() + what[1:]} {rest}."


def with_zeroed_padding(bug: Bug) -> Bug:
    """The bug in a layer that still replaces by 0 the keys and values that are padding by the definition."""

    def padding(state: State, beneath: Step) -> NDArray:
        return padding_keys(state.inputs.mask, state.sizes)

    zeroed = bug_of("padding", "", "", "padding", padding)
    return replace(
        bug,
        id=f"{bug.id}-padding-zeroed",
        sentence=f"{bug.sentence} Padded keys and values are 0 all the same.",
        forward={**bug.forward, **zeroed.forward},
    )
