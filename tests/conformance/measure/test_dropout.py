"""Wrong dropout that is not in the zoo is measured, and gives the same on fresh problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conformance.measure.designs import CONFIGS, generic
from conformance.measure.outcome import Measured
from conformance.measure.probes import select_probes
from conformance.measure.search.measure import measure
from conformance.zoo.bug import Bug, BuggySubject
from conformance.zoo.forward import dropout as zoo
from mha_core import Trace
from mha_core.reference import forward

pytestmark = pytest.mark.same_on_newest  # it computes in NumPy alone


class OutputsOnly(BuggySubject):
    def prepare(self, config, weights):
        run = super().prepare(config, weights)
        return lambda inputs: Trace(output=run(inputs).output)


def trained(factor):
    """Weights after dropout are `factor(weights, keep, p)` where a keep-mask is given."""

    def step(state):
        keep, weights = state.inputs.dropout_keep, state["weights"]
        return weights if keep is None else factor(weights, keep, state.config.dropout)

    return {"kept_weights": step}


def dropped_scores(state):
    scores, keep = forward.scores(state), state.inputs.dropout_keep
    return scores if keep is None else scores * keep


def total(x):
    return x.sum(axis=-1, keepdims=True)


WRONG = {
    "divided-twice": trained(lambda w, keep, p: w * keep / (1 - p) ** 2),
    "times-1-plus-p": trained(lambda w, keep, p: w * keep * (1 + p)),
    "times-1.3": trained(lambda w, keep, p: w * keep * 1.3),
    "leaky": trained(lambda w, keep, p: w * np.where(keep, 1 / (1 - p), 0.1)),
    "dropped-kept-too": trained(lambda w, keep, p: w * np.where(keep, 1 / (1 - p), p)),
    "inverted-by-p": trained(lambda w, keep, p: w * ~keep / p),
    "of-the-next-head": trained(lambda w, keep, p: w * np.roll(keep, 1, axis=1) / (1 - p)),
    "of-the-next-key": trained(lambda w, keep, p: w * np.roll(keep, 1, axis=3) / (1 - p)),
    "queries-reversed": trained(lambda w, keep, p: w * keep[:, :, ::-1] / (1 - p)),
    "any-head": trained(lambda w, keep, p: w * keep.any(axis=1, keepdims=True) / (1 - p)),
    "normalised-and-divided": trained(lambda w, keep, p: w * keep / np.maximum(total(w * keep), 1e-300) / (1 - p)),
    "over-the-row's-share": trained(lambda w, keep, p: w * keep / np.maximum(keep.mean(-1, keepdims=True), 1e-9)),
    "scores-and-weights": {"scores": dropped_scores},
    "evaluation-divides": {
        "kept_weights": lambda s: (
            forward.kept_weights(s) if s.inputs.dropout_keep is not None else s["weights"] / (1 - s.config.dropout)
        )
    },
}


def is_right(found: Measured, *bugs: Bug) -> bool:
    if found.unexplained or not found.models[0]:
        return False
    ours, theirs = BuggySubject(*found.models[0]), BuggySubject(*bugs)
    for number, config in enumerate((*CONFIGS[:3], CONFIGS[7])):
        config = replace(config, dropout=0.2 + 0.1 * number)
        shape = (2, config.num_heads, 5, 8)
        keep = np.random.default_rng(number).random(shape) > 0.3
        problem = generic(config, seed=50 + number, batch=2, query_len=5, key_len=8)
        for one in (keep, None):
            inputs = replace(problem.inputs, dropout_keep=one)
            made, wanted = (x.prepare(config, problem.weights)(inputs).output for x in (ours, theirs))
            if not np.allclose(made, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max()):
                return False
    return True


@pytest.mark.parametrize("name", WRONG)
def test_wrong_dropout_is_measured(name):
    bug = Bug(name, name, "heads", "-", forward=WRONG[name])
    found = measure(OutputsOnly(bug), probes=select_probes(["dropout*"], alone=True), zoo=())
    assert is_right(found, bug), [[one.id for one in model] for model in found.models]


def test_bugs_on_file_are_named():
    for bug in zoo.BUGS[::4]:
        found = measure(OutputsOnly(bug), probes=select_probes(["dropout*"], alone=True))
        assert bug.id in {one.id for model in found.models for one in model}
