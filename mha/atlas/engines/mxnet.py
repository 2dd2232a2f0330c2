"""MXNet's interleaved operators, with its softmax of given lengths between them."""

from backends.mxnet.native.cells import legacy
from backends.mxnet.ops.framework import mx
from conformance.subjects.ask import CannotExpress

DTYPES = ("float32", "float16")


def of(array, dtype):
    return legacy(mx.nd.array)(array, dtype=dtype if array.dtype.kind == "f" else array.dtype)


@legacy
def computed(attend, leaves, cotangent):
    if cotangent is None:
        return [attend(*leaves)]
    for leaf in leaves:
        leaf.attach_grad()
    with mx.autograd.record(train_mode=False):
        output = attend(*leaves)
    output.backward(cotangent)
    return [output, *(leaf.grad for leaf in leaves)]


def back(array):
    return array.asnumpy()


def interleaved(q, k, v, *, bias=None, lengths=None):
    """Return attention by MXNet's two interleaved_matmul operators, with bias and softmax (up to `lengths`) between."""
    batch, heads, queries, width = q.shape
    if v.shape[3] != width:
        raise CannotExpress("values of another width")
    q = q.transpose((2, 0, 1, 3)).reshape((queries, batch, -1))
    both = mx.nd.stack(k, v, axis=2).transpose((3, 0, 1, 2, 4)).reshape((k.shape[2], batch, -1))
    scores = mx.nd.contrib.interleaved_matmul_encdec_qk(q, both, heads=heads)
    if bias is not None:
        scores = scores + bias.reshape((-1, queries, k.shape[2]))
    if lengths is None:
        weights = mx.nd.softmax(scores, axis=-1)
    else:
        lens = lengths.repeat(heads * queries).reshape((-1, queries))
        weights = mx.nd.softmax(scores, axis=-1, length=lens, use_length=True)
    found = mx.nd.contrib.interleaved_matmul_encdec_valatt(both, weights, heads=heads)
    return found.reshape((queries, batch, heads, -1)).transpose((1, 2, 0, 3))
