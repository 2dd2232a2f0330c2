"""ModuleRecording: the modules of a recorded model and their calls, whose arrays are read when they are asked for."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from safetensors import safe_open

from mha.recordings.modules.names import header_of
from mha.recordings.modules.numbers import Numbers, Order, total, unknown
from mha.recordings.modules.recorder import FORMAT, METADATA_KEY
from mha.recordings.modules.values import Place
from mha_core import SpecError
from mha_core.dtypes import DTYPES
from mha_core.errors import LONGEST_MESSAGE, LONGEST_REASON, one_line, shown
from mha_core.files.mistaken import taken_by
from mha_core.files.outside import parse_json_object

if TYPE_CHECKING:
    from conformance.cases.problem import Problem
    from mha.recordings.recording import Recording


@dataclass(frozen=True)
class Parameter:
    """A parameter of a recorded module: its shape, and hashes in place of its array (`Numbers` and `Order`)."""

    shape: tuple[int, ...]
    numbers: Numbers
    order: Order | None = None


@dataclass(frozen=True)
class RecordedModule:
    """A module of the model.

    Attributes:
        name: its name in the model; "" for the model itself.
        kind: its class.
        parameters: name -> Parameter, for its parameters and those of the modules inside it.
        values: name of a parameter -> name of its array in the file; {} unless gradients were recorded.
    """

    name: str
    kind: str
    parameters: Mapping[str, Parameter]
    values: Mapping[str, str] = field(default_factory=dict)
    """Name of a parameter -> that of its array in the file, where gradients were recorded."""

    @cached_property
    def numbers(self) -> Numbers:
        """Return the `Numbers` of all its parameters together."""
        return total(one.numbers for one in self.parameters.values())


@dataclass(frozen=True)
class ArrayAt:
    """An array in a recorded call.

    Attributes:
        place: its path among the arguments or in the output, such as ("hidden_states",) or ("0",).
        name: its name in the file.
        dtype: the dtype of its numbers; the file holds bfloat16 numbers as float32.
        shape: its shape.
    """

    place: Place
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def floating(self) -> bool:
        """Return whether the array holds floating-point numbers."""
        return self.dtype in DTYPES


@dataclass(frozen=True)
class ModuleCall:
    """A call of a module.

    Attributes:
        module: position of the module in the recording.
        within: position, among all calls, of the call that made this one; None if that was not recorded.
        given, gave: the arrays in the inputs and in the output; `gave` is None if the call ended in an error.
        plain: key path -> value, for inputs that are no arrays.
        unread: (key path, class) of each input and output that could not be recorded.
        unread_outputs: the outputs in `unread`.
        cotangents: the loss's gradients with respect to the outputs; () if none were recorded.
        gradients, parameter_gradients: the loss's gradients with respect to inputs and to parameters, computed
            from `cotangents`; None if that failed.
        unpulled: why computing them failed; "" if it did not.
    """

    module: int
    within: int | None
    given: tuple[ArrayAt, ...]
    gave: tuple[ArrayAt, ...] | None
    plain: Mapping[Place, Any]
    unread: tuple[tuple[Place, str], ...]
    unread_outputs: tuple[tuple[Place, str], ...] = ()
    cotangents: tuple[ArrayAt, ...] = ()
    gradients: tuple[ArrayAt, ...] | None = None
    parameter_gradients: tuple[ArrayAt, ...] | None = None
    unpulled: str = ""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the floating-point arrays in the output."""
        return tuple(at.shape for at in self.gave or () if at.floating)


