"""JAX: its own function, and the layers of Equinox and Haiku with identities for projections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

DTYPES = ("float64", "float32", "bfloat16", "float16")


def run(
    attend: Callable[..., Any], given: Sequence[NDArray], options: Mapping[str, Any], dtype: str, cotangent: Any
) -> list[Any]:
    """Return the output, and gradients if there is a cotangent: compiled, since each operation else is by itself."""
    jax.config.update("jax_enable_x64", dtype == "float64")

    def array(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        return jnp.asarray(value, dtype if value.dtype.kind == "f" else None)

    made = {name: array(value) for name, value in options.items() if isinstance(value, np.ndarray)}
    fixed = {name: value for name, value in options.items() if name not in made}

    @jax.jit
    def call(leaves: Any, made: Any, cotangent: Any) -> list[Any]:
        if cotangent is None:
            return [attend(*leaves, **made, **fixed)]
        output, back = jax.vjp(lambda *leaves: attend(*leaves, **made, **fixed), *leaves)
        return [output, *back(cotangent)]

    found = call([array(value) for value in given], made, array(cotangent))
    return [np.asarray(one.astype(jnp.float32) if one.dtype == jnp.bfloat16 else one) for one in found]


def own(
    q: Any,
    k: Any,
    v: Any,
    *,
    allowed: Any = None,
    bias: Any = None,
    causal: bool = False,
    scale: float | None = None,
    lengths: Any = None,
    window: int | None = None,
) -> Any:
    q, k, v = (jnp.swapaxes(one, 1, 2) for one in (q, k, v))
    found = jax.nn.dot_product_attention(
        q,
        k,
        v,
        bias,
        allowed,
        scale=scale,
        is_causal=causal,
        key_value_seq_lengths=lengths,
        local_window_size=None if window is None else (window, 0),
    )
    return jnp.swapaxes(found, 1, 2)


def _merged(x: Any) -> Any:
    return jnp.swapaxes(x, 1, 2).reshape(x.shape[0], x.shape[2], -1)


def _split(x: Any, heads: int) -> Any:
    return jnp.swapaxes(x.reshape(*x.shape[:2], heads, -1), 1, 2)


def equinox(q: Any, k: Any, v: Any, *, allowed: Any = None) -> Any:
    import equinox as eqx

    heads, width, value_width = q.shape[1], q.shape[1] * q.shape[3], v.shape[1] * v.shape[3]
    layer = eqx.nn.MultiheadAttention(
        heads,
        width,
        value_size=value_width,
        output_size=value_width,
        qk_size=q.shape[3],
        vo_size=v.shape[3],
        key=jax.random.key(0),
    )
    eye, value_eye = jnp.eye(width, dtype=q.dtype), jnp.eye(value_width, dtype=q.dtype)
    names = ("query_proj", "key_proj", "value_proj", "output_proj")
    layer = eqx.tree_at(
        lambda layer: [getattr(layer, name).weight for name in names], layer, [eye, eye, value_eye, value_eye]
    )
    given = tuple(map(_merged, (q, k, v)))
    found = jax.vmap(lambda q, k, v, mask: layer(q, k, v, mask), in_axes=(0, 0, 0, None if allowed is None else 0))
    return _split(found(*given, allowed), heads)


def haiku(q: Any, k: Any, v: Any, *, allowed: Any = None) -> Any:
    import haiku as hk

    def layer(q: Any, k: Any, v: Any) -> Any:
        made = hk.MultiHeadAttention(
            q.shape[-1] // width,
            width,
            w_init=lambda shape, dtype: jnp.eye(*shape, dtype=dtype),
            value_size=v.shape[-1] * width // q.shape[-1],
            model_size=v.shape[-1],
            with_bias=False,
        )
        return made(q, k, v, allowed)

    width = q.shape[3]
    given = tuple(map(_merged, (q, k, v)))
    transformed = hk.transform(layer)
    parameters = transformed.init(jax.random.key(0), *given)
    return _split(transformed.apply(parameters, None, *given), q.shape[1])


def flax(q: Any, k: Any, v: Any, *, allowed: Any = None, bias: Any = None, cache: int | None = None) -> Any:
    """Return the output of Flax's function; of a layer's cache of so many keys, if `cache` is given."""
    from flax import nnx

    q, k, v = (jnp.swapaxes(one, 1, 2) for one in (q, k, v))
    if cache is None:
        return jnp.swapaxes(nnx.dot_product_attention(q, k, v, bias, allowed), 1, 2)
    x = _merged(jnp.swapaxes(q, 1, 2))
    eye = jnp.eye(x.shape[-1])
    layer = nnx.MultiHeadAttention(
        q.shape[2], x.shape[-1], decode=True, kernel_init=lambda key, shape, dtype: eye.reshape(shape).astype(dtype),
        use_bias=False, rngs=nnx.Rngs(0),
    )  # fmt: skip
    layer.init_cache((x.shape[0], cache, x.shape[-1]))
    outputs = [layer(x[:, step : step + 1]) for step in range(x.shape[1])]
    return _split(jnp.concatenate(outputs, axis=1), q.shape[2])
