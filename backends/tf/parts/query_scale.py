"""Query scale in TensorFlow: the factors of a call, and the queries times them; see `mha_core.parts.query_scale`."""

from __future__ import annotations

import tensorflow as tf

from backends.tf.ops.framework import arange, numbers, shape_of, within
from mha_core.call.call import Call
from mha_core.call.checks import LONGEST
from mha_core.call.query_scale import counted_scale
from mha_core.call.rotary import check_not_negative
from mha_core.call.sizes import CallSizes
from mha_core.parts.query_scale import QueryScale


def query_factors(call: Call[tf.Tensor], settings: QueryScale | None) -> tf.Tensor | None:
    """(Lq,) or (1 or B, Lq): the factor of each query, in the dtype of the queries.

    Args:
        call: as `placed` gives it, and checked.
        settings: those of the layer; None gives no factors.

    Raises:
        SpecError: a negative position, where tracing knows its number.
    """
    given, x = call.rotary, call.queries
    if settings is None:
        return None
    if given is not None and given.query_scale is not None:
        return given.query_scale
    offset, query_len = call.mask.query_offset, shape_of(x)[-2]
    if given is not None and given.positions is not None:
        positions = given.positions
    elif isinstance(offset, int) and isinstance(query_len, int):
        return tf.constant(counted_scale(settings, offset, CallSizes(1, query_len, query_len)), x.dtype)
    else:
        positions = tf.reshape(tf.cast(offset, tf.int64), (-1, 1)) + arange(query_len)
    known = numbers(positions)
    if known is not None:
        check_not_negative(known)
    assert settings.beta is not None
    assert settings.length is not None
    steps = (within(positions, (0, LONGEST)) + settings.shift) // settings.length
    # Half precision is too coarse for a logarithm.
    wide = tf.cast(steps, x.dtype if x.dtype == tf.float64 else tf.float32)
    return tf.cast(1.0 + settings.beta * tf.math.log1p(wide), x.dtype)


def scale_queries(queries: tf.Tensor, factors: tf.Tensor | None) -> tf.Tensor:
    """(B, H, Lq, d): each query times its factor; as they are without factors."""
    return queries if factors is None else queries * factors[..., tf.newaxis, :, tf.newaxis]
