"""The contract in JAX: NumPy in, run on a device, NumPy out."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import flax
import jax
import jax.export
import numpy as np
from jax import Array

from backends.jax.layers import MultiHeadAttention
from backends.jax.ops import framework
from backends.jax.ops.framework import JAX_DTYPES, to_array, to_numpy
from backends.jax.programs import CompilerOptions, KeptProgram, accepted, kept_in, origin
from backends.jax.weights import Variables, from_weights, to_canonical
from mha_core import AttentionConfig, AttentionInputs, Trace
from mha_core.backend import BLOCK, OPTIMIZED, Backend, Prepared, Run
from mha_core.call.call import Call
from mha_core.call.results import exposed
from mha_core.call.symbols import Rules, put_together, symbols_of, taken_apart
from mha_core.files.kept import Kept
from mha_core.weights import Weights

METHODS: dict[str, dict[str, Any]] = {
    "compiled": {"method": "stages"},
    "eager": {"method": "stages"},
    "fast": {"method": "attend"},
    "blocks": {"method": "attend", "query_block": BLOCK},
    "exported": {"method": "attend"},
}
"""Path -> the keyword arguments of `layer.apply` for it: the method, and the options of that."""

Arrays = dict[str, Array]

METHODS |= {optimized: METHODS[path] for path, optimized in OPTIMIZED.items()}

# Hundreds of small programs are compiled here, each for a few calls. XLA's older code generator, in one thread and
# without LLVM's optimisation, takes a third of the time; the graph and the library calls in it are the same.
COMPILER_OPTIONS: dict[str, CompilerOptions] = {
    "cpu": {
        "xla_cpu_use_fusion_emitters": False,
        "xla_cpu_parallel_codegen_split_count": 1,
        "xla_backend_optimization_level": 0,
    }
}
"""Platform -> with what the programs of this backend are compiled. A user's own `jax.jit` of a layer has none of it."""


class JaxBackend(Backend):
    """A backend that runs backends.jax.MultiHeadAttention, either under jax.jit or operation by operation."""

    name = "jax"
    slow_to_prepare = True
    relative_cost = 5.0

    def __init__(self) -> None:
        self._kept: Kept | None = None

    def use_cache(self, folder: Path | None) -> None:
        self._kept = None if folder is None else kept_in(folder, self.versions(), options_for("cpu"))

    def versions(self) -> dict[str, str]:
        return {"jax": jax.__version__, "jaxlib": version("jaxlib"), "flax": flax.__version__}

    def devices(self) -> tuple[str, ...]:
        return framework.devices()

    def dtypes(self, device: str) -> tuple[str, ...]:
        return framework.dtypes(device)

    def paths(self) -> tuple[str, ...]:
        return ("compiled", "eager", "fast", "blocks", "optimized", "fast-optimized", "exported")

    def build(self, config: AttentionConfig, weights: Weights, dtype: str, device: str, path: str) -> Run:
        jax_device, jax_dtype = framework.device_of(device), JAX_DTYPES[dtype]
        with framework.scope(dtype, jax_device):
            layer, variables = from_weights(config, weights, dtype=jax_dtype)

        compute = _program(layer, path, jax_device, self._kept)

        def run(inputs: AttentionInputs) -> Trace:
            with framework.scope(dtype, jax_device):
                leaves = {name: to_array(name, array.astype(jax_dtype)) for name, array in inputs.leaves().items()}
                tables = {name: to_array(name, array.astype(jax_dtype)) for name, array in inputs.tables().items()}
                call = inputs.call_with(leaves | tables, to_array)
                if path != "eager" and config.rotary is None:
                    call = _with_traced_offset(call)
                others, rules = taken_apart(call, Array)
                others = {name: array for name, array in others.items() if name not in leaves}
                cotangent = None
                if inputs.cotangent is not None:
                    cotangent = to_array("cotangent", inputs.cotangent.astype(jax_dtype))
                stages, found = compute(variables, leaves, others, rules, inputs.is_training, cotangent)
            gradients = None
            if found is not None:
                d_variables, d_leaves = found
                by_name = {name: to_numpy(gradient) for name, gradient in d_leaves.items()}
                gradients = {**by_name, **to_canonical(d_variables["params"])}
            return Trace(**{name: to_numpy(stage) for name, stage in stages.items()}, gradients=gradients)

        def set_weights(weights: Weights) -> None:
            nonlocal variables  # they are an argument of the compiled program
            with framework.scope(dtype, jax_device):
                variables = from_weights(config, weights, dtype=jax_dtype)[1]

        return Prepared(run, set_weights)


