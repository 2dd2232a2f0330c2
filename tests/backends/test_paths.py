"""Every path of a backend gives the same numbers: eager, compiled or fast, in training or not, with weights or not."""

import importlib
import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from conformance.cases.parts import every_source, prime_config
from conformance.cases.problem import Problem
from conformance.cases.table import select
from conformance.judging.compare import compare
from conformance.judging.expected import answer
from conformance.reports.text import failure_text
from conformance.runner import run_case
from conformance.subjects.backend import BackendSubject
from mha_core import STAGES, AttentionConfig, AttentionInputs, AttentionMask, Trace
from mha_core.backend import load
from mha_core.reference import pipeline as reference
from mha_core.weights import init_weights
from tests.backends.drivers import drive

pytestmark = (
    pytest.mark.same_on_newest
)  # the releases of PyTorch and TensorFlow, and so the ways to compile them, are the same there

PATHS = {
    "torch": ("eager", "compiled", "fast", "fast-compiled", "blocks", "exported"),
    "tf": ("eager", "compiled", "fast", "fast-compiled", "fast-xla", "blocks", "exported"),
    "jax": ("compiled", "eager", "fast", "blocks", "optimized", "fast-optimized", "exported"),
    "mxnet": ("eager", "fast", "blocks"),
}
IN_BLOCKS = ("fast", "fast-compiled", "fast-xla", "fast-optimized", "blocks", "exported")
"""The paths that hold no weights."""
# torch.compile takes seconds for each of these, so they are few: an evaluation step with an empty
# item, a training step with every feature at once, and the other score. `test_parity.py` has all cases
# on the paths that compile nothing.
CASES = ("ragged-square", "everything", "additive")
ONE = ("everything", "float32")
TWO = (ONE, ("ragged-square", "float64"))
"""The cases and dtypes of each path by day, and of one that compiles or is slow the first; the others are nightly."""
SLOW = ("compiled", "fast-compiled", "fast-xla", "exported")
NIGHTLY = pytest.mark.nightly("every path is within the bound, in each dtype")


def problem_of(case_id):
    if case_id != "everything":
        return select((case_id,))[0].build()
    config = prime_config(num_heads=6, num_kv_heads=3, dropout=0.3)
    case = select(("every-source",))[0]
    return replace(case, id="everything", config=config, mask=every_source, training=True).build()


def test_the_paths_of_each_backend(backend):
    assert backend.paths() == PATHS[backend.name]
    assert backend.default_paths() == (PATHS[backend.name][0], "fast")


def by_day(name, path):
    return (ONE,) if path in SLOW or (name, path) == ("jax", "eager") else TWO


def pytest_generate_tests(metafunc):
    if "other_path" in metafunc.fixturenames:
        names = metafunc.config.getoption("--backends").split(",")
        others = [(name, path) for name in names for path in PATHS[name][1:]]
        if "case_id" not in metafunc.fixturenames:
            metafunc.parametrize(("name", "other_path"), others, ids=["-".join(pair) for pair in others])
            return
        every = [(*pair, case_id, dtype) for pair in others for case_id in CASES for dtype in ("float64", "float32")]
        given = [
            pytest.param(*one, id="-".join(one), marks=[NIGHTLY] * (one[2:] not in by_day(*one[:2]))) for one in every
        ]
        metafunc.parametrize(("name", "other_path", "case_id", "dtype"), given)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # torch's own import
def test_the_other_path_is_within_the_bound(name, other_path, case_id, dtype):
    wanted = answer(problem_of(case_id), BackendSubject(load(name), dtype, "cpu", other_path).precision)
    problem = wanted.problem
    run = load(name).prepare(problem.config, problem.weights, dtype=dtype, path=other_path)
    trace = run(problem.inputs)
    ratios = compare(trace, wanted.trace, wanted.allowed_error, wanted.where, dtype)
    stages = ("output",) if other_path in IN_BLOCKS else STAGES
    assert set(ratios) == {*stages, *(f"gradients.{name}" for name in wanted.trace.gradients)}


