"""Self-attention of Flax (linen, bound, and nnx) with one planted fault each: 3 items, 6 tokens, 2 heads of 9."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

HEADS, DIM = 2, 9
WIDTH = HEADS * DIM
X = np.random.default_rng(61).normal(size=(3, 6, WIDTH)).astype("float32")


def attend(fault, parts, mask, key, weights_too=False):
    """Return merged heads and weights; True or 1 in mask (B, L) or (B, 1, L, L) shows."""
    q, k, v = (one.reshape(*one.shape[:2], HEADS, DIM) for one in parts)
    scale = WIDTH**-0.5 if fault == "weights with another scale" and weights_too else DIM**-0.5
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if mask is not None:
        mask = jnp.asarray(mask)
        if mask.ndim == 2:
            mask = mask[:, None, None]
        if fault == "first item's mask":
            mask = mask[:1]
        if fault == "a mask adds a bias":
            scores = scores + 0.4 * jnp.arange(scores.shape[-1])
        scores = jnp.where(mask.astype(bool), scores, -3.0 if fault == "hides with -3" else -1e9)
    weights = jax.nn.softmax(scores)
    if fault == "dropout in evaluation":
        weights = weights * jax.random.bernoulli(key, 0.8, weights.shape) / 0.8
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(*parts[0].shape), weights


class Linen(linen.Module):
    """Self-attention of linen."""

    fault: str = ""

    @linen.compact
    def __call__(self, x, mask=None, return_weights=False):
        """Return the output, or (output, weights)."""
        if self.fault == "mean of the batch":
            x = x - x.mean(0)
        parts = jnp.split(linen.Dense(3 * WIDTH, name="qkv")(x), 3, -1)
        heads, weights = attend(self.fault, parts, mask, None, return_weights)
        output = linen.Dense(WIDTH, name="out")(heads)
        return (output, weights) if return_weights else output


class Nnx(nnx.Module):
    """Self-attention of nnx."""

    def __init__(self, fault, rngs):
        self.fault, self.rngs = fault, rngs
        self.qkv, self.out = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs), nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.seen = nnx.Variable(jnp.zeros((WIDTH,)))

    def __call__(self, x, mask=None):
        """Return the output."""
        x = jnp.asarray(x)
        if self.fault == "running mean in evaluation":
            self.seen.value = 0.9 * self.seen.value + 0.1 * x.mean((0, 1))
            x = x - self.seen.value
        key = self.rngs.params() if self.fault == "dropout in evaluation" else None
        heads, _ = attend(self.fault, jnp.split(self.qkv(x), 3, -1), mask, key)
        return self.out(heads)


class Decoder(nnx.Module):
    """A causal layer of nnx with a window of 3; past is (keys, values)."""

    def __init__(self, fault, rngs):
        self.fault = fault
        self.qkv, self.out = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs), nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x, past=None, use_cache=False):
        """Return the output, or (output, past)."""
        x = jnp.asarray(x)
        length = x.shape[1]
        q, k, v = (one.reshape(*one.shape[:2], HEADS, DIM) for one in jnp.split(self.qkv(x), 3, -1))
        start = 0
        if past is not None:
            start = past[0].shape[1]
            k, v = jnp.concatenate([past[0], k], 1), jnp.concatenate([past[1], v], 1)
        wide = 4 if self.fault == "window wider in decoding" and past is not None else 3
        ahead = 1 if self.fault == "one ahead" else 0
        i, j = jnp.arange(start, start + length)[:, None], jnp.arange(k.shape[1])[None]
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * DIM**-0.5
        weights = jax.nn.softmax(jnp.where((j <= i + ahead) & (j > i - wide), scores, -1e9))
        output = self.out(jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape))
        return (output, (k, v)) if use_cache else output


def bound(fault=""):
    """Return a bound linen layer and its input."""
    module = Linen(fault)
    return module.bind(module.init(jax.random.key(62), X)), {"x": X}


def live(fault=""):
    """Return an nnx layer and its input."""
    return Nnx(fault, nnx.Rngs(63)), {"x": X}


def decoder(fault=""):
    """Return an nnx decoder and its input."""
    return Decoder(fault, nnx.Rngs(64)), {"x": X}


def right_linen():
    return bound()


def right_nnx():
    return live()


def right_decoder():
    return decoder()


def f01():
    return bound("a mask adds a bias")


def f02():
    return live("first item's mask")


def f03():
    return live("dropout in evaluation")


def f04():
    return live("running mean in evaluation")


def f05():
    return bound("weights with another scale")


def f06():
    return bound("mean of the batch")


def f07():
    return decoder("window wider in decoding")


def f08():
    return live("hides with -3")


def f09():
    return decoder("one ahead")


def f10():
    return bound("first item's mask")
