"""A port of Qwen3 to Flax nnx, written anew.

Keys and values are one Linear; tables of rotations and masks are made at the top; the head is the table of words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from tests.mha.substitution.qwen.arrays import arrays_of, spoil
from tests.mha.substitution.qwen.faults import ALSO, FAULTS, INSIDE, RIGHT
from tests.mha.substitution.qwen.original import (
    BASE,
    DEPTH,
    EPSILON,
    GROUPS,
    HEADS,
    INNER,
    SIZE,
    VOCABULARY,
    WIDTH,
    State,
    original,
)

__all__ = ["ALSO", "FAULTS", "RIGHT", "build", "call", "original"]

Names = frozenset[str]
At = Callable[[str], Names]
"""Path of a module -> the faults and variants in it."""

LONGEST = 32


def linear(inner: Any, outer: Any, bias: bool = False, dtype: Any = None) -> nnx.Linear:
    return nnx.Linear(inner, outer, use_bias=bias, dtype=dtype, rngs=nnx.Rngs(0))


def tables(positions: jax.Array, base: float = BASE, size: int = SIZE) -> tuple[jax.Array, jax.Array]:
    angles = positions[..., None] / base ** (jnp.arange(0, SIZE, 2, dtype=jnp.float32) / size)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array, neighbours: bool) -> jax.Array:
    cos, sin = cos[:, :, None], sin[:, :, None]
    first, second = (x[..., ::2], x[..., 1::2]) if neighbours else jnp.split(x, 2, axis=-1)
    pair = (first * cos - second * sin, second * cos + first * sin)
    return jnp.stack(pair, axis=-1).reshape(x.shape) if neighbours else jnp.concatenate(pair, axis=-1)


def rotate_complex(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    first, second = jnp.split(x, 2, axis=-1)
    turned = (first + 1j * second) * (cos + 1j * sin)[:, :, None]
    return jnp.concatenate([turned.real, turned.imag], axis=-1)


class Rope(nnx.Module):
    """Positions to cosines and sines."""

    def __init__(self, wrong: Names) -> None:
        self.wrong = wrong
        if "tables kept" in wrong:
            self.kept = nnx.Variable(jnp.stack(tables(jnp.arange(LONGEST))))

    def __call__(self, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        if "tables kept" in self.wrong:
            cos, sin = self.kept.value[:, positions]
            return cos, sin
        base = 500000.0 if "base 500000" in self.wrong else BASE
        size = WIDTH if "frequencies of the whole width" in self.wrong else SIZE
        cos, sin = tables(positions, base, size)
        if "tables in bfloat16" in self.wrong:
            cos, sin = (one.astype(jnp.bfloat16).astype(jnp.float32) for one in (cos, sin))
        return cos, sin


class Norm(nnx.Module):
    """Divides by the root of the mean square."""

    def __init__(self, size: int, wrong: Names) -> None:
        self.scale, self.wrong = nnx.Param(jnp.ones(size)), wrong

    def __call__(self, x: jax.Array) -> jax.Array:
        wrong = self.wrong
        epsilon = 1e-5 if wrong & {"eps 1e-5, q", "eps 1e-5"} else EPSILON
        epsilon = 1e-3 if "eps 1e-3 everywhere" in wrong else epsilon
        if "mean subtracted" in wrong:
            x = x - x.mean(-1, keepdims=True)
        if "norm in bfloat16" in wrong:
            x = x.astype(jnp.bfloat16)
        square = jnp.mean(x * x, axis=(-2, -1) if "norm over all heads" in wrong else -1, keepdims=True)
        if "divided by the deviation" in wrong:
            square = jnp.var(x, axis=-1, keepdims=True)
        x = x * jax.lax.rsqrt(square + epsilon)
        return x.astype(jnp.float32) * (self.scale.value + ("one added to the weight" in wrong))


def norm(size: int, wrong: Names) -> Any:
    if "norms of nnx" in wrong:
        return nnx.RMSNorm(size, epsilon=EPSILON, rngs=nnx.Rngs(0))
    return Norm(size, wrong)


class Attention(nnx.Module):
    def __init__(self, at: At, path: str) -> None:
        self.wrong = at(path)
        if "projections in one" in self.wrong:
            self.wqkv = linear(WIDTH, (HEADS + 2 * GROUPS) * SIZE)
        elif "axis of heads" in self.wrong:
            for name, heads in (("wq", HEADS), ("wk", GROUPS), ("wv", GROUPS)):
                made = nnx.LinearGeneral(WIDTH, (heads, SIZE), use_bias=False, rngs=nnx.Rngs(0))
                setattr(self, name, made)
        else:
            self.wq = linear(WIDTH, HEADS * SIZE)
            if "projections split" in self.wrong:
                self.wk, self.wv = linear(WIDTH, GROUPS * SIZE), linear(WIDTH, GROUPS * SIZE)
            else:
                self.wkv = linear(WIDTH, 2 * GROUPS * SIZE)
        self.wo = linear(HEADS * SIZE, WIDTH, bias="wo with a bias" in at(f"{path}/wo"))
        if "axis of heads" in self.wrong:
            self.wo = nnx.LinearGeneral((HEADS, SIZE), WIDTH, axis=(-2, -1), use_bias=False, rngs=nnx.Rngs(0))
        self.q_norm, self.k_norm = norm(SIZE, at(f"{path}/q_norm")), norm(SIZE, at(f"{path}/k_norm"))
        if INSIDE & self.wrong:
            self.norm = norm(WIDTH, self.wrong)

    def project(self, x: jax.Array) -> tuple[jax.Array, ...]:
        if "axis of heads" in self.wrong:
            return self.wq(x), self.wk(x), self.wv(x)
        if "projections in one" in self.wrong:
            parts = jnp.split(self.wqkv(x), [HEADS * SIZE, (HEADS + GROUPS) * SIZE], axis=-1)
        elif "projections split" in self.wrong:
            parts = [self.wq(x), self.wk(x), self.wv(x)]
        else:
            parts = [self.wq(x), *jnp.split(self.wkv(x), 2, axis=-1)]
        if "heads are the last axis" in self.wrong:
            return tuple(part.reshape(*x.shape[:2], SIZE, -1).swapaxes(-1, -2) for part in parts)
        return tuple(part.reshape(*x.shape[:2], -1, SIZE) for part in parts)

    def turn(self, q: jax.Array, k: jax.Array, cos: jax.Array, sin: jax.Array) -> tuple[jax.Array, jax.Array]:
        if "complex numbers" in self.wrong:
            return rotate_complex(q, cos, sin), rotate_complex(k, cos, sin)
        if "rotated backward" in self.wrong:
            sin = -sin
        neighbours = bool(self.wrong & {"neighbours rotated", "neighbours rotated everywhere"})
        k = k if "keys not rotated" in self.wrong else rotate(k, cos, sin, neighbours)
        if "queries one position on" in self.wrong:
            one, zero = tables(jnp.ones(1))
            cos, sin = cos * one - sin * zero, sin * one + cos * zero
        return rotate(q, cos, sin, neighbours), k

    def __call__(self, x: jax.Array, cos: jax.Array, sin: jax.Array, mask: jax.Array) -> jax.Array:
        wrong, given = self.wrong, x
        if INSIDE & wrong:
            x = self.norm(x)
        if "tables made by each layer" in wrong:  # `cos` is the positions
            cos, sin = tables(cos)
        if "base 500000 in a layer" in wrong:
            cos, sin = tables(sin_to_positions(cos, sin), 500000.0)
        q, k, v = self.project(x)
        if "norm after rotation" in wrong:
            q, k = self.turn(q, k, cos, sin)
            q, k = self.q_norm(q), self.k_norm(k)
        else:
            q, k = self.q_norm(q), k if "norm of keys lost" in wrong else self.k_norm(k)
            q, k = self.turn(q, k, cos, sin)
        if "norm of values" in wrong:
            v = self.k_norm(v)
        if "values rotated" in wrong:
            v = rotate(v, cos, sin, False)
        mixed = self.mix(q, k, v, mask)
        if "heads joined in another order" in wrong:
            mixed = mixed.swapaxes(2, 3)
        out = self.wo(mixed if "axis of heads" in wrong else mixed.reshape(*x.shape[:2], -1))
        return given + out if "sums in attn and mlp" in wrong else out

    def mix(self, q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
        wrong = self.wrong
        if "attention of jax" in wrong:  # it repeats the groups itself
            return jax.nn.dot_product_attention(q, k, v, mask=mask)
        times = HEADS // GROUPS
        if wrong & {"groups tiled", "groups tiled everywhere"}:
            k, v = (jnp.tile(one, (1, 1, times, 1)) for one in (k, v))
        else:
            k, v = (jnp.repeat(one, times, axis=2) for one in (k, v))
        scale = 1.0 if "scale lost everywhere" in wrong else SIZE**-0.5
        scale = WIDTH**-0.5 if "scale sqrt(width)" in wrong else scale
        scores = jnp.einsum("bqhd,bkhd->bhqk", q * scale, k)
        if "masks added" in wrong:
            scores = scores + mask
        else:
            if "one key ahead in a layer" in wrong:
                mask = mask | jnp.eye(mask.shape[-1], k=1, dtype=bool)
            if "padding counts in a layer" in wrong:
                mask = jnp.tril(jnp.ones_like(mask))
            scores = jnp.where(mask, scores, -4.0 if "masked by -4" in wrong else -1e9)
        if wrong & {"softmax in bfloat16", "softmax in bfloat16 everywhere"}:
            scores = scores.astype(jnp.bfloat16)
        weights = jax.nn.softmax(scores, axis=-1).astype(jnp.float32)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def sin_to_positions(cos: jax.Array, sin: jax.Array) -> jax.Array:
    """The first frequency is 1, and positions are less than a turn apart: enough for a layer that makes its own."""
    return jnp.round(jnp.arctan2(sin[..., 0], cos[..., 0]) % (2 * jnp.pi))


class Mlp(nnx.Module):
    def __init__(self, at: At, path: str) -> None:
        self.wrong = at(path)
        self.gate, self.up = linear(WIDTH, INNER), linear(WIDTH, INNER)
        self.down = linear(INNER, WIDTH, dtype=jnp.bfloat16 if "down in bfloat16" in at(f"{path}/down") else None)
        if INSIDE & self.wrong:
            self.norm = norm(WIDTH, self.wrong)

    def __call__(self, x: jax.Array) -> jax.Array:
        wrong, given = self.wrong, x
        if INSIDE & wrong:
            x = self.norm(x)
        if "tokens in a row" in wrong:
            x = x.reshape(-1, WIDTH)
        gate, up = self.gate(x), self.up(x)
        if "activation of the product" in wrong:
            inner = jax.nn.silu(gate * up)
        elif wrong & {"gelu", "gelu everywhere"}:
            inner = jax.nn.gelu(gate, approximate=False) * up
        else:
            inner = jax.nn.silu(gate) * up
        out = self.down(inner).astype(jnp.float32).reshape(given.shape)
        return given + out if "sums in attn and mlp" in wrong else out


class Block(nnx.Module):
    def __init__(self, at: At, path: str) -> None:
        self.wrong = at(path)
        if not INSIDE & self.wrong:
            self.norm_1, self.norm_2 = norm(WIDTH, at(f"{path}/norm_1")), norm(WIDTH, at(f"{path}/norm_2"))
        self.attn, self.mlp = Attention(at, f"{path}/attn"), Mlp(at, f"{path}/mlp")

    def __call__(self, x: jax.Array, cos: jax.Array, sin: jax.Array, mask: jax.Array) -> jax.Array:
        wrong = self.wrong
        if INSIDE & wrong:
            out = self.attn(x, cos, sin, mask)
            x = out if "sums in attn and mlp" in wrong else x + out
            out = self.mlp(x)
            return out if "sums in attn and mlp" in wrong else x + out
        if "parallel" in wrong:
            return x + self.attn(self.norm_1(x), cos, sin, mask) + self.mlp(self.norm_2(x))
        if "norm behind attn" in wrong:
            x = x + self.norm_1(self.attn(x, cos, sin, mask))
        else:
            normed = self.norm_1(x)
            out = self.attn(normed, cos, sin, mask)
            x = out if "residual lost, attn" in wrong else x + out
        normed = self.norm_2(x)
        out = self.mlp(normed)
        if "residual of the normed" in wrong:
            x = normed
        return out if "residual lost, mlp" in wrong else x + out


class Decoder(nnx.Module):
    """Ids, and which of them to keep, to logits."""

    def __init__(self, at: At) -> None:
        self.wrong = at("")
        self.words, self.rope = nnx.Embed(VOCABULARY, WIDTH, rngs=nnx.Rngs(0)), Rope(at("rope"))
        self.blocks = nnx.List([Block(at, f"blocks/{number}") for number in range(DEPTH)])
        self.last_norm = norm(WIDTH, at("last_norm"))

    def __call__(self, ids: jax.Array, keep: jax.Array) -> jax.Array:
        wrong = self.wrong
        x = self.words(ids) * (WIDTH**0.5 if "embedding scaled" in wrong else 1.0)
        positions = self.positions(keep)
        cos, sin = (positions, positions) if "tables made by each layer" in wrong else self.rope(positions)
        mask = self.mask(keep)
        blocks = list(self.blocks)
        if "last block skipped" in wrong:
            blocks = blocks[:-1]
        if "first block twice" in wrong:
            blocks = blocks[:1] + blocks
        for block in blocks:
            x = block(x, cos, sin, mask)
        x = x if "last norm lost" in wrong else self.last_norm(x)
        if "head by attend" in wrong:
            return self.words.attend(x)
        table = self.words.embedding.value
        if "head from normed table" in wrong:
            table = table / jnp.linalg.norm(table, axis=-1, keepdims=True)
        return x @ table.T

    def positions(self, keep: jax.Array) -> jax.Array:
        positions = jnp.maximum(jnp.cumsum(keep, axis=1) - 1, 0)
        if "positions from the left edge" in self.wrong:
            return jnp.broadcast_to(jnp.arange(keep.shape[1]), keep.shape)
        if "positions of padding 1" in self.wrong:
            return jnp.where(keep == 1, positions, 1)
        if "positions of the next item" in self.wrong:
            return jnp.roll(positions, -1, axis=0)
        return jnp.minimum(positions, 4) if "positions end at 4" in self.wrong else positions

    def mask(self, keep: jax.Array) -> jax.Array:
        wrong = self.wrong
        length = keep.shape[1]
        allowed = jnp.tril(jnp.ones((length, length), bool), 1 if "one key ahead" in wrong else 0)
        kept = (keep == 1)[:, None, None, :]
        if "padding counts" in wrong:
            kept = jnp.ones_like(kept)
        if "padding of the next item" in wrong:
            kept = jnp.roll(kept, -1, axis=0)
        if "padding of queries" in wrong:
            kept = kept.swapaxes(-1, -2)
        if "masks added" in wrong:
            return jnp.where(allowed & kept, 0.0, jnp.finfo(jnp.float32).min)
        return allowed & kept


def build(state: State, fault: str = "") -> Decoder:
    """The port with the arrays of `state` and the faults of these names, joined by " + "."""
    names = [name for name in fault.split(" + ") if name]
    arrays = arrays_of(state, frozenset(names))
    for name in names:
        spoil(arrays, name, FAULTS.get(name, ("",)))
    model = Decoder(lambda path: frozenset(name for name in names if path in FAULTS.get(name, (path,))))
    for path, array in arrays.items():
        part: Any = model
        for name in path.split("/"):
            part = part[int(name)] if name.isdigit() else getattr(part, name)
        assert part.value.shape == array.shape, path
        part.value = jnp.asarray(array)
    return model


def call(model: Decoder, batch: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
    """The logits for a batch of the tokenizer; the port counts positions itself."""
    names = ("input_ids", "attention_mask")
    return np.asarray(model(*(jnp.asarray(batch[name].astype(np.int32)) for name in names)))
