"""An encoder and a decoder with cross-attention: Keras, with its own attention layer, to PyTorch. Pre-norm."""

from functools import lru_cache

import keras
import numpy as np
import torch
from keras import ops
from torch import nn

from tests.mha.substitution.heldout.common import Row, Way, lengths, permuted_heads

LAYERS, WIDTH, HEADS, SIZE, INNER, WORDS, EPS = 2, 28, 4, 7, 45, 31, 1e-6


class Feed(keras.layers.Layer):
    def __init__(self, name):
        super().__init__(name=name)
        self.up, self.down = (
            keras.layers.Dense(INNER, activation="relu", name="up"),
            keras.layers.Dense(WIDTH, name="down"),
        )

    def call(self, x):
        return self.down(self.up(x))


def norm(name):
    return keras.layers.LayerNormalization(epsilon=EPS, name=name)


class EncoderBlock(keras.layers.Layer):
    def __init__(self, name):
        super().__init__(name=name)
        self.norm1, self.norm2, self.feed = norm("norm1"), norm("norm2"), Feed("feed")
        self.attention = keras.layers.MultiHeadAttention(HEADS, SIZE, name="attention")

    def call(self, x, keep):
        y = self.norm1(x)
        x = x + self.attention(y, y, attention_mask=keep[:, None])
        return x + self.feed(self.norm2(x))


class DecoderBlock(keras.layers.Layer):
    def __init__(self, name):
        super().__init__(name=name)
        self.norm1, self.norm2, self.norm3, self.feed = norm("norm1"), norm("norm2"), norm("norm3"), Feed("feed")
        self.own = keras.layers.MultiHeadAttention(HEADS, SIZE, name="own")
        self.cross = keras.layers.MultiHeadAttention(HEADS, SIZE, name="cross")

    def call(self, x, memory, keep):
        y = self.norm1(x)
        x = x + self.own(y, y, use_causal_mask=True)
        x = x + self.cross(self.norm2(x), memory, attention_mask=keep[:, None])
        return x + self.feed(self.norm3(x))


class Original(keras.Model):
    def __init__(self):
        super().__init__(name="original")
        self.source, self.target = (keras.layers.Embedding(WORDS, WIDTH, name=n) for n in ("source", "target"))
        self.encoder = [EncoderBlock(f"encoder_{i}") for i in range(LAYERS)]
        self.decoder = [DecoderBlock(f"decoder_{i}") for i in range(LAYERS)]
        self.norm, self.last, self.head = norm("norm"), norm("last"), keras.layers.Dense(WORDS, name="head")

    def call(self, source, target, keep):
        memory = self.source(source) * WIDTH**0.5
        for block in self.encoder:
            memory = block(memory, keep)
        memory, x = self.norm(memory), self.target(target) * WIDTH**0.5
        for block in self.decoder:
            x = block(x, memory, keep)
        return self.head(self.last(x))


def inputs():
    rng = np.random.default_rng(3)
    return rng.integers(0, WORDS, (2, 9)), rng.integers(0, WORDS, (2, 5)), lengths(6, 9, size=9)


@lru_cache
def original():
    keras.utils.set_random_seed(0)
    model, rng = Original(), np.random.default_rng(4)
    model(*map(ops.convert_to_tensor, inputs()))
    for v in model.variables:
        noise = rng.normal(size=v.shape)
        if v.path.endswith(("kernel", "embeddings")):
            v.assign(noise / (WIDTH if v.shape[0] != INNER else INNER) ** 0.5)
        else:
            v.assign(0.3 * noise + v.path.endswith("gamma"))
    return model


def call_original():
    return np.asarray(original()(*map(ops.convert_to_tensor, inputs())))


class Attention(nn.Module):
    def __init__(self, fault, way):
        super().__init__()
        self.fault, self.way = fault, way
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, memory, mask):
        q, k, v = (
            f(y).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)
            for f, y in ((self.q_proj, x), (self.k_proj, memory), (self.v_proj, memory))
        )
        if self.fault == "mask ignored":
            mask = torch.ones_like(mask)
        if self.fault == "queries doubled":
            q = 2 * q
        if self.way == "products by hand":
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / SIZE**0.5 + torch.where(mask, 0.0, -torch.inf)[:, None]
            e = (scores - scores.amax(-1, keepdim=True)).exp()
            y = (e @ v) / e.sum(-1, keepdim=True)
        elif self.fault == "denominator":
            scores = (q @ k.mT / SIZE**0.5).masked_fill(~mask[:, None], -torch.inf).exp()
            y = scores / (1 + scores.sum(-1, keepdim=True)) @ v
        elif self.fault == "mask is added as a number":
            y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None].float())
        else:
            y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
        if self.fault == "heads reversed":
            y = y.flip(1)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault, self.inner, self.outer = fault, nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        y = self.inner(x)
        return self.outer(
            {"gelu": nn.functional.gelu, "leaky": nn.functional.leaky_relu}.get(self.fault, torch.relu)(y)
        )


