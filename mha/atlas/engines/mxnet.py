"""MXNet's interleaved operators, with its softmax of given lengths between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from backends.mxnet.native.cells import legacy
from backends.mxnet.ops.framework import mx
from conformance.subjects.ask import CannotExpress

DTYPES = ("float32", "float16")


def run(
    attend: Callable[..., Any], given: Sequence[NDArray], options: Mapping[str, Any], dtype: str, cotangent: Any
) -> list[Any]:
    """Return the output, and gradients if there is a cotangent."""

    def call() -> list[Any]:
        leaves = [mx.nd.array(value, dtype=dtype) for value in given]
        if cotangent is None:
            return [attend(*leaves, **options).asnumpy()]
        for leaf in leaves:
            leaf.attach_grad()
        with mx.autograd.record(train_mode=False):
            output = attend(*leaves, **options)
        output.backward(mx.nd.array(cotangent, dtype=dtype))
        return [output.asnumpy(), *(leaf.grad.asnumpy() for leaf in leaves)]

    found: list[Any] = legacy(call)()
    return found


def interleaved(q: Any, k: Any, v: Any, *, bias: Any = None, lengths: Any = None) -> Any:
    """Return the output: the first operator scales, the softmax masks by lengths, a bias is added between."""
    batch, heads, queries, width = q.shape
    if v.shape[3] != width:
        raise CannotExpress("values of another width")
    q = q.transpose((2, 0, 1, 3)).reshape((queries, batch, -1))
    both = mx.nd.stack(k, v, axis=2).transpose((3, 0, 1, 2, 4)).reshape((k.shape[2], batch, -1))
    scores = mx.nd.contrib.interleaved_matmul_encdec_qk(q, both, heads=heads)
    if bias is not None:
        scores = scores + mx.nd.array(bias, dtype=scores.dtype).reshape((-1, queries, k.shape[2]))
    if lengths is None:
        weights = mx.nd.softmax(scores, axis=-1)
    else:
        lens = mx.nd.array(lengths.repeat(heads * queries), dtype="int32").reshape((-1, queries))
        weights = mx.nd.softmax(scores, axis=-1, length=lens, use_length=True)
    found = mx.nd.contrib.interleaved_matmul_encdec_valatt(both, weights, heads=heads)
    return found.reshape((queries, batch, heads, -1)).transpose((1, 2, 0, 3))
