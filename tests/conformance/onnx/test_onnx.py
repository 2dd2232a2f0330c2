"""ONNX's own vectors: all of them are translated, and what is wrong with a layer shows in them."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.onnx.suite import onnx_cases, runs
from conformance.onnx.vectors import Vector, translate
from conformance.runner import run_case
from conformance.zoo.bug import BuggySubject
from conformance.zoo.registry import select
from mha.cli.suite.check import check
from mha_core import SpecError
from mha_core.backend import load

pytest.importorskip("onnx")


@cache
def all_cases():
    return onnx_cases()


@pytest.mark.same_on_newest  # it reasons in NumPy alone
def test_every_vector_is_translated_and_agrees_with_the_reference():
    vectors = {one.vector.name for one in all_cases()}
    assert len(vectors) >= 93 + 8
    results = [run_case(case, subject) for case, subject in runs(all_cases(), [])]
    assert [result.case for result in results if result.status != "equal"] == []
    judged = {stage for result in results for stage in result.judged}
    assert judged == {"queries", "keys", "values", "scores", "weights", "heads", "output"}


# The releases of PyTorch and TensorFlow are the same there.
@pytest.mark.same_on_newest_of("torch", "tf")
@pytest.mark.nightly("every backend agrees with ONNX's own vectors")
def test_every_vector_on_a_backend(backend_name):
    mine = runs(all_cases(), [load(backend_name)])[len(all_cases()) :]
    results = [run_case(case, subject) for case, subject in mine]
    assert {result.subject for result in results} == {backend_name, f"{backend_name} fast"}
    assert [(result.case, result.message) for result in results if result.status != "equal"] == []


@pytest.mark.same_on_newest  # it reasons in NumPy alone
@pytest.mark.parametrize(
    "pattern",
    [
        *("softcap-ignored", "past-behind", "past-not-counted", "given-heads-length-first"),
        *("rotary-layout-exchanged", "rotary-given-factor-lost"),
    ],
)
def test_a_bug_is_found(pattern):
    (bug,) = select((pattern,))
    subject = BuggySubject(bug, dtype="float32")
    wrong = set()
    for one in all_cases():
        if one.vector.dtype == "float32":
            result = run_case(one.case, subject)
            if result.status == "different":
                wrong.add(one.vector.name)
    assert wrong
    if pattern.startswith("softcap"):
        assert all("softcap" in name or name == "local_window_gqa_rank4_mask" for name in wrong)
    for word in ("past", "rotary"):
        if pattern.startswith(word):
            assert all(word in name for name in wrong)


def test_a_wrong_expected_output_is_found():
    one = next(one for one in all_cases() if one.vector.name == "4d_gqa")
    outputs = {"Y": one.vector.outputs["Y"] + np.float32(1e-4)}
    changed = Vector(one.vector.name, "float32", one.vector.attributes, one.vector.inputs, outputs)
    problem = translate(changed)
    (_, subject) = runs([one], [])[0]
    result = run_case(one.case, replace(subject, problem=problem))
    assert result.status == "different"
    assert {mismatch.stage for mismatch in result.mismatches} == {"heads", "output"}


def test_what_is_not_known_is_refused():
    one = all_cases()[0].vector
    with pytest.raises(SpecError, match="has the attribute 'sinks', which is not known here"):
        translate(Vector("x", one.dtype, {**one.attributes, "sinks": 1}, one.inputs, one.outputs))
    with pytest.raises(SpecError, match="has the input 'rotary', which is not known here"):
        translate(Vector("x", one.dtype, one.attributes, {**one.inputs, "rotary": one.inputs["Q"]}, one.outputs))
    with pytest.raises(SpecError, match="case 'onnx:nothing' is not known"):
        onnx_cases(("onnx:nothing",))


@pytest.mark.nightly("every backend agrees with ONNX's own vectors", but=("mxnet",))
def test_the_command(backend_name, tmp_path):
    path = tmp_path / "onnx.json"
    arguments = ["--suite", "onnx", "-b", backend_name, "-c", "onnx:4d_softcap", "-c", "onnx:4d_fp16"]
    outcome = CliRunner().invoke(check, [*arguments, "--json", str(path)])
    assert outcome.exit_code == 0, outcome.output
    assert "All 6 results are equal" in outcome.output
    whole = json.loads(path.read_text())
    assert {result["case"] for result in whole["results"]} == {"onnx:4d_softcap", "onnx:4d_fp16"}
    refused = CliRunner().invoke(check, ["--suite", "onnx", "--dtype", "float64"])
    assert refused.exit_code == 2
    assert "has its own cases and dtypes" in refused.output
