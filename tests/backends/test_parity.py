"""Every case on every backend, staged and in blocks; and half precision where a backend has it."""

import pytest

from conformance.cases.table import all_cases, select
from conformance.judging.result import Result
from conformance.reports.text import failure_text
from conformance.runner import run_case
from conformance.subjects.backend import BackendSubject
from tests.backends.drivers import asked_twice

PATHS = (None, "fast", "blocks")
"""The usual one, and what needs no weights: in the blocks that the rule makes, and in blocks of two queries."""

JAX_IN = {"fast": "float32", "blocks": "float64"}
"""JAX compiles each of the cases for a quarter of a second; `mha check --all` has "fast" in both dtypes."""


RESULTS: dict[tuple[str, str | None, str, str, bool], Result] = {}
"""What became of a case, by backend, path, dtype, case and whether it was asked in every way."""


HALF_IN_BLOCKS = ("every-source", "additive-grouped", "softcap", "blocks-in-training", "decoding-step-in-parts")


def judged(case, backend, path, dtype, ask=asked_twice):
    """The result of a case, which is asked once for all tests that look at it."""
    key = (backend.name, path, dtype, case.id, ask is run_case)
    if key not in RESULTS:
        RESULTS[key] = ask(case, BackendSubject(backend, dtype, "cpu", path))
    return RESULTS[key]


def every_case(backend, path, dtype):
    results = [judged(case, backend, path, dtype, run_case) for case in all_cases()]
    failures = [failure_text(result) for result in results if result.status != "equal"]
    assert not failures, "\n".join(failures)
    return results


@pytest.mark.nightly("every case is equal on each path, in each dtype")  # by day `mha check` asks them
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_case_is_equal(backend, dtype):
    every_case(backend, PATHS[0], dtype)


SOME = (
    *("every-source", "causal-offset-per-item", "nan-in-open-key", "additive-grouped", "softcap-windowed", "no-keys"),
    *("heads-given-split", "blocks-of-uneven-lengths", "blocks-in-training", "decoding-step-in-parts"),
)
"""By day: of each feature that blocks meet, the case that has most of the others. Positions and norms stand before all
blocks, and `mha check` has them on the fast path.
"""


# How NumPy's arrays go in and come out is the same on each path; the releases of PyTorch and TensorFlow are the same
# there, and so is what they compute in blocks.
@pytest.mark.same_on_newest_of("torch", "tf")
def test_some_cases_are_equal_in_blocks(backend):
    results = [judged(case, backend, "blocks", "float32") for case in select(SOME)]
    assert not [failure_text(result) for result in results if result.status != "equal"]
    assert {name for result in results for name in result.judged if "." not in name} == {"output"}


@pytest.mark.nightly("every case is equal on each path, in each dtype")
@pytest.mark.same_on_newest_of("torch", "tf")  # as above
@pytest.mark.parametrize(
    ("path", "dtype"),
    [("fast", "float32"), ("fast", "float64"), ("blocks", "float64"), ("blocks", "float32")],
)
def test_every_case_is_equal_in_blocks(backend, path, dtype):
    if backend.name == "jax" and JAX_IN[path] != dtype:
        pytest.skip(f"JAX compiles each case: here, {path} is in {JAX_IN[path]} alone")
    results = every_case(backend, path, dtype)
    assert {name for result in results for name in result.judged if "." not in name} == {"output"}


HALF = ("ragged-square", "prime", "grouped-heads", "every-source", "dropout", "additive", "nan-in-padding", "no-keys")


@pytest.mark.nightly(
    "half precision is within its bound on each path",
    but=("jax-None-float16", "mxnet-None-float16", "tf-fast-bfloat16", "torch-blocks-float16"),
)
@pytest.mark.same_on_newest_of("torch", "tf")  # as above
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("path", PATHS)
def test_half_precision_where_a_backend_has_it(backend, path, dtype):
    if dtype not in backend.dtypes("cpu"):
        assert backend.name == "mxnet"
        return
    names = HALF if path is None else HALF_IN_BLOCKS
    results = [judged(select((name,))[0], backend, path, dtype) for name in names]
    failures = [failure_text(result) for result in results if result.status != "equal"]
    assert not failures, "\n".join(failures)


@pytest.mark.nightly("trained layers give what the original gave", but=("mxnet-float64-1e-13", "torch-float64-1e-13"))
@pytest.mark.parametrize(("dtype", "most"), [("float64", 1e-13), ("float32", 1e-5)])
def test_trained_layers_give_what_the_original_gave(backend, dtype, most):
    for case in select(("trained-*",)):
        recorded = judged(case, backend, None, dtype).recorded
        assert set(recorded) == {"weights", "output"}
        assert max(recorded.values()) < most, (case.id, dtype, recorded)
