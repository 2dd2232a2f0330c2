"""What no bug on file gives is measured: a change at one place that gives every answer, in new calls too."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.kinds.made import is_measured
from conformance.measure.asker import Asker
from conformance.measure.probes import PROBES
from conformance.measure.search import Probing
from conformance.subjects.ask import CannotExpress
from conformance.zoo.forward.precision import to_integers
from conformance.zoo.registry import all_bugs
from mha_core.dtypes import round_to
from tests.conformance.measure.wrong import OutputAlone, measured, same_in_new_calls, wrong_at

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

OF_HEADS = np.random.default_rng(3).uniform(0.4, 1.6, size=12)


def _of_heads(state, array):
    return array * OF_HEADS[: array.shape[1], None, None]


def _sink(state, weights):
    highest = np.where(state["allowed"], state["scores"], 0.0).max(axis=-1, keepdims=True, initial=0.0)
    exponentials = np.where(state["allowed"], np.exp(state["scores"] - highest), 0.0)
    return exponentials / (exponentials.sum(axis=-1, keepdims=True) + 0.37 * np.exp(-highest))


def _filled(state, weights):
    scores = np.where(state["allowed"], state["scores"], -2.5)
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _of_squares(state, weights):
    squares = np.where(state["allowed"], np.maximum(state["scores"], 0.0) ** 2, 0.0)
    total = squares.sum(axis=-1, keepdims=True)
    return squares / np.where(total == 0.0, 1.0, total)


def _only_causal(state, array):
    return array * 0.6 if state.inputs.mask.causal else array


FAULTS = {
    "a factor of sizes": (
        "similarity",
        lambda s, x: x * (s.config.head_dim / s.config.query_dim) ** 0.5,
        "multiplied by sqrt(head_dim / query_dim)",
    ),
    "a constant": ("projected_values", lambda s, x: 0.707 * x, "multiplied by 0.707"),
    "a factor of each head": ("heads", _of_heads, "multiplied by a number of each head: 0.50"),
    "an order": ("heads", lambda s, x: x[..., ::-1], "in reverse order along the channel axis"),
    "a function": ("queries", lambda s, x: np.tanh(x), "mapped by x -> tanh(x)"),
    "a bound": ("heads", lambda s, x: np.clip(x, -0.5, 0.5), "clipped to +-0.5"),
    "a rounding": ("queries", lambda s, x: round_to(x, "bfloat16").astype(float), "rounded to bfloat16"),
    "a rounding to integers": (
        "heads",
        lambda s, x: to_integers(x, 8, (0, 1, 2)),
        "8-bit integers times a scale",
    ),
    "a sum": ("weights", _sink, "0.37 is added to the divisor of a row, sum(exp(score))."),
    "a fill": ("weights", _filled, "Excluded scores become -2.5"),
    "a rule of keys": (
        "allowed",
        lambda s, x: x & (np.arange(x.shape[-1]) % 2 == 0),
        "Keys of odd number are left out",
    ),
    "an order of axes": (
        "merged",
        lambda s, x: s["heads"].transpose(0, 2, 3, 1).reshape(x.shape),
        "Heads are merged in the order (B, L, d, H)",
    ),
    "another function than exp": (
        "weights",
        _of_squares,
        "Attention weights are relu(s)^2 of each score s, divided by their sum",
    ),
    "a norm": (
        "queries",
        lambda s, x: x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + 1e-6),
        "Queries are normed (RMSNorm over their head, eps 1e-06), and the config has no query-key norm.",
    ),
    "a head of zeros": (
        "heads",
        lambda s, x: x * (np.arange(x.shape[1]) < x.shape[1] - 1)[:, None, None],
        "0 at the last index along the head axis",
    ),
    "some calls": ("heads", _only_causal, "Only in calls with a causal mask: the heads' outputs"),
}
"""What is wrong: (the step, what is done to its result, what is said)."""


@pytest.mark.nightly("a change at one place is described", every=7)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_change_at_one_place_is_described_and_holds_in_new_calls(fault):
    step, change, said = FAULTS[fault]
    bug = wrong_at(step, change)
    found = measured(bug)
    assert found.models, [one.probe.id for one in found.outcomes if one.differing]
    assert all(map(is_measured, found.models[0]))
    assert any(said in model[0].sentence for model in found.models), [model[0].sentence for model in found.models]
    assert any(same_in_new_calls([bug], model) for model in found.models)


def test_a_score_of_excluded_keys_is_read_in_float32_too():
    """Their weights are as small as 1e-5, and have few digits then."""

    def filled(state, weights):
        scores = state["scores"] + np.where(state["allowed"], 0.0, -10.0)
        exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
        return exponentials / exponentials.sum(axis=-1, keepdims=True)

    found = Probing(Asker(OutputAlone(wrong_at("weights", filled), dtype="float32")), ()).run()
    assert "-10 is added to excluded scores" in found.models[0][0].sentence


def test_of_two_faults_each_is_found_at_its_own_problems():
    known = next(bug for bug in all_bugs() if bug.id == "out-proj-bias-missing")
    doubled = wrong_at("similarity", lambda s, x: 2.0 * x)
    found = measured(known, doubled, zoo=[known])
    assert found.models
    assert {bug.id.rpartition("-times-")[2] for bug in found.models[0]} == {"out-proj-bias-missing", "2"}


def test_a_claim_that_further_calls_contradict_is_none():
    """As that a given scale is ignored, of a layer that takes half of it."""
    claimed = next(bug for bug in all_bugs() if bug.id == "scale-given-ignored")
    half = wrong_at("similarity", lambda s, x: x if s.config.scale is None else 0.5 * x)
    found = Probing(Asker(OutputAlone(half)), [claimed]).run([(claimed,)])
    assert (claimed,) not in found.models
    assert found.against is not None
    assert found.against.probe.id == "given-scale"


class Quantised(OutputAlone):
    """A layer whose weights are integers from -most to most, times a step that the largest of an axis gives."""

    def __init__(self, most, axis):
        super().__init__()
        self.most, self.axis = most, axis

    def prepare(self, config, weights):
        return super().prepare(config, {name: self.held(x) if x.ndim == 2 else x for name, x in weights.items()})

    def held(self, weight):
        step = np.abs(weight).max(axis=self.axis, keepdims=True) / self.most
        integers = np.rint(weight / np.where(step, step, 1.0)).astype(np.int8)
        return integers * step


@pytest.mark.nightly("weights in fewer bits are said", but=("rows",))
@pytest.mark.parametrize(
    ("most", "axis", "said"),
    [
        pytest.param(127, None, "8-bit integers times a scale of each matrix.", id="matrices"),
        pytest.param(7, 1, "4-bit integers times a scale of each output channel.", id="rows"),
    ],
)
def test_weights_in_fewer_bits_are_said_with_what_has_a_scale(most, axis, said):
    plain = [PROBES[3].problems(Asker(OutputAlone()))[0]]
    found = Probing(Asker(Quantised(most, axis)), (), like=plain).run()
    assert [model[0].sentence for model in found.models] == [f"The weights of all projections are {said}"]
    assert found.models[0][0].stage == "queries"


def test_a_right_layer_differs_nowhere():
    found = measured()
    assert found.first is None
    assert all(one.asked for one in found.outcomes if not one.probe.gradients)


def test_problems_have_only_the_features_of_the_cases():
    like = [PROBES[3].problems(Asker(OutputAlone()))[0]]
    found = Probing(Asker(OutputAlone()), (), like=like).run()
    asked = {one.probe.id for one in found.outcomes if one.asked}
    assert {"one-key", "equal-scores", "scores", "items"} <= asked
    assert not {"causal", "dropout", "past", "softcap", "additive-score", "without-projections"} & asked


class Refusing(OutputAlone):
    """A layer of one item, without a past."""

    def prepare(self, config, weights):
        run = super().prepare(config, weights)

        def shown(inputs):
            if inputs.past_keys is not None or inputs.queries.shape[0] > 1:
                raise CannotExpress("one item, and no past")
            return run(replace(inputs, cotangent=None))

        return shown


def test_what_is_refused_is_noted_and_the_rest_is_asked():
    found = Probing(Asker(Refusing(wrong_at("heads", lambda s, x: 3.0 * x))), ()).run()
    assert "multiplied by 3" in found.models[0][0].sentence
    assert found.asker.refused["one item, and no past"] > 5


def test_a_layer_without_time_is_asked_nothing_more():
    found = Probing(Asker(OutputAlone(), seconds=0.0), ()).run()
    assert not any(one.asked for one in found.outcomes)
    assert "the time for experiments, 0 s, was spent" in found.asker.refused
