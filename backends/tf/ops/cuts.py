"""Parts of an axis, in eager calls and in graphs: where a part starts may be known only when the graph runs."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from backends.tf.ops.framework import shape_of


class Span(NamedTuple):
    """A range of `size` indices of an axis from `start` on; both are integers, or scalar tensors in a graph.

    Unlike a slice between two tensors, it has a known size, as XLA needs. `within` is used only if `start` is a tensor:
    a slice with integer ends that contains the range whatever the start is.
    """

    start: Any
    size: Any
    within: slice = slice(None)

    @property
    def is_known(self) -> bool:
        """Return whether start and size are integers."""
        return isinstance(self.start, int) and isinstance(self.size, int)

    def times(self, count: int) -> Span:
        """Return a Span with `start` and `size` multiplied by `count`, the number of query heads for each key head."""
        return Span(self.start * count, self.size * count)

    def as_slice(self) -> slice:
        """Return the span as a slice."""
        return slice(self.start, self.start + self.size)

    def as_known(self) -> slice:
        """Return a slice with known ends that contains the span. It equals the span if start and size are integers."""
        return self.as_slice() if self.is_known else self.within


def cut(x: tf.Tensor, axis: int, span: Span | None) -> tf.Tensor:
    """Return x cut to a span of one axis (None: uncut)."""
    length = x.shape[axis]
    if span is None:
        return x
    if length is not None and span.is_known:
        if span.size == length:
            return x
        before, after = tuple(x.shape[:axis]), tuple(x.shape[axis + 1 :])
        if set(before) == {1} and None not in after:  # of the first axis, a part is no copy
            return tf.reshape(tf.reshape(x, (length, *after))[span.as_slice()], (*before, span.size, *after))
        return x[(slice(None),) * axis + (span.as_slice(),)]
    begin, sizes = [0] * x.shape.rank, list(shape_of(x))
    begin[axis], sizes[axis], _ = span
    return tf.slice(x, begin, sizes)


def cut_source(source: tf.Tensor, axis: int, span: Span | None) -> tf.Tensor:
    """Return an array cut to a span of one axis (None: uncut). An axis of size 1 broadcasts and is not cut."""
    if source.shape[axis] == 1:
        return source
    if span is not None and source.shape[axis] is None:
        is_single = tf.equal(tf.shape(source)[axis], 1)
        span = Span(*(tf.where(is_single, one, many) for one, many in zip((0, 1), span[:2], strict=True)))
    return cut(source, axis, span)
