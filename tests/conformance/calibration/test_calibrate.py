"""Calibration: correct implementations pass, an imprecise one does not, and every run can be had again."""

from __future__ import annotations

from dataclasses import replace
from itertools import count, islice

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.calibration.calibrate import Figures, judge, of_layer, parse_case, quantiles, replay, taking_part
from conformance.calibration.draws import DRAWS_PER_LAYER, draw_layer
from conformance.calibration.formulations import FORMULATIONS, formulation
from conformance.cases.problem import Problem
from conformance.judging.expected import answer
from conformance.subjects.backend import BackendSubject
from mha.cli.main import main
from mha_core import AttentionConfig, AttentionInputs, SpecError
from mha_core.backend import load
from mha_core.dtypes import round_to

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def calibrate(seed, runs, dtype, subjects):
    """The first runs, one layer after the other, in this process."""
    layers = (of_layer(seed, number, dtype, taking_part(subjects, number)) for number in count())
    return islice(((wanted, outcome) for layer in layers for _, wanted, outcome in layer), runs)


def every_formulation(dtype):
    return [formulation(name, dtype) for name in FORMULATIONS]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_correct_formulations_are_not_rejected(dtype):
    figures = Figures()
    for wanted, outcome in calibrate(3, 200, dtype, every_formulation(dtype)):
        figures.add(wanted, outcome)
    assert len(figures.outcomes) == 200
    assert [outcome.message for outcome in figures.outcomes if outcome.message] == []


FEATURES = {
    "softcap": lambda layer: layer.config.softcap is not None,
    "past": lambda layer: layer.description.sizes.past_len > 0,
    "without projections": lambda layer: not layer.config.projections,
    "split": lambda layer: layer.description.split,
}


def layers_with(feature, seed, count):
    return list(islice((n for n in range(2000) if FEATURES[feature](draw_layer(seed, n))), count))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("feature", FEATURES)
def test_correct_formulations_of_decoding_and_bare_attention_are_not_rejected(feature, dtype):
    outcomes = [
        outcome
        for number in layers_with(feature, seed=9, count=2)
        for _, outcome in replay(f"9-{number * DRAWS_PER_LAYER}", dtype, every_formulation(dtype))
    ]
    assert len(outcomes) == 2 * len(FORMULATIONS)
    assert [outcome.message for outcome in outcomes if outcome.message] == []


def test_how_often_each_feature_is_drawn():
    layers = [draw_layer(10, number) for number in range(400)]
    rates = {name: sum(map(has, layers)) / len(layers) for name, has in FEATURES.items()}
    assert 0.10 < rates["softcap"] < 0.20
    assert 0.10 < rates["past"] < 0.20
    assert 0.02 < rates["without projections"] < 0.09
    assert 0.0 < rates["split"] < rates["without projections"]


def without_softcap(config, inputs):
    return replace(config, softcap=None), inputs


def forgotten_past(config, inputs):
    past = {name: 0.0 * getattr(inputs, name) for name in ("past_keys", "past_values")}
    return config, replace(inputs, **past)


@pytest.mark.parametrize(("feature", "wrong"), [("softcap", without_softcap), ("past", forgotten_past)])
def test_what_ignores_a_feature_is_rejected(feature, wrong):
    right = formulation("plain", "float64")

    class Wrong:
        name, dtype, precision = "wrong", "float64", right.precision

        def prepare(self, config, weights):
            def run(inputs):
                changed, given = wrong(config, inputs)
                return right.prepare(changed, weights)(given)

            return run

    cases = [f"9-{number * DRAWS_PER_LAYER}" for number in layers_with(feature, seed=9, count=8)]
    rejected = [outcome.rejected for case in cases for _, outcome in replay(case, "float64", [Wrong()])]
    assert sum(rejected) >= 6


