"""Recording: calls of attention layers, with weights, inputs, masks and outputs, in one safetensors file.

`mha.capture` makes it where the layers live; `mha replay` and `mha diagnose` read it anywhere else. In the
file, equal arrays are stored once, such as the weights of a layer that was called often.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from conformance.cases.case import Case
from conformance.cases.problem import Problem
from mha.coverage import Coverage, Unread, unread_of
from mha.recordings.array_pool import ArrayPool, array_of, read
from mha.recordings.ends import RecordedEnd
from mha.recordings.modules.names import holds_arrays
from mha.recordings.modules.recorder import METADATA_KEY as OF_MODULES
from mha.recordings.parts import FORMAT, RecordedCall, RecordedLayer, check_call
from mha.recordings.tokens import Tokens
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, RotaryInputs, SpecError
from mha_core.dtypes import check_dtype, check_held, round_to
from mha_core.errors import listed, one_line, shown
from mha_core.files.mistaken import WEIGHTS
from mha_core.files.outside import parse_json_object
from mha_core.files.tensorfile import read_header
from mha_core.files.writing import check_output
from mha_core.weights import Weights, check_weights

METADATA_KEY = "mha_recording"
"""Key of the file's metadata under which everything but the arrays stands, as JSON."""

BEHIND = "behind the output projection (such as a residual or a norm), up to which the calls are recorded"
"""What no reference judges, in words."""

NAMED = 6
"""Most layers that a sentence names."""

HANDED_KEY = "mha_handed"
"""The same, of calls of attention functions inside layers that are recorded with their projections."""


