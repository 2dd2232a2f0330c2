"""The contract in TensorFlow: NumPy in, run on a device, NumPy out."""

from __future__ import annotations

import keras
import tensorflow as tf
from numpy.typing import NDArray

from backends.tf import framework
from backends.tf.attention import Stages
from backends.tf.framework import TF_DTYPES, to_numpy, to_tensor
from backends.tf.layers import MultiHeadAttention
from backends.tf.weights import canonical, from_weights, variables
from mha_core.backend import Backend, Run
from mha_core.config import AttentionConfig
from mha_core.inputs import AttentionInputs
from mha_core.stages import Trace
from mha_core.weights import Weights


class TensorFlowBackend(Backend):
    """backends.tf.MultiHeadAttention behind the contract."""

    name = "tf"

    def versions(self) -> dict[str, str]:
        return {"tensorflow": tf.__version__, "keras": keras.__version__}

    def devices(self) -> tuple[str, ...]:
        return framework.devices()

    def dtypes(self, device: str) -> tuple[str, ...]:
        return tuple(TF_DTYPES)

    def build(self, config: AttentionConfig, weights: Weights, dtype: str, device: str) -> Run:
        tf_device, tf_dtype = framework.device_of(device), TF_DTYPES[dtype]
        with tf.device(tf_device):
            layer = from_weights(config, weights, dtype=dtype)

        def run(inputs: AttentionInputs) -> Trace:
            with framework.full_precision(), tf.device(tf_device):
                mask = inputs.mask.map_arrays(
                    lambda name, array: to_tensor(array, tf_dtype) if name == "bias" else tf.constant(array)
                )
                arguments = {
                    "queries": to_tensor(inputs.queries, tf_dtype),
                    "keys": to_tensor(inputs.keys, tf_dtype),
                    "values": to_tensor(inputs.values, tf_dtype),
                    **vars(mask),
                }
                keep = None if inputs.dropout_keep is None else tf.constant(inputs.dropout_keep)
                leaves = {
                    name: arguments[name]
                    for name in ("queries", "keys", "values", "bias")
                    if arguments[name] is not None
                }
                with tf.GradientTape() as tape:
                    tape.watch(leaves)
                    stages = layer.stages(**arguments, dropout_keep=keep, training=keep is not None)
                gradients = None
                if inputs.cotangent is not None:
                    gradients = _gradients(tape, layer, leaves, stages, to_tensor(inputs.cotangent, tf_dtype))
            arrays = {name: to_numpy(stage) for name, stage in stages._asdict().items()}
            return Trace(**arrays, gradients=gradients)

        return run


def _gradients(
    tape: tf.GradientTape, layer: MultiHeadAttention, leaves: dict, stages: Stages, cotangent: tf.Tensor
) -> dict[str, NDArray]:
    """Gradients by their public names: inputs, additive bias, parameters; 0 where no path leads to one."""
    parameters = variables(layer)
    inputs, weights = tape.gradient(
        stages.output, (leaves, parameters), cotangent, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return {**{name: to_numpy(gradient) for name, gradient in inputs.items()}, **canonical(weights)}
