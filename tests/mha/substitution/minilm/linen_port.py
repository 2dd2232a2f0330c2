"""all-MiniLM-L6-v2 in Flax linen, written anew: packed projections, norms beside the sublayers; and its faults by name.

Other modules than transformers has: `mix` is self-attention with its output projection, `feed` both layers of the
feed-forward; the norms and residuals stand in `stage_N`. The mask is made once, at the top.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

WIDTH, INNER, HEADS, DEPTH = 384, 1536, 12, 6
EPSILON = 1e-12

Arrays = Mapping[str, NDArray[np.float32]]
Params = dict[str, Any]

NORMS = ("stem/norm", *(f"stage_{i}/{name}" for i in range(DEPTH) for name in ("ln_mix", "ln_feed")))
LAYER = ("mix/qkv", "mix/merge", "ln_mix", "feed/up", "feed/down", "ln_feed")

FAULTS: dict[str, tuple[str, ...]] = {
    "eps 1e-5": ("stage_2/ln_mix",),
    "eps 1e-3": ("stage_4/ln_feed",),
    "eps 1e-5 in the stem": ("stem/norm",),
    "eps 1e-6 everywhere": NORMS,
    "gelu tanh": ("stage_1/feed",),
    "gelu tanh everywhere": tuple(f"stage_{i}/feed" for i in range(DEPTH)),
    "relu": ("stage_3/feed",),
    "activation twice": ("stage_0/feed",),
    "bias lost, up": ("stage_2/feed/up",),
    "bias lost, merge": ("stage_1/mix/merge",),
    "bias lost, value": ("stage_3/mix/qkv",),
    "residual lost, mix": ("stage_2",),
    "residual lost, feed": ("stage_4",),
    "residual after norm, mix": ("stage_3",),
    "residual after norm, feed": ("stage_0",),
    "scale missing": ("stage_1/mix",),
    "scale sqrt(384)": ("stage_4/mix",),
    "scale sqrt(384) everywhere": tuple(f"stage_{i}/mix" for i in range(DEPTH)),
    "6 heads": ("stage_2/mix",),
    "mask dropped": ("",),
    "mask dropped in a stage": ("stage_3/mix",),
    "mask of the previous item": ("",),
    "mask off by one": ("",),
    "positions off by one": ("stem",),
    "types not added": ("stem",),
    "types all 0": ("stem",),
    "word embeddings scaled": ("stem",),
    "layers exchanged": tuple(f"stage_{i}/{name}" for i in (1, 2) for name in LAYER),
    "up exchanged": ("stage_1/feed/up", "stage_4/feed/up"),
    "norms exchanged": ("stage_3/ln_mix", "stage_3/ln_feed"),
    "query and key exchanged": ("stage_4/mix/qkv",),
    "merge transposed": ("stage_0/mix/merge",),
    "query transposed": ("stage_1/mix/qkv",),
    "row of down": ("stage_3/feed/down",),
    "row of words": ("stem/word",),
    "norm in bfloat16": ("stage_0/ln_feed",),
    "softmax over queries": ("stage_2/mix",),
    "value in bfloat16": ("stage_4/mix",),
    "last layer skipped": ("",),
    "last layer twice": ("",),
}
"""Name -> the modules of the port in which the wrong line or parameter stands."""

ALSO: dict[str, tuple[tuple[str, ...], ...]] = {"layers exchanged": (("",), ("stage_1", "stage_2"))}
"""Other right answers: two layers in each other's place are two modules in the wrong order too."""

RIGHT = ("additive mask", "packed by heads", "flat")
"""Ports that are right too, by name: a mask to be added; q, k and v of each head side by side; (B * L, 384) inside."""

Wrong = frozenset[tuple[str, str]]


class Part(nn.Module):
    wrong: Wrong = frozenset()

    def has(self, fault: str, child: str = "") -> bool:
        path = "/".join((*self.path, child) if child else self.path)
        return (fault, path) in self.wrong

    def right(self, variant: str) -> bool:
        return (variant, "") in self.wrong

    def norm(self, name: str) -> nn.LayerNorm:
        epsilon = EPSILON
        for fault, value in (("eps 1e-5", 1e-5), ("eps 1e-5 in the stem", 1e-5), ("eps 1e-3", 1e-3)):
            epsilon = value if self.has(fault, name) else epsilon
        if self.has("eps 1e-6 everywhere", name):
            epsilon = 1e-6
        dtype = jnp.bfloat16 if self.has("norm in bfloat16", name) else None
        return nn.LayerNorm(epsilon=epsilon, dtype=dtype, name=name)


