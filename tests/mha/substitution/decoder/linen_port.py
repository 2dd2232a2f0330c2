"""Ports of the decoders to Flax linen, written anew; and their faults by name.

Gate and up are one Dense; each attention makes its rotations itself, from the positions; masks are made at the top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict
from numpy.typing import NDArray

from tests.mha.substitution.decoder import original as sizes
from tests.mha.substitution.decoder.original import (
    BASE,
    CAP,
    DEPTH,
    EPSILON,
    GROUPS,
    HEADS,
    INNER,
    SCORE_CAP,
    WIDTH,
    WINDOW,
)

FAULTS: dict[str, tuple[str, ...]] = {
    "rotary base": ("layers_1/attn",),
    "rotary not of keys": ("layers_2/attn",),
    "softmax in bfloat16": ("layers_1/attn",),
    "padding not masked": ("",),
    "residual lost, mlp": ("layers_0",),
    "eps 1e-3 at the end": ("norm",),
    "embedding not scaled": ("embed",),
}
"""Name -> the modules of the port in which the wrong line stands."""

Wrong = frozenset[tuple[str, str]]


class Part(nn.Module):
    kind: str
    wrong: Wrong = frozenset()

    def has(self, *faults: str) -> bool:
        return any((fault, place) in self.wrong for fault in faults for place in ("/".join(self.path), "*"))


class Norm(Part):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        weight = self.param("weight", nn.initializers.ones, (WIDTH,))
        epsilon = 1e-3 if self.has("eps 1e-3 at the end") else EPSILON
        x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + epsilon)
        return x * (weight + (self.kind == "gemma2"))


class Attention(Part):
    @nn.compact
    def __call__(self, x: jax.Array, positions: jax.Array, mask: jax.Array) -> jax.Array:
        size, rows = sizes.SIZE[self.kind], x.shape[:2]
        q = nn.Dense(HEADS * size, use_bias=False, name="q")(x).reshape(*rows, HEADS, size)
        k, v = (nn.Dense(GROUPS * size, use_bias=False, name=name)(x).reshape(*rows, GROUPS, size) for name in "kv")
        q = self.rotate(q, positions)
        k = k if self.has("rotary not of keys") else self.rotate(k, positions)
        k, v = (jnp.repeat(one, HEADS // GROUPS, axis=2) for one in (k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * sizes.SCALE[self.kind]
        if self.kind == "gemma2":
            scores = jnp.tanh(scores / SCORE_CAP) * SCORE_CAP
        scores = jnp.where(mask, scores, -1e9)
        if self.has("softmax in bfloat16"):
            scores = scores.astype(jnp.bfloat16)
        weights = jax.nn.softmax(scores, axis=-1).astype(jnp.float32)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(*rows, HEADS * size)
        return nn.Dense(WIDTH, use_bias=False, name="o")(mixed)

    def rotate(self, x: jax.Array, positions: jax.Array) -> jax.Array:
        half = x.shape[-1] // 2
        base = 500000.0 if self.has("rotary base") else BASE
        angles = positions[..., None, None] * base ** (-jnp.arange(half) / half)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        first, second = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class Mlp(Part):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        gate, up = jnp.split(nn.Dense(2 * INNER, use_bias=False, name="gate_up")(x), 2, axis=-1)
        gate = jax.nn.silu(gate) if self.kind == "llama" else jax.nn.gelu(gate, approximate=True)
        return nn.Dense(WIDTH, use_bias=False, name="down")(gate * up)


class Layer(Part):
    @nn.compact
    def __call__(self, x: jax.Array, positions: jax.Array, mask: jax.Array) -> jax.Array:
        gemma = self.kind == "gemma2"
        y = self.part(Attention, "attn")(self.part(Norm, "pre_attn")(x), positions, mask)
        x = x + (self.part(Norm, "post_attn")(y) if gemma else y)
        y = self.part(Mlp, "mlp")(self.part(Norm, "pre_mlp")(x))
        y = self.part(Norm, "post_mlp")(y) if gemma else y
        return y if self.has("residual lost, mlp") else x + y

    def part(self, of: type[Part], name: str) -> Any:
        return of(self.kind, self.wrong, name=name)


class Embed(nn.Embed):
    def __call__(self, inputs: jax.Array) -> jax.Array:
        return super().__call__(inputs) * np.float32(WIDTH**0.5)


class Decoder(Part):
    """Ids, which of them to keep, and positions, to logits."""

    @nn.compact
    def __call__(self, ids: jax.Array, keep: jax.Array, positions: jax.Array) -> jax.Array:
        gemma = self.kind == "gemma2"
        outside = gemma and self.has("scaled outside")
        plain = not gemma or outside or ("embedding not scaled", "embed") in self.wrong
        embed = (nn.Embed if plain else Embed)(sizes.VOCABULARY, WIDTH, name="embed")
        x = embed(ids) * np.float32(WIDTH**0.5 if outside else 1.0)
        if self.has("positions from the left edge"):
            positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        for number in range(DEPTH):
            mask = self.mask(keep, window=gemma and number % 2 == 0)
            x = Layer(self.kind, self.wrong, name=f"layers_{number}")(x, positions, mask)
        x = Norm(self.kind, self.wrong, name="norm")(x)
        x = embed.attend(x) if gemma else nn.Dense(sizes.VOCABULARY, use_bias=False, name="head")(x)
        return jnp.tanh(x / CAP) * CAP if gemma else x

    def mask(self, keep: jax.Array, *, window: bool) -> jax.Array:
        length = keep.shape[1]
        back = jnp.arange(length)[:, None] - jnp.arange(length)
        allowed = (back >= 0) & (back < (WINDOW if window else length))
        allowed = jnp.broadcast_to(allowed[None, None], (len(keep), 1, length, length))
        return allowed if self.has("padding not masked") else allowed & (keep == 1)[:, None, None, :]


@dataclass(frozen=True)
class Port:
    """One decoder; its batch is padded on the left or on the right."""

    kind: str
    left: bool

    def original(self) -> tuple[Any, sizes.Inputs, sizes.State]:
        return sizes.original(self.kind, self.left)

    def build(self, state: sizes.State, variant: str = "") -> Decoder:
        """The port with these faults, or right lines that stand elsewhere, with " + " between them."""
        params = unflatten_dict({name: jnp.asarray(one) for name, one in arrays_of(state, self.kind).items()}, sep="/")
        wrong = frozenset((name, place) for name in variant.split(" + ") for place in FAULTS.get(name, ("*",)))
        return Decoder(self.kind, wrong).bind({"params": params})

    def call(self, model: Decoder, batch: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        names = ("input_ids", "attention_mask", "position_ids")
        return np.asarray(model(*(jnp.asarray(batch[name].astype(np.int32)) for name in names)))


LLAMA, LLAMA_LEFT, GEMMA2 = Port("llama", left=False), Port("llama", left=True), Port("gemma2", left=False)


def arrays_of(state: sizes.State, kind: str) -> sizes.State:
    arrays = {"embed/embedding": state["model.embed_tokens.weight"], "norm/weight": state["model.norm.weight"]}
    norms = {"pre_attn": "input", "pre_mlp": "post_attention"}
    if kind == "gemma2":
        norms = {"pre_attn": "input", "post_attn": "post_attention"}
        norms |= {"pre_mlp": "pre_feedforward", "post_mlp": "post_feedforward"}
    else:
        arrays["head/kernel"] = state["lm_head.weight"].T
    for number in range(DEPTH):
        new, old = f"layers_{number}", f"model.layers.{number}"
        arrays |= {f"{new}/attn/{name}/kernel": state[f"{old}.self_attn.{name}_proj.weight"].T for name in "qkvo"}
        arrays |= {f"{new}/{own}/weight": state[f"{old}.{name}_layernorm.weight"] for own, name in norms.items()}
        gate_up = np.concatenate([state[f"{old}.mlp.{name}_proj.weight"] for name in ("gate", "up")])
        arrays |= {f"{new}/mlp/gate_up/kernel": gate_up.T}
        arrays |= {f"{new}/mlp/down/kernel": state[f"{old}.mlp.down_proj.weight"].T}
    return arrays
