"""Probes: what Keras's own layers do otherwise than the definition, where no case of the suite can show it.

Those of a softmax by itself are in `tests.backends.tf.softmax_probes`.

Each probe is called without arguments and does the thing on the installed version. It returns what was
seen, in a sentence with its numbers, or None if it does not happen (any more).
"""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from backends.tf.native.convert import to_native
from backends.tf.native.d2l import masked_softmax
from backends.tf.ops.framework import random_state_kept
from mha_core.config import AttentionConfig
from mha_core.weights import init_weights

B, H, LQ, LK, D = 2, 2, 3, 5, 4
"""Sizes of the probes: B = H on purpose, where a mask of three axes can be read in two ways."""

# What the arguments of a call mean ---------------------------------------------------------------------------


def positional_call() -> str | None:
    """`layer(q, k, v)` is taken as (query, value, key)."""
    layer = _layer()
    queries, keys, values = _inputs()
    positional = layer(queries, keys, values)
    if _far(positional, layer(queries, values, key=keys)) == 0.0:
        return None
    meant = layer(query=queries, value=keys, key=values)
    return (
        f"layer(q, k, v) is {_far(positional, layer(queries, values, key=keys)):.3g} away from "
        f"layer(query=q, key=k, value=v), and {_far(positional, meant):.3g} from layer(query=q, value=k, key=v)"
    )


def additive_mask() -> str | None:
    """An additive mask, 0 where open and -1e9 elsewhere, is cast to bool, and so taken for its opposite."""
    layer, allowed = _layer(), _allowed()
    queries, keys, values = _inputs()
    additive = np.where(allowed, 0.0, -1e9).astype("float32")
    given = layer(queries, values, keys, attention_mask=additive)
    opposite = layer(queries, values, keys, attention_mask=~allowed)
    meant = layer(queries, values, keys, attention_mask=allowed)
    if _far(given, opposite) > 0.0:
        return None
    return (
        f"attention_mask of 0 and -1e9 gives, to the bit, what the inverted mask gives, {_far(given, meant):.3g} "
        "away from what it means"
    )


def mask_of_three_axes() -> str | None:
    """A mask (2, Lq, Lk) on 2 items and 2 heads is read as one per item, not as one per head."""
    layer, allowed = _layer(), _allowed()
    queries, keys, values = _inputs()
    given = layer(queries, values, keys, attention_mask=allowed)
    per_item = layer(queries, values, keys, attention_mask=allowed[:, np.newaxis])
    per_head = layer(queries, values, keys, attention_mask=np.tile(allowed[np.newaxis], (B, 1, 1, 1)))
    if _far(given, per_item) > 0.0:
        return None
    return (
        f"attention_mask (2, {LQ}, {LK}) on 2 items and 2 heads is one mask per item; read per head, as NumPy "
        f"broadcasts, it would be {_far(given, per_head):.3g} away"
    )


def query_mask_argument() -> str | None:
    """MultiHeadAttention ignores `query_mask`; GroupQueryAttention obeys it."""
    queries, keys, values = _inputs()
    mask = tf.constant([[True, False, False]] * B)
    moved = [
        _far(layer(queries, values, keys, query_mask=mask), layer(queries, values, keys))
        for layer in (_layer(), _layer("keras-gqa"))
    ]
    if moved[0] > 0.0:
        return None
    return f"query_mask moves the output by {moved[0]:.3g} in MultiHeadAttention and by {moved[1]:.3g} in the grouped"


def embedding_mask() -> str | None:
    """The mask of an Embedding(mask_zero=True) on the queries empties whole rows, which then average the values."""
    layer = _layer()
    with random_state_kept(salt=0):
        embedding = keras.layers.Embedding(LK, H * D, mask_zero=True, weights=[_normal(4, LK, H * D)])
    x = embedding(tf.constant([[1, 2, 0]]))
    output = layer(x, x)
    average = layer.output_dense(tf.reduce_mean(layer.value_dense(x), axis=1, keepdims=True))
    alone = layer(tf.identity(x.numpy()), x)  # the same queries without their mask
    distance = _far(output[:, 2:], average)
    if distance > 1e-5:
        return None
    return (
        f"the row of a padded query is the average of all values, the padded one among them, to {distance:.1g}; "
        f"without the mask on the queries it is {_far(output[:, 2], alone[:, 2]):.3g} away from that"
    )


