"""mha.tolerance: the right numbers and their bounds, for arrays of every framework; and docs/bounds.md."""

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import mha
from conformance.bounds.precision import Precision
from conformance.cases.table import select as select_cases
from conformance.judging.expected import expected
from mha.cli.porter.audit import audit
from mha_core import STAGES, AttentionConfig, AttentionInputs, AttentionMask, SpecError, init_weights, reference
from mha_core.dtypes import DTYPES, round_to
from tests.mha.cli.test_where import in_any_order

CONFIG = AttentionConfig(12, 4)
WEIGHTS = init_weights(CONFIG, seed=0)
X = np.random.default_rng(0).normal(size=(2, 5, 12))
INPUTS = AttentionInputs(X, X, X, AttentionMask(valid_lens=np.array([3, 5])))
DOC = Path(__file__).parents[3] / "docs" / "bounds.md"


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_it_is_the_bound_of_the_suite(dtype):
    """Every stage and gradient of cases with masks, padding and empty rows; each rounded answer passes."""
    for case in select_cases(("prime", "no-items", "*causal*"))[:4]:
        problem, wanted = case.build(), expected(case, Precision.of(dtype))
        found = mha.tolerance(problem.config, problem.weights, problem.inputs, dtype)
        for name, allowed in wanted.allowed_error.items():
            one = found.at(name)
            assert np.array_equal(one.expected, wanted.trace.arrays()[name], equal_nan=True)
            counts = wanted.where if name == "scores" else np.ones(allowed.shape, bool)
            assert np.array_equal(one.allowed[counts], allowed[counts])
            one.assert_close(round_to(one.expected, dtype))