class RMSNorm(nn.RMSNorm):
    """In place of a LayerNorm, with its bias."""

    def __init__(self, width, eps):
        super().__init__(width, eps)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return super().forward(x) + self.bias


class Encoder(nn.Module):
    def __init__(self, fault, way):
        super().__init__()
        self.fault = fault
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH, 1e-3 if fault == "eps" else EPS), nn.LayerNorm(WIDTH, EPS)
        self.attn, self.ffn = Attention(fault, way), FeedForward(fault)

    def forward(self, x, mask):
        y = self.ln1(x)
        a = self.attn(y, x, mask) if self.fault == "values not normed" else self.attn(y, y, mask)
        x = x + a
        return (y if self.fault == "residual from the norm" else x) + self.ffn(self.ln2(x))


class Decoder(nn.Module):
    def __init__(self, fault, way):
        super().__init__()
        self.fault = fault
        self.ln1, self.ln2 = (
            nn.LayerNorm(WIDTH, EPS),
            RMSNorm(WIDTH, EPS) if fault == "rms" else nn.LayerNorm(WIDTH, EPS),
        )
        self.ln3 = nn.LayerNorm(WIDTH, EPS)
        self.attn, self.xattn, self.ffn = (
            Attention(fault if fault == "mask ignored" else None, way),
            Attention(None if fault == "mask ignored" else fault, way),
            FeedForward(fault),
        )
        self.drop = nn.Dropout(0.25) if way == "idle dropouts" or fault == "dropout" else None
        self.scale = nn.Parameter(torch.ones(WIDTH)) if way == "a layer scale of ones" else None

    def forward(self, x, memory, mask, causal):
        start, y = x, self.ln1(x)
        x = x + self.attn(y, y, causal)
        z = self.xattn(self.ln2(x), memory, mask)
        if self.drop is not None:
            z = self.drop(z)
        if self.scale is not None:
            z = self.scale * z
        if self.fault == "cross before own":
            x = start + self.xattn(self.ln2(start), memory, mask)
            x = x + self.attn(*2 * [self.ln1(x)], causal)
        else:
            x = (start if self.fault == "residual of the start" else x) + z
        return x + self.ffn(self.ln3(x))


class Port(nn.Module):
    def __init__(self, fault=None, layer=0, way=None):
        super().__init__()
        self.fault = fault
        side, layer = ("enc", layer) if layer < LAYERS else ("dec", layer - LAYERS)
        self.src, self.tgt = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)
        self.enc = nn.ModuleList(Encoder(fault if ("enc", i) == (side, layer) else None, way) for i in range(LAYERS))
        self.dec = nn.ModuleList(Decoder(fault if ("dec", i) == (side, layer) else None, way) for i in range(LAYERS))
        self.ln, self.final, self.out = nn.LayerNorm(WIDTH, EPS), nn.LayerNorm(WIDTH, EPS), nn.Linear(WIDTH, WORDS)

    def forward(self, source, target, keep):
        mask, causal = keep[:, None], torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()[None]
        memory, x = (
            self.src(source) * WIDTH**0.5,
            self.tgt(target) * (1 if self.fault == "target not scaled" else WIDTH**0.5),
        )
        first = memory
        for block in self.enc:
            memory = block(memory, mask)
        if self.fault != "memory not normed":
            memory = self.ln(memory)
        mask = torch.ones_like(mask) if self.fault == "cross without mask" else mask
        for i, block in enumerate(self.dec):
            x = block(
                x,
                first if self.fault == "memory of the source" and i == 1 else memory,
                mask,
                torch.ones_like(causal) if self.fault == "not causal" else causal,
            )
        return self.out(self.final(x))