def mask_taken_off() -> str | None:
    """A second layer on the tensor of an Embedding(mask_zero=True) attends to padding; alone it does not."""
    first, second = _layer(), _layer()
    with random_state_kept(salt=0):
        embedding = keras.layers.Embedding(LK, H * D, mask_zero=True, weights=[_normal(4, LK, H * D)])
    words = tf.constant([[1, 2, 0]])
    x = embedding(words)
    first(x, x)
    _, shared = second(x, x, return_attention_scores=True)
    x = embedding(words)
    _, alone = second(x, x, return_attention_scores=True)
    if _size(shared[:, :, 0, 2]) == 0.0 or _size(alone[:, :, 0, 2]) > 0.0:
        return None
    return f"after another layer the padded key has a weight of {_size(shared[:, :, 0, 2]):.3g}, without one 0"


def sliding_window() -> str | None:
    """`sliding_window=w` reaches w - 1 keys back, because it counts the query's own."""
    layer = _layer(sliding_window=2)
    queries, keys, values = _inputs()
    _, weights = layer(queries, values, keys, return_attention_scores=True, use_causal_mask=True)
    reach = int(np.count_nonzero(weights[0, 0, LQ - 1])) - 1
    return None if reach == 2 else f"sliding_window=2 with a causal mask reaches {reach} key back, not 2"


# Empty rows and fills ----------------------------------------------------------------------------------------


def inactive_dropout() -> str | None:
    """A dropout rate that does not act changes what a row without keys gives."""
    queries, keys, values = _inputs()
    allowed = _allowed()
    allowed[1, 2] = False
    plain, dropping = (
        layer(queries, values, keys, attention_mask=allowed, training=False)[1, 2]
        for layer in (_layer(), _layer(dropout=0.1))
    )
    if _far(plain, dropping) < 1e-6:
        return None
    return (
        f"outside training, a row without keys gives {_span(plain)} with dropout=0 and {_span(dropping)} with "
        "dropout=0.1 and the same weights"
    )


def d2l_fill() -> str | None:
    """It writes -1e6: an open score below that loses to a masked key."""
    weights = masked_softmax(tf.constant([[[-2e6, 1.0]]]), tf.constant([1])).numpy()[0, 0]
    if weights[0] == 1.0:
        return None
    return f"with the score -2e6 the only open key gets the weight {weights[0]:g} and the masked one {weights[1]:g}"


def d2l_fill_in_float16() -> str | None:
    """In float16 d2l.ai's -1e6 is minus infinity, and a row without keys NaN instead of uniform."""
    rows = [
        masked_softmax(tf.zeros((1, 1, LK), dtype), tf.constant([0])).numpy()[0, 0] for dtype in ("float16", "float32")
    ]
    if not np.isnan(rows[0]).all():
        return None
    return f"a row without keys is {rows[0][0]} in float16 and {rows[1][0]:g} everywhere in float32"


# Dtypes --------------------------------------------------------------------------------------------------------


def inputs_are_cast() -> str | None:
    """A layer of float32 takes float64 inputs and gives float32, in silence."""
    layer = _layer()
    queries, _, values = (tf.cast(x, tf.float64) for x in _inputs())
    output = layer(queries, values)
    return None if output.dtype == tf.float64 else f"float64 inputs give a {output.dtype.name} output, without a word"


def scale_in_float32() -> str | None:
    """keras.ops.dot_product_attention rounds its scale to float32, given as a number or left out."""
    heads, exact = _heads("float64"), 1.0 / math.sqrt(11.0)
    wanted = keras.ops.dot_product_attention(*heads, scale=tf.constant(exact, tf.float64))
    off = [
        _far(keras.ops.dot_product_attention(*heads, scale=scale), wanted) / _size(wanted) for scale in (None, exact)
    ]
    if max(off) < 1e-12:
        return None
    return (
        f"in float64 with 11-wide heads the output is off by {off[0]:.1g} of its size without a scale, and by "
        f"{off[1]:.1g} with the Python number 1 / sqrt(11); a float64 tensor is taken as it is"
    )


