"""Attention in TensorFlow from `queries`, `keys` and `values` to `heads`, without an array of all scores.

The scores of a block are kept only while it is computed; the backward pass computes them again. Shapes as in
`mha_core.stages`. Half precision is computed in float32 and rounded once, at the end; bfloat16 is computed in bfloat16
where `backends.tf.ops.products` finds that as exact, with gradients added up in float32.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from backends.tf.fast.blocks import chunks_of, concat
from backends.tf.fast.floats import Floats, Rows
from backends.tf.fast.passes import Dropping, Passes
from backends.tf.fast.scoring import product, similarity
from backends.tf.ops.attention import Score, add_bias, masked_softmax
from backends.tf.ops.framework import shape_of
from backends.tf.ops.masks import Mask
from backends.tf.ops.products import in_bfloat16, widened
from mha_core.call.blocks import Block, Operands

__all__ = ["Block", "Operands", "attend_in_blocks"]


@tf.autograph.experimental.do_not_convert
def attend_in_blocks(
    operands: Operands[tf.Tensor],
    score: Score,
    mask: Mask,
    dropout: keras.layers.Dropout,
    training: bool,
    *,
    query_block: int | None = None,
) -> tf.Tensor:
    """Return heads (B, H, Lq, dv), without ever storing all scores (B, H, Lq, Lk).

    Args:
        operands: queries (B, H, Lq, d), and keys and values, each as one array or two (the past and the new ones).
        score, mask: the score function and the mask of the call.
        dropout, training: the dropout layer, which acts only if `training` is True.
        query_block: how many queries a block has. None: the fastest number.
    """
    seed = _seed(mask, dropout, training)
    if len(operands.keys) > 1 and operands.queries.shape[2] == 1 and mask.keep is None and seed is None:
        return _attend_one_query(operands, score, mask)
    dtype = operands.values[0].dtype
    wide = _computed_in(operands, score, mask)
    mask = mask if mask.bias is None else mask._replace(bias=_with_known_axes(mask.bias, mask))
    keys, values = concat(operands.keys, 2), concat(operands.values, 2)
    floats = Floats(operands.queries, keys, values, score.vector, mask.bias)
    per_score = wide.size if score.vector is None else wide.size * score.vector.shape[0]
    chunks = chunks_of(floats.queries, floats.keys, mask, per_score, query_block)
    passes = Passes(score, mask._replace(bias=None), Dropping(dropout.rate, seed), chunks)

    @tf.custom_gradient
    def attended(*arrays: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        # An eager tape would record, and keep, what happens in here too.
        made = passes.forward(floats.refilled(map(tf.stop_gradient, arrays)))

        def backward(d_heads: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return _gradients(passes, made, floats)(d_heads, *arrays)

        return made.heads, backward

    return tf.cast(attended(*(tf.cast(x, wide) for x in floats.given())), dtype)


def _attend_one_query(operands: Operands[tf.Tensor], score: Score, mask: Mask) -> tf.Tensor:
    """Heads (B, H, 1, dv) of one query, by all its scores; past and new keys are not joined."""
    scores = tf.concat([similarity(operands.queries, keys, score) for keys in operands.keys], axis=3)
    weights = masked_softmax(add_bias(scores, mask), mask)
    past_len = tf.shape(operands.keys[0])[2]
    parts = weights[..., :past_len], weights[..., past_len:]
    return tf.add_n([product(part, values) for part, values in zip(parts, operands.values, strict=True)])


def _computed_in(operands: Operands[tf.Tensor], score: Score, mask: Mask) -> tf.DType:
    """The dtype in which heads are computed: float32 or float64, or bfloat16 where that is as exact."""
    dtype = operands.values[0].dtype
    is_plain = score.vector is None and score.softcap is None and mask.bias is None
    lengths = (operands.queries.shape[3], operands.values[0].shape[3], *(x.shape[2] for x in operands.keys))
    if is_plain and in_bfloat16(dtype, *lengths):
        return dtype
    return tf.float64 if dtype == tf.float64 else tf.float32


def _gradients(passes: Passes, made: Rows, floats: Floats) -> Callable[..., tuple[tf.Tensor, ...]]:
    """The backward pass as a function of the heads' gradient and of the floats, which can itself be differentiated.

    TensorFlow derives its gradient from the operations of the blocks. `floats` shows which of the fields are given.
    """

    @tf.custom_gradient
    def gradients(d_heads: tf.Tensor, *arrays: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable[..., Any]]:
        # Traced, because forward-mode differentiation stops all tapes before it calls this.
        @tf.function(autograph=False)
        def again(d_heads: tf.Tensor, arrays: Any, cotangents: Any) -> Any:
            dtype, (d_heads, arrays, cotangents) = (
                d_heads.dtype,
                tf.nest.map_structure(widened, (d_heads, arrays, cotangents)),
            )
            # Without the loops that XLA is given: TensorFlow has no gradient of their gradient.
            heads = passes.written_out().forward(floats.refilled(arrays)).heads
            once = tf.gradients(heads, arrays, d_heads)
            twice = tf.gradients(once, (d_heads, *arrays), cotangents, unconnected_gradients="zero")
            return [tf.cast(x, dtype) for x in twice]

        def backward(*cotangents: tf.Tensor) -> Any:
            return again(d_heads, arrays, cotangents)

        stopped = floats.refilled(map(tf.stop_gradient, arrays))
        found = passes.backward(tf.stop_gradient(d_heads), made.map(tf.stop_gradient), stopped)
        return found.given(), backward

    return gradients


def _seed(mask: Mask, dropout: keras.layers.Dropout, training: bool) -> tf.Tensor | None:
    """The seed of this call's dropout, from the layer's seed generator; None without dropout or with a keep-mask."""
    if mask.keep is not None or not training or dropout.rate == 0.0:
        return None
    return tf.cast(dropout.seed_generator.next(), tf.int64)


def _with_known_axes(bias: tf.Tensor, mask: Mask) -> tf.Tensor:
    """The bias, broadcast to Lq or Lk along each of these axes whose size is unknown while tracing."""
    sizes = list(shape_of(bias))
    for axis, length in ((2, mask.query_len), (3, mask.key_len)):
        if bias.shape[axis] is None:
            sizes[axis] = length
    return tf.broadcast_to(bias, sizes) if None in bias.shape[2:] else bias
