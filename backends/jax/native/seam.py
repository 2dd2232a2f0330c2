"""The seam in JAX: calls of `jax.nn.dot_product_attention` inside a model of Flax."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from backends.jax.native.scanned import place_of
from backends.jax.ops.framework import has_values, to_numpy
from mha_core.capture import one_dtype
from mha_core.errors import SpecError
from mha_core.seam import AttentionCall, Handle, Handover, caller, in_place_of, number, windowed

_FUNCTION = jax.nn.dot_product_attention
_SIGNATURE = inspect.signature(_FUNCTION)


@contextmanager
def intercept_attention(target: Any, handle: Handle) -> Iterator[None]:
    """Return a context in which `handle` runs in place of each call of `jax.nn.dot_product_attention` in the target.

    `handle(AttentionCall)` returns the call's result. `AttentionCall.module` is the innermost running Flax module.
    """
    names = {}
    if isinstance(target, nnx.Module):
        graph = nnx.iter_graph(target)
        names = {id(node): "/".join(map(str, path)) for path, node in graph if isinstance(node, nnx.Module)}

    def name_of(one: Any) -> str | None:
        if isinstance(one, nn.Module):
            return "/".join(place_of(one)) if one.scope is not None else None
        return names.get(id(one))

    function = _FUNCTION  # this name stands for the other one meanwhile

    def intercepted(*args: Any, **kwargs: Any) -> Any:
        name, module = caller(name_of, sys._getframe(1))
        return handle(
            AttentionCall(
                name,
                module,
                read=lambda: _read(args, kwargs),
                run=lambda: function(*args, **kwargs),
                give=lambda output: _give(output, _SIGNATURE.bind(*args, **kwargs).arguments["query"]),
            )
        )

    with in_place_of(function, intercepted):
        yield


def _give(output: NDArray, query: Any) -> jax.Array:
    """An output (B, heads, L, d) as the function returns it: (B, L, heads, d), or without the batch."""
    found = jnp.asarray(output.swapaxes(1, 2), dtype=query.dtype)
    return found[0] if query.ndim == 3 else found


def _read(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[Any], Handover]:
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    if not has_values((args, dict(kwargs))):
        raise SpecError("JAX traces it, and it has no numbers; run it without jax.jit, scan or vmap")
    if given["query_seq_lengths"] is not None:
        raise SpecError("query_seq_lengths leaves rows of its output open, and has no translation")
    query, key, value = (_in_heads(given[name]) for name in ("query", "key", "value"))
    masks = [np.array(to_numpy(given[name])) for name in ("mask", "bias") if given[name] is not None]
    if given["key_value_seq_lengths"] is not None:
        lens = np.asarray(given["key_value_seq_lengths"])
        masks.append((np.arange(key.shape[2]) < lens[:, None])[:, None, None, :])
    if given["local_window_size"] is not None:
        window = given["local_window_size"]
        left, right = (window, window) if isinstance(window, int) else window
        masks.append(windowed(left, right, query.shape[2], key.shape[2]))

    def with_output(output: Any) -> Handover:
        own = [given["query"], given["key"], given["value"], *([] if output is None else [output])]
        dtype = one_dtype(str(array.dtype) for array in own)
        found = None if output is None else _in_heads(output)
        causal, scale = bool(given["is_causal"]), number("scale", given["scale"])
        return Handover(query, key, value, found, dtype, tuple(masks), causal, scale)

    return with_output


def _in_heads(array: Any) -> NDArray:
    """A copy as (B, heads, L, d) of what is (B, L, heads, d), or without the batch."""
    found = np.array(to_numpy(jnp.asarray(array)))
    return (found[None] if found.ndim == 3 else found).swapaxes(1, 2)
