"""The runner, and that the suite names the right stage for deliberate mistakes."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.cases import all_cases, select
from conformance.expected import expected
from conformance.precision import Precision
from conformance.runner import ReferenceSubject, run_all, run_case
from mha_core import reference
from mha_core.heads import split_heads


class Broken(ReferenceSubject):
    """The reference with one forward step replaced."""

    name = "broken"

    def __init__(self, **steps):
        self.forward = {**reference.FORWARD, **steps}

    def prepare(self, config, weights):
        return lambda inputs: reference.run(config, weights, inputs, forward=self.forward)


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.id)
def test_the_reference_goes_through_the_suite_as_a_subject(case):
    result = run_case(case, ReferenceSubject())
    assert result.status == "equal"
    assert all(distance < 1e-14 for distance in result.recorded.values())


def test_trained_recordings_are_compared():
    results = [run_case(case, ReferenceSubject()) for case in select(("trained-*",))]
    assert all(set(result.recorded) == {"weights", "heads", "output"} for result in results)


def split_as_d_h(state):
    projected = reference.project(state, "q_proj", state.inputs.queries)
    batch, length, _ = projected.shape
    return projected.reshape(batch, length, -1, state.config.num_heads).transpose(0, 3, 1, 2)


MISTAKES = {
    "scale left out": ("scores", {"scores": lambda s: reference.scores(s) / s.config.softmax_scale}),
    "heads split as (d, h)": ("queries", {"queries": split_as_d_h}),
    "mask inverted": ("weights", {"allowed": lambda s: ~reference.allowed(s)}),
    "lengths one too long": (
        "keys",
        {
            "allowed": lambda s: np.roll(reference.allowed(s), 1, axis=-1),
            "padding": lambda s: reference.padding(s) & False,
        },
    ),
    "keys where values belong": (
        "values",
        {"values": lambda s: split_heads(reference.project(s, "v_proj", s["key_inputs"]), s.config.num_kv_heads)},
    ),
    "output bias twice": ("output", {"output": lambda s: reference.output(s) + s.weights["out_proj.bias"]}),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_first_stage_named_is_where_the_mistake_is(name):
    stage, steps = MISTAKES[name]
    result = run_case(select(("ragged-square",))[0], Broken(**steps))
    assert result.status in ("different", "failed")
    if result.status == "different":
        assert result.mismatches[0].stage == stage
        assert result.mismatches[0].index is not None


class Raising(ReferenceSubject):
    name = "raising"

    def prepare(self, config, weights):
        raise RuntimeError("out of luck\nand a long traceback")


def test_a_subject_that_raises_gives_one_line_and_the_rest_still_runs():
    seen = []
    results = list(run_all(select(("prime", "causal")), [Raising(), ReferenceSubject()], seen.append))
    assert [(result.subject, result.status) for result in results] == [
        ("raising", "failed"),
        ("raising", "failed"),
        ("reference", "equal"),
        ("reference", "equal"),
    ]
    assert results[0].message == "RuntimeError: out of luck"
    assert seen == results


def test_results_say_how_to_run_them_again():
    result = run_case(select(("prime",))[0], Raising())
    assert result.rerun == "mha check --backend raising --case prime --dtype float64"


def test_the_reference_runs_once_per_case_and_dtype():
    case = select(("prime",))[0]
    single = Precision.of("float32")
    assert expected(case, single) is expected(case, Precision.of("float32"))
    assert expected(case, single) is not expected(case, Precision.of("float64"))
