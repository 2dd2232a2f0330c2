"""Hooks on Keras layers for `mha.capture`, and adapters that read the calls of attention layers."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import reduce, wraps
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from numpy.typing import NDArray

from backends.tf.layers import MultiHeadAttention
from backends.tf.native import convert as native
from backends.tf.native import live_probe
from backends.tf.native import modules as modules
from backends.tf.native.modules import layers_in
from backends.tf.native.seam import intercept_attention as intercept_attention
from backends.tf.ops.framework import random_state_kept, spec_errors_kept, to_numpy
from backends.tf.weights import to_weights
from mha_core import AttentionInputs, AttentionMask, SpecError, layouts
from mha_core.capture import (
    LayerAdapter,
    ReadCall,
    arguments_of,
    as_called,
    d2l_call,
    has_d2l_parts,
    none_found,
    one_dtype,
    own_call,
    refuse_dropout,
)


def versions() -> dict[str, str]:
    """Return package -> version, of the packages that compute."""
    return {"keras": keras.__version__, "tensorflow": tf.__version__}


def parts_of(layer: keras.Layer) -> tuple[list[str], Callable[[], list[int]]]:
    """Return (names of direct sublayers with weights, function that returns the `id`s of all layers inside)."""
    kinds = (keras.Layer, keras.Variable, tf.Variable)
    parts = [name for name, part in vars(layer).items() if isinstance(part, kinds) and getattr(part, "weights", True)]
    return parts, lambda: [id(part) for part in layers_in(layer)]


def modules_in(layer: Any) -> list[tuple[str, keras.Layer]]:
    """Return (name, layer) of all layers inside a layer, named by their attributes: "q_proj", "projections.0"."""
    found: dict[int, tuple[str, keras.Layer]] = {}

    def look(start: str, value: Any) -> None:
        if isinstance(value, keras.Layer):
            if id(value) not in found and value is not layer:
                found[id(value)] = (start, value)
                inside(start + ".", value)
        elif isinstance(value, (list, tuple)):
            for position, one in enumerate(value):
                look(f"{start}.{position}", one)

    def inside(start: str, one: Any) -> None:
        for name, value in vars(one).items():
            if not name.startswith("_"):  # Keras keeps lists of its own there
                look(start + name, value)
        for part in getattr(one, "layers", None) or ():  # of a model; in its own lists they have no attribute
            look(start + part.name, part)

    inside("", layer)
    return list(found.values())


def projects(layer: Any) -> bool:
    """Return whether a layer is a linear projection: a Dense or EinsumDense without an activation."""
    if isinstance(layer, keras.layers.Dense):
        return layer.activation is keras.activations.linear
    return isinstance(layer, keras.layers.EinsumDense) and layer.activation is keras.activations.linear


def matrix_of(layer: Any) -> tuple[Any, Any]:
    """Return the matrix of a projection, (out, in), and its bias, (out,) or None."""
    kernel, bias = layer.kernel, layer.bias
    if len(kernel.shape) == 3:
        first = layer.equation.partition("->")[2].endswith(layer.equation.partition("->")[0][-2:])  # (in, heads, width)
        kernel = tf.reshape(kernel, (kernel.shape[0], -1) if first else (-1, kernel.shape[2]))
        bias = None if bias is None else tf.reshape(bias, (-1,))
    return tf.transpose(kernel), bias


def as_array(value: Any) -> tuple[NDArray, str] | None:
    """Return a NumPy copy of a tensor or variable and the name of its dtype; None for anything else."""
    if not isinstance(value, (tf.Tensor, tf.Variable, keras.Variable)):
        return None
    return _array(value), str(keras.backend.standardize_dtype(value.dtype))


@contextmanager
def watch(
    target: Any,
    choose: Callable[[str, Any], Any],
    seen: Callable[..., Any],
    begun: Callable[..., None] | None = None,
) -> Iterator[None]:
    """Return a context that calls `begun` before and `seen` after each call of a layer that `choose` accepts.

    `mha.recordings.hooks.Hooks.watch` explains these functions. Keras has no hooks, so the context replaces `call`.
    """
    chosen: dict[int, tuple[str, Any]] = {}
    inside: set[int] = set()
    for layer in layers_in(target):
        name = "" if layer is target else layer.path or layer.name
        adapter = None if id(layer) in inside else choose(name, layer)
        if adapter is not None:
            chosen[id(layer)] = (name, layer)
        if adapter is not None and not getattr(adapter, "open", False):
            inside.update(id(part) for part in layers_in(layer))
    if not chosen:
        raise none_found(target)
    with ExitStack() as hooks:
        for name, layer in chosen.values():
            hooks.callback(vars(layer).pop, "call", None)
            vars(layer)["call"] = _call(name, layer, seen, begun)  # not by assignment: Keras would track it
        yield


def _call(
    name: str, layer: keras.Layer, seen: Callable[..., Any], begun: Callable[..., None] | None
) -> Callable[..., Any]:
    original = layer.call
    signature = inspect.signature(original)

    @wraps(original)
    @spec_errors_kept()
    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = arguments_of(signature, args, kwargs)
        if isinstance(layer, keras.layers.MultiHeadAttention):
            # It takes this one from the tensor, whatever it is given, and takes it off the tensor then.
            arguments["query_mask"] = getattr(arguments.get("query"), "_keras_mask", None)
        if any(isinstance(array, keras.KerasTensor) or tf.is_symbolic_tensor(array) for array in arguments.values()):
            raise SpecError(
                "a call that stands for numbers which are not there yet (tf.function, fit, predict, a symbolic "
                "model) can't be recorded. Call the layer eagerly: model(x), or compile it with run_eagerly=True."
            )
        arguments.setdefault("training", _is_training())
        if begun is not None:
            begun(name, layer, as_called(signature, args, kwargs))
        output = original(*args, **kwargs)
        with _parameters_as_they_are():
            instead = seen(name, layer, arguments, output)
        return output if instead is None else instead

    return call


class _Training(keras.Layer):
    """Records whether the layer around it is called in training; Keras fills in the argument `training`."""

    def call(self, x: Any, training: bool | None = None) -> Any:
        self.seen = bool(training)
        return x


def _is_training() -> bool:
    with random_state_kept(salt=0):
        layer = _Training(dtype="float32")
    layer(tf.zeros(()))
    return layer.seen


class KerasLayer(LayerAdapter):
    """An adapter that reads calls of keras.layers.MultiHeadAttention, whose arguments are (query, value, key)."""

    kind = "keras.layers.MultiHeadAttention"
    layer_type = keras.layers.MultiHeadAttention

    def check(self, layer: keras.Layer) -> None:
        native.layout_of(layer)

    def probe(self, layer: keras.Layer) -> None:
        if layer.built:  # else its first call decides its widths
            native.from_native(layer)

    def read(self, layer: keras.Layer, arguments: Mapping[str, Any], output: Any) -> ReadCall:
        config, weights = native.from_native(layer, probe=False)
        refuse_dropout(training=bool(arguments["training"]), rate=config.dropout)
        query, value, key = (arguments[name] for name in ("query", "value", "key"))
        key = value if key is None else key
        result, scores = output if arguments["return_attention_scores"] else (output, None)
        dtypes = _dtypes(layer, query, key, value, result)
        outputs = {"output": _array(result)} | ({} if scores is None else {"weights": _array(scores)})
        inputs = AttentionInputs(_array(query), _array(key), _array(value), _mask(layer, arguments))
        return ReadCall(config, weights, inputs, outputs, *dtypes)


class KerasGroupedLayer(KerasLayer):
    """An adapter that reads calls of keras.layers.GroupQueryAttention."""

    kind = "keras.layers.GroupQueryAttention"
    layer_type = keras.layers.GroupQueryAttention


def _mask(layer: keras.Layer, arguments: Mapping[str, Any]) -> AttentionMask:
    """The mask in terms of the definition; keys whose entry is True, or not 0, may be attended to."""
    sources = []
    if arguments["attention_mask"] is not None:
        array = _array(arguments["attention_mask"]).astype(bool)
        while array.ndim < 4:  # Keras puts the axis of the heads before the last two
            array = np.expand_dims(array, -3)
        sources.append(array)
    for name, axes in (("query_mask", (1, 3)), ("value_mask", (1, 2)), ("key_mask", (1, 2))):
        if arguments[name] is not None:
            sources.append(np.expand_dims(_array(arguments[name]).astype(bool), axes))
    return AttentionMask(
        allowed=reduce(np.logical_and, sources) if sources else None,
        causal=bool(arguments["use_causal_mask"]),
        window=native.window_of(layer),
    )


class OwnLayer(LayerAdapter):
    """An adapter that reads calls of backends.tf.MultiHeadAttention. It records them unchanged."""

    kind = "backends.tf.MultiHeadAttention"
    layer_type = MultiHeadAttention

    def read(self, layer: MultiHeadAttention, arguments: Mapping[str, Any], output: Any) -> ReadCall:
        arguments = dict(arguments)
        training = bool(arguments.pop("training"))
        result = output[0] if isinstance(output, tuple) else output
        dtypes = _dtypes(layer, arguments["queries"], result)
        return own_call(layer.config, to_weights(layer), arguments, output, _array, training=training, dtypes=dtypes)


class D2lLayer(LayerAdapter):
    """An adapter for layers like d2l.ai's: the same arguments, and the attributes W_q, W_k, W_v, W_o and num_heads."""

    kind = "d2l.tensorflow.MultiHeadAttention"

    def matches(self, layer: Any) -> bool:
        return has_d2l_parts(layer, layer.call, keras.layers.Dense)

    def probe(self, layer: Any) -> None:
        if all(getattr(layer, f"W_{part}").built for part in "qkvo"):  # else its first call decides its widths
            config, weights = layouts.get("d2l-tf").read(_d2l_arrays(layer), num_heads=int(layer.num_heads))
            live_probe.check_d2l(layer, config, weights)

    def read(self, layer: Any, arguments: Mapping[str, Any], output: Any) -> ReadCall:
        arguments = dict(arguments)
        training = bool(arguments.pop("training"))
        rates = [part.rate for part in layers_in(layer) if isinstance(part, keras.layers.Dropout)]
        refuse_dropout(training=training, rate=max(rates, default=0.0))
        arrays = _d2l_arrays(layer)
        dtypes = _dtypes(layer, next(iter(arguments.values())), output)
        inner = getattr(getattr(layer, "attention", None), "attention_weights", None)
        call = arguments, output, inner, _array
        return d2l_call(arrays, *call, layout="d2l-tf", num_heads=int(layer.num_heads), dtypes=dtypes)


