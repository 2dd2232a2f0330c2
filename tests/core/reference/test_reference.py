"""The reference against a second one written with loops, and its gradients against finite differences."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.cases.table import all_cases
from mha_core import STAGES, AttentionConfig, AttentionInputs, AttentionMask, SpecError, init_weights
from mha_core.reference import FORWARD, backward, forward
from mha_core.reference import pipeline as reference
from mha_core.reference.forward import PART_OF
from tests.core.reference.loop_reference import loop_output

CASES = {case.id: case for case in all_cases()}
LOOP_CASES = [
    name
    for name in CASES
    if not name.startswith("trained")
    and name not in ("long", "nan-in-open-key", "nan-under-softcap", "infinity-in-open-value", "square-nan-in-query")
]
"""Loops are slow, and Python's math.exp has no NaN rules worth comparing."""


@pytest.mark.parametrize("name", LOOP_CASES)
def test_reference_agrees_with_loops(name):
    problem = CASES[name].build()
    trace = reference.run(problem.config, problem.weights, problem.inputs)
    output, weights = loop_output(problem.config, dict(problem.weights), problem.inputs)
    size = max(1.0, np.abs(output).max(initial=0.0))
    steepness = 1.0 + np.abs(np.where(problem.allowed(), trace.scores, 0.0)).max(initial=0.0)
    np.testing.assert_allclose(trace.weights, weights, rtol=0, atol=1e-15 * steepness)
    np.testing.assert_allclose(trace.output, output, rtol=0, atol=1e-14 * size * steepness)


SMOOTH = ["ragged-square", "grouped-heads", "causal-offset-per-item", "bias-excludes", "dropout", "additive-grouped"]
SMOOTH += ["softcap", "softcap-additive", "past", "heads-given", "heads-given-split"]
SMOOTH += ["rotary", "rotary-tables", "rotary-yarn", "rotary-bare", "query-key-norm", "query-key-norm-before"]
SMOOTH += ["query-key-norm-after", "query-key-norm-layer", "query-key-norm-all"]


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_agree_with_finite_differences(name):
    problem = CASES[name].build()
    rng = np.random.default_rng(0)
    gradients = reference.run(problem.config, problem.weights, problem.inputs).gradients
    for target, gradient in gradients.items():
        array = _target(problem, target)
        direction = np.where(np.isfinite(array), rng.normal(size=array.shape), 0.0)
        step = 1e-6 * direction
        up, down = _loss(problem, target, array + step), _loss(problem, target, array - step)
        expected = (gradient * direction).sum()
        assert (up - down) / 2e-6 == pytest.approx(expected, rel=1e-6, abs=1e-6), target


def _target(problem, name):
    if name in problem.weights:
        return problem.weights[name]
    return problem.inputs.mask.bias if name == "bias" else getattr(problem.inputs, name)


def _loss(problem, name, array):
    weights, inputs = dict(problem.weights), replace(problem.inputs, cotangent=None)
    if name in weights:
        weights[name] = array
    elif name == "bias":
        inputs = replace(inputs, mask=replace(inputs.mask, bias=array))
    else:
        inputs = replace(inputs, **{name: array})
    return (reference.run(problem.config, weights, inputs).output * problem.inputs.cotangent).sum()


def test_padding_has_no_influence_forward_or_backward():
    problem = CASES["nan-in-padding"].build()
    poisoned = reference.run(problem.config, problem.weights, problem.inputs)
    padding = problem.padding()[:, :, None]
    clean_inputs = replace(
        problem.inputs,
        keys=np.where(padding, 0.0, problem.inputs.keys),
        values=np.where(padding, 0.0, problem.inputs.values),
    )
    clean = reference.run(problem.config, problem.weights, clean_inputs)
    for name, array in poisoned.stages():
        np.testing.assert_array_equal(array, getattr(clean, name), err_msg=name)
    for name, array in poisoned.gradients.items():
        assert np.isfinite(array).all(), name
        np.testing.assert_array_equal(array, clean.gradients[name], err_msg=name)


