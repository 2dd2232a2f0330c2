"""A self-attention layer and a decoder of Keras with one planted fault each: 2 items, 6 tokens, 3 heads of 7."""

import keras
import numpy as np
from keras import ops

HEADS, DIM = 3, 7
WIDTH = HEADS * DIM
X = np.random.default_rng(51).normal(size=(2, 6, WIDTH)).astype("float32")


class Attention(keras.layers.Layer):
    """Self-attention; True or 1 in attention_mask (B, L) shows a key."""

    def __init__(self, fault=None, **more):
        super().__init__(**more)
        self.fault = fault
        self.qkv, self.out = keras.layers.Dense(3 * WIDTH), keras.layers.Dense(WIDTH)
        self.dropout = keras.layers.Dropout(0.2, seed=3)
        self.norm = keras.layers.BatchNormalization()
        self.kept = {}

    def build(self, shape):
        """Make the weights."""
        self.qkv.build(shape)
        self.out.build(shape)
        self.norm.build(shape)
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x, attention_mask=None, use_causal_mask=False, return_attention_scores=False, training=False):
        """Return the output, or (output, weights)."""
        length = x.shape[1]
        if self.fault == "statistics of the batch":
            x = self.norm(x, training=True)
        parts = ops.split(self.qkv(x), 3, -1)
        q, k, v = (ops.transpose(ops.reshape(one, (-1, length, HEADS, DIM)), (0, 2, 1, 3)) for one in parts)
        scale = DIM**-0.5
        if self.fault == "scores with another scale" and return_attention_scores:
            scale = WIDTH**-0.5
        if self.fault == "counts calls":
            self.calls.assign_add(1.0)
            scale = scale / (1.0 + 0.1 * self.calls)
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * scale
        low = -3.0 if self.fault == "hides with -3" else -1e9
        if attention_mask is None and self.fault == "keeps the mask":
            attention_mask = self.kept.get(x.shape)
        if attention_mask is not None:
            self.kept[x.shape] = attention_mask
            keys = ops.cast(attention_mask, x.dtype)
            if self.fault == "first item's mask":
                keys = ops.broadcast_to(keys[:1], keys.shape)
            if self.fault == "a mask adds a bias":
                scores = scores + 0.3 * ops.cast(ops.arange(length), x.dtype)
            scores = scores + (1 - keys)[:, None, None] * low
        if use_causal_mask and not (self.fault == "causal lost with a mask" and attention_mask is not None):
            scores = scores + (1 - ops.tril(ops.ones((length, length), dtype=x.dtype))) * -1e9
        weights = ops.softmax(scores)
        weights = self.dropout(weights, training=True if self.fault == "dropout in inference" else training)
        heads = ops.reshape(ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3)), (-1, length, WIDTH))
        output = self.out(heads)
        return (output, weights) if return_attention_scores else output


class CachedDecoder(keras.layers.Layer):
    """One causal layer over ids; the cache is (B, 2, size, H, d), written at cache_update_index."""

    def __init__(self, fault=None, **more):
        super().__init__(**more)
        self.fault = fault
        self.tokens, self.positions = keras.layers.Embedding(47, WIDTH), keras.layers.Embedding(60, WIDTH)
        self.qkv, self.head = keras.layers.Dense(3 * WIDTH), keras.layers.Dense(47)

    def build(self, shape):
        """Make the weights."""
        self.tokens.build(shape)
        self.positions.build(shape)
        self.qkv.build((*shape, WIDTH))
        self.head.build((*shape, WIDTH))

    def call(self, ids, cache=None, cache_update_index=0):
        """Return logits, or (logits, cache)."""
        length = ids.shape[1]
        start = 0 if self.fault == "positions restart" else cache_update_index
        x = self.tokens(ids) + self.positions(ops.arange(length) + start)
        parts = ops.split(self.qkv(x), 3, -1)
        q, k, v = (ops.reshape(one, (-1, length, HEADS, DIM)) for one in parts)
        if cache is not None:
            at = cache_update_index + (1 if self.fault == "written one late" and cache_update_index > 0 else 0)
            cache = ops.slice_update(cache, (0, 0, at, 0, 0), ops.stack([k, v], 1))
            k, v = cache[:, 0], cache[:, 1]
        seen = ops.arange(k.shape[1])[None] <= ops.arange(length)[:, None] + cache_update_index
        scores = ops.einsum("bqhd,bkhd->bhqk", q, k) * DIM**-0.5
        weights = ops.softmax(ops.where(seen, scores, -1e9))
        heads = ops.reshape(ops.einsum("bhqk,bkhd->bqhd", weights, v), (-1, length, WIDTH))
        logits = self.head(x + heads)
        return logits if cache is None else (logits, cache)


def layer(fault=None):
    """Return the layer, built, and its input."""
    keras.utils.set_random_seed(52)
    made = Attention(fault)
    made(X)
    return made, {"x": X}


def decoder(fault=None):
    """Return the decoder, built."""
    keras.utils.set_random_seed(53)
    made = CachedDecoder(fault)
    made(IDS["ids"])
    return made


IDS = {"ids": np.random.default_rng(54).integers(3, 47, (2, 8))}
MODELS = {fault: decoder(fault) for fault in (None, "positions restart", "written one late")}


def _step(fault, tokens, state):
    """Go on in a cache of 20 tokens."""
    cache, at = (np.zeros((len(tokens), 2, 20, HEADS, DIM), "float32"), 0) if state is None else state
    logits, cache = MODELS[fault](tokens, cache=cache, cache_update_index=at)
    return logits, (cache, at + tokens.shape[1])


def right_step(tokens, state):
    return _step(None, tokens, state)


def step_restart(tokens, state):
    return _step("positions restart", tokens, state)


def step_late(tokens, state):
    return _step("written one late", tokens, state)


def right_layer():
    return layer()


def right_decoder():
    return (MODELS[None], IDS)


def k01():
    return layer("scores with another scale")


def k02():
    return layer("causal lost with a mask")


def k03():
    return layer("a mask adds a bias")


def k04():
    return layer("hides with -3")


def k05():
    return layer("dropout in inference")


def k06():
    return layer("first item's mask")


def k07():
    return layer("keeps the mask")


def k08():
    return (MODELS["written one late"], IDS)


def k09():
    return layer("statistics of the batch")


def k10():
    return layer("counts calls")


def k11():
    return (MODELS["positions restart"], IDS)
