"""Which orders of heads the exercise on their importance takes."""

from __future__ import annotations

import numpy as np
import pytest

from mha.learn.headwork import ENOUGH, place, places, trained


@pytest.mark.same_on_newest  # it computes in NumPy alone
def test_an_order_by_the_weights_alone_is_not_enough():
    found = places()
    enough = {name for name, place in found.items() if place >= ENOUGH}
    assert enough == {"leave-one-out", "gradient"}
    assert found["leave-one-out"] == 1.0
    by_weights = []
    for one in trained():
        config, weights = one.measured.config, one.measured.weights
        values = weights["v_proj.weight"].reshape(config.num_heads, config.value_head_dim, -1)
        out = weights["out_proj.weight"].reshape(-1, config.num_heads, config.value_head_dim).swapaxes(0, 1)
        by_weights.append(np.linalg.norm(out @ values, axis=(1, 2)))
    assert place(by_weights) < ENOUGH
