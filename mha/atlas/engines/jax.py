"""JAX: its own function, and the layers of Equinox and Haiku with identities for projections."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

DTYPES = ("float64", "float32", "bfloat16", "float16")


def of(array, dtype):
    jax.config.update("jax_enable_x64", dtype == "float64")
    return jnp.asarray(array, dtype if array.dtype.kind == "f" else None)


def computed(attend, leaves, cotangent):
    @jax.jit  # else each operation is compiled by itself
    def call(*leaves):
        if cotangent is None:
            return [attend(*leaves)]
        output, gradients = jax.vjp(attend, *leaves)
        return [output, *gradients(cotangent)]

    return call(*leaves)


def back(array):
    return np.asarray(array.astype(jnp.float32) if array.dtype == jnp.bfloat16 else array)


def own(q, k, v, *, allowed=None, bias=None, causal=False, scale=None, lengths=None, window=None):
    q, k, v = (jnp.swapaxes(one, 1, 2) for one in (q, k, v))
    options = {"scale": scale, "is_causal": causal, "key_value_seq_lengths": lengths}
    options["local_window_size"] = None if window is None else (window, 0)
    return jnp.swapaxes(jax.nn.dot_product_attention(q, k, v, bias, allowed, **options), 1, 2)


def _merged(x):
    return jnp.swapaxes(x, 1, 2).reshape(x.shape[0], x.shape[2], -1)


def _split(x, heads):
    return jnp.swapaxes(x.reshape(*x.shape[:2], heads, -1), 1, 2)


def equinox(q, k, v, *, allowed=None):
    import equinox as eqx

    heads, width, value_width = q.shape[1], q.shape[1] * q.shape[3], v.shape[1] * v.shape[3]
    sizes = {"value_size": value_width, "output_size": value_width, "qk_size": q.shape[3], "vo_size": v.shape[3]}
    layer: Any = eqx.nn.MultiheadAttention(heads, width, **sizes, key=jax.random.key(0))
    eye, value_eye = jnp.eye(width, dtype=q.dtype), jnp.eye(value_width, dtype=q.dtype)
    names = ("query_proj", "key_proj", "value_proj", "output_proj")
    layer = eqx.tree_at(
        lambda layer: [getattr(layer, name).weight for name in names], layer, [eye, eye, value_eye, value_eye]
    )
    given = tuple(map(_merged, (q, k, v)))
    found: Any = jax.vmap(lambda q, k, v, mask: layer(q, k, v, mask), in_axes=(0, 0, 0, None if allowed is None else 0))
    return _split(found(*given, allowed), heads)


def haiku(q, k, v, *, allowed=None):
    import haiku as hk

    def layer(q, k, v):
        sizes = {"value_size": v.shape[-1] // heads, "model_size": v.shape[-1], "with_bias": False}
        init = {"w_init": lambda shape, dtype: jnp.eye(shape[0], shape[1], dtype=dtype)}
        return hk.MultiHeadAttention(heads, width, **sizes, **init)(q, k, v, allowed)

    heads, width = q.shape[1], q.shape[3]
    given = tuple(map(_merged, (q, k, v)))
    transformed = hk.transform(layer)
    parameters = transformed.init(jax.random.key(0), *given)
    return _split(transformed.apply(parameters, None, *given), q.shape[1])


def flax(q, k, v, *, allowed=None, bias=None, cache=None):
    """Return the output of Flax's function. If `cache` is an int, Flax's layer decodes with a cache of this length."""
    from flax import nnx

    q, k, v = (jnp.swapaxes(one, 1, 2) for one in (q, k, v))
    if cache is None:
        return jnp.swapaxes(nnx.dot_product_attention(q, k, v, bias, allowed), 1, 2)
    x = _merged(jnp.swapaxes(q, 1, 2))
    init = {"kernel_init": lambda key, shape, dtype: jnp.eye(x.shape[-1], dtype=dtype).reshape(shape)}
    settings: dict[str, Any] = {"decode": True, "use_bias": False, "rngs": nnx.Rngs(0), **init}
    layer = nnx.MultiHeadAttention(q.shape[2], x.shape[-1], **settings)
    layer.init_cache((x.shape[0], cache, x.shape[-1]))
    outputs = [layer(x[:, step : step + 1]) for step in range(x.shape[1])]
    return _split(jnp.concatenate(outputs, axis=1), q.shape[2])
