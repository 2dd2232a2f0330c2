"""Any Flax module, of linen or nnx: its parts, and itself in another dtype, as `mha where` runs an original's."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict
from numpy.typing import NDArray

from backends.jax.native.scanned import place_of
from backends.jax.native.trees import pure_dict
from backends.jax.ops.framework import device_of, scope, to_numpy
from mha_core.capture import Pulled
from mha_core.errors import SpecError


class HeldLinen(NamedTuple):
    """A copy of a linen module, with its variables and its path in the model, that can run after the model's call."""

    module: nn.Module
    variables: Mapping[str, Any]
    path: tuple[str, ...]


def hold(module: Any) -> Any:
    """Return the object to keep for calling the module again later: a HeldLinen (linen) or the module itself (nnx)."""
    if not isinstance(module, nn.Module):
        return module
    variables = jax.tree.map(valued, module.variables)
    return HeldLinen(module.clone(parent=None, name=None), variables, place_of(module))


def parameters_of(held: Any) -> dict[str, jax.Array]:
    """Return every parameter in a module by its name."""
    tree = held.variables.get("params", {}) if isinstance(held, HeldLinen) else pure_dict(nnx.state(held, nnx.Param))
    return {"/".join(map(str, path)): array for path, array in flatten_dict(dict(tree)).items()}


def numbers_in(parameter: jax.Array) -> NDArray:
    """Return the numbers of a parameter in NumPy."""
    return to_numpy(parameter)


def is_training(module: Any) -> bool:
    """Return whether a linen module has a random key for dropout, or an nnx module has an active Dropout inside."""
    if isinstance(module, nn.Module):
        return bool(getattr(module.scope, "rngs", {}).get("dropout")) if module.scope is not None else False
    parts = (node for _, node in nnx.iter_graph(module) if isinstance(node, nnx.Dropout))
    return any(not part.deterministic and part.rate > 0.0 for part in parts)


def is_part(held: Any, outer: Any, name: str, module: Any) -> bool:
    """Return whether `hold(module)` made `held`. `module` must be the submodule of `outer` whose name is `name`."""
    if isinstance(held, HeldLinen):
        return "/".join(held.path[len(outer.path) :]) == name
    return module is held


def eagerly() -> Any:
    """Return a context without jit, in which each step of a scan is a separate call whose numbers can be read."""
    return jax.disable_jit()


@contextmanager
def computing(held: Any, dtype: str) -> Iterator[Callable[..., Any]]:
    """Return a context that yields the module as a function, with its variables cast to `dtype`."""
    with scope(dtype, device_of("cpu")):
        if isinstance(held, HeldLinen):
            module = held.module.clone(dtype=jnp.dtype(dtype)) if _has_dtype(held.module) else held.module
            variables = jax.tree.map(lambda one: _cast(one, dtype), held.variables)
            with eagerly():
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
    """Return the array as a JAX array; floating-point numbers are cast to `dtype`, unless it is None."""
    return jnp.asarray(array, dtype=dtype if dtype is not None and array.dtype.kind == "f" else None)


def _has_dtype(node: Any) -> bool:
    own = getattr(node, "dtype", None)
    return own is not None and np.dtype(own).kind in "fV"


def _cast(leaf: Any, dtype: str) -> Any:
    return leaf.astype(dtype) if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


# Gradients

TRACED = (
    "a call that JAX traces (jit, grad, vmap) has no numbers to record. Make it without, or within jax.disable_jit()."
)


differentiated: list[bool] = []
"""Holds something while calls that `jax.grad` or `jax.vjp` traces are recorded, without jit."""


@contextmanager
def differentiating() -> Iterator[None]:
    """Return a context in which calls inside `jax.grad` are recorded too: grad's tracers have values, jit's do not."""
    differentiated.append(True)
    try:
        yield
    finally:
        differentiated.pop()


class _Note:
    """What is told of a value and of its gradient; JAX wants it to be hashable."""

    def __init__(self, value: Callable[[Any], None], gradient: Callable[[Any], None]) -> None:
        self.value, self.gradient = value, gradient


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _identity(note: _Note, value: Any) -> Any:
    note.value(value)
    return value


def _identity_forward(note: _Note, value: Any) -> tuple[Any, None]:
    note.value(value)
    return value, None


def _identity_backward(note: _Note, _: None, gradient: Any) -> tuple[Any]:
    note.gradient(gradient)
    return (gradient,)


_identity.defvjp(_identity_forward, _identity_backward)


