"""all-MiniLM-L6-v2 in Gluon, written anew; and its faults by name.

The feed-forward is a Sequential, `ffn`, whose activation is a block; each attention makes its mask of (B, L) itself.
The norms, Gluon's own, stand beside these in `blockN`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.mxnet.ops.framework import mx

gluon: Any = mx.gluon
F: Any = mx.nd

WIDTH, INNER, HEADS, DEPTH = 384, 1536, 12, 6

Arrays = Mapping[str, NDArray[np.float32]]

ATTENTIONS = tuple(f"block{i}.attn" for i in range(DEPTH))
NORMS = ("emb.ln", *(f"block{i}.{name}" for i in range(DEPTH) for name in ("ln1", "ln2")))
BLOCK = (*(f"attn.{name}" for name in ("q", "k", "v", "o")), "ln1", "ffn.0", "ffn.2", "ln2")

FAULTS: dict[str, tuple[str, ...]] = {
    "eps 1e-5": ("block3.ln1",),
    "eps 1e-5 everywhere": NORMS,  # Gluon's own
    "eps 1e-6": ("emb.ln",),
    "eps 1e-3": ("block1.ln2",),
    "gain lost": ("block4.ln2",),
    "shift lost": ("block0.ln1",),
    "gelu tanh": ("block3.ffn.1",),
    "gelu tanh everywhere": tuple(f"block{i}.ffn.1" for i in range(DEPTH)),
    "relu": ("block1.ffn.1",),
    "gelu without the half": ("block5.ffn.1",),
    "activation lost": ("block2.ffn",),
    "activation in float16": ("block0.ffn.1",),
    "bias lost, up": ("block0.ffn.0",),
    "bias lost, down": ("block4.ffn.2",),
    "bias lost, o": ("block5.attn.o",),
    "bias lost, v": ("block2.attn.v",),
    "residual lost, attention": ("block3",),
    "residual lost, ffn": ("block5",),
    "residual after norm, attention": ("block0",),
    "residual after norm, ffn": ("block2",),
    "norm before": ("block1",),
    "scale missing": ("block4.attn",),
    "scale sqrt(384)": ("block0.attn",),
    "scale twice": ("block2.attn",),
    "scale sqrt(384) everywhere": ATTENTIONS,
    "24 heads": ("block1.attn",),
    "heads not merged back": ("block3.attn",),
    "mask dropped": ATTENTIONS,
    "mask dropped in a block": ("block5.attn",),
    "mask of the previous item": ATTENTIONS,
    "mask of another head's item": ATTENTIONS,
    "mask off by one": ("block0.attn",),
    "mask for all": ("",),
    "softmax over queries": ("block4.attn",),
    "softmax in float16": ("block1.attn",),
    "weights not of sum 1": ("block3.attn",),
    "positions off by one": ("emb",),
    "positions all 0": ("emb",),
    "types not added": ("emb",),
    "types swapped": ("emb",),
    "words scaled": ("emb",),
    "layers exchanged": tuple(f"block{i}.{name}" for i in (0, 1) for name in BLOCK),
    "down exchanged": ("block2.ffn.2", "block5.ffn.2"),
    "block 4 has the ffn of 3": ("block4.ffn.0", "block4.ffn.2"),
    "query and value exchanged": ("block3.attn.q", "block3.attn.v"),
    "o transposed": ("block2.attn.o",),
    "key transposed": ("block5.attn.k",),
    "up reshaped": ("block1.ffn.0",),
    "row of up": ("block4.ffn.0",),
    "row of words": ("emb.word",),
    "gain of another norm": ("block2.ln1",),
    "weights in float16": ("block3.attn.v",),
    "first block twice": ("",),
    "last block skipped": ("",),
}
"""Name -> the modules of the port in which the wrong line or parameter stands."""

ALSO: dict[str, tuple[tuple[str, ...], ...]] = {
    "layers exchanged": (("",), ("block0", "block1")),
    "block 4 has the ffn of 3": (("block4.ffn",),),
    "query and value exchanged": (("block3.attn",),),
}
"""Other right answers: modules in each other's place are modules in the wrong order too."""

