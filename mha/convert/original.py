"""Recorded calls of original layers, from files: what `mha.capture` writes, or plain arrays of calls.

Plain arrays are one call (`queries`, `output`, ...), or calls of several layers under
`layer/call/queries`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mha.infer.observed import Observed, load_arrays, naming
from mha.recordings.recording import Recording, is_recording
from mha_core import AttentionConfig, AttentionInputs, SpecError
from mha_core.dtypes import storage_dtype
from mha_core.errors import listed
from mha_core.weights import Weights

MOST_NAMED = 6
"""Most names that a message lists."""


@dataclass(frozen=True, eq=False)
class OriginalCall:
    """A recorded call. `inputs`: name of each mask that it may have had -> inputs with it. `outputs`: name -> array."""

    name: str
    inputs: Mapping[str, AttentionInputs]
    outputs: Mapping[str, NDArray]


@dataclass(frozen=True, eq=False)
class OriginalLayer:
    """A layer of the original model, with its recorded calls.

    Attributes:
        name: the layer's name in the model; "" if the file does not tell it.
        dtype: the dtype in which the layer computed.
        calls: the recorded calls.
        config, weights: the layer's config and weights, if they were recorded; else None.
    """

    name: str
    dtype: str
    calls: tuple[OriginalCall, ...]
    config: AttentionConfig | None = None
    weights: Weights | None = None


def load_recorded(*paths: str | Path) -> list[OriginalLayer]:
    """Return the layers in files of recorded calls; calls of one layer in several files are put together.

    `paths`: files that `mha.capture` wrote, or .npz or safetensors files of arrays. They hold one call each ("queries",
    "output", ...), or calls of several layers ("encoder.0.attn/0/queries", "encoder.0.attn/0/output",
    "encoder.0.attn/1/queries", ...).

    Raises:
        SpecError: a file does not exist, or has another form.
    """
    found: list[OriginalLayer] = []
    for layer in (layer for path in map(Path, paths) for layer in _in_file(path)):
        known = next((i for i, one in enumerate(found) if _is_same(one, layer)), None)
        if known is None:
            found.append(layer)
        else:
            found[known] = replace(found[known], calls=(*found[known].calls, *layer.calls))
    return found


def _in_file(path: Path) -> list[OriginalLayer]:
    if not is_recording(path):
        with naming(path):
            return _of_arrays(path)
    recording = Recording.load(path)
    layers = []
    for position, layer in enumerate(recording.layers):
        calls = tuple(
            OriginalCall(name, {"": call.inputs}, call.outputs)
            for name, call in zip(recording.names, recording.calls, strict=True)
            if call.layer == position
        )
        if calls:
            layers.append(OriginalLayer(layer.name, layer.dtype, calls, layer.config, layer.weights))
    return layers


def _is_same(one: OriginalLayer, other: OriginalLayer) -> bool:
    """Whether two files hold calls of one layer, in one dtype and with equal weights where both hold them."""
    if (one.name, one.dtype, one.config) != (other.name, other.dtype, other.config):
        return False
    if one.weights is None or other.weights is None:
        return one.weights is other.weights
    return all(np.array_equal(array, other.weights[name]) for name, array in one.weights.items())


def pair(recorded: Sequence[OriginalLayer], prefixes: Sequence[str]) -> dict[str, OriginalLayer]:
    """Return a dict: prefix of a layer in a file -> the recorded layer that matches it, if one does.

    A name and a prefix match if one ends with the other, component by component ("/" counts as "."), because the
    captured model may be a submodule of the saved one. If none match, and there are as many layers as prefixes, they
    are paired in order.

    Raises:
        SpecError: layers can't be paired by names or by order, or a layer belongs to several.

    >>> calls = [OriginalLayer("layer.1.attn", "float32", ()), OriginalLayer("layer.0.attn", "float32", ())]
    >>> {prefix: layer.name for prefix, layer in pair(calls, ["encoder/layer/0/attn", "encoder/layer/1/attn"]).items()}
    {'encoder/layer/1/attn': 'layer.1.attn', 'encoder/layer/0/attn': 'layer.0.attn'}
    """
    found: dict[str, OriginalLayer] = {}
    for layer in recorded:
        fitting = [prefix for prefix in prefixes if layer.name and _parts(prefix) == _parts(layer.name)]
        fitting = fitting or [prefix for prefix in prefixes if layer.name and prefix and _end_alike(prefix, layer.name)]
        if len(fitting) > 1:
            raise SpecError(f"the recorded layer {layer.name!r} could be any of {_listed(fitting)}; choose a prefix")
        for prefix in fitting:
            if prefix in found:
                raise SpecError(
                    f"the layer at prefix {prefix!r} was recorded as {found[prefix].name!r} and as {layer.name!r}, or "
                    "with two sets of weights, or in two dtypes; record it once"
                )
            found[prefix] = layer
    if not found and len(recorded) == len(prefixes):
        return dict(zip(sorted(prefixes, key=_numbered), recorded, strict=True))
    if not found:
        raise SpecError(
            f"no recorded layer has the name of one in the file, and there are {len(recorded)} and {len(prefixes)} of "
            f"them (recorded: {_listed([layer.name for layer in recorded])}; in the file: {_listed(prefixes)})"
        )
    return found


def _of_arrays(path: Path) -> list[OriginalLayer]:
    arrays = load_arrays(path)
    if not any("/" in name for name in arrays):
        return [_of_observed("", {"": Observed.of(arrays)})]
    layers: dict[str, dict[str, dict[str, NDArray]]] = {}
    for name, array in arrays.items():
        layer, call, field = ["", "", *name.rsplit("/", 2)][-3:]
        if not layer or not call:
            raise SpecError(
                f"{path} must hold arrays of one call (queries, output, ...), or of calls of layers "
                f"(layer/call/queries). Got {name!r} among others."
            )
        layers.setdefault(layer, {}).setdefault(call, {})[field] = array
    return [_of_observed(layer, _observed(layer, calls)) for layer, calls in layers.items()]


def _observed(layer: str, calls: Mapping[str, Mapping[str, NDArray]]) -> dict[str, Observed]:
    found = {}
    for call, arrays in calls.items():
        try:
            found[call] = Observed.of(arrays)
        except SpecError as error:
            raise SpecError(f"{layer}/{call}: {error}") from error
    dtypes = dict.fromkeys(one.dtype for one in found.values())
    if len(dtypes) > 1:
        raise SpecError(f"the calls of {layer} must be in one dtype. Got {' and '.join(dtypes)}.")
    return found


def _of_observed(name: str, calls: Mapping[str, Observed]) -> OriginalLayer:
    made = []
    for call, observed in calls.items():
        inputs = {
            words: AttentionInputs(observed.queries, observed.keys, observed.values, mask)
            for words, mask in observed.masks.items()
        }
        outputs = {"output": observed.output.astype(storage_dtype(observed.dtype))}
        made.append(OriginalCall("/".join(filter(None, (name, call))), inputs, outputs))
    return OriginalLayer(name, next(iter(calls.values())).dtype, tuple(made))


def _parts(name: str) -> list[str]:
    return re.split(r"[./]", name)


def _end_alike(one: str, other: str) -> bool:
    short, long = sorted((_parts(one), _parts(other)), key=len)
    return long[-len(short) :] == short


def _numbered(prefix: str) -> list[tuple[str, int]]:
    """A sort key that puts layer 10 after layer 2."""
    return [(text, int(number or -1)) for text, number in re.findall(r"(\D*)(\d*)", prefix)]


def _listed(names: Sequence[str]) -> str:
    return listed([repr(name) for name in names], MOST_NAMED)


def observed_in(path: Path) -> Observed:
    """Return the first call in a recording of one layer, without the layer's weights.

    Raises:
        SpecError: the recording holds several layers, or the call has past keys or rotary positions.
    """
    recording = Recording.load(path)
    names = [layer.name for layer in recording.layers]
    if len(names) > 1:
        raise SpecError(
            f"{path} holds calls of {len(names)} layers ({listed(list(map(repr, names)), 4)}), and one is to be found: "
            f"record it alone, mha.capture(model, FILE, layers=[{names[0]!r}])"
        )
    call = recording.calls[0]
    given = call.inputs
    if given.past_keys is not None or given.rotary is not None:
        raise SpecError(f"{path} holds a call with past keys or rotary positions; record one without")
    plain = not any(value is not None and value is not False for value in (*vars(given.mask).values(),)[:4])
    words = "no mask" if plain else "the recorded mask"
    masks, output = {words: given.mask}, call.outputs["output"]
    return Observed(given.queries, given.keys, given.values, output, masks, recording.layers[0].dtype)
