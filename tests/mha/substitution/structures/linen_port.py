"""A port of the small decoder to Flax linen, with the faults that are asked for; its layers may be scanned."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tests.mha.substitution.structures.original import HEADS, HIDDEN, LONGEST, VOCABULARY, WIDTH, batch


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x, mask):
        q, k, v = (nn.Dense(WIDTH, name=n)(x).reshape(*x.shape[:2], HEADS, -1) for n in ("query", "key", "value"))
        scores = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(WIDTH / HEADS), -1e9)
        heads = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)
        return nn.Dense(WIDTH, name="out")(heads.reshape(x.shape))


class Block(nn.Module):
    pre: bool
    fault: str = ""

    @nn.compact
    def __call__(self, x, mask):
        norms = [nn.LayerNorm(epsilon=1e-3 if self.fault == name else 1e-5, name=name) for name in ("ln1", "ln2")]
        mask = ~mask | jnp.eye(mask.shape[-1], dtype=bool) if self.fault == "inverted" else mask
        first, second = norms[::-1] if self.fault == "norms" else norms
        attend, up, down = Attention(name="attention"), nn.Dense(HIDDEN, name="fc1"), nn.Dense(WIDTH, name="fc2")

        def feed(x):
            return down(jax.nn.gelu(up(x), approximate=self.fault == "gelu"))

        if self.pre:
            x = x + attend(first(x), mask)
            return x + feed(second(x))
        x = first(x + attend(x, mask))
        return second(x + feed(x))


class Scanned(Block):
    @nn.compact
    def __call__(self, x, mask):
        return Block(self.pre, self.fault, name="block")(x, mask), None


class Port(nn.Module):
    pre: bool = True
    fault: str = ""
    scanned: bool = False
    again: bool = False
    """Whether the scanned layers are rematerialised."""
    faults: tuple[str, str] = ("", "")
    """Of each block, beside that of all."""

    @nn.compact
    def __call__(self, ids, mask):
        positions = jnp.arange(ids.shape[1]) + (self.fault == "positions")
        x = nn.Embed(VOCABULARY, WIDTH, name="wte")(ids) + nn.Embed(LONGEST, WIDTH, name="wpe")(positions)
        causal = jnp.tril(jnp.ones((ids.shape[1],) * 2, bool), -1 if self.fault == "strict" else 0)
        keys = jnp.ones_like(mask) if self.fault == "padding" else mask
        allowed = keys[:, None, None, :].astype(bool) & (causal | (self.fault == "future"))
        if self.scanned:
            scan = nn.scan(
                nn.remat(Scanned) if self.again else Scanned,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                in_axes=nn.broadcast,
                length=2,
            )
            x, _ = scan(self.pre, self.fault, name="layers")(x, allowed)
        else:
            for i, own in enumerate(self.faults):
                x = Block(self.pre, self.fault or own, name=f"h_{i}")(x, allowed)
        return nn.Dense(VOCABULARY, name="lm")(nn.LayerNorm(epsilon=1e-5, name="ln_f")(x))


def parameters_of(model: Any, *, scanned: bool = False) -> dict[str, Any]:
    """The original's parameters as the port has them; those of scanned layers are stacked."""
    own = {name: np.asarray(array.detach()) for name, array in model.state_dict().items()}

    def dense(name):
        return {"kernel": own[f"{name}.weight"].T, "bias": own[f"{name}.bias"]}

    def norm(name):
        return {"scale": own[f"{name}.weight"], "bias": own[f"{name}.bias"]}

    layers = [
        {
            "attention": {long: dense(f"{at}.attn.{long[0]}") for long in ("query", "key", "value", "out")},
            "ln1": norm(f"{at}.n1"),
            "ln2": norm(f"{at}.n2"),
            "fc1": dense(f"{at}.up"),
            "fc2": dense(f"{at}.down"),
        }
        for at in ("blocks.0", "blocks.1")
    ]
    words, places = ({"embedding": own[f"{name}.weight"]} for name in ("tok", "pos"))
    found = {"wte": words, "wpe": places, "ln_f": norm("norm"), "lm": dense("head")}
    if scanned:
        found["layers"] = {"block": jax.tree.map(lambda *each: np.stack(each), *layers)}
    else:
        found |= {f"h_{i}": layer for i, layer in enumerate(layers)}
    return jax.tree.map(jnp.asarray, found)


def given() -> list[Any]:
    return [jnp.asarray(array) for array in batch().values()]
