"""A ViT-like model: PyTorch in the structure of timm to PyTorch in that of transformers.

That of timm has qkv in one and a flat list, that of transformers three projections, nested.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import nn

from tests.mha.substitution.heldout.common import Row, Way, arrays, permuted_heads, randomize

LAYERS, WIDTH, HEADS, SIZE, INNER, CLASSES, PATCH, EPS = 3, 30, 5, 6, 44, 11, 4, 1e-6


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, SIZE)).permute(2, 0, 3, 1, 4)
        return self.proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.attn = nn.LayerNorm(WIDTH, EPS), nn.LayerNorm(WIDTH, EPS), Attention()
        self.fc1, self.act, self.fc2 = nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls_token, self.pos_embed = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Parameter(torch.zeros(1, 13, WIDTH))
        self.patch_embed, self.blocks = nn.Conv2d(3, WIDTH, PATCH, PATCH), nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH, EPS), nn.Linear(WIDTH, CLASSES)

    def forward(self, image):
        x = self.patch_embed(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


@lru_cache
def original():
    return randomize(ViT(), 3)


class SelfAttention(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault, self.num_attention_heads = fault, HEADS
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        q, k, v = (f(x).view(*x.shape[:2], HEADS, SIZE).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.mT / {"width scale": WIDTH**0.5, "scale twice": SIZE}.get(self.fault, SIZE**0.5)
        if self.fault == "summary masked":
            scores[..., 0] = -torch.inf
        y = (scores.softmax(dim=1 if self.fault == "softmax over heads" else -1) @ v).transpose(1, 2)
        return (y.transpose(2, 3) if self.fault == "merged as (size, heads)" else y).flatten(2)


class Mixed(nn.Module):
    """Attention and its output projection, as transformers has it."""

    def __init__(self, fault):
        super().__init__()
        self.attention, self.output = SelfAttention(fault), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.output(self.attention(x))


class Intermediate(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault, self.dense = fault, nn.Linear(WIDTH, INNER)

    def forward(self, x):
        y = self.dense(x)
        return y * torch.sigmoid(1.702 * y) if self.fault == "quick gelu" else nn.functional.gelu(y)


class Layer(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault
        self.layernorm_before = nn.LayerNorm(WIDTH, 1e-3 if fault == "eps" else EPS)
        self.layernorm_after = nn.LayerNorm(WIDTH, EPS)
        self.attention, self.intermediate, self.output = Mixed(fault), Intermediate(fault), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        if self.fault == "norms called exchanged":
            x = x + self.attention(self.layernorm_after(x))
            return x + self.output(self.intermediate(self.layernorm_before(x)))
        y = x + self.attention(self.layernorm_before(x)) * (0.5 if self.fault == "half a residual" else 1)
        return (x if self.fault == "residual of the input" else y) + self.output(
            self.intermediate(self.layernorm_after(y))
        )


class Embeddings(nn.Module):
    def __init__(self, fault, way):
        super().__init__()
        self.fault, self.way = fault, way
        self.cls, self.position = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Parameter(torch.zeros(1, 13, WIDTH))
        self.projection = nn.Linear(3 * PATCH**2, WIDTH)

    def forward(self, image):
        b, c, h, w = image.shape
        x = image.view(b, c, h // PATCH, PATCH, w // PATCH, PATCH)
        x = x.permute(0, 4, 2, 1, 3, 5) if self.fault == "patches by column" else x.permute(0, 2, 4, 1, 3, 5)
        x = self.projection(x.flatten(3).flatten(1, 2))
        if self.fault == "summary without position":
            return torch.cat([self.cls.expand(b, -1, -1), x + self.position[:, 1:]], dim=1)
        if self.fault == "summary last":
            return torch.cat([x, self.cls.expand(b, -1, -1)], dim=1) + self.position
        return torch.cat([self.cls.expand(b, -1, -1), x], dim=1) + self.position


class Trunk(nn.Module):
    def __init__(self, fault, layer):
        super().__init__()
        self.fault, self.layer = fault, nn.ModuleList(Layer(fault if i == layer else None) for i in range(LAYERS))

    def forward(self, x):
        for i, each in enumerate(self.layer):
            if self.fault == "last layer skipped" and i == LAYERS - 1:
                break
            x = each(x)
        return x


class Port(nn.Module):
    def __init__(self, fault=None, layer=0, way=None):
        super().__init__()
        self.fault = fault
        self.embeddings, self.encoder = Embeddings(fault, way), Trunk(fault, layer)
        self.layernorm, self.classifier = nn.LayerNorm(WIDTH, EPS), nn.Linear(WIDTH, CLASSES)

    def forward(self, image):
        if self.fault == "channels reversed":
            image = image.flip(1)
        x = self.encoder(self.embeddings(image))
        if self.fault == "mean pooled":
            return self.classifier(self.layernorm(x).mean(1))
        return self.classifier(self.layernorm(x)[:, 0])


class Flat(nn.Module):
    """The port without modules for attention, MLP or layer: linears and norms in one list."""

    def __init__(self, port):
        super().__init__()
        self.embeddings, self.layernorm, self.classifier = port.embeddings, port.layernorm, port.classifier
        self.steps = nn.ModuleList()
        for each in port.encoder.layer:
            a = each.attention
            self.steps.extend([each.layernorm_before, a.attention.query, a.attention.key, a.attention.value, a.output])
            self.steps.extend([each.layernorm_after, each.intermediate.dense, each.output])

    def forward(self, image):
        x = self.embeddings(image)
        for i in range(0, len(self.steps), 8):
            before, query, key, value, output, after, inner, outer = self.steps[i : i + 8]
            y = before(x)
            q, k, v = (f(y).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for f in (query, key, value))
            x = x + output(((q @ k.mT * SIZE**-0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))
            x = x + outer(nn.functional.gelu(inner(after(x))))
        return self.classifier(self.layernorm(x[:, 0]))


def inputs():
    return (np.random.default_rng(6).normal(size=(2, 3, 12, 16)).astype(np.float32),)


def numbers(fault, layer, way):
    """The original's parameters by the port's names, with a fault in them, or written otherwise."""
    own, there = arrays(original()), {}
    there |= {"embeddings.cls": own["cls_token"], "embeddings.position": own["pos_embed"]}
    there |= {
        "embeddings.projection.weight": own["patch_embed.weight"].reshape(WIDTH, -1),
        "embeddings.projection.bias": own["patch_embed.bias"],
    }
    names = {"norm": "layernorm", "head": "classifier"}
    for i in range(LAYERS):
        b = f"encoder.layer.{i}"
        parts = {
            "norm1": "layernorm_before",
            "norm2": "layernorm_after",
            "attn.proj": "attention.output",
            "fc1": "intermediate.dense",
            "fc2": "output",
        }
        names |= {f"blocks.{i}.{n}": f"{b}.{m}" for n, m in parts.items()}
        for p in ("weight", "bias"):
            for n, part in zip(("query", "key", "value"), np.split(own[f"blocks.{i}.attn.qkv.{p}"], 3), strict=True):
                there[f"{b}.attention.attention.{n}.{p}"] = part.copy()
    there |= {f"{b}.{p}": own[f"{a}.{p}"] for a, b in names.items() for p in ("weight", "bias")}
    at, before = f"encoder.layer.{layer}", f"encoder.layer.{layer - 1}"
    if fault == "patch kernel as (h, w, c)":
        w = there["embeddings.projection.weight"].reshape(WIDTH, 3, PATCH, PATCH)
        there["embeddings.projection.weight"] = w.transpose(0, 2, 3, 1).reshape(WIDTH, -1)
    elif fault == "key of another layer":
        there |= {
            f"{at}.attention.attention.key.{p}": there[f"{before}.attention.attention.key.{p}"]
            for p in ("weight", "bias")
        }
    elif fault == "query read interleaved":
        n = f"{at}.attention.attention.query"
        for p in ("weight", "bias"):
            there[f"{n}.{p}"] = own[f"blocks.{layer}.attn.qkv.{p}"][0::3].copy()
    elif fault == "all biases lost":
        for n in ("query", "key", "value"):
            there[f"{at}.attention.attention.{n}.bias"] *= 0
    elif fault == "value negated":
        there[f"{at}.attention.attention.value.weight"] = -there[f"{at}.attention.attention.value.weight"]
    elif fault == "norm's weight less 1":
        there[f"{at}.layernorm_after.weight"] = there[f"{at}.layernorm_after.weight"] - 1
    elif fault == "output rolled":
        there[f"{at}.output.weight"] = np.roll(there[f"{at}.output.weight"], 2, axis=0)
    elif fault == "classifier rolled":
        there |= {f"classifier.{p}": np.roll(there[f"classifier.{p}"], 1, axis=0) for p in ("weight", "bias")}
    for i in range(LAYERS):
        a = f"encoder.layer.{i}.attention"
        o, (q, k, v) = f"{a}.output", (f"{a}.attention.{n}" for n in ("query", "key", "value"))
        if way == "v bias in o":
            there[f"{o}.bias"] = there[f"{o}.bias"] + there[f"{o}.weight"] @ there[f"{v}.bias"]
            there[f"{v}.bias"] *= 0
        elif way == "heads permuted":
            order = permuted_heads(HEADS, SIZE)
            for n in (q, k, v):
                there |= {f"{n}.{p}": there[f"{n}.{p}"][order] for p in ("weight", "bias")}
            there[f"{o}.weight"] = there[f"{o}.weight"][:, order]
        elif way == "norm before folded":
            n = f"encoder.layer.{i}.layernorm_before"
            for m in (q, k, v):
                there[f"{m}.bias"] = there[f"{m}.bias"] + there[f"{m}.weight"] @ there[f"{n}.bias"]
                there[f"{m}.weight"] = there[f"{m}.weight"] * there[f"{n}.weight"]
            there |= {f"{n}.weight": np.ones(WIDTH), f"{n}.bias": np.zeros(WIDTH)}
    if way == "last norm folded":
        there["classifier.bias"] = there["classifier.bias"] + there["classifier.weight"] @ there["layernorm.bias"]
        there["classifier.weight"] = there["classifier.weight"] * there["layernorm.weight"]
        there |= {"layernorm.weight": np.ones(WIDTH), "layernorm.bias": np.zeros(WIDTH)}
    elif way == "patch bias in the positions":
        there["embeddings.position"] = there["embeddings.position"].copy()
        there["embeddings.position"][:, 1:] += there["embeddings.projection.bias"]
        there["embeddings.projection.bias"] = np.zeros(WIDTH)
    elif way == "summary holds its position":
        there["embeddings.cls"] = there["embeddings.cls"] + there["embeddings.position"][:, :1]
        there["embeddings.position"] = there["embeddings.position"].copy()
        there["embeddings.position"][:, 0] = 0
    return there


def port(fault=None, layer=0, way=None):
    model = Port(fault, layer, way)
    model.load_state_dict({n: torch.tensor(np.asarray(v, np.float32)) for n, v in numbers(fault, layer, way).items()})
    model.eval().requires_grad_(False)
    return Flat(model).eval() if way == "flat" else model


def call(model):
    return model(*map(torch.from_numpy, inputs()))


def _rows():
    for layer, fault, done in (
        (0, "width scale", "scores divided by the root of the width"),
        (2, "scale twice", "scores divided by the size of a head"),
        (1, "summary masked", "nobody sees the summary token"),
        (1, "softmax over heads", "softmax over the heads"),
        (2, "merged as (size, heads)", "channels merged as (size, heads)"),
    ):
        b = f"encoder.layer.{layer}.attention"
        yield Row(fault, layer, (f"{b}.attention",), b, "code", done)
    yield Row("eps", 1, ("encoder.layer.1.layernorm_before",), "encoder.layer.1", "code", "epsilon 1e-3")
    yield Row("quick gelu", 2, ("encoder.layer.2.intermediate",), "encoder.layer.2", "code", "GELU with a sigmoid")
    yield Row("patches by column", 0, ("embeddings",), "", "code", "patches of a column after another")
    yield Row("summary without position", 0, ("embeddings",), "", "code", "the summary token gets no position")
    yield Row("summary last", 0, ("embeddings",), "", "code", "the summary token stands last in the sequence")
    yield Row("half a residual", 0, ("encoder.layer.0",), "encoder", "glue", "half of what attention gives is added")
    yield Row(
        "residual of the input", 2, ("encoder.layer.2",), "encoder", "glue", "the MLP is added to the layer's input"
    )
    yield Row(
        "norms called exchanged", 1, ("encoder.layer.1",), "encoder", "glue", "each norm called at the other's place"
    )
    yield Row("last layer skipped", 0, ("encoder",), "", "glue", "the last layer is never called", ("",))
    yield Row("channels reversed", 0, ("",), "", "glue", "the image's colours reversed")
    yield Row("mean pooled", 0, ("",), "", "glue", "mean of all positions in place of the summary token")
    yield Row(
        "patch kernel as (h, w, c)",
        0,
        ("embeddings.projection",),
        "embeddings",
        "parameters",
        "kernel flattened as (h, w, c)",
    )
    a = "attention.attention"
    yield Row(
        "key of another layer",
        1,
        (f"encoder.layer.1.{a}.key",),
        f"encoder.layer.1.{a}",
        "parameters",
        "key is layer 0's",
    )
    yield Row(
        "query read interleaved",
        2,
        (f"encoder.layer.2.{a}.query",),
        f"encoder.layer.2.{a}",
        "parameters",
        "query is every third row of qkv",
    )
    places = tuple(f"encoder.layer.0.{a}.{n}" for n in ("query", "value"))
    yield Row(
        "all biases lost",
        0,
        places,
        f"encoder.layer.0.{a}",
        "parameters",
        "biases of q, k and v are zero",
        (f"encoder.layer.0.{a}.key",),
    )
    yield Row(
        "value negated", 1, (f"encoder.layer.1.{a}.value",), f"encoder.layer.1.{a}", "parameters", "weight times -1"
    )
    yield Row(
        "norm's weight less 1",
        0,
        ("encoder.layer.0.layernorm_after",),
        "encoder.layer.0",
        "parameters",
        "weight - 1, as for a norm that adds 1",
    )
    yield Row(
        "output rolled",
        2,
        ("encoder.layer.2.output",),
        "encoder.layer.2",
        "parameters",
        "output channels rolled by two, bias not",
    )
    yield Row("classifier rolled", 0, ("classifier",), "", "parameters", "classes rolled by one")


FAULTS = tuple(_rows())
WAYS = (
    Way("plain", "other names, three projections, a Linear for the Conv2d"),
    Way("v bias in o", "bias of v folded into that of o"),
    Way("heads permuted", "heads in another order in all four projections"),
    Way("norm before folded", "the first norm folded into q, k and v"),
    Way("last norm folded", "the last norm folded into the classifier"),
    Way("patch bias in the positions", "the Conv2d's bias added to the positions of patches"),
    Way("summary holds its position", "position 0 added to the summary token"),
    Way("flat", "no modules for layers, attention and MLP: linears and norms in one list"),
)
