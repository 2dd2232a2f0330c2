"""This project's own layer, in each framework."""

from collections.abc import Mapping
from typing import ClassVar

from mha.phrases.moving import CANONICAL, NAMES, names
from mha.phrases.native import Native
from mha.phrases.said import Calling, Held, Making, both, call_of, with_axes

CONFIG = "from mha_parity.core import AttentionConfig"
"""What `from_weights` needs besides."""


class Ours(Native):
    """A base class for this project's own layers. Each subclass is for the layers in one of four frameworks."""

    words: ClassVar[Mapping[str, str]] = {
        "made": "embed_dim, num_heads; biases only where asked for. Widths of inputs come from the first call, or from "
        "query_dim, key_dim, value_dim.",
        "called": "(B, Lq, E), (B, Lk, E) -> (B, Lq, E).",
        "padding": "allowed, bool, broadcast to (B, H, Lq, Lk): True means may attend. Or valid_lens (B,), after which "
        "padding may hold anything, NaN too.",
        "allowed": "The same argument: True means may attend.",
        "causal": "A switch of the call: query 0 sees key 0 alone, unless query_offset says where the queries stand.",
        "padding-causal": "Both arguments: they are combined by AND.",
        "added": "bias, broadcast to (B, H, Lq, Lk). -inf excludes.",
        "weights": "(B, H, Lq, Lk), before dropout.",
        "mean": "Not averaged: take the mean over axis 1.",
        "grouped": "num_kv_heads, a divisor of H. Query head h reads key head h // (H // G).",
        "parameters": "q_proj, k_proj, v_proj, out_proj: weight (out, in), rows head by head, and bias. to_weights and "
        "from_weights carry them, exact to the bit.",
    }
    mean: ClassVar[str] = "weights.mean(axis=1)"
    sign: ClassVar[str] = " & "

    def make(self, making: Making) -> list[str]:
        """Return the lines that make the layer, with biases if `making` has them."""
        given = {"dropout": making.dropout, "bias": "True" if making.bias else "", "num_kv_heads": making.kv_heads}
        return [f"layer = {call_of('MultiHeadAttention', making.width, making.heads, **given)}"]

    def call(self, making: Making, calling: Calling) -> list[str]:
        """With each source of a mask by its name."""
        masks = [with_axes(mask.where(attend=True), mask.axes, "bhqk") for mask in calling.masks]
        if calling.allowed and calling.allowed.axes == "qk":
            masks[-1] = calling.allowed.where(attend=True)
        added = calling.added
        given = {
            "allowed": both(masks, self.sign),
            "bias": ""
            if not added
            else added.text
            if added.axes == "qk"
            else with_axes(added.text, added.axes, "bhqk"),
            "causal": "True" if calling.causal else "",
            "return_weights": "True" if calling.weights else "",
        }
        lines = self.called(making, calling, given)
        return [*lines, f"weights = {self.mean}"] if calling.weights == "mean" else lines

    def called(self, making: Making, calling: Calling, given: dict[str, str]) -> list[str]:
        """The call in this framework's way."""
        called = call_of("layer", calling.queries, calling.keys, calling.values, **given)
        return [f"{_outcome(calling)} = {called}"]

    def read(self, making: Making, old: str) -> Held:
        """By their canonical names."""
        have = names(making)
        quoted = ", ".join(f"'{NAMES[name]}'" for name in have)
        return Held(
            (f"held = to_weights({old})", f"{', '.join(have)} = (held[name] for name in ({quoted}))"), CANONICAL
        )

    def write(self, making: Making, new: str) -> Held:
        """A new layer with them."""
        given = {"num_kv_heads": making.kv_heads, "bias": "True" if making.bias else "", "dropout": making.dropout}
        config = call_of("AttentionConfig", making.width, making.heads, **given)
        pairs = [f"'{NAMES[name]}': {name}" for name in names(making)]
        half = (len(pairs) + 1) // 2
        lines = [
            f"{self.takes(new)} = from_weights({config}, {{",
            f"    {', '.join(pairs[:half])},",
            f"    {', '.join(pairs[half:])},",
            "})",
        ]
        return Held(tuple(lines), CANONICAL)

    def takes(self, new: str) -> str:
        """The variables that `from_weights` gives."""
        return new


def _outcome(calling: Calling) -> str:
    return "output, weights" if calling.weights else "output"


