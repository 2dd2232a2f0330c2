"""Products with sums in at least float32; and where bfloat16 is computed in bfloat16, which is measured, once.

It differs between processors, and where oneDNN is switched off.
"""

from collections.abc import Callable
from functools import cache, partial
from time import perf_counter
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from backends.tf.ops.framework import is_traced_for_xla, shape_of

WHOLE = 32
"""The length of which sums in bfloat16 must be multiples.

oneDNN's kernel for AMX reads on into the next row where one is not, and multiplies that by 0: a NaN or infinity there
becomes a NaN here.
"""


def widened(x: tf.Tensor) -> tf.Tensor:
    """Return x, as float32 if it is bfloat16: on some processors TensorFlow would add up in bfloat16."""
    return tf.cast(x, tf.float32) if x.dtype == tf.bfloat16 else x


def matmul(a: tf.Tensor, b: tf.Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> tf.Tensor:
    """Return tf.matmul, with sums in at least float32."""
    # The gradient of `a` sums over what is the width here.
    if not in_bfloat16(a.dtype, a.shape[-2 if transpose_a else -1], b.shape[-2 if transpose_b else -1]):
        a, b, dtype = widened(a), widened(b), a.dtype
        return tf.cast(tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b), dtype)
    return tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)


class Dense(keras.layers.Dense):
    """Keras's Dense layer without an activation, as one `matmul` of all rows."""

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        *sizes, width = shape_of(inputs)
        product = matmul(tf.reshape(inputs, (-1, width)), tf.convert_to_tensor(self.kernel))
        product = tf.reshape(product, (*sizes, self.units))
        return product if self.bias is None else product + self.bias


def in_bfloat16(dtype: tf.DType, *summed: int | None) -> bool:
    """Return whether `dtype` is bfloat16 and its results are as exact as those of float32 rounded to bfloat16.

    `summed`: the sizes of axes that products sum over. False if one is unknown (None), or with XLA: XLA is less exact.
    """
    if dtype != tf.bfloat16 or any(length is None or length % WHOLE for length in summed):
        return False
    return not is_traced_for_xla() and _is_exact_and_fast()


@cache
def _is_exact_and_fast() -> bool:
    """Return whether bfloat16 is exact and fast on every device; False without eager mode, which measuring needs."""
    with tf.init_scope():
        if not tf.executing_eagerly():
            return False
        devices = [device.name for kind in ("CPU", "GPU") for device in tf.config.list_logical_devices(kind)]
        return all(map(_is_exact, devices)) and all(map(_is_fast, devices))


def _is_exact(device: str) -> bool:
    """Return whether products sum in at least float32 and round once, and a NaN in one row reaches no other row."""
    random = np.random.default_rng(0)
    with tf.device(device):
        for shapes in (((3, 60), (60, 70)), ((2, 3, 1, 300), (2, 3, 300, 5)), ((1, 2, 33, 512), (1, 2, 512, 40))):
            # Every sum of these integers is exact in float32.
            a, b = (tf.constant(random.integers(-99, 100, shape), tf.float32) for shape in shapes)
            found = tf.matmul(*(tf.cast(x, tf.bfloat16) for x in (a, b)))
            if not np.array_equal(_numbers(found), _numbers(tf.cast(tf.matmul(a, b), tf.bfloat16))):
                return False
        row = tf.reshape(tf.one_hot(64 * 9, 64 * 64, float("nan"), 1.0, dtype=tf.bfloat16), (64, 64))
        if np.isnan(_numbers(tf.matmul(row, row, transpose_b=True))[:9, :9]).any():
            return False
        scores = tf.constant(random.normal(0.0, 3.0, (2, 3, 40, 300)), tf.bfloat16)
        wanted = _numbers(tf.nn.softmax(tf.cast(scores, tf.float64)))
        return bool(np.allclose(_numbers(tf.nn.softmax(scores)), wanted, rtol=1.02 * 2.0**-8, atol=0.0))


def _is_fast(device: str) -> bool:
    """Return whether a product in bfloat16 is clearly faster than in float32: the fastest of nine each, in turn."""
    with tf.device(device):
        arrays = [tf.ones((512, 512), dtype) for dtype in (tf.bfloat16, tf.float32)]
        times = [[_seconds(partial(tf.matmul, x, x)) for x in arrays] for _ in range(10)]
    in_half, in_full = map(min, zip(*times[1:], strict=True))
    return in_half < 0.8 * in_full


def _seconds(compute: Callable[[], Any]) -> float:
    start = perf_counter()
    compute().numpy()
    return perf_counter() - start


def _numbers(x: tf.Tensor) -> Any:
    return tf.cast(x, tf.float64).numpy()
