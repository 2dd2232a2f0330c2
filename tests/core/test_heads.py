import numpy as np
import pytest

from mha_core import SpecError
from mha_core.heads import split_heads, transpose_output, transpose_qkv

X = np.random.default_rng(0).normal(size=(2, 5, 12))


def test_transpose_output_is_the_inverse_of_transpose_qkv():
    folded = transpose_qkv(X, 3)
    assert folded.shape == (6, 5, 4)
    np.testing.assert_array_equal(folded[4], X[1, :, 4:8])  # item 1, head 1
    np.testing.assert_array_equal(transpose_output(folded, 3), X)


@pytest.mark.parametrize("call", [lambda: split_heads(X, 5), lambda: transpose_output(X, 5), lambda: split_heads(X, 0)])
def test_widths_that_do_not_split_are_refused(call):
    with pytest.raises(SpecError, match="width must be divisible by num_heads"):
        call()
