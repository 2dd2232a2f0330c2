"""Ports of the decoders to Flax linen, written anew; and their faults by name.

Gate and up are one Dense; each attention makes its rotations itself, from the positions; masks are made at the top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
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

ATTENTIONS = tuple(f"layers_{i}/attn" for i in range(DEPTH))
MLPS = tuple(f"layers_{i}/mlp" for i in range(DEPTH))
LAYER = (*(f"attn/{name}" for name in "qkvo"), "pre_attn", "pre_mlp", "mlp/gate_up", "mlp/down")

BOTH: dict[str, tuple[str, ...]] = {
    "rotary base": ("layers_1/attn",),
    "rotary base everywhere": ATTENTIONS,
    "rotary of neighbours": ATTENTIONS,
    "rotary backward": ("layers_0/attn",),
    "rotary not of keys": ("layers_2/attn",),
    "rotary of values": ("layers_0/attn",),
    "rotary of half a head": ("layers_1/attn",),
    "heads repeated in another order": ("layers_1/attn",),
    "heads repeated in another order everywhere": ATTENTIONS,
    "scale sqrt(width)": ("layers_2/attn",),
    "scale missing": ("layers_0/attn",),
    "softmax in bfloat16": ("layers_1/attn",),
    "causal off by one": ("",),
    "not causal": ("",),
    "padding not masked": ("",),
    "eps 1e-5": ("layers_1/pre_attn",),
    "eps 1e-3 at the end": ("norm",),
    "norm takes the mean away": ("layers_2/pre_mlp",),
    "norm in bfloat16": ("layers_0/pre_mlp",),
    "offset of a norm's weight": ("layers_2/pre_attn",),
    "last norm lost": ("",),
    "activation": ("layers_0/mlp",),
    "activation everywhere": MLPS,
    "gate without activation": ("layers_2/mlp",),
    "gate and up exchanged": ("layers_1/mlp/gate_up",),
    "residual lost, attn": ("layers_1",),
    "residual lost, mlp": ("layers_0",),
    "norm of the residual": ("layers_2",),
    "logits scaled": ("",),
    "layers exchanged": tuple(f"layers_{i}/{name}" for i in (0, 1) for name in LAYER),
    "last layer skipped": ("",),
    "row of down": ("layers_1/mlp/down",),
    "row of key": ("layers_2/attn/k",),
    "query by another order of heads": ("layers_0/attn/q",),
    "words in another order": ("embed",),
}
"""Name -> the modules of the port in which the wrong line or parameter stands."""

OWN: dict[str, dict[str, tuple[str, ...]]] = {
    "llama": {
        "o transposed": ("layers_1/attn/o",),
        "window": ("",),
        "row of head": ("head",),
        "embedding scaled": ("",),
    },
    "gemma2": {
        "embedding not scaled": ("embed",),
        "softcap missing": ("",),
        "softcap not multiplied": ("",),
        "softcap of scores missing": ("layers_1/attn",),
        "softcap of scores behind the mask": ATTENTIONS,
        "window missing": ("",),
        "window one too large": ("",),
        "window of the other layers": ("",),
        "scale by the head's size everywhere": ATTENTIONS,
        "norm after attn lost": ("layers_1",),
        "norms of mlp exchanged": ("layers_0/pre_mlp", "layers_0/post_mlp"),
    },
}
ALSO: dict[str, tuple[tuple[str, ...], ...]] = {
    "gate and up exchanged": (("layers_1/mlp",),),
    "layers exchanged": (("",), ("layers_0", "layers_1")),
    "norms of mlp exchanged": (("layers_0",),),
}

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
        epsilon = 1e-5 if self.has("eps 1e-5") else 1e-3 if self.has("eps 1e-3 at the end") else EPSILON
        if self.has("norm takes the mean away"):
            x = x - x.mean(-1, keepdims=True)
        if self.has("norm in bfloat16"):
            x = x.astype(jnp.bfloat16)
        x = (x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + epsilon)).astype(jnp.float32)
        offset = (self.kind == "gemma2") != self.has("offset of a norm's weight")
        return x * (weight + offset)


class Attention(Part):
    @nn.compact
    def __call__(self, x: jax.Array, positions: jax.Array, mask: jax.Array) -> jax.Array:
        size, rows = sizes.SIZE[self.kind], x.shape[:2]
        q = nn.Dense(HEADS * size, use_bias=False, name="q")(x).reshape(*rows, HEADS, size)
        k, v = (nn.Dense(GROUPS * size, use_bias=False, name=name)(x).reshape(*rows, GROUPS, size) for name in "kv")
        q = self.rotate(q, positions)
        k = k if self.has("rotary not of keys") else self.rotate(k, positions)
        v = self.rotate(v, positions) if self.has("rotary of values") else v
        times = HEADS // GROUPS
        if self.has("heads repeated in another order", "heads repeated in another order everywhere"):
            k, v = (jnp.tile(one, (1, 1, times, 1)) for one in (k, v))
        else:
            k, v = (jnp.repeat(one, times, axis=2) for one in (k, v))
        scale = WIDTH**-0.5 if self.has("scale sqrt(width)") else sizes.SCALE[self.kind]
        scale = 1.0 if self.has("scale missing") else scale
        scale = size**-0.5 if self.has("scale by the head's size everywhere") else scale
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale
        behind = self.has("softcap of scores behind the mask")
        scores = jnp.where(mask, scores, -1e9) if behind else scores
        if self.kind == "gemma2" and not self.has("softcap of scores missing"):
            scores = jnp.tanh(scores / SCORE_CAP) * SCORE_CAP
        scores = scores if behind else jnp.where(mask, scores, -1e9)
        if self.has("softmax in bfloat16"):
            scores = scores.astype(jnp.bfloat16)
        weights = jax.nn.softmax(scores, axis=-1).astype(jnp.float32)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(*rows, HEADS * size)
        return nn.Dense(WIDTH, use_bias=False, name="o")(mixed)

    def rotate(self, x: jax.Array, positions: jax.Array) -> jax.Array:
        half = x.shape[-1] // 2
        base = 500000.0 if self.has("rotary base", "rotary base everywhere") else BASE
        angles = positions[..., None, None] * base ** (-jnp.arange(half) / half)
        if self.has("rotary backward"):
            angles = -angles
        if self.has("rotary of half a head"):
            angles = angles.at[..., half // 2 :].set(0.0)
        if self.has("rotary of neighbours"):
            first, second = x[..., ::2], x[..., 1::2]
        else:
            first, second = jnp.split(x, 2, axis=-1)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        pair = (first * cos - second * sin, second * cos + first * sin)
        if self.has("rotary of neighbours"):
            return jnp.stack(pair, axis=-1).reshape(x.shape)
        return jnp.concatenate(pair, axis=-1)


class Mlp(Part):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        gate, up = jnp.split(nn.Dense(2 * INNER, use_bias=False, name="gate_up")(x), 2, axis=-1)
        silu = (self.kind == "llama") != self.has("activation", "activation everywhere")
        if not self.has("gate without activation"):
            gate = jax.nn.silu(gate) if silu else jax.nn.gelu(gate, approximate=True)
        return nn.Dense(WIDTH, use_bias=False, name="down")(gate * up)


class Layer(Part):
    @nn.compact
    def __call__(self, x: jax.Array, positions: jax.Array, mask: jax.Array) -> jax.Array:
        normed = self.part(Norm, "pre_attn")(x)
        y = self.part(Attention, "attn")(normed, positions, mask)
        if self.kind == "gemma2" and not self.has("norm after attn lost"):
            y = self.part(Norm, "post_attn")(y)
        x = y if self.has("residual lost, attn") else x + y
        normed = self.part(Norm, "pre_mlp")(x)
        y = self.part(Mlp, "mlp")(normed)
        y = self.part(Norm, "post_mlp")(y) if self.kind == "gemma2" else y
        x = normed if self.has("norm of the residual") else x
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
        x = embed(ids) * np.float32(WIDTH**0.5 if outside or self.has("embedding scaled") else 1.0)
        if self.has("positions from the left edge"):
            positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        for number in range(DEPTH - self.has("last layer skipped")):
            mask = self.mask(keep, gemma and number % 2 == int(self.has("window of the other layers")))
            x = Layer(self.kind, self.wrong, name=f"layers_{number}")(x, positions, mask)
        if not self.has("last norm lost"):
            x = Norm(self.kind, self.wrong, name="norm")(x)
        x = embed.attend(x) if gemma else nn.Dense(sizes.VOCABULARY, use_bias=False, name="head")(x)
        x = x * WIDTH**-0.5 if self.has("logits scaled") else x
        if gemma and not self.has("softcap missing"):
            x = jnp.tanh(x / CAP) * (1.0 if self.has("softcap not multiplied") else CAP)
        return x

    def mask(self, keep: jax.Array, window: bool) -> jax.Array:
        length = keep.shape[1]
        back = jnp.arange(length)[:, None] - jnp.arange(length)
        allowed = back >= (-1 if self.has("causal off by one") else -length if self.has("not causal") else 0)
        if (window and not self.has("window missing")) or self.has("window"):
            allowed = allowed & (back < WINDOW + self.has("window one too large"))
        allowed = jnp.broadcast_to(allowed[None, None], (len(keep), 1, length, length))
        return allowed if self.has("padding not masked") else allowed & (keep == 1)[:, None, None, :]


@dataclass(frozen=True)
class Port:
    """What is measured: one decoder and its faults."""

    kind: str
    left: bool
    """Where the padding is."""
    ALSO: dict[str, tuple[tuple[str, ...], ...]] = field(default_factory=lambda: ALSO)

    @property
    def RIGHT(self) -> tuple[str, ...]:
        left = ("positions from the left edge",)  # only distances count
        return left if self.kind == "llama" else (*left, "scaled outside")

    @property
    def FAULTS(self) -> dict[str, tuple[str, ...]]:
        return BOTH | OWN[self.kind]

    def original(self) -> tuple[Any, sizes.Inputs, sizes.State]:
        return sizes.original(self.kind, self.left)

    def build(self, state: sizes.State, fault: str = "") -> Decoder:
        arrays = arrays_of(state, self.kind)
        names = [name for name in fault.split(" + ") if name]
        for name in names:
            spoil(arrays, name, self.FAULTS.get(name, ("",)), self.kind)
        params: dict[str, Any] = {}
        for path, array in arrays.items():
            *around, last = path.split("/")
            own = params
            for name in around:
                own = own.setdefault(name, {})
            own[last] = jnp.asarray(array)
        wrong = frozenset((name, place) for name in names for place in self.FAULTS.get(name, ("*",)))
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


def spoil(arrays: sizes.State, fault: str, places: tuple[str, ...], kind: str) -> None:
    """The faults that stand in the parameters; those that stand in the code do nothing here."""
    kernel = f"{places[0]}/kernel"
    if fault == "gate and up exchanged":
        arrays[kernel] = np.roll(arrays[kernel], INNER, axis=1)
    elif fault == "layers exchanged":
        for one in [name for name in arrays if name.startswith("layers_0")]:
            two = one.replace("layers_0", "layers_1")
            arrays[one], arrays[two] = arrays[two], arrays[one]
    elif fault == "norms of mlp exchanged":
        one, two = (f"{place}/weight" for place in places)
        arrays[one], arrays[two] = arrays[two], arrays[one]
    elif fault == "o transposed":
        arrays[kernel] = arrays[kernel].T
    elif fault == "query by another order of heads":
        arrays[kernel] = arrays[kernel].reshape(WIDTH, -1, HEADS).swapaxes(1, 2).reshape(WIDTH, -1)
    elif fault in ("row of down", "row of key", "row of head"):
        arrays[kernel] = arrays[kernel].copy()
        arrays[kernel][7] = arrays[kernel][6]
    elif fault == "words in another order":
        arrays["embed/embedding"] = np.roll(arrays["embed/embedding"], 1, axis=0)
