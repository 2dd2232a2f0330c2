"""all-MiniLM-L6-v2 in Flax nnx, written anew; and its faults by name.

Kernels have an axis for the heads, (384, 12, 32); what is added to scores is made at the top. `tables` only looks up,
its norm stands in the model; the norm of attention stands in `rounds/N`, that of the feed-forward, with its residual,
in `mlp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

WIDTH, INNER, HEADS, DEPTH = 384, 1536, 12, 6

Arrays = Mapping[str, NDArray[np.float32]]

ATTENTIONS = tuple(f"rounds/{i}/attention" for i in range(DEPTH))
NORMS = ("norm", *(f"rounds/{i}/{name}" for i in range(DEPTH) for name in ("norm", "mlp/norm")))
ROUND = (
    *(f"attention/{name}" for name in ("query", "key", "value", "out")),
    "norm",
    "mlp/wide",
    "mlp/narrow",
    "mlp/norm",
)

FAULTS: dict[str, tuple[str, ...]] = {
    "eps 1e-5": ("rounds/0/norm",),
    "eps 1e-6 everywhere": NORMS,  # nnx's own
    "eps 1e-3": ("rounds/2/mlp/norm",),
    "eps 1e-5 at the top": ("norm",),
    "scale of a norm one too large": ("rounds/4/norm",),
    "norm in bfloat16": ("rounds/3/mlp/norm",),
    "norm over positions": ("rounds/5/norm",),
    "gelu tanh": ("rounds/2/mlp",),
    "gelu tanh everywhere": tuple(f"rounds/{i}/mlp" for i in range(DEPTH)),  # nnx's own
    "relu": ("rounds/5/mlp",),
    "silu": ("rounds/0/mlp",),
    "activation after narrow": ("rounds/4/mlp",),
    "bias lost, wide": ("rounds/3/mlp/wide",),
    "bias lost, narrow": ("rounds/1/mlp/narrow",),
    "bias lost, out": ("rounds/2/attention/out",),
    "bias lost, value": ("rounds/4/attention/value",),
    "residual lost, attention": ("rounds/1",),
    "residual lost, mlp": ("rounds/3/mlp",),
    "residual after norm, attention": ("rounds/2",),
    "residual after norm, mlp": ("rounds/5/mlp",),
    "residual twice": ("rounds/4",),
    "scale missing": ("rounds/3/attention",),
    "scale sqrt(384)": ("rounds/1/attention",),
    "scale twice": ("rounds/5/attention",),
    "scale missing everywhere": ATTENTIONS,
    "heads repeated": ("rounds/0/attention",),
    "mask dropped": ("",),
    "mask too weak": ("",),
    "mask of queries": ("",),
    "mask of the previous item": ("",),
    "mask dropped in a round": ("rounds/4/attention",),
    "causal": ("rounds/2/attention",),
    "softmax over queries": ("rounds/1/attention",),
    "softmax without its largest": ("rounds/3/attention",),
    "query in bfloat16": ("rounds/5/attention",),
    "positions off by one": ("tables",),
    "positions from the end": ("tables",),
    "types not added": ("tables",),
    "types all 0": ("",),
    "words scaled": ("tables",),
    "norm at the top lost": ("",),
    "layers exchanged": tuple(f"rounds/{i}/{name}" for i in (3, 4) for name in ROUND),
    "mlps exchanged": tuple(f"rounds/{i}/mlp/{name}" for i in (0, 5) for name in ("wide", "narrow", "norm")),
    "query and key exchanged": ("rounds/2/attention/query", "rounds/2/attention/key"),
    "key and value exchanged": ("rounds/5/attention/key", "rounds/5/attention/value"),
    "out by another order of heads": ("rounds/3/attention/out",),
    "value transposed": ("rounds/0/attention/value",),
    "wide transposed in memory": ("rounds/4/mlp/wide",),
    "row of narrow": ("rounds/2/mlp/narrow",),
    "row of positions": ("tables/place",),
    "one number of key": ("rounds/1/attention/key",),
    "third round skipped": ("",),
    "rounds backward": ("",),
    "output in bfloat16": ("",),
}
"""Name -> the modules of the port in which the wrong line or parameter stands."""

ALSO: dict[str, tuple[tuple[str, ...], ...]] = {
    "layers exchanged": (("",), ("rounds/3", "rounds/4")),
    "mlps exchanged": (("",), ("rounds/0/mlp", "rounds/5/mlp"), ("rounds/0", "rounds/5")),
    "query and key exchanged": (("rounds/2/attention",),),
    "key and value exchanged": (("rounds/5/attention",),),
    "norm over positions": (("rounds/5",),),
}
"""Other right answers: modules in each other's place are modules in the wrong order too."""

