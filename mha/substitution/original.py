"""Original: a live model, run once to see its modules called, and then module by module in any dtype."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.coverage import kind_of
from mha.recordings.capture import hooks_of
from mha.recordings.modules.gradients import calling, floating
from mha.recordings.modules.numbers import Numbers, shape_and_numbers, total
from mha.recordings.modules.recording import Parameter
from mha.recordings.modules.values import Place, changed, leaves, snapshot
from mha_core import SpecError
from mha_core.capture import Pulled
from mha_core.errors import listed, one_line

PASSED = "given to a part"
"""How places start of what a module gives to a part of it."""

GAVE = "given by a part"
"""How places start of what a part gives, where that is asked for."""


@dataclass
class OriginalModule:
    """A module of the original. `held`: the module itself; `parameters`: name -> its shape and hashes."""

    name: str
    kind: str
    held: Any
    parameters: dict[str, Parameter] = field(default_factory=dict)

    @property
    def numbers(self) -> Numbers:
        """Return the `Numbers` of all its parameters together."""
        return total(one.numbers for one in self.parameters.values())

    @property
    def without_numbers(self) -> str | None:
        """Return the name of one parameter without data, such as on the meta device; None if all have data."""
        return next((name for name, one in self.parameters.items() if one.numbers.hashed is None), None)


@dataclass
class OriginalCall:
    """A call of one of the original's modules, as the model made it.

    Attributes:
        module: position of the module.
        within: position of the outer call during which this call was made; None for the model's own call.
        signature, arguments: the signature of the module, and name -> argument.
        given: key path -> input array, in NumPy.
        gave: key path -> output array, in NumPy; None if the call ended in an error.
        steady: whether the outputs were the same in a second run of the model.
    """

    module: int
    within: int | None
    signature: inspect.Signature
    arguments: dict[str, Any]
    given: dict[Place, NDArray]
    gave: dict[Place, NDArray] | None = None
    steady: bool = True

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the floating-point arrays in the output."""
        return tuple(array.shape for array in (self.gave or {}).values() if array.dtype.kind == "f")


