"""What native layers share: what a call has gradients of, masks as lengths, and layers of one width."""

import numpy as np
import pytest

from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError
from mha_core.call.arguments import CallSizes
from mha_core.call.masks import as_valid_lens
from mha_core.subject import Capabilities, one_width

SIZES = CallSizes(batch=2, query_len=3, key_len=4)
PER_HEAD = np.ones((2, 5, 3, 4), bool)
PER_HEAD[1, 3, 2, 3] = False  # one key less for one head of one query


@pytest.mark.parametrize(
    ("mask", "lens"),
    [
        (AttentionMask(), [[4, 4, 4], [4, 4, 4]]),
        (AttentionMask(valid_lens=np.array([3, 1]), causal=True), [[1, 2, 3], [1, 1, 1]]),
        (AttentionMask(causal=True, query_offset=1), [[2, 3, 4], [2, 3, 4]]),
        (AttentionMask(causal=True, query_offset=np.array([-2, 1])), [[0, 0, 1], [2, 3, 4]]),
        (AttentionMask(window=(None, 1)), [[2, 3, 4], [2, 3, 4]]),
        (AttentionMask(valid_lens=np.array([[2, 0, 4], [1, 3, 2]]), allowed=np.arange(4) < 3), [[2, 0, 3], [1, 3, 2]]),
        (AttentionMask(bias=np.array([0.0, 0.0, 0.0, -np.inf])), [[3, 3, 3], [3, 3, 3]]),
        (AttentionMask(allowed=np.zeros(4, bool)), [[0, 0, 0], [0, 0, 0]]),
        (AttentionMask(window=(0, None)), None),
        (AttentionMask(allowed=np.array([False, True, True, True])), None),
        (AttentionMask(allowed=PER_HEAD), None),
    ],
)
def test_a_mask_of_first_keys_is_lengths_and_no_other(mask, lens):
    found = as_valid_lens(mask, SIZES, num_heads=5)
    assert (None if found is None else found.tolist()) == lens
    inputs = AttentionInputs(np.ones((2, 3, 10)), np.ones((2, 4, 10)), np.ones((2, 4, 10)), mask)
    lengths = Capabilities("bias", only_lengths=True)
    said = lengths.why_not(AttentionConfig(10, 5), inputs)
    assert said == (None if lens else "a mask that is not the first keys of each query, the same in all heads")
    assert lengths.why_not(AttentionConfig(10, 5)) is None  # of a call it says nothing before there is one
    assert Capabilities("bias").why_not(AttentionConfig(10, 5), inputs) is None


@pytest.mark.parametrize("given", [np.array([3, 0]), np.array([[3, 0, 4], [1, 1, 2]])])
def test_lengths_alone_stay_as_they_are(given):
    assert as_valid_lens(AttentionMask(valid_lens=given), SIZES, num_heads=5) is given


def test_a_mask_has_sources_if_one_is_given():
    given = {"valid_lens": np.array([1]), "allowed": np.array([True]), "bias": np.zeros(1), "causal": True}
    assert not AttentionMask(query_offset=2).has_sources
    for name, source in {**given, "window": (1, None)}.items():
        assert AttentionMask(**{name: source}).has_sources, name


def test_what_has_a_gradient_is_what_is_given():
    names = ("queries", "keys", "values", "past_keys", "past_values")
    arrays = {name: np.full((1, 2, 3), index) for index, name in enumerate(names)}
    bias = np.zeros((3, 4))
    whole = AttentionInputs(**arrays, mask=AttentionMask(bias=bias, allowed=np.ones(4, bool)), cotangent=bias)
    leaves = whole.leaves()
    assert list(leaves) == [*names, "bias"]
    assert all(leaves[name] is arrays[name] for name in names)
    assert leaves["bias"] is bias
    assert list(AttentionInputs(*(arrays[name] for name in names[:3])).leaves()) == list(names[:3])


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"num_kv_heads": 1}, "theirs needs num_kv_heads=3 (num_heads=3, head_dim=5). Got 1."),
        ({"value_head_dim": 4}, "theirs needs value_head_dim=5 (num_heads=3, head_dim=5). Got 4."),
        ({"output_dim": 14}, "theirs needs output_dim=15 (num_heads=3, head_dim=5). Got 14."),
    ],
)
def test_layers_of_one_width(sizes, said):
    assert one_width("theirs", AttentionConfig(15, 3, query_dim=7, key_dim=8, value_dim=9)) == 15
    with pytest.raises(SpecError) as error:
        one_width("theirs", AttentionConfig(15, 3, **sizes))
    assert str(error.value) == said
