"""all-MiniLM-L6-v2 in PyTorch, written anew; and its faults by name.

Positions come first, (L, B, 384), and padding is marked, (B, L). The norms are a class of their own, query stands
alone, keys and values in one Linear; the feed-forward is two Linear in the cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, INNER, HEADS, DEPTH = 384, 1536, 12, 6

Arrays = Mapping[str, NDArray[np.float32]]

NORMS = ("lookup.norm", *(f"cells.{i}.{name}" for i in range(DEPTH) for name in ("ln_mix", "ln_feed")))
CELL = ("mix.query", "mix.both", "mix.out", "ln_mix", "grow", "shrink", "ln_feed")

FAULTS: dict[str, tuple[str, ...]] = {
    "eps 1e-5": ("cells.2.ln_mix",),
    "eps 1e-6": ("cells.5.ln_feed",),
    "eps 1e-6 everywhere": NORMS,
    "eps 1e-5 outside the root": ("cells.4.ln_feed",),
    "mean of one feature too few": ("cells.1.ln_mix",),
    "variance of n - 1": ("cells.0.ln_feed",),
    "variance of n - 1 everywhere": NORMS,
    "norm in float16": ("cells.3.ln_mix",),
    "gelu tanh": ("cells.1",),
    "gelu tanh everywhere": tuple(f"cells.{i}" for i in range(DEPTH)),
    "gelu by sigmoid": ("cells.5",),
    "relu": ("cells.3",),
    "activation twice": ("cells.0",),
    "bias lost, grow": ("cells.2.grow",),
    "bias lost, out": ("cells.1.mix.out",),
    "bias lost, value": ("cells.3.mix.both",),
    "bias lost, query": ("cells.0.mix.query",),
    "residual lost, mix": ("cells.2",),
    "residual lost, feed": ("cells.4",),
    "residual of the cell's input, feed": ("cells.1",),
    "residual after norm, mix": ("cells.3",),
    "norm before": ("cells.4",),
    "scale missing": ("cells.1.mix",),
    "scale sqrt(384)": ("cells.4.mix",),
    "scale twice": ("cells.0.mix",),
    "scale sqrt(384) everywhere": tuple(f"cells.{i}.mix" for i in range(DEPTH)),
    "6 heads": ("cells.2.mix",),
    "heads merged in another order": ("cells.5.mix",),
    "mask dropped": ("",),
    "mask dropped in a cell": ("cells.3.mix",),
    "mask of the previous item": ("",),
    "mask off by one": ("",),
    "softmax over queries": ("cells.2.mix",),
    "softmax over heads": ("cells.3.mix",),
    "softmax in bfloat16": ("cells.1.mix",),
    "value in bfloat16": ("cells.4.mix",),
    "positions off by one": ("lookup",),
    "positions of the batch": ("lookup",),
    "types not added": ("lookup",),
    "types all 0": ("lookup",),
    "words scaled": ("lookup",),
    "layers exchanged": tuple(f"cells.{i}.{name}" for i in (1, 2) for name in CELL),
    "layer 3 has the weights of 2": tuple(f"cells.3.{name}" for name in CELL),
    "grow exchanged": ("cells.1.grow", "cells.4.grow"),
    "norms exchanged": ("cells.3.ln_mix", "cells.3.ln_feed"),
    "query and key exchanged": ("cells.4.mix.query", "cells.4.mix.both"),
    "key and value exchanged": ("cells.2.mix.both",),
    "out transposed": ("cells.0.mix.out",),
    "query transposed": ("cells.1.mix.query",),
    "row of shrink": ("cells.3.shrink",),
    "row of words": ("lookup.word",),
    "last cell skipped": ("",),
    "last cell twice": ("",),
    "output in bfloat16": ("",),
}
"""Name -> the modules of the port in which the wrong line or parameter stands."""

ALSO: dict[str, tuple[tuple[str, ...], ...]] = {
    "layers exchanged": (("",), ("cells.1", "cells.2")),
    "layer 3 has the weights of 2": (("",), ("cells.3",)),
    "norms exchanged": (("cells.3",),),
    "query and key exchanged": (("cells.4.mix",),),
    "key and value exchanged": (("cells.2.mix",),),
}
"""Other right answers: modules in each other's place are modules in the wrong order too."""

