"""tinygrad on the CPU."""

from tinygrad import Tensor, dtypes

DTYPES = ("float64", "float32", "bfloat16", "float16")


def of(array, dtype):
    made = Tensor(array)
    return made.cast(getattr(dtypes, dtype)) if array.dtype.kind == "f" else made


def computed(attend, leaves, cotangent):
    output = attend(*leaves)
    return [output, *(() if cotangent is None else output.gradient(*leaves, gradient=cotangent))]


def back(tensor):
    return (tensor.float() if tensor.dtype == dtypes.bfloat16 else tensor).numpy()


def sdpa(q, k, v, *, mask=None, causal=False):
    grouped = q.shape[1] != k.shape[1]
    return q.scaled_dot_product_attention(k, v, mask, is_causal=causal, enable_gqa=grouped)
