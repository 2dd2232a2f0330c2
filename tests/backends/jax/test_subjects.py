"""Flax's own attention layers as subjects: what each is told, what it follows, and what it can't be told."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("jax", reason="belongs to the extra jax")

import jax
import jax.numpy as jnp

from backends.jax.native import subjects as native_subjects
from conformance.cases.table import select
from conformance.subjects.load import load_subject
from mha_core import AttentionConfig, AttentionInputs, AttentionMask
from mha_core.call.masks import allowed_keys
from tests.backends.drivers import asked_twice

LAYERS = (
    "LinenMultiHeadDotProductAttention",
    "LinenMultiHeadDotProductAttentionSowed",
    "NnxMultiHeadAttention",
    "NnxMultiHeadAttentionSowed",
    "NnxMultiHeadAttentionDropout",
)


def judged(name, case_id, dtype="float32", **changes):
    """A case of the table, in sizes that the layers can have, on one subject."""
    (case,) = select((case_id,))
    hiddens = case.config.num_heads * case.config.head_dim
    sizes = {"value_head_dim": case.config.head_dim, "key_dim": 19, "value_dim": 19, "output_dim": hiddens}
    changed = replace(case, config=replace(case.config, **{**sizes, **changes}), same_sizes="what the layers can have")
    return asked_twice(changed, load_subject(f"{native_subjects.__name__}:{name}Subject", dtype))


@pytest.mark.nightly("JAX' layers follow the definition", every=3)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("case", ["no-key-bias", "allowed-per-head"])
def test_layers_follow_the_definition(name, case):
    result = judged(name, case)
    assert result.status == "equal", result
    assert "gradients.k_proj.weight" in result.judged
    assert ("weights" in result.judged) == ("Sowed" in name)


@pytest.mark.parametrize("case", ["valid-lens", "causal-padding", "causal-bottom-right"])
def test_d2l_is_told_every_mask_that_lengths_can_say(case):
    result = judged("D2lMultiHeadAttention", case)
    assert result.status == "equal", result
    assert "weights" in result.judged


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("LinenDotProductAttention", "bias-per-head"),
        ("LinenDotProductAttention", "past"),
        ("DotProductAttention", "grouped-heads"),
        ("DotProductAttention", "bias-per-head"),
        ("DotProductAttention", "scale"),
        ("DotProductAttention", "decoding-step"),
        ("DotProductAttentionCausal", "causal-more-queries"),
        ("DotProductAttentionCausal", "nan-in-disallowed"),
        ("DotProductAttentionLengths", "causal-padding"),
    ],
)
def test_operations_follow_the_definition(name, case):
    result = judged(name, case)
    assert result.status == ("different" if case.startswith("nan") else "equal"), result
    assert {"heads", "output", "gradients.queries", "gradients.out_proj.weight"} <= set(result.judged)


def test_without_projections_an_operation_is_given_the_heads():
    result = judged("DotProductAttention", "heads-given-short-cache", key_dim=33, value_dim=33)
    assert {m.stage for m in result.mismatches} <= {"heads", "output", "gradients.values"}  # it has an empty row


@pytest.mark.parametrize(
    ("name", "mask", "argument", "value"),
    [
        ("Causal", AttentionMask(causal=True), "is_causal", True),
        ("Window", AttentionMask(window=(2, 1)), "local_window_size", (2, 1)),
        ("Lengths", AttentionMask(valid_lens=np.array([4])), "key_value_seq_lengths", [4]),
    ],
)
def test_an_argument_of_its_own_says_its_part_alone(name, mask, argument, value):
    subject = getattr(native_subjects, f"DotProductAttention{name}Subject")("float32")
    inputs = AttentionInputs(np.ones((1, 5, 8)), np.ones((1, 7, 8)), np.ones((1, 7, 8)), mask)
    told = subject.tell(AttentionConfig(8, 2), inputs)
    assert told.keys() == {argument, "mask"}
    assert np.array_equal(told[argument], value)
    assert told["mask"] is None
    allowed = np.arange(7) != 3
    told = subject.tell(AttentionConfig(8, 2), replace(inputs, mask=replace(mask, allowed=allowed)))
    assert (told["mask"] == allowed).all()


@pytest.mark.parametrize(
    "mask",
    [
        AttentionMask(window=(2, 1)),
        AttentionMask(window=(2, 1), query_offset=2),
        AttentionMask(window=(1, None), causal=True, query_offset=-1),
        AttentionMask(window=(None, 0), query_offset=1),
    ],
    ids=["plain", "offset", "causal", "one-sided"],
)
def test_a_window_is_told_as_jax_counts_it(mask):
    """What local_window_size lets through, with a mask beside it that lets everything through."""
    config = AttentionConfig(8, 2)
    inputs = AttentionInputs(np.ones((1, 5, 8)), np.ones((1, 7, 8)), np.ones((1, 7, 8)), mask)
    told = native_subjects.DotProductAttentionWindowSubject("float32").tell(config, inputs)
    assert told["mask"] is None
    values = jnp.eye(7)[None, :, None]  # heads are then the weights
    zeros = jnp.zeros((1, 5, 1, 7)), jnp.zeros((1, 7, 1, 7))
    everything = jnp.ones((1, 1, 5, 7), bool)
    weights = jax.nn.dot_product_attention(*zeros, values, mask=everything, local_window_size=told["local_window_size"])
    allowed = allowed_keys(mask, inputs.check(config), 1)[:, 0]
    has_key = allowed.any(axis=-1)
    np.testing.assert_array_equal(np.asarray(weights[:, :, 0] > 0)[has_key], allowed[has_key])


@pytest.mark.parametrize(
    ("name", "case", "reason"),
    [
        ("LinenMultiHeadDotProductAttention", "bias-per-head", "an additive bias"),
        ("NnxMultiHeadAttention", "grouped-heads", "fewer key heads than query heads"),
        ("D2lMultiHeadAttention", "window", "a mask that is not the first keys of each query"),
        ("D2lMultiHeadAttention", "allowed-per-head", "a mask that is not the first keys of each query"),
        ("DotProductAttentionCausal", "causal-bottom-right", "a query_offset other than 0"),
        ("DotProductAttentionCausal", "window", "a mask that is not causal"),
        ("DotProductAttentionWindow", "causal", "a mask without a window"),
        ("DotProductAttentionWindow", "every-source", "a query_offset for each item"),
        ("DotProductAttentionLengths", "valid-lens-per-query", "a mask without one length for each item"),
        ("DotProductAttention", "additive", "score 'additive'"),
    ],
)
def test_what_can_not_be_told(name, case, reason):
    result = judged(name, case)
    assert result.status == "unsupported"
    assert reason in result.message


def test_float64_comes_and_goes_with_the_run():
    result = judged("LinenMultiHeadDotProductAttention", "causal", "float64")
    assert result.status == "equal", result
    assert jnp.ones(1).dtype == np.float32


def test_nnx_is_precise_in_float64_only_off_its_fast_path():
    assert judged("NnxMultiHeadAttention", "causal", "float64").status == "different"
    assert judged("NnxMultiHeadAttentionDropout", "causal", "float64").status == "equal"


def test_an_empty_row_is_uniform_in_d2l():
    result = judged("D2lMultiHeadAttention", "valid-lens-per-query")
    (weights,) = (mismatch for mismatch in result.mismatches if mismatch.stage == "weights")
    assert weights.actual == pytest.approx(1 / 7)
    assert weights.expected == 0.0
