"""`AllowedError.least`: nowhere above the allowed error, and enough for what is right."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.judging.expected import answer
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, Trace, init_weights, reference
from mha_core.dtypes import round_to


def problem_of(seed, *, length=None, size=1.0, groups=2):
    rng = np.random.default_rng(seed)
    keys = int(rng.integers(1, 40)) if length is None else length
    queries = int(rng.integers(1, 9))
    config = AttentionConfig(
        12, 4, num_kv_heads=groups, head_dim=3, value_head_dim=5, projections=False, softcap=rng.choice([None, 2.0])
    )
    shapes = ((2, 4, queries, 3), (2, groups, keys, 3), (2, groups, keys, 5))
    arrays = [size * rng.normal(size=shape) for shape in shapes]
    arrays = [np.round(array) if seed % 5 == 4 else array for array in arrays]  # many equal ones
    allowed = rng.random((2, 4, queries, keys)) < rng.choice([0.2, 0.8])
    bias = rng.normal(size=(1, 4, queries, keys)) if seed % 3 == 0 else None
    return Problem(config, {}, AttentionInputs(*arrays, AttentionMask(allowed=allowed, bias=bias)))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [1e-30, 1.0, 20.0])
def test_it_is_nowhere_above_the_allowed_error(dtype, size):
    lengths = (None, None, None, 30, None, 1, 2, 600)
    for seed, length in enumerate(lengths):
        for softmax in dict.fromkeys((Precision.of(dtype).softmax, "float32")):
            own = replace(Precision.of(dtype), softmax=softmax, exp_ulps=20.0, key_block=512)
            found = answer(problem_of(seed, length=length, size=size), own).allowed_error
            least = found.least()
            assert set(least) == {"weights", "output"}
            for name, array in least.items():
                assert (array <= found[name]).all(), (seed, name)


def test_what_is_right_is_surely_allowed_without_the_bounds(monkeypatch):
    problem = problem_of(0, length=30)
    wanted = answer(problem, Precision.of("float32"))
    monkeypatch.setattr(type(wanted.allowed_error), "_look_at", lambda *_, **__: pytest.fail("it computed the bounds"))
    right = reference.run(problem.config, {}, wanted.problem.inputs)
    own = {name: round_to(getattr(right, name), "float32") for name in ("weights", "output")}
    assert wanted.surely_allows(Trace(**own), "float32")
    for name in own:
        wrong = np.array(own[name])
        wrong[(0,) * (wrong.ndim - 1)] *= 1.001
        assert not wanted.surely_allows(Trace(**{**own, name: wrong}), "float32")


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1.0])
def test_a_number_that_is_not_right_is_not_surely_allowed(wrong):
    wanted = answer(problem_of(1, length=30), Precision.of("float32"))
    output = np.array(wanted.trace.output, dtype=np.float32)
    row = np.argmax(wanted.where.any(axis=-1).all(axis=1)[0])
    output[0, row, 0] = wrong
    assert not wanted.surely_allows(Trace(output=output), "float32")
    assert not wanted.surely_allows(Trace(output=output.astype(np.float64)), "float32")  # of another dtype
    assert not wanted.surely_allows(Trace(scores=wanted.trace.scores.astype(np.float32)), "float32")


def test_rows_without_a_key_are_not_looked_at():
    problem = problem_of(2, length=4)
    wanted = answer(problem, Precision.of("float32"))
    output = np.array(wanted.trace.output, dtype=np.float32)
    empty = ~wanted.where.any(axis=-1).all(axis=1)
    assert empty.any()
    output[empty] = np.nan
    assert wanted.surely_allows(Trace(output=output), "float32")


def test_layers_with_projections_have_no_such_number():
    config = AttentionConfig(6, 2)
    x = np.ones((1, 2, 6))
    problem = Problem(config, init_weights(config, seed=0), AttentionInputs(x, x, x))
    assert answer(problem, Precision.of("float32")).allowed_error.least() == {}
