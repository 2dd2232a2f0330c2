"""PaddlePaddle's function."""

import paddle
from paddle.nn.functional import scaled_dot_product_attention

DTYPES = ("float64", "float32", "bfloat16", "float16")


def of(array, dtype):
    made = paddle.to_tensor(array)
    return made.astype(dtype) if made.is_floating_point() else made


def computed(attend, leaves, cotangent):
    for leaf in leaves:
        leaf.stop_gradient = cotangent is None
    output = attend(*leaves)
    return [output, *(() if cotangent is None else paddle.grad([output], leaves, [cotangent]))]


def back(tensor):
    return (tensor.astype("float32") if tensor.dtype == paddle.bfloat16 else tensor).numpy()


def sdpa(q, k, v, *, mask=None, causal=False):
    q, k, v = (one.transpose([0, 2, 1, 3]) for one in (q, k, v))
    return scaled_dot_product_attention(q, k, v, mask, is_causal=causal).transpose([0, 2, 1, 3])
