"""Probes: what MXNet's layers and operators do otherwise than the definition, where no case of the suite can show it.

Each probe is called without arguments and does the thing on the installed version. It returns what was
seen, in a sentence with its numbers, or None if it does not happen (any more).
"""

import numpy as np

from backends.mxnet.native.cells import LARGE, OPERATORS, DenseAttention, InterleavedAttention, legacy
from backends.mxnet.native.d2l import FILL, masked_softmax
from backends.mxnet.ops.framework import mx, to_array, to_numpy

CPU = mx.cpu()

# d2l.ai's layer -------------------------------------------------------------------------------------------


@mx.util.use_np
def d2l_fill_in_float16() -> str | None:
    """-1e6 is -inf in float16, so an item without valid keys is NaN there and uniform in float32."""
    rows = {}
    for dtype in ("float32", "float16"):
        scores = mx.np.zeros((1, 1, 4), dtype=dtype)
        rows[dtype] = to_numpy(masked_softmax(scores, mx.np.zeros((1,), dtype=dtype)))[0, 0]
    if not np.isnan(rows["float16"]).all():
        return None
    return f"weights of an item of length 0: {rows['float16']} in float16, {rows['float32']} in float32"


@mx.util.use_np
def d2l_fill_is_beaten() -> str | None:
    """A score below -1e6 loses against the keys that are masked out."""
    scores = np.array([[[40 * FILL, 0.0, 0.0]]])
    weights = to_numpy(masked_softmax(to_array(scores, "float64", CPU), mx.np.array([1], dtype="float64")))[0, 0]
    if weights[0] == 1.0:
        return None
    return f"the only valid key scores {40 * FILL:g}; the weights are {weights.tolist()}, all of it on masked keys"


# The interleaved operators --------------------------------------------------------------------------------


@legacy
def interleaved_bias_is_beaten() -> str | None:
    """Exclusion by a bias of -1e8 lets through a key that scores 1e8 more than the open ones."""
    layer = InterleavedAttention(num_heads=1, dropout=0.0)
    scores, bias = _legacy(np.array([[[-6e7, 6e7]]])), _legacy(np.array([[[0.0, -LARGE]]]))
    weights = to_numpy(layer.softmax(scores, None, bias))[0, 0]
    if weights[0] == 1.0:
        return None
    return f"the open key scores -6e7, the excluded one 6e7; the weights are {weights}"


@legacy
def interleaved_other_dtypes() -> str | None:
    """float64 and float16 are accepted on a CPU, and fail when the result is read."""
    late = []
    for dtype in ("float64", "float16"):
        result = OPERATORS.interleaved_matmul_selfatt_qk(mx.nd.zeros((3, 1, 18), dtype=dtype), heads=2)
        try:
            result.wait_to_read()
        except mx.MXNetError as error:
            reason = str(error).strip().splitlines()[-1].rpartition(": ")[2]
            late.append(f"{np.dtype(result.dtype).name} of shape {result.shape}, then {reason!r} when it is read")
    return f"the call returns {'; '.join(late)}" if late else None


@legacy
def interleaved_time_major() -> str | None:
    """A batch-major input is taken as time-major without a word: items attend to each other."""
    batch, length, heads = 5, 3, 2
    projected = mx.nd.ones((batch, length, heads * 3 * 4))
    scores = OPERATORS.interleaved_matmul_selfatt_qk(projected, heads=heads)
    if scores.shape == (batch * heads, length, length):
        return None
    return (
        f"given {batch} items of length {length}, its scores are {scores.shape}: each of {length} items has "
        f"{batch} queries and {batch} keys"
    )


# MXNet itself ---------------------------------------------------------------------------------------------


def no_masked_softmax() -> str | None:
    """npx.masked_softmax is in MXNet 2 alone."""
    if hasattr(mx.npx, "masked_softmax"):
        return None
    return f"mxnet {mx.__version__} has no npx.masked_softmax"


@mx.util.use_np
def softmax_of_an_empty_row() -> str | None:
    """A row of -inf is NaN; with a length of 0 it is 0."""
    row = to_numpy(mx.npx.softmax(mx.np.full((1, 3), -np.inf)))[0]
    by_length = to_numpy(mx.npx.softmax(mx.np.zeros((1, 3)), length=mx.np.zeros((1,), dtype="int32"), use_length=True))[
        0
    ]
    if not np.isnan(row).all():
        return None
    return f"npx.softmax of three times -inf is {row}; with use_length and length 0 it is {by_length}"


@legacy
def float16_product() -> str | None:
    """A product in float16 is accepted on a CPU, and fails when the result is read."""
    result = mx.nd.dot(mx.nd.ones((2, 3), dtype="float16"), mx.nd.ones((3, 2), dtype="float16"))
    try:
        result.wait_to_read()
    except mx.MXNetError:
        return f"nd.dot returns float16 of shape {result.shape}; reading it raises MXNetError"
    return None


@legacy
def default_initialisation() -> str | None:
    """Dense layers start uniform in +-0.07 whatever their size, where the definition's weights are Glorot uniform."""
    width = 512
    layer = DenseAttention((width, width, width), (width, width, width, width), 8, use_bias=False)
    layer.initialize(ctx=CPU)
    found = to_numpy(layer.W_q.weight.data())
    glorot = np.sqrt(6.0 / (2 * width))
    if abs(np.abs(found).max() - glorot) < 0.001:
        return None
    return (
        f"{width} wide: largest {np.abs(found).max():.4f}, standard deviation {found.std():.4f}; "
        f"Glorot uniform has {glorot:.4f} and {glorot / np.sqrt(3):.4f}"
    )


def _legacy(array: np.ndarray) -> mx.nd.NDArray:
    return to_array(array, "float32", CPU).as_nd_ndarray()
