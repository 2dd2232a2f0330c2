"""The port of `models.py` in functions of JAX, which writes its calls as plain arrays (docs/where.md)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from models import port

arrays, calls = {}, []


def called(module, function, parameters, **inputs):
    at = "/".join(filter(None, (module, str(len(calls)))))
    calls.append(at)
    output = function(parameters, **inputs)
    arrays.update({f"{at}/inputs/{name}": np.asarray(one) for name, one in inputs.items()})
    for path, one in jax.tree.leaves_with_path(parameters if module else {}):
        arrays[f"{module}/parameters/{jax.tree_util.keystr(path, simple=True, separator='/')}"] = np.asarray(one)
    arrays[f"{at}/outputs/0"] = np.asarray(output)
    return output


def dense(p, x):
    return x @ p["kernel"] + p["bias"]


def norm(p, x, epsilon=1e-5):
    x = x - x.mean(-1, keepdims=True)
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * p["scale"] + p["bias"]


def attention(p, x, mask):
    q, k, v = jnp.split(dense(p["qkv"], x).reshape(*x.shape[:2], 12, 3), 3, axis=2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(3)
    weights = jax.nn.softmax(jnp.where(mask[:, None, None, :], scores, -1e9), axis=-1)
    return dense(p["out"], jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape))


def layer(p, x, mask, name):
    x = called(f"{name}/ln1", norm, p["ln1"], x=x + called(f"{name}/attend", attention, p["attend"], x=x, mask=mask))
    inner = jax.nn.gelu(called(f"{name}/up", dense, p["up"], x=x))  # the one with tanh
    return called(f"{name}/ln2", norm, p["ln2"], x=x + called(f"{name}/down", dense, p["down"], x=inner))


def model(params, x, padding):
    for name, p in params.items():
        x = called(name, partial(layer, name=name), p, x=x, mask=~padding)
    return x


x = np.random.default_rng(0).normal(size=(2, 7, 12)).astype(np.float32)
padding = np.arange(7) >= np.array([[4], [7]])
called("", model, port.variables["params"], x=jnp.asarray(x), padding=jnp.asarray(padding))
np.savez("port.npz", **arrays)
