from __future__ import annotations

import numpy as np
import pytest

from mha_core import SpecError
from mha_core.heads import merge_heads, repeat_kv_heads, split_heads, sum_kv_groups, transpose_output, transpose_qkv

X = np.random.default_rng(0).normal(size=(2, 5, 12))


def test_channel_h_d_plus_i_is_element_i_of_head_h():
    split = split_heads(X, num_heads=3)
    for head in range(3):
        for i in range(4):
            np.testing.assert_array_equal(split[:, head, :, i], X[:, :, head * 4 + i])


def test_merge_is_the_inverse_of_split():
    np.testing.assert_array_equal(merge_heads(split_heads(X, 3)), X)


def test_transpose_output_is_the_inverse_of_transpose_qkv():
    folded = transpose_qkv(X, 3)
    assert folded.shape == (6, 5, 4)
    np.testing.assert_array_equal(folded[4], X[1, :, 4:8])  # item 1, head 1
    np.testing.assert_array_equal(transpose_output(folded, 3), X)


def test_key_heads_are_repeated_not_tiled():
    groups = np.random.default_rng(1).normal(size=(2, 3, 5, 4))
    repeated = repeat_kv_heads(groups, num_heads=6)
    for head in range(6):
        np.testing.assert_array_equal(repeated[:, head], groups[:, head // 2])
    np.testing.assert_allclose(sum_kv_groups(repeated, 3), 2 * groups)


@pytest.mark.parametrize("call", [lambda: split_heads(X, 5), lambda: transpose_output(X, 5), lambda: split_heads(X, 0)])
def test_widths_that_do_not_split_are_refused(call):
    with pytest.raises(SpecError, match="width must be divisible by num_heads"):
        call()
