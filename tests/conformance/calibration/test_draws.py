"""The problems of calibration: the same ones in every process, and never larger than the bounds can hold."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from conformance.calibration import by_part
from conformance.calibration.draws import DRAWS_PER_LAYER, LARGEST, MOST_WORK, draw_layer, draw_problem
from conformance.calibration.formulations import FORMULATIONS
from conformance.calibration.space import OF_ONE_CALL, WIDE
from conformance.cases.choices import SMALL
from conformance.discovery import members
from mha_core.reference import pipeline as reference

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

DIGEST = """
import hashlib
import numpy as np
from conformance.calibration.draws import draw_problem

digest = hashlib.sha256()
for index in range(0, 320, 5):
    problem = draw_problem(2, index, "float32")
    inputs = problem.inputs
    named = {**problem.weights, **vars(inputs), **vars(inputs.mask)}
    digest.update(repr((problem.config, sorted(named))).encode())
    for name in sorted(named.keys() - {"mask"}):
        value = named[name]
        digest.update(f"{name} {np.shape(value)}".encode())
        digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
print(digest.hexdigest())
"""


def digest_in_a_process(hash_seed):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [sys.executable, "-c", DIGEST], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_problems_are_the_same_in_every_process():
    first, second = digest_in_a_process("1"), digest_in_a_process("2")
    assert len(first.strip()) == 64
    assert first == second


def test_problems_of_a_layer_share_what_frameworks_compile_for():
    for number in range(20):
        layer = draw_layer(4, number)
        problems = [draw_problem(4, number * DRAWS_PER_LAYER + i, "float32", layer) for i in range(DRAWS_PER_LAYER)]
        assert {id(problem.weights) for problem in problems} == {id(layer.weights)}
        assert len({(problem.config, problem.sizes) for problem in problems}) == 1
        masks = [problem.inputs.mask for problem in problems]
        for name in ("valid_lens", "allowed", "bias"):
            assert len({np.shape(getattr(mask, name)) for mask in masks}) == 1, name
        assert len({(mask.causal, mask.window, np.shape(mask.query_offset)) for mask in masks}) == 1
        assert len({problem.inputs.queries.tobytes() for problem in problems}) > 1


def test_a_problem_is_the_same_with_its_layer_at_hand_and_without():
    layer = draw_layer(4, 3)
    with_layer, without = (draw_problem(4, 3 * DRAWS_PER_LAYER + 1, "float32", given) for given in (layer, None))
    np.testing.assert_array_equal(with_layer.inputs.queries, without.inputs.queries)
    assert with_layer.weights.keys() == without.weights.keys()


def test_layers_are_not_too_large():
    for number in range(200):
        sizes, config = draw_layer(5, number).description.sizes, draw_layer(5, number).config
        pairs = sizes.batch * config.num_heads * sizes.query_len * sizes.key_len
        assert pairs * max(config.value_head_dim, config.score_dim or 0) <= MOST_WORK


def test_nothing_overflows_in_float16():
    for index in range(0, 400, DRAWS_PER_LAYER):
        problem = draw_problem(6, index, "float16").rounded("float16")
        state = reference.run_state(problem.config, problem.weights, problem.inputs)
        finite = [state[name] for name in ("similarity", "d_queries", "d_keys", "output")]
        assert max(np.abs(array).max(initial=0.0) for array in finite) <= LARGEST["float16"]


def test_both_spaces_answer_the_same_questions():
    assert set(WIDE) == set(SMALL)
    assert all(any(name.startswith(start) for name in WIDE) for start in OF_ONE_CALL)


def test_ways_of_parts_are_gone_by_formulations_that_there_are():
    named = {name for part in members(by_part) for ways in getattr(part, "WAYS", {}).values() for name in ways.values()}
    assert {name for names in named for name in names.split()} <= set(FORMULATIONS)
