"""The bounds accept every right way to compute a layer, and reject one that is imprecise."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.cases.problem import Problem
from conformance.cases.random import case_from_text
from conformance.judging.expected import answer
from conformance.subjects.backend import BackendSubject
from mha_core import AttentionConfig, AttentionInputs, init_weights
from mha_core.dtypes import round_to
from tests.conformance.calibration.formulation import PLAIN, WAYS, Formulation, ways
from tests.conformance.calibration.problems import problems

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

DTYPES = ("float64", "float32", "float16", "bfloat16")


def computed(problem, subject):
    rounded = problem.rounded(subject.dtype)
    return subject.prepare(rounded.config, rounded.weights)(rounded.inputs)


def rejected(problem, *subjects):
    """What the bounds find wrong, with the name of the subject."""
    wanted = {precision: answer(problem, precision) for precision in {subject.precision for subject in subjects}}
    found = []
    for subject in subjects:
        _, mismatches = wanted[subject.precision].judge(computed(problem, subject), subject.dtype)
        found += [f"{subject.name}: {mismatch.message}" for mismatch in mismatches]
    return found


def accepts(examples, dtype, subjects):
    """Draw so many problems, each with some subjects, the same ones each time."""

    @settings(max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=HealthCheck)
    @given(problems(dtype), subjects)
    def accepted(problem, some):
        assert rejected(problem, *some) == []

    accepted()


def formulations(dtype):
    return st.lists(st.builds(Formulation, st.just(dtype), ways()), min_size=4, max_size=4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_formulation_is_accepted(dtype):
    accepts(20, dtype, formulations(dtype))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_right_formulations_are_accepted(dtype):
    accepts(500, dtype, formulations(dtype))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", DTYPES)
def test_backends_are_accepted(backend, dtype):
    if dtype not in backend.dtypes("cpu"):
        pytest.skip(f"{backend.name} does not compute in {dtype}")
    paths = (None, *backend.default_paths()[1:])
    subjects = [BackendSubject(backend, dtype, "cpu", path) for path in paths]
    accepts(50 if backend.slow_to_prepare else 150, dtype, st.just(subjects))


CONFIGS = {
    "cap": {"softcap": 0.7},
    "slope": {"softcap": 0.7},
    "tanh": {"score": "additive", "score_dim": 3, "scale": None},
}
"""Choice -> what it acts on, where random cases seldom have that."""


@pytest.mark.parametrize(("name", "way"), [(name, way) for name in WAYS for way in WAYS[name][1:]])
def test_each_way_gives_other_bits_which_are_accepted(name, way):
    acts, rng = False, np.random.default_rng(0)
    for text in ("random-1-12", "random-1-27", *(f"random-1-{index}-parts" for index in range(3, 60, 8))):
        problem = case_from_text(text).build()
        config = replace(problem.config, bias=True, **CONFIGS.get(name, {}))
        weights = {name: x * rng.uniform(0.5, 1.5, x.shape) for name, x in init_weights(config, seed=1).items()}
        problem = Problem(config, weights, problem.inputs)
        for dtype in ("float32", "bfloat16"):
            plain, other = Formulation(dtype), Formulation(dtype, {**PLAIN, name: way})
            assert rejected(problem, other) == []
            bits = [[array.tobytes() for array in computed(problem, one).arrays().values()] for one in (plain, other)]
            acts |= bits[0] != bits[1]
    assert acts


@pytest.mark.parametrize("limit", [1e-3, 1e-2])
@pytest.mark.parametrize("changes", [{}, {"cap": "folded"}, {"softmax": "online", "row sum": "heads"}])
def test_small_gradients_through_a_small_softcap(limit, changes):
    """In float16 c dS loses digits as a subnormal number before it is divided by c again."""
    rng = np.random.default_rng(0)
    queries, keys, values = (rng.normal(size=(2, length, 8)) for length in (4, 6, 6))
    inputs = AttentionInputs(limit * queries, keys, values, cotangent=2.0**-14 * rng.normal(size=(2, 4, 8)))
    problem = Problem(AttentionConfig(8, 1, projections=False, softcap=limit), {}, inputs)
    assert rejected(problem, Formulation("float16", {**PLAIN, **changes})) == []


class Imprecise(Formulation):
    """Its output went through bfloat16."""

    def prepare(self, config, weights):
        def run(inputs):
            trace = right(inputs)
            return replace(trace, output=round_to(trace.output, "bfloat16"))

        right = super().prepare(config, weights)
        return run


class WithoutSoftcap(Formulation):
    def prepare(self, config, weights):
        return super().prepare(replace(config, softcap=None), weights)


class ForgettingThePast(Formulation):
    def prepare(self, config, weights):
        def run(inputs):
            past = {name: getattr(inputs, name) for name in ("past_keys", "past_values")}
            return right(replace(inputs, **{name: x if x is None else np.zeros_like(x) for name, x in past.items()}))

        right = super().prepare(config, weights)
        return run


@pytest.mark.parametrize(("kind", "least"), [(Imprecise, 36), (WithoutSoftcap, 14), (ForgettingThePast, 10)])
def test_a_wrong_formulation_is_rejected(kind, least):
    cases = [case_from_text(f"random-3-{index}") for index in range(60)]
    assert sum(bool(rejected(case.build(), kind("float32"))) for case in cases) >= least


def test_bounds_are_not_vacuous():
    """What is allowed in the median element is a small part of the largest, in float32."""
    shares = {stage: [] for stage in ("queries", "scores", "weights", "heads", "output")}
    for index in range(30):
        wanted = answer(case_from_text(f"random-8-{index}").build(), Formulation("float32").precision)
        for stage, found in shares.items():
            array, allowed = getattr(wanted.trace, stage), wanted.allowed_error[stage]
            finite = np.isfinite(array)
            if np.abs(array[finite]).max(initial=0.0) > 0.0:
                found.append(np.median(allowed[finite]) / np.abs(array[finite]).max())
    assert {stage: np.median(found) < 1e-4 for stage, found in shares.items()} == dict.fromkeys(shares, True)
