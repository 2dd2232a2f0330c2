"""Keras' function, on whichever backend the environment says, and converted to LiteRT."""

import numpy as np


def attend(q, k, v, *, allowed=None, bias=None, causal=False, scale=None, softcap=None):
    import keras

    q, k, v = (keras.ops.swapaxes(one, 1, 2) for one in (q, k, v))
    found = keras.ops.dot_product_attention(
        q, k, v, bias, allowed, scale, is_causal=causal, attn_logits_soft_cap=softcap, flash_attention=False
    )
    return keras.ops.swapaxes(found, 1, 2)


def on_arrays(q, k, v, *, allowed=None, bias=None, causal=False, scale=None, softcap=None):
    """Return the output of Keras's function as a NumPy array, for backends that lack gradients (NumPy, OpenVINO)."""
    import keras

    options = {"causal": causal, "scale": scale, "softcap": softcap}
    made = [None if one is None else keras.ops.convert_to_tensor(one) for one in (q, k, v, allowed, bias)]
    return np.asarray(keras.ops.convert_to_numpy(attend(*made[:3], allowed=made[3], bias=made[4], **options)))


def litert(q, k, v, *, allowed=None, bias=None, causal=False, scale=None):
    """Return the output of Keras' function as LiteRT runs it."""
    import tensorflow as tf
    from ai_edge_litert.interpreter import Interpreter

    given = [one for one in (q, k, v, allowed, bias) if one is not None]

    @tf.function(input_signature=[tf.TensorSpec(one.shape, one.dtype) for one in given])
    def call(*tensors):
        q, k, v, *rest = tensors
        masks = {name: rest.pop(0) for name, one in (("allowed", allowed), ("bias", bias)) if one is not None}
        return attend(q, k, v, causal=causal, scale=scale, **masks)

    model = tf.lite.TFLiteConverter.from_concrete_functions([call.get_concrete_function()]).convert()
    interpreter = Interpreter(model_content=model)
    interpreter.allocate_tensors()
    details = sorted(interpreter.get_input_details(), key=lambda one: one["name"])
    for detail, array in zip(details, given, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