def numbers(fault, layer, way):
    """The original's parameters by the port's names, with a fault in them, or written otherwise."""
    own = {v.path.removeprefix("original/"): np.array(v.value) for v in original().variables if "seed" not in v.path}
    there = {"src.weight": own["source/embeddings"], "tgt.weight": own["target/embeddings"]}

    def dense(a, b):
        there[f"{b}.weight"], there[f"{b}.bias"] = (
            own[f"{a}/kernel"].reshape(-1, own[f"{a}/kernel"].shape[-1]).T.copy(),
            own[f"{a}/bias"],
        )

    def norms(a, b):
        there[f"{b}.weight"], there[f"{b}.bias"] = own[f"{a}/gamma"], own[f"{a}/beta"]

    def attention(a, b):
        for n in ("query", "key", "value"):
            there[f"{b}.{n[0]}_proj.weight"] = own[f"{a}/{n}/kernel"].reshape(WIDTH, WIDTH).T.copy()
            there[f"{b}.{n[0]}_proj.bias"] = own[f"{a}/{n}/bias"].reshape(-1).copy()
        dense(f"{a}/attention_output", f"{b}.o_proj")

    dense("head", "out"), norms("norm", "ln"), norms("last", "final")
    attentions = []
    for i in range(LAYERS):
        for a, b, parts, n in (
            (f"encoder_{i}", f"enc.{i}", ("attention",), 2),
            (f"decoder_{i}", f"dec.{i}", ("own", "cross"), 3),
        ):
            for part in parts:
                attentions.append(f"{b}.{'xattn' if part == 'cross' else 'attn'}")
                attention(f"{a}/{part}", attentions[-1])
            dense(f"{a}/feed/up", f"{b}.ffn.inner"), dense(f"{a}/feed/down", f"{b}.ffn.outer")
            for j in range(1, n + 1):
                norms(f"{a}/norm{j}", f"{b}.ln{j}")
    at = f"enc.{layer}" if layer < LAYERS else f"dec.{layer - LAYERS}"
    if fault == "kernel read as (d, h)":
        there[f"{at}.attn.k_proj.weight"] = (
            there[f"{at}.attn.k_proj.weight"].reshape(HEADS, SIZE, WIDTH).swapaxes(0, 1).reshape(WIDTH, WIDTH)
        )
        there[f"{at}.attn.k_proj.bias"] = there[f"{at}.attn.k_proj.bias"].reshape(HEADS, SIZE).T.reshape(-1)
    elif fault == "cross holds own":
        for n in ("q_proj", "k_proj", "v_proj", "o_proj"):
            there |= {f"{at}.xattn.{n}.{p}": there[f"{at}.attn.{n}.{p}"] for p in ("weight", "bias")}
    elif fault == "o transposed":
        there[f"{at}.xattn.o_proj.weight"] = there[f"{at}.xattn.o_proj.weight"].T.copy()
    elif fault == "v and k exchanged":
        for p in ("weight", "bias"):
            there[f"{at}.xattn.v_proj.{p}"], there[f"{at}.xattn.k_proj.{p}"] = (
                there[f"{at}.xattn.k_proj.{p}"],
                there[f"{at}.xattn.v_proj.{p}"],
            )
    elif fault == "beta lost":
        there[f"{at}.ln2.bias"] = 0 * there[f"{at}.ln2.bias"]
    elif fault == "tables exchanged":
        there["src.weight"], there["tgt.weight"] = there["tgt.weight"], there["src.weight"]
    elif fault == "a row of inner is zero":
        there[f"{at}.ffn.inner.weight"][11] = 0
    elif fault == "one number":
        there[f"{at}.ffn.outer.weight"][3, 4] += 0.01
    for b in attentions:
        q, k, v, o = (f"{b}.{n}_proj" for n in "qkvo")
        if way == "q and k turned":
            turn = np.linalg.qr(np.random.default_rng(8).normal(size=(SIZE, SIZE)))[0]
            for n in (q, k):
                there[f"{n}.weight"] = np.einsum(
                    "ij,hjc->hic", turn, there[f"{n}.weight"].reshape(HEADS, SIZE, WIDTH)
                ).reshape(WIDTH, WIDTH)
                there[f"{n}.bias"] = np.einsum("ij,hj->hi", turn, there[f"{n}.bias"].reshape(HEADS, SIZE)).reshape(-1)
        elif way == "v times 4":
            there |= {
                f"{v}.weight": 4 * there[f"{v}.weight"],
                f"{v}.bias": 4 * there[f"{v}.bias"],
                f"{o}.weight": there[f"{o}.weight"] / 4,
            }
        elif way == "key bias is zero":
            there[f"{k}.bias"] = 0 * there[f"{k}.bias"]
        elif way == "heads permuted":
            order = permuted_heads(HEADS, SIZE)
            for n in (q, k, v):
                there[f"{n}.weight"], there[f"{n}.bias"] = there[f"{n}.weight"][order], there[f"{n}.bias"][order]
            there[f"{o}.weight"] = there[f"{o}.weight"][:, order]
    if way == "inner channels permuted":
        order = np.random.default_rng(9).permutation(INNER)
        for b in {n.rpartition(".ffn.")[0] for n in there if ".ffn." in n}:
            there |= {f"{b}.ffn.inner.{p}": there[f"{b}.ffn.inner.{p}"][order] for p in ("weight", "bias")}
            there[f"{b}.ffn.outer.weight"] = there[f"{b}.ffn.outer.weight"][:, order]
    return there


def port(fault=None, layer=0, way=None):
    model, there = Port(fault, layer, way), numbers(fault, layer, way)
    ones = {n: v for n, v in model.state_dict().items() if n.endswith(".scale")}
    model.load_state_dict({n: torch.tensor(np.asarray(v, np.float32)) for n, v in there.items()} | ones)
    model.eval().requires_grad_(False)
    if fault == "dropout":
        model.dec[layer - LAYERS].drop.train()
    return model


