"""Live Flax layers run on probes (see `mha_core.live.probe`). Running one does not change it.

Each probe is one program, which is compiled once for all layers with an equal program.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
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
from mha_core.call.inputs import AttentionInputs
from mha_core.call.masks import allowed_keys
from mha_core.config import AttentionConfig
from mha_core.dtypes import DTYPES
from mha_core.live.probe import Reading, RunProbe, Words, cannot_run, check_reading
from mha_core.weights import Weights

SUBJECTS = "backends.jax.native.subjects"
LINEN = f"{SUBJECTS}:LinenMultiHeadDotProductAttentionSubject"
NNX = f"{SUBJECTS}:NnxMultiHeadAttentionSubject"
NNX_DROPOUT = f"{SUBJECTS}:NnxMultiHeadAttentionDropoutSubject"
D2L = f"{SUBJECTS}:D2lMultiHeadAttentionSubject"

_probing: ContextVar[bool] = ContextVar("_probing", default=False)


def is_probing() -> bool:
    """Whether a layer is being run on a probe, so that this call is not recorded as one of its model."""
    return _probing.get()


def check_linen(layer: nn.Module, config: AttentionConfig, weights: Weights, variables: Variables) -> None:
    """SpecError unless a linen layer called (inputs_q, inputs_k, inputs_v) computes what its variables say."""
    cross = not isinstance(layer, nn.SelfAttention)
    own = layer.clone(parent=None)

    def run(inputs: AttentionInputs) -> Mapping[str, NDArray]:
        return _shown(_linen, own, variables, _arrays(inputs, config, dtype, cross=cross))

    dtype = _dtype(layer, variables)
    words = Words(cross=cross, masks=("allowed", "causal"))
    _check(layer, config, weights, run, dtype=dtype, words=words, variables=variables, native=LINEN)


def check_nnx(layer: nnx.Module, config: AttentionConfig, weights: Weights) -> None:
    """SpecError unless an nnx layer called (inputs_q, inputs_k, inputs_v) computes by its weights; a copy is run."""
    graph, state = nnx.split(layer)

    def run(inputs: AttentionInputs) -> Mapping[str, NDArray]:
        return _shown(_nnx, graph, state, _arrays(inputs, config, dtype, cross=True))

    dtype = _dtype(layer, pure_dict(nnx.state(layer, nnx.Param)))
    natives = NNX_DROPOUT if config.dropout else NNX  # which computes by another function
    words = Words(masks=("allowed", "causal"))
    _check(layer, config, weights, run, dtype=dtype, words=words, variables=state, native=natives)


def check_d2l(layer: nn.Module, config: AttentionConfig, weights: Weights, variables: Variables) -> None:
    """SpecError unless a linen layer called (queries, keys, values, valid_lens) computes what its variables say."""
    own = layer.clone(parent=None)

    def run(inputs: AttentionInputs) -> Mapping[str, NDArray]:
        given = {name: _as(getattr(inputs, name), dtype) for name in ("queries", "keys", "values")}
        lens = inputs.mask.valid_lens
        return _shown(_d2l, own, variables, {**given, "lens": None if lens is None else jnp.asarray(lens)})

    dtype = _dtype(layer, variables)
    words = Words(masks=("valid_lens",))
    _check(layer, config, weights, run, dtype=dtype, words=words, variables=variables, native=D2L)


# The programs; the layer itself is a constant in them ---------------------------------------------------------


def _linen(layer: Any, variables: Variables, given: Mapping[str, Any]) -> Any:
    inputs = [given[name] for name in ("queries", "keys", "values") if given[name] is not None]
    # It may be said to the layer or in the call, and not in both.
    told = {"deterministic": True} if layer.deterministic is None else {}
    return layer.apply(variables, *inputs, mask=given["mask"], **told)


def _nnx(graph: Any, state: Any, given: Mapping[str, Any]) -> Any:
    layer = nnx.merge(graph, state)
    return layer(given["queries"], given["keys"], given["values"], mask=given["mask"], deterministic=True, decode=False)


def _d2l(layer: Any, variables: Variables, given: Mapping[str, Any]) -> Any:
    answer = layer.apply(variables, given["queries"], given["keys"], given["values"], given["lens"])
    return answer[0] if isinstance(answer, tuple) else answer


def _shown(program: Any, layer: Any, variables: Any, given: Mapping[str, Any]) -> dict[str, NDArray]:
    """The output by name, of one compiled program.

    Operation by operation instead if the layer reads numbers of its arrays, or if its program can't be compiled, as
    jax.nn's fused attention in float16 on CPUs.
    """
    run = partial(program, layer)
    try:
        lowered = jax.jit(run).lower(variables, given)
    except (jax.errors.JAXTypeError, ValueError):
        return {"output": to_numpy(run(variables, given))}
    # By the program and not by the layer, whose class may have been changed meanwhile.
    key = hashlib.sha256(f"{jax.tree.leaves(given)[0].devices()}{lowered.as_text()}".encode()).digest()
    if key not in _compiled:
        if len(_compiled) >= COMPILED:
            _compiled.pop(next(iter(_compiled)))
        options: dict[str, Any] = dict(COMPILER_OPTIONS.get(jax.default_backend(), {}))
        _compiled[key] = lowered.compile(options)
    return {"output": to_numpy(_compiled[key](variables, given))}


COMPILED = 64
"""Number of compiled programs that are kept, since most models repeat one kind of layer."""

_compiled: dict[bytes, Any] = {}


# Between ----------------------------------------------------------------------------------------------------


def _check(
    layer: Any,
    config: AttentionConfig,
    weights: Weights,
    run: RunProbe,
    *,
    dtype: str,
    words: Words,
    variables: Any,
    native: str,
) -> None:
    name = type(layer).__name__
    if not has_values(variables):
        raise cannot_run(name, "this runs while JAX traces (jit, grad, vmap), where arrays have no numbers")
    if dtype not in DTYPES:
        raise cannot_run(name, f"it computes in {dtype}")
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


def _dtype(layer: Any, variables: Any) -> str:
    """The dtype that a layer computes in: its own `dtype`, or else that of its parameters."""
    own = getattr(layer, "dtype", None)
    return str(jnp.dtype(own if own is not None else jax.tree.leaves(variables)[0].dtype))


def _arrays(inputs: AttentionInputs, config: AttentionConfig, dtype: str, *, cross: bool) -> dict[str, Array | None]:
    names = ("queries", "keys", "values") if cross else ("queries",)
    given = {name: _as(getattr(inputs, name), dtype) for name in names}
    mask = None
    if inputs.mask.has_sources:
        mask = jnp.asarray(allowed_keys(inputs.mask, inputs.check(config), config.num_heads))
    return {"keys": None, "values": None, **given, "mask": mask}


def _as(array: NDArray, dtype: str) -> Array:
    return jnp.asarray(array.astype(JAX_DTYPES[dtype]))
