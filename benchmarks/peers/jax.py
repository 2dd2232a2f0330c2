"""JAX's contestants, compiled: flax.linen's and flax.nnx's layers, jax.nn.dot_product_attention, d2l.ai's."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax

from backends.jax.native.convert import to_d2l, to_linen, to_nnx
from backends.jax.ops import framework
from backends.jax.ops.framework import JAX_DTYPES, to_numpy
from backends.jax.weights import from_weights
from benchmarks.peers import PLAIN_ONLY, Contestant, Prepared, linear, turned
from benchmarks.settings import IN_PLACE, Task

Told = dict[str, Any]
"""Name -> array or None, of a contestant's arguments besides x; "cache" is a dict of those that are donated."""

Layer = tuple[Any, Callable[[Any, Array, Told], Any], Told]
"""Parameters, (parameters, x, told) -> output, and what is told. With a cache: -> output and cache."""


def _module(make: Callable[..., Any], task: Task, told: Told, **more: Any) -> Layer:
    """What `make` makes of a config and weights: a module of flax.linen and its variables."""
    layer, variables = make(task.config, task.weights, dtype=JAX_DTYPES[task.dtype])

    def forward(params: Any, x: Array, told: Told) -> Any:
        return layer.apply({"params": params}, x, x, x, **told, **more)

    return variables["params"], forward, told


def _ours(task: Task) -> Layer:
    if task.setting.form == IN_PLACE:
        return _our_step(task)
    return _module(from_weights, task, {**task.past, "valid_lens": task.valid_lens}, **task.keywords)


def _our_step(task: Task) -> Layer:
    """A cache with as much room as the peers', of which the layer is told how much is filled; it gives the new rows."""
    layer, variables = from_weights(task.config, task.weights, dtype=JAX_DTYPES[task.dtype])

    def forward(params: Any, x: Array, told: Told) -> tuple[Array, Told]:
        cache, filled = told["cache"], told["filled"]
        size = task.setting.key_len
        rows = jnp.arange(size + 1)  # of the cache, and the new one
        output, made = layer.apply(
            {"params": params},
            *(x, x, x),
            allowed=((rows < filled) | (rows == size))[None, None, None],
            rotary=tuple(told["turns"]) or None,
            **cache,
            return_present=True,
        )
        return output, {name: array[:, :, size:] for name, array in zip(cache, made, strict=True)}

    half = task.config.head_dim // 2
    turns = [table[:, :half] for table in task.turns or ()]
    return variables["params"], forward, {**_room(task), "turns": turns}


@partial(jax.jit, donate_argnums=0)
def _written(cache: Told, news: Told, filled: Array) -> Told:
    """The cache with new rows. In the program that reads the cache XLA would copy it before it writes."""
    return {name: lax.dynamic_update_slice_in_dim(old, news[name], filled, axis=2) for name, old in cache.items()}


def _linen(task: Task) -> Layer:
    if task.setting.form != IN_PLACE:
        return _module(to_linen, task, {"mask": task.allowed}, deterministic=True)
    layer, variables = to_linen(task.config, task.weights, dtype=JAX_DTYPES[task.dtype])
    layer = layer.clone(decode=True)

    def forward(params: Any, x: Array, told: Told) -> tuple[Array, Told]:
        given = {"params": params, "cache": {**told["cache"], "cache_index": told["filled"]}}
        output, changed = layer.apply(given, x, mutable=["cache"])
        return output, {name: changed["cache"][name] for name in told["cache"]}

    room = _room(task, time_first=True)
    room["cache"] = {f"cached_{name.removeprefix('past_')[:-1]}": array for name, array in room["cache"].items()}
    return variables["params"], forward, room


def _room(task: Task, *, time_first: bool = False) -> Told:
    """Past keys and values with room for the new ones, (B, G, L, d) or (B, L, G, d), and how many rows are filled."""
    padded = {
        name: np.pad(array, ((0, 0), (0, 0), (0, task.setting.length), (0, 0))) for name, array in task.past.items()
    }
    cache = {name: array.swapaxes(1, 2) if time_first else array for name, array in padded.items()}
    return {"cache": cache, "filled": np.int32(task.setting.past)}


def _d2l(task: Task) -> Layer:
    params, forward, told = _module(to_d2l, task, {"valid_lens": task.valid_lens})
    return params, lambda *given: forward(*given)[0], told


