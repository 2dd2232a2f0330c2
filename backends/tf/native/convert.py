"""Keras's own attention layers, and d2l.ai's, to canonical weights and back, bit for bit.

`to_native(config, weights, "keras")` makes the layer, `from_native(layer)` reads one. How such a layer names
and shapes its parameters stands in `mha_core.layouts`, not here.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf
from numpy.typing import NDArray

from backends.tf.native import live_probe
from backends.tf.native.d2l import D2lMultiHeadAttention
from backends.tf.ops.framework import random_state_kept, to_numpy
from mha_core import AttentionConfig, SpecError, check_weights, layouts
from mha_core.layouts import Layout
from mha_core.subject import one_width
from mha_core.weights import Weights, common_dtype

LAYOUT_OF: dict[type[keras.Layer], str] = {
    keras.layers.MultiHeadAttention: "keras",
    keras.layers.GroupQueryAttention: "keras-gqa",
    D2lMultiHeadAttention: "d2l-tf",
}
"""Kind of layer -> its layout."""


def to_native(
    config: AttentionConfig,
    weights: Mapping[str, NDArray],
    layout: str = "keras",
    *,
    dtype: str | tf.DType | None = None,
    **options: Any,
) -> keras.Layer:
    """Return a built layer of Keras or d2l.ai with copies of these weights. Python's random state does not change.

    Keras's layers take (query, value, key) in this order: pass them by name.

    Args:
        config, weights: see `mha_core.AttentionConfig` and `mha_core.check_weights`. A layer that has one
            switch for all biases gets zeros for those that the config does not have.
        layout: "keras" for keras.layers.MultiHeadAttention, "keras-gqa" for
            keras.layers.GroupQueryAttention, "d2l-tf" for d2l.ai's layer.
        dtype: the dtype of the layer, as in every Keras layer. Default: the dtype of the arrays.
        options: further arguments of the layer's constructor, such as `sliding_window` and `name`.

    Raises:
        SpecError: the layer can't hold these weights, or `layout` is unknown.

    >>> from mha_core import AttentionConfig, init_weights
    >>> config = AttentionConfig(6, 2, key_dim=5, head_dim=4, value_head_dim=7)
    >>> layer = to_native(config, init_weights(config, seed=0))
    >>> layer.key_dim, layer.value_dim, tuple(layer.key_dense.kernel.shape)
    (4, 7, (5, 2, 4))
    """
    if layout not in MAKERS:
        raise SpecError(f"layout {layout!r} is of no layer in Keras (there are: {', '.join(MAKERS)})")
    checked = check_weights(config, weights)
    arrays = layouts.get(layout).write(config, checked)
    dtype = common_dtype(checked) if dtype is None else dtype
    use_bias = any(name.endswith("/bias") for name in arrays)
    queries, keys, values = ((None, None, width) for width in (config.query_dim, config.key_dim, config.value_dim))
    with random_state_kept(salt=zlib.crc32(checked["q_proj.weight"].tobytes())):
        layer = MAKERS[layout](config, use_bias, {"dtype": dtype, **options})
        layer.build(*((queries, keys, values) if layout == "d2l-tf" else (queries, values, keys)))
    for name, variable in variables(layer).items():
        variable.assign(tf.cast(tf.constant(arrays[name]), variable.dtype))
    return layer


def from_native(layer: keras.Layer, *, probe: bool = True) -> tuple[AttentionConfig, Weights]:
    """Return a layer's config, and its weights by canonical name, such as "q_proj.weight".

    The weights are read-only copies in the layer's dtype. bfloat16 parameters come out as float32, which holds each of
    them exactly. Besides sizes, the config has numbers of heads and `dropout`. For a sliding window, see `window_of`.

    Args:
        layer: a built MultiHeadAttention or GroupQueryAttention of Keras, or a built d2l.ai layer.
        probe: whether to check, by a few small calls in its own dtype, that the layer computes what its weights say. A
            subclass, a replaced `call` or an adapter (LoRA) can change that. The layer is left as it was.

    Raises:
        SpecError: the layer is of another class or not built; it has a gate, flash attention or several attention
            axes; a parameter is not finite; or the check finds a difference or can't run (in a tf.function).

    >>> layer = keras.layers.MultiHeadAttention(2, 3, dropout=0.25)
    >>> _ = layer(tf.zeros((1, 4, 6)), tf.zeros((1, 5, 7)))
    >>> config, weights = from_native(layer)
    >>> config.num_heads, config.dropout, config.key_dim, weights["k_proj.weight"].shape
    (2, 0.25, 7, (6, 7))
    """
    layout = layout_of(layer)
    arrays = {name: to_numpy(variable) for name, variable in variables(layer).items()}
    if not arrays:
        raise SpecError(f"{type(layer).__name__} {layer.name!r} has no parameters yet: build it or call it once")
    config, weights = layout.read(arrays, num_heads=_heads_of(layer))
    config = replace(config, dropout=_dropout_of(layer))
    if probe and isinstance(layer, D2lMultiHeadAttention):
        live_probe.check_d2l(layer, config, weights)
    elif probe:
        live_probe.check_keras(layer, config, weights, window_of(layer))
    return config, weights


def layout_of(layer: keras.Layer) -> Layout:
    """Return the Layout (names and shapes of the parameters) of a layer. SpecError for a layer that can't be read.

    >>> layout_of(keras.layers.MultiHeadAttention(2, 3)).name
    'keras'
    >>> layout_of(keras.layers.MultiHeadAttention(2, 3, use_gate=True))
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: this MultiHeadAttention has use_gate=True: a factor on the heads, \
which the definition does not have
    """
    name = type(layer).__name__
    kind = next((kind for kind in LAYOUT_OF if isinstance(layer, kind)), None)
    if kind is None:
        known = ", ".join(known.__name__ for known in LAYOUT_OF)
        raise SpecError(f"{name} is no layer that can be read here (there are: {known})")
    if getattr(layer, "use_gate", False) or getattr(layer, "_use_gate", False):
        raise SpecError(f"this {name} has use_gate=True: a factor on the heads, which the definition does not have")
    if getattr(layer, "_flash_attention", False):
        raise SpecError(
            f"this {name} has flash_attention=True, which Keras does not have on TensorFlow: it would not run"
        )
    axes = getattr(layer, "attention_axes", None)
    if axes is not None and tuple(axes) != (1,):
        raise SpecError(
            f"this {name} has attention_axes={tuple(axes)}; the definition attends along axis 1 of (B, L, width)"
        )
    return layouts.get(LAYOUT_OF[kind])


def window_of(layer: keras.Layer) -> tuple[int, int] | None:
    """Return the layer's `sliding_window` as the `window` of an AttentionMask; None without one.

    Keras counts the query's own position; AttentionMask does not.

    >>> window_of(keras.layers.GroupQueryAttention(4, 6, 2, sliding_window=3))
    (2, 2)
    """
    width = getattr(layer, "sliding_window", None) or getattr(layer, "_sliding_window", None)
    return None if width is None else (width - 1, width - 1)


def variables(layer: keras.Layer) -> dict[str, keras.Variable]:
    """Return name -> parameter, named as in the layer's layout, such as "query/kernel"; {} if the layer isn't built."""
    return {"/".join(variable.path.split("/")[-2:]): variable for variable in layer.weights}


def _multi_head_attention(config: AttentionConfig, use_bias: bool, options: dict[str, Any]) -> keras.Layer:
    return keras.layers.MultiHeadAttention(
        config.num_heads,
        config.head_dim,
        config.value_head_dim,
        dropout=config.dropout,
        use_bias=use_bias,
        output_shape=config.output_dim,
        **options,
    )


def _group_query_attention(config: AttentionConfig, use_bias: bool, options: dict[str, Any]) -> keras.Layer:
    if config.output_dim != config.query_dim:
        raise SpecError(f"layout 'keras-gqa' needs output_dim={config.query_dim} (query_dim). Got {config.output_dim}.")
    return keras.layers.GroupQueryAttention(
        config.head_dim, config.num_heads, config.num_kv_heads, dropout=config.dropout, use_bias=use_bias, **options
    )


def _d2l_attention(config: AttentionConfig, use_bias: bool, options: dict[str, Any]) -> keras.Layer:
    hiddens = one_width("d2l.ai's layer", config)
    sizes = config.key_dim, config.query_dim, config.value_dim
    return D2lMultiHeadAttention(*sizes, hiddens, config.num_heads, config.dropout, use_bias, **options)


MAKERS: dict[str, Callable[[AttentionConfig, bool, dict[str, Any]], keras.Layer]] = {
    "keras": _multi_head_attention,
    "keras-gqa": _group_query_attention,
    "d2l-tf": _d2l_attention,
}
"""Layout -> what makes an empty layer of it."""


def _heads_of(layer: keras.Layer) -> int:
    """The number of heads, which GroupQueryAttention has under another name."""
    return getattr(layer, "num_query_heads", None) or layer.num_heads


def _dropout_of(layer: keras.Layer) -> float:
    """The dropout rate: a field of Keras's layers, that of a sublayer in d2l.ai's layer."""
    if isinstance(layer, D2lMultiHeadAttention):
        return float(layer.attention.dropout.rate)
    return float(layer.dropout)
