"""Live: a layer, a model or a function as it is asked here, with NumPy arrays in and out, in any dtype."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property
from itertools import count
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.coverage import kind_of
from mha.invariance.given import Given, Ref
from mha.recordings.hooks import hooks_of
from mha.recordings.modules.values import Place, changed, leaves
from mha_core import SpecError
from mha_core.dtypes import storage_dtype
from mha_core.errors import one_line

LARGE = 20_000_000
"""A model with more parameters than this is not copied for each relation."""


class _Open:
    """An adapter that lets the modules inside its own be seen too."""

    open = True


_OPEN = _Open()


class FirstOf:
    """A function that calls `both()`, which returns (model, inputs), and returns the model.

    `inputs`: the inputs that an earlier call of `both` returned, to find out later whether others are this object.
    """

    def __init__(self, both: Callable[[], tuple[Any, Any]], inputs: Any) -> None:
        self.both, self.inputs = both, inputs

    def __call__(self) -> Any:
        return self.both()[0]


class Live:
    """A model of PyTorch, Keras, Flax or Gluon, or a function of arrays.

    Args:
        model: the model; a module of linen must be bound to its variables.
        make: a function that makes another such model; None if there is no such function.

    Raises:
        SpecError: `model` is no such model or function, or its parameters have no numbers.
    """

    def __init__(self, model: Any, make: Callable[[], Any] | None = None) -> None:
        self.model, self.make = model, make
        self.compiled = model if hasattr(model, "_orig_mod") else None
        self.asked = model if self.compiled is None else model._orig_mod
        try:
            self.hooks: Any = hooks_of(self.asked)
        except SpecError:
            self.hooks = None
        if self.hooks is None and not callable(model):
            raise SpecError(
                "a model of PyTorch, Keras, Flax or Gluon, or a function, is asked: name one, or a function that "
                f"returns one. Got an object of type {kind_of(model).removeprefix('builtins.')}."
            )
        self.native: Any = None if self.hooks is None else self.hooks.modules
        self.linen = hasattr(self.asked, "scope") and self.native is not None
        if self.linen and self.asked.scope is None:
            raise SpecError(f"{kind_of(model)} has no variables: give it bound, as module.bind(variables)")
        self.tensors = False
        """Whether a function is given tensors of PyTorch."""
        for name, one in self.parameters.items():
            if "meta" in str(getattr(one, "device", "")):
                raise SpecError(f"{kind_of(model)} can't be run: {name} is on the meta device, where it has no numbers")

    @cached_property
    def framework(self) -> str:
        """Return the name of the model's framework: torch, keras, flax or mxnet; numpy for a function."""
        if self.hooks is None:
            return "torch" if self.tensors else "numpy"
        home = self.hooks.__name__.removeprefix("mha_parity.").split(".")[1]
        return {"tf": "keras", "jax": "flax"}.get(home, home)

    @cached_property
    def held(self) -> Any:
        """Return the model as `native` holds it to run it."""
        return None if self.native is None else self.native.hold(self.asked)

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Return the model's parameters by name."""
        return {} if self.native is None else dict(self.native.parameters_of(self.held))

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the model's parameters."""
        return [tuple(one.shape) for one in self.parameters.values()]

    @cached_property
    def dtype(self) -> str:
        """Return the dtype of most of the model's parameters; float64 for a function."""
        names = []
        for one in self.parameters.values():
            found = self.hooks.as_array(one) if self.framework == "torch" else None
            names.append(found[1] if found else np.dtype(self.native.numbers_in(one).dtype).name)
        return max(dict.fromkeys(names), key=names.count, default="float64")

    @cached_property
    def signature(self) -> dict[str, inspect.Parameter]:
        """Return name -> parameter in the signature of the model's call."""
        by_method = {"torch": "forward", "mxnet": "forward", "keras": "call"}
        call = getattr(self.asked, by_method.get(self.framework, "__call__")) if self.hooks else self.asked
        try:
            found = dict(inspect.signature(call).parameters)
        except (TypeError, ValueError) as error:
            raise SpecError(f"{kind_of(self.model)} does not say what it is called with: {one_line(error)}") from error
        found.pop("self", None)
        return {name: one for name, one in found.items() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}

    @property
    def config(self) -> Any:
        """Return the model's config if it is a model of transformers, else None."""
        own = getattr(self.asked, "config", None)
        return own if hasattr(own, "model_type") else None

    @cached_property
    def large(self) -> bool:
        """Return whether the model has more than LARGE parameters, so that it is not copied."""
        return sum(int(np.prod(shape)) for shape in self.shapes) > LARGE

    def fresh(self) -> Live:
        """Return a Live with a copy of the model, without effects of earlier calls; `self` if it can't be copied."""
        if self.hooks is None or self.large or self.compiled is not None:
            return self
        try:
            other = copy.deepcopy(self.asked) if self.framework in ("torch", "flax") and not self.linen else None
        except Exception:  # whatever its own code raises
            other = None
        if other is None:
            return self
        if self.framework == "torch":
            other.eval()
        return Live(other, self.make)

    @property
    def can_make(self) -> bool:
        """Return whether another such model can be made."""
        return self.make is not None and not self.large and self.compiled is None

    def another(self) -> Live:
        """Return a new model from `make`, in inference mode; its parameters may have other numbers."""
        assert self.make is not None
        other = Live(self.make(), self.make)
        if other.framework == "torch" and other.hooks is not None:
            other.asked.eval()
        if self.hooks is None:
            other.tensors, other.dtype = self.tensors, self.dtype
        return other

    # Calls

    @contextmanager
    def running(self, dtype: str, *, cast: bool = False) -> Iterator[Callable[..., Any]]:
        """Return a context whose value is a function of NumPy arrays that calls the model.

        Args:
            dtype: the dtype of the model's parameters and inputs in the context.
            cast: whether parameters of another dtype may be cast to `dtype`.
        """
        if self.native is None:
            within: Any = nullcontext(self.asked)
        elif dtype == self.dtype and self.framework != "flax" and not cast:
            within = self._plain()
        else:
            within = self.native.computing(self.held, dtype)
        with within as run:
            yield lambda *args, **kwargs: run(*self._as_native(args, dtype), **self._as_native(kwargs, dtype))

    @contextmanager
    def _plain(self) -> Iterator[Any]:
        if self.framework == "torch":
            import torch

            with torch.no_grad():
                yield self.asked
        elif self.framework == "mxnet":
            yield self.native.called(self.asked)
        else:
            yield self.asked

    def _as_native(self, value: Any, dtype: str) -> Any:
        def native(place: Place, leaf: Any) -> Any:
            if not isinstance(leaf, Given):
                return leaf.value if isinstance(leaf, Ref) else leaf
            array = leaf.array
            if self.native is not None:
                return self.native.to_native(array, dtype)
            if array.dtype.kind == "f":
                array = array.astype(storage_dtype(dtype))
            if self.tensors:
                import torch

                return torch.from_numpy(array.copy())
            return array.copy()  # it may write to it

        if isinstance(value, tuple):
            return tuple(self._as_native(one, dtype) for one in value)
        if isinstance(value, Mapping):
            return {name: native((), one) for name, one in value.items()}
        return native((), value)

    def array(self, leaf: Any) -> NDArray | None:
        """Return a NumPy copy of an array; None for anything else."""
        if isinstance(leaf, np.ndarray):
            return leaf.copy()
        if self.hooks is not None:
            found = self.hooks.as_array(leaf)
            return None if found is None else np.asarray(found[0])
        if hasattr(leaf, "detach"):
            leaf = leaf.detach()
        if hasattr(leaf, "__array__") and hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            return np.array(leaf)
        return None

    def arrays(self, value: Any) -> dict[Place, NDArray]:
        """Return the arrays of numbers in an output, by place."""
        found = ((place, self.array(leaf)) for place, leaf in leaves(value))
        return {place: one for place, one in found if one is not None and one.dtype.kind in "fiub"}

    @contextmanager
    def moved(self, by: float, seed: int) -> Iterator[None]:
        """Return a context where each number in modules' outputs is multiplied at random by 1 + `by` or 1 - `by`."""
        if self.hooks is None:
            yield
            return
        number = count()

        def seen(name: str, module: Any, arguments: Any, output: Any) -> Any:
            return changed(output, lambda place, leaf: self._moved(leaf, by, [seed, next(number)]))

        with self.hooks.watch(self.asked, lambda name, module: _OPEN, seen):
            yield

    def _moved(self, leaf: Any, by: float, seed: list[int]) -> Any:
        found = self.hooks.as_array(leaf)
        if found is None or np.asarray(found[0]).dtype.kind != "f":
            return leaf
        array, dtype = np.asarray(found[0]), found[1]
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], array.shape)
        return self.native.to_native(np.asarray(array * (1.0 + by * signs), array.dtype), dtype)

    # How it is written

    def made_again(self, dtype: str) -> str:
        """Return the code that makes another such model by calling `make`."""
        first = "[0]" if isinstance(self.make, FirstOf) else ""
        return f"make(){first}" + (f".eval().{_cast(dtype)}()" if self.framework == "torch" and self.hooks else "")

    def header(self, dtype: str, named: str | None) -> list[str]:
        """Return code lines that define `model` (`named`: MODULE:NAME), `t` (from NumPy) and `n` (to NumPy arrays)."""
        made = "model = ...  # the one that was given"
        lines = ["import numpy as np"]
        if named is not None:
            module, _, name = named.partition(":")
            lines.append(f"from {module} import {name.split('.')[0]}")
            made = f"model = {name}" + ("()" if self.make is not None else "")
            if isinstance(self.make, FirstOf):
                made = f"model, inputs = {name}()"
        if self.framework == "torch":
            cast = _cast(dtype)
            asked = [f"model = model.eval().{cast}()"] if self.hooks else []
            t = f"lambda a: torch.tensor(a).{cast}() if a.dtype.kind == 'f' else torch.tensor(a)"
            return [
                *lines[:1], "import torch", *lines[1:], made, *asked, f"t = {t}", "n = lambda a: a.detach().numpy()",
            ]  # fmt: skip
        own = dtype if self.native is None or (self.framework == "flax" and dtype == self.dtype) else self.dtype
        make = {
            "keras": ["import tensorflow as tf", "tf.constant"],
            "flax": ["import jax.numpy as jnp", "jnp.asarray"],
            "mxnet": ["import mxnet as mx", "mx.np.array"],
            "numpy": ["", "np.asarray"],
        }[self.framework]
        dtype_text = {"mxnet": "a.dtype"}.get(self.framework, "None")
        t = f"lambda a: {make[1]}(a, dtype={own!r} if a.dtype.kind == 'f' else {dtype_text})"
        n = "lambda a: a.asnumpy()" if self.framework == "mxnet" else "np.asarray"
        return [*lines, *([make[0]] if make[0] else []), made, f"t = {t}", f"n = {n}"]


def _cast(dtype: str) -> str:
    """Return the name of PyTorch's method that casts to a dtype."""
    return {"float64": "double", "float32": "float"}.get(dtype, dtype)


def named_as(model: Any) -> str:
    """Return a function's own name, or the class of a model."""
    return f"{model.__module__}.{model.__qualname__}" if isinstance(model, FunctionType) else kind_of(model)


def with_tensors(live: Live) -> Live | None:
    """Return a Live that calls the function in `live` with PyTorch's tensors; None for a model, or without PyTorch."""
    if live.hooks is not None or "torch" not in sys.modules:
        return None
    other = Live(live.model, live.make)
    other.tensors = True
    return other