def native(backend):
    """A function that makes an array of this framework, in bfloat16 too."""
    module = import_module(f"backends.{backend}.ops.framework")
    if backend == "torch":
        import torch

        return lambda array, dtype: torch.tensor(array, requires_grad=True).to(getattr(torch, dtype))
    if backend == "mxnet":
        return lambda array, dtype: module.mx.np.array(array, dtype=dtype)
    if backend == "jax":
        import jax.numpy as jnp

        def make(array, dtype):
            with module.scope("float64", module.device_of("cpu")):
                return jnp.asarray(array, dtype)

        return make
    import tensorflow as tf

    return lambda array, dtype: tf.cast(tf.constant(array), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_framework_are_taken(backend_names, dtype):
    for backend in backend_names:
        if backend == "mxnet" and dtype == "bfloat16":
            continue  # it has none
        make = native(backend)
        inputs = AttentionInputs(*(make(round_to(X, dtype), dtype) for _ in range(3)), INPUTS.mask)
        weights = {name: make(array, dtype) for name, array in WEIGHTS.items()}
        found = mha.tolerance(CONFIG, weights, inputs, dtype)
        same = mha.tolerance(CONFIG, WEIGHTS, INPUTS, dtype)
        assert np.array_equal(found.expected, same.expected), backend
        right = round_to(found.expected, dtype)
        found.assert_close(make(right, dtype))
        with pytest.raises(AssertionError, match=r"^output differs in \d+ of 120 elements"):
            found.assert_close(make(1.1 * right, dtype))


def test_the_message_is_the_line_of_mha_check():
    found = mha.tolerance(CONFIG, WEIGHTS, INPUTS, "float32")
    wrong = found.expected.astype("float32")
    wrong[1, 2, 3] += 1
    with pytest.raises(AssertionError) as raised:
        found.assert_close(wrong)
    assert re.fullmatch(
        r"output differs in 1 of 120 elements \(0\.833 %\), worst at \[1, 2, 3\]: "
        r"got [-\d.]+, expected [-\d.]+, error 1, allowed [\de.-]+",
        str(raised.value),
    )


def test_nan_is_equal_to_nan_alone():
    queries = X.copy()
    queries[0, 1] = np.nan
    found = mha.tolerance(CONFIG, WEIGHTS, replace(INPUTS, queries=queries), "float32")
    right = found.expected.astype("float32")
    assert np.isnan(right[0, 1]).all()
    found.assert_close(right)
    for wrong in (np.nan_to_num(right), np.where(np.isnan(right), np.inf, right), np.full_like(right, np.nan)):
        with pytest.raises(AssertionError, match="error inf"):
            found.assert_close(wrong)


def test_excluded_scores_and_exact_zeros():
    found = mha.tolerance(CONFIG, WEIGHTS, INPUTS, "float32")
    scores, weights = found.at("scores"), found.at("weights")
    assert np.isinf(scores.allowed[0, :, :, 3:]).all()
    scores.assert_close(np.where(np.isinf(scores.allowed), -np.inf, scores.expected).astype("float32"))
    assert (weights.allowed[0, :, :, 3:] == 0).all()
    with pytest.raises(AssertionError, match="weights differs in 1 of"):
        weights.assert_close(np.where(np.arange(200).reshape(2, 4, 5, 5) == 4, 1e-30, weights.expected).astype("f4"))


def test_gradients_are_there_if_they_are_asked_for():
    found = mha.tolerance(CONFIG, WEIGHTS, replace(INPUTS, cotangent=np.ones_like(X)), "float32").at("gradients.keys")
    found.assert_close(found.expected.astype("float32"))
    with pytest.raises(AssertionError, match=r"gradients\.keys differs"):
        found.assert_close(1.01 * found.expected.astype("float32"))
    with pytest.raises(SpecError, match=rf"no stage 'gradients.keys' \(there are: {', '.join(STAGES)}\)"):
        mha.tolerance(CONFIG, WEIGHTS, INPUTS, "float32").at("gradients.keys")


@pytest.mark.parametrize(
    ("actual", "said"),
    [
        (np.zeros((2, 5, 11), "f4"), r"output must have shape \(2, 5, 12\)\. Got \(2, 5, 11\)\."),
        (np.full(X.shape, 0.1), "output must hold numbers of float32, its dtype. Got 0.1, which is not one."),
        (np.zeros(X.shape, int), "output must hold floating-point numbers. Got int64."),
        (np.zeros(X.shape, complex), "output must hold floating-point numbers. Got complex128."),
        ([[1.0], [2.0, 3.0]], "output can't be made an array of NumPy: ValueError"),
        (None, r"output must have shape \(2, 5, 12\)\. Got \(\)\."),
    ],
)
def test_what_can_not_be_judged_is_refused(actual, said):
    with pytest.raises(SpecError, match=said):
        mha.tolerance(CONFIG, WEIGHTS, INPUTS, "float32").assert_close(actual)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((CONFIG, WEIGHTS, INPUTS, "float8"), "dtype 'float8' is not known"),
        ((CONFIG, WEIGHTS, INPUTS, np.float32), "dtype must be a name"),
        ((AttentionConfig(8, 4), WEIGHTS, INPUTS, "float32"), "q_proj.weight must have shape"),
        ((CONFIG, INPUTS, WEIGHTS, "float32"), "tolerance takes"),
        ((CONFIG, None, INPUTS, "float32"), "weights must be a dict by canonical name. Got None."),
        ((CONFIG, WEIGHTS, AttentionInputs(X, X[:, :3], X, INPUTS.mask), "float32"), "keys|values"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, said):
    with pytest.raises(SpecError, match=said) as raised:
        mha.tolerance(*arguments)
    assert "\n" not in str(raised.value)


def test_a_recorded_call(tmp_path):
    from mha.recordings.recording import RecordedCall, RecordedLayer, Recording

    held = {name: round_to(array, "float32") for name, array in WEIGHTS.items()}
    x = X.astype("float32")
    calls = []
    for mask in (INPUTS.mask, AttentionMask(causal=True)):
        inputs = AttentionInputs(x, x, x, mask)
        output = reference.run(CONFIG, held, inputs).output.astype("float32")
        calls.append(RecordedCall(0, inputs, {"output": output}))
    recording = Recording((RecordedLayer("", "mine", "float32", CONFIG, held),), tuple(calls))
    recording.save(tmp_path / "calls.safetensors")
    for call in (1, -1, "layer#2"):
        found = mha.tolerance_of(tmp_path / "calls.safetensors", call)
        found.assert_close(calls[1].outputs["output"])
        with pytest.raises(AssertionError):
            found.assert_close(calls[0].outputs["output"])
    assert mha.tolerance_of(recording, dtype="float16").allowed.max() > mha.tolerance_of(recording).allowed.max()
    for call in (2, -3, "layer", 1.0, True):
        with pytest.raises(SpecError, match=rf"there is no call {call!r} \(there are 2: layer#1, layer#2\)"):
            mha.tolerance_of(recording, call)


def test_the_page_shows_what_its_examples_print(tmp_path, monkeypatch, capsys, backend_names):
    if "torch" not in backend_names:
        pytest.skip("runs torch, which was not asked for")
    monkeypatch.chdir(tmp_path)
    first, second = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
    printed, asked = re.findall(r"```\n((?:\(|\$).*?)```", DOC.read_text(), re.DOTALL)
    digits = re.compile(r"(-?\d+\.\d{2})\d+")  # the last ones are the machine's
    exec(compile(first, DOC.name, "exec"), {})
    assert digits.sub(r"\1", capsys.readouterr().out) == digits.sub(r"\1", printed)
    exec(compile(second, DOC.name, "exec"), {})
    command, _, shown = asked.partition("\n")
    done = CliRunner().invoke(audit, command.removeprefix("$ mha audit ").split())
    assert (done.exit_code, in_any_order(done.stdout)) == (0, in_any_order(shown))
