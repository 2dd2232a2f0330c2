"""JAX's contestants, compiled: flax.linen's and flax.nnx's layers, jax.nn.dot_product_attention, d2l.ai's."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from backends.jax.native.convert import to_d2l, to_linen, to_nnx
from backends.jax.ops import framework
from backends.jax.ops.framework import JAX_DTYPES, to_numpy
from backends.jax.weights import from_weights
from benchmarks.peers import PLAIN_ONLY, Contestant, Prepared, linear, turned
from benchmarks.settings import Task

Told = dict[str, Any]
"""Name -> array or None, of a contestant's arguments besides x."""

Layer = tuple[Any, Callable[[Any, Array, Told], Any], Told]
"""Parameters, (parameters, x, told) -> output, and what is told."""


def _module(make: Callable[..., Any], task: Task, told: Told, **more: Any) -> Layer:
    """What `make` makes of a config and weights: a module of flax.linen and its variables."""
    layer, variables = make(task.config, task.weights, dtype=JAX_DTYPES[task.dtype])

    def forward(params: Any, x: Array, told: Told) -> Any:
        return layer.apply({"params": params}, x, x, x, **told, **more)

    return variables["params"], forward, told


def _ours(task: Task) -> Layer:
    return _module(from_weights, task, {**task.past, "valid_lens": task.valid_lens}, **task.keywords)


def _linen(task: Task) -> Layer:
    return _module(to_linen, task, {"mask": task.allowed}, deterministic=True)


def _d2l(task: Task) -> Layer:
    params, forward, told = _module(to_d2l, task, {"valid_lens": task.valid_lens})
    return params, lambda *given: forward(*given)[0], told


def _nnx(task: Task) -> Layer:
    graph, params, *rest = nnx.split(to_nnx(task.config, task.weights, dtype=JAX_DTYPES[task.dtype]), nnx.Param, ...)

    def forward(params: Any, x: Array, told: Told) -> Any:
        return nnx.merge(graph, params, *rest)(x, x, x, deterministic=True, **told)

    return params, forward, {"mask": task.allowed}


def _dot_product_attention(task: Task) -> Layer:
    window = task.setting.window
    turns = [jnp.asarray(table, JAX_DTYPES[task.dtype])[:, None] for table in task.turns or ()]  # (L, 1, d)

    def forward(params: Any, x: Array, told: Told) -> Array:
        queries, keys, values = (
            linear(params, name, x).reshape(*x.shape[:2], heads, -1)  # (B, L, H or G, d)
            for name, heads in task.heads_of.items()
        )
        queries, keys = (turned(part, turns, jnp.concatenate) for part in (queries, keys))
        if "past_keys" in told:
            keys = jnp.concatenate([told["past_keys"], keys], axis=1)
            values = jnp.concatenate([told["past_values"], values], axis=1)
        summed = jax.nn.dot_product_attention(
            *(queries, keys, values),
            is_causal=task.setting.causal,
            key_value_seq_lengths=told["valid_lens"] if told["valid_lens"] is None else jnp.int32(told["valid_lens"]),
            local_window_size=window and (window - 1, 0),
        )
        return linear(params, "out_proj", summed.reshape(*x.shape[:2], -1))

    params = {name: jnp.asarray(array.T, JAX_DTYPES[task.dtype]) for name, array in task.weights.items()}
    past = {name: array.swapaxes(1, 2) for name, array in task.past.items()}  # (B, Lp, G, d) each
    return params, forward, {**past, "valid_lens": task.valid_lens}


def _program(make: Callable[[Task], Layer]) -> Callable[[Task], Prepared]:
    """Return what prepares a layer as one program."""

    def prepare(task: Task) -> Prepared:
        with framework.scope(task.dtype, framework.device_of("cpu")):
            params, forward, told = make(task)

            def compute(params: Any, x: Array, cotangent: Array, told: Told) -> tuple[Array, ...]:
                if not task.gradients:
                    return (forward(params, x, told),)
                output, pull_back = jax.vjp(lambda params, x: forward(params, x, told), params, x)
                d_params, d_x = pull_back(cotangent)
                return output, d_x, d_params

            def array(numbers: Any) -> Array:
                return jnp.asarray(numbers, JAX_DTYPES[task.dtype] if numbers.dtype.kind == "f" else None)

            given = params, array(task.x), array(task.cotangent), jax.tree.map(array, told)
            program = jax.jit(compute).lower(*given).compile()
        return Prepared(lambda: jax.block_until_ready(program(*given)), lambda found: tuple(map(to_numpy, found[:2])))

    return prepare


CONTESTANTS = (
    Contestant("ours", _program(_ours)),
    Contestant("linen.MultiHeadDotProductAttention", _program(_linen), lacks=PLAIN_ONLY),
    Contestant("nnx.MultiHeadAttention", _program(_nnx), lacks=PLAIN_ONLY),
    Contestant("jax.nn.dot_product_attention", _program(_dot_product_attention)),
    Contestant("d2l.ai's", _program(_d2l), lacks=("causal mask", *PLAIN_ONLY)),
)
