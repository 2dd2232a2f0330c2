"""The tensors of one call that can have a gradient, by name, and the parts of them that a chunk or a block needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from backends.tf.fast.blocks import Chunk
from backends.tf.ops.cuts import cut, cut_source
from backends.tf.ops.masks import Part


class Floats(NamedTuple):
    """The differentiable tensors of one call or of a part of it, or the gradients of these tensors.

    queries: (B, H, Lq, d). keys, values: (B, G, Lk, d), (B, G, Lk, dv). vector: (S,), of the additive score, or None.
    bias: of rank 4, broadcastable to (B, H, Lq, Lk), -inf where it excludes; or None.
    """

    queries: tf.Tensor
    keys: tf.Tensor
    values: tf.Tensor
    vector: tf.Tensor | None = None
    bias: tf.Tensor | None = None

    @property
    def group(self) -> int:
        """H / G, the number of query heads that share a key head."""
        return self.queries.shape[1] // self.keys.shape[1]

    def given(self) -> tuple[tf.Tensor, ...]:
        """Return the fields that are not None, in order, for functions that take only tensors."""
        return tuple(x for x in self if x is not None)

    def refilled(self, arrays: Iterable[tf.Tensor]) -> Floats:
        """Return a Floats in which `arrays`, in the order of `given`, replace the fields that are not None."""
        rest = iter(arrays)
        return Floats(*(None if x is None else next(rest) for x in self))

    def of_chunk(self, chunk: Chunk) -> Floats:
        """Return the slices of these tensors that belong to a chunk of items and heads."""
        bias = None if self.bias is None else chunk.of(self.bias, self.group)
        keys, values = chunk.of(self.keys), chunk.of(self.values)
        return Floats(chunk.of(self.queries, self.group), keys, values, self.vector, bias)

    def of_block(self, block: Part) -> Floats:
        """Return these tensors cut to a block's queries and keys, with all items and heads."""
        bias = None if self.bias is None else cut_source(cut_source(self.bias, 2, block.queries), 3, block.keys)
        keys, values = cut(self.keys, 2, block.keys), cut(self.values, 2, block.keys)
        return Floats(cut(self.queries, 2, block.queries), keys, values, self.vector, bias)


class Rows(NamedTuple):
    """The results of the forward pass, one row for each query.

    heads: (B, H, Lq, dv). marks: (B, H, Lq, 1), NaN for rows with NaN weights, 0 for all others.
    """

    heads: tf.Tensor
    marks: tf.Tensor

    def map(self, convert: Any) -> Rows:
        """Return a Rows with `convert(array)` in place of each array."""
        return Rows(convert(self.heads), convert(self.marks))