@pytest.mark.parametrize("limit", [1e-3, 1e-2])
def test_small_gradients_through_a_small_softcap(limit):
    """In float16 c dS loses digits as a subnormal number before it is divided by c again."""
    rng = np.random.default_rng(0)
    config = AttentionConfig(8, 1, projections=False, softcap=limit)
    inputs = AttentionInputs(
        limit * rng.normal(size=(2, 4, 8)),
        rng.normal(size=(2, 6, 8)),
        rng.normal(size=(2, 6, 8)),
        cotangent=2.0**-14 * rng.normal(size=(2, 4, 8)),
    )
    for name in ("plain", "reciprocal", "groups-in-queries", "online-flash"):
        subject = formulation(name, "float16")
        outcome = judge("", answer(Problem(config, {}, inputs), subject.precision), subject, {})
        assert not outcome.message


def test_a_backend_takes_part(backend_names):
    if "torch" not in backend_names:
        pytest.skip("torch is not among the backends under test")
    subject = BackendSubject(load("torch"), "float32", "cpu")
    outcomes = [outcome for _, outcome in calibrate(4, 40, "float32", [subject])]
    assert [outcome.message for outcome in outcomes if outcome.message] == []
    assert max(outcome.ratio for outcome in outcomes) > 0.01


def test_there_are_at_least_20_formulations():
    assert len(FORMULATIONS) >= 20


class Imprecise:
    """A float32 layer whose output went through bfloat16."""

    def __init__(self):
        self.right = formulation("plain", "float32")
        self.name, self.dtype, self.device = "imprecise", "float32", "cpu"
        self.precision = self.right.precision

    def prepare(self, config, weights):
        run = self.right.prepare(config, weights)

        def imprecise(inputs):
            trace = run(inputs)
            return replace(trace, output=round_to(trace.output, "bfloat16"))

        return imprecise


def test_an_imprecise_layer_is_rejected_and_the_run_can_be_had_again():
    outcomes = [outcome for _, outcome in calibrate(5, 20, "float32", [Imprecise()])]
    rejected = [outcome for outcome in outcomes if outcome.rejected]
    assert len(rejected) > 10
    ((_, again),) = replay(rejected[0].case, "float32", [Imprecise()])
    assert (again.ratio, again.message) == (rejected[0].ratio, rejected[0].message)
    assert rejected[0].replay.startswith(f"mha calibrate --replay {rejected[0].case} --dtype float32")


def test_the_same_seed_gives_the_same_runs():
    first, again, other = (
        [(outcome.case, outcome.ratio) for _, outcome in calibrate(seed, 30, "float32", every_formulation("float32"))]
        for seed in (6, 6, 7)
    )
    assert first == again
    assert first != other


def test_bounds_are_not_vacuous():
    """What is allowed in the median element is a small part of the largest, in float32."""
    figures = Figures()
    for wanted, outcome in calibrate(8, 50, "float32", [formulation("plain", "float32")]):
        figures.add(wanted, outcome)
    for stage in ("queries", "scores", "weights", "heads", "output"):
        assert quantiles(figures.tightness["float32", stage])["median"] < 1e-4, stage


def test_the_command_reports_and_exits(tmp_path):
    path = tmp_path / "figures.json"
    arguments = ["calibrate", "--runs", "50", "--formulation", "plain", "--formulation", "online", "--json", str(path)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "0 of 50 runs of correct implementations rejected" in result.output
    assert path.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--runs", "0"],
        ["--seed", "-1"],
        ["--dtype", "float8"],
        ["--backend", "pytroch"],
        ["--formulation", "guess"],
        ["--replay", "7"],
        ["--json", "/no/such/folder/x.json"],
    ],
)
def test_bad_arguments_exit_2_before_anything_runs(arguments):
    result = CliRunner().invoke(main, ["calibrate", *arguments])
    assert result.exit_code == 2
    assert "rejected" not in result.output


def test_cases_are_named_by_seed_and_index():
    assert parse_case("7-204") == (7, 204)
    with pytest.raises(SpecError, match="replay must be SEED-INDEX"):
        parse_case("7-")
