"""What is no function, keeps something, or computes in less precision is seen before any problem."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.bounds.precision import narrower
from conformance.cases.table import select
from conformance.measure.asker import Asker, observe, rounds_inside
from conformance.measure.designs import CONFIGS
from conformance.measure.search import Probing
from conformance.zoo.bug import BuggySubject
from mha_core import Trace, reference
from mha_core.dtypes import round_to
from tests.conformance.measure.wrong import OutputAlone, wrong_at

pytestmark = pytest.mark.same_on_newest  # it computes in NumPy alone


class Odd(BuggySubject):
    """Its output is `answer(self, config, weights, inputs, output, memory)`; each prepared layer has a new memory."""

    def __init__(self, answer):
        super().__init__()
        self.answer, self.always = answer, {"calls": 0}

    def prepare(self, config, weights):
        memory = {"calls": 0}

        def run(inputs):
            memory["calls"] += 1
            self.always["calls"] += 1
            output = reference.run(config, weights, replace(inputs, cotangent=None)).output
            return Trace(output=self.answer(self, config, weights, inputs, output, memory))

        return run


def noisy(self, config, weights, inputs, output, memory):
    return output + 0.1 * np.random.default_rng(self.always["calls"]).normal(size=output.shape)


def growing(self, config, weights, inputs, output, memory):
    return output * (0.5 + 0.5 * memory["calls"])


def first_mask(self, config, weights, inputs, output, memory):
    return reference.run(config, weights, replace(inputs, mask=memory.setdefault("mask", inputs.mask))).output


def drops(self, config, weights, inputs, output, memory):
    return output * (np.random.default_rng(self.always["calls"]).random(output.shape) >= config.dropout)


def of_the_first_layer(self, config, weights, inputs, output, memory):
    """The scale is kept by the shapes of a call, for all layers."""
    scale = self.always.setdefault((inputs.queries.shape, inputs.keys.shape), config.scale)
    other = replace(config, scale=scale) if config.score == "scaled_dot" else config
    return reference.run(other, weights, replace(inputs, cotangent=None)).output


def bias_by_shape(self, config, weights, inputs, output, memory):
    """The bias of the output is kept by its shape, for all layers."""
    bias = weights.get("out_proj.bias", np.zeros(output.shape[-1]))
    return output - bias + self.always.setdefault(bias.shape, bias.copy())


def turned_by_width(self, config, weights, inputs, output, memory):
    """Tables of angles are kept by their width, whatever the base."""
    rotary = config.rotary and self.always.setdefault(("angles", config.rotary.width), config.rotary)
    return reference.run(replace(config, rotary=rotary), weights, replace(inputs, cotangent=None)).output


def normed_by_width(self, config, weights, inputs, output, memory):
    """The eps of the norm is kept by the width of a head."""
    norm = config.query_key_norm and self.always.setdefault(("eps", config.head_dim), config.query_key_norm)
    return reference.run(replace(config, query_key_norm=norm), weights, replace(inputs, cotangent=None)).output


def norm_by_shape(self, config, weights, inputs, output, memory):
    """The weights of the norm are kept by their shape."""
    held = {
        name: self.always.setdefault((name, array.shape), array) if "norm" in name else array
        for name, array in weights.items()
    }
    return reference.run(config, held, replace(inputs, cotangent=None)).output


SAID = {
    noisy: "Equal calls have different answers, as where dropout is left on",
    growing: "asked after other calls, the same call has another answer",
    first_mask: "a call with a mask has another answer",
    drops: "dropout is active outside training",
    of_the_first_layer: "The scale is that of the first layer that was called with these shapes",
    bias_by_shape: "What depends on out_proj.bias is that of the first layer that was called with these shapes",
    turned_by_width: "The base of rotary positions is that of the first layer",
    normed_by_width: "The eps of the query-key norm is that of the first layer",
    norm_by_shape: "The weight of the query-key norm is that of the first layer",
}
PARTS = dict.fromkeys((turned_by_width, normed_by_width, norm_by_shape), "queries")
SHARED = {of_the_first_layer: "scores", bias_by_shape: "output", **PARTS}


@pytest.mark.parametrize("answer", SAID, ids=lambda one: one.__name__)
def test_what_is_odd_is_said(answer):
    behaviour = observe(Asker(Odd(answer), configs=CONFIGS[:1]))
    assert SAID[answer] in " ".join(behaviour.remarks)
    assert behaviour.is_function == (answer is not noisy)
    assert behaviour.shared == SHARED.get(answer)


def test_nothing_is_measured_of_noise():
    found = Probing(Asker(Odd(noisy)), ()).run()
    assert found.outcomes == ()
    assert found.asker.questions < 20


def test_a_function_is_not_remarked_on():
    for dtype in ("float64", "float32"):
        assert observe(Asker(BuggySubject(dtype=dtype), configs=CONFIGS[:1])).remarks == ()


def test_gradients_that_add_up_are_said():
    class Adding(BuggySubject):
        def prepare(self, config, weights):
            calls = []

            def run(inputs):
                calls.append(None)
                trace = reference.run(config, weights, inputs)
                gradients = {name: len(calls) * array for name, array in (trace.gradients or {}).items()}
                return Trace(output=trace.output, gradients=gradients or None)

            return run

    said = " ".join(observe(Asker(Adding(), configs=CONFIGS[:1])).remarks)
    assert "Gradients are added up from call to call" in said


def test_a_softmax_in_float32_is_told_from_one_that_is_right_or_wrong():
    def in_float32(state, scores):
        return scores.astype(np.float32).astype(np.float64)

    assert rounds_inside(Asker(OutputAlone(wrong_at("scores", in_float32))))
    assert not rounds_inside(Asker(OutputAlone()))
    assert not rounds_inside(Asker(OutputAlone(wrong_at("scores", lambda state, scores: scores + 1e-7 * scores**2))))
    assert not rounds_inside(Asker(OutputAlone(wrong_at("weights", lambda state, weights: (weights > 0.2) * 1.0))))


def test_neither_noise_nor_a_coarser_rounding_is_float32():
    assert not rounds_inside(Asker(Odd(noisy)))
    coarse = wrong_at("queries", lambda state, x: round_to(x, "bfloat16").astype(np.float64))
    assert not rounds_inside(Asker(OutputAlone(coarse)))


def test_a_norm_of_the_queries_is_not_float32():
    """It undoes what changes all numbers of a query in proportion, however small."""

    def normed(state, x):
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-5)

    assert not rounds_inside(Asker(OutputAlone(wrong_at("query_inputs", normed))))


def test_the_narrowest_dtype_is_told_and_zeros_tell_none():
    array = np.random.default_rng(0).normal(size=50)
    for dtype in ("float32", "float16", "bfloat16"):
        assert narrower([round_to(array, dtype).astype(np.float64)], "float64") == dtype
    assert narrower([array], "float64") is None
    assert narrower([np.zeros(3)], "float64") is None


def test_layers_that_may_share_something_have_sizes_that_no_case_has():
    cases = select(("*",))

    def sizes(config):
        heads, groups = config.num_heads, config.num_kv_heads
        dims = {config.query_dim, config.key_dim, config.value_dim, config.output_dim, heads * config.head_dim}
        return dims | {groups * config.head_dim, groups * config.value_head_dim, heads * config.value_head_dim}

    known = set().union(*(sizes(case.config) for case in cases))
    lengths = {one for case in cases for one in (case.query_len, case.key_len)}
    asker = Recording()
    observe(Asker(asker, configs=CONFIGS[:1]))
    asked = [(config, inputs) for config, inputs in asker.asked if config.head_dim > 90]
    assert len(asked) >= 6
    for config, inputs in asked:
        assert not sizes(config) & known
        assert not {inputs.queries.shape[1], inputs.keys.shape[1]} & lengths


class Recording(BuggySubject):
    """The reference, and what it was asked."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def prepare(self, config, weights):
        run = super().prepare(config, weights)

        def answer(inputs):
            self.asked.append((config, inputs))
            return run(inputs)

        return answer
