"""Which orders of heads the exercise on their importance takes."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.cases.table import select
from mha.learn.headwork import ENOUGH, left_out, place, trained
from mha_core.reference import pipeline as reference

pytestmark = pytest.mark.same_on_newest  # it computes in NumPy alone


def test_an_order_by_the_weights_alone_is_not_enough():
    assert place([left_out(one) for one in trained()]) == 1.0
    by_weights = []
    for one in trained():
        config, weights = one.measured.config, one.measured.weights
        values = weights["v_proj.weight"].reshape(config.num_heads, config.value_head_dim, -1)
        out = weights["out_proj.weight"].reshape(-1, config.num_heads, config.value_head_dim).swapaxes(0, 1)
        by_weights.append(np.linalg.norm(out @ values, axis=(1, 2)))
    assert place(by_weights) < ENOUGH


def test_what_a_head_brings_before_the_output_projection_is_not_enough():
    """A loud head may have a small block of W_o."""
    before, behind = [], []
    for one in trained():
        problem = one.measured
        heads = reference.run_state(problem.config, problem.weights, problem.inputs)["heads"]
        blocks = np.split(problem.weights["out_proj.weight"], problem.config.num_heads, axis=1)
        before.append(np.sqrt((heads**2).sum(axis=(0, 2, 3))))
        behind.append([np.linalg.norm(heads[:, h] @ block.T) for h, block in enumerate(blocks)])
    assert place(before) < 0.0
    assert place(np.array(behind)) >= ENOUGH


def test_loud_heads_leave_the_layer_as_it_was():
    for one in trained():
        case = select((one.name,))[0].build()
        whole = reference.run(case.config, case.weights, case.inputs).output
        assert np.array_equal(reference.run(case.config, one.measured.weights, case.inputs).output, whole)