RIGHT = ("layer of nnx", "mask of bool")
"""Ports that are right too, by name: attention is nnx.MultiHeadAttention; allowed keys are marked."""


class Part(nnx.Module):
    def __init__(self, wrong: Mapping[str, frozenset[str]], path: str) -> None:
        self.bad = nnx.static(wrong.get(path, frozenset())) if hasattr(nnx, "static") else wrong.get(path, frozenset())

    def has(self, *faults: str) -> bool:
        return not self.bad.isdisjoint(faults)


class Norm(Part):
    def __init__(self, wrong: Mapping[str, frozenset[str]], path: str, rngs: nnx.Rngs) -> None:
        super().__init__(wrong, path)
        self.scale, self.bias = nnx.Param(jnp.ones(WIDTH)), nnx.Param(jnp.zeros(WIDTH))

    def __call__(self, x: jax.Array) -> jax.Array:
        epsilon = 1e-5 if self.has("eps 1e-5", "eps 1e-5 at the top") else 1e-12
        epsilon = 1e-6 if self.has("eps 1e-6 everywhere") else 1e-3 if self.has("eps 1e-3") else epsilon
        axis = (1, 2) if self.has("norm over positions") else -1
        if self.has("norm in bfloat16"):
            x = x.astype(jnp.bfloat16)
        x = x - x.mean(axis, keepdims=True)
        x = (x / jnp.sqrt((x * x).mean(axis, keepdims=True) + epsilon)).astype(jnp.float32)
        return x * (self.scale[...] + self.has("scale of a norm one too large")) + self.bias[...]


class Tables(Part):
    def __init__(self, wrong: Mapping[str, frozenset[str]], path: str, rngs: nnx.Rngs) -> None:
        super().__init__(wrong, path)
        self.word, self.place, self.sort = (nnx.Embed(rows, WIDTH, rngs=rngs) for rows in (30522, 512, 2))

    def __call__(self, ids: jax.Array, sorts: jax.Array) -> jax.Array:
        places = jnp.arange(ids.shape[1]) + self.has("positions off by one")
        if self.has("positions from the end"):
            places = places[::-1]
        words = self.word(ids) * (WIDTH**0.5 if self.has("words scaled") else 1.0)
        total = words + self.place(places)
        sort = self.sort(sorts)
        return total if self.has("types not added") else total + sort