class ModuleRecording:
    """A recording of modules, as `mha.capture(..., modules=True)` wrote it.

    Args:
        path: the file.

    Raises:
        SpecError: the file is not whole, holds no modules, has a newer format, or contradicts itself.
        FileNotFoundError: there is no such file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        header = header_of(path)
        metadata = self._metadata = header.metadata
        if METADATA_KEY not in metadata:
            if not {"mha_recording"} & metadata.keys():
                raise SpecError(f"{path} is no recording: {taken_by(path)}")
            raise SpecError(f"{path} holds no modules: record the port with mha.capture(port, FILE, modules=True)")
        try:
            self._file = safe_open(path, framework="numpy")
            self._names = {plain(name): name for name in header.arrays}
            self._shapes = {name: tuple(self._file.get_slice(own).get_shape()) for name, own in self._names.items()}
            found = plain(parse_json_object(metadata[METADATA_KEY], what=f"the modules in {path}"))
            if found["format"] != FORMAT:
                raise SpecError(f"its format is {found['format']}, and this release reads {FORMAT}")
            self.versions: dict[str, str] = found["versions"]
            self.modules = tuple(_module(one) for one in found["modules"])
            self.scanned = tuple(map(str, found.get("scanned", ())))
            self.calls = tuple(self._call(one, position) for position, one in enumerate(found["calls"]))
            _check_each_called(self.modules, self.calls)
            for name, array in ((name, array) for one in self.modules for name, array in one.values.items()):
                if not isinstance(array, str) or array not in self._names:
                    raise SpecError(f"{name!r} has an array of the name {shown(repr(array))}, which is not there")
        except Exception as error:  # whatever a description of another form brings out, or the package safetensors
            reason = error if isinstance(error, SpecError) else one_line(error)
            raise SpecError(f"{path} is a recording of modules that can't be used: {reason}") from error
        if not self.calls:
            raise SpecError(f"{path} holds no call of a module")

    def array(self, at: ArrayAt) -> NDArray:
        """Return the array itself, read from the file. SpecError if the file is damaged."""
        try:
            found: NDArray = self._file.get_tensor(self._names[at.name])
        except Exception as error:
            raise SpecError(f"{self.path} is damaged: {at.name} can't be read: {one_line(error)}") from error
        return found

    def problem_of(self, call: ModuleCall) -> Problem | None:
        """Return the call as a Problem if it was also recorded as a call of an attention layer; else None."""
        if self.attention is None:
            return None
        name, own = self.modules[call.module].name, [one for one in self.calls if one.module == call.module]
        attention = [
            problem
            for position, problem in enumerate(self.attention.problems)
            if self.attention.layer_of(position).name == name
        ]
        return attention[own.index(call)] if len(attention) == len(own) else None

    @cached_property
    def attention(self) -> Recording | None:
        """Return the recording of attention layers in the same file; None if there is none."""
        from mha.recordings.recording import METADATA_KEY as ATTENTION
        from mha.recordings.recording import Recording

        return Recording.load(self.path) if ATTENTION in self._metadata else None

    @property
    def not_recorded(self) -> dict[str, int]:
        """Return name -> parameter count, for submodules whose calls were not recorded because JAX traced them."""
        found = {}
        for name in self.scanned:
            turn = re.compile(rf"{re.escape(name)}(/\d+)?(/.*)?")
            if not any(turn.fullmatch(one.name) for one in self.modules):
                own = self.modules[0].parameters.items()
                found[name] = sum(one.numbers.size for key, one in own if key.startswith(f"{name}/"))
        return found

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return sentences on `not_recorded`."""
        return tuple(
            f"Not recorded: the layers in {name} ({size:,} parameters), which JAX traces (nn.scan, nn.remat). They are "
            "judged as lines of the model. Call it within jax.disable_jit(), and without nn.remat, to record each."
            for name, size in self.not_recorded.items()
        )

    @property
    def has_gradients(self) -> bool:
        """Return whether gradients were recorded."""
        return any(call.cotangents for call in self.calls)

    def numbers(self, name: str) -> NDArray:
        """Return the array of a parameter by its name in the file."""
        return self.array(ArrayAt((), name, "", self._shapes[name]))

    @cached_property
    def dtype(self) -> str:
        """Return the most frequent dtype of the modules' output arrays; the widest, if several are most frequent."""
        names = [at.dtype for call in self.calls for at in call.gave or () if at.floating]
        if not names:
            raise SpecError(f"no module in {self.path} gave an array of floating-point numbers")
        return max(dict.fromkeys(names), key=lambda name: (names.count(name), -DTYPES.index(name)))

    def _call(self, found: Mapping[str, Any], position: int) -> ModuleCall:
        module, within = found["module"], found["within"]
        own = type(module) is int and 0 <= module < len(self.modules)
        if not own or not (within is None or (type(within) is int and 0 <= within < position)):
            raise SpecError(f"call {position} names a module or a call that is not there")
        given = list(_values(found["given"]))
        gave = None if "gave" not in found else list(_values([["", found["gave"]]]))
        return ModuleCall(
            module,
            within,
            self._arrays(given),
            None if gave is None else self._arrays(gave),
            {place: value["is"] for place, value in given if "is" in value},
            _unread([*given, *(gave or [])]),
            _unread(gave or []),
            self._listed(found.get("cotangents", [])),
            self._listed(found["gradients"]) if "gradients" in found else None,
            self._listed(found["parameter_gradients"]) if "gradients" in found else None,
            str(found.get("unpulled", "")),
        )

    def _listed(self, found: Any) -> tuple[ArrayAt, ...]:
        return tuple(ArrayAt(tuple(place), name, dtype, self._shapes[name]) for place, name, dtype in found)

    def _arrays(self, values: list[tuple[Place, Mapping[str, Any]]]) -> tuple[ArrayAt, ...]:
        arrays = ((place, value["array"], value["dtype"]) for place, value in values if "array" in value)
        return tuple(ArrayAt(place, name, dtype, self._shapes[name]) for place, name, dtype in arrays)


