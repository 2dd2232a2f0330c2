"""What is measured, and what its right answer is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mha.bench.contestants.contestant import Task
from mha.bench.settings import SETTINGS, Setting, of_length, setting
from mha.bench.workload import BOUNDS, Answer, difference, flops, make_workload, pairs, reference_answer
from mha_core import SpecError
from mha_core.call.masks import AttentionMask, allowed_keys
from mha_core.call.sizes import CallSizes
from mha_core.dtypes import round_to
from tests.mha.bench.made_up import TINY, solve


def test_the_settings_are_those_that_were_agreed_on():
    sizes = {(each.batch, each.length, each.embed_dim, each.num_heads, each.key_len) for each in SETTINGS}
    assert sizes == {
        (8, 128, 512, 8, 128),
        (2, 512, 768, 12, 512),
        (1, 2048, 512, 8, 2048),
        (1, 8192, 512, 8, 8192),
        (32, 1, 512, 8, 1024),
        (8, 512, 512, 8, 512),
        (1, 2048, 1024, 16, 2048),
        (1, 1, 2048, 32, 4096),
    }
    assert [each.name for each in SETTINGS if each.causal] == ["causal", "decoder", "window"]
    assert [each.name for each in SETTINGS if each.rotary] == ["decoder", "cache", "window"]
    assert [each.window for each in SETTINGS if each.window] == [512]
    assert [each.name for each in SETTINGS if each.ragged] == ["ragged"]
    assert [each.num_kv_heads for each in SETTINGS if each.num_kv_heads] == [4, 4, 8]


def test_unknown_names_and_lengths_are_refused():
    with pytest.raises(SpecError, match=r"setting 'big' is not known \(known: short, wide"):
        setting("big")
    with pytest.raises(SpecError, match=r"a length must be at least 1. Got 0."):
        of_length(0)


def test_a_setting_survives_json():
    fields = {**vars(setting("wide")), "dtypes": ["float32", "bfloat16"]}
    assert Setting.from_dict(fields) == setting("wide")


def test_a_problem_is_the_same_each_time():
    first, second = make_workload(TINY, "float32"), make_workload(TINY, "float32")
    for name in ("x", "cotangent", "past_keys", "past_values", "valid_lens"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_a_short_dtype_holds_its_numbers_exactly():
    workload = make_workload(TINY, "bfloat16")
    for array in (workload.x, workload.cotangent, workload.past_keys, *workload.weights.values()):
        np.testing.assert_array_equal(array, round_to(array, "bfloat16"))


def test_lengths_are_half_on_average():
    lens = make_workload(setting("ragged"), "float32").valid_lens
    assert lens.mean() == pytest.approx(256, abs=1)
    assert len(set(lens)) == 8


@pytest.mark.parametrize("direction", ["forward", "both"])
@pytest.mark.parametrize("parts", [{}, {"rotary": True, "window": 4}], ids=["plain", "rotary, window"])
def test_few_queries_tell_the_whole_answer(direction, parts):
    workload = make_workload(replace(TINY, **parts), "float32")
    wanted, whole = reference_answer(workload, direction), solve(Task(workload, direction, "float32", "cpu"))
    assert len(workload.checked) < TINY.length
    np.testing.assert_allclose(wanted.output, whole.output[:, workload.checked], rtol=1e-12)
    if direction == "both":
        np.testing.assert_allclose(wanted.gradient, whole.gradient, atol=1e-12)
    else:
        assert wanted.gradient is None


def test_a_wrong_answer_is_far_from_the_reference():
    workload = make_workload(Setting("", 2, 300, 64, 4, ragged=True), "float32")
    task = Task(workload, "forward", "float32", "cpu")
    wanted = reference_answer(workload, "forward")
    assert difference(workload, solve(task), wanted) < 1e-12
    assert difference(workload, solve(task, scale=0.1), wanted) > 10 * BOUNDS["float32"]
    unmasked = replace(workload, valid_lens=None)
    assert difference(workload, solve(task._replace(workload=unmasked)), wanted) > 10 * BOUNDS["float32"]


def test_what_is_missing_or_not_finite_is_infinitely_far():
    workload = make_workload(TINY, "float32")
    wanted = reference_answer(workload, "both")
    right = solve(Task(workload, "both", "float32", "cpu"))
    assert difference(workload, right, wanted) < 1e-12
    assert difference(workload, replace(right, gradient=None), wanted) == np.inf
    assert difference(workload, Answer(right.output, right.gradient[:, :-1]), wanted) == np.inf
    assert difference(workload, Answer(np.full_like(right.output, np.nan), right.gradient), wanted) == np.inf


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"past": 0, "causal": False},
        {"ragged": False},
        {"causal": False},
        {"past": 0, "ragged": False},
        {"window": 3},
    ],
)
def test_pairs_are_what_the_mask_allows(changes):
    workload = make_workload(replace(TINY, **changes), "float32")
    setting = workload.setting
    window = None if setting.window is None else (setting.window - 1, 0)
    mask = AttentionMask(workload.valid_lens, causal=setting.causal, query_offset=setting.past, window=window)
    allowed = allowed_keys(mask, CallSizes(batch=3, query_len=11, key_len=setting.key_len), num_heads=1)
    assert pairs(workload) == np.broadcast_to(allowed, (3, 1, 11, setting.key_len)).sum()


def test_operations_of_one_size_by_hand():
    workload = make_workload(Setting("", 2, 3, 8, 4, num_kv_heads=2), "float32")
    projections = 2 * (2 * 3) * 8 * (8 + 4 + 4 + 8)
    attention = 2 * 2 * (2 * 3 * 3) * 8
    assert flops(workload, "forward") == projections + attention
    assert flops(workload, "both") == 3 * (projections + attention)
