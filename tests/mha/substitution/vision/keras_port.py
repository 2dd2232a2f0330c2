"""A port of ViT to Keras, written anew.

Images have their channels last; query, key and value are one Dense; the class token and the table of positions are
weights of `stem`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from tests.mha.substitution.vision.arrays import arrays_of, spoil
from tests.mha.substitution.vision.faults import ALSO, FAULTS, INSIDE, RIGHT
from tests.mha.substitution.vision.original import (
    BREADTH,
    CHANNELS,
    COLUMNS,
    DEPTH,
    EPSILON,
    HEADS,
    HEIGHT,
    INNER,
    PATCH,
    ROWS,
    WIDTH,
    State,
    original,
)

__all__ = ["ALSO", "FAULTS", "RIGHT", "build", "call", "original"]

Wrong = frozenset[tuple[str, str]]
"""Names of faults and variants, and the modules in which they are; a variant is everywhere: "*"."""

TOKENS = ROWS * COLUMNS + 1


class Norm(keras.layers.Layer):
    """For faults that Keras's layer has not."""

    def __init__(self, fault: str, name: str) -> None:
        super().__init__(name=name)
        self.fault = fault

    def build(self, shape: Any) -> None:
        self.gamma = self.add_weight(shape=(WIDTH,), name="gamma")
        self.beta = self.add_weight(shape=(WIDTH,), name="beta")

    def call(self, x: Any) -> Any:
        axis = 1 if self.fault == "norm over tokens" else -1
        centered = x if self.fault == "rms" else x - ops.mean(x, axis=axis, keepdims=True)
        spread = ops.mean(centered * centered, axis=axis, keepdims=True)
        return centered / ops.sqrt(spread + EPSILON) * self.gamma + self.beta


class Part(keras.layers.Layer):
    def __init__(self, wrong: Wrong, name: str) -> None:
        super().__init__(name=name.rpartition("/")[2])
        self.wrong, self.at = wrong, name

    def has(self, *faults: str, child: str = "") -> bool:
        at = "/".join(name for name in (self.at, child) if name)
        return any((fault, place) in self.wrong for fault in faults for place in (at, "*"))

    def norm(self, name: str) -> Any:
        for fault in ("rms", "norm over tokens"):
            if self.has(fault, child=name):
                return Norm(fault, name)
        epsilon = 1e-5 if self.has("eps 1e-5", child=name) else EPSILON
        epsilon = 1e-3 if self.has("eps 1e-3 everywhere", "eps 1e-3, last", child=name) else epsilon
        return keras.layers.LayerNormalization(epsilon=epsilon, name=name)

    @property
    def inside(self) -> bool:
        return self.has(*INSIDE)

    @property
    def summed(self) -> bool:
        return self.has("sums in attn and mlp")


class Stem(Part):
    """Images to tokens."""

    def __init__(self, wrong: Wrong, name: str) -> None:
        super().__init__(wrong, name)
        bias = not self.has("bias of conv lost", child="conv")
        if self.has("patches by dense"):
            self.conv = keras.layers.Dense(WIDTH, name="conv")
        else:
            self.conv = keras.layers.Conv2D(WIDTH, PATCH, strides=PATCH, use_bias=bias, name="conv")
        self.cls = self.add_weight(shape=(1, 1, WIDTH), name="cls")
        if self.has("positions looked up"):
            self.pos: Any = keras.layers.Embedding(TOKENS, WIDTH, name="pos")
        else:
            self.pos = self.add_weight(shape=(1, TOKENS, WIDTH), name="pos")

    def call(self, images: Any) -> Any:
        many = images.shape[0]
        if self.has("patches by dense"):
            images = ops.reshape(images, (many, ROWS, PATCH, COLUMNS, PATCH, CHANNELS))
            images = ops.reshape(ops.transpose(images, (0, 1, 3, 2, 4, 5)), (many, ROWS, COLUMNS, -1))
        patches = self.conv(images)
        if self.has("patches by columns"):
            patches = ops.transpose(patches, (0, 2, 1, 3))
        patches = ops.reshape(patches, (many, TOKENS - 1, WIDTH))
        if self.has("patches backward"):
            patches = ops.flip(patches, axis=1)
        pos = self.pos(ops.arange(TOKENS))[None] if self.has("positions looked up") else ops.convert_to_tensor(self.pos)
        first = ops.broadcast_to(self.cls, (many, 1, WIDTH))
        if self.has("class token of zeros"):
            first = ops.zeros_like(first)
        if self.has("positions added before"):
            return ops.concatenate([first + pos[:, :1], patches + pos[:, 1:]], axis=1)
        if self.has("class token last"):
            return ops.concatenate([patches, first], axis=1) + pos
        tokens = ops.concatenate([first, patches], axis=1)
        if self.has("positions one further"):
            pos = ops.roll(pos, -1, axis=1)
        if self.has("positions of the class token lost"):
            pos = ops.concatenate([ops.zeros_like(pos[:, :1]), pos[:, 1:]], axis=1)
        if self.has("positions scaled"):
            pos = pos * WIDTH**0.5
        return tokens if self.has("positions lost") else tokens + pos


