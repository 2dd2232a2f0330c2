"""What is no function, keeps something, or computes in less precision is seen before any probe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conformance.measure.asker import Asker
from conformance.measure.designs import CONFIGS
from conformance.measure.probes import select_probes
from conformance.measure.search.behaviour import narrower, observe
from conformance.measure.search.measure import measure
from conformance.zoo.bug import BuggySubject
from mha_core import Trace, reference
from mha_core.dtypes import round_to

pytestmark = pytest.mark.same_on_newest  # it computes in NumPy alone


class Odd(BuggySubject):
    """Its output is `answer(output, inputs, memory)`; the memory is new in every prepared layer."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer
        self.always = {"calls": 0}

    def prepare(self, config, weights):
        memory = {"calls": 0}

        def run(inputs):
            memory["calls"] += 1
            self.always["calls"] += 1
            output = reference.run(config, weights, inputs).output
            return Trace(output=self.answer(self, config, weights, inputs, output, memory))

        return run


def noisy(self, config, weights, inputs, output, memory):
    return output + 0.1 * np.random.default_rng(self.always["calls"]).normal(size=output.shape)


def growing(self, config, weights, inputs, output, memory):
    return output * (0.5 + 0.5 * memory["calls"])


def first_mask(self, config, weights, inputs, output, memory):
    kept = memory.setdefault("mask", inputs.mask)
    return reference.run(config, weights, replace(inputs, mask=kept)).output


def first_keys(self, config, weights, inputs, output, memory):
    kept = memory.setdefault("keys", inputs.keys)
    return (
        output if kept.shape != inputs.keys.shape else reference.run(config, weights, replace(inputs, keys=kept)).output
    )


def drops(self, config, weights, inputs, output, memory):
    keep = np.random.default_rng(self.always["calls"]).random(output.shape) >= config.dropout
    return output * keep


SAID = {
    noisy: "no function",
    growing: "it is 1.5 times that, and the third 2 times",
    first_mask: "a call with another mask after one with a mask",
    first_keys: "a second problem is answered with the keys of the first",
    drops: "Dropout is active outside training",
}


@pytest.mark.parametrize("answer", SAID, ids=lambda one: one.__name__)
def test_what_is_odd_is_said(answer):
    asker = Asker(Odd(answer), configs=CONFIGS[:1])
    behaviour = observe(asker)
    assert SAID[answer] in " ".join(behaviour.remarks)
    assert behaviour.is_function == (answer is not noisy)


def test_nothing_is_measured_of_noise():
    measured = measure(Odd(noisy), probes=select_probes(["scores"]))
    assert measured.outcomes == ()
    assert measured.asker.questions < 20


def test_a_function_is_not_remarked_on():
    assert observe(Asker(BuggySubject(), configs=CONFIGS[:1])) == observe(
        Asker(BuggySubject(dtype="float32"), configs=CONFIGS[:1])
    )
    assert observe(Asker(BuggySubject(), configs=CONFIGS[:1])).remarks == ()


class Narrow(BuggySubject):
    """Rounds values and output to a dtype."""

    def prepare(self, config, weights):
        def run(inputs):
            inputs = replace(inputs, values=round_to(inputs.values, "float32").astype(float))
            output = reference.run(config, weights, inputs).output
            return Trace(output=round_to(output, "float32").astype(float))

        return run


def test_precision_inside_narrows_the_bounds():
    asker = Asker(Narrow(), configs=CONFIGS[:2])
    measured = measure(Narrow(), asker=asker, probes=select_probes(["scores"]))
    assert measured.behaviour.inside == asker.precision.storage == "float32"
    assert not measured.differs
    assert measured.models == ((),)


def test_an_output_that_is_rounded_alone_is_a_bug():
    class Rounded(Odd):
        pass

    subject = Rounded(lambda self, config, weights, inputs, output, memory: output.astype(np.float16).astype(float))
    measured = measure(subject, probes=select_probes(["scores"]))
    assert measured.behaviour.inside is None
    assert [bug.sentence for bug in measured.models[0]] == ["The output is rounded to float16."]
    assert not measured.unexplained


def test_the_narrowest_dtype_is_named():
    numbers = np.random.default_rng(0).normal(size=20)
    assert narrower([numbers], "float64") is None
    for dtype in ("float32", "float16", "bfloat16"):
        assert narrower([round_to(numbers, dtype).astype(float)], "float64") == dtype
    assert narrower([np.zeros(3)], "float64") is None


class Differentiated(BuggySubject):
    """The definition with its gradients; `change(gradients, those of the call before or None)` gives others."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def prepare(self, config, weights):
        run, before = super().prepare(config, weights), []

        def answer(inputs):
            trace = run(inputs)
            if trace.gradients is not None:
                given = self.change(dict(trace.gradients), before[-1] if before else None)
                before.append(given)
                trace = replace(trace, gradients=given)
            return trace

        return answer


def added_up(gradients, before):
    return {
        name: array if before is None or "." not in name else array + before[name] for name, array in gradients.items()
    }


def of_the_first(gradients, before):
    return gradients if before is None else {**gradients, "q_proj.bias": before["q_proj.bias"]}


def test_gradients_that_are_added_up_from_call_to_call_are_seen():
    (sentence,) = observe(Asker(Differentiated(added_up))).unsteady
    assert "added up from call to call" in sentence
    assert "v_proj.weight" in sentence
    assert "queries" not in sentence
    (sentence,) = observe(Asker(Differentiated(of_the_first))).unsteady
    assert "the gradients of q_proj.bias differ" in sentence
    assert not observe(Asker(Differentiated(lambda gradients, before: gradients))).unsteady