def plain(found: Any) -> Any:
    """Return JSON data with unprintable characters in names and classes escaped.

    A string under the dict key "is" was an input of a recorded module. It stays unchanged, to run the original with it.
    """
    if isinstance(found, str):
        return shown(found, LONGEST_MESSAGE)
    if isinstance(found, dict):
        return {plain(name): value if name == "is" else plain(value) for name, value in found.items()}
    return [plain(value) for value in found] if isinstance(found, list) else found


def _check_each_called(modules: tuple[RecordedModule, ...], calls: tuple[ModuleCall, ...]) -> None:
    """SpecError if a name stands twice, or a module was never called: only those that were are recorded."""
    names = [module.name for module in modules]
    if twice := [name for name, often in Counter(names).items() if often > 1]:
        raise SpecError(f"two modules have the name {twice[0]!r}")
    if uncalled := set(range(len(modules))) - {call.module for call in calls}:
        raise SpecError(f"no call is of module {min(uncalled)}, {names[min(uncalled)]!r}")


def _module(found: Mapping[str, Any]) -> RecordedModule:
    parameters = {}
    for name, (shape, hashed, order) in found["parameters"].items():
        if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
            raise SpecError(f"the shape of {name!r} must be a list of sizes. Got {shown(repr(shape))}.")
        numbers = Numbers(math.prod(shape), int(hashed)) if hashed is not None else unknown(shape)
        parameters[name] = Parameter(tuple(shape), numbers, None if order is None else Order(*map(int, order)))
    return RecordedModule(str(found["name"]), str(found["kind"]), parameters, dict(found.get("values", {})))


def _unread(values: list[tuple[Place, Mapping[str, Any]]]) -> tuple[tuple[Place, str], ...]:
    return tuple((place, shown(value["unread"], LONGEST_REASON)) for place, value in values if "unread" in value)


def _values(described: Any, place: Place = ()) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """Place and description of each value; "" at the start of a place stands for the value itself."""
    parts = described.items() if isinstance(described, Mapping) else described
    for name, value in parts:
        inner = (*place, str(name)) if name != "" or place else place
        if "parts" in value:
            yield from _values(value["parts"], inner)
        else:
            yield inner, value
