"""all-MiniLM-L6-v2 in Keras, written anew; and its faults by name.

Other modules than transformers has: the layers lie flat in the model, `attend_N` and `feed_N` in turn, each with its
residual and norm; heads are split in `attend_N`, and the mask is made at the top.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

WIDTH, INNER, HEADS, DEPTH = 384, 1536, 12, 6
EPSILON = 1e-12

Arrays = Mapping[str, NDArray[np.float32]]

NORMS = ("front/norm", *(f"{name}_{i}/norm" for i in range(DEPTH) for name in ("attend", "feed")))
LAYER = tuple(f"attend_{{0}}/{name}" for name in ("q", "k", "v", "out", "norm"))
LAYER = (*LAYER, "feed_{0}/up", "feed_{0}/down", "feed_{0}/norm")

FAULTS: dict[str, tuple[str, ...]] = {
    "eps 1e-5": ("attend_2/norm",),
    "eps 1e-3": ("feed_4/norm",),
    "eps 1e-3 everywhere": NORMS,  # Keras's own
    "gelu tanh": ("feed_1",),
    "gelu tanh everywhere": tuple(f"feed_{i}" for i in range(DEPTH)),
    "relu": ("feed_3",),
    "activation twice": ("feed_0",),
    "bias lost, up": ("feed_2/up",),
    "bias lost, out": ("attend_1/out",),
    "bias lost, value": ("attend_3/v",),
    "residual lost, attend": ("attend_2",),
    "residual lost, feed": ("feed_4",),
    "residual after norm, attend": ("attend_3",),
    "residual after norm, feed": ("feed_0",),
    "scale missing": ("attend_1",),
    "scale sqrt(384)": ("attend_4",),
    "scale sqrt(384) everywhere": tuple(f"attend_{i}" for i in range(DEPTH)),
    "6 heads": ("attend_2",),
    "mask dropped": ("",),
    "mask dropped in a layer": ("attend_3",),
    "mask of the previous item": ("",),
    "mask off by one": ("",),
    "positions off by one": ("front",),
    "types not added": ("front",),
    "types all 0": ("front",),
    "word embeddings scaled": ("front",),
    "layers exchanged": tuple(name.format(i) for i in (1, 2) for name in LAYER),
    "up exchanged": ("feed_1/up", "feed_4/up"),
    "norms exchanged": ("attend_3/norm", "feed_3/norm"),
    "query and key exchanged": ("attend_4/q", "attend_4/k"),
    "out transposed": ("attend_0/out",),
    "query transposed": ("attend_1/q",),
    "row of down": ("feed_3/down",),
    "row of words": ("front/token",),
    "norm in bfloat16": ("feed_0/norm",),
    "softmax over queries": ("attend_2",),
    "value in bfloat16": ("attend_4",),
    "last layer skipped": ("",),
    "last layer twice": ("",),
}
"""Name -> the modules of the port in which the wrong line or parameter stands."""

ALSO: dict[str, tuple[tuple[str, ...], ...]] = {
    "layers exchanged": (("",), ("attend_1", "feed_1", "attend_2", "feed_2")),
    "query and key exchanged": (("attend_4",),),
}
"""Other right answers: modules in each other's place are modules in the wrong order too."""

RIGHT = ("activation inside",)
"""Ports that are right too, by name: here `up` applies the activation itself, as a Dense of Keras may."""

Wrong = frozenset[tuple[str, str]]


class Part(keras.layers.Layer):
    def __init__(self, wrong: Wrong, name: str) -> None:
        super().__init__(name=name)
        self.wrong = wrong

    def has(self, fault: str, child: str = "") -> bool:
        return (fault, f"{self.name}/{child}" if child else self.name) in self.wrong

    def norm_layer(self) -> keras.layers.LayerNormalization:
        epsilon = 1e-5 if self.has("eps 1e-5", "norm") else EPSILON
        if self.has("eps 1e-3", "norm") or self.has("eps 1e-3 everywhere", "norm"):
            epsilon = 1e-3
        dtype = "mixed_bfloat16" if self.has("norm in bfloat16", "norm") else "float32"
        return keras.layers.LayerNormalization(epsilon=epsilon, dtype=dtype, name="norm")


