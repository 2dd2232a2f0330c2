"""A BERT-like encoder: PyTorch to Keras. Post-norm, three embeddings, a pooler."""

from functools import lru_cache

import keras
import numpy as np
import torch
from keras import ops
from torch import nn

from tests.mha.substitution.heldout.common import Row, Way, arrays, lengths, permuted_heads, randomize

LAYERS, WIDTH, HEADS, SIZE, INNER, EPS = 2, 20, 4, 5, 33, 1e-5


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, keep):
        q, k, v = (f(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = (q @ k.transpose(2, 3) * SIZE**-0.5).masked_fill(~keep[:, None, None], -1e9)
        return self.output((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(), nn.LayerNorm(WIDTH, EPS), nn.LayerNorm(WIDTH, EPS)
        self.inner, self.act, self.outer = nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH)

    def forward(self, x, keep):
        x = self.norm1(x + self.attention(x, keep))
        return self.norm2(x + self.outer(self.act(self.inner(x))))


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions, self.segments = (
            nn.Embedding(41, WIDTH),
            nn.Embedding(17, WIDTH),
            nn.Embedding(3, WIDTH),
        )
        self.norm0, self.blocks = nn.LayerNorm(WIDTH, EPS), nn.ModuleList(Block() for _ in range(LAYERS))
        self.pooler = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids, kinds, keep):
        x = self.norm0(self.tokens(ids) + self.positions(torch.arange(ids.shape[1])) + self.segments(kinds))
        for block in self.blocks:
            x = block(x, keep)
        return x, torch.tanh(self.pooler(x[:, 0]))


@lru_cache
def original():
    return randomize(Bert(), 1)


class RMSNorm(keras.layers.Layer):
    """In place of a LayerNorm: no mean, the same gamma and beta."""

    def build(self, shape):
        self.gamma = self.add_weight(shape=shape[-1:], name="gamma")
        self.beta = self.add_weight(shape=shape[-1:], name="beta")

    def call(self, x):
        return x * ops.rsqrt(ops.mean(x * x, axis=-1, keepdims=True) + EPS) * self.gamma + self.beta


class PortAttention(keras.layers.Layer):
    def __init__(self, fault, name):
        super().__init__(name=name)
        self.fault = fault
        self.q, self.k, self.v, self.o = (keras.layers.Dense(WIDTH, name=n) for n in "qkvo")

    def call(self, x, keep):
        size = (-1, x.shape[1], HEADS, SIZE)

        def heads(y):
            if self.fault == "split":
                return ops.transpose(ops.reshape(y, (-1, x.shape[1], SIZE, HEADS)), (0, 3, 1, 2))
            return ops.transpose(ops.reshape(y, size), (0, 2, 1, 3))

        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / (WIDTH if self.fault == "scale" else SIZE) ** 0.5
        mask = ops.cast(keep, "bool")[:, None, None]
        mask = ~mask if self.fault == "mask inverted" else mask
        if self.fault == "mask after":
            weights = ops.softmax(scores, axis=-1) * ops.cast(mask, "float32")
        else:
            scores = scores if self.fault == "mask ignored" else ops.where(mask, scores, -1e9)
            weights = ops.softmax(scores, axis=2 if self.fault == "softmax axis" else -1)
        y = ops.matmul(weights, v)
        y = y if self.fault == "merge" else ops.transpose(y, (0, 2, 1, 3))
        return self.o(ops.reshape(y, (-1, x.shape[1], WIDTH)))


class PortMLP(keras.layers.Layer):
    def __init__(self, fault, name, inside=False):
        super().__init__(name=name)
        self.act = {"tanh": lambda x: ops.gelu(x, approximate=True), "relu": ops.relu}.get(
            fault, lambda x: ops.gelu(x, approximate=False)
        )
        self.inside = inside
        self.up = keras.layers.Dense(INNER, activation=self.act if inside else None, name="up")
        self.down = keras.layers.Dense(WIDTH, name="down")

    def call(self, x):
        x = self.up(x)
        return self.down(x if self.inside else self.act(x))


class PortBlock(keras.layers.Layer):
    def __init__(self, fault, way, name):
        super().__init__(name=name)
        self.fault = fault
        self.attend, self.mlp = PortAttention(fault, "attend"), PortMLP(fault, "mlp", way == "activation inside")
        self.ln1 = keras.layers.LayerNormalization(epsilon=1e-3 if fault == "eps" else EPS, name="ln1")
        self.ln2 = RMSNorm(name="ln2") if fault == "rms" else keras.layers.LayerNormalization(epsilon=EPS, name="ln2")
        self.drop = (
            keras.layers.Dropout(0.2, seed=3, name="drop") if way == "idle dropout" or fault == "dropout" else None
        )

    def call(self, x, keep):
        first, y = x, self.attend(x, keep)
        if self.drop is not None:
            y = self.drop(y, training=self.fault == "dropout")
        if self.fault == "norm before sum":
            return self.ln2((z := x + self.ln1(y)) + self.mlp(z))
        x = self.ln1(x + y)
        return self.ln2((first if self.fault == "residual" else x) + self.mlp(x))


class PortEmbed(keras.layers.Layer):
    def __init__(self, fault, name):
        super().__init__(name=name)
        self.fault = fault
        self.word, self.place, self.kind = (
            keras.layers.Embedding(n, WIDTH, name=m) for n, m in ((41, "word"), (17, "place"), (3, "kind"))
        )
        self.ln = keras.layers.LayerNormalization(epsilon=EPS, name="ln")

    def call(self, ids, kinds):
        word = self.word(ids) * (WIDTH**0.5 if self.fault == "embedding scaled" else 1)
        x = word + self.place(ops.arange(ids.shape[1]) + (1 if self.fault == "position offset" else 0))
        kind = self.kind(kinds)
        return self.ln(x if self.fault == "no segments" else x + kind)


class Port(keras.Model):
    def __init__(self, fault=None, layer=0, way=None):
        super().__init__(name="port")
        self.fault = fault
        self.embed = PortEmbed(fault, "embed")
        self.each = [PortBlock(fault if i == layer else None, way, f"layer_{i}") for i in range(LAYERS)]
        self.pool = keras.layers.Dense(WIDTH, activation="tanh", name="pool")

    def call(self, ids, kinds, keep):
        x = self.embed(ids, kinds)
        for i, block in enumerate(reversed(self.each) if self.fault == "order" else self.each):
            x = block(x, ops.ones_like(keep) if self.fault == "mask not passed" and i == 1 else keep)
        return x, self.pool(x[:, -1] if self.fault == "pools last" else x[:, 0])


def inputs():
    rng = np.random.default_rng(1)
    return rng.integers(0, 41, (2, 7)), rng.integers(0, 3, (2, 7)), lengths(5, 7, size=7)


def numbers(fault, layer, way):
    """The original's parameters under the port's paths, with a fault in them, or written otherwise."""
    own, there = arrays(original()), {}
    names = {
        "tokens": "embed/word",
        "positions": "embed/place",
        "segments": "embed/kind",
        "norm0": "embed/ln",
        "pooler": "pool",
    }
    for i in range(LAYERS):
        parts = {
            "attention.query": "attend/q",
            "attention.key": "attend/k",
            "attention.value": "attend/v",
            "attention.output": "attend/o",
        }
        parts |= {"norm1": "ln1", "norm2": "ln2", "inner": "mlp/up", "outer": "mlp/down"}
        names |= {f"blocks.{i}.{a}": f"layer_{i}/{b}" for a, b in parts.items()}
    for a, b in names.items():
        w = own[f"{a}.weight"]
        if "norm" in a:
            there |= {f"{b}/gamma": w}
        else:
            there |= {f"{b}/embeddings": w} if b.startswith("embed") else {f"{b}/kernel": w.T.copy()}
        if f"{a}.bias" in own:
            there[f"{b}/{'beta' if 'norm' in a else 'bias'}"] = own[f"{a}.bias"]
    at, before = f"layer_{layer}", f"layer_{layer - 1}"

    def swap(a, b):
        there[a], there[b] = there[b], there[a]

    if fault == "q transposed":
        there[f"{at}/attend/q/kernel"] = there[f"{at}/attend/q/kernel"].T.copy()
    elif fault == "q for k":
        swap(f"{at}/attend/q/kernel", f"{at}/attend/k/kernel"), swap(f"{at}/attend/q/bias", f"{at}/attend/k/bias")
    elif fault == "v bias lost":
        there[f"{at}/attend/v/bias"] *= 0
    elif fault == "o rolled":
        there[f"{at}/attend/o/kernel"] = np.roll(there[f"{at}/attend/o/kernel"], 1, axis=0)
    elif fault == "up of another layer":
        there[f"{at}/mlp/up/kernel"] = there[f"{before}/mlp/up/kernel"].copy()
    elif fault == "norm reversed":
        there[f"{at}/ln2/gamma"] = there[f"{at}/ln2/gamma"][::-1].copy()
    elif fault == "tokens exchanged":
        a, b = inputs()[0][0, :2]
        there["embed/word/embeddings"][[a, b]] = there["embed/word/embeddings"][[b, a]]
    for i in range(LAYERS):
        q, k, v, o = (f"layer_{i}/attend/{n}" for n in "qkvo")
        if way == "v bias in o":
            there[f"{o}/bias"] += there[f"{v}/bias"] @ there[f"{o}/kernel"]
            there[f"{v}/bias"] *= 0
        elif way == "heads permuted":
            order = permuted_heads(HEADS, SIZE)
            for n in (q, k, v):
                there[f"{n}/kernel"], there[f"{n}/bias"] = there[f"{n}/kernel"][:, order], there[f"{n}/bias"][order]
            there[f"{o}/kernel"] = there[f"{o}/kernel"][order]
        elif way == "q twice, k half":
            for n, by in ((q, 2.0), (k, 0.5)):
                there[f"{n}/kernel"], there[f"{n}/bias"] = there[f"{n}/kernel"] * by, there[f"{n}/bias"] * by
    return there


def port(fault=None, layer=0, way=None):
    keras.utils.set_random_seed(0)
    model = Port(fault, layer, way)
    call(model)
    there = numbers(fault, layer, way)
    for variable in model.variables:
        if "seed" not in variable.path:
            variable.assign(there[variable.path.removeprefix("port/")])
    return model


def call(model):
    return model(*map(ops.convert_to_tensor, inputs()))


def _rows():
    for layer, fault, done in (
        (0, "scale", "scores divided by the root of the width"),
        (1, "mask ignored", "attention does not use its mask"),
        (1, "merge", "heads merged without transposing back"),
        (0, "softmax axis", "softmax over the queries"),
        (1, "mask inverted", "keeps what it should exclude"),
        (0, "mask after", "weights of excluded keys are zeroed after the softmax"),
        (0, "split", "heads split as (size, heads)"),
    ):
        yield Row(fault, layer, (f"layer_{layer}/attend",), f"layer_{layer}", "code", done)
    yield Row("eps", 0, ("layer_0/ln1",), "layer_0", "code", "epsilon 1e-3")
    yield Row("rms", 1, ("layer_1/ln2",), "layer_1", "code", "RMSNorm in place of LayerNorm")
    yield Row("norm before sum", 0, ("layer_0",), "", "glue", "x + norm(attention) in place of norm(x + attention)")
    yield Row("tanh", 0, ("layer_0/mlp",), "layer_0", "code", "GELU with tanh")
    yield Row("relu", 1, ("layer_1/mlp",), "layer_1", "code", "ReLU in place of GELU")
    yield Row("position offset", 0, ("embed",), "", "code", "positions from 1")
    yield Row("no segments", 0, ("embed",), "", "code", "segments looked up and not added")
    yield Row("embedding scaled", 0, ("embed",), "", "code", "tokens times the root of the width")
    yield Row("q transposed", 0, ("layer_0/attend/q",), "layer_0/attend", "parameters", "kernel transposed")
    yield Row(
        "q for k", 1, ("layer_1/attend/q", "layer_1/attend/k"), "layer_1/attend", "parameters", "q and k exchanged"
    )
    yield Row("v bias lost", 0, ("layer_0/attend/v",), "layer_0/attend", "parameters", "bias is zero")
    yield Row("o rolled", 1, ("layer_1/attend/o",), "layer_1/attend", "parameters", "kernel's input rows rolled by one")
    yield Row(
        "up of another layer", 1, ("layer_1/mlp/up",), "layer_1/mlp", "parameters", "kernel is layer 0's, bias its own"
    )
    yield Row("norm reversed", 1, ("layer_1/ln2",), "layer_1", "parameters", "gamma reversed")
    yield Row("tokens exchanged", 0, ("embed/word",), "embed", "parameters", "two rows of the table exchanged")
    yield Row("residual", 0, ("layer_0",), "", "glue", "second residual from the block's input")
    yield Row("mask not passed", 1, ("",), "", "glue", "layer 1 gets a mask of ones", ("layer_1", "layer_1/attend"))
    yield Row("dropout", 0, ("layer_0",), "", "glue", "dropout active after attention", ("layer_0/drop",))
    yield Row("order", 0, ("",), "", "glue", "layers called in reversed order")
    yield Row("pools last", 0, ("",), "", "glue", "pooler is given the last position")


FAULTS = tuple(_rows())
WAYS = (
    Way("plain", "as it is"),
    Way("v bias in o", "bias of v folded into that of o"),
    Way("heads permuted", "heads in another order in all four projections"),
    Way("q twice, k half", "q times 2, k times 1/2"),
    Way("activation inside", "GELU as the activation of the Dense"),
    Way("idle dropout", "a Dropout more, not active"),
)