ADAPTERS = (KerasLayer(), KerasGroupedLayer(), OwnLayer(), D2lLayer())
"""The adapters of the layers that can be captured; each reads the calls of one kind of layer."""


def _d2l_arrays(layer: Any) -> dict[str, NDArray]:
    arrays = {}
    for part in "qkvo":
        dense = getattr(layer, f"W_{part}")
        arrays[f"W_{part}/kernel"] = to_numpy(dense.kernel)
        if dense.use_bias:
            arrays[f"W_{part}/bias"] = to_numpy(dense.bias)
    return arrays


def _array(tensor: Any) -> NDArray:
    """A copy in NumPy, which the model can't change afterwards."""
    return to_numpy(tensor) if isinstance(tensor, (tf.Tensor, tf.Variable, keras.Variable)) else np.array(tensor)


def _dtypes(layer: keras.Layer, *tensors: Any) -> tuple[str, str]:
    """The dtype that the layer computes in, to which Keras casts its inputs, and that of its parameters."""
    computed = [keras.backend.standardize_dtype(tensor.dtype) for tensor in tensors]
    computed += [part.compute_dtype for part in layers_in(layer) if part.weights]
    dtype = one_dtype(computed)
    return dtype, one_dtype(variable.dtype for variable in layer.weights) if layer.weights else dtype


@contextmanager
def _parameters_as_they_are() -> Iterator[None]:
    """Inside, variables have their own dtype; within a call Keras otherwise casts them to the layer's compute dtype."""
    scope = global_state.get_global_attribute("autocast_scope")
    global_state.set_global_attribute("autocast_scope", None)
    try:
        yield
    finally:
        global_state.set_global_attribute("autocast_scope", scope)
