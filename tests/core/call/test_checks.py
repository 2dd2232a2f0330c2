"""What a call must look like: every refusal names the value and the rule."""

import numpy as np
import pytest

from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError
from mha_core.call.arguments import ArraySpec
from mha_core.call.call import Call, LayerSpec
from mha_core.call.checks import check_call, check_dropout_keep, check_same_width

CONFIG = AttentionConfig(12, 3, query_dim=5, key_dim=7, value_dim=11)
RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def good_inputs(**changes):
    arrays = {"queries": normal(2, 4, 5), "keys": normal(2, 6, 7), "values": normal(2, 6, 11)}
    mask_changes = {name: changes.pop(name) for name in list(changes) if hasattr(AttentionMask(), name)}
    return AttentionInputs(**{**arrays, "mask": AttentionMask(**mask_changes), **changes})


BAD_CALLS = [
    ({"queries": [[1.0]]}, "queries must be an array. Got list"),
    ({"queries": normal(4, 5)}, r"queries must have shape \(batch, length, width\). Got \(4, 5\)"),
    ({"keys": normal(3, 6, 7)}, r"keys must have the batch size of queries. Got keys \(3, 6, 7\)"),
    ({"values": normal(2, 5, 11)}, r"values must be as many as keys. Got values \(2, 5, 11\)"),
    ({"queries": normal(2, 4, 6)}, r"queries must be query_dim=5 wide. Got \(2, 4, 6\)"),
    ({"values": normal(2, 6, 7)}, r"values must be value_dim=11 wide"),
    ({"keys": normal(2, 6, 7).astype("float16")}, "must share one dtype .* Got float32, float16, float32"),
    ({"queries": RNG.integers(9, size=(2, 4, 5), dtype="int32")}, "must share one dtype .* Got int32"),
    ({"valid_lens": np.float32([3, 2])}, "valid_lens must be integers. Got dtype float32"),
    ({"valid_lens": np.array([True, False])}, "valid_lens must be integers. Got dtype bool"),
    (
        {"valid_lens": np.array([3, 2, 1])},
        r"valid_lens must have shape \(B,\)=\(2,\) or \(B, Lq\)=\(2, 4\). Got \(3,\)",
    ),
    ({"valid_lens": np.ones((2, 4, 6), int)}, r"valid_lens must have shape .* Got \(2, 4, 6\)"),
    ({"valid_lens": np.array([3, 7])}, "valid_lens must lie in 0..6, the number of keys. Got 7"),
    ({"valid_lens": np.array([-1, 2])}, "valid_lens must lie in 0..6, the number of keys. Got -1"),
    ({"valid_lens": [2**32 + 1, 2]}, "valid_lens must lie in 0..6, the number of keys. Got 4294967297"),
    ({"valid_lens": [2**70, 2]}, f"valid_lens must lie in 0..6, the number of keys. Got {2**70}"),
    ({"allowed": normal(2, 1, 4, 6)}, r"allowed must be boolean \(True = may attend\). Got dtype float32"),
    ({"allowed": np.ones((2, 4, 6), bool)}, r"allowed must broadcast to .*=\(2, 3, 4, 6\). Got \(2, 4, 6\)"),
    ({"allowed": np.ones((1, 2, 3, 4, 6), bool)}, "allowed must broadcast to"),
    ({"bias": np.zeros((4, 6), "float16")}, "bias must have the dtype of queries, float32. Got float16"),
    ({"bias": np.ones((4, 6), "int32")}, "bias must have the dtype of queries, float32. Got int32"),
    ({"bias": normal(5, 6)}, r"bias must broadcast to .*=\(2, 3, 4, 6\). Got \(5, 6\)"),
    ({"bias": [1e39] * 6}, r"bias must fit in float32, the dtype of queries. Got 1e\+39"),
    ({"causal": 1}, "causal must be True or False. Got 1"),
    ({"causal": "yes"}, "causal must be True or False. Got 'yes'"),
    ({"query_offset": 1.5}, r"query_offset must be an integer, or integers of shape .* Got float64 \(\)"),
    ({"query_offset": np.float32([1.5, 2])}, "query_offset must be an integer, or integers of shape"),
    ({"query_offset": np.array([1, 2, 3])}, r"query_offset must be .*\(B,\)=\(2,\). Got int64 \(3,\)"),
    ({"query_offset": 2**31}, r"query_offset must lie in -2147483648\.\.2147483647. Got 2147483648"),
    ({"query_offset": -(2**70)}, f"query_offset must lie in .* Got {-(2**70)}"),
    ({"query_offset": [2**70, 0]}, f"query_offset must lie in .* Got {2**70}"),
    ({"window": (1, -2)}, r"window must be \(left, right\), .* Got \(1, -2\)"),
    ({"window": 3}, "window must be .* Got 3"),
    ({"window": (2**31, None)}, r"window must be .* in 0\.\.2147483647, or None .* Got \(2147483648, None\)"),
    ({"dropout_keep": np.ones((2, 3, 4, 6), "float32")}, "dropout_keep must be boolean"),
    ({"past_keys": normal(2, 3, 5, 4)}, "past_keys and past_values belong together. past_values is missing"),
    (
        {"past_keys": normal(2, 3, 5, 9), "past_values": normal(2, 3, 5, 4)},
        r"past_keys must have shape \(2, 3, length, 4\). Got \(2, 3, 5, 9\)",
    ),
    (
        {"past_keys": normal(2, 3, 5, 4), "past_values": normal(2, 3, 6, 4)},
        r"past_values must have shape \(2, 3, 5, 4\). Got \(2, 3, 6, 4\)",
    ),
    ({"dropout_keep": np.ones((2, 1, 4, 6), bool)}, r"dropout_keep must have shape .* Got \(2, 1, 4, 6\)"),
]
"""What a call is given in place of what fits, and what is said: by each backend too (tests/backends/test_errors.py)."""


