"""The contract in MXNet: NumPy in, run on a device, NumPy out."""

from collections.abc import Callable
from functools import partial
from typing import Any

from backends.mxnet.ops import framework
from backends.mxnet.ops.framework import MXNET_DTYPES, mx, to_array, to_numpy
from backends.mxnet.weights import from_weights, named_parameters
from mha_core import AttentionConfig, AttentionInputs, Trace
from mha_core.backend import BLOCK, Backend, Prepared, Run
from mha_core.call.call import Call
from mha_core.call.results import Attended, Stages, exposed
from mha_core.weights import Weights

Compute = Callable[[Call[Any]], Stages[mx.np.ndarray] | Attended[mx.np.ndarray]]


class MXNetBackend(Backend):
    """A backend that runs backends.mxnet.MultiHeadAttention."""

    name = "mxnet"
    relative_cost = 1.2

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
        compute: Compute = layer.stages if path == "eager" else layer.attend
        if path == "blocks":
            compute = partial(layer.attend, query_block=BLOCK)

        @mx.util.use_np
        def run(inputs: AttentionInputs) -> Trace:
            leaves = {name: to_array(array, dtype, ctx) for name, array in inputs.leaves().items()}
            tables = {name: to_array(array, dtype, ctx) for name, array in inputs.tables().items()}
            call = inputs.call_with(leaves | tables, lambda _, array: array)  # the layer takes NumPy's other arrays
            gradients = None
            if inputs.cotangent is None:
                with mx.autograd.pause(train_mode=inputs.is_training):
                    made = compute(call)
            else:
                for array in leaves.values():
                    array.attach_grad()
                with mx.autograd.record(train_mode=inputs.is_training):
                    made = compute(call)
                made.output.backward(to_array(inputs.cotangent, dtype, ctx))
                found = {name: array.grad for name, array in leaves.items()}
                found |= {name: parameter.grad() for name, parameter in named_parameters(layer).items()}
                gradients = {name: to_numpy(array) for name, array in found.items()}
            # Reading the arrays waits for them, so an error that MXNet put off comes out here.
            return Trace(**{name: to_numpy(stage) for name, stage in exposed(made).items()}, gradients=gradients)

        @mx.util.use_np
        def set_weights(weights: Weights) -> None:
            given = named_parameters(from_weights(config, weights, dtype=dtype, ctx=ctx))
            for name, parameter in named_parameters(layer).items():
                parameter.set_data(given[name].data())

        return Prepared(run, set_weights)
