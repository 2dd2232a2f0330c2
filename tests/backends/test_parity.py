"""Every case on every backend: what `mha check` runs, and half precision where a backend has it."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.cases import all_cases, select
from conformance.report import failure_text
from conformance.runner import BackendSubject, run_case


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_case_is_equal(backend, dtype):
    results = [run_case(case, BackendSubject(backend, dtype, "cpu")) for case in all_cases()]
    failures = [failure_text(result) for result in results if result.status != "equal"]
    assert not failures, "\n".join(failures)


HALF = ("ragged-square", "prime", "grouped-heads", "every-source", "dropout", "additive", "nan-in-padding", "no-keys")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_where_a_backend_has_it(backend, dtype):
    if dtype not in backend.dtypes("cpu"):
        assert backend.name == "mxnet"
        return
    results = [run_case(select((name,))[0], BackendSubject(backend, dtype, "cpu")) for name in HALF]
    failures = [failure_text(result) for result in results if result.status != "equal"]
    assert not failures, "\n".join(failures)


def test_trained_layers_give_what_the_original_gave(backend):
    for case in select(("trained-*",)):
        for dtype, most in (("float64", 1e-13), ("float32", 1e-5)):
            recorded = run_case(case, BackendSubject(backend, dtype, "cpu")).recorded
            assert set(recorded) == {"weights", "heads", "output"}
            assert max(recorded.values()) < most, (case.id, dtype, recorded)


def test_the_callers_arrays_stay_as_they_were(backend):
    problem = select(("every-source",))[0].build()
    inputs = problem.inputs
    arrays = [inputs.queries, inputs.keys, inputs.values, inputs.mask.bias, inputs.mask.allowed, inputs.mask.valid_lens]
    before = [array.copy() for array in arrays]
    trace = backend.prepare(problem.config, problem.weights)(inputs)
    for old, new in zip(before, arrays, strict=True):
        np.testing.assert_array_equal(old, new)
    first = trace.output.copy()
    backend.prepare(problem.config, problem.weights)(inputs)
    np.testing.assert_array_equal(trace.output, first)
