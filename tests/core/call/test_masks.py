import numpy as np
import pytest

from mha_core.call.arguments import CallSizes
from mha_core.call.masks import AttentionMask, additive_bias, allowed_keys, padding_keys
from tests.core.reference.loop_reference import is_padding, may_attend

SIZES = CallSizes(2, 4, 6)
RNG = np.random.default_rng(0)


def rows(mask, sizes=SIZES):
    """The mask of item 0 and head 0 as strings: x allowed, . not."""
    return ["".join(".x"[int(key)] for key in row) for row in allowed_keys(mask, sizes, num_heads=1)[0, 0]]


def test_causal_is_top_left_unless_an_offset_is_given():
    assert rows(AttentionMask(causal=True)) == ["x.....", "xx....", "xxx...", "xxxx.."]
    assert rows(AttentionMask(causal=True, query_offset=2)) == ["xxx...", "xxxx..", "xxxxx.", "xxxxxx"]
    assert rows(AttentionMask(causal=True, query_offset=-2)) == ["......", "......", "x.....", "xx...."]


def test_window_does_not_count_the_position_itself():
    assert rows(AttentionMask(window=(1, 0))) == ["x.....", "xx....", ".xx...", "..xx.."]
    assert rows(AttentionMask(window=(0, 2))) == ["xxx...", ".xxx..", "..xxx.", "...xxx"]
    assert rows(AttentionMask(window=(None, 1), query_offset=1)) == ["xxx...", "xxxx..", "xxxxx.", "xxxxxx"]
    assert rows(AttentionMask(window=(1, None), causal=True)) == ["x.....", "xx....", ".xx...", "..xx.."]


def test_the_longest_window_is_unbounded():
    longest = AttentionMask(window=(2**31 - 1, 2**31 - 1), query_offset=3)
    assert rows(longest) == ["xxxxxx"] * 4


def test_valid_lens_of_both_ranks():
    assert rows(AttentionMask(valid_lens=np.array([2, 5])))[3] == "xx...."
    assert rows(AttentionMask(valid_lens=np.array([[0, 1, 2, 6], [0, 0, 0, 0]]))) == [
        "......",
        "x.....",
        "xx....",
        "xxxxxx",
    ]


def test_minus_infinity_excludes_and_a_large_number_does_not():
    bias = np.array([0.0, -np.inf, -1e30, 1.0, 0.0, -np.inf])
    assert rows(AttentionMask(bias=bias))[0] == "x.xxx."
    np.testing.assert_array_equal(additive_bias(AttentionMask(bias=bias)).ravel(), [0.0, 0.0, -1e30, 1.0, 0.0, 0.0])


MASKS = [
    AttentionMask(),
    AttentionMask(valid_lens=np.array([0, 5])),
    AttentionMask(valid_lens=np.array([[1, 2, 3, 4], [6, 0, 2, 1]])),
    AttentionMask(allowed=RNG.random((2, 1, 4, 6)) < 0.3),
    AttentionMask(allowed=RNG.random((3, 1, 6)) < 0.3),
    AttentionMask(allowed=np.array([True, False, True, True, False, False])),
    AttentionMask(allowed=np.array([[True], [False], [False], [True]])),
    AttentionMask(valid_lens=np.array([3, 4]), allowed=RNG.random((3, 4, 6)) < 0.5, causal=True, query_offset=1),
    AttentionMask(causal=True, query_offset=np.array([2, -1]), window=(1, None)),
    AttentionMask(bias=np.where(RNG.random((2, 3, 4, 6)) < 0.5, -np.inf, 1.0), window=(None, 1)),
]


@pytest.mark.parametrize("mask", MASKS, ids=range(len(MASKS)))
def test_masks_follow_the_rules_key_by_key(mask):
    allowed, padding = allowed_keys(mask, SIZES, num_heads=3), padding_keys(mask, SIZES)
    for b in range(2):
        for j in range(6):
            assert padding[b, j] == is_padding(mask, b, j, 3, 4, 6)
            for h in range(3):
                for i in range(4):
                    assert allowed[b, h, i, j] == may_attend(mask, b, h, i, j)


def test_bias_causal_and_window_make_no_padding():
    mask = AttentionMask(bias=np.full(6, -np.inf), causal=True, query_offset=-9, window=(0, 0))
    assert not padding_keys(mask, SIZES).any()


def test_empty_sizes():
    for sizes in (CallSizes(0, 4, 6), CallSizes(2, 0, 6), CallSizes(2, 4, 0)):
        mask = AttentionMask(valid_lens=np.zeros(sizes.batch, int), causal=True)
        assert allowed_keys(mask, sizes, 3).shape == (sizes.batch, 3, sizes.query_len, sizes.key_len)
        assert padding_keys(mask, sizes).shape == (sizes.batch, sizes.key_len)


def test_one_head_masks_get_their_head_axis():
    mask = AttentionMask(allowed=np.ones((2, 4, 6), bool), bias=np.zeros((4, 6)), valid_lens=np.array([1, 2]))
    expanded = mask.for_one_head(lambda array: array[:, None])
    assert expanded.allowed.shape == (2, 1, 4, 6)
    assert expanded.bias.shape == (4, 6)
    assert expanded.valid_lens.shape == (2,)