class OursTorch(Ours):
    """In PyTorch."""

    id = "ours-torch"
    path = "backends.torch.MultiHeadAttention"
    framework = "torch"
    imports = (
        "import torch",
        "from mha_parity.backends.torch import MultiHeadAttention, from_weights, to_weights",
        CONFIG,
    )
    mean = "weights.mean(dim=1)"
    words: ClassVar[Mapping[str, str]] = {
        **Ours.words,
        "dropout": "A rate of the layer, which acts in train() and not in eval().",
        "state": "A torch.nn.Module: torch.manual_seed seeds parameters and dropout; torch.compile takes it.",
    }
    state = ("output = torch.compile(layer.eval(), backend='eager')(queries, keys, values)",)

    def called(self, making: Making, calling: Calling, given: dict[str, str]) -> list[str]:
        mode = ["layer.train()" if calling.training else "layer.eval()"] if making.dropout else []
        return [*mode, *super().called(making, calling, given)]


class OursKeras(Ours):
    """In TensorFlow."""

    id = "ours-tf"
    path = "backends.tf.MultiHeadAttention"
    framework = "tf"
    imports = (
        "import tensorflow as tf",
        "from mha_parity.backends.tf import MultiHeadAttention, from_weights, to_weights",
        CONFIG,
    )
    mean = "tf.reduce_mean(weights, axis=1)"
    words: ClassVar[Mapping[str, str]] = {
        **Ours.words,
        "dropout": "A rate of the layer, which acts where the call says training=True, and in fit.",
        "state": "A keras.Layer: keras.utils.set_random_seed seeds parameters and dropout; tf.function compiles it.",
    }
    state = ("output = tf.function(layer)(queries, keys, values)",)

    def called(self, making: Making, calling: Calling, given: dict[str, str]) -> list[str]:
        return super().called(making, calling, {**given, "training": str(calling.training) if making.dropout else ""})


class OursJax(Ours):
    """In JAX."""

    id = "ours-jax"
    path = "backends.jax.MultiHeadAttention"
    framework = "jax"
    imports = ("import jax", "from mha_parity.backends.jax import MultiHeadAttention, from_weights, to_weights", CONFIG)
    holder = "variables"
    words: ClassVar[Mapping[str, str]] = {
        **Ours.words,
        "dropout": "A rate of the module; it acts where the call says deterministic=False and brings a key.",
        "state": "A linen module: init gives the variables, apply takes them, nothing is changed in place; jax.jit "
        "compiles apply.",
    }
    state = ("output = jax.jit(layer.apply)(variables, queries, keys, values)",)

    def make(self, making: Making) -> list[str]:
        return [*super().make(making), "variables = layer.init(jax.random.key(0), queries, keys, values)"]

    def called(self, making: Making, calling: Calling, given: dict[str, str]) -> list[str]:
        if making.dropout:
            given["deterministic"] = str(not calling.training)
            given["rngs"] = "{'dropout': jax.random.key(1)}" if calling.training else ""
        called = call_of("layer.apply", "variables", calling.queries, calling.keys, calling.values, **given)
        return [f"{_outcome(calling)} = {called}"]

    def takes(self, new: str) -> str:
        return f"layer, {new}"


class OursMxnet(Ours):
    """In MXNet."""

    id = "ours-mxnet"
    path = "backends.mxnet.MultiHeadAttention"
    framework = "mxnet"
    imports = (
        "from mha_parity.backends.mxnet import MultiHeadAttention, from_weights, to_weights",
        "import mxnet as mx",
        CONFIG,
    )
    sign = " * "
    words: ClassVar[Mapping[str, str]] = {
        **Ours.words,
        "allowed": "The same argument: True means may attend. MXNet has no & of bool arrays; * does it.",
        "dropout": "A rate of the block, which acts within autograd.record() and not outside.",
        "state": "A Gluon block: initialize makes the parameters, mx.random.seed seeds them and dropout.",
    }
    state = ("output = layer(queries, keys, values)",)

    def make(self, making: Making) -> list[str]:
        return [*super().make(making), "layer.initialize()"]

    def called(self, making: Making, calling: Calling, given: dict[str, str]) -> list[str]:
        lines = super().called(making, calling, given)
        if making.dropout and calling.training:
            return ["with mx.autograd.record():", *(f"    {line}" for line in lines)]
        return lines