def float16_product() -> str | None:
    """The fused path in float16 multiplies queries and keys before it scales: what would fit overflows."""
    config = AttentionConfig(64, 1)
    weights = {name: np.eye(64) for name in init_weights(config, seed=0)}
    layer = to_native(config, weights, dtype="float16")
    x = tf.fill((1, 2, 64), tf.constant(40.0, tf.float16))  # q.k = 102400, scaled 12800
    fused, (own, _) = layer(x, x), layer(x, x, return_attention_scores=True)
    if not np.isnan(fused).any():
        return None
    return (
        f"scores of 12800, from products of 102400, give {np.ravel(fused)[0]:g} on the fused path and "
        f"{np.ravel(own)[0]:g} with return_attention_scores=True"
    )


def d2l_divides_by_float32() -> str | None:
    """The book's TensorFlow layer divides by a float32 square root, which float64 scores refuse."""
    scores = tf.zeros((1, 1, 1), tf.float64)
    try:
        scores / tf.math.sqrt(tf.cast(D, dtype=tf.float32))
    except (TypeError, tf.errors.InvalidArgumentError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None


# Shapes --------------------------------------------------------------------------------------------------------


def symbolic_scores_shape() -> str | None:
    """In a functional model, the scores of cross-attention have the shape of self-attention's."""
    queries, values = keras.Input((LQ, H * D)), keras.Input((LK, H * D))
    _, symbolic = _layer()(queries, values, return_attention_scores=True)
    given_queries, _, given_values = _inputs()
    _, eager = _layer()(given_queries, given_values, return_attention_scores=True)
    if tuple(symbolic.shape)[1:] == tuple(eager.shape)[1:]:
        return None
    return f"the symbolic scores have the shape {tuple(symbolic.shape)}, the computed ones {tuple(eager.shape)}"


def grouped_symbolic_widths() -> str | None:
    """GroupQueryAttention takes values of another width than queries, except in a functional model."""
    layer = _layer("keras-gqa", value_dim=6)
    queries, keys, _ = _inputs()
    eager = layer(queries, tf.zeros((B, LK, 6)), keys)
    try:
        layer(*(keras.Input(shape) for shape in ((LQ, H * D), (LK, 6), (LK, H * D))))
    except ValueError as error:
        start = str(error).find("The last dimension")
        return f"eagerly the output is {tuple(eager.shape)}; a functional model says: {str(error)[start:][:94]}"
    return None


def single_key_head() -> str | None:
    """keras.ops.dot_product_attention does not repeat a single key head on TensorFlow."""
    queries, keys, values = _heads("float32")
    try:
        keras.ops.dot_product_attention(queries, keys[:, :, :1], values[:, :, :1])
    except tf.errors.InvalidArgumentError as error:
        what = str(error).partition("}} ")[2].partition(" [Op")[0]
        return f"{queries.shape[2]} query heads and one key head: InvalidArgumentError: {what}"
    return None


# Parts -----------------------------------------------------------------------------------------------------------


def _layer(layout: str = "keras", *, dropout: float = 0.0, value_dim: int | None = None, **options: Any) -> keras.Layer:
    config = AttentionConfig(H * D, H, bias=True, dropout=dropout, value_dim=value_dim)
    return to_native(config, init_weights(config, seed=0), layout, dtype="float32", **options)


def _normal(seed: int, *shape: int) -> NDArray:
    return np.random.default_rng(seed).normal(size=shape)


def _inputs() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    shapes = (B, LQ, H * D), (B, LK, H * D), (B, LK, H * D)
    queries, keys, values = (tf.constant(_normal(seed, *shape), tf.float32) for seed, shape in enumerate(shapes))
    return queries, keys, values


def _heads(dtype: str) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Queries (B, Lq, 2, 11), keys and values (B, Lk, 2, 11)."""
    shapes = (B, LQ, H, 11), (B, LK, H, 11), (B, LK, H, 11)
    queries, keys, values = (tf.constant(_normal(seed, *shape), dtype) for seed, shape in enumerate(shapes))
    return queries, keys, values


def _allowed() -> NDArray[np.bool_]:
    """Bool (B, Lq, Lk): every row has an open and a masked key."""
    allowed = np.random.default_rng(3).random((B, LQ, LK)) < 0.5
    allowed[:, :, 0], allowed[:, :, 1] = True, False
    return allowed


def _far(one: Any, other: Any) -> float:
    """The largest difference."""
    return float(np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)).max())


def _size(array: Any) -> float:
    """The largest number."""
    return float(np.abs(np.asarray(array)).max())


def _span(array: Any) -> str:
    """The range of the numbers in words, from the smallest to the largest."""
    return f"{np.min(array):.3g} to {np.max(array):.3g}"