RIGHT = ("times first", "heads in the batch")
"""Ports that are right too, by name: (L, B, 384) in the blocks; scores are (B * 12, L, L)."""


class Part(gluon.Block):
    def __init__(self, wrong: Mapping[str, frozenset[str]], path: str) -> None:
        super().__init__()
        self.bad = wrong.get(path, frozenset())
        self.every = wrong.get("*", frozenset())

    def has(self, *faults: str) -> bool:
        return not (self.bad | self.every).isdisjoint(faults)


def norm(wrong: Mapping[str, frozenset[str]], path: str) -> Any:
    bad = wrong.get(path, frozenset())
    epsilon = 1e-5 if bad & {"eps 1e-5", "eps 1e-5 everywhere"} else 1e-12
    epsilon = 1e-6 if "eps 1e-6" in bad else 1e-3 if "eps 1e-3" in bad else epsilon
    return gluon.nn.LayerNorm(epsilon=epsilon, in_channels=WIDTH)


def dense(units: int, inputs: int) -> Any:
    return gluon.nn.Dense(units, flatten=False, in_units=inputs)


class Emb(Part):
    def __init__(self, wrong: Mapping[str, frozenset[str]], path: str) -> None:
        super().__init__(wrong, path)
        self.word, self.place, self.sort = (gluon.nn.Embedding(rows, WIDTH) for rows in (30522, 512, 2))
        self.ln = norm(wrong, f"{path}.ln")

    def forward(self, ids: Any, sorts: Any) -> Any:
        places = F.arange(ids.shape[1]) + int(self.has("positions off by one"))
        words = self.word(ids) * (WIDTH**0.5 if self.has("words scaled") else 1.0)
        if self.has("positions all 0"):
            places = places * 0
        total = F.broadcast_add(words, self.place(places).expand_dims(0))
        sort = self.sort(1 - sorts if self.has("types swapped") else sorts)
        return self.ln(total if self.has("types not added") else total + sort)


