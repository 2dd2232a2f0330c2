"""What is measured, and what its right answer is."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.settings import BOUNDS, DIRECTIONS, SETTINGS, Setting, Task, distance, reference_answer
from mha_core.dtypes import round_to
from tests.benchmarks.made_up import TINY, solve


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
    assert [each.name for each in SETTINGS if each.causal] == ["causal", "decoder", "window", "compiled"]
    assert [each.name for each in SETTINGS if each.rotary] == ["decoder", "cache", "window", "donated"]
    assert [each.window for each in SETTINGS if each.window] == [512]
    assert [each.name for each in SETTINGS if each.ragged] == ["ragged"]
    assert [each.sizes for each in SETTINGS if each.num_kv_heads][:2] == [
        "(2, 512, 768, 12/4)",
        "(1, 2048, 1024, 16/4)",
    ]
    assert [each.name for each in SETTINGS if each.bfloat16] == ["wide", "long", "compiled"]


def test_equal_tasks_have_equal_arrays_that_a_short_dtype_holds_exactly():
    setting = replace(TINY, past=5)
    first, second = Task(setting, "bfloat16"), Task(setting, "bfloat16")
    for task in (first, second):
        assert task.x.shape == (3, 11, 16)
        assert [array.shape for array in task.past.values()] == [(3, 1, 5, 8)] * 2
    arrays = [first.x, first.cotangent, *first.past.values(), *first.weights.values()]
    again = [second.x, second.cotangent, *second.past.values(), *second.weights.values()]
    for array, other in zip(arrays, again, strict=True):
        np.testing.assert_array_equal(array, other)
        np.testing.assert_array_equal(array, round_to(array, "bfloat16"))


def test_lengths_are_half_on_average():
    lens = Task(next(each for each in SETTINGS if each.ragged)).valid_lens
    assert lens.mean() == pytest.approx(256, abs=1)
    assert len(set(lens)) == 8


SPECIAL = {
    "window, rotary": TINY,
    "causal": replace(TINY, rotary=False, window=None),
    "ragged": Setting("", 3, 11, 12, 2, ragged=True),
    "cache": Setting("", 3, 1, 16, 2, num_kv_heads=1, past=6, rotary=True),
}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("special", SPECIAL)
def test_few_queries_tell_the_whole_answer(direction, special):
    task = Task(SPECIAL[special], direction=direction)
    wanted, whole = reference_answer(task), solve(task)
    assert len(wanted) == len(whole) == 1 + (direction == "gradients")
    assert distance(task, whole, wanted) < 1e-12
    assert distance(task, solve(task, scale=0.1), wanted) > 10 * BOUNDS["float32"] or task.setting.past
    unmasked = Task(replace(task.setting, causal=False, ragged=False, window=None), direction=direction)
    assert (distance(task, solve(unmasked), wanted) > 10 * BOUNDS["float32"]) == (special != "cache")


def test_what_is_missing_or_not_finite_is_infinitely_far():
    task = Task(TINY, direction="gradients")
    wanted, (output, gradient) = reference_answer(task), solve(task)
    assert distance(task, (output,), wanted) == np.inf
    assert distance(task, (output, gradient[:, :-1]), wanted) == np.inf
    assert distance(task, (np.full_like(output, np.nan), gradient), wanted) == np.inf
    assert distance(task, (np.full_like(output, np.inf), gradient), wanted) == np.inf