class Original:
    """An original model with the calls of its modules on one batch of inputs.

    Args:
        model: the model, of any framework that `mha.capture` knows, in inference mode.
        inputs: the model's arguments, as name -> array, or in order.
        dtype: the dtype of the port's parameters, to which the original's are rounded before they are compared.

    Raises:
        SpecError: the model has active dropout, can't be run on the inputs, or has parameters without numbers.
    """

    def __init__(self, model: Any, inputs: Mapping[str, Any] | Sequence[Any], dtype: str) -> None:
        self.hooks = hooks_of(model)
        self.native = self.hooks.modules
        if self.native.is_training(model):
            raise SpecError(f"the original {kind_of(model)} drops out: give it in inference, such as model.eval()")
        self.modules: list[OriginalModule] = []
        self.calls: list[OriginalCall] = []
        self._open: list[tuple[int, Any]] = []
        self._only_whole: set[int] = set()
        self.ran_with: Mapping[str, Any] = {}
        """The arguments of the last run of a module, in which it may have left something, as in a cache."""
        self._places: dict[str, list[int]] = {}
        self._lacking = ""
        held = self.native.hold(model) if not hasattr(model, "scope") else None  # a bound module of linen has its own
        before = 0 if held is None else len(self.native.parameters_of(held))
        self._run(model, inputs)
        if held is not None and len(self.native.parameters_of(held)) != before:
            raise SpecError(
                f"the original {kind_of(model)} makes parameters when it is called: build it and load its weights first"
            )
        first, self.calls, seen = self.calls, [], len(self.modules)
        self._run(model, inputs)
        second, self.calls = self.calls, first
        del self.modules[seen:]  # called in the second run alone
        for one, other in zip(first, second, strict=False):
            one.steady = _same(one.gave or {}, other.gave or {})
        known: dict[int, tuple[Any, Parameter]] = {}
        for module in self.modules:
            for name, parameter in self.native.parameters_of(module.held).items():
                if id(parameter) not in known:
                    both = shape_and_numbers(parameter, self.native.numbers_in, dtype)
                    known[id(parameter)] = parameter, Parameter(*both)
                module.parameters[name] = known[id(parameter)][1]

    def _run(self, model: Any, inputs: Mapping[str, Any] | Sequence[Any]) -> None:
        native = {key: self._as_native(value) for key, value in dict(_by_name(inputs)).items()}
        args = [value for key, value in native.items() if isinstance(key, int)]
        kwargs = {key: value for key, value in native.items() if isinstance(key, str)}
        held = self.native.hold(model) if not hasattr(model, "scope") else None
        eagerly = getattr(self.native, "eagerly", nullcontext)
        try:
            with eagerly(), self.hooks.watch(model, lambda name, module: _OPEN, self._see, self._begin):
                if held is None:  # a bound module of linen
                    model(*args, **kwargs)
                else:
                    with self.native.computing(held, self._own_dtype(held)) as run:
                        run(*args, **kwargs)
        except SpecError:
            raise
        except (Exception, SystemExit) as error:  # whatever a model raises
            reason = one_line(error)
            if self._lacking:
                reason = f"{self._lacking} has no numbers: it is on the meta device, offloaded, or not initialised"
            elif kwargs and {*kwargs} <= {*_asked_by(model)}:
                reason += f". It was given {', '.join(f'{name} {tuple(np.shape(x))}' for name, x in kwargs.items())}"
            elif kwargs:
                taken = _taken_by(model) or [*kwargs]
                needed = _asked_by(model) or taken[:1]
                each = ", ".join([*(f"{name}=..." for name in needed), *["..."] * (len(taken) > len(needed))])
                reason += (
                    f". It was given {listed(list(kwargs), 8)}, and takes {listed(taken, 8)}. Give it what the port "
                    f'got under its own names: np.savez("inputs.npz", {each}), and --inputs inputs.npz, or inputs='
                )
            raise SpecError(f"the original {kind_of(model)} can't be run on the inputs: {reason}") from error

    def _own_dtype(self, held: Any) -> str:
        """The dtype of most parameters."""
        names = []
        for name, one in self.native.parameters_of(held).items():
            try:
                names.append(self.native.numbers_in(one).dtype.name)
            except Exception:  # each framework has its own for what is not there
                self._lacking = self._lacking or name
        return max(dict.fromkeys(names), key=names.count, default="float32")

    def _as_native(self, value: Any) -> Any:
        return changed(
            value, lambda place, leaf: self.native.to_native(leaf, None) if isinstance(leaf, np.ndarray) else leaf
        )

    def _begin(self, name: str, module: Any, call: inspect.BoundArguments | None) -> None:
        if call is None:  # scanned, and rematerialised in its backward pass
            return
        arguments = changed(dict(call.arguments), lambda place, leaf: self._snapshot(leaf))
        self._open.append((len(self.calls), module))
        within = self._open[-2][0] if len(self._open) > 1 else None
        self.calls.append(
            OriginalCall(self._position(name, module), within, call.signature, arguments, self.arrays(arguments))
        )

    def _see(self, name: str, module: Any, arguments: Any, output: Any) -> None:
        while self._open:
            position, own = self._open.pop()
            if own is module:
                self.calls[position].gave = self.arrays(output)
                return

    def _position(self, name: str, module: Any) -> int:
        places = self._places.setdefault(name, [])
        for position in places:
            if self.native.is_part(self.modules[position].held, self.modules[0].held, name, module):
                return position
        own = f"{name}#{len(places) + 1}" if places else name  # as in recordings
        places.append(len(self.modules))
        self.modules.append(OriginalModule(own, kind_of(module), self.native.hold(module)))
        return places[-1]

    def _snapshot(self, leaf: Any) -> Any:
        return snapshot(leaf, self._array)

    def is_leaf(self, call: OriginalCall) -> bool:
        """Return whether the call made no other call."""
        return id(call) not in self._outer

    @cached_property
    def _outer(self) -> set[int]:
        return {id(self.calls[call.within]) for call in self.calls if call.within is not None}

    def _is_itself(self, position: int) -> bool:
        """Whether what is held of a module is what `watch` tells of it."""
        held = self.modules[position].held
        return bool(self.native.is_part(held, held, "of any name", held))

    def arrays(self, value: Any) -> dict[Place, NDArray]:
        """Return a dict of the arrays in an input or output of a module: key path -> NumPy array."""
        found = ((place, self._array(leaf)) for place, leaf in leaves(value))
        return {place: one for place, one in found if one is not None and one.dtype.kind in "fiub"}

    def _array(self, leaf: Any) -> NDArray | None:
        """A leaf in NumPy; None for what is no array, or one without numbers that can be read."""
        try:
            found = self.hooks.as_array(leaf)
        except Exception:  # sparse, nested, on the meta device
            return None
        return None if found is None else found[0]

    def run(
        self,
        call: OriginalCall,
        givens: Sequence[Mapping[Place, NDArray]],
        dtype: str,
        replace: Mapping[int, Sequence[Mapping[Place, NDArray]]] = {},
        *,
        tell: bool = False,
    ) -> list[dict[Place, NDArray]]:
        """Run a module alone in `dtype`, once for each entry of `givens`. Return a dict per run: key path -> output.

        Args:
            call: the call of the module whose arguments are used.
            givens: for each run, a dict: key path -> array that replaces an input of the call.
            replace: position of a submodule -> a dict for each of its calls: key path -> array that replaces an output.
                The results include the inputs of these submodules, at key paths (PASSED, position, call number, ...).
            tell: whether the results include these submodules' outputs too, at (GAVE, position, call number, ...).

        Raises:
            SpecError: the module can't be run on these arrays.
        """
        held = self.modules[call.module].held

        def all_in(computing: Callable[..., Any]) -> list[dict[Place, NDArray]]:
            with computing(held, dtype) as run:
                return [self._run_once(run, call, given, dtype, replace=replace, tell=tell) for given in givens]

        piecemeal = getattr(self.native, "computing_piecemeal", None)
        if piecemeal is not None and call.module not in self._only_whole:
            try:
                return all_in(piecemeal)
            except (Exception, SystemExit):  # it may keep its parameters in another place too
                self._only_whole.add(call.module)
        try:
            return all_in(self.native.computing)
        except (Exception, SystemExit) as error:  # whatever a module raises on a port's inputs
            raise SpecError(f"the original can't be run on it in {dtype}: {one_line(error)}") from error

    def pull(
        self, call: OriginalCall, given: Mapping[Place, NDArray], cotangents: Mapping[Place, NDArray], dtype: str
    ) -> Pulled:
        """Return a module's outputs and gradients in `dtype`. SpecError if it can't be run.

        `given`: key path -> array that replaces an input. `cotangents`: key path of an output -> its gradient.
        """

        def native(place: Place, leaf: Any) -> Any:
            own = self.hooks.as_array(leaf)
            array = given.get(place, None if own is None or own[0].dtype.kind != "f" else own[0])
            return leaf if array is None else self.native.to_native(array, dtype)

        try:
            arguments = changed(call.arguments, native)
            run = calling(self.hooks.as_array, call.signature, arguments)
            inputs = floating(self.hooks.as_array, arguments)
            held = self.modules[call.module].held
            pulled: Pulled = self.native.pulled(held, dtype, run, inputs, cotangents)
        except Exception as error:  # whatever a module raises on a port's inputs
            raise SpecError(f"the original can't be run backward on it in {dtype}: {one_line(error)}") from error
        return pulled

    def _run_once(
        self,
        run: Callable[..., Any],
        call: OriginalCall,
        given: Mapping[Place, NDArray],
        dtype: str,
        *,
        replace: Mapping[int, Sequence[Mapping[Place, NDArray]]],
        tell: bool,
    ) -> dict[Place, NDArray]:
        turns = dict.fromkeys(replace, 0)

        def native(place: Place, leaf: Any) -> Any:
            found = given.get(place)
            if found is None:
                found = self._array(leaf)
                if found is None:
                    return self._snapshot(leaf)
                if found.dtype.kind != "f":
                    return leaf
            return self.native.to_native(found, dtype)

        held = self.modules[call.module].held
        by_id = {id(self.modules[one].held): one for one in replace}
        others = [one for one in replace if not self._is_itself(one)]  # of linen, whose modules are made anew

        def choose(name: str, inner: Any) -> Any:
            inside = (one for one in others if self.native.is_part(self.modules[one].held, held, name, inner))
            position = by_id.get(id(inner), next(inside, None))
            return None if position is None else _Which(position)

        def seen(name: str, inner: Any, arguments: Any, output: Any) -> Any:
            which = choose(name, inner).position
            turn, turns[which] = turns[which], turns[which] + 1
            instead = replace[which][turn] if turn < len(replace[which]) else {}
            own = self.arrays(output) if tell else {}
            passed.update({(GAVE, str(which), str(turn), *place): array for place, array in own.items()})
            return changed(
                output, lambda place, leaf: self.native.to_native(instead[place], dtype) if place in instead else leaf
            )

        def begun(name: str, inner: Any, its_call: inspect.BoundArguments | None) -> None:
            if its_call is None:
                return
            which = choose(name, inner).position
            given = self.arrays(dict(its_call.arguments))
            passed.update({(PASSED, str(which), str(turns[which]), *place): array for place, array in given.items()})

        passed: dict[Place, NDArray] = {}
        bound = inspect.BoundArguments(call.signature, changed(call.arguments, native))
        self.ran_with = bound.arguments
        if not replace:
            return self.arrays(run(*bound.args, **bound.kwargs))
        target = getattr(run.func, "__self__", None) if isinstance(run, partial) else held  # `module.apply` of linen
        with self.hooks.watch(target, choose, seen, begun):
            return {**self.arrays(run(*bound.args, **bound.kwargs)), **passed}