RIGHT = ("fused attention", "mask to be added", "batch first")
"""Ports that are right too, by name."""


class Part(nn.Module):
    bad: frozenset[str] = frozenset()
    """The faults that stand in this module's lines."""


class Norm(Part):
    def __init__(self) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        epsilon = 1e-12
        if self.bad & {"eps 1e-5", "eps 1e-5 outside the root"}:
            epsilon = 1e-5
        if self.bad & {"eps 1e-6", "eps 1e-6 everywhere"}:
            epsilon = 1e-6
        if "norm in float16" in self.bad:
            x = x.half()
        counted = x[..., :-1] if "mean of one feature too few" in self.bad else x
        x = x - counted.mean(-1, keepdim=True)
        few = bool(self.bad & {"variance of n - 1", "variance of n - 1 everywhere"})
        variance = x.square().sum(-1, keepdim=True) / (WIDTH - few)
        if "eps 1e-5 outside the root" in self.bad:
            return x / (variance.sqrt() + epsilon) * self.gain + self.shift
        return (x * torch.rsqrt(variance + epsilon)).float() * self.gain + self.shift


class Lookup(Part):
    """Ids (B, L) to vectors (L, B, 384)."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place, self.sort = nn.Embedding(30522, WIDTH), nn.Embedding(512, WIDTH), nn.Embedding(2, WIDTH)
        self.norm = Norm()

    def forward(self, ids: Tensor, sorts: Tensor) -> Tensor:
        batch, length = ids.shape
        places = torch.arange(length)[None] + ("positions off by one" in self.bad)
        if "positions of the batch" in self.bad:
            places = torch.arange(batch)[:, None]
        if "batch first" not in self.bad:
            ids, sorts, places = ids.T, sorts.T, places.T
        words = self.word(ids)
        if "words scaled" in self.bad:
            words = words * WIDTH**0.5
        total = words + self.place(places)
        sort = self.sort(torch.zeros_like(sorts) if "types all 0" in self.bad else sorts)
        return self.norm(total if "types not added" in self.bad else total + sort)


class Mix(Part):
    """Self-attention and its output projection."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.both, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        key, value = self.both(x).chunk(2, dim=-1)
        projected = (self.query(x), key, value)
        if "batch first" in self.bad:
            first, second, third = (one.transpose(0, 1) for one in projected)
            return self.out(self.attend(first, second, third, padding).transpose(0, 1))
        return self.out(self.attend(*projected, padding))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor) -> Tensor:
        heads = 6 if "6 heads" in self.bad else HEADS
        length, batch, size = len(query), query.shape[1], WIDTH // heads
        query, key, value = (one.reshape(length, batch * heads, size).transpose(0, 1) for one in (query, key, value))
        scale = size**-0.5
        if "scale missing" in self.bad:
            scale = 1.0
        if "scale twice" in self.bad:
            scale = scale**2
        if self.bad & {"scale sqrt(384)", "scale sqrt(384) everywhere"}:
            scale = WIDTH**-0.5
        if "mask dropped in a cell" in self.bad:
            padding = torch.zeros_like(padding)
        added = torch.where(padding, -torch.inf, 0.0) if padding.dtype == torch.bool else padding
        added = added[:, None, None, :]
        if "fused attention" in self.bad:
            query, key, value = (one.reshape(batch, heads, length, size) for one in (query, key, value))
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=added, scale=scale)
            return mixed.permute(2, 0, 1, 3).flatten(2)
        scores = torch.bmm(query * scale, key.transpose(1, 2)).reshape(batch, heads, length, length) + added
        axis = 2 if "softmax over queries" in self.bad else 1 if "softmax over heads" in self.bad else -1
        if axis != -1:
            scores = scores.clamp(min=-1e4)  # else columns of padding are NaN
        if "softmax in bfloat16" in self.bad:
            scores = scores.bfloat16()
        weights = scores.softmax(axis).float().reshape(batch * heads, length, length)
        if "value in bfloat16" in self.bad:
            value = value.bfloat16().float()
        mixed = torch.bmm(weights, value)
        if "heads merged in another order" in self.bad:
            mixed = mixed.reshape(batch, heads, length, size).permute(2, 0, 3, 1)
            return mixed.reshape(length, batch, WIDTH)
        return mixed.transpose(0, 1).reshape(length, batch, WIDTH)