def _nnx(task: Task) -> Layer:
    graph, params, *rest = nnx.split(to_nnx(task.config, task.weights, dtype=JAX_DTYPES[task.dtype]), nnx.Param, ...)

    def forward(params: Any, x: Array, told: Told) -> Any:
        return nnx.merge(graph, params, *rest)(x, x, x, deterministic=True, **told)

    return params, forward, {"mask": task.allowed}


def _dot_product_attention(task: Task) -> Layer:
    window, in_place = task.setting.window, task.setting.form == IN_PLACE
    turns = [jnp.asarray(table, JAX_DTYPES[task.dtype])[:, None] for table in task.turns or ()]  # (L, 1, d)

    def forward(params: Any, x: Array, told: Told) -> Any:
        queries, keys, values = (
            linear(params, name, x).reshape(*x.shape[:2], heads, -1)  # (B, L, H or G, d)
            for name, heads in task.heads_of.items()
        )
        queries, keys = (turned(part, turns, jnp.concatenate) for part in (queries, keys))
        if in_place:
            keys, values = (
                lax.dynamic_update_slice_in_dim(room, new, told["filled"], axis=1)
                for room, new in zip(told["cache"].values(), (keys, values), strict=True)
            )
        elif "past_keys" in told:
            keys = jnp.concatenate([told["past_keys"], keys], axis=1)
            values = jnp.concatenate([told["past_values"], values], axis=1)
        lens = jnp.full(len(x), told["filled"] + 1) if in_place else told["valid_lens"]
        summed = jax.nn.dot_product_attention(
            *(queries, keys, values),
            is_causal=task.setting.causal,
            key_value_seq_lengths=lens if lens is None else jnp.int32(lens),
            local_window_size=window and (window - 1, 0),
        )
        output = linear(params, "out_proj", summed.reshape(*x.shape[:2], -1))
        return (output, dict(zip(told["cache"], (keys, values), strict=True))) if in_place else output

    params = {name: jnp.asarray(array.T, JAX_DTYPES[task.dtype]) for name, array in task.weights.items()}
    if in_place:
        return params, forward, _room(task, time_first=True)
    past = {name: array.swapaxes(1, 2) for name, array in task.past.items()}  # (B, Lp, G, d) each
    return params, forward, {**past, "valid_lens": task.valid_lens}


def _program(make: Callable[[Task], Layer], write: Any = None) -> Callable[[Task], Prepared]:
    """Return what prepares a layer as one program; `write` is a second one, of a layer that gives only new rows."""

    def prepare(task: Task) -> Prepared:
        with framework.scope(task.dtype, framework.device_of("cpu")):
            params, forward, told = make(task)

            def compute(params: Any, x: Array, cotangent: Array, told: Told, cache: Told) -> tuple[Any, ...]:
                if cache:
                    return forward(params, x, told | {"cache": cache})
                if not task.gradients:
                    return forward(params, x, told), {}
                output, pull_back = jax.vjp(lambda params, x: forward(params, x, told), params, x)
                d_params, d_x = pull_back(cotangent)
                return (output, d_x, d_params), {}

            def array(numbers: Any) -> Array:
                return jnp.asarray(numbers, JAX_DTYPES[task.dtype] if numbers.dtype.kind == "f" else None)

            state = jax.tree.map(array, told.pop("cache", {}))
            given = params, array(task.x), array(task.cotangent), jax.tree.map(array, told)
            donated = 4 if write is None else ()
            program = jax.jit(compute, donate_argnums=donated).lower(*given, state).compile()

        def call() -> Any:
            nonlocal state
            found, made = program(*given, state)
            state = write(state, made, given[3]["filled"]) if write is not None and made else made
            return jax.block_until_ready((found, state))[0]

        return Prepared(call, lambda found: tuple(map(to_numpy, found[:2] if task.gradients else (found,))))

    return prepare


CONTESTANTS = (
    Contestant("ours", _program(_ours, write=_written)),
    Contestant("linen.MultiHeadDotProductAttention", _program(_linen), lacks=tuple(set(PLAIN_ONLY) - {IN_PLACE})),
    Contestant("nnx.MultiHeadAttention", _program(_nnx), lacks=PLAIN_ONLY),
    Contestant("jax.nn.dot_product_attention", _program(_dot_product_attention)),
    Contestant("d2l.ai's", _program(_d2l), lacks=("causal mask", *PLAIN_ONLY)),
)
