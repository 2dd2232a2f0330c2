"""The contract in MXNet: NumPy in, run on a device, NumPy out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numpy.typing import NDArray

from backends.mxnet.layers import MultiHeadAttention
from backends.mxnet.ops import framework
from backends.mxnet.ops.framework import MXNET_DTYPES, mx, to_array, to_numpy
from backends.mxnet.weights import from_weights, named_parameters
from mha_core.backend import Backend, Run
from mha_core.call.inputs import AttentionInputs
from mha_core.config import AttentionConfig
from mha_core.stages import Trace
from mha_core.weights import Weights


class Output(NamedTuple):
    """All that a fast path shows of the stages."""

    output: mx.np.ndarray


class MXNetBackend(Backend):
    """backends.mxnet.MultiHeadAttention behind the contract."""

    name = "mxnet"

    def versions(self) -> dict[str, str]:
        return {"mxnet": mx.__version__}

    def devices(self) -> tuple[str, ...]:
        return framework.devices()

    def dtypes(self, device: str) -> tuple[str, ...]:
        return MXNET_DTYPES

    def paths(self) -> tuple[str, ...]:
        return ("eager", "fast", "blocks")

    def build(self, config: AttentionConfig, weights: Weights, dtype: str, device: str, path: str) -> Run:
        ctx = framework.context_of(device)
        layer = from_weights(config, weights, dtype=dtype, ctx=ctx)
        call = _calls(layer)[path]

        @mx.util.use_np
        def run(inputs: AttentionInputs) -> Trace:
            leaves = {name: to_array(getattr(inputs, name), dtype, ctx) for name in ("queries", "keys", "values")}
            optional = {
                "past_keys": inputs.past_keys,
                "past_values": inputs.past_values,
                "bias": inputs.mask.bias,
            }
            leaves.update({name: to_array(array, dtype, ctx) for name, array in optional.items() if array is not None})
            arguments = {**vars(inputs.mask), **leaves, "dropout_keep": inputs.dropout_keep}
            training = inputs.dropout_keep is not None
            if inputs.cotangent is None:
                with mx.autograd.pause(train_mode=training):
                    stages = call(**arguments)
                gradients = None
            else:
                for array in leaves.values():
                    array.attach_grad()
                with mx.autograd.record(train_mode=training):
                    stages = call(**arguments)
                stages.output.backward(to_array(inputs.cotangent, dtype, ctx))
                gradients = _gradients(layer, leaves)
            # Reading the arrays waits for them, so an error that MXNet put off comes out here.
            arrays = {name: to_numpy(stage) for name, stage in stages._asdict().items()}
            return Trace(**arrays, gradients=gradients)

        return run


def _calls(layer: MultiHeadAttention) -> dict[str, Callable[..., Any]]:
    """What each path calls; its result has the stages that the path shows as attributes."""
    return {
        "eager": layer.stages,
        "fast": lambda **arguments: Output(layer.attend(**arguments).output),
        "blocks": lambda **arguments: Output(layer.attend(**arguments, query_block=2).output),
    }


def _gradients(layer: MultiHeadAttention, leaves: dict[str, mx.np.ndarray]) -> dict[str, NDArray]:
    """Gradients by their public names: inputs, additive bias, parameters."""
    gradients = {name: array.grad for name, array in leaves.items()}
    gradients.update({name: parameter.grad() for name, parameter in named_parameters(layer).items()})
    return {name: to_numpy(gradient) for name, gradient in gradients.items()}
