"""The contract in JAX: NumPy in, run on a device, NumPy out."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import flax
import jax
from jax import Array

from backends.jax.ops import framework
from backends.jax.ops.framework import JAX_DTYPES, to_array, to_numpy
from backends.jax.weights import Variables, from_weights, to_canonical
from mha_core.backend import Backend, Run
from mha_core.call.inputs import AttentionInputs
from mha_core.config import AttentionConfig
from mha_core.stages import Trace
from mha_core.weights import Weights

FLOATS = ("queries", "keys", "values", "past_keys", "past_values", "bias")
"""The arguments that gradients are taken of."""

METHODS: dict[str, dict[str, Any]] = {
    "compiled": {"method": "stages"},
    "eager": {"method": "stages"},
    "fast": {"method": "attend"},
    "blocks": {"method": "attend", "query_block": 2},
}
"""What each path calls."""

# Every new shape is compiled. Without LLVM's optimisation that takes a third of the time; the graph,
# its fusions and the library calls in it are the same.
COMPILER_OPTIONS = {"cpu": {"xla_backend_optimization_level": 0}}


class JaxBackend(Backend):
    """backends.jax.MultiHeadAttention behind the contract: under jax.jit as its users run it, or op by op, slowly."""

    name = "jax"
    slow_to_prepare = True

    def versions(self) -> dict[str, str]:
        return {"jax": jax.__version__, "jaxlib": version("jaxlib"), "flax": flax.__version__}

    def devices(self) -> tuple[str, ...]:
        return framework.devices()

    def dtypes(self, device: str) -> tuple[str, ...]:
        return framework.dtypes(device)

    def paths(self) -> tuple[str, ...]:
        return ("compiled", "eager", "fast", "blocks")

    def build(self, config: AttentionConfig, weights: Weights, dtype: str, device: str, path: str) -> Run:
        jax_device, jax_dtype = framework.device_of(device), JAX_DTYPES[dtype]
        with framework.scope(dtype, jax_device):
            layer, variables = from_weights(config, weights, dtype=jax_dtype)

        def compute(
            variables: Variables,
            floats: dict[str, Any],
            others: dict[str, Any],
            cotangent: Array | None,
            options: tuple[tuple[str, Any], ...],
        ) -> tuple[dict[str, Array], Any]:
            """What the path exposes; with a cotangent also the gradients of `variables` and `floats`."""

            def forward(variables: Variables, floats: dict[str, Any]) -> tuple[Array, dict[str, Array]]:
                result: Any = layer.apply(variables, **floats, **others, **dict(options), **METHODS[path])
                exposed = result._asdict()
                exposed.pop("present", None)
                return result.output, exposed

            if cotangent is None:
                return forward(variables, floats)[1], None
            _, pull_back, stages = jax.vjp(forward, variables, floats, has_aux=True)
            return stages, pull_back(cotangent)

        if path != "eager":
            compiler_options = COMPILER_OPTIONS.get(jax_device.platform)
            compute = jax.jit(compute, static_argnames="options", compiler_options=compiler_options)

        def run(inputs: AttentionInputs) -> Trace:
            options: dict[str, Any] = {"deterministic": inputs.dropout_keep is None}
            floats, others = {}, {}
            with framework.scope(dtype, jax_device):
                arguments = {
                    "queries": inputs.queries,
                    "keys": inputs.keys,
                    "values": inputs.values,
                    "dropout_keep": inputs.dropout_keep,
                    "past_keys": inputs.past_keys,
                    "past_values": inputs.past_values,
                    **vars(inputs.mask),
                }
                for name, value in arguments.items():
                    if name in FLOATS and value is not None:
                        floats[name] = to_array(name, value.astype(jax_dtype))
                    elif hasattr(value, "shape"):
                        others[name] = to_array(name, value)
                    else:
                        options[name] = value
                cotangent = None
                if inputs.cotangent is not None:
                    cotangent = to_array("cotangent", inputs.cotangent.astype(jax_dtype))
                stages, gradients = compute(variables, floats, others, cotangent, tuple(options.items()))
            arrays: Any = {name: to_numpy(stage) for name, stage in stages.items()}
            if gradients is None:
                return Trace(**arrays)
            d_variables, d_floats = gradients
            by_name = {name: to_numpy(gradient) for name, gradient in d_floats.items()}
            return Trace(**arrays, gradients={**by_name, **to_canonical(d_variables["params"])})

        return run
