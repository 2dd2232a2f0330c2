"""The contract in TensorFlow: NumPy in, run on a device, NumPy out."""

import weakref
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from backends.tf.layers import MultiHeadAttention
from backends.tf.ops import framework
from backends.tf.ops.framework import TF_DTYPES, to_numpy, to_tensor
from backends.tf.weights import assign, canonical, from_weights, variables
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, RotaryInputs, Trace
from mha_core.backend import BLOCK, Backend, Prepared, Run
from mha_core.call.call import FLOATS, Call
from mha_core.call.results import exposed
from mha_core.call.symbols import symbols_of
from mha_core.weights import Weights

Tensors = dict[str, tf.Tensor]
Computed = tuple[Tensors, Any]
"""Stages, and the gradients of leaves and variables or None."""

COMPILED = {"compiled": False, "fast-compiled": False, "fast-xla": True}
"""Path that is traced by tf.function -> whether XLA compiles it."""


class TensorFlowBackend(Backend):
    """A backend that runs `stages` or `attend` of backends.tf.MultiHeadAttention, eagerly or in a tf.function."""

    name = "tf"
    relative_cost = 2.0

    def __init__(self) -> None:
        # Keras takes longer to make a small layer than to run it: one that nobody holds any more gets other weights.
        self._free: defaultdict[tuple[AttentionConfig, str, str], list[MultiHeadAttention]] = defaultdict(list)

    def versions(self) -> dict[str, str]:
        return {"tensorflow": tf.__version__, "keras": keras.__version__}

    def devices(self) -> tuple[str, ...]:
        return framework.devices()

    def dtypes(self, device: str) -> tuple[str, ...]:
        return tuple(TF_DTYPES)

    def paths(self) -> tuple[str, ...]:
        return ("eager", "compiled", "fast", "fast-compiled", "fast-xla", "blocks", "exported")

    def build(self, config: AttentionConfig, weights: Weights, dtype: str, device: str, path: str) -> Run:
        tf_device, tf_dtype = framework.device_of(device), TF_DTYPES[dtype]
        free = self._free[config, dtype, device]
        with tf.device(tf_device):
            if free:
                assign(layer := free.pop(), weights)
            else:
                layer = from_weights(config, weights, dtype=dtype)

        run_call = layer.stages if path in ("eager", "compiled") else layer.attend
        if path == "blocks":
            run_call = partial(layer.attend, query_block=BLOCK)

        def compute(leaves: Tensors, others: dict[str, Any], training: bool, cotangent: tf.Tensor | None) -> Computed:
            """Return the stages that the path exposes; with a cotangent also the gradients of leaves and variables."""
            if cotangent is None:
                return exposed(run_call(_call_of(leaves, **others), training=training)), None
            with tf.GradientTape() as tape:
                tape.watch(leaves)
                made = run_call(_call_of(leaves, **others), training=training)
            # 0 where no path leads to a leaf
            zero = tf.UnconnectedGradients.ZERO
            sources = leaves, variables(layer)
            return exposed(made), tape.gradient(made.output, sources, cotangent, unconnected_gradients=zero)

        if path in COMPILED:
            # AutoGraph would rewrite each function first; within a call of any Keras layer it rewrites none.
            compute = tf.function(compute, jit_compile=COMPILED[path], autograph=False)
        elif path == "exported":
            compute = _exported(compute)

        def run(inputs: AttentionInputs) -> Trace:
            with framework.full_precision(), tf.device(tf_device):
                leaves = {name: to_tensor(array, tf_dtype) for name, array in inputs.leaves().items()}
                tables = {name: to_tensor(array, tf_dtype) for name, array in inputs.tables().items()}
                call = inputs.call_with(leaves | tables, lambda _, array: tf.constant(array))
                rotary = None if call.rotary is None else vars(call.rotary)
                others = {**vars(call.mask), "bias": None, "dropout_keep": call.dropout_keep, "rotary": rotary}
                cotangent = None if inputs.cotangent is None else to_tensor(inputs.cotangent, tf_dtype)
                stages, found = compute(leaves, others, inputs.is_training, cotangent)
            arrays: Any = {name: to_numpy(stage) for name, stage in stages.items()}
            if found is None:
                return Trace(**arrays)
            d_leaves, d_variables = found
            by_name = {name: to_numpy(gradient) for name, gradient in d_leaves.items()}
            return Trace(**arrays, gradients={**by_name, **canonical(d_variables)})

        def set_weights(weights: Weights) -> None:
            with tf.device(tf_device):
                assign(layer, weights)

        prepared = Prepared(run, set_weights)
        weakref.finalize(prepared, free.append, layer).atexit = False
        return prepared


def _exported(compute: Callable[..., Computed]) -> Callable[..., Computed]:
    """Return what a path computes, by programs of tf.function that have None for the sizes of a call."""
    programs: dict[Any, Any] = {}

    def exported(leaves: Tensors, others: dict[str, Any], training: bool, cotangent: tf.Tensor | None) -> Computed:
        rotary = others["rotary"] or {}
        given = {**others, **rotary, **leaves, "cotangent": cotangent}
        arrays = {name: value for name, value in given.items() if tf.is_tensor(value)}
        symbols = symbols_of({name: tuple(array.shape) for name, array in arrays.items()})
        signature = {
            name: tf.TensorSpec(
                [None if symbol else size for symbol, size in zip(symbols[name], array.shape, strict=True)], array.dtype
            )
            for name, array in arrays.items()
        }
        rules = [(name, value) for name, value in others.items() if name not in arrays and name != "rotary"]
        form = (training, *rules, *signature.items())

        def whole(arrays: Tensors) -> Computed:
            def part(own: dict[str, Any]) -> dict[str, Any]:
                return {name: arrays.get(name, value) for name, value in own.items()}

            traced = {**part(others), "rotary": part(rotary) or None}
            return compute(part(leaves), traced, training, arrays.get("cotangent"))

        if form not in programs:
            programs[form] = tf.function(whole, autograph=False).get_concrete_function(signature)
        return programs[form](arrays)

    return exported


def _call_of(
    leaves: Tensors, dropout_keep: tf.Tensor | None, rotary: dict[str, Any] | None, **sources: Any
) -> Call[tf.Tensor]:
    """The Call with these leaves and other sources of its mask; made while tracing, since it can't be an argument."""
    mask = AttentionMask(**{**sources, "bias": leaves.get("bias")})
    floats = {name: leaves.get(name) for name in FLOATS}
    stands = None if rotary is None else RotaryInputs(**rotary)
    return Call(mask=mask, dropout_keep=dropout_keep, rotary=stands, **floats)
