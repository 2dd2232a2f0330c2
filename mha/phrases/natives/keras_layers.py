"""keras.layers.MultiHeadAttention and GroupQueryAttention, which are called alike."""

from collections.abc import Mapping
from typing import ClassVar

from mha.phrases.moving import names
from mha.phrases.native import Native
from mha.phrases.said import Calling, Held, Lack, Making, both, call_of, with_axes

AXES: Mapping[str, str] = {
    **{"q": "i h d", "k": "i g d", "v": "i g d", "o": "h d o"},
    **{"q_bias": "h d", "k_bias": "g d", "v_bias": "g d", "o_bias": "o"},
}
"""Kernels with an axis for the heads, as Flax has them too."""


class KerasAttention(Native):
    """Base of the two."""

    framework = "tf"
    imports = ("import keras",)
    lacks: ClassVar[Mapping[str, Lack]] = {
        "added": Lack(
            "has none: attention_mask is cast to bool, so that 0 means ignore and -1e9 attend. The bias is an "
            "argument of keras.ops.dot_product_attention.",
            "not {'bias', 'attention_bias'} & names(keras.layers.MultiHeadAttention.call)",
        )
    }
    words: ClassVar[Mapping[str, str]] = {
        "called": "(B, Lq, E), (B, Lk, E) -> (B, Lq, E). By position the order is query, value, key: name them.",
        "padding": "attention_mask (B, Lq, Lk), broadcast: True means may attend.",
        "allowed": "attention_mask (B, Lq, Lk), the same for all heads: True means may attend.",
        "causal": "A switch of the call: query 0 sees key 0 alone, also where there are more keys than queries.",
        "padding-causal": "Both arguments: they are combined by AND.",
        "weights": "(B, H, Lq, Lk), before dropout. Asking for them leaves the fused path.",
        "mean": "Not averaged: take the mean over axis 1.",
        "dropout": "A rate of the layer, which acts where the call says training=True, and in fit.",
        "parameters": "Kernels (E, H, d) and biases (H, d); attention_output (H, d, E) and (E,). get_weights() has "
        "them in the order query, key, value, attention_output, each kernel before its bias.",
        "state": "The layer holds its variables, made by build or the first call. seed= or keras.utils.set_random_seed "
        "seeds them and dropout.",
    }
    state = (
        "import tensorflow as tf",
        "compiled = tf.function(layer)",
        "output = compiled(queries, value=values, key=keys, training=False)",
    )

    def call(self, making: Making, calling: Calling) -> list[str]:
        """With named arrays."""
        axes = "bhqk" if any("h" in mask.axes for mask in calling.masks) else "bqk"
        masks = [with_axes(mask.where(attend=True), mask.axes, axes) for mask in calling.masks]
        given = {"attention_mask": both(masks), "use_causal_mask": "True" if calling.causal else ""}
        given["return_attention_scores"] = "True" if calling.weights else ""
        given["training"] = str(calling.training) if making.dropout else ""
        called = call_of("layer", calling.queries, value=calling.values, key=calling.keys, **given)
        if not calling.weights:
            return [f"output = {called}"]
        mean = ["weights = keras.ops.mean(weights, axis=1)"] if calling.weights == "mean" else []
        return [f"output, weights = {called}", *mean]

    def read(self, making: Making, old: str) -> Held:
        """In the order of get_weights."""
        return Held((f"{', '.join(in_order(making))} = {old}.get_weights()",), AXES)

    def write(self, making: Making, new: str) -> Held:
        """A layer without variables gets them by build."""
        width = f"(None, None, {making.width})"
        built = f"{new}.built or {new}.build({width}, {width}, {width})"
        return Held((built, f"{new}.set_weights([{', '.join(in_order(making))}])"), AXES)


def in_order(making: Making) -> list[str]:
    """Each kernel before its bias."""
    have = names(making)
    return [name for kernel in "qkvo" for name in (kernel, f"{kernel}_bias") if name in have]


class KerasMultiHeadAttention(KerasAttention):
    """As many heads of keys as of queries."""

    id = "keras-mha"
    path = "keras.layers.MultiHeadAttention"
    others = ("keras", "tf", "tensorflow", "tf.keras.layers.MultiHeadAttention")
    layers = ("backends.tf.native.subjects:MultiHeadAttention*",)
    lacks: ClassVar[Mapping[str, Lack]] = {
        **KerasAttention.lacks,
        "grouped": Lack(
            "has none: keras.layers.GroupQueryAttention has.",
            "not {'num_key_value_heads', 'num_kv_heads'} & names(keras.layers.MultiHeadAttention)",
        ),
    }
    words: ClassVar[Mapping[str, str]] = {
        **KerasAttention.words,
        "made": "key_dim is the width of ONE head, d = E // H, not E. Widths of input and output come from the arrays.",
    }

    def make(self, making: Making) -> list[str]:
        """Without variables yet."""
        bias = "" if making.bias else "False"
        made = call_of(self.path, making.heads, key_dim=making.head_width, dropout=making.dropout, use_bias=bias)
        return [f"layer = {made}"]


class KerasGroupQueryAttention(KerasAttention):
    """Fewer heads of keys than of queries."""

    id = "keras-gqa"
    path = "keras.layers.GroupQueryAttention"
    others = ("keras.layers.GroupedQueryAttention", "gqa")
    layers = ("backends.tf.native.subjects:GroupQueryAttention*",)
    words: ClassVar[Mapping[str, str]] = {
        **KerasAttention.words,
        "made": "head_dim first, then the heads of queries, then those of keys and values: a divisor of H.",
        "grouped": "The third argument. Query head h reads key head h // (H // G).",
    }

    def make(self, making: Making) -> list[str]:
        """Without variables yet."""
        bias = "" if making.bias else "False"
        sizes = making.head_width, making.heads, making.groups
        return [f"layer = {call_of(self.path, *sizes, dropout=making.dropout, use_bias=bias)}"]
