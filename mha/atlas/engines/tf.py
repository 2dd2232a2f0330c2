"""TensorFlow: what runs its functions."""

import tensorflow as tf

DTYPES = ("float64", "float32", "bfloat16", "float16")


def of(array, dtype):
    made = tf.constant(array)
    return tf.cast(made, dtype) if made.dtype.is_floating else made


def computed(attend, leaves, cotangent):
    with tf.GradientTape() as tape:
        tape.watch(leaves)
        output = attend(*leaves)
    return [output, *(() if cotangent is None else tape.gradient(output, leaves, cotangent))]


def back(tensor):
    return (tf.cast(tensor, "float32") if tensor.dtype == "bfloat16" else tensor).numpy()