@lru_cache(maxsize=16)
def _program(
    layer: MultiHeadAttention, path: str, device: jax.Device, kept: Kept | None
) -> Callable[..., tuple[Arrays, Any]]:
    """What a path of a layer computes; compiled unless it is "eager".

    Layers of equal fields have one function, so that calls of equal shapes and rules are compiled once for all of them.

    Args:
        layer, path: what is computed.
        device: where.
        kept: where compiled programs are kept; None for nowhere.
    """

    def compute(
        variables: Variables, leaves: Arrays, others: Arrays, rules: Rules, training: bool, cotangent: Array | None
    ) -> tuple[Arrays, Any]:
        """Return the stages that the path exposes; with a cotangent also the gradients of `variables` and `leaves`."""

        def forward(variables: Variables, leaves: Arrays) -> tuple[Array, Arrays]:
            call = put_together({**leaves, **others}, rules)
            made: Any = layer.apply(variables, call, deterministic=not training, **METHODS[path])
            return made.output, exposed(made)

        if cotangent is None:
            return forward(variables, leaves)[1], None
        _, pull_back, stages = jax.vjp(forward, variables, leaves, has_aux=True)
        return stages, pull_back(cotangent)

    if path == "eager":
        return compute
    if path == "exported":
        return _exported(compute)
    static = (3, 4)  # rules, training
    options = None if path in OPTIMIZED.values() else options_for(device.platform)
    compiled = jax.jit(compute, static_argnums=static, compiler_options=options)
    # What an accelerator's programs depend on is more than `kept_in` knows.
    if kept is None or device.platform != "cpu":
        return compiled
    return KeptProgram(compiled, static, device, kept, origin=origin(layer, path), options=options)


@cache
def options_for(platform: str) -> CompilerOptions | None:
    """Return a platform's XLA compiler options that this jaxlib knows. Return None if the platform has no options."""
    options = COMPILER_OPTIONS.get(platform)
    return None if options is None else accepted(options)


def _with_traced_offset(call: Call[Array]) -> Call[Array]:
    """The call with an array (B,) in place of one offset of all queries, which would need a program of its own."""
    mask = call.mask
    if not (mask.has_positions and isinstance(mask.query_offset, int)):
        return call
    offsets = to_array("query_offset", np.full(len(call.queries), mask.query_offset))
    return replace(call, mask=replace(mask, query_offset=offsets))


def _exported(compute: Callable[..., tuple[Arrays, Any]]) -> Callable[..., tuple[Arrays, Any]]:
    """Return what a path computes, by programs of jax.export with symbols for the sizes of a call."""
    programs: dict[Any, Any] = {}

    def exported(
        variables: Variables, leaves: Arrays, others: Arrays, rules: Rules, training: bool, cotangent: Array | None
    ) -> tuple[Arrays, Any]:
        arrays = {**leaves, **others} if cotangent is None else {**leaves, **others, "cotangent": cotangent}
        symbols = symbols_of({name: array.shape for name, array in arrays.items()})
        texts = {
            name: ", ".join(symbol or str(size) for symbol, size in zip(symbols[name], array.shape, strict=True))
            for name, array in arrays.items()
        }
        form = (rules, training, *texts.items(), *(array.dtype for array in arrays.values()))

        def whole(variables: Variables, arrays: Arrays) -> tuple[Arrays, Any]:
            own = [{name: arrays[name] for name in part} for part in (leaves, others)]
            return compute(variables, *own, rules, training, arrays.get("cotangent"))

        if form not in programs:
            scope = jax.export.SymbolicScope()
            specs = {
                name: jax.ShapeDtypeStruct(jax.export.symbolic_shape(texts[name], scope=scope), array.dtype)
                for name, array in arrays.items()
            }
            programs[form] = jax.export.export(jax.jit(whole))(variables, specs)
        return programs[form].call(variables, arrays)

    return exported
