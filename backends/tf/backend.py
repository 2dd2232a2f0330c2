"""The contract in TensorFlow: NumPy in, run on a device, NumPy out."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import tensorflow as tf

from backends.tf.ops import framework
from backends.tf.ops.framework import TF_DTYPES, to_numpy, to_tensor
from backends.tf.weights import canonical, from_weights, variables
from mha_core.backend import Backend, Run
from mha_core.call.inputs import AttentionInputs
from mha_core.config import AttentionConfig
from mha_core.stages import Trace
from mha_core.weights import Weights

COMPILED = {"compiled": False, "fast-compiled": False, "fast-xla": True}
"""The paths through a tf.function, and whether XLA compiles it."""


class TensorFlowBackend(Backend):
    """backends.tf.MultiHeadAttention behind the contract: stages or fast path, as it is or traced by tf.function."""

    name = "tf"

    def versions(self) -> dict[str, str]:
        return {"tensorflow": tf.__version__, "keras": keras.__version__}

    def devices(self) -> tuple[str, ...]:
        return framework.devices()

    def dtypes(self, device: str) -> tuple[str, ...]:
        return tuple(TF_DTYPES)

    def paths(self) -> tuple[str, ...]:
        return ("eager", "compiled", "fast", "fast-compiled", "fast-xla", "blocks")

    def build(self, config: AttentionConfig, weights: Weights, dtype: str, device: str, path: str) -> Run:
        tf_device, tf_dtype = framework.device_of(device), TF_DTYPES[dtype]
        with tf.device(tf_device):
            layer = from_weights(config, weights, dtype=dtype)

        call = layer.stages if path in ("eager", "compiled") else layer.attend
        if path == "blocks":
            call = partial(layer.attend, query_block=2)

        def compute(
            floats: dict[str, tf.Tensor], others: dict[str, Any], cotangent: tf.Tensor | None
        ) -> tuple[Any, Any]:
            """What the path computes; with a cotangent also the gradients of `floats` and of the layer's variables."""
            training = others["dropout_keep"] is not None
            with tf.GradientTape() as tape:
                tape.watch(floats)
                computed = call(**floats, **others, training=training)
            if cotangent is None:
                return computed, None
            # 0 where no path leads to a leaf
            leaves = floats, variables(layer)
            zero = tf.UnconnectedGradients.ZERO
            return computed, tape.gradient(computed.output, leaves, cotangent, unconnected_gradients=zero)

        if path in COMPILED:
            compute = tf.function(compute, jit_compile=COMPILED[path])

        def run(inputs: AttentionInputs) -> Trace:
            with framework.full_precision(), tf.device(tf_device):
                floats = {
                    name: to_tensor(array, tf_dtype)
                    for name, array in (
                        ("queries", inputs.queries),
                        ("keys", inputs.keys),
                        ("values", inputs.values),
                        ("past_keys", inputs.past_keys),
                        ("past_values", inputs.past_values),
                        ("bias", inputs.mask.bias),
                    )
                    if array is not None
                }
                mask = inputs.mask.map_arrays(lambda _, array: tf.constant(array))
                keep = None if inputs.dropout_keep is None else tf.constant(inputs.dropout_keep)
                others = {name: value for name, value in vars(mask).items() if name not in floats}
                cotangent = None if inputs.cotangent is None else to_tensor(inputs.cotangent, tf_dtype)
                computed, found = compute(floats, {**others, "dropout_keep": keep}, cotangent)
            arrays: Any = {name: to_numpy(array) for name, array in computed._asdict().items() if array is not None}
            if found is None:
                return Trace(**arrays)
            d_floats, d_variables = found
            by_name = {name: to_numpy(gradient) for name, gradient in d_floats.items()}
            return Trace(**arrays, gradients={**by_name, **canonical(d_variables)})

        return run
