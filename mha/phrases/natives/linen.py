"""flax.linen.MultiHeadDotProductAttention."""

from collections.abc import Mapping
from typing import ClassVar

from mha.phrases.native import Native
from mha.phrases.natives.keras_layers import AXES
from mha.phrases.said import Calling, Held, Lack, Making, atom, both, call_of, with_axes

AS_NN = ("nn.MultiHeadDotProductAttention", "nn.MultiHeadAttention")
"""Its names where `nn` is flax.linen, as everybody imports it."""


class LinenMultiHeadDotProductAttention(Native):
    """A Native (a framework's attention): linen's module, whose parameters are not in the module but in a dict."""

    id = "linen"
    path = "flax.linen.MultiHeadDotProductAttention"
    framework = "jax"
    others = ("flax", "flax.linen", "jax", "flax.linen.MultiHeadAttention", *AS_NN)
    imports = ("import flax.linen as nn", "import jax", "import jax.numpy as jnp")
    holder = "variables"
    layers = ("backends.jax.native.subjects:LinenMultiHead*", "backends.jax.native.subjects:LinenDotProduct*")
    lacks: ClassVar[Mapping[str, Lack]] = {
        "added": Lack(
            "has none: mask is read by truth. An attention_fn of your own can add a bias, as "
            "nn.dot_product_attention does.",
            "'bias' not in names(nn.MultiHeadDotProductAttention.__call__)",
        ),
        "grouped": Lack(
            "has none: repeat the keys' kernels of each group, or call jax.nn.dot_product_attention.",
            "not {'num_kv_heads', 'num_key_value_heads'} & names(nn.MultiHeadDotProductAttention)",
        ),
    }
    words: ClassVar[Mapping[str, str]] = {
        "made": "The widths come from the arrays that init is given; qkv_features is H * d where that is not E. "
        "MultiHeadAttention is a subclass of it with the same call.",
        "called": "(B, Lq, E), (B, Lk, E) -> (B, Lq, E).",
        "padding": "mask, anything that broadcasts to (B, H, Lq, Lk): True means may attend.",
        "allowed": "The same argument: True means may attend.",
        "causal": "There is no switch: nn.make_causal_mask makes a square one.",
        "padding-causal": "One argument has both.",
        "weights": "(B, H, Lq, Lk), before dropout: sown among the intermediates, in a tuple.",
        "mean": "Not averaged: take the mean over axis 1.",
        "dropout": "A rate of the module; the call says deterministic, and then brings a key. One draw for all items "
        "and heads unless broadcast_dropout=False.",
        "parameters": "params: query, key, value with kernel (E, H, d) and bias (H, d); out with (H, d, E) and (E,).",
        "state": "The module holds nothing: init gives the variables, apply takes them, and nothing is changed in "
        "place. Each draw has a key.",
    }
    state = ("output = jax.jit(layer.apply)(variables, queries, keys, values)",)

    def make(self, making: Making) -> list[str]:
        """The module, and its variables."""
        bias = "" if making.bias else "False"
        inner = call_of(
            "nn.MultiHeadDotProductAttention", num_heads=making.heads, dropout_rate=making.dropout, use_bias=bias
        )
        given = ", deterministic=True" if making.dropout else ""
        return [
            f"layer = {inner}",
            f"variables = layer.init(jax.random.key(0), queries, keys, values{given})",
        ]

    def call(self, making: Making, calling: Calling) -> list[str]:
        """By apply."""
        lines, mask = one_mask(calling)
        given = {"mask": mask}
        if making.dropout:
            given["deterministic"] = str(not calling.training)
            given["rngs"] = "{'dropout': jax.random.key(1)}" if calling.training else ""
        if calling.weights:
            given |= {"sow_weights": "True", "mutable": "['intermediates']"}
        called = call_of("layer.apply", "variables", calling.queries, calling.keys, calling.values, **given)
        if not calling.weights:
            return [*lines, f"output = {called}"]
        sown = "sown['intermediates']['attention_weights'][0]"
        mean = ".mean(axis=1)" if calling.weights == "mean" else ""
        return [*lines, f"output, sown = {called}", f"weights = {sown}{mean}"]

    def read(self, making: Making, old: str) -> Held:
        """Out of the variables."""
        return flax_read(making, f"{old}['params']")

    def write(self, making: Making, new: str) -> Held:
        """New variables."""
        return flax_written(making, f"{new} = {{'params': {{", "}}")


def one_mask(calling: Calling) -> tuple[list[str], str]:
    """Return (lines of code for the causal mask, if the call has one; an expression for all masks together, 4-D)."""
    masks = [with_axes(mask.where(attend=True), mask.axes, "bhqk") for mask in calling.masks]
    lines = []
    if calling.causal:
        queries, keys = atom(calling.queries), atom(calling.keys)
        lines.append(f"no_later_keys = jnp.tri({queries}.shape[1], {keys}.shape[1], dtype=bool)")
        masks.append("no_later_keys[None, None]")
    return lines, both(masks)


PARTS = ("query", "key", "value", "out")
"""The names of the projections in either Flax layer."""


def flax_read(making: Making, params: str) -> Held:
    """Return code that reads arrays from a dict with projection names as keys. `params`: the code of the dict."""
    lines = [f"params = {params}", f"q, k, v, o = (np.asarray(params[part]['kernel']) for part in {PARTS})"]
    if making.bias:
        lines.append(f"q_bias, k_bias, v_bias, o_bias = (np.asarray(params[part]['bias']) for part in {PARTS})")
    return Held(tuple(lines), AXES)


def flax_written(making: Making, begin: str, end: str) -> Held:
    """Return code that writes the arrays into a dict: projection -> arrays. `begin`, `end`: the first and last line."""
    rows = []
    for name, part in zip("qkvo", PARTS, strict=True):
        bias = f", 'bias': jnp.asarray({name}_bias)" if making.bias else ""
        rows.append(f"    '{part}': {{'kernel': jnp.asarray({name}){bias}}},")
    return Held((begin, *rows, end), AXES)