@pytest.mark.nightly(
    "every path takes calls of many forms",
    but=("torch-fast", "tf-fast-compiled", "tf-exported", "jax-fast", "mxnet-fast"),
)
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_one_prepared_layer_takes_calls_of_many_forms(name, other_path, monkeypatch):
    """More than the eight after which PyTorch would refuse to compile one function again."""
    if name == "torch":
        monkeypatch.setattr("backends.torch.backend._compiler", lambda: "aot_eager")  # seconds, not minutes
    problem = problem_of("prime")
    run = load(name).prepare(problem.config, problem.weights, path=other_path)
    for length in range(1, 11):
        inputs = replace(problem.inputs, queries=problem.inputs.queries[:, :1], cotangent=None)
        inputs = replace(inputs, keys=np.resize(inputs.keys, (2, length, 19)))
        inputs = replace(inputs, values=np.resize(inputs.values, (2, length, 23)))
        trace = run(inputs)
        if other_path in IN_BLOCKS:
            assert trace.weights is None
            assert trace.output.shape == (2, 1, 29)
        else:
            assert trace.weights.shape == (2, 3, 1, length)


@pytest.mark.nightly("every path keeps a NaN where it belongs", but=("torch-fast", "tf-fast", "jax-fast", "mxnet-fast"))
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_row_of_nan_gives_nan_to_the_keys_that_it_may_see_alone(name, other_path, monkeypatch):
    """Key 3 is hidden from some queries by one source and from the others by another, keys 5 and 6 from all by one."""
    if name == "torch":
        monkeypatch.setattr("backends.torch.backend._compiler", lambda: "aot_eager")
    rng = np.random.default_rng(0)
    queries, keys, values, cotangent = (rng.normal(size=(2, length, 12)) for length in (5, 7, 7, 5))
    keys[0, 1] = np.nan
    allowed = np.ones((1, 1, 5, 7), bool)
    allowed[..., 3:, 3] = False
    inputs = AttentionInputs(queries, keys, values, AttentionMask(allowed=allowed, causal=True), cotangent=cotangent)
    config = AttentionConfig(12, 3)
    gradient = load(name).prepare(config, init_weights(config, 1), path=other_path)(inputs).gradients["values"]
    np.testing.assert_array_equal(np.isnan(gradient).any(axis=-1), [[1, 1, 1, 0, 1, 0, 0], [0] * 7])