class Cell(Part):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.ln_mix = Mix(), Norm()
        self.grow, self.shrink, self.ln_feed = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH), Norm()

    def act(self, x: Tensor) -> Tensor:
        if "relu" in self.bad:
            return x.relu()
        if "gelu by sigmoid" in self.bad:
            return x * torch.sigmoid(1.702 * x)
        tanh = bool(self.bad & {"gelu tanh", "gelu tanh everywhere"})
        x = F.gelu(x, approximate="tanh" if tanh else "none")
        return F.gelu(x) if "activation twice" in self.bad else x

    def feed(self, x: Tensor) -> Tensor:
        return self.shrink(self.act(self.grow(x)))

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        if "norm before" in self.bad:
            x = x + self.mix(self.ln_mix(x), padding)
            return x + self.feed(self.ln_feed(x))
        mixed = self.mix(x, padding)
        if "residual after norm, mix" in self.bad:
            y = x + self.ln_mix(mixed)
        else:
            y = self.ln_mix(mixed if "residual lost, mix" in self.bad else x + mixed)
        fed = self.feed(y)
        if "residual of the cell's input, feed" in self.bad:
            y = x
        return self.ln_feed(fed if "residual lost, feed" in self.bad else y + fed)


class Texts(Part):
    """The whole encoder: ids, which of them to keep, and segments, to the last layer's vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.lookup, self.cells = Lookup(), nn.ModuleList(Cell() for _ in range(DEPTH))

    def forward(self, ids: Tensor, keep: Tensor, sorts: Tensor) -> Tensor:
        padding = keep == 0
        if "mask dropped" in self.bad:
            padding = torch.zeros_like(padding)
        if "mask of the previous item" in self.bad:
            padding = padding.roll(1, dims=0)
        if "mask off by one" in self.bad:  # one key of the padding counts
            padding = torch.cat([padding[:, :1], padding[:, :-1]], dim=1)
        if "mask to be added" in self.bad:
            padding = torch.where(padding, torch.finfo(torch.float32).min, 0.0)
        x = self.lookup(ids, sorts)
        cells: list[Any] = list(self.cells)
        if "last cell skipped" in self.bad:
            cells.pop()
        if "last cell twice" in self.bad:
            cells.append(cells[-1])
        for cell in cells:
            x = cell(x, padding)
        if "batch first" not in self.bad:
            x = x.transpose(0, 1)
        return x.bfloat16().float() if "output in bfloat16" in self.bad else x


def build(state: Arrays, fault: str = "") -> Texts:
    """The port with the arrays of `state` and the faults of these names, joined by " + "."""
    model = Texts().eval().requires_grad_(False)
    arrays = arrays_of(state)
    names = [name for name in fault.split(" + ") if name]
    for name in names:
        spoil(arrays, name)
    model.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
    everywhere = tuple(path for path, part in model.named_modules() if isinstance(part, Part))
    for name in names:
        for part in map(model.get_submodule, FAULTS.get(name, everywhere)):
            if isinstance(part, Part):
                part.bad = part.bad | {name}
    return model


def call(model: Texts, batch: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
    """What the port gives for a batch of the tokenizer."""
    return np.asarray(model(*(torch.tensor(batch[name]) for name in ("input_ids", "attention_mask", "token_type_ids"))))


def arrays_of(state: Arrays) -> dict[str, NDArray[np.float32]]:
    arrays = {"lookup.norm.gain": state["embeddings.LayerNorm.weight"]}
    arrays["lookup.norm.shift"] = state["embeddings.LayerNorm.bias"]
    for new, old in (("word", "word"), ("place", "position"), ("sort", "token_type")):
        arrays[f"lookup.{new}.weight"] = state[f"embeddings.{old}_embeddings.weight"]
    for number in range(DEPTH):
        cell, old = f"cells.{number}", f"encoder.layer.{number}"
        for kind in ("weight", "bias"):
            names = (f"{old}.attention.self.{name}.{kind}" for name in ("key", "value"))
            arrays[f"{cell}.mix.query.{kind}"] = state[f"{old}.attention.self.query.{kind}"]
            arrays[f"{cell}.mix.both.{kind}"] = np.concatenate([state[name] for name in names])
            arrays[f"{cell}.mix.out.{kind}"] = state[f"{old}.attention.output.dense.{kind}"]
            arrays[f"{cell}.grow.{kind}"] = state[f"{old}.intermediate.dense.{kind}"]
            arrays[f"{cell}.shrink.{kind}"] = state[f"{old}.output.dense.{kind}"]
        for new, kind in (("gain", "weight"), ("shift", "bias")):
            arrays[f"{cell}.ln_mix.{new}"] = state[f"{old}.attention.output.LayerNorm.{kind}"]
            arrays[f"{cell}.ln_feed.{new}"] = state[f"{old}.output.LayerNorm.{kind}"]
    return arrays


def spoil(arrays: dict[str, NDArray[np.float32]], fault: str) -> None:
    """The faults that stand in the parameters; those that stand in the code do nothing here."""
    places = FAULTS.get(fault, ())
    if fault.startswith("bias lost"):
        bias = arrays[f"{places[0]}.bias"].copy()
        bias[WIDTH if fault == "bias lost, value" else 0 :] = 0
        arrays[f"{places[0]}.bias"] = bias
    elif fault in ("layers exchanged", "layer 3 has the weights of 2"):
        one, two = ("cells.1.", "cells.2.") if fault == "layers exchanged" else ("cells.2.", "cells.3.")
        for name in [name for name in arrays if name.startswith(one)]:
            other = two + name.removeprefix(one)
            first, second = arrays[name], arrays[other]
            arrays[other], arrays[name] = first, second if fault == "layers exchanged" else first
    elif fault in ("grow exchanged", "norms exchanged"):
        for name in [name for name in arrays if name.startswith(f"{places[0]}.")]:
            other = places[1] + name.removeprefix(places[0])
            arrays[name], arrays[other] = arrays[other], arrays[name]
    elif fault in ("query and key exchanged", "key and value exchanged"):
        for kind in ("weight", "bias"):
            query, both = (f"{places[-1].rpartition('.')[0]}.{name}.{kind}" for name in ("query", "both"))
            key, value = arrays[both][:WIDTH], arrays[both][WIDTH:]
            if fault == "key and value exchanged":
                key, value = value, key
            else:
                arrays[query], key = key, arrays[query]
            arrays[both] = np.concatenate([key, value])
    elif fault in ("out transposed", "query transposed"):
        arrays[f"{places[0]}.weight"] = arrays[f"{places[0]}.weight"].T
    elif fault in ("row of shrink", "row of words"):
        row = 100 if fault == "row of shrink" else 102  # [SEP]
        table = arrays[f"{places[0]}.weight"].copy()
        table[row] = table[row - 1]
        arrays[f"{places[0]}.weight"] = table
