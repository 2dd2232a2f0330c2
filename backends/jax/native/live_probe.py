"""Live Flax layers run on probes (see `mha_core.live.probe`). Running one does not change it.

Each probe is one program, which is compiled once for all layers with an equal program.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from numpy.typing import NDArray

from backends.jax.backend import COMPILER_OPTIONS
from backends.jax.native.trees import pure_dict
from backends.jax.ops.framework import JAX_DTYPES, has_values, scope, to_numpy
from backends.jax.weights import Variables
from mha_core import AttentionConfig, AttentionInputs
from mha_core.call.masks import allowed_keys
from mha_core.dtypes import DTYPES
from mha_core.live.probe import Reading, Words, cannot_run, check_reading
from mha_core.weights import Weights

SUBJECTS = "backends.jax.native.subjects"
LINEN = f"{SUBJECTS}:LinenMultiHeadDotProductAttentionSubject"
NNX = f"{SUBJECTS}:NnxMultiHeadAttentionSubject"
NNX_DROPOUT = f"{SUBJECTS}:NnxMultiHeadAttentionDropoutSubject"
D2L = f"{SUBJECTS}:D2lMultiHeadAttentionSubject"

_probing: ContextVar[bool] = ContextVar("_probing", default=False)


def is_probing() -> bool:
    """Return whether a check of a layer's weights is calling the layer now. Such calls are not recorded."""
    return _probing.get()


def check_linen(layer: nn.Module, config: AttentionConfig, weights: Weights, variables: Variables) -> None:
    """Raise SpecError unless a linen `layer(inputs_q, inputs_k, inputs_v)` computes attention with these weights."""
    own, cross = layer.clone(parent=None), not isinstance(layer, nn.SelfAttention)
    # It may be said to the layer or in the call, and not in both.
    told: dict[str, Any] = {"deterministic": True} if layer.deterministic is None else {}

    def program(variables: Any, mask: Array | None, *inputs: Array) -> Any:
        return own.apply(variables, *inputs, mask=mask, **told)

    words = Words(cross=cross, masks=("allowed", "causal"))
    _check(layer, config, weights, program, words=words, variables=variables, native=LINEN)


def check_nnx(layer: nnx.Module, config: AttentionConfig, weights: Weights) -> None:
    """Raise SpecError unless an nnx `layer(inputs_q, inputs_k, inputs_v)` computes attention with these weights."""
    graph, state = nnx.split(layer)

    def program(state: Any, mask: Array | None, *inputs: Array) -> Any:
        merged: Any = nnx.merge(graph, state)
        return merged(*inputs, mask=mask, deterministic=True, decode=False)

    natives = NNX_DROPOUT if config.dropout else NNX  # which computes by another function
    words = Words(masks=("allowed", "causal"))
    _check(layer, config, weights, program, words=words, variables=state, native=natives)


def check_d2l(layer: nn.Module, config: AttentionConfig, weights: Weights, variables: Variables) -> None:
    """Raise SpecError unless `layer(queries, keys, values, valid_lens)` computes attention with these weights."""
    own = layer.clone(parent=None)

    def program(variables: Any, lens: Array | None, *inputs: Array) -> Any:
        answer = own.apply(variables, *inputs, lens)
        return answer[0] if isinstance(answer, tuple) else answer

    _check(layer, config, weights, program, words=Words(masks=("valid_lens",)), variables=variables, native=D2L)


def _shown(program: Callable[..., Any], *given: Any) -> dict[str, NDArray]:
    """The output by name, of one compiled program, in which the layer itself is a constant.

    Operation by operation instead if the layer reads numbers of its arrays, or if its program can't be compiled, as
    jax.nn's fused attention in float16 on CPUs.
    """
    try:
        lowered = jax.jit(program).lower(*given)
    except (jax.errors.JAXTypeError, ValueError):
        return {"output": to_numpy(program(*given))}
    # By the program and not by the layer, whose class may have been changed meanwhile.
    key = hashlib.sha256(f"{given[-1].devices()}{jax.tree.structure(given)}{lowered.as_text()}".encode()).digest()
    if key not in _compiled:
        if len(_compiled) >= COMPILED:
            _compiled.pop(next(iter(_compiled)))
        options: dict[str, Any] = dict(COMPILER_OPTIONS.get(jax.default_backend(), {}))
        _compiled[key] = lowered.compile(options)
    return {"output": to_numpy(_compiled[key](*given))}


COMPILED = 64
"""Number of compiled programs that are kept, since most models repeat one kind of layer."""

_compiled: dict[bytes, Any] = {}


def _check(
    layer: Any,
    config: AttentionConfig,
    weights: Weights,
    program: Callable[..., Any],
    *,
    words: Words,
    variables: Any,
    native: str,
) -> None:
    """Check a layer that `program` runs on (variables, mask or lengths, queries, and keys and values if it crosses)."""
    name, own = type(layer).__name__, getattr(layer, "dtype", None)
    # The dtype that it computes in: its own, or else that of its parameters.
    leaves = jax.tree.leaves(pure_dict(nnx.state(layer, nnx.Param)) if isinstance(layer, nnx.Module) else variables)
    dtype = str(jnp.dtype(own if own is not None else leaves[0].dtype))
    if not has_values(variables):
        raise cannot_run(name, "this runs while JAX traces (jit, grad, vmap), where arrays have no numbers")
    if dtype not in DTYPES:
        raise cannot_run(name, f"it computes in {dtype}")

    def run(inputs: AttentionInputs) -> Mapping[str, NDArray]:
        mask = inputs.mask.valid_lens
        if "valid_lens" not in words.masks and inputs.mask.has_sources:
            mask = allowed_keys(inputs.mask, inputs.check(config), config.num_heads)
        arrays = (inputs.queries, inputs.keys, inputs.values)[: 3 if words.cross else 1]
        given = [jnp.asarray(array.astype(JAX_DTYPES[dtype])) for array in arrays]
        return _shown(program, variables, None if mask is None else jnp.asarray(mask), *given)

    with _as_ever(dtype, variables):
        check_reading(Reading(name, config, weights, run, dtype, words, natives=(native,)))


@contextmanager
def _as_ever(dtype: str, variables: Any) -> Iterator[None]:
    """Inside, computation is on the variables' device, with float64 if `dtype` is that, in full precision.

    `is_probing` returns True inside.
    """
    leaf = next(iter(jax.tree.leaves(variables)))
    device = next(iter(leaf.devices())) if isinstance(leaf, jax.Array) else jax.local_devices(backend="cpu")[0]
    token = _probing.set(True)
    try:
        with scope(dtype, device), jax.default_matmul_precision("highest"):
            yield
    finally:
        _probing.reset(token)
