"""GradientRecorder: gradients with respect to modules' outputs, and from them those of inputs and parameters.

Only the gradients with respect to outputs are read off the model's backward pass. From them, each call of a module is
run forward and backward once more, by itself and on the recorded inputs. So a parameter's gradient is that of one call,
not the sum over all its uses, and the model's own sums are made in the same order as without a recorder.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.recordings.modules.stream import ArrayStream
from mha.recordings.modules.values import Place, changed, leaves, named, snapshot
from mha_core import SpecError
from mha_core.capture import Pulled
from mha_core.errors import one_line

NO_PASS = (
    "no gradient came back to what the model gave: call the backward pass within mha.capture(..., gradients=True), "
    "of outputs that have gradients"
)

TWICE = "the backward pass ran twice within mha.capture(..., gradients=True): run one"


@dataclass
class _Call:
    """What a call was given, with its arrays as the framework's; what it gave, and the gradients that came back."""

    signature: inspect.Signature
    arguments: dict[str, Any]
    named: Mapping[Place, Place]
    gave: dict[Place, bytes] = field(default_factory=dict)
    cotangents: dict[Place, tuple[Any, str]] = field(default_factory=dict)


class GradientRecorder:
    """A recorder of the gradients in the calls of a model's modules.

    Args:
        hooks: the framework's hooks.
        stream: the stream that the arrays are written to.
    """

    def __init__(self, hooks: Any, stream: ArrayStream) -> None:
        self._hooks, self._stream = hooks, stream
        self._calls: dict[int, _Call] = {}
        self._twice = False

    def begun(self, position: int, call: inspect.BoundArguments) -> None:
        """Keep the arguments of a call."""
        valued = getattr(self._hooks.modules, "valued", lambda leaf: leaf)
        arguments = changed(dict(call.arguments), lambda place, leaf: valued(snapshot(leaf, self._hooks.as_array)))
        places = inspect.BoundArguments(call.signature, changed(arguments, lambda place, leaf: _Standing(place)))
        own = {leaf.place: place for place, leaf in leaves(named(places))}
        self._calls[position] = _Call(call.signature, arguments, own)

    def tapped(self, position: int, output: Any) -> Any:
        """Return a copy of the output of call `position`. The backward pass gives its gradients to this recorder."""
        call = self._calls[position]

        def tap(place: Place, leaf: Any) -> Any:
            found = self._hooks.as_array(leaf)
            if found is None or found[0].dtype.kind != "f":
                return leaf
            array, dtype = found
            call.gave[place] = self._stream.digest(array)

            def note(gradient: Any) -> None:
                self._twice = self._twice or place in call.cotangents
                call.cotangents[place] = gradient, dtype

            alias = self._hooks.modules.tapped(leaf, note)
            return leaf if alias is None else alias

        return changed(output, tap)

    def finish(self, calls: Sequence[dict[str, Any]], held: Mapping[str, Any]) -> None:
        """Add gradients with respect to outputs, inputs and parameters to the dicts `calls`. `held`: name -> module.

        Raises:
            SpecError: no gradients reached the model's outputs, or more than one backward pass ran.
        """
        getattr(self._hooks.modules, "settle", lambda: None)()
        if self._twice:
            raise SpecError(TWICE)
        if not any(call.cotangents for call in self._calls.values()):
            raise SpecError(NO_PASS)
        for position, call in self._calls.items():
            read = self._hooks.as_array
            call.cotangents = {place: (read(one)[0], dtype) for place, (one, dtype) in call.cotangents.items()}
            about = calls[position]
            if not call.cotangents or "gave" not in about:
                continue
            about["cotangents"] = [
                self._described(place, array, dtype) for place, (array, dtype) in call.cotangents.items()
            ]
            try:
                found = self._pulled(held[about["module"]], call)
            except Exception as error:  # whatever a module raises that runs once more
                about["unpulled"] = f"it can't be run backward by itself: {one_line(error)}"
                continue
            if any(self._stream.digest(found.outputs[place]) != name for place, name in call.gave.items()):
                about["unpulled"] = "it gives something else when it runs again"
                continue
            dtypes = dict(self._floating(call.arguments))
            about["gradients"] = [
                self._described(call.named[place], array, dtypes[place]) for place, array in found.inputs.items()
            ]
            about["parameter_gradients"] = [
                self._described((name,), array, array.dtype.name) for name, array in found.parameters.items()
            ]

    def _floating(self, value: Any) -> list[tuple[Place, str]]:
        found = ((place, self._hooks.as_array(leaf)) for place, leaf in leaves(value))
        return [(place, one[1]) for place, one in found if one is not None and one[0].dtype.kind == "f"]

    def _pulled(self, held: Any, call: _Call) -> Pulled:
        inputs = dict(leaves(call.arguments))
        inputs = {place: inputs[place] for place, _ in self._floating(call.arguments)}
        return self._hooks.modules.pulled(
            held,
            None,
            calling(self._hooks.as_array, call.signature, call.arguments),
            inputs,
            {place: array for place, (array, _) in call.cotangents.items()},
        )

    def _described(self, place: Place, array: NDArray, dtype: str) -> list[Any]:
        return [list(place), self._stream.add(np.asarray(array)), dtype]


def calling(as_array: Callable[[Any], Any], signature: inspect.Signature, arguments: Mapping[str, Any]) -> Any:
    """Return a function (run, inputs) -> outputs. It calls `run` on `arguments`, after replacing some by `inputs`.

    `inputs`: key path -> array. Outputs: key path -> floating-point array. `signature`: the signature of `run`.
    """

    def call(run: Callable[..., Any], inputs: Mapping[Place, Any]) -> dict[Place, Any]:
        own = changed(
            arguments,
            lambda place, leaf: inputs[place] if place in inputs else snapshot(leaf, as_array),
        )
        bound = inspect.BoundArguments(signature, own)
        return floating(as_array, run(*bound.args, **bound.kwargs))

    return call


def floating(as_array: Callable[[Any], Any], output: Any) -> dict[Place, Any]:
    """Return a dict of the floating-point arrays in an output: key path -> array of the framework."""
    return {place: leaf for place, leaf in leaves(output) if is_floating(as_array, leaf)}


def is_floating(as_array: Callable[[Any], Any], leaf: Any) -> bool:
    """Return whether a leaf is an array of floating-point numbers."""
    found = as_array(leaf)
    return found is not None and found[0].dtype.kind == "f"


class _Standing:
    """Stands for what was given at a place."""

    def __init__(self, place: Place) -> None:
        self.place = place