@dataclass(frozen=True, eq=False)
class Recording:
    """A recording of calls of one or several layers.

    Args:
        layers: every layer that was called; a layer whose weights changed between calls is there twice.
        calls: the calls, in the order in which they were made.
        versions: package -> version of the frameworks that computed.
        unread: the modules that look like attention but were not recorded; None in a file of an older release.
        tokens: the text at each position, for `mha view`; None if none was given.
        ends: the outputs of the model itself, and of other chosen modules; None in a file of an older release.
        behind: the names of layers that compute something after their output projection, such as a residual sum. For
            these, `calls` has the output of the projection, and `ends` the layer's. None in a file of an older release.

    Raises:
        SpecError: there is no call; a layer or a call contradicts itself.

    >>> import tempfile
    >>> from mha_core import AttentionInputs, init_weights, reference
    >>> config = AttentionConfig(6, 2)
    >>> layer = RecordedLayer("", "mine.Attention", "float64", config, init_weights(config, seed=0))
    >>> inputs = AttentionInputs(*(np.ones((1, length, 6)) for length in (3, 4, 4)))
    >>> call = RecordedCall(0, inputs, {"output": reference.run(config, layer.weights, inputs).output})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Recording((layer,), (call,), {"mine": "1.0"}).save(folder + "/one.safetensors")
    ...     loaded = Recording.load(folder + "/one.safetensors")
    >>> loaded.names, bool((loaded.calls[0].outputs["output"] == call.outputs["output"]).all())
    (('layer',), True)
    """

    layers: tuple[RecordedLayer, ...]
    calls: tuple[RecordedCall, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[Unread, ...] | None = None
    tokens: Tokens | None = None
    ends: tuple[RecordedEnd, ...] | None = None
    behind: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.calls:
            raise SpecError("a recording needs at least one call. Got none.")
        for layer in self.layers:
            check_dtype(layer.dtype)
            check_dtype(layer.held_in)
            check_weights(layer.config, layer.weights)
            for key, array in layer.weights.items():
                check_held(f"layer {layer.name!r}: {key}", array, layer.held_in)
        for name, call in zip(self.names, self.calls, strict=True):
            check_call(name, self.layers[call.layer], call)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return a unique name for each call: the layer's name, with a number if the layer was called several times."""
        plain = [self.layers[call.layer].name or "layer" for call in self.calls]
        often, seen = Counter(plain), Counter[str]()
        names = []
        for name in plain:
            seen[name] += 1
            names.append(f"{name}#{seen[name]}" if often[name] > 1 else name)
        return tuple(names)

    def layer_of(self, position: int) -> RecordedLayer:
        """Return the layer of the call at this position."""
        return self.layers[self.calls[position].layer]

    @property
    def coverage(self) -> Coverage | None:
        """Return the Coverage: which attention modules were recorded, which were not; None if the file does not say."""
        names = tuple(dict.fromkeys(layer.name for layer in self.layers))
        return None if self.unread is None else Coverage(names, self.unread)

    @property
    def not_behind(self) -> str:
        """Return a line that names the layers with further code after their output projection; "" if there are none."""
        names = [name or "the layer" for name in self.behind or ()]
        return (
            f"Not judged: what {listed(names, NAMED)} {'does' if len(names) == 1 else 'do'} {BEHIND}." if names else ""
        )

    def check_coverage(self) -> None:
        """Raise SpecError if a module that looks like attention was not recorded, or if the file does not say."""
        if self.coverage is None:
            raise SpecError("the recording does not say which modules were left out; it is of an older release")
        self.coverage.check()

    @property
    def made_with(self) -> str:
        """Return the versions as text, such as "torch 2.13.0"."""
        return ", ".join(f"{package} {version}" for package, version in self.versions.items()) or "unknown software"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Return the dtypes of the calls, without repetitions."""
        return tuple(dict.fromkeys(self.layers[call.layer].dtype for call in self.calls))

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """Return each call as a Problem (config, weights, inputs), whose field `recorded` has the layer's outputs."""
        return tuple(self._problem(call) for call in self.calls)

    def cases(self, dtype: str | None = None) -> list[Case]:
        """Return the calls (only those in `dtype`, if given) as Cases for `conformance.runner`.

        Every time the same objects are returned, so that expected answers are computed only once.
        """
        layers = [self.layers[call.layer] for call in self.calls]
        return [case for case, layer in zip(self._cases, layers, strict=True) if dtype is None or layer.dtype == dtype]

    @cached_property
    def _cases(self) -> tuple[Case, ...]:
        return tuple(
            Case.of_problem(name, f"what {self.layers[call.layer].kind} was asked", problem, "it was recorded")
            for name, call, problem in zip(self.names, self.calls, self.problems, strict=True)
        )

    def with_weights(self, intended: Mapping[str, tuple[AttentionConfig, Weights]]) -> Self:
        """Return a copy of this recording with other weights in its layers, such as those of the original model.

        So the outputs of a port can be judged by the original's weights. The new weights are rounded to the dtype of
        the old ones. If the number of heads changes, the recorded attention weights are dropped.

        Args:
            intended: name of a layer -> config and canonical weights. Layers that are not named keep their weights.

        Raises:
            SpecError: no layer has such a name; the calls do not fit the config.
        """
        names = dict.fromkeys(layer.name for layer in self.layers)
        unknown = [name for name in intended if name not in names]
        if unknown:
            raise SpecError(f"no layer is named {unknown[0]!r} (there are: {', '.join(map(repr, names))})")
        layers = []
        for layer in self.layers:
            config, weights = intended.get(layer.name, (layer.config, layer.weights))
            rounded = {name: round_to(array, layer.held_in) for name, array in weights.items()}
            layers.append(replace(layer, config=config, weights=check_weights(config, rounded)))
        alike = [a.config.num_heads == b.config.num_heads for a, b in zip(self.layers, layers, strict=True)]
        calls = [
            call if alike[call.layer] else replace(call, outputs={"output": call.outputs["output"]})
            for call in self.calls
        ]
        return replace(self, layers=tuple(layers), calls=tuple(calls))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the file atomically. Raises SpecError if it exists already, unless `overwrite`."""
        check_target(path, overwrite=overwrite)
        pool = ArrayPool()
        pool.write(path, METADATA_KEY, self.described(pool))

    def described(self, pool: ArrayPool, calls: str = "calls") -> str:
        """Return the recording as JSON, and add its arrays to the pool.

        `calls` is the prefix of the names that the calls' arrays get: "calls.0.output".
        """
        description = {
            "format": FORMAT,
            "versions": dict(self.versions),
            "layers": [_describe_layer(pool, layer) for layer in self.layers],
            "calls": [_describe_call(pool, f"{calls}.{i}", call, self.layers) for i, call in enumerate(self.calls)],
        }
        if self.unread is not None:
            description["unread"] = [asdict(one) for one in self.unread]
        if self.ends is not None:
            description["ends"] = [_describe_end(pool, f"ends.{i}", end) for i, end in enumerate(self.ends)]
        if self.behind is not None:
            description["behind"] = list(self.behind)
        if self.tokens is not None:
            description["tokens"] = self.tokens.to_dict()
        return json.dumps(description, allow_nan=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str], key: str = METADATA_KEY) -> Self:
        """Return the recording in a file that `save` wrote. `key` is the metadata key of its description.

        Raises:
            SpecError: the file is not a whole safetensors file, is no recording, has a newer format, or
                lacks or contradicts something. The message says which.
            FileNotFoundError: there is no such file.
        """
        if (found := _without_attention(path)) is not None:
            more = ""
            if found == "modules":
                more = ". Of attention layers whose classes are not listed, layers={NAME: mha.Projections(...)} says "
                more += "the projections, but for Flax linen (docs/recordings.md)"
            raise SpecError(
                f"{path} is a recording of {found}, and holds no call of an attention layer: `mha where` reads it{more}"
            )
        arrays, text = read(path, key, what="recording")
        try:
            return cls(**described_in(arrays, text))
        except Exception as error:  # whatever a description of another form brings out
            lacks = f"it lacks {shown(repr(error.args[0]))}" if isinstance(error, KeyError) and error.args else ""
            reason = lacks or (str(error) if isinstance(error, SpecError) else one_line(error))
            raise SpecError(f"{path} is a recording that can't be used: {reason}") from error

    def _problem(self, call: RecordedCall) -> Problem:
        layer = self.layers[call.layer]
        return Problem(layer.config, layer.weights, call.inputs, call.outputs)


def is_recording(path: Path, *, modules: bool = True) -> bool:
    """Return whether a file has the metadata of `mha.capture`, even if the rest of the file is damaged.

    Args:
        path: the file.
        modules: whether a recording of modules that has no attention layers counts as one.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            return not {METADATA_KEY, *[OF_MODULES] * modules}.isdisjoint(file.metadata() or {})
    except (SafetensorError, OSError, TypeError, ValueError):
        return False


def _without_attention(path: str | os.PathLike[str]) -> str | None:
    """What a recording without attention layers is of, in words; None for any other file."""
    if holds_arrays(path):
        return "calls as plain arrays"
    metadata = read_header(path).metadata
    return "modules" if OF_MODULES in metadata and METADATA_KEY not in metadata else None


def check_target(path: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """Return the absolute path of a file to write a recording to.

    Raises:
        SpecError: the file can't be written, exists already without `overwrite`, or has the suffix of another format.
    """
    if Path(path).suffix in WEIGHTS and Path(path).suffix != ".safetensors":
        raise SpecError(f"a recording is a .safetensors file. Got {shown(path)}: write {Path(path).stem}.safetensors")
    return check_output(path, what="a recording", force="" if overwrite else "overwrite=True")


# Writing ------------------------------------------------------------------------------------------


def _describe_layer(pool: ArrayPool, layer: RecordedLayer) -> dict[str, Any]:
    start = f"{layer.name}." if layer.name else ""
    weights = {name: pool.add(f"{start}{name}", array, layer.held_in) for name, array in layer.weights.items()}
    about = {"name": layer.name, "kind": layer.kind, "dtype": layer.dtype}
    if layer.parameters is not None:
        about["parameters"] = layer.parameters
    return {**about, "config": layer.config.to_dict(), "weights": weights}


def _describe_call(
    pool: ArrayPool, prefix: str, call: RecordedCall, layers: tuple[RecordedLayer, ...]
) -> dict[str, Any]:
    dtype = layers[call.layer].dtype

    def add(name: str, value: Any) -> Any:
        return pool.add(f"{prefix}.{name}", np.asarray(value), dtype) if hasattr(value, "dtype") else value

    nested, rotary = ("mask", "rotary"), call.inputs.rotary
    return {
        "layer": call.layer,
        "inputs": {name: add(name, value) for name, value in _given(call.inputs).items() if name not in nested},
        "mask": {name: add(name, value) for name, value in _given(call.inputs.mask).items()},
        **({} if rotary is None else {"rotary": {name: add(name, value) for name, value in _given(rotary).items()}}),
        "outputs": {name: add(name, value) for name, value in call.outputs.items()},
        **({"assumed": call.assumed} if call.assumed else {}),
    }


def _describe_end(pool: ArrayPool, prefix: str, end: RecordedEnd) -> dict[str, Any]:
    arrays = {
        place: pool.add(".".join(filter(None, (prefix, place))), array, end.dtypes[place])
        for place, array in end.arrays.items()
    }
    return {"name": end.name, "kind": end.kind, "after": end.after, "arrays": arrays, "dtypes": dict(end.dtypes)}


def _given(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass whose values are not the defaults, by name: only these are written to the file."""
    values = ((own, getattr(instance, own.name)) for own in fields(instance))
    return {own.name: value for own, value in values if hasattr(value, "dtype") or value != own.default}


# Reads the description in a recording's file; every field is checked, because anybody may have written the file.


LONGEST_TEXT = 1000
"""Most characters that a name, a class or a version may have."""

Find = Callable[[Any], Any]
"""The array that a value in the description refers to, or the value itself."""


def described_in(arrays: Mapping[str, NDArray], text: str) -> dict[str, Any]:
    """Return the fields of the Recording that a file describes, as a dict.

    Args:
        arrays: name -> array of the file.
        text: the description, in JSON.

    Raises:
        SpecError: the text is no JSON object, has a newer format, or contradicts itself or the arrays.
        Exception: a field is missing (KeyError) or has a wrong type.
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
