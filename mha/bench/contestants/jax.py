"""JAX's contestants: flax.linen's and flax.nnx's layers, jax.nn.dot_product_attention, d2l.ai's; all under jit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx
from jax import Array

from backends.jax.backend import JaxBackend
from backends.jax.native.convert import to_d2l, to_linen, to_nnx
from backends.jax.ops import framework
from backends.jax.ops.framework import JAX_DTYPES, to_numpy
from backends.jax.weights import from_weights
from mha.bench.contestants.contestant import NONE_HELD, Contestant, Prepared, Scores, Task, unable
from mha.bench.workload import Answer
from mha_core.config import AttentionConfig
from mha_core.weights import Weights

Told = Mapping[str, Any]
"""Name -> array, of a contestant's arguments besides x."""

Forward = Callable[[Any, Array, Told], Any]
"""(parameters, x, told) -> output."""


def set_threads(count: int) -> str:
    return f"XLA's threads, one for each of the process's {count} processors"


BACKEND = JaxBackend()
versions, devices, dtypes = BACKEND.versions, BACKEND.devices, BACKEND.dtypes


def product(size: int, dtype: str, device: str) -> Callable[[], Any]:
    with framework.scope(dtype, framework.device_of(device)), _full_precision():
        a = jnp.ones((size, size), JAX_DTYPES[dtype])
        program = jax.jit(jnp.matmul).lower(a, a).compile()
    return lambda: jax.block_until_ready(program(a, a))


# Ours ----------------------------------------------------------------------------------------------------


def _ours(task: Task) -> Prepared:
    workload = task.workload
    return _applied(from_weights, task, workload.given(_same, _same), workload.positions)


# Peers ---------------------------------------------------------------------------------------------------


def _linen(task: Task) -> Prepared:
    unable(task.workload, rotary=True, window=True)
    turns = _turns(task)

    def attention_fn(queries: Array, keys: Array, values: Array, mask: Array | None) -> Array:
        return linen.dot_product_attention(_turned(queries, turns), _turned(keys, turns), values, mask=mask)

    def make(config: AttentionConfig, weights: Weights, **keywords: Any) -> Any:
        layer, variables = to_linen(replace(config, rotary=None), weights, **keywords)
        return (layer if turns is None else layer.clone(attention_fn=attention_fn)), variables

    return _applied(make, task, {"mask": _mask(task)}, {"deterministic": True})


def _d2l(task: Task) -> Prepared:
    unable(task.workload, causal=False)
    lens = task.workload.valid_lens
    return _applied(to_d2l, task, {"valid_lens": lens}, {"valid_lens": None}, lambda found: found[0])


def _applied(
    make: Callable[..., Any],
    task: Task,
    told: Told,
    static: Mapping[str, Any],
    output_of: Callable[[Any], Any] = lambda found: found,
) -> Prepared:
    """A module of flax.linen, which `make` makes of config and weights."""
    with _scope(task):
        layer, variables = make(task.workload.config, task.workload.weights, dtype=JAX_DTYPES[task.dtype])

    def forward(params: Any, x: Array, told: Told) -> Any:
        return output_of(layer.apply({"params": params}, x, x, x, **{**static, **told}))

    return _prepared(variables["params"], forward, task, told)


def _nnx(task: Task) -> Prepared:
    workload = task.workload
    unable(workload)
    with _scope(task):
        layer = to_nnx(workload.config, workload.weights, dtype=JAX_DTYPES[task.dtype])
        graph, params, *rest = nnx.split(layer, nnx.Param, ...)

    def forward(params: Any, x: Array, told: Told) -> Any:
        return nnx.merge(graph, params, *rest)(x, x, x, deterministic=True, **told)

    return _prepared(params, forward, task, {"mask": _mask(task)})