def test_steps_are_replaceable():
    problem = CASES["prime"].build()
    zero = {**forward.FORWARD, "weights": lambda state: np.zeros_like(state["scores"])}
    trace = reference.run(problem.config, problem.weights, problem.inputs, forward=zero)
    assert (trace.heads == 0.0).all()
    doubled = {**backward.BACKWARD, "d_queries": lambda state: 2.0 * backward.d_queries(state)}
    plain = reference.run(problem.config, problem.weights, problem.inputs).gradients
    changed = reference.run(problem.config, problem.weights, problem.inputs, backward=doubled).gradients
    np.testing.assert_allclose(changed["queries"], 2.0 * plain["queries"], rtol=1e-14)
    np.testing.assert_array_equal(changed["keys"], plain["keys"])


def test_inputs_and_weights_stay_as_they_were_and_results_are_read_only():
    problem = CASES["every-source"].build()
    before = [
        array.copy() for array in (problem.inputs.keys, problem.weights["q_proj.weight"], problem.inputs.mask.bias)
    ]
    trace = reference.run(problem.config, problem.weights, problem.inputs)
    after = (problem.inputs.keys, problem.weights["q_proj.weight"], problem.inputs.mask.bias)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    assert not trace.output.flags.writeable
    assert not trace.gradients["keys"].flags.writeable


def test_gradients_only_where_a_cotangent_asks_for_them():
    config = AttentionConfig(6, 2)
    x = np.random.default_rng(0).normal(size=(2, 3, 6))
    inputs = AttentionInputs(x, x, x, AttentionMask(causal=True))
    assert reference.run(config, init_weights(config, 0), inputs).gradients is None


def test_wrong_cotangent_is_refused():
    config = AttentionConfig(6, 2)
    x = np.random.default_rng(0).normal(size=(2, 3, 6))
    with pytest.raises(SpecError, match=r"cotangent must be .* shape \(2, 3, 6\)"):
        reference.run(config, init_weights(config, 0), AttentionInputs(x, x, x, cotangent=x[:1]))


class Reading(dict):
    """Arrays of a State that remember which of them were read."""

    def __init__(self):
        super().__init__()
        self.read = set()

    def __getitem__(self, name):
        self.read.add(name)
        return super().__getitem__(name)


def reads_of_forward_steps():
    """Step -> the steps that it reads in any case."""
    found = {name: set() for name in FORWARD}
    for case in CASES.values():
        if case.expensive:
            continue
        problem = case.build()
        state = reference.run_state(problem.config, problem.weights, problem.inputs, forward={}, backward={})
        state.arrays = Reading()
        with np.errstate(all="ignore"):
            for name, step in FORWARD.items():
                state.arrays.read = set()
                state.arrays[name] = step(state)
                found[name] |= state.arrays.read
    return found


def test_the_table_of_steps_that_serve_one_stage_alone_is_what_the_steps_read():
    reads = reads_of_forward_steps()

    def stages_of(step):
        """The stages that this step reaches without passing through another one."""
        if step in STAGES:
            return {step}
        return {stage for name, read in reads.items() if step in read for stage in stages_of(name)}

    alone = {name: stages for name in FORWARD if name not in STAGES and len(stages := stages_of(name)) == 1}
    assert {name: {stage} for name, stage in PART_OF.items()} == alone


@pytest.mark.parametrize("name", ["exp", "tanh", "einsum"])
def test_the_reference_does_not_run_with_functions_that_somebody_has_put_in_the_place_of_numpys(name, monkeypatch):
    own = getattr(np, name)

    def narrow(*given, **told):
        return own(*(x.astype(np.float32) if isinstance(x, np.ndarray) else x for x in given), **told).astype(float)

    problem = CASES["ragged-square"].build()
    monkeypatch.setattr(np, name, narrow)
    with pytest.raises(SpecError, match=f"np.{name} gives .* a module that was imported has replaced"):
        reference.run(problem.config, problem.weights, problem.inputs)
