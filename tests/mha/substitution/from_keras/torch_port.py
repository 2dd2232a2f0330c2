"""A port of the encoder in Keras to PyTorch, written anew; and its faults by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from tests.mha.substitution.from_keras import original as sizes
from tests.mha.substitution.from_keras.original import DEPTH, EPSILON, HEADS, INNER, WIDTH, State, original

__all__ = ("ALSO", "FAULTS", "RIGHT", "build", "call", "original")

FAULTS: dict[str, tuple[str, ...]] = {
    "eps 1e-5": ("layers.0.norm1",),  # PyTorch's own
    "eps 1e-3": ("layers.1.norm2",),
    "gelu tanh": ("layers.0.up",),
    "relu": ("layers.1.up",),
    "scale missing": ("layers.1.mix",),
    "scale sqrt(24)": ("layers.0.mix",),
    "mask dropped": ("",),
    "mask inverted": ("",),
    "mask off by one": ("",),
    "mask dropped in a layer": ("layers.1.mix",),
    "residual lost": ("layers.0",),
    "residual after norm": ("layers.1",),
    "positions off by one": ("",),
    "positions not added": ("",),
    "bias lost, out": ("layers.0.mix.out",),
    "bias lost, down": ("layers.1.down",),
    "value transposed": ("layers.1.mix.value",),
    "kernels of heads as columns": ("layers.0.mix.query",),
    "out as columns": ("layers.1.mix.out",),
    "words in another order": ("words",),
    "layers exchanged": tuple(
        f"layers.{i}.{name}"
        for i in range(DEPTH)
        for name in ("mix.query", "mix.key", "mix.value", "mix.out", "norm1", "up", "down", "norm2")
    ),
    "last layer twice": ("",),
}
"""Name -> the modules of the port in which the wrong line or parameter stands."""

ALSO: dict[str, tuple[tuple[str, ...], ...]] = {"layers exchanged": (("",), ("layers.0", "layers.1"))}
RIGHT = ("fused attention", "additive mask", "activation beside")


class Part(nn.Module):
    bad: frozenset[str] = frozenset()
    """The faults that stand in this module's lines."""


class Mix(Part):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (self.query, self.key, self.value))
        scale = 1.0 if "scale missing" in self.bad else (WIDTH if "scale sqrt(24)" in self.bad else q.shape[-1]) ** -0.5
        added = keep if keep.dtype != torch.bool else torch.where(keep, 0.0, -1e9)
        if "mask dropped in a layer" in self.bad:
            added = torch.zeros_like(added)
        if "fused attention" in self.bad:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale)
        else:
            mixed = (q @ k.transpose(-1, -2) * scale + added).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class Up(Part, nn.Linear):
    """With its activation, as the original's."""

    def act(self, x: Tensor) -> Tensor:
        return x.relu() if "relu" in self.bad else F.gelu(x, approximate="tanh" if "gelu tanh" in self.bad else "none")

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x if "activation beside" in self.bad else self.act(x)


class Layer(Part):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.up, self.down = Mix(), Up(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=EPSILON), nn.LayerNorm(WIDTH, eps=EPSILON)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        x = self.norm1(self.mix(x, keep) + (0.0 if "residual lost" in self.bad else x))
        inner = self.up(x)
        inner = self.up.act(inner) if "activation beside" in self.bad else inner
        change = self.down(inner)
        return x + self.norm2(change) if "residual after norm" in self.bad else self.norm2(x + change)


class Encoder(Part):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(sizes.VOCABULARY, WIDTH), nn.Embedding(sizes.PLACES, WIDTH)
        self.layers, self.last = nn.ModuleList(Layer() for _ in range(DEPTH)), nn.Linear(WIDTH, 5)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        places = self.places(torch.arange(ids.shape[1]) + ("positions off by one" in self.bad))
        x = self.words(ids) + (0.0 if "positions not added" in self.bad else places)
        kept = (keep == 0 if "mask inverted" in self.bad else keep == 1)[:, None, None, :]
        if "mask dropped" in self.bad:
            kept = torch.ones_like(kept)
        if "mask off by one" in self.bad:
            kept = torch.cat([kept[..., :1], kept[..., :-1]], dim=-1)
        if "additive mask" in self.bad:
            kept = torch.where(kept, 0.0, -1e9)
        for layer in [*self.layers, *([self.layers[-1]] if "last layer twice" in self.bad else [])]:
            x = layer(x, kept)
        return self.last(x)


