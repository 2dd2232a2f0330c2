"""A small random encoder in Keras, with Keras's own attention, and its batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

VOCABULARY, PLACES, WIDTH, INNER, HEADS, DEPTH = 43, 12, 24, 40, 3, 2
EPSILON = 1e-6

Inputs = dict[str, NDArray[np.int32]]
State = dict[str, NDArray[np.float32]]


class Block(keras.layers.Layer):
    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.attention = keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name="attention")
        self.after_attention = keras.layers.LayerNormalization(epsilon=EPSILON, name="after_attention")
        self.up = keras.layers.Dense(INNER, activation="gelu", name="up")  # erf: Keras's own
        self.down = keras.layers.Dense(WIDTH, name="down")
        self.after_feed = keras.layers.LayerNormalization(epsilon=EPSILON, name="after_feed")

    def call(self, x: Any, mask: Any) -> Any:
        x = self.after_attention(x + self.attention(x, x, attention_mask=mask))
        return self.after_feed(x + self.down(self.up(x)))


class Encoder(keras.Model):
    def __init__(self) -> None:
        super().__init__(name="encoder")
        self.words = keras.layers.Embedding(VOCABULARY, WIDTH, name="words")
        self.places = keras.layers.Embedding(PLACES, WIDTH, name="places")
        self.blocks = [Block(f"block_{number}") for number in range(DEPTH)]
        self.last = keras.layers.Dense(5, name="last")

    def call(self, ids: Any, keep: Any) -> Any:
        x = self.words(ids) + self.places(ops.arange(ids.shape[1]))
        mask = ops.cast(keep, "bool")[:, None, :]
        for block in self.blocks:
            x = block(x, mask)
        return self.last(x)


def original() -> tuple[Any, Inputs, State]:
    """The model, what it is called with, and its parameters by name."""
    keep = np.ones((3, 6), np.int32)
    keep[0, 4:] = keep[2, 2:] = 0
    drawn = np.random.default_rng(11)
    ids = drawn.integers(0, VOCABULARY, keep.shape).astype(np.int32)
    model = Encoder()
    model(ids, keep)
    for weight in model.weights:
        own = drawn.normal(size=weight.shape)
        fan = 1.0 if "embeddings" in weight.path else np.prod(weight.shape[:-1])
        weight.assign(own / fan**0.5 if "kernel" in weight.path or "embeddings" in weight.path else weight + 0.2 * own)
    inputs = {"ids": ids, "keep": keep}
    return model, inputs, {weight.path: np.asarray(weight.value) for weight in model.weights}
