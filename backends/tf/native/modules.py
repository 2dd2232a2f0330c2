"""Any Keras layer, run by itself in another dtype: what `mha where` asks of an original."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf
from numpy.typing import NDArray

from backends.tf.ops.framework import to_numpy
from mha_core.capture import Pulled


def layers_in(target: Any) -> list[keras.Layer]:
    """Return a list of the layer and all layers inside it, outer ones first. Keras has no public function for this."""
    if isinstance(target, keras.Layer):
        return list(target._flatten_layers(include_self=True, recursive=True))
    return [part for part in target.submodules if isinstance(part, keras.Layer)]  # a tf.Module


def hold(layer: Any) -> Any:
    """Return the object to keep for calling the layer again later: here the layer itself."""
    return layer


def parameters_of(held: Any) -> dict[str, keras.Variable]:
    """Return a dict of a layer's variables by path. If several share a path, later ones get a number: "path#2"."""
    found: dict[str, keras.Variable] = {}
    times: Counter[str] = Counter()
    for variable in _floating(held):
        name = variable.path.removeprefix(f"{held.path}/") if getattr(held, "path", None) else variable.path
        times[name] += 1
        found[name if times[name] == 1 else f"{name}#{times[name]}"] = variable
    return found


def numbers_in(parameter: keras.Variable) -> NDArray:
    """Return the numbers of a parameter in NumPy."""
    return to_numpy(parameter)


def _floating(held: Any) -> list[Any]:
    """The variables of a layer, without the states of random numbers."""
    return [variable for variable in held.variables if "float" in keras.backend.standardize_dtype(variable.dtype)]


def is_training(layer: Any) -> bool:
    """Return False: Keras has no training mode. `capture` reads the call's argument `training` instead."""
    return False


def is_part(held: Any, outer: Any, name: str, module: Any) -> bool:
    """Return whether `hold(module)` made `held`. `module` must be the submodule of `outer` whose name is `name`."""
    return module is held


@contextmanager
def computing(held: Any, dtype: str) -> Iterator[Callable[..., Any]]:
    """Return a context that yields the layer, with its variables and policy in `dtype` until the context ends."""
    layers = [(layer, layer._dtype_policy) for layer in layers_in(held) if isinstance(layer, keras.Layer)]
    variables = [(variable, variable._value, variable._dtype) for variable in _floating(held)]
    policy = keras.dtype_policies.DTypePolicy(dtype)
    try:
        for layer, _ in layers:
            layer._dtype_policy = policy
        for variable, value, _ in variables:
            variable._value = tf.Variable(tf.cast(value, dtype), trainable=False)
            variable._dtype = dtype
        yield held
    finally:
        for layer, own in layers:
            layer._dtype_policy = own
        for variable, value, name in variables:
            variable._value, variable._dtype = value, name


def to_native(array: NDArray, dtype: str | None) -> tf.Tensor:
    """Return the array as a tensor; floating-point numbers are cast to `dtype`, unless it is None."""
    tensor = tf.constant(array)
    return tf.cast(tensor, dtype) if dtype is not None and tensor.dtype.is_floating else tensor


def tapped(value: tf.Tensor, note: Callable[[tf.Tensor], None]) -> tf.Tensor:
    """Return a copy of the tensor; the backward pass calls `note(gradient)`."""

    @tf.custom_gradient
    def identity(tensor: tf.Tensor) -> Any:
        def told(gradient: tf.Tensor) -> tf.Tensor:
            note(tf.convert_to_tensor(gradient))
            return gradient

        return tf.identity(tensor), told

    alias = identity(tf.convert_to_tensor(value))
    if getattr(value, "_keras_mask", None) is not None:
        alias._keras_mask = value._keras_mask
    return alias


def pulled(
    held: Any,
    dtype: str | None,
    call: Callable[..., dict[Any, tf.Tensor]],
    inputs: Mapping[Any, tf.Tensor],
    cotangents: Mapping[Any, NDArray],
) -> Pulled:
    """Run one layer forward and backward, as `Pulled` says."""
    with nullcontext(held) if dtype is None else computing(held, dtype) as run:
        leaves = {place: tf.identity(one) for place, one in inputs.items()}
        trained = {id(variable) for variable in held.trainable_variables}
        parameters = {name: one._value for name, one in parameters_of(held).items() if id(one) in trained}
        sources = [*leaves.values(), *parameters.values()]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            outputs = call(run, leaves)
        back = [tf.cast(tf.constant(array), outputs[place].dtype) for place, array in cotangents.items()]
        heads = [tf.convert_to_tensor(outputs[place]) for place in cotangents]
        zero = tf.UnconnectedGradients.ZERO
        found = tape.gradient(heads, sources, output_gradients=back, unconnected_gradients=zero)
        arrays = [to_numpy(tf.convert_to_tensor(one)) for one in found]
        return Pulled(
            {place: to_numpy(one) for place, one in outputs.items()},
            dict(zip(leaves, arrays, strict=False)),
            dict(zip(parameters, arrays[len(leaves) :], strict=True)),
        )
