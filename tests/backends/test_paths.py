"""Every path of a backend gives the same numbers: eager and compiled, training and evaluation, with weights or not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conformance.cases import every_source, prime_config, select
from conformance.compare import compare
from conformance.expected import answer
from conformance.precision import Precision
from mha_core import STAGES
from mha_core.backend import load
from tests.backends.drivers import drive

PATHS = {
    "torch": ("eager", "compiled"),
    "tf": ("eager", "compiled"),
    "jax": ("compiled", "eager"),
    "mxnet": ("eager",),
}
# torch.compile takes seconds for each of these, so they are few: an evaluation step with an empty
# item, a training step with every feature at once, and the other score.
CASES = ("ragged-square", "everything", "additive")


def problem_of(case_id):
    if case_id != "everything":
        return select((case_id,))[0].build()
    config = prime_config(num_heads=6, num_kv_heads=3, dropout=0.3)
    case = select(("every-source",))[0]
    return replace(case, id="everything", config=config, mask=every_source, dropout=True).build()


def test_the_paths_of_each_backend(backend):
    assert backend.paths() == PATHS[backend.name]


def pytest_generate_tests(metafunc):
    if "other_path" in metafunc.fixturenames:
        names = metafunc.config.getoption("--backends").split(",")
        others = [(name, path) for name in names for path in PATHS[name][1:]]
        metafunc.parametrize(("name", "other_path"), others, ids=["-".join(pair) for pair in others])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case_id", CASES)
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # torch's own import
def test_the_other_path_is_within_the_bound(name, other_path, case_id, dtype):
    wanted = answer(problem_of(case_id), Precision.of(dtype))
    problem = wanted.problem
    run = load(name).prepare(problem.config, problem.weights, dtype=dtype, path=other_path)
    trace = run(problem.inputs)
    ratios = compare(trace, wanted.trace, wanted.allowed_error, wanted.where, dtype)
    assert set(ratios) == {*STAGES, *(f"gradients.{name}" for name in wanted.trace.gradients)}


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
        assert run(inputs).weights.shape == (2, 3, 1, length)


@pytest.mark.parametrize("training", [False, True])
def test_weights_returned_or_not_the_output_is_that_of_the_stages(backend_name, training):
    """Through the layer that users call, to the bit."""
    driver = drive(backend_name)
    rng = np.random.default_rng(0)
    queries, keys, values = (rng.normal(size=(2, n, w)).astype("float32") for n, w in ((5, 6), (7, 4), (7, 9)))
    keywords = {"valid_lens": np.array([0, 4], dtype="int32"), "bias": rng.normal(size=(3, 5, 7)).astype("float32")}
    keywords |= {"causal": True, "query_offset": 2}
    if training:
        keywords["dropout_keep"] = rng.random((2, 3, 5, 7)) < 0.7
    layer = driver.new("MultiHeadAttention", 12, 3, 0.3, bias=True)
    alone = driver.call(layer, queries, keys, values, training=training, **keywords)
    output, weights = driver.call(layer, queries, keys, values, training=training, return_weights=True, **keywords)
    stages = stages_of(driver, layer, (queries, keys, values), training, keywords)
    np.testing.assert_array_equal(alone, output)
    np.testing.assert_array_equal(driver.numpy(stages.output), output)
    np.testing.assert_array_equal(driver.numpy(stages.weights), weights)
    assert np.abs(output[1]).max() > 0.0
    if training:
        assert (weights[1, :, :, :4][~keywords["dropout_keep"][1, :, :, :4]] != 0).any(), (
            "weights are those before dropout"
        )


def stages_of(driver, layer, arrays, training, keywords):
    """What the layer's `stages` gives for the same call."""
    arrays = [driver.array(array) for array in arrays]
    converted = driver._convert(keywords)
    if driver.package.__name__ == "backends.jax":
        converted["deterministic"] = not training
        return layer["module"].apply(layer["variables"], *arrays, **converted, method="stages")
    if driver.package.__name__ == "backends.tf":
        return layer.stages(*arrays, **converted, training=training)
    if driver.package.__name__ == "backends.mxnet":
        import mxnet as mx

        mode = mx.autograd.train_mode() if training else mx.autograd.predict_mode()
        with mx.util.np_shape(True), mx.util.np_array(True), mode:
            return layer.stages(*arrays, **converted)
    return layer.train(training).stages(*arrays, **converted)
