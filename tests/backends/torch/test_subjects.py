"""PyTorch's own layers as subjects: every path judged, and what they do otherwise."""

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import backends.torch.native.functional
import backends.torch.native.subjects
from backends.torch.native.subjects import TorchSubject
from conformance.cases.case import Case
from conformance.cases.parts import SQUARE_REASON, allowed_per_head, bias_that_excludes, fixed
from conformance.cases.table import select
from conformance.subjects.load import load_subject
from mha_core import AttentionConfig, SpecError
from tests.backends.drivers import asked_twice

pytestmark = pytest.mark.same_on_newest  # PyTorch's release is the same there

NATIVE, FUNCTIONAL = "backends.torch.native.subjects", "backends.torch.native.functional"
WIDTHS = AttentionConfig(28, 4, key_dim=11, value_dim=13, bias=True)
SUBJECTS = {
    f"{module.__name__}:{name}"
    for module in (backends.torch.native.subjects, backends.torch.native.functional)
    for name, found in vars(module).items()
    if inspect.isclass(found) and issubclass(found, TorchSubject) and found.__module__ == module.__name__
} - {f"{NATIVE}:TorchSubject"}

OWN_CASES = {
    case.id: case
    for case in (
        Case("widths", "kdim and vdim", WIDTHS, query_len=5, key_len=6, mask=fixed(valid_lens=np.array([4, 6])),
             same_sizes="the layer is as wide as its queries"),
        Case("rest", "every other mask", AttentionConfig(28, 4, bias=True), batch=3, query_len=5, key_len=6,
             mask=allowed_per_head, same_sizes=SQUARE_REASON),
        Case("self", "one tensor", AttentionConfig(28, 4, bias=True), batch=3, query_len=5, key_len=5,
             mask=fixed(valid_lens=np.array([4, 5, 1])), same_sizes=SQUARE_REASON,
             change=lambda rng, problem: _self_attention(problem)),
        Case("self-masked", "one tensor", AttentionConfig(28, 4, bias=True), batch=3, query_len=5, key_len=5,
             mask=fixed(valid_lens=np.array([4, 5, 1]), causal=True), same_sizes=SQUARE_REASON,
             change=lambda rng, problem: _self_attention(problem)),
        Case("empty", "-inf in a whole row", AttentionConfig(28, 4, bias=True), query_len=5, key_len=6,
             mask=bias_that_excludes, same_sizes=SQUARE_REASON),
    )
}  # fmt: skip
MHA_GRADIENTS = {"gradients.queries", "gradients.keys", "gradients.values"} | {
    f"gradients.{projection}_proj.{kind}" for projection in ("q", "k", "v", "out") for kind in ("weight", "bias")
}


def _self_attention(problem):
    x = problem.inputs.queries
    return replace(problem, inputs=replace(problem.inputs, keys=x, values=x))


def result_of(subject, case_id, dtype="float64"):
    case = OWN_CASES.get(case_id) or select((case_id,))[0]
    return asked_twice(case, load_subject(subject, dtype))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("name", "case_id", "judged"),
    [
        ("MultiheadAttention", "widths", {"weights", "output", *MHA_GRADIENTS}),
        ("MultiheadAttention", "rest", {"weights", "output", *MHA_GRADIENTS}),
        ("MultiheadAttention", "square-bias-per-head", {"weights", "output", "gradients.bias", *MHA_GRADIENTS}),
        ("MultiheadAttentionTimeMajor", "widths", {"weights", "output", *MHA_GRADIENTS}),
        ("MultiheadAttentionTimeMajor", "square-window", {"weights", "output", *MHA_GRADIENTS}),
        ("MultiheadAttentionInTraining", "square-causal", {"weights", "output", *MHA_GRADIENTS}),
        ("MultiheadAttentionWithoutWeights", "widths", {"output", *MHA_GRADIENTS}),
        ("MultiheadAttentionWithoutWeights", "ragged-square", {"output", *MHA_GRADIENTS}),
        ("MultiheadAttentionWithoutWeights", "empty", {"output", "gradients.bias", *MHA_GRADIENTS}),
        ("MultiheadAttentionIsCausal", "square-causal", {"output", *MHA_GRADIENTS}),
        ("MultiheadAttentionFastPath", "self", {"output"}),
        ("MultiheadAttentionFastPath", "self-masked", {"output"}),
        ("D2lMultiHeadAttention", "widths", {"weights", "output", *MHA_GRADIENTS}),
        ("D2lMultiHeadAttention", "square-causal", {"weights", "output", *MHA_GRADIENTS}),
    ],
)
def test_a_layer_is_equal_in_all_that_it_shows(name, case_id, judged, dtype):
    result = result_of(f"{NATIVE}:{name}Subject", case_id, dtype)
    assert (result.status, result.message) == ("equal", "")
    assert set(result.judged) == judged


@pytest.mark.parametrize("name", ["ScaledDotProduct", "ScaledDotProductMath", "ScaledDotProductFlash"])
@pytest.mark.parametrize(
    "case_id",
    ["valid-lens-per-query", "every-source", "grouped-heads", "scale", "dot", "no-keys", "lone-open-key", "past",
     "heads-given-split"],
)  # fmt: skip
def test_the_operator_is_equal_in_all_that_it_shows(name, case_id):
    result = result_of(f"{FUNCTIONAL}:{name}Subject", case_id)
    assert (result.status, result.message) == ("equal", "")
    biased = case_id in ("every-source", "lone-open-key")
    has_gradients = not (biased and name == "ScaledDotProductFlash")
    assert {"heads", "output"} <= set(result.judged)
    assert ("gradients.queries" in result.judged) == has_gradients
    assert ("gradients.bias" in result.judged) == (biased and has_gradients)


