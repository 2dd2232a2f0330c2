"""flax.nnx.MultiHeadAttention."""

from collections.abc import Mapping
from typing import ClassVar

from mha.phrases.native import Native
from mha.phrases.natives.linen import flax_read, flax_written, one_mask
from mha.phrases.said import Calling, Held, Lack, Making, call_of


class NnxMultiHeadAttention(Native):
    """A module that holds its arrays."""

    id = "nnx"
    path = "flax.nnx.MultiHeadAttention"
    framework = "jax"
    others = ("flax.nnx", "nnx.MultiHeadAttention")
    imports = ("import jax", "import jax.numpy as jnp", "from flax import nnx")
    layers = ("backends.jax.native.subjects:Nnx*",)
    lacks: ClassVar[Mapping[str, Lack]] = {
        "added": Lack(
            "has none: mask is cast to bool. An attention_fn of your own can add a bias, as "
            "nnx.dot_product_attention does.",
            "'bias' not in names(nnx.MultiHeadAttention.__call__)",
        ),
        "grouped": Lack(
            "has none before flax 0.12.6, where num_kv_heads= came. Before it, repeat the keys' kernels of each group.",
            "('num_kv_heads' in names(nnx.MultiHeadAttention.__init__)) is not before('flax', '0.12.6')",
        ),
    }
    words: ClassVar[Mapping[str, str]] = {
        "made": "in_features is E; qkv_features is H * d where that is not E. decode=False, or the layer wants it in "
        "every call. rngs= draws the parameters there and then.",
        "called": "(B, Lq, E), (B, Lk, E) -> (B, Lq, E).",
        "padding": "mask, anything that broadcasts to (B, H, Lq, Lk): True means may attend.",
        "allowed": "The same argument: True means may attend.",
        "causal": "No switch in flax 0.12.0; 0.12.8 has is_causal=True. A mask works in both.",
        "padding-causal": "One argument has both.",
        "weights": "(B, H, Lq, Lk), before dropout: sown, and taken out with nnx.pop; from flax 0.12.6 on nnx.capture "
        "does both.",
        "mean": "Not averaged: take the mean over axis 1.",
        "dropout": "A rate of the layer, which draws from its rngs; the layer or the call must say deterministic. One "
        "draw for all items and heads unless broadcast_dropout=False.",
        "parameters": "query, key, value with kernel (E, H, d) and bias (H, d); out with (H, d, E) and (E,): "
        "variables of the module, which are set in place.",
        "state": "The module holds its arrays and its random state, and changes in place; nnx.jit carries both. "
        "jax.jit takes what nnx.split gives.",
    }
    state = (
        "attend = nnx.jit(lambda layer, *arrays: layer(*arrays, deterministic=True))",
        "output = attend(layer, queries, keys, values)",
    )

    def make(self, making: Making) -> list[str]:
        """With parameters, drawn by rngs."""
        bias = "" if making.bias else "False"
        given = {"dropout_rate": making.dropout, "use_bias": bias, "decode": "False", "rngs": "nnx.Rngs(0)"}
        return [f"layer = {call_of('nnx.MultiHeadAttention', making.heads, making.width, **given)}"]

    def call(self, making: Making, calling: Calling) -> list[str]:
        """Return lines of code that call the layer and, if weights are asked for, pop what the layer has sown."""
        lines, mask = one_mask(calling)
        given = {"mask": mask, "deterministic": str(not calling.training) if making.dropout else ""}
        given["sow_weights"] = "True" if calling.weights else ""
        lines.append(f"output = {call_of('layer', calling.queries, calling.keys, calling.values, **given)}")
        if calling.weights:
            mean = ".mean(axis=1)" if calling.weights == "mean" else ""
            lines.append("sown = nnx.to_pure_dict(nnx.pop(layer, nnx.Intermediate))")
            lines.append(f"weights = sown['attention_weights'][0]{mean}")
        return lines

    def read(self, making: Making, old: str) -> Held:
        """Out of the module's state."""
        return flax_read(making, f"nnx.to_pure_dict(nnx.state({old}, nnx.Param))")

    def write(self, making: Making, new: str) -> Held:
        """In place."""
        return flax_written(making, f"nnx.update({new}, {{", "})")