class Stem(Part):
    """Ids to vectors."""

    @nn.compact
    def __call__(self, tokens: jax.Array, segments: jax.Array) -> jax.Array:
        words = nn.Embed(30522, WIDTH, name="word")(tokens)
        if self.has("word embeddings scaled"):
            words = words * np.sqrt(WIDTH).astype(np.float32)
        places = jnp.arange(tokens.shape[1]) + self.has("positions off by one")
        if self.has("types all 0"):
            segments = jnp.zeros_like(segments)
        total = words + nn.Embed(512, WIDTH, name="place")(places)[None]
        kinds = nn.Embed(2, WIDTH, name="segment")(segments)
        if not self.has("types not added"):
            total = total + kinds
        return self.norm("norm")(total)


class Mix(Part):
    """Self-attention and its output projection; without residual and norm."""

    @nn.compact
    def __call__(self, x: jax.Array, keep: jax.Array) -> jax.Array:
        heads = 6 if self.has("6 heads") else HEADS
        size = WIDTH // heads
        packed = nn.Dense(3 * WIDTH, name="qkv")(x).reshape(keep.shape[0], keep.shape[-1], 3 * WIDTH)
        if self.right("packed by heads"):
            q, k, v = jnp.moveaxis(packed.reshape(*packed.shape[:2], HEADS, 3, -1), 3, 0)
        else:
            q, k, v = jnp.split(packed, 3, axis=-1)
        q, k, v = (part.reshape(*packed.shape[:2], heads, size).transpose(0, 2, 1, 3) for part in (q, k, v))
        scale = size**-0.5
        if self.has("scale missing"):
            scale = 1.0
        if self.has("scale sqrt(384)") or self.has("scale sqrt(384) everywhere"):
            scale = WIDTH**-0.5
        scores = q @ k.swapaxes(-1, -2) * scale
        if not self.has("mask dropped in a stage"):
            scores = scores + keep if self.right("additive mask") else jnp.where(keep, scores, -1e30)
        weights = jax.nn.softmax(scores, axis=-2 if self.has("softmax over queries") else -1)
        if self.has("value in bfloat16"):
            v = v.astype(jnp.bfloat16).astype(v.dtype)
        mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        return nn.Dense(WIDTH, use_bias=not self.has("bias lost, merge", "merge"), name="merge")(mixed)


class Feed(Part):
    """Both layers of the feed-forward; without residual and norm."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        tanh = self.has("gelu tanh") or self.has("gelu tanh everywhere")
        inner = nn.Dense(INNER, use_bias=not self.has("bias lost, up", "up"), name="up")(x)
        inner = jax.nn.relu(inner) if self.has("relu") else jax.nn.gelu(inner, approximate=tanh)
        if self.has("activation twice"):
            inner = jax.nn.gelu(inner, approximate=False)
        return nn.Dense(WIDTH, name="down")(inner)


class Stage(Part):
    @nn.compact
    def __call__(self, x: jax.Array, keep: jax.Array) -> jax.Array:
        x = self.join("mix", x, Mix(self.wrong, name="mix")(x, keep))
        return self.join("feed", x, Feed(self.wrong, name="feed")(x))

    def join(self, name: str, x: jax.Array, change: jax.Array) -> jax.Array:
        norm = self.norm(f"ln_{name}")
        if self.has(f"residual after norm, {name}"):
            return x + norm(change)
        return norm(change if self.has(f"residual lost, {name}") else x + change).astype(jnp.float32)


class Sentences(Part):
    """The whole encoder: ids, which of them to keep, and segments, to the last layer's vectors."""

    @nn.compact
    def __call__(self, tokens: jax.Array, keep: jax.Array, segments: jax.Array) -> jax.Array:
        keep = keep.astype(bool)[:, None, None, :]
        if self.has("mask dropped"):
            keep = jnp.ones_like(keep)
        if self.has("mask of the previous item"):
            keep = jnp.roll(keep, 1, axis=0)
        if self.has("mask off by one"):  # one key of the padding counts
            keep = jnp.concatenate([keep[..., :1], keep[..., :-1]], axis=-1)
        if self.right("additive mask"):
            keep = jnp.where(keep, 0.0, -1e9)
        x = Stem(self.wrong, name="stem")(tokens, segments)
        if self.right("flat"):
            x = x.reshape(-1, WIDTH)
        stages = [Stage(self.wrong, name=f"stage_{number}") for number in range(DEPTH)]
        if self.has("last layer skipped"):
            stages.pop()
        if self.has("last layer twice"):
            stages.append(stages[-1])
        for stage in stages:
            x = stage(x, keep)
        return x.reshape(*tokens.shape, WIDTH)


