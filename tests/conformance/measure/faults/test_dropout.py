"""Wrong dropout that is not in the zoo is measured, and gives the same on fresh problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conformance.measure.designs import CONFIGS, generic
from conformance.zoo.bug import Bug
from conformance.zoo.forward import dropout as zoo
from mha_core.reference import forward
from tests.conformance.measure.wrong import is_right, measured, said

pytestmark = pytest.mark.same_on_newest  # it computes in NumPy alone


def trained(factor):
    """Weights after dropout are `factor(weights, keep, p)` where a keep-mask is given."""

    def step(state):
        keep, weights = state.inputs.dropout_keep, state["weights"]
        return weights if keep is None else factor(weights, keep, state.config.dropout)

    return {"kept_weights": step}


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
    "evaluation-divides": {
        "kept_weights": lambda s: (
            forward.kept_weights(s) if s.inputs.dropout_keep is not None else s["weights"] / (1 - s.config.dropout)
        )
    },
}


def fresh():
    """Problems with a keep-mask and without, of other sizes and numbers than any probe's."""
    for number, config in enumerate((*CONFIGS[:3], CONFIGS[7])):
        config = replace(config, dropout=0.2 + 0.1 * number)
        keep = np.random.default_rng(number).random((2, config.num_heads, 5, 8)) > 0.3
        for one in (keep, None):
            yield generic(config, seed=50 + number, batch=2, query_len=5, key_len=8, dropout_keep=one)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_dropout_is_measured(name):
    bug = Bug(name, name, "heads", "-", forward=WRONG[name])
    found = measured(bug, probes=["dropout*"])
    assert is_right(found, (bug,), fresh(), among=1), said(found)


@pytest.mark.parametrize("bug", zoo.BUGS[::4], ids=lambda bug: bug.id)
def test_bugs_on_file_are_named(bug):
    found = measured(bug, probes=["dropout*"], zoo=None)
    assert bug.id in {one.id for model in found.models for one in model}
