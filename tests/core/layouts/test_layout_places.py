"""Layouts: the place of every number, against formulas written out by hand."""

import numpy as np
import pytest

from mha_core import AttentionConfig
from mha_core.layouts import get
from mha_core.weights import weight_shapes
from tests.core.layouts.test_layouts import bits

TINY = AttentionConfig(7, 2, head_dim=3, query_dim=5, key_dim=5, value_dim=5, bias=True)
TINY_TORCH = AttentionConfig(6, 2, bias=True)  # such a layer has one width for all
ALL_PLACES = [(projection, head, element) for projection in "qkvo" for head in range(2) for element in range(3)]


def number(projection: str, head: int, element: int, other: int) -> float:
    """What stands for an element of a head and a channel of the input; in "o", of the output."""
    return 1000 * "qkvo".index(projection) + 100 * head + 10 * element + other + 0.5


def bias_number(projection: str, head: int, element: int) -> float:
    return -number(projection, head, element, 9)


def canonical_place(projection, head, element, other):
    """Row h * d + i makes element i of head h; the columns of out_proj alike."""
    row = head * 3 + element
    return f"{projection}_proj.weight", (row, other), f"{projection}_proj.bias", row


def torch_place(projection, head, element, other):
    """in_proj_weight (3 * H * d, E): q, k and v below each other, in each the heads."""
    row = "qkv".index(projection) * 6 + head * 3 + element
    return "in_proj_weight", (row, other), "in_proj_bias", row


def gpt2_place(projection, head, element, other):
    """c_attn.weight (E, 3 * H * d): the same, transposed."""
    column = "qkv".index(projection) * 6 + head * 3 + element
    return "c_attn.weight", (other, column), "c_attn.bias", column


def gpt2_cross_place(projection, head, element, other):
    """q_attn.weight (E, H * d) and c_attn.weight (E, 2 * H * d)."""
    if projection == "q":
        return "q_attn.weight", (other, head * 3 + element), "q_attn.bias", head * 3 + element
    column = "kv".index(projection) * 6 + head * 3 + element
    return "c_attn.weight", (other, column), "c_attn.bias", column


def gpt2_tf_place(projection, head, element, other):
    """As in PyTorch, and biases of one row."""
    _, index, _, column = gpt2_place(projection, head, element, other)
    return "c_attn/weight", index, "c_attn/bias", (0, column)


def gpt2_flax_place(projection, head, element, other):
    """c_attn/kernel (3 * H * d, E): what FlaxConv1D transposes before it multiplies."""
    _, (_, column), _, _ = gpt2_place(projection, head, element, other)
    return "c_attn/kernel", (column, other), "c_attn/bias", column


def selfatt_place(projection, head, element, other):
    """ff_in.weight (H * 3 * d, D): head by head, in each q, k and v."""
    row = head * 9 + "qkv".index(projection) * 3 + element
    return "ff_in.weight", (row, other), "ff_in.bias", row


def encdec_place(projection, head, element, other):
    """ff_q.weight (H * d, Dq); ff_kv.weight (H * 2 * d, Dk): head by head, in each k and v."""
    if projection == "q":
        return "ff_q.weight", (head * 3 + element, other), "ff_q.bias", head * 3 + element
    row = head * 6 + "kv".index(projection) * 3 + element
    return "ff_kv.weight", (row, other), "ff_kv.bias", row


def kernel_place(projection, head, element, other):
    """query/kernel (Dq, H, d), and so on."""
    name = {"q": "query", "k": "key", "v": "value"}[projection]
    return f"{name}/kernel", (other, head, element), f"{name}/bias", (head, element)


def rows(name):
    """Output projections (Do, H * dv)."""
    return name, lambda head, element, other: (other, head * 3 + element)


def columns(name):
    """Output projections (H * dv, Do)."""
    return name, lambda head, element, other: (head * 3 + element, other)


def cubes(name):
    """Output projections (H, dv, Do)."""
    return name, lambda head, element, other: (head, element, other)