@pytest.mark.parametrize(
    "case_id",
    ["causal", "causal-more-queries", "causal-bottom-right", "causal-bottom-right-more-queries", "one-item"],
)
def test_is_causal_aligns_as_it_is_told_and_makes_empty_rows_zero_without_a_warning(case_id):
    assert result_of(f"{FUNCTIONAL}:ScaledDotProductIsCausalSubject", case_id).status == "equal"


@pytest.mark.parametrize("spec", sorted(SUBJECTS))
def test_what_a_layer_can_not_express_has_a_reason(spec):
    for case_id in ("square-dropout", "additive", "softcap"):
        result = result_of(spec, case_id)
        assert result.status == "unsupported"
        assert result.message.startswith("cannot express: ")


@pytest.mark.parametrize(
    ("name", "case_id", "reason"),
    [
        ("MultiheadAttention", "square-scale", "a given scale"),
        ("MultiheadAttention", "heads-given", "attention without projections"),
        ("MultiheadAttentionInTraining", "square-dropout-off", "dropout with a given keep-mask"),
        ("MultiheadAttentionIsCausal", "square-window", "anything but a causal mask"),
        ("MultiheadAttentionFastPath", "square-no-bias", "no biases: the fast path needs them"),
        ("MultiheadAttentionFastPath", "square-causal", "an odd number of heads"),
        ("MultiheadAttentionFastPath", "rest", "anything but self-attention"),
        ("D2lMultiHeadAttention", "square-window", "not the first keys of each query"),
        ("D2lMultiHeadAttention", "square-bias-per-head", "an additive bias"),
    ],
)
def test_the_reason_names_what_is_lacking(name, case_id, reason):
    result = result_of(f"{NATIVE}:{name}Subject", case_id)
    assert result.status == "unsupported"
    assert reason in result.message


def test_another_dtype_is_refused():
    with pytest.raises(SpecError, match="does not compute in bfloat16"):
        load_subject(f"{NATIVE}:MultiheadAttentionSubject", "bfloat16")


def test_each_path_runs_what_it_says(monkeypatch):
    ran = []

    def spy(module, name, label):
        original = getattr(module, name)

        def wrapped(*args, **kwargs):
            ran.append((label, kwargs.get("is_causal", args[5] if len(args) > 5 else False)))
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, wrapped)

    spy(torch, "_native_multi_head_attention", "fast")
    spy(nn.functional, "scaled_dot_product_attention", "operator")
    for name, case_id, expected in (
        ("MultiheadAttention", "square-causal", []),
        ("MultiheadAttentionWithoutWeights", "square-causal", [("operator", False)]),
        ("MultiheadAttentionIsCausal", "square-causal", [("operator", True)]),
    ):
        ran.clear()
        result_of(f"{NATIVE}:{name}Subject", case_id)
        assert list(dict.fromkeys(ran)) == expected  # each time that it is asked
    ran.clear()
    result_of(f"{NATIVE}:MultiheadAttentionFastPathSubject", "self")
    assert {label for label, _ in ran} == {"fast"}


@pytest.mark.parametrize(
    ("name", "case_id", "fused"),
    [("Flash", "square-causal", True), ("Flash", "causal", True), ("Math", "square-causal", False),
     ("", "square-causal", True), ("", "causal", False)],
)  # fmt: skip
def test_each_kernel_runs_where_it_should(name, case_id, fused):
    class Log(TorchDispatchMode):
        seen = ""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen += f" {func}"
            return func(*args, **(kwargs or {}))

    problem = select((case_id,))[0].build()
    subject = getattr(backends.torch.native.functional, f"ScaledDotProduct{name}Subject")("float64")
    with Log() as log:
        subject.prepare(problem.config, problem.weights)(problem.inputs)
    assert ("scaled_dot_product_flash_attention_for_cpu" in log.seen) == fused
    assert ("softmax" in log.seen) == (not fused)


# What they do otherwise -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["MultiheadAttention", "MultiheadAttentionTimeMajor", "MultiheadAttentionInTraining"])
def test_an_empty_row_is_nan_with_weights(name):
    result = result_of(f"{NATIVE}:{name}Subject", "ragged-square")
    assert {mismatch.stage for mismatch in result.mismatches} == {"weights", "output", *MHA_GRADIENTS} - {
        "gradients.out_proj.bias"
    }
    assert all("got nan" in mismatch.message for mismatch in result.mismatches)


def test_an_empty_row_of_d2l_is_uniform():
    result = result_of(f"{NATIVE}:D2lMultiHeadAttentionSubject", "ragged-square", "float32")
    assert result.mismatches[0].stage == "weights"
    assert "got 0.142857" in result.mismatches[0].message  # 1 / 7


def test_padding_leaks_through_the_operator():
    for name in ("ScaledDotProductMath", "ScaledDotProductFlash"):
        result = result_of(f"{FUNCTIONAL}:{name}Subject", "nan-in-padding")
        assert result.mismatches[0].stage == "heads"
        assert "got nan" in result.mismatches[0].message
