"""One wrong layer of each family, on no file: a diagnosis describes it, and what it says holds elsewhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from conformance.cases.table import all_cases
from conformance.diagnosis import diagnose as diagnosing
from conformance.measure.designs import CONFIGS, changed, generic
from conformance.measure.probes import select_probes
from conformance.measure.search.measure import measure
from conformance.zoo.bug import Bug, BuggySubject
from conformance.zoo.variants import Variants
from mha_core import AttentionMask
from mha_core.reference.forward import softmax
from mha_core.stages import is_gradient
from tests.conformance.measure.faults.test_masks import SINGLE
from tests.conformance.measure.wrong import OutputAlone, wrong_at, wrong_gradients

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def _dropped(state, weights):
    keep = state.inputs.dropout_keep
    return weights if keep is None else state["weights"] * keep * (1.0 + state.config.dropout)


def _past_halved(state, keys):
    at = state.sizes.past_len
    return np.concatenate([0.5 * keys[:, :, :at], keys[:, :, at:]], axis=2)


FAMILIES: dict[str, tuple[Bug, tuple[str, ...]]] = {
    "the order of values": (wrong_at("heads", lambda s, x: x[..., ::-1]), ("equal-scores",)),
    "a mask": (SINGLE["diagonal-plus-2"], ("mask-causal", "mask-offset")),
    "a factor of scores": (
        wrong_at("similarity", lambda s, x: 1.3 * x / s.config.head_dim**0.5),
        ("score-size", "scores"),
    ),
    "a form of the softmax": (
        wrong_at("weights", lambda s, x: softmax(np.clip(s["scores"], -1.5, 1.5), s["allowed"])),
        ("scores", "softmax"),
    ),
    "dropout": (wrong_at("kept_weights", _dropped), ("dropout",)),
    "a past": (wrong_at("keys", _past_halved), ("past",)),
    "items": (wrong_at("queries", lambda s, x: np.roll(x, 1, axis=0)), ("items",)),
    "gradients": (wrong_gradients(d_queries=lambda s, x: 0.7 * x), ("gradients",)),
}
"""What is wrong -> a bug, and the probes that are asked."""

CASES = [case for case in all_cases() if not case.expensive][::2]


def fresh():
    rng = np.random.default_rng(2)
    for config in (CONFIGS[1], CONFIGS[8]):
        config = replace(config, dropout=0.35)
        yield generic(
            config, seed=4, batch=3, query_len=4, key_len=6, mask=AttentionMask(valid_lens=np.array([2, 6, 4]))
        )
        keep = rng.random((2, config.num_heads, 5, 7)) > 0.3
        yield generic(config, seed=4, batch=2, query_len=5, key_len=7, dropout_keep=keep)
        past = {
            "past_keys": rng.normal(size=(2, config.num_kv_heads, 3, config.head_dim)),
            "past_values": rng.normal(size=(2, config.num_kv_heads, 3, config.value_head_dim)),
        }
        yield changed(generic(config, batch=2, query_len=7, key_len=4), **past)


@pytest.mark.parametrize("name", FAMILIES)
def test_one_of_each_family_is_described(name, monkeypatch):
    bug, probes = FAMILIES[name]
    monkeypatch.setattr(diagnosing, "measure", partial(measure, probes=select_probes(probes, alone=True)))
    subject = BuggySubject(bug) if bug.backward else OutputAlone(bug)
    found = diagnosing.diagnose(subject, CASES, bugs=[], experiments=True)
    assert found.explanations
    said = found.explanations[0]
    assert said.complete
    variants = Variants()
    for problem in fresh():
        truth, made = (variants.run(problem, bugs, gradients=bool(bug.backward)) for bugs in ((bug,), said.bugs))
        for array in ["output", *filter(is_gradient, truth)]:
            np.testing.assert_allclose(made[array], truth[array], rtol=1e-6, atol=1e-8)