def _dot_product_attention(task: Task) -> Prepared:
    workload = task.workload
    with _scope(task):
        params = {name: _array(array.T, task) for name, array in workload.weights.items()}
    turns, window = _turns(task), workload.setting.window

    def project(params: Any, name: str, x: Array) -> Array:
        projected = x @ params[f"{name}.weight"]
        return projected + params[f"{name}.bias"] if f"{name}.bias" in params else projected

    def forward(params: Any, x: Array, told: Told) -> Array:
        queries, keys, values = (
            project(params, name, x).reshape(*x.shape[:2], heads, -1)  # (B, L, H or G, d)
            for name, heads in workload.heads_of.items()
        )
        queries, keys = _turned(queries, turns), _turned(keys, turns)
        if "past_keys" in told:
            keys = jnp.concatenate([told["past_keys"], keys], axis=1)
            values = jnp.concatenate([told["past_values"], values], axis=1)
        lens = told.get("valid_lens")
        summed = jax.nn.dot_product_attention(
            queries,
            keys,
            values,
            is_causal=workload.setting.causal,
            key_value_seq_lengths=lens,
            local_window_size=None if window is None else (window - 1, 0),
        )
        return project(params, "out_proj", summed.reshape(*x.shape[:2], -1))

    told = workload.given(lambda array: array.swapaxes(1, 2), _same)  # the past as (B, Lp, G, d)
    return _prepared(params, forward, task, told)


CONTESTANTS = (
    Contestant("ours", "ours", _ours, NONE_HELD),
    Contestant("linen.MultiHeadDotProductAttention", "peer", _linen, Scores(2, 6)),
    Contestant("nnx.MultiHeadAttention", "peer", _nnx, Scores(2, 6)),
    Contestant("matmul, jax.nn.dot_product_attention", "peer", _dot_product_attention, Scores(2, 6)),
    Contestant("d2l.ai's", "peer", _d2l, Scores(2, 4)),
)


# What they share -----------------------------------------------------------------------------------------


def _prepared(params: Any, forward: Forward, task: Task, told: Mapping[str, Any]) -> Prepared:
    def compute(params: Any, x: Array, cotangent: Array, told: Told) -> tuple[Array, ...]:
        if not task.differentiates:
            return (forward(params, x, told),)
        output, pull_back = jax.vjp(lambda params, x: forward(params, x, told), params, x)
        d_params, d_x = pull_back(cotangent)
        return output, d_x, d_params

    with _scope(task), _full_precision():
        given = (
            params,
            _array(task.workload.x, task),
            _array(task.workload.cotangent, task),
            {name: _array(array, task) for name, array in told.items() if array is not None},
        )
        program = jax.jit(compute).lower(*given).compile()

    def call() -> Any:
        return jax.block_until_ready(program(*given))

    def planned() -> int | None:
        analysis = program.memory_analysis()
        return None if analysis is None else analysis.temp_size_in_bytes + analysis.output_size_in_bytes

    return Prepared(
        call,
        lambda found: Answer(*map(to_numpy, found[:2])),
        # The device's own counter can't be reset, so XLA's plan of the program tells.
        extra_memory=None if task.device == "cpu" else planned,
    )


def _same(array: Any) -> Any:
    return array


def _scope(task: Task) -> Any:
    return framework.scope(task.dtype, framework.device_of(task.device))


def _full_precision() -> Any:
    """A context in which no contestant computes in TF32."""
    return jax.default_matmul_precision("highest")


def _array(array: Any, task: Task) -> Array:
    return jnp.asarray(array, JAX_DTYPES[task.dtype] if array.dtype.kind == "f" else None)


def _turns(task: Task) -> tuple[Array, ...] | None:
    """Cosine and sine, (L, 1, d) each; None without rotary positions."""
    turns = task.workload.turns
    return None if turns is None else tuple(_array(table[:, None], task) for table in turns)


def _turned(x: Array, turns: tuple[Array, ...] | None) -> Array:
    """(B, L, heads, d), turned as model libraries write it."""
    if turns is None:
        return x
    first, second = jnp.split(x, 2, axis=-1)
    return x * turns[0] + jnp.concatenate((-second, first), axis=-1) * turns[1]


def _mask(task: Task) -> Any:
    """Bool, True = may attend: (1, 1, Lq, Lk) or (B, 1, 1, Lk); None if all is allowed."""
    workload = task.workload
    if workload.allowed is not None:
        return jnp.asarray(workload.allowed)[None, None]
    return None if workload.within_lens is None else jnp.asarray(workload.within_lens)[:, None, None]