def valued(value: Any) -> Any:
    """Return the array in a tracer of `jax.grad` or `jax.vjp`; another value unchanged. SpecError for other tracers."""
    if not isinstance(value, jax.core.Tracer):
        return value
    seen: list[Any] = []
    _identity(_Note(seen.append, lambda gradient: None), value)
    if not seen or isinstance(seen[-1], jax.core.Tracer):
        raise SpecError(TRACED)
    return seen[-1]


def tapped(value: jax.Array, note: Callable[[jax.Array], None]) -> jax.Array | None:
    """Return a copy of the array; the backward pass calls `note(gradient)`. Return None if the array is no tracer."""

    def told(gradient: jax.Array) -> None:
        if isinstance(gradient, jax.core.Tracer):
            raise SpecError("gradients=True needs a backward pass that JAX does not trace: call jax.grad without jit")
        note(gradient)

    if not isinstance(value, jax.core.Tracer):
        return None
    aliased: jax.Array = _identity(_Note(lambda value: None, told), value)
    return aliased


def pulled(
    held: Any,
    dtype: str | None,
    call: Callable[..., dict[Any, jax.Array]],
    inputs: Mapping[Any, jax.Array],
    cotangents: Mapping[Any, NDArray],
) -> Pulled:
    """Run one module forward and backward, as `Pulled` says."""
    own: Any = partial(held.module.apply, held.variables) if isinstance(held, HeldLinen) else held
    within: Any = nullcontext(own) if dtype is None else computing(held, dtype)
    with within as run:
        if isinstance(held, HeldLinen):
            (variables,) = run.args
            params = dict(variables).get("params", {})

            def function(leaves: Any, own: Any) -> Any:
                return call(partial(run.func, {**variables, "params": own}), leaves)
        else:
            split: Any = nnx.split(held, nnx.Param, ...)
            definition, params, rest = split

            def function(leaves: Any, own: Any) -> Any:
                return call(nnx.merge(definition, own, rest), leaves)

        outputs, back = jax.vjp(function, dict(inputs), params)
        zeros = jax.tree.map(jnp.zeros_like, outputs)
        given = {place: jnp.asarray(array, outputs[place].dtype) for place, array in cotangents.items()}
        leaves, own = back({**zeros, **given})
        tree = own if isinstance(held, HeldLinen) else pure_dict(own)
        return Pulled(
            {place: to_numpy(one) for place, one in outputs.items()},
            {place: to_numpy(one) for place, one in leaves.items()},
            {"/".join(map(str, path)): to_numpy(one) for path, one in flatten_dict(dict(tree)).items()},
        )


# What a module is made of


def parts_of(module: Any) -> tuple[list[str], Callable[[], list[int]] | None]:
    """Return (names of direct submodules with parameters, function that returns the `id`s of all modules inside).

    The second item is None for linen, which makes new modules in each call.
    """
    if isinstance(module, nn.Module):
        return list(module.variables.get("params", {})) if module.scope is not None else [], None
    # The names in an nnx.List are numbers.
    parts = [str(name) for name, part in vars(module).items() if isinstance(part, nnx.Param) or _holds_params(part)]
    return parts, lambda: [id(node) for _, node in nnx.iter_graph(module) if isinstance(node, nnx.Module)]


def _holds_params(part: Any) -> bool:
    return isinstance(part, nnx.Module) and bool(jax.tree.leaves(nnx.state(part, nnx.Param)))


def modules_in(module: Any) -> list[tuple[str, Any]]:
    """Return a list of (name, module) inside an nnx module; [] for linen, whose submodules exist only during a call."""
    if not isinstance(module, nnx.Module):
        return []
    graph = ((".".join(map(str, path)), node) for path, node in nnx.iter_graph(module) if isinstance(node, nnx.Module))
    return sorted(((name, node) for name, node in graph if name), key=lambda named: named[0])


def projects(module: Any) -> bool:
    """Return whether a module is a linear projection, that is an nnx.Linear or an nnx.LinearGeneral."""
    return isinstance(module, (nnx.Linear, nnx.LinearGeneral))


def matrix_of(module: Any) -> tuple[Any, Any]:
    """Return the matrix of a projection, (out, in), and its bias, (out,) or None."""
    kernel = module.kernel[...]
    bias = None if module.bias is None else module.bias[...]
    if isinstance(module, nnx.LinearGeneral):
        inputs = np.prod([kernel.shape[axis] for axis in range(len(module.axis))])
        kernel = kernel.reshape(int(inputs), -1)
        bias = None if bias is None else bias.reshape(-1)
    return kernel.T, bias