class Attention(Part):
    def __init__(self, wrong: Wrong, name: str) -> None:
        super().__init__(wrong, name)
        if self.has("attention of keras"):
            self.mha = keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name="mha")
        else:
            if self.has("qkv split"):
                self.q, self.k, self.v = (keras.layers.Dense(WIDTH, name=one) for one in "qkv")
            else:
                bias = not self.has("bias of qkv lost", child="qkv")
                self.qkv = keras.layers.Dense(3 * WIDTH, use_bias=bias, name="qkv")
            bias = not self.has("bias of out lost", child="out")
            self.out = keras.layers.Dense(WIDTH, use_bias=bias, name="out")
        if self.inside:
            self.pre = self.norm("pre")

    def call(self, x: Any) -> Any:
        given = x
        if self.inside:
            x = self.pre(x)
        out = self.mha(x, x) if self.has("attention of keras") else self.out(self.mix(*self.split(x)))
        return given + out if self.summed else out

    def split(self, x: Any) -> Any:
        """Queries, keys and values with the axis of heads in the third place."""
        many, tokens, _ = x.shape
        if self.has("qkv split"):
            return [ops.reshape(part(x), (many, tokens, HEADS, -1)) for part in (self.q, self.k, self.v)]
        qkv = self.qkv(x)
        if self.has("query, key, value of each head"):
            qkv = ops.reshape(qkv, (many, tokens, HEADS, 3, -1))
            return [qkv[..., number, :] for number in range(3)]
        if self.has("heads are the last axis"):
            qkv = ops.transpose(ops.reshape(qkv, (many, tokens, 3, -1, HEADS)), (0, 1, 2, 4, 3))
        else:
            qkv = ops.reshape(qkv, (many, tokens, 3, 4 if self.has("4 heads") else HEADS, -1))
        return [qkv[:, :, number] for number in range(3)]

    def mix(self, q: Any, k: Any, v: Any) -> Any:
        many, tokens, _, size = q.shape
        if self.has("attention by ops"):
            return ops.reshape(ops.nn.dot_product_attention(q, k, v), (many, tokens, WIDTH))
        scale = WIDTH**-0.5 if self.has("scale sqrt(width)") else size**-0.5
        scale = 1.0 if self.has("scale lost everywhere") else scale
        scale = size**-1 if self.has("scale twice") else scale
        if self.has("heads first"):
            q, k, v = (ops.transpose(one, (0, 2, 1, 3)) for one in (q, k, v))
            weights = ops.softmax(ops.matmul(q * scale, ops.swapaxes(k, -1, -2)), axis=-1)
            return ops.reshape(ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3)), (many, tokens, WIDTH))
        after = self.has("scores scaled")
        scores = ops.einsum("bqhd,bkhd->bhqk", q if after else q * scale, k)
        scores = scores * scale if after else scores
        if self.has("class token not attended to"):
            scores = ops.where(ops.arange(tokens) == 0, -1e9, scores)
        if self.has("causal"):
            scores = ops.where(ops.arange(tokens)[:, None] >= ops.arange(tokens), scores, -1e9)
        if self.has("softmax in bfloat16", "softmax in bfloat16 everywhere"):
            scores = ops.cast(scores, "bfloat16")
        weights = ops.cast(ops.softmax(scores, axis=-2 if self.has("softmax over queries") else -1), "float32")
        mixed = ops.einsum("bhqk,bkhd->bqhd", weights, v)
        if self.has("heads joined in another order"):
            mixed = ops.swapaxes(mixed, 2, 3)
        return ops.reshape(mixed, (many, tokens, WIDTH))


class Mlp(Part):
    def __init__(self, wrong: Wrong, name: str) -> None:
        super().__init__(wrong, name)
        bias = not self.has("bias of up lost", child="up")
        act = self.act if self.has("activation inside") else None
        self.up = keras.layers.Dense(INNER, act, use_bias=bias, name="up")
        dtype = "mixed_bfloat16" if self.has("down in bfloat16", child="down") else "float32"
        self.down = keras.layers.Dense(WIDTH, dtype=dtype, name="down")
        if self.inside:
            self.pre = self.norm("pre")

    def act(self, x: Any) -> Any:
        if self.has("quick gelu", "quick gelu everywhere"):
            return x * ops.sigmoid(1.702 * x)
        if self.has("relu"):
            return ops.relu(x)
        if self.has("gelu by erf"):
            return 0.5 * x * (1 + ops.erf(x / 2**0.5))
        return ops.gelu(x, approximate=self.has("gelu by tanh"))

    def call(self, x: Any) -> Any:
        given = x
        if self.inside:
            x = self.pre(x)
        if self.has("tokens in a row"):
            x = ops.reshape(x, (-1, WIDTH))
        inner = self.up(x)
        if self.has("activation behind down"):
            out = self.act(self.down(inner))
        else:
            out = self.down(inner if self.has("activation inside") else self.act(inner))
        out = ops.reshape(ops.cast(out, "float32"), given.shape)
        return given + out if self.summed else out