@pytest.mark.parametrize(("path", "dtype"), [(None, "float32"), (None, "float64"), ("fast", "float32")])
def test_padding_has_no_part_in_anything_whatever_stands_there(backend, path, dtype):
    """To the bit, and backward too; of the second item every key is padding."""
    config = AttentionConfig(12, 6, num_kv_heads=3, query_dim=5, key_dim=7, value_dim=11, bias=True)
    weights = init_weights(config, 1, bias_scale=1.0)
    run, rng, traces = backend.prepare(config, weights, dtype=dtype, path=path), np.random.default_rng(0), []
    sizes = (4, 5), (6, 7), (6, 11), (4, 12)
    queries, keys, values, cotangent = (rng.normal(size=(2, *size)) for size in sizes)
    for fill in (np.nan, np.inf, 1e38, 0.0):
        for array in (keys, values):
            array[0, 3:] = array[1] = fill
        inputs = AttentionInputs(queries, keys, values, AttentionMask(valid_lens=np.array([3, 0])), cotangent=cotangent)
        traces.append(run(inputs).arrays())
    wanted, clean = reference.run(config, weights, inputs).arrays(), traces[-1]
    for name, array in clean.items():
        assert all((found[name] == array).all() for found in traces), name
        if name == "output" or "." in name:
            np.testing.assert_allclose(array, wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_array_equal(clean["output"][1] - weights["out_proj.bias"].astype(dtype), np.zeros((4, 12)))
    for name, padded in (("queries", [[0] * 4, [1] * 4]), ("keys", [[0] * 3 + [1] * 3, [1] * 6])):
        is_zero = (clean[f"gradients.{name}"] == 0.0).all(axis=-1)
        np.testing.assert_array_equal(is_zero, np.array(padded, bool))


@pytest.mark.parametrize("name", PATHS)
def test_blocks_of_the_usual_size(name, backend_names, monkeypatch):
    """As the rule cuts where nothing fits a processor's caches."""
    if name not in backend_names:
        pytest.skip(f"{name} is not among the backends under test")
    budgets = [
        f"backends.{name}.{module}.{constant}"
        for module in ("fast.attend", "fast.blocks", "fast.chunks")
        if importlib.util.find_spec(f"backends.{name}.{module}")
        for constant in vars(importlib.import_module(f"backends.{name}.{module}"))
        if constant.endswith("BUDGET")
    ]
    assert budgets
    for budget in budgets:
        monkeypatch.setattr(budget, 1)
    (long,) = select(("blocks-long",))
    # Of a length of its own: a program compiled for another one has blocks already.
    case = replace(long, query_len=71)
    result = run_case(case, BackendSubject(load(name), "float32", "cpu", "fast"))
    assert result.status == "equal", failure_text(result)


def sample(training):
    """A call of the layer that users see: arrays, keywords."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(2, n, w)).astype("float32") for n, w in ((5, 6), (7, 4), (7, 9))]
    keywords = {"valid_lens": np.array([0, 4], dtype="int32"), "bias": rng.normal(size=(3, 5, 7)).astype("float32")}
    keywords |= {"causal": True, "query_offset": 2}
    if training:
        keywords["dropout_keep"] = rng.random((2, 3, 5, 7)) < 0.7
    return arrays, keywords


@pytest.mark.parametrize("training", [False, True])
def test_with_weights_the_layer_gives_its_stages_and_without_it_attends_in_blocks(backend_name, training):
    """To the bit, through the layer that users call; and both are within their bounds."""
    driver = drive(backend_name)
    arrays, keywords = sample(training)
    layer = driver.new("MultiHeadAttention", 12, 3, 0.3, bias=True)
    alone = driver.call(layer, *arrays, training=training, **keywords)
    output, weights = driver.call(layer, *arrays, training=training, return_weights=True, **keywords)
    stages = driver.ask("stages", layer, *arrays, training=training, **keywords)
    attended = driver.ask("attend", layer, *arrays, training=training, **keywords)
    in_twos = driver.ask("attend", layer, *arrays, training=training, query_block=2, **keywords)
    np.testing.assert_array_equal(driver.numpy(stages.output), output)
    np.testing.assert_array_equal(driver.numpy(stages.weights), weights)
    np.testing.assert_array_equal(driver.numpy(attended.output), alone)
    assert attended.present is None
    mask = AttentionMask(**{name: value for name, value in keywords.items() if name != "dropout_keep"})
    inputs = AttentionInputs(*arrays, mask, keywords.get("dropout_keep"))
    problem = Problem(driver.config(layer), driver.weights(layer), inputs)
    for path, trace in (
        (PATHS[backend_name][0], Trace(output=output, weights=weights)),
        ("fast", Trace(output=alone)),
        ("blocks", Trace(output=driver.numpy(in_twos.output))),
    ):
        wanted = answer(problem, BackendSubject(load(backend_name), "float32", "cpu", path).precision)
        compare(trace, wanted.trace, wanted.allowed_error, wanted.where, "float32")
    assert np.abs(output[1]).max() > 0.0
    if training:
        assert (weights[1, :, :, :4][~keywords["dropout_keep"][1, :, :, :4]] != 0).any(), (
            "weights are those before dropout"
        )


@pytest.mark.parametrize("training", [False, True])
def test_stages_are_computed_for_nobody_who_does_not_ask(backend_name, training, monkeypatch):
    driver = drive(backend_name)
    arrays, keywords = sample(training)
    layer = driver.new("MultiHeadAttention", 12, 3, 0.3, bias=True)
    driver.call(layer, *arrays, training=training, **keywords)

    def refuse(*_, **__):
        raise RuntimeError("stages were asked for")

    monkeypatch.setattr(driver.of_class(layer), "stages", refuse)
    driver.call(layer, *arrays, training=training, **keywords)
    driver.call(layer, *arrays, training=training, return_present=True, **keywords)
    with pytest.raises(RuntimeError, match="stages were asked for"):
        driver.call(layer, *arrays, training=training, return_weights=True, **keywords)