def call(model):
    torch.manual_seed(0)
    return model(*map(torch.from_numpy, inputs()))


def _rows():
    for layer, at, fault, done in (
        (0, "enc.0.attn", "mask ignored", "self-attention does not use its mask"),
        (3, "dec.1.attn", "mask ignored", "self-attention of the decoder does not use its causal mask"),
        (2, "dec.0.xattn", "queries doubled", "queries times 2"),
        (3, "dec.1.xattn", "denominator", "softmax with 1 more in its denominator"),
        (2, "dec.0.xattn", "mask is added as a number", "a mask of True and False is added as 1 and 0"),
        (1, "enc.1.attn", "heads reversed", "heads merged in reversed order"),
    ):
        yield Row(fault, layer, (at,), at.rpartition(".")[0], "code", done)
    yield Row("eps", 0, ("enc.0.ln1",), "enc.0", "code", "epsilon 1e-3")
    yield Row("rms", 3, ("dec.1.ln2",), "dec.1", "code", "RMSNorm in place of LayerNorm")
    yield Row("gelu", 1, ("enc.1.ffn",), "enc.1", "code", "GELU in place of ReLU")
    yield Row("leaky", 2, ("dec.0.ffn",), "dec.0", "code", "leaky ReLU in place of ReLU")
    yield Row("values not normed", 1, ("enc.1",), "", "glue", "keys and values from x, queries from norm(x)")
    yield Row("residual from the norm", 0, ("enc.0",), "", "glue", "the MLP is added to norm1(x)")
    yield Row("residual of the start", 3, ("dec.1",), "", "glue", "cross-attention is added to the block's input")
    yield Row("cross before own", 2, ("dec.0",), "", "glue", "cross-attention before self-attention")
    yield Row("dropout", 3, ("dec.1",), "", "glue", "dropout active after cross-attention", ("dec.1.drop",))
    yield Row("target not scaled", 0, ("",), "", "glue", "target embedding is not scaled", ("tgt",))
    yield Row("memory not normed", 0, ("",), "", "glue", "the decoder gets the memory before its norm")
    inside = tuple(f"dec.{i}{part}" for i in range(LAYERS) for part in ("", ".xattn"))
    yield Row("cross without mask", 0, ("",), "", "glue", "the decoder gets a mask of ones", inside)
    yield Row("memory of the source", 0, ("",), "", "glue", "block 1 gets the source's embedding as memory")
    yield Row(
        "not causal",
        0,
        ("",),
        "",
        "glue",
        "the decoder gets a causal mask of ones",
        tuple(n.replace("xattn", "attn") for n in inside),
    )
    yield Row(
        "kernel read as (d, h)",
        1,
        ("enc.1.attn.k_proj",),
        "enc.1.attn",
        "parameters",
        "kernel and bias of k read as (size, heads)",
    )
    places = tuple(f"dec.0.xattn.{n}_proj" for n in "qkvo")
    yield Row(
        "cross holds own", 2, places, "dec.0.xattn", "parameters", "cross-attention holds the weights of self-attention"
    )
    yield Row("o transposed", 3, ("dec.1.xattn.o_proj",), "dec.1.xattn", "parameters", "output kernel transposed")
    yield Row(
        "v and k exchanged",
        2,
        ("dec.0.xattn.v_proj", "dec.0.xattn.k_proj"),
        "dec.0.xattn",
        "parameters",
        "k and v exchanged",
    )
    yield Row("beta lost", 0, ("enc.0.ln2",), "enc.0", "parameters", "beta is zero")
    yield Row("tables exchanged", 0, ("src", "tgt"), "", "parameters", "source and target tables exchanged")
    yield Row(
        "a row of inner is zero", 3, ("dec.1.ffn.inner",), "dec.1.ffn", "parameters", "one row is zero, its bias is not"
    )
    yield Row("one number", 1, ("enc.1.ffn.outer",), "enc.1.ffn", "parameters", "one number is 0.01 off")


FAULTS = tuple(_rows())
WAYS = (
    Way("plain", "as it is"),
    Way("q and k turned", "an orthogonal matrix within each head of q and k"),
    Way("v times 4", "v times 4, o times 1/4"),
    Way("key bias is zero", "the key's bias moves no softmax"),
    Way("heads permuted", "heads in another order in all four projections"),
    Way("inner channels permuted", "channels of the MLP permuted in both matrices"),
    Way("products by hand", "einsum, an added mask of -inf, division after the product"),
    Way("idle dropouts", "a Dropout more, in inference"),
    Way("a layer scale of ones", "a parameter more, all ones"),
)
