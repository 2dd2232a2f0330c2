"""Calls as plain arrays, such as MODULE/CALL/inputs/NAME: a form that any program can write, without `mha.capture`."""

import os
from collections.abc import Mapping
from pathlib import Path

from numpy.typing import NDArray

from mha.formats import open_checkpoint
from mha.recordings.modules.names import CALL, FORM, PARAMETER, holds_arrays
from mha.recordings.modules.numbers import shape_and_numbers
from mha.recordings.modules.recording import ArrayAt, ModuleCall, ModuleRecording, Parameter, RecordedModule
from mha_core import SpecError


def open_modules(path: str | os.PathLike[str]) -> ModuleRecording:
    """Return the ModuleRecording in a file of `mha.capture` or of plain arrays (`.npz` or `.safetensors`).

    Raises:
        SpecError: the file is of another kind, or is damaged.
        FileNotFoundError: there is no such file.
    """
    return ArraysRecording(path) if holds_arrays(path) else ModuleRecording(path)


class ArraysRecording(ModuleRecording):
    """A recording that is read from a file of plain arrays.

    Names of arrays are MODULE/CALL/inputs/NAME, MODULE/CALL/outputs/NAME or MODULE/parameters/NAME. MODULE/ is left out
    for the model itself: "0/inputs/ids". CALL is the call's number among all calls, in the order in which they began. A
    call of "encoder.layer" is taken to be made by the last call of "encoder" before it.

    Raises:
        SpecError: an array's name has another form, a call has no output, or there is no call.
        FileNotFoundError: there is no such file.

    >>> import tempfile, numpy as np
    >>> arrays = {"0/inputs/x": np.ones(3), "norm/1/inputs/x": np.ones(3), "norm/1/outputs/y": np.zeros(3)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(folder + "/port.npz", **arrays, **{"0/outputs/y": np.zeros(3)})
    ...     found = ArraysRecording(folder + "/port.npz")
    >>> [(one.name, call.within) for one, call in zip(found.modules, found.calls)]
    [('', None), ('norm', 0)]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self.versions, self.scanned, self._metadata = Path(path), {}, (), {}
        self._arrays_by_name: dict[str, NDArray] = {}
        dtypes: dict[str, str] = {}
        with open_checkpoint(Path(path)) as checkpoint:
            for name, entry in checkpoint.entries.items():
                array = entry.load()
                dtypes[name] = array.dtype.name
                self._arrays_by_name[name] = array.astype("float32") if array.dtype.kind == "V" else array
        calls: dict[tuple[int, str], dict[str, list[ArrayAt]]] = {}
        parameters: dict[str, dict[str, NDArray]] = {}
        for name, array in self._arrays_by_name.items():
            if found := CALL.fullmatch(name):
                place = tuple((found["place"] or "").split("/")) if found["place"] else ()
                sides = calls.setdefault((int(found["call"]), found["module"] or ""), {"inputs": [], "outputs": []})
                sides[found["side"]].append(ArrayAt(place, name, dtypes[name], array.shape))
            elif found := PARAMETER.fullmatch(name):
                parameters.setdefault(found["module"] or "", {})[found["name"]] = array
            else:
                raise SpecError(f"{path} holds calls as arrays, whose names must be {FORM}. Got {name!r}.")
        ordered = sorted(calls, key=lambda one: (one[0], one[1].count("/") + one[1].count("."), one[1]))
        names = list(dict.fromkeys(module for _, module in ordered))
        made: list[ModuleCall] = []
        for number, module in ordered:
            sides = calls[number, module]
            if not sides["outputs"]:
                raise SpecError(f"{path}: call {number} of {module or 'the model'} has inputs and no outputs")
            around = [i for i, call in enumerate(made) if _is_inside(module, names[call.module])]
            within = max(around, key=lambda i: (len(names[made[i].module]), i), default=None)
            given, gave = tuple(sides["inputs"]), tuple(sides["outputs"])
            made.append(ModuleCall(names.index(module), within, given, gave, {}, ()))
        if not made:
            raise SpecError(f"{path} holds no call: its arrays must have the names {FORM}")
        self.calls = tuple(made)
        self.modules = tuple(RecordedModule(one, "arrays", _parameters_in(one, parameters)) for one in names)

    def array(self, at: ArrayAt) -> NDArray:
        """Return the numbers of an array."""
        return self._arrays_by_name[at.name]


def _is_inside(inner: str, outer: str) -> bool:
    return inner != outer and (not outer or inner.startswith((f"{outer}.", f"{outer}/")))


def _parameters_in(module: str, every: Mapping[str, Mapping[str, NDArray]]) -> dict[str, Parameter]:
    """The parameters in a module and in those inside it."""
    found: dict[str, NDArray] = {}
    for owner, own in every.items():
        if owner == module or _is_inside(owner, module):
            inner = owner[len(module) :].lstrip("./")
            found |= {"/".join(filter(None, (inner, name))): array for name, array in own.items()}
    return {name: Parameter(*shape_and_numbers(array, lambda one: one)) for name, array in found.items()}