class Front(Part):
    """Ids to vectors."""

    def __init__(self, wrong: Wrong, name: str) -> None:
        super().__init__(wrong, name)
        self.token = keras.layers.Embedding(30522, WIDTH, name="token")
        self.place = keras.layers.Embedding(512, WIDTH, name="place")
        self.kind = keras.layers.Embedding(2, WIDTH, name="kind")
        self.norm = self.norm_layer()

    def call(self, tokens: Any, segments: Any) -> Any:
        words = self.token(tokens)
        if self.has("word embeddings scaled"):
            words = words * WIDTH**0.5
        places = ops.arange(tokens.shape[1]) + int(self.has("positions off by one"))
        if self.has("types all 0"):
            segments = ops.zeros_like(segments)
        total = words + self.place(places)[None]
        kinds = self.kind(segments)
        return self.norm(total if self.has("types not added") else total + kinds)


class Attend(Part):
    """Self-attention with output projection, residual and norm."""

    def __init__(self, wrong: Wrong, name: str) -> None:
        super().__init__(wrong, name)
        self.q = keras.layers.Dense(WIDTH, name="q")
        self.k = keras.layers.Dense(WIDTH, name="k")
        self.v = keras.layers.Dense(WIDTH, use_bias=not self.has("bias lost, value", "v"), name="v")
        self.out = keras.layers.Dense(WIDTH, use_bias=not self.has("bias lost, out", "out"), name="out")
        self.norm = self.norm_layer()

    def call(self, x: Any, keep: Any) -> Any:
        heads = 6 if self.has("6 heads") else HEADS
        shape = (*x.shape[:2], heads, WIDTH // heads)
        q, k, v = (ops.transpose(ops.reshape(part(x), shape), (0, 2, 1, 3)) for part in (self.q, self.k, self.v))
        scale = shape[-1] ** -0.5
        if self.has("scale missing"):
            scale = 1.0
        if self.has("scale sqrt(384)") or self.has("scale sqrt(384) everywhere"):
            scale = WIDTH**-0.5
        scores = ops.matmul(q * scale, ops.transpose(k, (0, 1, 3, 2)))
        if not self.has("mask dropped in a layer"):
            scores = ops.where(keep, scores, -1e9)
        weights = ops.softmax(scores, axis=-2 if self.has("softmax over queries") else -1)
        if self.has("value in bfloat16"):
            v = ops.cast(ops.cast(v, "bfloat16"), "float32")
        mixed = ops.reshape(ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3)), x.shape)
        change = self.out(mixed)
        if self.has("residual after norm, attend"):
            return x + self.norm(change)
        return self.norm(change if self.has("residual lost, attend") else x + change)


class Feed(Part):
    """Both layers of the feed-forward, with residual and norm."""

    def __init__(self, wrong: Wrong, name: str) -> None:
        super().__init__(wrong, name)
        self.inside = ("activation inside", "") in wrong
        bias = not self.has("bias lost, up", "up")
        self.up = keras.layers.Dense(INNER, self.act if self.inside else None, use_bias=bias, name="up")
        self.down = keras.layers.Dense(WIDTH, name="down")
        self.norm = self.norm_layer()

    def act(self, x: Any) -> Any:
        if self.has("relu"):
            return ops.relu(x)
        return ops.gelu(x, approximate=self.has("gelu tanh") or self.has("gelu tanh everywhere"))

    def call(self, x: Any) -> Any:
        inner = self.up(x) if self.inside else self.act(self.up(x))
        if self.has("activation twice"):
            inner = ops.gelu(inner, approximate=False)
        change = self.down(inner)
        if self.has("residual after norm, feed"):
            return x + self.norm(change)
        return ops.cast(self.norm(change if self.has("residual lost, feed") else x + change), "float32")