def build(state: Arrays, fault: str = "") -> Sentences:
    """The port, bound to the arrays of `state`, with the faults of these names, joined by " + "."""
    names = [name for name in fault.split(" + ") if name]
    params = params_of(state)
    for name in names:
        spoil(params, name)
    wrong = frozenset((name, path) for name in names for path in FAULTS.get(name, ("",)))
    return Sentences(wrong).bind({"params": params})


def call(model: Sentences, batch: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
    """What the port gives for a batch of the tokenizer."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    return np.asarray(model(*(jnp.asarray(batch[name].astype(np.int32)) for name in names)))


def params_of(state: Arrays) -> Params:
    def dense(*names: str) -> Params:
        kernels = [state[f"{name}.weight"].T for name in names]
        biases = [state[f"{name}.bias"] for name in names]
        return {"kernel": np.concatenate(kernels, axis=1), "bias": np.concatenate(biases)}

    def norm(name: str) -> Params:
        return {"scale": state[f"{name}.weight"], "bias": state[f"{name}.bias"]}

    def table(name: str) -> Params:
        return {"embedding": state[f"embeddings.{name}_embeddings.weight"]}

    stem = {"word": table("word"), "place": table("position"), "segment": table("token_type")}
    params: Params = {"stem": {**stem, "norm": norm("embeddings.LayerNorm")}}
    for number in range(DEPTH):
        old = f"encoder.layer.{number}"
        packed = dense(*(f"{old}.attention.self.{name}" for name in ("query", "key", "value")))
        params[f"stage_{number}"] = {
            "mix": {"qkv": packed, "merge": dense(f"{old}.attention.output.dense")},
            "feed": {"up": dense(f"{old}.intermediate.dense"), "down": dense(f"{old}.output.dense")},
            "ln_mix": norm(f"{old}.attention.output.LayerNorm"),
            "ln_feed": norm(f"{old}.output.LayerNorm"),
        }
    return params


def spoil(params: Params, fault: str) -> None:
    """The faults that stand in the parameters; those that stand in the code do nothing here."""
    if fault == "packed by heads":
        for number in range(DEPTH):
            for name, value in (qkv := params[f"stage_{number}"]["mix"]["qkv"]).items():
                parts = value.reshape(*value.shape[:-1], 3, HEADS, -1)
                qkv[name] = parts.swapaxes(-3, -2).reshape(value.shape)
    places = [_at(params, path) for path in FAULTS.get(fault, ()) if path]
    own = places[0] if places else {}
    if fault in ("bias lost, up", "bias lost, merge"):
        del own["bias"]
    elif fault == "bias lost, value":
        own["bias"] = np.concatenate([own["bias"][: 2 * WIDTH], np.zeros(WIDTH, np.float32)])
    elif fault == "layers exchanged":
        params["stage_1"], params["stage_2"] = params["stage_2"], params["stage_1"]
    elif fault in ("up exchanged", "norms exchanged"):
        first, second = places
        held = dict(first)
        first.update(second)
        second.update(held)
    elif fault == "query and key exchanged":
        for name, value in list(own.items()):
            q, k, v = np.split(value, 3, axis=-1)
            own[name] = np.concatenate([k, q, v], axis=-1)
    elif fault == "merge transposed":
        own["kernel"] = own["kernel"].T
    elif fault == "query transposed":
        q, k, v = np.split(own["kernel"], 3, axis=-1)
        own["kernel"] = np.concatenate([q.T, k, v], axis=-1)
    elif fault == "row of down":
        own["kernel"] = _with_wrong_row(own["kernel"], 100)
    elif fault == "row of words":
        own["embedding"] = _with_wrong_row(own["embedding"], 102)  # [SEP]


def _at(params: Params, path: str) -> Params:
    for name in path.split("/"):
        params = params[name]
    return params


def _with_wrong_row(table: NDArray[np.float32], row: int) -> NDArray[np.float32]:
    table = table.copy()
    table[row] = table[row - 1]
    return table
