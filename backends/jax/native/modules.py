"""Any Flax module, of linen or nnx, run by itself in another dtype: what `mha where` asks of an original."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict
from numpy.typing import NDArray

from backends.jax.native.trees import pure_dict
from backends.jax.ops.framework import device_of, scope, to_numpy


class HeldLinen(NamedTuple):
    """A module of linen without the call in which it was made: itself, its variables and its place in the model."""

    module: nn.Module
    variables: Mapping[str, Any]
    path: tuple[str, ...]


def hold(module: Any) -> Any:
    """What stands for a module after its call: a HeldLinen, or the module of nnx itself."""
    if not isinstance(module, nn.Module):
        return module
    return HeldLinen(module.clone(parent=None, name=None), module.variables, module.path)


def parameters_of(held: Any) -> dict[str, jax.Array]:
    """Every parameter in a module by its name."""
    tree = held.variables.get("params", {}) if isinstance(held, HeldLinen) else pure_dict(nnx.state(held, nnx.Param))
    return {"/".join(map(str, path)): array for path, array in flatten_dict(dict(tree)).items()}


def numbers_in(parameter: jax.Array) -> NDArray:
    """The numbers of a parameter in NumPy."""
    return to_numpy(parameter)


def is_training(module: Any) -> bool:
    """Whether a call of the module may draw random numbers; one of linen must be given them (`rngs`)."""
    if isinstance(module, nn.Module):
        return bool(getattr(module.scope, "rngs", {}).get("dropout")) if module.scope is not None else False
    parts = (node for _, node in nnx.iter_graph(module) if isinstance(node, nnx.Dropout))
    return any(not part.deterministic and part.rate > 0.0 for part in parts)


def is_part(held: Any, outer: Any, name: str, module: Any) -> bool:
    """Whether the `module` that `watch(outer)` tells by this name is the held one."""
    if isinstance(held, HeldLinen):
        return "/".join(held.path[len(outer.path) :]) == name
    return module is held


@contextmanager
def computing(held: Any, dtype: str) -> Iterator[Callable[..., Any]]:
    """The module as a function, with its floating-point variables in `dtype`, which also takes the place of its own."""
    with scope(dtype, device_of("cpu")):
        if isinstance(held, HeldLinen):
            module, variables = (
                _with_dtype(held.module, dtype),
                jax.tree.map(lambda one: _cast(one, dtype), held.variables),
            )
            yield partial(module.apply, variables)
            return
        state = nnx.state(held)
        nodes: list[Any] = [node for _, node in nnx.iter_graph(held) if isinstance(node, nnx.Module)]
        own = [(node, node.dtype) for node in nodes if _has_dtype(node)]
        try:
            nnx.update(held, jax.tree.map(lambda one: _cast(one, dtype), state))
            for node, _ in own:
                node.dtype = jnp.dtype(dtype)
            yield held
        finally:
            nnx.update(held, state)
            for node, before in own:
                node.dtype = before


def to_native(array: NDArray, dtype: str | None) -> jax.Array:
    """The array as one of JAX; floating-point numbers in `dtype`."""
    return jnp.asarray(array, dtype=dtype if dtype is not None and array.dtype.kind == "f" else None)


def _has_dtype(node: Any) -> bool:
    own = getattr(node, "dtype", None)
    return own is not None and np.dtype(own).kind in "fV"


def _with_dtype(module: nn.Module, dtype: str) -> nn.Module:
    return module.clone(dtype=jnp.dtype(dtype)) if _has_dtype(module) else module


def _cast(leaf: Any, dtype: str) -> Any:
    return leaf.astype(dtype) if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