class Attention(Part):
    def __init__(self, wrong: Mapping[str, frozenset[str]], path: str, rngs: nnx.Rngs) -> None:
        super().__init__(wrong, path)
        size = (HEADS, WIDTH // HEADS)
        self.query, self.key, self.value = (nnx.LinearGeneral(WIDTH, size, rngs=rngs) for _ in range(3))
        self.out = nnx.LinearGeneral(size, WIDTH, axis=(-2, -1), rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        query, key, value = self.query(x), self.key(x), self.value(x)
        if self.has("query in bfloat16"):
            query = query.astype(jnp.bfloat16).astype(jnp.float32)
        if self.has("heads repeated"):
            key, value = (one.at[:, :, 1].set(one[:, :, 0]) for one in (key, value))
        scale = 1.0 if self.has("scale missing", "scale missing everywhere") else (WIDTH // HEADS) ** -0.5
        scale = WIDTH**-0.5 if self.has("scale sqrt(384)") else scale**2 if self.has("scale twice") else scale
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * scale
        if not self.has("mask dropped in a round"):
            scores = jnp.where(mask, scores, -1e30) if mask.dtype == bool else scores + mask
        if self.has("causal"):
            scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -1e30)
        if self.has("softmax without its largest"):
            scores = jnp.where(scores == scores.max(-1, keepdims=True), -1e30, scores)
        weights = jax.nn.softmax(scores, axis=-2 if self.has("softmax over queries") else -1)
        return self.out(jnp.einsum("bhqk,bkhd->bqhd", weights, value))


class Mlp(Part):
    """Feed-forward with its residual and norm."""

    def __init__(self, wrong: Mapping[str, frozenset[str]], path: str, rngs: nnx.Rngs) -> None:
        super().__init__(wrong, path)
        self.wide, self.narrow = nnx.Linear(WIDTH, INNER, rngs=rngs), nnx.Linear(INNER, WIDTH, rngs=rngs)
        self.norm = Norm(wrong, f"{path}/norm", rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = self.wide(x)
        if self.has("relu", "silu"):
            wide = nnx.relu(wide) if self.has("relu") else nnx.silu(wide)
        elif not self.has("activation after narrow"):
            wide = nnx.gelu(wide, approximate=self.has("gelu tanh", "gelu tanh everywhere"))
        change = self.narrow(wide)
        if self.has("activation after narrow"):
            change = nnx.gelu(change, approximate=False)
        if self.has("residual after norm, mlp"):
            return x + self.norm(change)
        return self.norm(change if self.has("residual lost, mlp") else x + change)


class Round(Part):
    def __init__(self, wrong: Mapping[str, frozenset[str]], path: str, rngs: nnx.Rngs, native: bool) -> None:
        super().__init__(wrong, path)
        self.native = native
        if native:
            self.attention: Any = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, deterministic=True, rngs=rngs)
        else:
            self.attention = Attention(wrong, f"{path}/attention", rngs)
        self.norm, self.mlp = Norm(wrong, f"{path}/norm", rngs), Mlp(wrong, f"{path}/mlp", rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        change = self.attention(x, mask=mask > -1) if self.native else self.attention(x, mask)
        if self.has("residual after norm, attention"):
            return self.mlp(x + self.norm(change))
        factor = 2.0 if self.has("residual twice") else 0.0 if self.has("residual lost, attention") else 1.0
        return self.mlp(self.norm(factor * x + change))


class Texts(Part):
    """The whole encoder: ids, which of them to keep, and segments, to the last layer's vectors."""

    def __init__(self, wrong: Mapping[str, frozenset[str]]) -> None:
        super().__init__(wrong, "")
        rngs = nnx.Rngs(0)
        self.tables, self.norm = Tables(wrong, "tables", rngs), Norm(wrong, "norm", rngs)
        native = self.has("layer of nnx")
        rounds = [Round(wrong, f"rounds/{number}", rngs, native) for number in range(DEPTH)]
        self.rounds = nnx.List(rounds) if hasattr(nnx, "List") else rounds

    def __call__(self, ids: jax.Array, keep: jax.Array, sorts: jax.Array) -> jax.Array:
        if self.has("mask dropped"):
            keep = jnp.ones_like(keep)
        if self.has("mask of the previous item"):
            keep = jnp.roll(keep, 1, axis=0)
        mask = jnp.where(keep == 1, 0.0, -2.0 if self.has("mask too weak") else -1e9)[:, None, None, :]
        if self.has("mask of queries"):
            mask = mask.swapaxes(-1, -2)
        if self.has("mask of bool"):
            mask = mask == 0
        x = self.tables(ids, jnp.zeros_like(sorts) if self.has("types all 0") else sorts)
        x = x if self.has("norm at the top lost") else self.norm(x)
        rounds = list(self.rounds)
        if self.has("third round skipped"):
            del rounds[2]
        for one in reversed(rounds) if self.has("rounds backward") else rounds:
            x = one(x, mask)
        return x.astype(jnp.bfloat16).astype(jnp.float32) if self.has("output in bfloat16") else x


def build(state: Arrays, fault: str = "") -> Texts:
    """The port with the arrays of `state` and the faults of these names, joined by " + "."""
    arrays = arrays_of(state)
    wrong: dict[str, frozenset[str]] = {}
    for name in (name for name in fault.split(" + ") if name):
        spoil(arrays, name)
        for place in FAULTS.get(name, ("",)):
            wrong[place] = wrong.get(place, frozenset()) | {name}
    model = Texts(wrong)
    for path, array in arrays.items():
        part: Any = model
        for name in path.split("/"):
            part = part[int(name)] if name.isdigit() else getattr(part, name)
        part.value = jnp.asarray(array)
    return model


def call(model: Texts, batch: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
    """What the port gives for a batch of the tokenizer."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    return np.asarray(model(*(jnp.asarray(batch[name].astype(np.int32)) for name in names)))


def arrays_of(state: Arrays) -> dict[str, NDArray[np.float32]]:
    heads = (HEADS, WIDTH // HEADS)
    tables = (("word", "word"), ("place", "position"), ("sort", "token_type"))
    arrays = {f"tables/{new}/embedding": state[f"embeddings.{old}_embeddings.weight"] for new, old in tables}
    norms = {"norm": "embeddings.LayerNorm"}
    for number in range(DEPTH):
        new, old = f"rounds/{number}", f"encoder.layer.{number}"
        norms |= {f"{new}/norm": f"{old}.attention.output.LayerNorm", f"{new}/mlp/norm": f"{old}.output.LayerNorm"}
        for name in ("query", "key", "value"):
            part, own = f"{old}.attention.self.{name}", f"{new}/attention/{name}"
            arrays[f"{own}/kernel"] = state[f"{part}.weight"].T.reshape(WIDTH, *heads)
            arrays[f"{own}/bias"] = state[f"{part}.bias"].reshape(heads)
        arrays[f"{new}/attention/out/kernel"] = state[f"{old}.attention.output.dense.weight"].T.reshape(*heads, WIDTH)
        arrays[f"{new}/attention/out/bias"] = state[f"{old}.attention.output.dense.bias"]
        for own, part in (("wide", "intermediate"), ("narrow", "output")):
            arrays[f"{new}/mlp/{own}/kernel"] = state[f"{old}.{part}.dense.weight"].T
            arrays[f"{new}/mlp/{own}/bias"] = state[f"{old}.{part}.dense.bias"]
    for own, part in norms.items():
        arrays[f"{own}/scale"], arrays[f"{own}/bias"] = state[f"{part}.weight"], state[f"{part}.bias"]
    return arrays


def spoil(arrays: dict[str, NDArray[np.float32]], fault: str) -> None:
    """The faults that stand in the parameters; those that stand in the code do nothing here."""
    places = FAULTS.get(fault, ("",))
    kernel = f"{places[0]}/kernel"
    if fault.startswith("bias lost"):
        arrays[f"{places[0]}/bias"] = np.zeros_like(arrays[f"{places[0]}/bias"])
    elif fault in ("layers exchanged", "mlps exchanged", "query and key exchanged", "key and value exchanged"):
        half = len(places) // 2
        for first, second in zip(places[:half], places[half:], strict=True):
            for kind in [name.removeprefix(first) for name in arrays if name.rpartition("/")[0] == first]:
                one, two = first + kind, second + kind
                arrays[one], arrays[two] = arrays[two], arrays[one]
    elif fault == "out by another order of heads":
        array = arrays[kernel]
        arrays[kernel] = array.reshape(-1, HEADS, WIDTH).swapaxes(0, 1).reshape(array.shape)
    elif fault == "value transposed":
        array = arrays[kernel]
        arrays[kernel] = array.reshape(WIDTH, WIDTH).T.reshape(array.shape)
    elif fault == "wide transposed in memory":
        array = arrays[kernel]
        arrays[kernel] = array.T.reshape(array.shape)
    elif fault in ("row of narrow", "row of positions"):
        name, row = (kernel, 100) if fault == "row of narrow" else (f"{places[0]}/embedding", 3)
        arrays[name] = arrays[name].copy()
        arrays[name][row] = arrays[name][row - 1]
    elif fault == "one number of key":
        arrays[kernel] = arrays[kernel].copy()
        arrays[kernel][7, 3, 5] += 1.0
