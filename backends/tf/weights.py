"""Canonical weights into Keras layers and out of them, exact to the bit."""

import zlib
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf
from numpy.typing import NDArray

from backends.tf.layers import MultiHeadAttention
from backends.tf.ops.framework import random_state_kept, to_numpy
from backends.tf.ops.scores import AdditiveScore
from mha_core.config import PROJECTIONS, AttentionConfig
from mha_core.parts.query_key_norm import NORMS
from mha_core.weights import Weights, check_weights, common_dtype


def from_weights(
    config: AttentionConfig, weights: Mapping[str, NDArray], *, dtype: str | tf.DType | None = None
) -> MultiHeadAttention:
    """Return a built layer with copies of these weights. Python's random state does not change.

    Args:
        config, weights: see `mha_core.AttentionConfig` and `mha_core.check_weights`.
        dtype: the dtype of the layer, as in every Keras layer. Default: the dtype of the arrays.

    Raises:
        SpecError: the weights do not fit the config; or no dtype is given and the arrays have several.

    >>> from mha_core import AttentionConfig, init_weights
    >>> config = AttentionConfig(6, 2)
    >>> weights = init_weights(config, seed=0)
    >>> layer = from_weights(config, weights)
    >>> all((to_weights(layer)[name] == weights[name]).all() for name in weights)
    True
    """
    checked = check_weights(config, weights)
    dtype = common_dtype(checked) if dtype is None else dtype
    with random_state_kept(salt=zlib.crc32(b"".join(array.tobytes() for array in checked.values()))):
        layer = MultiHeadAttention(**config.to_dict(), dtype=dtype)
        _build(layer)
    assign(layer, checked)
    return layer


def assign(layer: MultiHeadAttention, weights: Mapping[str, NDArray]) -> None:
    """Write weights that fit its config into a built layer."""
    for name, variable in variables(layer).items():
        variable.assign(tf.cast(_transposed(name, tf.constant(weights[name])), variable.dtype))


def to_weights(layer: MultiHeadAttention) -> Weights:
    """Return name -> weight of a layer, as read-only NumPy copies. Names are canonical, such as "q_proj.weight".

    bfloat16 parameters come out as float32, which holds each of them exactly.

    Raises:
        SpecError: the input widths are not known yet, or a parameter is not finite.
    """
    return check_weights(layer.config, canonical(dict(variables(layer))))


def variables(layer: MultiHeadAttention) -> dict[str, keras.Variable]:
    """Return name -> Keras variable. Names are canonical, such as "q_proj.weight". SpecError if widths are unknown."""
    config = layer.config
    if not layer.built:
        _build(layer)
    projections = {name: getattr(layer, name) for name in PROJECTIONS if config.projections}
    score = layer.score
    if isinstance(score, AdditiveScore):
        projections |= {"score.query": score.query, "score.key": score.key}
    found = {}
    for name, dense in projections.items():
        found[f"{name}.weight"] = dense.kernel
        if dense.use_bias:
            found[f"{name}.bias"] = dense.bias
    for name in NORMS if config.query_key_norm is not None else ():
        norm = getattr(layer, name)
        found |= {f"{name}.weight": norm.weight, f"{name}.bias": norm.bias}
    if isinstance(score, AdditiveScore):
        found["score.vector"] = score.vector
    return {name: variable for name, variable in found.items() if variable is not None}


def canonical(arrays: Mapping[str, Any]) -> dict[str, NDArray]:
    """Return canonical name -> NumPy array of canonical shape, for a dict of variables or of their gradients."""
    return {name: to_numpy(_transposed(name, tf.convert_to_tensor(array))) for name, array in arrays.items()}


def _build(layer: MultiHeadAttention) -> None:
    """Make the parameters of a layer whose widths are known."""
    config = layer.config
    layer.build(*((None, None, width) for width in (config.query_dim, config.key_dim, config.value_dim)))


def _transposed(name: str, tensor: tf.Tensor) -> tf.Tensor:
    """A Dense kernel is (in, out) and a canonical weight (out, in); biases and the vector have one axis."""
    return tf.transpose(tensor) if name.endswith(".weight") else tensor
