"""What the attention masks of transformers mean: which entries exclude, which are a bias, which are refused."""

import re

import numpy as np
import pytest

from mha.recipes.masks import mask_of
from mha_core import SpecError

LOWEST = {
    "float64": float(np.finfo(np.float64).min),
    "float32": float(np.finfo(np.float32).min),
    "float16": -65504.0,
    "bfloat16": -3.3895313892515355e38,
}
"""torch.finfo(dtype).min, by dtype."""


@pytest.mark.parametrize("dtype", LOWEST)
def test_the_lowest_number_of_a_dtype_excludes_and_no_other_finite_one(dtype):
    held = np.float32 if dtype == "bfloat16" else np.dtype(dtype)
    array = np.array([[0.0, -10000.0, LOWEST[dtype], -np.inf]], held)
    for implementation in ("eager", "sdpa"):
        found = mask_of(array, dtype, implementation, is_causal=True)
        assert found.allowed.tolist() == [[True, True, False, False]]
        assert found.bias.tolist() == [[0.0, -10000.0, 0.0, 0.0]]
        assert found.bias.dtype == held
        assert not found.causal  # a mask that is given holds everything


def test_a_mask_without_a_bias_or_without_exclusion_says_only_that():
    only_excludes = mask_of(np.array([[0.0, LOWEST["float32"]]], np.float32), "float32", "eager")
    assert only_excludes.bias is None
    only_adds = mask_of(np.array([[0.0, 1.5]], np.float32), "float32", "eager")
    assert only_adds.allowed is None
    may_attend = mask_of(np.array([[True, False]]), "bool", "sdpa")
    assert may_attend.allowed.tolist() == [[True, False]]


def test_a_row_of_lowest_numbers_alone_is_a_bias_and_one_of_minus_infinity_excludes():
    low = LOWEST["float32"]
    array = np.array([[low, low, low], [low, -np.inf, low], [0.0, low, low], [-np.inf] * 3], np.float32)
    found = mask_of(array, "float32", "eager")
    assert found.allowed.tolist() == [[True] * 3, [True, False, True], [True, False, False], [False] * 3]
    assert found.bias.tolist() == [[low] * 3, [low, 0.0, low], [0.0] * 3, [0.0] * 3]


@pytest.mark.parametrize(
    ("array", "implementation", "message"),
    [
        (np.array([True]), "eager", "attention_mask is bool, which attention implementation 'eager' adds"),
        (np.array([1]), "sdpa", "attention_mask must be bool or float inside the model. Got int64."),
        (
            None,
            "flex_attention",
            "attention implementation 'flex_attention' is not understood (understood: eager, sdpa)",
        ),
    ],
)
def test_a_mask_without_a_clear_meaning_is_refused(array, implementation, message):
    with pytest.raises(SpecError, match=re.escape(message)):
        mask_of(array, str(getattr(array, "dtype", "")), implementation)
