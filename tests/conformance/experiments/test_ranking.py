"""Which of the models that a probe cannot tell apart are followed first."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.experiments.designs import CONFIGS, generic
from conformance.experiments.lab import Lab
from conformance.experiments.measured import on_step
from conformance.experiments.ranking import likeliest, preference
from conformance.experiments.view import View
from conformance.zoo.variants import Variants
from mha_core import AttentionMask
from tests.conformance.experiments.wrong import OutputAlone, wrong_at

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def _rolled(step, slug="rolled--1"):
    return on_step(step, f"{step}-{slug}", lambda state, array: np.roll(array, -1, axis=-2), "", "")


def test_first_is_what_gives_calls_in_which_another_fault_may_act():
    masks = (AttentionMask(), AttentionMask(causal=True), AttentionMask(valid_lens=np.array([3])))
    problems = tuple(generic(CONFIGS[0], query_len=4, key_len=4, mask=mask) for mask in masks)
    subject = OutputAlone(wrong_at("queries", lambda state, queries: np.roll(queries, -1, axis=-2)))
    models = [(_rolled("output"),), (_rolled("heads"),), (_rolled("queries"),)]
    ordered = likeliest(models, View(Lab(subject), Variants(), (), problems))
    assert ordered == [models[2], models[0], models[1]]
    assert likeliest(models, View(Lab(subject), Variants(), (), problems[:1])) == models


def test_a_number_is_preferred_to_a_size_of_several_words():
    number, size = _rolled("queries", "rolled--1"), _rolled("queries", "rolled--batch-size")
    assert preference((number,)) < preference((size,))
