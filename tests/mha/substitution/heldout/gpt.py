"""A GPT-like decoder: PyTorch, with its own attention layer packed, to Flax nnx.

Pre-norm, learned positions, padding between prompt and answer.
"""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from torch import nn

from tests.mha.substitution.heldout.common import Row, Way, arrays, lengths, permuted_heads, randomize

LAYERS, WIDTH, HEADS, SIZE, INNER, WORDS, PLACES, EPS = 3, 18, 3, 6, 50, 37, 13, 1e-5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, EPS), nn.LayerNorm(WIDTH, EPS)
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(approximate="tanh"), nn.Linear(INNER, WIDTH))

    def forward(self, x, mask, padding):
        y = self.norm1(x)
        x = x + self.attn(y, y, y, attn_mask=mask, key_padding_mask=padding, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH, EPS)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids, keep):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        for block in self.blocks:
            x = block(x, mask, ~keep)
        return self.head(self.norm(x))


@lru_cache
def original():
    return randomize(GPT(), 2)


class Attention(nnx.Module):
    def __init__(self, fault, way, rngs):
        self.fault, self.way = fault, way
        if way == "separate q, k, v":
            self.query, self.key, self.value = (nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(3))
        else:
            self.qkv = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs)
        self.proj = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x, keep):
        n = x.shape[1]
        if self.way == "separate q, k, v":
            q, k, v = self.query(x), self.key(x), self.value(x)
        else:
            q, k, v = jnp.split(self.qkv(x), 3, axis=-1)
        if self.fault == "k and v read exchanged":
            k, v = v, k
        q, k, v = (y.reshape(*x.shape[:2], HEADS, SIZE) for y in (q, k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        scores = scores if self.fault == "no scale" else scores * SIZE**-0.5
        causal = jnp.tril(
            jnp.ones((n, n), bool), 1 if self.fault == "sees the next" else -1 if self.fault == "not itself" else 0
        )
        mask = keep[:, None, None] & (jnp.ones((n, n), bool) if self.fault == "not causal" else causal)
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
        if self.fault == "weights of bfloat16":
            weights = weights.astype(jnp.bfloat16).astype(jnp.float32)
        y = jnp.einsum("bhqk,bkhd->bhqd" if self.fault == "merge" else "bhqk,bkhd->bqhd", weights, v)
        return self.proj(y.reshape(x.shape))


class MLP(nnx.Module):
    def __init__(self, fault, rngs):
        self.fault, self.fc, self.out = fault, nnx.Linear(WIDTH, INNER, rngs=rngs), nnx.Linear(INNER, WIDTH, rngs=rngs)

    def __call__(self, x):
        act = {"erf": lambda x: jax.nn.gelu(x, approximate=False), "silu": jax.nn.silu}.get(self.fault, jax.nn.gelu)
        return self.out(act(self.fc(x)))


class Layer(nnx.Module):
    def __init__(self, fault, way, rngs):
        self.fault = fault
        self.ln1 = nnx.LayerNorm(WIDTH, epsilon=1e-6 if fault == "eps of flax" else EPS, rngs=rngs)
        self.ln2 = nnx.LayerNorm(WIDTH, epsilon=EPS, rngs=rngs)
        self.attn, self.mlp = Attention(fault, way, rngs), MLP(fault, rngs)

    def __call__(self, x, keep):
        y = self.ln1(x)
        a = self.attn(x if self.fault == "norm skipped" else y, keep)
        x = (y if self.fault == "residual of the norm" else x) + a
        if self.fault == "parallel":
            return x + self.mlp(self.ln2(x - a))
        m = self.mlp(self.ln2(x))
        return m if self.fault == "no second residual" else x + m


class Port(nnx.Module):
    def __init__(self, fault=None, layer=0, way=None):
        rngs = nnx.Rngs(0)
        self.fault, self.layer, self.way = fault, layer, way
        self.wte, self.wpe = nnx.Embed(WORDS, WIDTH, rngs=rngs), nnx.Embed(PLACES, WIDTH, rngs=rngs)
        self.layers = nnx.List([Layer(fault if i == layer else None, way, rngs) for i in range(LAYERS)])
        self.norm, self.head = (
            nnx.LayerNorm(WIDTH, epsilon=EPS, rngs=rngs),
            nnx.Linear(WIDTH, WORDS, use_bias=False, rngs=rngs),
        )

    def __call__(self, ids, keep):
        n = ids.shape[1]
        place = (
            jnp.arange(n)[::-1]
            if self.fault == "positions reversed"
            else jnp.arange(n) + 2 * (self.fault == "position offset")
        )
        x = self.wte(ids) + self.wpe(place)
        given = jnp.ones_like(keep) if self.fault == "mask not passed" else keep
        for i, layer in enumerate(self.layers):
            if self.fault == "layer twice" and i == 1:
                layer = self.layers[0]
            x = layer(x, given)
        return self.head(x if self.fault == "no last norm" else self.norm(x))


class Sublayer(nnx.Module):
    """A norm and what follows it, with the sum: another structure than the original's."""

    def __init__(self, norm, inner):
        self.norm, self.inner = norm, inner

    def __call__(self, x, *rest):
        return x + self.inner(self.norm(x), *rest)


class Nested(nnx.Module):
    """The port with its layers taken apart into sublayers in one list, and the embeddings in a module of their own."""

    def __init__(self, port):
        self.steps = nnx.List(
            [Sublayer(*pair) for layer in port.layers for pair in ((layer.ln1, layer.attn), (layer.ln2, layer.mlp))]
        )
        self.token, self.place, self.last, self.logits = port.wte, port.wpe, port.norm, port.head

    def __call__(self, ids, keep):
        x = self.token(ids) + self.place(jnp.arange(ids.shape[1]))
        for i, step in enumerate(self.steps):
            x = step(x) if i % 2 else step(x, keep)
        return self.logits(self.last(x))


class Scanned(nnx.Module):
    """The port with its layers stacked and run by nnx.scan, in place of a loop."""

    def __init__(self, port):
        self.wte, self.wpe, self.norm, self.head = port.wte, port.wpe, port.norm, port.head
        definition, _ = nnx.split(port.layers[0])
        states = [nnx.split(layer)[1] for layer in port.layers]
        self.stack = nnx.merge(definition, jax.tree.map(lambda *each: jnp.stack(each), *states))

    def __call__(self, ids, keep):
        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        def run(layer, x):
            return layer(x, keep)

        return self.head(self.norm(run(self.stack, self.wte(ids) + self.wpe(jnp.arange(ids.shape[1])))))


def inputs():
    """Prompts padded on the right, and three words that were generated behind them."""
    return np.random.default_rng(2).integers(0, WORDS, (2, 9)), np.concatenate(
        [lengths(6, 4, size=6), np.ones((2, 3), bool)], axis=1
    )


KEEP = lambda: inputs()[1]  # noqa: E731


def numbers(fault, layer, way):
    """The original's parameters by the port's names, with a fault in them, or written otherwise."""
    own, there = arrays(original()), {}
    for a in ("wte", "wpe"):
        there[f"{a}.embedding"] = own[f"{a}.weight"]
    there |= {
        "norm.scale": own["norm.weight"],
        "norm.bias": own["norm.bias"],
        "head.kernel": own["head.weight"].T.copy(),
    }
    for i in range(LAYERS):
        a, b = f"blocks.{i}", f"layers.{i}"
        for n in ("1", "2"):
            there |= {f"{b}.ln{n}.scale": own[f"{a}.norm{n}.weight"], f"{b}.ln{n}.bias": own[f"{a}.norm{n}.bias"]}
        for n, p in (("mlp.0", "mlp.fc"), ("mlp.2", "mlp.out"), ("attn.out_proj", "attn.proj")):
            there |= {f"{b}.{p}.kernel": own[f"{a}.{n}.weight"].T.copy(), f"{b}.{p}.bias": own[f"{a}.{n}.bias"]}
        there |= {
            f"{b}.attn.qkv.kernel": own[f"{a}.attn.in_proj_weight"].T.copy(),
            f"{b}.attn.qkv.bias": own[f"{a}.attn.in_proj_bias"],
        }
    at, before = f"layers.{layer}", f"layers.{layer - 1}"
    kernel = f"{at}.attn.qkv.kernel"
    if fault == "packed head by head":
        there[kernel] = there[kernel].reshape(WIDTH, 3, HEADS, SIZE).swapaxes(1, 2).reshape(WIDTH, -1)
        there[f"{at}.attn.qkv.bias"] = there[f"{at}.attn.qkv.bias"].reshape(3, HEADS, SIZE).swapaxes(0, 1).reshape(-1)
    elif fault == "packed k, q, v":
        there[kernel] = np.concatenate([there[kernel][:, i * WIDTH : (i + 1) * WIDTH] for i in (1, 0, 2)], axis=1)
        there[f"{at}.attn.qkv.bias"] = np.concatenate(
            [there[f"{at}.attn.qkv.bias"][i * WIDTH : (i + 1) * WIDTH] for i in (1, 0, 2)]
        )
    elif fault == "proj transposed":
        there[f"{at}.attn.proj.kernel"] = there[f"{at}.attn.proj.kernel"].T.copy()
    elif fault == "fc reshaped":
        there[f"{at}.mlp.fc.kernel"] = there[f"{at}.mlp.fc.kernel"].T.reshape(WIDTH, INNER)
    elif fault == "norms exchanged":
        for n in ("scale", "bias"):
            there[f"{at}.ln1.{n}"], there[f"{at}.ln2.{n}"] = there[f"{at}.ln2.{n}"], there[f"{at}.ln1.{n}"]
    elif fault == "mlp of another layer":
        there |= {
            f"{at}.mlp.{n}": there[f"{before}.mlp.{n}"] for n in ("fc.kernel", "fc.bias", "out.kernel", "out.bias")
        }
    elif fault == "out bias lost":
        there[f"{at}.mlp.out.bias"] = 0 * there[f"{at}.mlp.out.bias"]
    elif fault == "head of wte":
        there["head.kernel"] = there["wte.embedding"].T.copy()
    elif fault == "positions rolled":
        there["wpe.embedding"] = np.roll(there["wpe.embedding"], 1, axis=0)
    elif fault == "fc of float16":
        there[f"{at}.mlp.fc.kernel"] = there[f"{at}.mlp.fc.kernel"].astype(np.float16).astype(np.float32)
    for i in range(LAYERS):
        b = f"layers.{i}"
        if way == "separate q, k, v":
            for n, part in zip(("query", "key", "value"), range(3), strict=True):
                there[f"{b}.attn.{n}.kernel"] = there[f"{b}.attn.qkv.kernel"][:, part * WIDTH : (part + 1) * WIDTH]
                there[f"{b}.attn.{n}.bias"] = there[f"{b}.attn.qkv.bias"][part * WIDTH : (part + 1) * WIDTH]
        elif way == "norms folded":
            for n, p in (("ln1", "attn.qkv"), ("ln2", "mlp.fc")):
                gamma, beta, w = there[f"{b}.{n}.scale"], there[f"{b}.{n}.bias"], there[f"{b}.{p}.kernel"]
                there |= {f"{b}.{p}.bias": there[f"{b}.{p}.bias"] + beta @ w, f"{b}.{p}.kernel": gamma[:, None] * w}
                there |= {f"{b}.{n}.scale": np.ones_like(gamma), f"{b}.{n}.bias": np.zeros_like(beta)}
        elif way == "v and o permuted":
            order = np.random.default_rng(7).permuted(np.arange(WIDTH).reshape(HEADS, SIZE), axis=1).reshape(-1)
            there[f"{b}.attn.qkv.kernel"][:, 2 * WIDTH :] = there[f"{b}.attn.qkv.kernel"][:, 2 * WIDTH :][:, order]
            there[f"{b}.attn.qkv.bias"][2 * WIDTH :] = there[f"{b}.attn.qkv.bias"][2 * WIDTH :][order]
            there[f"{b}.attn.proj.kernel"] = there[f"{b}.attn.proj.kernel"][order]
        elif way == "heads permuted, packed":
            order = permuted_heads(HEADS, SIZE)
            every = np.concatenate([order + part * WIDTH for part in range(3)])
            there[f"{b}.attn.qkv.kernel"], there[f"{b}.attn.qkv.bias"] = (
                there[f"{b}.attn.qkv.kernel"][:, every],
                there[f"{b}.attn.qkv.bias"][every],
            )
            there[f"{b}.attn.proj.kernel"] = there[f"{b}.attn.proj.kernel"][order]
    if way == "a constant moved between the tables":
        there["wte.embedding"], there["wpe.embedding"] = there["wte.embedding"] + 0.25, there["wpe.embedding"] - 0.25
    return there


def port(fault=None, layer=0, way=None):
    model, there = Port(fault, layer, way), numbers(fault, layer, way)
    state = nnx.state(model, nnx.Param)
    flat = [
        (path, variable.replace(jnp.asarray(there[".".join(map(str, path))])))
        for path, variable in nnx.to_flat_state(state)
    ]
    nnx.update(model, nnx.from_flat_state(flat))
    return Nested(model) if way == "sublayers" else Scanned(model) if way == "scan" else model


def call(model):
    return model(*map(jnp.asarray, inputs()))


def _rows():
    for layer, fault, done in (
        (0, "no scale", "scores are not scaled"),
        (2, "sees the next", "causal mask one place too wide"),
        (1, "not causal", "no causal mask"),
        (1, "not itself", "a query does not see its own place"),
        (0, "merge", "heads merged as (heads, queries)"),
        (2, "k and v read exchanged", "the packed projection is read as q, v, k"),
        (1, "weights of bfloat16", "attention weights rounded to bfloat16"),
    ):
        yield Row(fault, layer, (f"layers.{layer}.attn",), f"layers.{layer}", "code", done)
    yield Row("eps of flax", 0, ("layers.0.ln1",), "layers.0", "code", "epsilon 1e-6")
    yield Row("erf", 1, ("layers.1.mlp",), "layers.1", "code", "GELU with erf in place of tanh")
    yield Row("silu", 2, ("layers.2.mlp",), "layers.2", "code", "SiLU in place of GELU")
    yield Row("norm skipped", 1, ("layers.1",), "", "glue", "attention is given x, not norm(x)")
    yield Row("residual of the norm", 2, ("layers.2",), "", "glue", "norm(x) + attention in place of x + attention")
    yield Row("parallel", 0, ("layers.0",), "", "glue", "the MLP is given the block's input: parallel, not serial")
    yield Row("no second residual", 1, ("layers.1",), "", "glue", "the MLP's residual is lost")
    yield Row("positions reversed", 0, ("",), "", "glue", "positions counted from the end", ("wpe",))
    yield Row("position offset", 0, ("",), "", "glue", "positions from 2", ("wpe",))
    inside = tuple(f"layers.{i}{part}" for i in range(LAYERS) for part in ("", ".attn"))
    yield Row("mask not passed", 0, ("",), "", "glue", "padding is not passed to any layer", inside)
    yield Row("layer twice", 0, ("",), "", "glue", "layer 0 twice, layer 1 never", ("layers.0", "layers.1"))
    yield Row("no last norm", 0, ("",), "", "glue", "the head is given x, not norm(x)")
    for layer, fault, done in (
        (1, "packed head by head", "packed projection head by head"),
        (0, "packed k, q, v", "packed projection as k, q, v"),
    ):
        yield Row(fault, layer, (f"layers.{layer}.attn.qkv",), f"layers.{layer}.attn", "parameters", done)
    yield Row("proj transposed", 2, ("layers.2.attn.proj",), "layers.2.attn", "parameters", "output kernel transposed")
    yield Row(
        "fc reshaped",
        0,
        ("layers.0.mlp.fc",),
        "layers.0.mlp",
        "parameters",
        "the weight reshaped in place of transposed",
    )
    yield Row(
        "norms exchanged",
        1,
        ("layers.1.ln1", "layers.1.ln2"),
        "layers.1",
        "parameters",
        "the two norms hold each other's",
    )
    places = tuple(f"layers.2.mlp.{n}" for n in ("fc", "out"))
    yield Row("mlp of another layer", 2, places, "layers.2.mlp", "parameters", "fc and out are layer 1's")
    yield Row("out bias lost", 2, ("layers.2.mlp.out",), "layers.2.mlp", "parameters", "bias is zero")
    yield Row("head of wte", 0, ("head",), "", "parameters", "the head is tied to the tokens, the original's is not")
    yield Row("positions rolled", 0, ("wpe",), "", "parameters", "rows rolled by one")
    yield Row("fc of float16", 1, ("layers.1.mlp.fc",), "layers.1.mlp", "parameters", "kernel rounded to float16")


FAULTS = tuple(_rows())
WAYS = (
    Way("plain", "as it is, qkv packed and transposed"),
    Way("separate q, k, v", "three projections"),
    Way("norms folded", "gamma and beta of both norms folded into the next linear"),
    Way("v and o permuted", "channels permuted in v and o, within a head"),
    Way("heads permuted, packed", "heads in another order in the packed projection and in o"),
    Way("a constant moved between the tables", "tokens + 0.25, positions - 0.25"),
    Way("sublayers", "another structure: norm, inner and sum as a module of six"),
    Way("scan", "layers stacked, and nnx.scan in place of a loop"),
)