class _Open:
    """The adapter of every module of the original."""

    open = True


_OPEN = _Open()


class _Which(_Open):
    """The adapter of a module whose output is replaced: its position."""

    def __init__(self, position: int) -> None:
        self.position = position


def _by_name(inputs: Mapping[str, Any] | Sequence[Any]) -> Mapping[Any, Any]:
    return inputs if isinstance(inputs, Mapping) else dict(enumerate(inputs))


def _same(one: Mapping[Place, NDArray], other: Mapping[Place, NDArray]) -> bool:
    """Whether the arrays are the same to the bit, NaN for NaN."""
    return one.keys() == other.keys() and all(
        np.array_equal(array, other[place], equal_nan=array.dtype.kind == "f") for place, array in one.items()
    )


def _asked_by(model: Any) -> list[str]:
    """The arguments without a default of what a model is called as; [] where that can't be read."""
    return _taken_by(model, lambda one: one.default is one.empty)


def _taken_by(model: Any, counts: Callable[[inspect.Parameter], bool] = lambda one: True) -> list[str]:
    """The arguments, or those that count, of what a model is called as; [] where that can't be read."""
    called = next((found for name in ("forward", "call", "__call__") if (found := getattr(model, name, None))), None)
    try:
        parameters = inspect.signature(called).parameters.values() if called is not None else ()
    except (TypeError, ValueError):
        return []
    named = (one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY))
    return [one.name for one in named if counts(one)]