class Sentences(keras.Model):
    """The whole encoder: ids, which of them to keep, and segments, to the last layer's vectors."""

    def __init__(self, wrong: Wrong) -> None:
        super().__init__(name="sentences")
        self.wrong = wrong
        self.front = Front(wrong, name="front")
        self.attends = [Attend(wrong, name=f"attend_{number}") for number in range(DEPTH)]
        self.feeds = [Feed(wrong, name=f"feed_{number}") for number in range(DEPTH)]

    def has(self, fault: str) -> bool:
        return (fault, "") in self.wrong

    def call(self, tokens: Any, keep: Any, segments: Any) -> Any:
        keep = ops.cast(keep, "bool")[:, None, None, :]
        if self.has("mask dropped"):
            keep = ops.ones_like(keep)
        if self.has("mask of the previous item"):
            keep = ops.roll(keep, 1, axis=0)
        if self.has("mask off by one"):  # one key of the padding counts
            keep = ops.concatenate([keep[..., :1], keep[..., :-1]], axis=-1)
        x = self.front(tokens, segments)
        layers = list(zip(self.attends, self.feeds, strict=True))
        if self.has("last layer skipped"):
            layers.pop()
        if self.has("last layer twice"):
            layers.append(layers[-1])
        for attend, feed in layers:
            x = feed(attend(x, keep))
        return x


def build(state: Arrays, fault: str = "") -> Sentences:
    """The port, called once, with the arrays of `state` and the faults of these names, joined by " + "."""
    names = [name for name in fault.split(" + ") if name]
    arrays = arrays_of(state)
    for name in names:
        spoil(arrays, name)
    model = Sentences(frozenset((name, path) for name in names for path in FAULTS.get(name, ("",))))
    one = ops.ones((1, 1), "int32")
    model(one, one, one)
    for part in (model.front, *model.attends, *model.feeds):
        for key, values in arrays.items():
            owner, _, name = key.partition("/")
            if owner == part.name and part.built:  # a layer that is skipped has no parameters yet
                layer = getattr(part, name)
                layer.set_weights(values[: len(layer.weights)])
    return model


def call(model: Sentences, batch: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
    """What the port gives for a batch of the tokenizer."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    given = (ops.convert_to_tensor(batch[name].astype(np.int32)) for name in names)
    return np.asarray(ops.convert_to_numpy(model(*given)))


def arrays_of(state: Arrays) -> dict[str, list[NDArray[np.float32]]]:
    def dense(name: str) -> list[NDArray[np.float32]]:
        return [state[f"{name}.weight"].T, state[f"{name}.bias"]]

    def norm(name: str) -> list[NDArray[np.float32]]:
        return [state[f"{name}.weight"], state[f"{name}.bias"]]

    tables = (("token", "word"), ("place", "position"), ("kind", "token_type"))
    arrays = {f"front/{new}": [state[f"embeddings.{old}_embeddings.weight"]] for new, old in tables}
    arrays["front/norm"] = norm("embeddings.LayerNorm")
    for number in range(DEPTH):
        old = f"encoder.layer.{number}"
        for new, name in (("q", "query"), ("k", "key"), ("v", "value")):
            arrays[f"attend_{number}/{new}"] = dense(f"{old}.attention.self.{name}")
        arrays[f"attend_{number}/out"] = dense(f"{old}.attention.output.dense")
        arrays[f"attend_{number}/norm"] = norm(f"{old}.attention.output.LayerNorm")
        arrays[f"feed_{number}/up"] = dense(f"{old}.intermediate.dense")
        arrays[f"feed_{number}/down"] = dense(f"{old}.output.dense")
        arrays[f"feed_{number}/norm"] = norm(f"{old}.output.LayerNorm")
    return arrays


def spoil(arrays: dict[str, list[NDArray[np.float32]]], fault: str) -> None:
    """The faults that stand in the parameters; those that stand in the code do nothing here."""
    places = FAULTS.get(fault, ())
    if fault == "layers exchanged":
        for name in LAYER:
            one, two = name.format(1), name.format(2)
            arrays[one], arrays[two] = arrays[two], arrays[one]
    elif fault in ("up exchanged", "norms exchanged", "query and key exchanged"):
        arrays[places[0]], arrays[places[1]] = arrays[places[1]], arrays[places[0]]
    elif fault in ("out transposed", "query transposed"):
        kernel, bias = arrays[places[0]]
        arrays[places[0]] = [kernel.T, bias]
    elif fault in ("row of down", "row of words"):
        table, *others = arrays[places[0]]
        row = 100 if fault == "row of down" else 102  # [SEP]
        table = table.copy()
        table[row] = table[row - 1]
        arrays[places[0]] = [table, *others]
