"""ModuleRecorder: notes what every module of a model is given and gives, in the order in which calls begin."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import count
from typing import Any

import numpy as np

from mha.coverage import kind_of
from mha.recordings.modules.gradients import GradientRecorder
from mha.recordings.modules.numbers import shape_and_numbers
from mha.recordings.modules.stream import ArrayStream
from mha.recordings.modules.values import DEEPEST, named, parts_of
from mha_core import SpecError
from mha_core.errors import one_line, shown

FORMAT = 2
"""Of the description of modules in a recording's metadata."""

METADATA_KEY = "mha_modules"

LIMIT = 8 * 2**30
"""Bytes of arrays that a recording holds unless another limit is said."""


class ModuleRecorder:
    """A recorder of the inputs and outputs of a model's modules.

    Args:
        hooks: the framework's hooks.
        target: the model.
        stream: the stream that the arrays are written to.
        depth: the number of nested levels to record (1: the model's direct submodules). None: all.
        only: names of the modules to record; wildcards work. The model itself is always recorded.
        gradients: whether the gradients of each call are recorded too.

    Raises:
        SpecError: the model is in training mode, with dropout.
    """

    open = True
    """Modules inside are chosen as well: see `mha_core.capture.outermost`."""

    reads = False
    """At the end of a call only its output is looked at."""

    def __init__(
        self,
        hooks: Any,
        target: Any,
        stream: ArrayStream,
        *,
        depth: int | None = None,
        only: Sequence[str] = ("*",),
        gradients: bool = False,
    ) -> None:
        self._hooks, self._stream, self._depth, self._only = hooks, stream, depth, only
        self._target = target
        if hooks.modules.is_training(target):
            raise SpecError(f"{kind_of(target)} drops out: record a model in inference, such as model.eval()")
        self._held: dict[str, Any] = {}
        self._kinds: dict[str, str] = {}
        self._calls: list[dict[str, Any]] = []
        self._scanned: list[str] = []
        self._open: list[tuple[int, Any]] = []
        self._paused = False
        self._arrays = False
        self._unread = ""
        self._gradients = GradientRecorder(hooks, stream) if gradients else None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Return a context in which calls are not recorded, for calls that the model itself does not make."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def choose(self, name: str, module: Any) -> ModuleRecorder | None:
        """Return this recorder if the module is to be recorded, else None."""
        if not name:
            return self
        deep = len(name.replace("/", ".").split("."))
        if self._depth is not None and deep > self._depth:
            return None
        return self if any(fnmatchcase(name, pattern) for pattern in self._only) else None

    def begun(self, name: str, module: Any, call: inspect.BoundArguments | None) -> None:
        """Record a module's inputs, before it runs: it may change them. `call=None`: the inputs can't be read."""
        if self._paused:
            return
        if call is None:
            self._scanned.append(name)
            return
        if self._hooks.modules.is_training(module):
            raise SpecError(f"{name or 'the model'} drops out: record a model in inference")
        name = self._own_name(name, module)
        parent = self._open[-1][0] if self._open else None
        given = {key: self._described(value) for key, value in named(call).items()}
        self._open.append((len(self._calls), module))
        self._calls.append({"module": name, "within": parent, "given": given})
        if self._gradients is not None:
            self._gradients.begun(len(self._calls) - 1, call)

    def _own_name(self, name: str, module: Any) -> str:
        """The module's name; with a number, if another one was called by it."""
        own, modules = name, self._hooks.modules
        for number in count(2):
            if own not in self._held:
                self._held[own], self._kinds[own] = modules.hold(module), kind_of(module)
                return own
            if modules.is_part(self._held[own], self._held.get("", self._held[own]), name, module):
                return own
            own = f"{name}#{number}"
        raise AssertionError

    def see(self, name: str, module: Any, arguments: Mapping[str, Any], output: Any) -> Any:
        """Record a call's output. Return a copy that passes gradients on if gradients are recorded, else None."""
        while (
            self._open and not self._paused
        ):  # calls that ended in an error which the model caught are left open above it
            position, own = self._open.pop()
            if own is module:
                self._calls[position]["gave"] = self._described(output)
                return None if self._gradients is None else self._gradients.tapped(position, output)
        return None

    def describe(self, versions: Mapping[str, str]) -> str:
        """Return the description of the recorded modules and calls as JSON. SpecError if there was no call."""
        if not self._calls:
            raise SpecError("nothing to record: no module was called")
        if not self._arrays:
            raise SpecError(
                f"nothing to record: no module was given or gave an array of numbers, but {self._unread or 'none'}"
            )
        if self._gradients is not None:
            self._gradients.finish(self._calls, self._held)
        known: dict[int, tuple[Any, list[Any]]] = {}  # parameters stay alive, so that an id means one of them

        def numbers(parameter: Any) -> list[Any]:
            if id(parameter) not in known:
                shape, own, order = shape_and_numbers(parameter, self._hooks.modules.numbers_in)
                hashed = None if own.hashed is None else str(own.hashed)
                known[id(parameter)] = parameter, [shape, hashed, None if order is None else [*map(str, order)]]
            return known[id(parameter)][1]

        modules = [
            {
                "name": name,
                "kind": self._kinds[name],
                "parameters": {key: numbers(one) for key, one in self._hooks.modules.parameters_of(held).items()},
                **self._values(held),
            }
            for name, held in self._held.items()
        ]
        place = {name: position for position, name in enumerate(self._held)}
        calls = [{**call, "module": place[call["module"]]} for call in self._calls]
        found = {"format": FORMAT, "versions": dict(versions), "modules": modules, "calls": calls}
        return json.dumps(found | ({"scanned": list(dict.fromkeys(self._scanned))} if self._scanned else {}))

    def _values(self, held: Any) -> dict[str, Any]:
        """The numbers of a module's parameters, which say where each stands in the original's."""
        if self._gradients is None:
            return {}
        modules = self._hooks.modules
        found = {key: modules.numbers_in(one) for key, one in modules.parameters_of(held).items()}
        return {"values": {key: self._stream.add(array) for key, array in found.items()}}

    def _described(self, value: Any, depth: int = 0) -> Any:
        """A value in JSON: arrays by reference, plain values as they are, all else by its class."""
        try:
            found = self._hooks.as_array(value)
        except Exception as error:  # sparse, nested, on the meta device
            reason = str(error) if isinstance(error, SpecError) else one_line(error)
            self._unread = self._unread or reason
            return {"unread": f"{kind_of(value)}: {reason}"}
        if found is None and isinstance(value, np.ndarray):
            found = value, value.dtype.name
        if found is not None:
            array, dtype = found
            if array.dtype.kind not in "fiub":
                return {"unread": f"array of {array.dtype}"}
            self._arrays = True
            return {"array": self._stream.add(array), "dtype": dtype}
        if value is None or isinstance(value, bool | int | str):
            return {"is": value if not isinstance(value, str) else shown(value)}
        if isinstance(value, float):
            return {"is": value if np.isfinite(value) else str(value)}
        parts = parts_of(value) if depth < DEEPEST else None
        if parts is None:
            return {"unread": kind_of(value)}
        return {"parts": [[name, self._described(part, depth + 1)] for name, part in parts], "kind": kind_of(value)}
