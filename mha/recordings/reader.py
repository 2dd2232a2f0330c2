"""Reads the description in a recording's file; every field is checked, because anybody may have written the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from numpy.typing import NDArray

from mha.coverage import unread_of
from mha.recordings.array_pool import array_of
from mha.recordings.ends import RecordedEnd
from mha.recordings.parts import FORMAT, RecordedCall, RecordedLayer
from mha.recordings.tokens import Tokens
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, RotaryInputs, SpecError
from mha_core.errors import shown
from mha_core.files.outside import parse_json_object
from mha_core.weights import check_weights

LONGEST_TEXT = 1000
"""Most characters that a name, a class or a version may have."""

Find = Callable[[Any], Any]
"""The array that a value in the description refers to, or the value itself."""


def described_in(arrays: Mapping[str, NDArray], text: str) -> dict[str, Any]:
    """Return name -> field of the Recording that a file describes.

    Args:
        arrays: name -> array of the file.
        text: the description, in JSON.

    Raises:
        SpecError: the text is no description, has a newer format, or contradicts itself or the arrays.
        Exception: any exception if the description has another form (KeyError if a field is missing).
    """
    description = parse_json_object(text, what="its description")
    known = description["format"]
    if type(known) is not int or known < 1:
        raise SpecError(f"its format must be a positive integer. Got {shown(repr(known))}.")
    if known > FORMAT:
        raise SpecError(f"it has format {known}, and this version reads up to {FORMAT}; install a newer mha-parity")
    find = _finder(arrays)
    layers = tuple(_layer(layer, find) for layer in description["layers"])
    calls = tuple(_call(call, len(layers), find) for call in description["calls"])
    versions = {_text("a package", name): _text("a version", of) for name, of in description["versions"].items()}
    # What a file of an older release lacks is None.
    unread, tokens, ends, behind = (description.get(name) for name in ("unread", "tokens", "ends", "behind"))
    if unread is not None:
        unread = unread_of(unread)
        for one in unread:
            _text("the name of a module", one.name)
            _text("the class of a module", one.kind)
    return {
        "layers": layers,
        "calls": calls,
        "versions": versions,
        "unread": unread,
        "tokens": None if tokens is None else Tokens.of(tokens),
        "behind": None if behind is None else tuple(_text("the name of a layer", name) for name in behind),
        "ends": None if ends is None else tuple(_end(end, len(calls), find) for end in ends),
    }


def _finder(arrays: Mapping[str, NDArray]) -> Find:
    made: dict[tuple[str, bool], NDArray] = {}

    def find(value: Any) -> Any:
        if isinstance(value, dict):
            key = value["array"], "as" in value
            if key not in made:  # once: a description can refer to one array any number of times
                made[key] = array_of(value, arrays)
            return made[key]
        return tuple(value) if isinstance(value, list) else value

    return find


def _layer(layer: Mapping[str, Any], find: Find) -> RecordedLayer:
    config = AttentionConfig.from_dict(layer["config"])
    weights = check_weights(config, {name: find(value) for name, value in layer["weights"].items()})
    name, kind = _text("the name of a layer", layer["name"]), _text("the class of a layer", layer["kind"])
    held_in = None if layer.get("parameters") is None else _text("a dtype", layer["parameters"])
    return RecordedLayer(name, kind, _text("a dtype", layer["dtype"]), config, weights, held_in)


def _call(call: Mapping[str, Any], layers: int, find: Find) -> RecordedCall:
    position = call["layer"]
    if type(position) is not int or not 0 <= position < layers:
        raise SpecError(f"a call must name one of {layers} layers by position. Got {shown(repr(position))}.")
    mask = _made(AttentionMask, call["mask"], find)
    rotary = _made(RotaryInputs, call["rotary"], find) if "rotary" in call else None
    inputs = _made(AttentionInputs, call["inputs"], find, mask=mask, rotary=rotary)
    outputs = {name: find(value) for name, value in call["outputs"].items()}
    return RecordedCall(position, inputs, outputs, _text("what is assumed of a call", call.get("assumed", "")))


def _end(end: Mapping[str, Any], calls: int, find: Find) -> RecordedEnd:
    if type(end["after"]) is not int or not 0 <= end["after"] <= calls:
        raise SpecError(f"an end must stand after 0 to {calls} calls. Got {shown(repr(end['after']))}.")
    names = {_text("the place of an array", place): find(value) for place, value in end["arrays"].items()}
    dtypes = {place: _text("a dtype", dtype) for place, dtype in end["dtypes"].items()}
    name, kind = _text("the name of a module", end["name"]), _text("the class of a module", end["kind"])
    return RecordedEnd(name, kind, end["after"], names, dtypes)


def _made(cls: type, values: Mapping[str, Any], find: Find, **more: Any) -> Any:
    known = {own.name for own in fields(cls)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise SpecError(f"{cls.__name__} has no field {shown(repr(unknown[0]))} (it has: {', '.join(sorted(known))})")
    return cls(**{name: find(value) for name, value in values.items()}, **more)


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > LONGEST_TEXT:
        rule = f"must be a printable text of at most {LONGEST_TEXT} characters"
        raise SpecError(f"{what} {rule}. Got {shown(repr(value))}.")
    return value