class Block(Part):
    def __init__(self, wrong: Wrong, name: str) -> None:
        super().__init__(wrong, name)
        self.attn, self.mlp = Attention(wrong, f"{name}/attn"), Mlp(wrong, f"{name}/mlp")
        if not self.inside:
            self.norm_1, self.norm_2 = self.norm("norm_1"), self.norm("norm_2")

    def call(self, x: Any) -> Any:
        if self.summed:
            return self.mlp(self.attn(x))
        if self.inside:
            x = x + self.attn(x)
            return x + self.mlp(x)
        if self.has("parallel"):
            return x + self.attn(self.norm_1(x)) + self.mlp(self.norm_2(x))
        if self.has("norm behind the sum"):
            x = self.norm_1(x + self.attn(x))
            return self.norm_2(x + self.mlp(x))
        if self.has("norm behind attn"):
            x = x + self.norm_1(self.attn(x))
        else:
            out = self.attn(self.norm_1(x))
            x = out if self.has("residual lost, attn") else x + out
        normed = self.norm_2(x)
        out = self.mlp(normed)
        x = normed if self.has("residual of the normed") else x
        return out if self.has("residual lost, mlp") else x + out


class Pool(Part):
    """Tokens to a vector."""

    def __init__(self, wrong: Wrong, name: str) -> None:
        super().__init__(wrong, name)
        self.dense = keras.layers.Dense(WIDTH, "tanh" if self.has("tanh inside") else None, name="dense")

    def call(self, x: Any) -> Any:
        first = x[:, -1 if self.has("pool of the last token") else 0]
        first = ops.mean(x, axis=1) if self.has("pool of the mean") else first
        pooled = self.dense(first)
        if self.has("pool without tanh", "tanh inside"):
            return pooled
        return ops.relu(pooled) if self.has("pool by relu") else ops.tanh(pooled)


class Vision(keras.Model):
    """Images to the tokens of the last layer and a vector for each image."""

    def __init__(self, wrong: Wrong) -> None:
        super().__init__(name="vision")
        self.wrong = wrong
        self.stem = Stem(wrong, "stem")
        self.blocks = [Block(wrong, f"block_{number}") for number in range(DEPTH)]
        self.last_norm = Part(wrong, "").norm("last_norm")
        top = self.has("pool at the top")
        self.pool: Any = keras.layers.Dense(WIDTH, "tanh", name="pool") if top else Pool(wrong, "pool")

    def has(self, fault: str) -> bool:
        return bool({(fault, ""), (fault, "*")} & self.wrong)

    def call(self, images: Any) -> Any:
        if self.has("channels first"):
            images = ops.transpose(images, (0, 2, 3, 1))
        if self.has("channels of images backward"):
            images = ops.flip(images, axis=-1)
        if self.has("images mirrored"):
            images = ops.flip(images, axis=2)
        if self.has("images scaled twice"):
            images = (images - 0.5) / 0.5
        x = self.stem(images)
        for block in self.blocks[: DEPTH - self.has("last block skipped")]:
            x = block(x)
        normed = x if self.has("last norm lost") else self.last_norm(x)
        given = x if self.has("pool of the unnormed") else normed
        pooled = self.pool(given[:, 0] if self.has("pool at the top") else given)
        tokens = x if self.has("last norm for the pool alone") else normed
        if self.has("dict"):
            return {"tokens": tokens, "pooled": pooled}
        return tokens, pooled


def build(state: State, fault: str = "") -> Vision:
    """The port, called once, with the arrays of `state` and the faults of these names, joined by " + "."""
    names = [name for name in fault.split(" + ") if name]
    arrays = arrays_of(state, frozenset(names))
    for name in names:
        spoil(arrays, name, FAULTS.get(name, ("*",)))
    model = Vision(frozenset((name, place) for name in names for place in FAULTS.get(name, ("*",))))
    first = "channels first" in names
    model(ops.ones((1, CHANNELS, HEIGHT, BREADTH) if first else (1, HEIGHT, BREADTH, CHANNELS)))
    left = dict(arrays)
    for weight in model.weights:
        path = weight.path.removeprefix("vision/")
        weight.assign(left.pop(path))
    losses = ("lost", "skipped")
    assert not left or any(word in name for word in losses for name in names), left.keys()
    return model


def call(model: Vision, batch: Mapping[str, NDArray[Any]]) -> tuple[NDArray[np.float32], ...]:
    """The tokens and the vectors for a batch of images, which have their channels first."""
    images = batch["pixel_values"].astype(np.float32)
    given = model(ops.convert_to_tensor(images if model.has("channels first") else images.transpose(0, 2, 3, 1)))
    parts = given.values() if isinstance(given, dict) else given
    return tuple(np.asarray(ops.convert_to_numpy(part)) for part in parts)