def build(state: State, fault: str = "") -> Encoder:
    """The port with the arrays of `state` and the faults of these names, joined by " + "."""
    model = Encoder().eval().requires_grad_(False)
    names = [name for name in fault.split(" + ") if name]
    arrays = arrays_of(state)
    for name in names:
        spoil(arrays, name)
    model.load_state_dict({name: torch.tensor(np.ascontiguousarray(array)) for name, array in arrays.items()})
    everywhere = tuple(path for path, part in model.named_modules() if isinstance(part, Part))
    for name in names:
        for part in map(model.get_submodule, FAULTS.get(name, everywhere)):
            if isinstance(part, Part):
                part.bad = part.bad | {name}
            elif isinstance(part, nn.LayerNorm) and name.startswith("eps"):
                part.eps = float(name.removeprefix("eps "))
    return model


def call(model: Encoder, batch: Mapping[str, NDArray[np.int32]]) -> NDArray[np.float32]:
    return np.asarray(model(torch.tensor(batch["ids"]), torch.tensor(batch["keep"])))


def arrays_of(state: State) -> State:
    arrays = {f"{name}.weight": state[f"encoder/{name}/embeddings"] for name in ("words", "places")}
    denses = {"last": "encoder/last"}
    for number in range(DEPTH):
        old, new = f"encoder/block_{number}", f"layers.{number}"
        for name in ("query", "key", "value"):  # (24, 3, 8)
            arrays[f"{new}.mix.{name}.weight"] = state[f"{old}/attention/{name}/kernel"].reshape(WIDTH, WIDTH).T
            arrays[f"{new}.mix.{name}.bias"] = state[f"{old}/attention/{name}/bias"].reshape(WIDTH)
        arrays[f"{new}.mix.out.weight"] = state[f"{old}/attention/attention_output/kernel"].reshape(WIDTH, WIDTH).T
        arrays[f"{new}.mix.out.bias"] = state[f"{old}/attention/attention_output/bias"]
        for own, name in (("norm1", "after_attention"), ("norm2", "after_feed")):
            arrays[f"{new}.{own}.weight"] = state[f"{old}/{name}/gamma"]
            arrays[f"{new}.{own}.bias"] = state[f"{old}/{name}/beta"]
        denses |= {f"{new}.{name}": f"{old}/{name}" for name in ("up", "down")}
    for own, name in denses.items():
        arrays[f"{own}.weight"], arrays[f"{own}.bias"] = state[f"{name}/kernel"].T, state[f"{name}/bias"]
    return arrays


def spoil(arrays: State, fault: str) -> None:
    """The faults that stand in the parameters; those that stand in the code do nothing here."""
    place = FAULTS.get(fault, ("",))[0]
    weight = f"{place}.weight"
    if fault.startswith("bias lost"):
        arrays[f"{place}.bias"] = np.zeros_like(arrays[f"{place}.bias"])
    elif fault == "value transposed":
        arrays[weight] = arrays[weight].T
    elif fault in ("kernels of heads as columns", "out as columns"):  # heads and sizes change places
        rows = arrays[weight] if fault == "kernels of heads as columns" else arrays[weight].T
        rows = rows.reshape(HEADS, -1, WIDTH).swapaxes(0, 1).reshape(WIDTH, WIDTH)
        arrays[weight] = rows if fault == "kernels of heads as columns" else rows.T
    elif fault == "words in another order":
        arrays[weight] = np.roll(arrays[weight], 1, axis=0)
    elif fault == "layers exchanged":
        for one in [name for name in arrays if name.startswith("layers.0")]:
            two = one.replace("layers.0", "layers.1")
            arrays[one], arrays[two] = arrays[two], arrays[one]