class Attn(Part):
    def __init__(self, wrong: Mapping[str, frozenset[str]], path: str) -> None:
        super().__init__(wrong, path)
        self.q, self.k, self.v, self.o = (dense(WIDTH, WIDTH) for _ in range(4))

    def mask(self, keep: Any) -> Any:
        if self.has("mask dropped", "mask dropped in a block"):
            return F.zeros_like(keep)
        if self.has("mask of the previous item"):
            keep = F.concat(keep[-1:], keep[:-1], dim=0)
        if self.has("mask off by one"):
            keep = F.concat(keep[:, :1], keep[:, :-1], dim=1)
        return (1 - keep) * -1e9

    def forward(self, x: Any, keep: Any) -> Any:
        heads = 24 if self.has("24 heads") else HEADS
        first = self.has("times first")
        projected = [one(x) for one in (self.q, self.k, self.v)]
        if first:
            projected = [F.swapaxes(one, 0, 1) for one in projected]
        batch, length = projected[0].shape[:2]
        q, k, v = (
            F.transpose(one.reshape((batch, length, heads, -1)), (0, 2, 1, 3)).reshape((batch * heads, length, -1))
            for one in projected
        )
        scale = 1.0 if self.has("scale missing") else (WIDTH // heads) ** -0.5
        scale = WIDTH**-0.5 if self.has("scale sqrt(384)", "scale sqrt(384) everywhere") else scale
        scale = scale**2 if self.has("scale twice") else scale
        scores = F.batch_dot(q * scale, k, transpose_b=True)
        mask = self.mask(keep)
        # Repeated as a whole it is wrong: scores have the heads of each item together.
        other = self.has("mask of another head's item")
        mask = F.tile(mask, (heads, 1)) if other else F.repeat(mask, heads, axis=0)
        scores = F.broadcast_add(scores, mask.expand_dims(1))
        if not self.has("heads in the batch"):
            scores = scores.reshape((batch, heads, length, length))
        if self.has("softmax in float16"):
            scores = scores.clip(-6e4, 6e4).astype("float16")
        weights = F.softmax(scores, axis=-2 if self.has("softmax over queries") else -1).astype("float32")
        if self.has("weights not of sum 1"):
            weights = weights * 0.9
        mixed = F.batch_dot(weights.reshape((batch * heads, length, length)), v).reshape((batch, heads, length, -1))
        if not self.has("heads not merged back"):
            mixed = F.transpose(mixed, (0, 2, 1, 3))
        mixed = mixed.reshape((batch, length, WIDTH))
        return self.o(F.swapaxes(mixed, 0, 1) if first else mixed)


class Gelu(Part):
    def forward(self, x: Any) -> Any:
        if self.has("relu"):
            return F.relu(x)
        if self.has("gelu tanh", "gelu tanh everywhere"):
            return 0.5 * x * (1 + F.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
        if self.has("activation in float16"):
            x = x.astype("float16").astype("float32")
        half = 1.0 if self.has("gelu without the half") else 0.5
        return half * x * (1 + F.erf(x / 2**0.5))


class Ffn(Part):
    """dense, activation, dense: as a Sequential, but for a fault."""

    def __init__(self, wrong: Mapping[str, frozenset[str]], path: str) -> None:
        super().__init__(wrong, path)
        for number, part in enumerate((dense(INNER, WIDTH), Gelu(wrong, f"{path}.1"), dense(WIDTH, INNER))):
            self.register_child(part, str(number))

    def forward(self, x: Any) -> Any:
        up, act, down = self._children.values()
        return down(up(x) if self.has("activation lost") else act(up(x)))


class Layer(Part):
    def __init__(self, wrong: Mapping[str, frozenset[str]], path: str) -> None:
        super().__init__(wrong, path)
        self.attn, self.ln1 = Attn(wrong, f"{path}.attn"), norm(wrong, f"{path}.ln1")
        self.ffn, self.ln2 = Ffn(wrong, f"{path}.ffn"), norm(wrong, f"{path}.ln2")

    def forward(self, x: Any, keep: Any) -> Any:
        if self.has("norm before"):
            x = x + self.attn(self.ln1(x), keep)
            return x + self.ffn(self.ln2(x))
        change = self.attn(x, keep)
        if self.has("residual after norm, attention"):
            x = x + self.ln1(change)
        else:
            x = self.ln1(change if self.has("residual lost, attention") else x + change)
        change = self.ffn(x)
        if self.has("residual after norm, ffn"):
            return x + self.ln2(change)
        return self.ln2(change if self.has("residual lost, ffn") else x + change)


class Texts(Part):
    """The whole encoder: ids, which of them to keep, and segments, to the last layer's vectors."""

    def __init__(self, wrong: Mapping[str, frozenset[str]]) -> None:
        super().__init__(wrong, "")
        self.emb = Emb(wrong, "emb")
        for number in range(DEPTH):
            setattr(self, f"block{number}", Layer(wrong, f"block{number}"))

    def forward(self, ids: Any, keep: Any, sorts: Any) -> Any:
        x = self.emb(ids, sorts)
        if self.has("mask for all"):
            keep = F.broadcast_like(keep.min(axis=0, keepdims=True), keep)
        if self.has("times first"):
            x = F.swapaxes(x, 0, 1)
        blocks = [getattr(self, f"block{number}") for number in range(DEPTH)]
        if self.has("first block twice"):
            blocks.insert(0, blocks[0])
        for block in blocks[:-1] if self.has("last block skipped") else blocks:
            x = block(x, keep)
        return F.swapaxes(x, 0, 1) if self.has("times first") else x


def _legacy(array: NDArray[Any], dtype: str = "float32") -> Any:
    """An mx.nd array; `mx.nd.array` asks scipy for names that are gone."""
    return mx.np.array(array, dtype=dtype).as_nd_ndarray()


def build(state: Arrays, fault: str = "") -> Texts:
    """The port with the arrays of `state` and the faults of these names, joined by " + "."""
    arrays = arrays_of(state)
    wrong: dict[str, frozenset[str]] = {}
    for name in (name for name in fault.split(" + ") if name):
        spoil(arrays, name)
        for place in FAULTS.get(name, ("*",)):
            wrong[place] = wrong.get(place, frozenset()) | {name}
    model = Texts(wrong)
    model.initialize()
    parameters = model._collect_params_with_prefix()
    for path, array in arrays.items():
        parameters[path].set_data(_legacy(array))
    return model


def call(model: Texts, batch: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
    """What the port gives for a batch of the tokenizer."""
    names = {"input_ids": "int32", "attention_mask": "float32", "token_type_ids": "int32"}
    return model(*(_legacy(batch[name], dtype) for name, dtype in names.items())).asnumpy()


def arrays_of(state: Arrays) -> dict[str, NDArray[np.float32]]:
    tables = (("word", "word"), ("place", "position"), ("sort", "token_type"))
    arrays = {f"emb.{new}.weight": state[f"embeddings.{old}_embeddings.weight"] for new, old in tables}
    pairs: dict[str, str] = {}
    norms = {"emb.ln": "embeddings.LayerNorm"}
    for number in range(DEPTH):
        new, old = f"block{number}", f"encoder.layer.{number}"
        norms |= {f"{new}.ln1": f"{old}.attention.output.LayerNorm", f"{new}.ln2": f"{old}.output.LayerNorm"}
        pairs |= {f"{new}.attn.{name[0]}": f"{old}.attention.self.{name}" for name in ("query", "key", "value")}
        pairs |= {f"{new}.attn.o": f"{old}.attention.output.dense", f"{new}.ffn.0": f"{old}.intermediate.dense"}
        pairs |= {f"{new}.ffn.2": f"{old}.output.dense"}
    for (own, part), names in [(one, ("weight", "bias")) for one in pairs.items()] + [
        (one, ("gamma", "beta")) for one in norms.items()
    ]:
        for name, kind in zip(names, ("weight", "bias"), strict=True):
            arrays[f"{own}.{name}"] = state[f"{part}.{kind}"]
    return arrays


def spoil(arrays: dict[str, NDArray[np.float32]], fault: str) -> None:
    """The faults that stand in the parameters; those that stand in the code do nothing here."""
    places = FAULTS.get(fault, ("",))
    weight = f"{places[0]}.weight"
    if fault.startswith("bias lost"):
        arrays[f"{places[0]}.bias"] = np.zeros_like(arrays[f"{places[0]}.bias"])
    elif fault in ("gain lost", "shift lost"):
        name = f"{places[0]}.{'gamma' if fault == 'gain lost' else 'beta'}"
        arrays[name] = np.full_like(arrays[name], fault == "gain lost")
    elif fault in ("layers exchanged", "down exchanged", "query and value exchanged"):
        half = len(places) // 2
        for first, second in zip(places[:half], places[half:], strict=True):
            for one in [name for name in arrays if name.rpartition(".")[0] == first]:
                two = second + one.removeprefix(first)
                arrays[one], arrays[two] = arrays[two], arrays[one]
    elif fault == "block 4 has the ffn of 3":
        for name in [name for name in arrays if name.startswith("block4.ffn")]:
            arrays[name] = arrays[name.replace("block4", "block3")]
    elif fault in ("o transposed", "key transposed"):
        arrays[weight] = arrays[weight].T
    elif fault == "up reshaped":
        arrays[weight] = arrays[weight].T.reshape(arrays[weight].shape)
    elif fault in ("row of up", "row of words"):
        row = 100 if fault == "row of up" else 102  # [SEP]
        arrays[weight] = arrays[weight].copy()
        arrays[weight][row] = arrays[weight][row - 1]
    elif fault == "gain of another norm":
        arrays["block2.ln1.gamma"] = arrays["block2.ln2.gamma"]
    elif fault == "weights in float16":
        arrays[weight] = arrays[weight].astype(np.float16).astype(np.float32)