@pytest.mark.parametrize(("changes", "message"), BAD_CALLS, ids=range(len(BAD_CALLS)))
def test_bad_calls_are_refused(changes, message):
    with pytest.raises(SpecError, match=message):
        good_inputs(**changes).check(CONFIG)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_offset": np.array([0, 2**64 - 1], "uint64")}, f"query_offset must lie in .* Got {2**64 - 1}"),
        (
            {"keys": np.broadcast_to(np.float32(0), (2, 2**31, 7))},
            r"keys must have at most 2147483647 elements along each axis. Got \(2, 2147483648, 7\)",
        ),
    ],
)
def test_what_some_framework_can_not_hold_is_refused(changes, message):
    with pytest.raises(SpecError, match=message):
        good_inputs(**changes).check(CONFIG)


def test_good_calls_pass():
    assert good_inputs().check(CONFIG) == (2, 4, 6, 0)
    good_inputs(
        valid_lens=np.array([[0, 6, 3, 2], [1, 2, 3, 4]], dtype=np.uint8),
        allowed=np.ones((3, 1, 6), bool),
        bias=np.zeros((), "float32"),
        causal=True,
        query_offset=np.array(2),
        window=(None, 0),
        dropout_keep=np.ones((2, 3, 4, 6), bool),
    ).check(CONFIG)


def test_sizes_that_are_not_known_while_tracing_fit_anything():
    unknown = {
        "queries": ArraySpec((None, None, 5), "float32"),
        "keys": ArraySpec((None, None, 7), "float32"),
        "values": ArraySpec((2, None, None), "float32"),
    }
    mask = AttentionMask(valid_lens=ArraySpec((None,), "int64"), allowed=ArraySpec((None, 1, None, None), "bool"))
    call = Call(**unknown, mask=mask)
    sizes = check_call(call, LayerSpec(3, (5, 7, 11)), lambda spec: spec)
    assert sizes == (None, None, None, 0)
    with pytest.raises(SpecError, match=r"keys must be key_dim=8 wide. Got \(\?, \?, 7\)"):
        check_call(call, LayerSpec(3, (5, 8, 11)), lambda spec: spec)


def test_keep_mask_belongs_to_training():
    check_dropout_keep(None, training=False)
    check_dropout_keep(np.ones(1, bool), training=True)
    with pytest.raises(SpecError, match="dropout_keep belongs to a training step"):
        check_dropout_keep(np.ones(1, bool), training=False)


def test_a_dot_product_needs_one_width():
    check_same_width(3, None)
    with pytest.raises(SpecError, match="Got widths 3 and 5"):
        check_same_width(3, 5)
