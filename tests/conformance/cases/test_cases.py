"""The case table, and that its builder refuses cases that would test nothing."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from conformance.cases.case import Case
from conformance.cases.parts import prime_config
from conformance.cases.table import all_cases, select
from conformance.cases.topics import trained
from mha_core import AttentionConfig, AttentionMask, SpecError


def test_ids_are_unique_and_every_case_says_what_it_catches():
    cases = all_cases()
    assert len({case.id for case in cases}) == len(cases)
    assert all(case.catches for case in cases)


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.id)
def test_cases_build_and_repeat_themselves(case):
    first, second = case.build(), case.build()
    np.testing.assert_array_equal(first.inputs.keys, second.inputs.keys)
    sizes = first.inputs.check(first.config)
    assert sizes == (case.batch, case.query_len, case.key_len, case.past_len)
    assert first.config == case.config
    for array in (first.inputs.queries, *first.weights.values()):
        assert array.size < 2 or np.unique(array).size > 1, "a constant array hides mistakes"


def test_the_trained_layers_are_what_their_file_says():
    """It is read by NumPy alone, and the table of cases reads it not at all."""
    with safe_open(trained.FIXTURE, framework="numpy") as file:
        assert AttentionConfig.from_dict(json.loads(file.metadata()["config"])) == trained.CONFIG
    arrays = {name: trained._numbers(one) for name, one in load_file(trained.FIXTURE).items()}
    found = trained._arrays()
    assert {name: (one.dtype, one.tobytes()) for name, one in found.items()} == {
        name: (one.dtype, one.tobytes()) for name, one in arrays.items()
    }
    assert arrays["layer5.hidden_states"].shape[:2] == (trained.SENTENCES, trained.LENGTH)


def fixed_mask(**sources):
    return lambda rng, case: AttentionMask(**sources)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (fixed_mask(valid_lens=np.array([7, 7])), "valid_lens excludes nothing"),
        (fixed_mask(valid_lens=np.array([0, 0])), "valid_lens excludes everything"),
        (fixed_mask(allowed=np.ones((1, 7), bool)), "allowed excludes nothing"),
        (fixed_mask(causal=True, query_offset=9), "causal excludes nothing"),
        (fixed_mask(window=(9, 9), valid_lens=np.array([3, 4])), "window excludes nothing"),
        (fixed_mask(bias=np.full(7, -np.inf)), "bias excludes everything"),
    ],
)
def test_masks_that_test_nothing_are_refused(mask, message):
    with pytest.raises(SpecError, match=message):
        Case("vacuous", "nothing", prime_config(), mask=mask).build()


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("square", "nothing", prime_config(), query_len=7), "Lq = Lk = 7 can hide a transposition"),
        (Case("square", "nothing", prime_config(value_head_dim=11)), "d = dv = 11 can hide"),
        (Case("square", "nothing", AttentionConfig(12, 3)), "d = dv = 4 can hide"),
    ],
)
def test_equal_sizes_need_a_reason(case, message):
    with pytest.raises(SpecError, match=message):
        case.build()
    replace(case, same_sizes="this test").build()


def test_selection_by_wildcard():
    assert [case.id for case in select(("window*",))] == ["window", "window-zero", "window-causal"]
    assert len(select(())) == len(all_cases())
    with pytest.raises(SpecError, match="'windows' is not known"):
        select(("prime", "windows"))


def test_trained_cases_hold_real_sentences_of_different_lengths():
    trained = [case.build() for case in select(("trained-*",))]
    assert len(trained) == 2
    for problem in trained:
        lens = problem.inputs.mask.valid_lens
        assert len(lens) >= 6
        assert len(set(lens.tolist())) >= 6
        assert set(problem.recorded) == {"weights", "output"}
        assert all(recorded.dtype == np.float64 for recorded in problem.recorded.values())
