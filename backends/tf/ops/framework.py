"""TensorFlow and Keras: the dtypes by name, the devices, full-precision products, and random state kept."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from mha_core.call.arguments import ArraySpec, describe_array, holds_arrays, is_convertible, settled
from mha_core.dtypes import DTYPES
from mha_core.errors import BackendError, SpecError

if keras.backend.backend() != "tensorflow":
    raise BackendError(
        "backend 'tf' needs Keras to run on TensorFlow. "
        f"Got Keras on {keras.backend.backend()!r}. Set KERAS_BACKEND=tensorflow before Keras is imported."
    )

Shape = tuple[int | None, ...] | None
"""A shape as Keras gives it to `build`: a size is None if it is not known, the whole shape if there was no array."""

_TENSORS = (tf.Tensor, tf.Variable, keras.Variable, keras.KerasTensor)

TF_DTYPES: dict[str, tf.DType] = {name: getattr(tf, name) for name in DTYPES}


def devices() -> tuple[str, ...]:
    """Return "cpu", then "gpu:0" and so on for the devices that TensorFlow sees. This starts no GPU."""
    return ("cpu", *(f"gpu:{index}" for index in range(len(tf.config.get_visible_devices("GPU")))))


def device_of(name: str) -> str:
    """Return the name for `tf.device` of a name in `devices()`."""
    kind, _, index = name.partition(":")
    return f"/{kind.upper()}:{index or 0}"


def describe(array: Any) -> ArraySpec | None:
    """Return the ArraySpec (shape and dtype) of a TensorFlow or NumPy array; None for anything else.

    A size unknown while tracing is None.
    """
    if isinstance(array, np.ndarray):
        return describe_array(array)
    if not isinstance(array, _TENSORS):
        return None
    if getattr(array.shape, "rank", 0) is None:
        raise SpecError("every array must have a known rank. Got a tensor of shape <unknown>.")
    return ArraySpec(tuple(array.shape), tf.as_dtype(array.dtype).name)


def as_tensor(array: Any, dtype: str | None = None) -> Any:
    """Return a NumPy array or a list of tensors as one tensor of `dtype` (None: of its own dtype).

    Anything else is returned unchanged, and so is an array that `mha_core` refuses.
    """
    if isinstance(array, (list, tuple)) and holds_arrays(array):
        return tf.convert_to_tensor(array)
    if not is_convertible(array):
        return array
    tensor = tf.convert_to_tensor(settled("", array))
    return tensor if dtype is None else tf.cast(tensor, dtype)


def cast_by_policy(layer: keras.Layer, given: Any) -> Any:
    """Return `given`, a layer's arguments. If the policy is mixed, floating-point tensors get the compute dtype."""
    if layer.compute_dtype == layer.variable_dtype:
        return given

    def cast(one: Any) -> Any:
        if not isinstance(one, (tf.Tensor, keras.KerasTensor)):
            return one
        return layer.dtype_policy.convert_input(one, True, layer.compute_dtype)

    return keras.tree.map_structure(cast, given)


def to_numpy(tensor: Any) -> NDArray:
    """Return the array as a NumPy array; bfloat16 becomes float32, which holds each of its numbers exactly."""
    tensor = tf.convert_to_tensor(tensor)  # a variable, or the IndexedSlices of a gradient
    if tensor.dtype == tf.bfloat16:
        tensor = tf.cast(tensor, tf.float32)
    return np.array(tensor)  # a copy: `.numpy()` may show TensorFlow's own memory


def to_tensor(array: NDArray, dtype: tf.DType) -> tf.Tensor:
    """Return a copy of the array as a tensor on the current device."""
    return tf.cast(tf.constant(array), dtype)


def shape_of(x: Any) -> tuple[Any, ...]:
    """Return the shape of x: an integer for each known size, a scalar tensor for each size unknown while tracing.

    `keras.ops.shape` runs an operation for each array, even if all its sizes are known.
    """
    known = tuple(x.shape)
    return tuple(keras.ops.shape(x)) if None in known else known


def numbers(integers: Any) -> Any:
    """Return the integers as a NumPy array; None if they are unknown while tracing. A Python integer is unchanged."""
    return integers if isinstance(integers, (int, np.ndarray)) else tf.get_static_value(integers)


def within(integers: Any, limits: tuple[Any, Any]) -> Any:
    """Return the integers as int64, clipped to the limits, because numbers unknown while tracing can't be checked."""
    if isinstance(integers, int):
        return integers
    lowest, highest = (tf.cast(limit, tf.int64) for limit in limits)
    wide = tf.cast(integers, tf.int64)
    if integers.dtype == tf.uint64:  # beyond int64 it becomes negative
        wide = tf.where(wide < 0, highest, wide)
    return tf.clip_by_value(wide, lowest, highest)


def arange(length: int | tf.Tensor) -> tf.Tensor:
    """Return 0, 1, 2 and so on, int64 (length,). int32 is not used, because TensorFlow computes it on the host."""
    return tf.range(tf.cast(length, tf.int64), dtype=tf.int64)


def is_traced_for_xla() -> bool:
    """Return whether a function with `jit_compile=True` is being traced; TensorFlow has no public name for it."""
    return not tf.executing_eagerly() and bool(GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


@contextmanager
def spec_errors_kept() -> Iterator[None]:
    """Return a context that lets a SpecError out unchanged.

    Otherwise Keras would add the call's arguments to the message, and AutoGraph would raise a StagingError instead.
    """
    try:
        yield
    except SpecError as error:
        error._keras_call_info_injected = True  # type: ignore[attr-defined]
        error.ag_pass_through = True  # type: ignore[attr-defined]
        raise


@contextmanager
def full_precision() -> Iterator[None]:
    """Return a context without TF32; the setting is restored afterwards."""
    config = tf.config.experimental
    before = config.tensor_float_32_execution_enabled()
    config.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        config.enable_tensor_float_32_execution(before)


@contextmanager
def random_state_kept(salt: int) -> Iterator[None]:
    """Return a context in which new layers do not change Python's random state, from which Keras draws seeds.

    The layers' seeds follow from that state (`keras.utils.set_random_seed`) and `salt`. As the state does not change,
    two layers with the same salt drop the same weights.
    """
    state = random.getstate()
    random.seed(random.getrandbits(64) ^ salt)
    try:
        yield
    finally:
        random.setstate(state)