QKV_KERNELS = {f"{part}/kernel": (5, 2, 3) for part in ("query", "key", "value")}
QKV_BIASES = {f"{part}/bias": (2, 3) for part in ("query", "key", "value")}


def kernels(out):
    shapes = {**QKV_KERNELS, **QKV_BIASES, f"{out}/kernel": (2, 3, 7), f"{out}/bias": (7,)}
    return TINY, shapes, kernel_place, cubes(f"{out}/kernel")


PLACES = {
    "torch": (
        TINY_TORCH,
        {"in_proj_weight": (18, 6), "in_proj_bias": (18,), "out_proj.weight": (6, 6), "out_proj.bias": (6,)},
        torch_place,
        rows("out_proj.weight"),
    ),
    "gpt2": (
        TINY,
        {"c_attn.weight": (5, 18), "c_attn.bias": (18,), "c_proj.weight": (6, 7), "c_proj.bias": (7,)},
        gpt2_place,
        columns("c_proj.weight"),
    ),
    "gpt2-cross": (
        TINY,
        {
            **{"q_attn.weight": (5, 6), "q_attn.bias": (6,), "c_attn.weight": (5, 12), "c_attn.bias": (12,)},
            **{"c_proj.weight": (6, 7), "c_proj.bias": (7,)},
        },
        gpt2_cross_place,
        columns("c_proj.weight"),
    ),
    "gpt2-tf": (
        TINY,
        {"c_attn/weight": (5, 18), "c_attn/bias": (1, 18), "c_proj/weight": (6, 7), "c_proj/bias": (1, 7)},
        gpt2_tf_place,
        columns("c_proj/weight"),
    ),
    "gpt2-flax": (
        TINY,
        {"c_attn/kernel": (18, 5), "c_attn/bias": (18,), "c_proj/kernel": (7, 6), "c_proj/bias": (7,)},
        gpt2_flax_place,
        rows("c_proj/kernel"),
    ),
    "mxnet-selfatt": (
        TINY,
        {"ff_in.weight": (18, 5), "ff_in.bias": (18,), "ff_out.weight": (7, 6), "ff_out.bias": (7,)},
        selfatt_place,
        rows("ff_out.weight"),
    ),
    "mxnet-encdec": (
        TINY,
        {
            **{"ff_q.weight": (6, 5), "ff_q.bias": (6,), "ff_kv.weight": (12, 5), "ff_kv.bias": (12,)},
            **{"ff_out.weight": (7, 6), "ff_out.bias": (7,)},
        },
        encdec_place,
        rows("ff_out.weight"),
    ),
    "keras": kernels("attention_output"),
    "keras-gqa": kernels("attention_output"),
    "linen": kernels("out"),
    "nnx": kernels("out"),
}
"""Layout -> an example, the shapes of its arrays, and where each number stands in them."""


def filled_by_hand(config, shapes, place, out):
    """The example's arrays, number by number."""
    arrays = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
    for projection, head, element in ALL_PLACES:
        for other in range(config.output_dim if projection == "o" else config.query_dim):
            if projection == "o":
                matrix, index = out[0], out[1](head, element, other)
                bias, bias_index, bias_value = matrix[: -len("weight")] + "bias", other, bias_number("o", 0, other)
            else:
                matrix, index, bias, bias_index = place(projection, head, element, other)
                bias_value = bias_number(projection, head, element)
            arrays[matrix][index] = number(projection, head, element, other)
            bias_index = (0, other) if projection == "o" and arrays[bias].ndim == 2 else bias_index
            arrays[bias][bias_index] = bias_value
    assert not any(np.isnan(array).any() for array in arrays.values())
    return arrays


def tiny_weights(config):
    return filled_by_hand(config, weight_shapes(config), canonical_place, rows("out_proj.weight"))


@pytest.mark.parametrize("name", PLACES)
def test_every_number_stands_where_the_formula_says(name):
    config = PLACES[name][0]
    arrays, weights = filled_by_hand(*PLACES[name]), tiny_weights(config)
    assert bits(get(name).write(config, weights)) == bits(arrays)
    found, back = get(name).read(arrays, num_heads=2)
    assert found == config
    assert bits(back) == bits(weights)
