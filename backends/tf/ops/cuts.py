"""Parts of an axis, in eager calls and in graphs: where a part starts may be known only when the graph runs."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf
from keras import ops


class Span(NamedTuple):
    """`size` neighbours from `start` on, of one axis. Integers, or scalars of a graph that does not know them.

    Not a slice, whose size a graph does not know where its ends are scalars: XLA compiles only parts of known sizes.
    """

    start: Any
    size: Any

    @property
    def is_known(self) -> bool:
        """Whether both are integers."""
        return isinstance(self.start, int) and isinstance(self.size, int)

    def times(self, count: int) -> Span:
        """The span of `count` times as many: the query heads of some key heads, `count` to each."""
        return Span(self.start * count, self.size * count)

    def as_slice(self) -> slice:
        """Its elements as a slice."""
        return slice(self.start, self.start + self.size)


def cut(x: tf.Tensor, axis: int, span: Span | None) -> tf.Tensor:
    """The span of an axis, None for all of it."""
    length = x.shape[axis]
    if span is None:
        return x
    if length is not None and span.is_known:
        return x if span.size == length else x[(slice(None),) * axis + (span.as_slice(),)]
    begin, sizes = [0] * x.shape.rank, list(ops.shape(x))
    begin[axis], sizes[axis] = span
    return tf.slice(x, begin, sizes)


def cut_source(source: tf.Tensor, axis: int, span: Span | None) -> tf.Tensor:
    """The span of an axis of an array that broadcasts: all of it where it has, or turns out to have, one element."""
    if source.shape[axis] == 1:
        return source
    if span is not None and source.shape[axis] is None:
        is_single = tf.equal(tf.shape(source)[axis], 1)
        span = Span(*(tf.where(is_single, one, many) for one, many in zip((0, 1), span, strict=True)))
    return cut(source, axis, span)
