"""What the attention masks of transformers mean: which entries exclude, which are a bias, which are refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mha.recipes.masks import in_chunks, mask_of
from mha_core import AttentionMask, SpecError
from mha_core.call.masks import allowed_keys
from mha_core.call.sizes import CallSizes

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


def seen_in_chunks(*, length, forgotten, new, size, left, right):
    """What each of the last `new` queries of a text sees, bool (new, length - forgotten), by the rule of a decoder.

    The text stands at places left, ..., length - right - 1, and chunks begin at its first token.
    """
    rule = [
        [left <= j < length - right and j <= i and (j - left) // size == (i - left) // size for j in range(length)]
        for i in range(length)
    ]
    return np.array(rule)[length - new :, forgotten:]


@pytest.mark.parametrize("new", [11, 4, 1])
@pytest.mark.parametrize("size", [2, 3, 4, 11, 20])
def test_chunks_are_said_apart_from_the_rest_of_a_mask(size, new):
    """Two texts, padded on the left and right; a cache has forgotten what no later chunk needs, or nothing."""
    for forgotten in (0, max(0, 11 - new - size + 1)) if new < 11 else (0,):
        texts = [
            seen_in_chunks(length=11, forgotten=forgotten, new=new, size=size, left=left, right=right)
            for left, right in ((3, 0), (0, 2), (0, 0))
        ]
        seen = np.array(texts)[:, None]
        sizes = CallSizes(3, new, 11 - forgotten, 11 - forgotten - new, size)
        found = in_chunks(AttentionMask(allowed=seen), sizes)
        assert found.causal
        assert np.array_equal(allowed_keys(found, sizes, 1), seen)
        assert found.allowed is None or found.allowed.shape[2] == 1  # the padding of keys, and no chunk
        without = allowed_keys(AttentionMask(**{**vars(found), "chunk_start": 0}), sizes._replace(chunk_size=None), 1)
        own = seen[2, 0].any(axis=0)  # the text without padding sees some other key without its chunks, if it has two
        assert (without[2] != seen[2]).any() == (size < 11 and (new > 1 or not own.all())), (forgotten, own)


def test_a_window_stays_beside_the_chunks():
    causal, place = np.tril(np.ones((7, 7), bool)), np.arange(7)
    seen = (causal & (place > place[:, None] - 3) & (place // 4 == place[:, None] // 4))[None, None]
    sizes = CallSizes(1, 7, 7, 0, 4)
    found = in_chunks(AttentionMask(allowed=seen), sizes)
    assert np.array_equal(allowed_keys(found, sizes, 1), seen)
    assert (~found.allowed & causal).sum() == 1  # query 3 does not see key 0 of its chunk
    assert not found.allowed[0, 0, 3, 0]


def test_a_mask_across_chunks_is_refused():
    causal = np.tril(np.ones((5, 5), bool))
    with pytest.raises(SpecError, match="lets a query attend to keys of two chunks of 4"):
        in_chunks(AttentionMask(allowed=causal), CallSizes(1, 5, 5, 0, 4))
    with pytest.raises(SpecError, match="lets a query attend to keys of two chunks of 4"):
        in_chunks(AttentionMask(), CallSizes(1, 1, 5, 4, 4))  # a layer that is given no mask sees all its keys
    both = in_chunks(AttentionMask(allowed=np.ones((1, 1, 3, 3), bool)), CallSizes(1, 3, 3, 0, 4))
    assert (both.causal, both.allowed) == (False, None)  # within a chunk it may look ahead
