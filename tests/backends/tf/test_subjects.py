"""Keras's own layers as subjects: what agrees with the reference, and what they have no words for."""

from dataclasses import replace

import numpy as np
import pytest

from backends.tf.native import subjects as native_subjects
from backends.tf.native.convert import to_native
from backends.tf.native.subjects import has_open_nan
from conformance.cases.table import select
from conformance.subjects.load import load_subject
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError
from mha_core.reference import pipeline as reference
from tests.backends.drivers import asked_twice
from tests.backends.tf.test_native import D2L, GROUPED, LQ, SQUARE, B, inputs_of, weights_of

pytestmark = pytest.mark.same_on_newest  # TensorFlow's release is the same there

EQUAL = {
    "MultiHeadAttention": (
        "prime",
        "no-key-bias",
        "causal",
        "causal-padding",
        "allowed-per-head",
        "square-dropout-off",
    ),
    "MultiHeadAttentionScores": ("ragged-square", "prime", "window-causal", "one-key", "no-keys"),
    "GroupQueryAttention": ("square-grouped", "square-causal", "square-window"),
    "GroupQueryAttentionScores": ("square-grouped", "ragged-square", "square-allowed-per-head"),
    "DotProductAttention": ("grouped-heads", "bias-per-head", "scale", "dot", "causal", "heads-given"),
    "D2lMultiHeadAttention": ("square-no-bias", "square-causal"),
}


def result(name, case, dtype):
    return asked_twice(select((case,))[0], load_subject(f"backends.tf.native.subjects:{name}Subject", dtype))


def same_everywhere(results):
    """But for what TensorFlow's own softmax does without oneDNN: see `softmax_probes.softmax_of_one_key`."""
    return {
        (found.case, mismatch.message)
        for found in results
        for mismatch in found.mismatches
        if not (mismatch.stage == "weights" and mismatch.error < 1e-7)
    }


@pytest.mark.nightly("frameworks' own layers agree with the definition", every=2)
@pytest.mark.parametrize("name", EQUAL)
def test_layers_agree_with_the_reference(name):
    results = [result(name, case, "float32") for case in EQUAL[name]]
    assert same_everywhere(results) == set()
    assert not [(found.case, found.message) for found in results if found.status not in ("equal", "different")]
    assert all("gradients.queries" in found.judged for found in results)


def test_the_operation_is_exact_in_float64():
    for case in ("prime", "grouped-heads", "every-source", "heads-given"):
        found = result("DotProductAttention", case, "float64")
        assert (found.status == "equal") == (case != "every-source")  # a row without keys averages
        assert found.ratios["heads"] < 0.5 or case == "every-source"


def test_layers_are_exact_in_float64_where_float32_holds_the_scale():
    config = AttentionConfig(48, 3, head_dim=16, value_head_dim=5, query_dim=7, bias=True)
    inputs = AttentionInputs(*inputs_of(config))
    wanted = reference.run(config, weights_of(config), inputs).output
    layer = to_native(config, weights_of(config))
    np.testing.assert_allclose(layer(inputs.queries, inputs.values, inputs.keys), wanted, rtol=1e-12, atol=1e-12)
    off = replace(config, head_dim=17)
    found = to_native(off, weights_of(off))(inputs.queries, inputs.values, inputs.keys)
    distance = np.abs(found - reference.run(off, weights_of(off), inputs).output).max()
    assert 1e-10 < distance < 1e-6  # what the deviation keras-mha-scale-in-float32 says


@pytest.mark.parametrize(
    ("name", "case", "why"),
    [
        ("MultiHeadAttention", "bias-per-head", "an additive bias"),
        ("MultiHeadAttention", "grouped-heads", "fewer key heads"),
        ("MultiHeadAttention", "nan-in-open-key", "depends on the processor"),
        ("GroupQueryAttention", "prime", "value heads of another width"),
        ("GroupQueryAttention", "dropout", "a given dropout keep-mask"),
        ("DotProductAttention", "multi-query", "one key head for several"),
        ("DotProductAttention", "past", "past keys and values"),
        ("D2lMultiHeadAttention", "square-window", "not the first keys of each query"),
    ],
)
def test_what_a_layer_has_no_words_for_is_said(name, case, why):
    found = result(name, case, "float32")
    assert found.status == "unsupported"
    assert why in found.message


@pytest.mark.parametrize(
    ("config", "shape", "why"),
    [
        (replace(GROUPED, output_dim=12), (B, LQ), "output_dim other than query_dim"),
        (D2L, (0, LQ), "empty inputs"),
        (replace(D2L, output_dim=14), (B, LQ), "output_dim other than num_heads"),
    ],
)
def test_sizes_that_a_layer_can_not_have_are_said(config, shape, why):
    queries, keys, values = inputs_of(config)
    inputs = AttentionInputs(np.resize(queries, (*shape, config.query_dim)), keys[: shape[0]], values[: shape[0]])
    name = "GroupQueryAttentionSubject" if config.num_kv_heads == 2 else "D2lMultiHeadAttentionSubject"
    assert why in getattr(native_subjects, name)().supports(config, inputs)


def test_a_nan_that_nobody_may_attend_to_is_not_open():
    queries, keys, values = inputs_of(SQUARE)
    keys[0, 4] = np.nan
    padded = AttentionInputs(queries, keys, values, AttentionMask(valid_lens=np.array([4, 6])))
    assert not has_open_nan(SQUARE, padded)
    assert has_open_nan(SQUARE, replace(padded, mask=AttentionMask(valid_lens=np.array([5, 6]))))


def test_subjects_refuse_other_dtypes():
    with pytest.raises(SpecError, match="does not compute in float16"):
        native_subjects.MultiHeadAttentionSubject("float16")
