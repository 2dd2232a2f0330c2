"""Hooks on Flax modules, linen and nnx, for `mha.capture`, and adapters that read the calls of attention layers."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any
from unittest.mock import patch

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict
from numpy.typing import NDArray

from backends.jax.layers import MultiHeadAttention
from backends.jax.native import convert as native
from backends.jax.native import live_probe
from backends.jax.native import modules as modules
from backends.jax.native.modules import differentiated
from backends.jax.native.scanned import is_lifted, place_of, root_of, running
from backends.jax.native.seam import intercept_attention as intercept_attention
from backends.jax.native.trees import pure_dict
from backends.jax.ops.framework import has_values, to_numpy
from backends.jax.weights import to_weights
from mha_core import AttentionInputs, AttentionMask, SpecError, layouts
from mha_core.capture import (
    LayerAdapter,
    ReadCall,
    arguments_of,
    as_called,
    d2l_call,
    none_found,
    one_dtype,
    outermost,
    own_call,
    refuse_dropout,
    takes_lens,
)


def versions() -> dict[str, str]:
    """Return package -> version, of the packages that compute."""
    return {"jax": jax.__version__, "flax": flax.__version__}


from_native = native.from_native
parts_of, modules_in = modules.parts_of, modules.modules_in
projects, matrix_of = modules.projects, modules.matrix_of


def as_array(value: Any) -> tuple[NDArray, str] | None:
    """Return a NumPy copy of an array and the name of its dtype; None for anything else."""
    return (_array(modules.valued(value)), str(value.dtype)) if isinstance(value, jax.Array) else None


@contextmanager
def watch(
    target: Any,
    choose: Callable[[str, Any], Any],
    seen: Callable[..., Any],
    begun: Callable[..., None] | None = None,
) -> Iterator[None]:
    """Return a context that calls `begun` before and `seen` after each call of a module that `choose` accepts.

    The calls are `choose(name, module)`, `begun(name, module, call)` and `seen(name, module, arguments, output)`: see
    `mha.recordings.hooks.Hooks.watch`. Linen makes new modules in each call, so `choose` runs in each call.
    """
    watching = _watch_nnx if isinstance(target, nnx.Module) else _watch_linen
    with watching(target, choose, seen, begun):
        yield


@contextmanager
def _watch_linen(
    target: nn.Module,
    choose: Callable[[str, Any], Any],
    seen: Callable[..., Any],
    begun: Callable[..., None] | None,
) -> Iterator[None]:
    inside = 0  # how many chosen modules are being called around this one

    def intercept(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        module = context.module
        root = root_of(module)
        if inside or module.is_initializing() or live_probe.is_probing() or not (is_lifted(root) or _is(root, target)):
            return call(*args, **kwargs)
        with running(root) if module is root else nullcontext():
            return told(call, args, kwargs, context)

    def told(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        nonlocal inside
        module = context.module
        name, root = "/".join(place_of(module)), root_of(module)
        traced = is_lifted(root) and bool(root.path) and not has_values((root.variables, args, kwargs))
        if traced and module is root and begun is not None:
            begun(name, module, None)
        skip = context.method_name != "__call__" or traced
        adapter = None if skip else choose(name, module)
        if adapter is None:
            return call(*args, **kwargs)
        closed = not getattr(adapter, "open", False)
        if begun is not None:
            _bound(module.__call__, args, kwargs)  # what JAX traces is refused
            begun(name, module, as_called(inspect.signature(module.__call__), args, kwargs))
        inside += closed
        try:
            output = call(*args, **kwargs)
        finally:
            inside -= closed
        instead = seen(name, module, _bound(module.__call__, args, kwargs), output)
        return output if instead is None else instead

    with nn.intercept_methods(intercept):
        yield


def _is(root: nn.Module, target: nn.Module) -> bool:
    """Whether a root that is being called is `target`, of which `apply` calls a copy."""
    fields = (field for field in getattr(target, "__dataclass_fields__", {}) if field not in ("parent", "name"))
    return type(root) is type(target) and all(_same(getattr(root, own), getattr(target, own)) for own in fields)


def _same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except (TypeError, ValueError):  # arrays, whose == gives no single bool
        return True


@contextmanager
def _watch_nnx(
    target: nnx.Module,
    choose: Callable[[str, Any], Any],
    seen: Callable[..., Any],
    begun: Callable[..., None] | None,
) -> Iterator[None]:
    """`watch` for flax.nnx: replaces `__call__` of the modules' classes, and reports the chosen modules alone."""
    graph = ((path, node) for path, node in nnx.iter_graph(target) if isinstance(node, nnx.Module))
    modules = {id(module): ("/".join(map(str, path)), module) for path, module in graph}
    outer_first = sorted(modules.values(), key=lambda named: named[0].count("/") + bool(named[0]))
    chosen = {id(module): name for name, module, _ in outermost(outer_first, choose, "/")}
    if not chosen:
        raise none_found(target)
    running: set[int] = set()
    stands_for: dict[int, nnx.Module] = {}  # a module of a copy of the target -> the target's
    copies: list[nnx.Module] = []  # kept, so that an id means one of them

    def adopt(root: nnx.Module) -> None:
        """Report the modules of a copy, such as `nnx.merge` makes within `jax.grad`, as those of the target."""
        copies.append(root)
        by_name = dict(modules.values())
        for path, node in nnx.iter_graph(root):
            own = by_name.get("/".join(map(str, path))) if isinstance(node, nnx.Module) else None
            if own is not None and id(own) in chosen:
                chosen[id(node)], stands_for[id(node)] = chosen[id(own)], own

    def replacement(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(self: nnx.Module, *args: Any, **kwargs: Any) -> Any:
            if differentiated and not running and id(self) not in chosen and type(self) is type(target):
                adopt(self)
            if id(self) not in chosen or id(self) in running:  # a subclass calls what its base has
                return original(self, *args, **kwargs)
            name = chosen[id(self)]
            own = stands_for.get(id(self), self)
            if begun is not None:
                _bound(original, (self, *args), kwargs)  # what JAX traces is refused
                begun(name, own, as_called(inspect.signature(original.__get__(self)), args, kwargs))
            running.add(id(self))
            try:
                output = original(self, *args, **kwargs)
            finally:
                running.remove(id(self))
            instead = seen(name, own, _bound(original, (self, *args), kwargs), output)
            return output if instead is None else instead

        return call

    with ExitStack() as hooks:
        for cls in {type(module) for _, module in modules.values() if id(module) in chosen}:
            hooks.enter_context(patch.object(cls, "__call__", replacement(cls.__call__)))
        yield


def _bound(function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name, defaults included; SpecError for arrays that JAX traces, which have no numbers."""
    arguments = arguments_of(inspect.signature(function), args, kwargs)
    arguments.pop("self", None)
    for value in arguments.values():
        if isinstance(value, jax.core.Tracer) and not (differentiated and modules.valued(value) is not None):
            raise SpecError(modules.TRACED)
    return arguments


class FlaxLayer(LayerAdapter):
    """A base of adapters for flax.linen and flax.nnx, whose layers take the same arguments. In masks, True = attend."""

    def inputs(self, arguments: Mapping[str, Any], dtype: str) -> AttentionInputs:
        queries = arguments["inputs_q"]
        keys, values = (arguments.get(name) for name in ("inputs_k", "inputs_v"))  # SelfAttention has none
        if arguments.get("inputs_kv") is not None:
            keys = values = arguments["inputs_kv"]
        keys = queries if keys is None else keys
        values = keys if values is None else values
        mask = None if arguments["mask"] is None else _array(arguments["mask"]).astype(bool)
        # Cast as the layer does.
        queries, keys, values = (_array(jnp.asarray(array, dtype=dtype)) for array in (queries, keys, values))
        return AttentionInputs(queries, keys, values, AttentionMask(allowed=mask))

    def dtypes(self, layer: Any, params: Any, arguments: Mapping[str, Any], output: Any) -> tuple[str, str]:
        """Return (name of the dtype that the layer computes in, name of its parameters' dtype)."""
        given = [arguments[name] for name in ("inputs_q", "inputs_k", "inputs_v") if arguments.get(name) is not None]
        return _dtypes(layer, params, given, output)


def _training(layer: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether dropout acts: the call's `deterministic` comes before the layer's."""
    return not (layer.deterministic if arguments["deterministic"] is None else arguments["deterministic"])


class LinenLayer(FlaxLayer):
    """An adapter that reads calls of flax.linen.MultiHeadDotProductAttention, and of its subclasses."""

    kind = "flax.linen.MultiHeadDotProductAttention"
    layer_type = nn.MultiHeadDotProductAttention

    def probe(self, layer: Any) -> None:
        if has_values(layer.variables):  # else its call is refused
            native.from_linen(layer, layer.variables)

    def read(self, layer: Any, arguments: Mapping[str, Any], output: Any) -> ReadCall:
        config, weights = native.from_linen(layer, layer.variables, probe=False)
        refuse_dropout(training=_training(layer, arguments), rate=config.dropout)
        dtypes = self.dtypes(layer, layer.variables["params"], arguments, output)
        return ReadCall(config, weights, self.inputs(arguments, dtypes[0]), {"output": _array(output)}, *dtypes)


class NnxLayer(FlaxLayer):
    """An adapter that reads calls of flax.nnx.MultiHeadAttention."""

    kind = "flax.nnx.MultiHeadAttention"
    layer_type = nnx.MultiHeadAttention

    def check(self, layer: Any) -> None:
        native.from_nnx(layer, probe=False)

    def probe(self, layer: Any) -> None:
        native.from_nnx(layer)

    def read(self, layer: Any, arguments: Mapping[str, Any], output: Any) -> ReadCall:
        if arguments.get("decode"):
            raise SpecError("decode=True keeps keys and values of earlier calls, which are not part of this one")
        config, weights = native.from_nnx(layer, probe=False)
        refuse_dropout(training=_training(layer, arguments), rate=config.dropout)
        dtypes = self.dtypes(layer, pure_dict(nnx.state(layer, nnx.Param)), arguments, output)
        return ReadCall(config, weights, self.inputs(arguments, dtypes[0]), {"output": _array(output)}, *dtypes)


class OwnLayer(LayerAdapter):
    """An adapter that reads calls of backends.jax.MultiHeadAttention. It records them unchanged."""

    kind = "backends.jax.MultiHeadAttention"
    layer_type = MultiHeadAttention

    def read(self, layer: MultiHeadAttention, arguments: Mapping[str, Any], output: Any) -> ReadCall:
        result = output[0] if isinstance(output, tuple) else output
        given = {name: arguments[name] for name in ("queries", "keys", "values")}
        dtypes = _dtypes(layer, layer.variables.get("params", {}), list(given.values()), result)
        arguments = {**arguments, **{name: jnp.asarray(array, dtype=dtypes[0]) for name, array in given.items()}}
        config, weights = layer.config_of(layer.variables), to_weights(layer.variables)
        training = not arguments["deterministic"]
        return own_call(config, weights, arguments, output, _array, training=training, dtypes=dtypes)


class D2lLayer(LayerAdapter):
    """An adapter for layers like d2l.ai's: the same arguments, and the attributes W_q, W_k, W_v, W_o and num_heads."""

    kind = "d2l.jax.MultiHeadAttention"

    def matches(self, layer: Any) -> bool:
        if not isinstance(layer, nn.Module) or not hasattr(layer, "num_heads") or layer.scope is None:
            return False
        return takes_lens(layer.__call__) and {"W_q", "W_k", "W_v", "W_o"} <= set(layer.variables.get("params", {}))

    def probe(self, layer: Any) -> None:
        if has_values(layer.variables):  # else its call is refused
            config, weights = layouts.get("d2l-jax").read(_d2l_arrays(layer), num_heads=int(layer.num_heads))
            live_probe.check_d2l(layer, config, weights, layer.variables)

    def read(self, layer: Any, arguments: Mapping[str, Any], output: Any) -> ReadCall:
        arguments = dict(arguments)
        refuse_dropout(training=bool(arguments.pop("training", False)), rate=float(getattr(layer, "dropout", 0.0)))
        params = layer.variables["params"]
        arrays = _d2l_arrays(layer)
        result, folded = output if isinstance(output, tuple) else (output, None)
        dtypes = _dtypes(layer, params, list(arguments.values())[:3], result)
        call = arguments, result, folded, _array
        return d2l_call(arrays, *call, layout="d2l-jax", num_heads=int(layer.num_heads), dtypes=dtypes)


ADAPTERS = (LinenLayer(), NnxLayer(), OwnLayer(), D2lLayer())
"""The adapters of the layers that can be captured; each reads the calls of one kind of layer."""


def _d2l_arrays(layer: nn.Module) -> dict[str, NDArray]:
    return {name: to_numpy(array) for name, array in flatten_dict(layer.variables["params"], sep="/").items()}


def _array(array: Any) -> NDArray:
    """A copy in NumPy, which the model can't change afterwards."""
    return np.array(to_numpy(array) if isinstance(array, jax.Array) else array)


def _dtypes(layer: Any, params: Any, given: list[Any], output: Any) -> tuple[str, str]:
    """The dtype that a layer computes in, and that of its parameters.

    A layer with a `dtype` casts its inputs and parameters to that; without one, each projection is computed in the
    dtype to which JAX promotes input and parameter. SpecError if these dtypes differ within a call.
    """
    leaves = [str(leaf.dtype) for leaf in jax.tree.leaves(params)]
    parameters = one_dtype(leaves) if leaves else one_dtype(str(jnp.asarray(array).dtype) for array in given)
    asked = getattr(layer, "dtype", None)
    held = (jnp.promote_types(jnp.asarray(array).dtype, parameters) if asked is None else asked for array in given)
    return one_dtype([*(str(jnp.dtype(dtype)) for dtype in held), str(output.dtype)]), parameters
