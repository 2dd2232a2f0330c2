"""A weight whose exponential is flushed to zero is within its bound; a larger weight that is lost is not."""

import numpy as np
import pytest

from conformance.bounds.precision import Precision
from conformance.bounds.tolerance import AllowedError
from mha_core import AttentionConfig, AttentionInputs, AttentionMask
from mha_core.reference import pipeline as reference

TAU = 2.0**-126
"""The smallest normal number of float32."""

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def exponential(x):
    """e^x in float32 as 2 (2^(n - 1) e^f), n ln 2 + f = x, where subnormal numbers are flushed to zero."""
    n = np.rint(x / np.log(2.0))
    half = np.float32(2.0 ** (n - 1) * np.exp(x - n * np.log(2.0)))
    return 2.0 * np.where(half < TAU, 0.0, half)


def weighed(small):
    """The state of one query and two keys, whose weights are `small` and nearly 1, and the errors allowed in it."""
    config = AttentionConfig(embed_dim=1, num_heads=1, bias=False, projections=False, scale=1.0)
    inputs = AttentionInputs(
        queries=np.ones((1, 1, 1)),
        keys=np.zeros((1, 2, 1)),
        values=np.array([2.0**100, 1.0]).reshape(1, 2, 1),
        mask=AttentionMask(bias=np.array([np.log(small), 0.0]).reshape(1, 1, 1, 2)),
        cotangent=np.ones((1, 1, 1)),
    )
    state = reference.run_state(config, {}, inputs)
    return state, AllowedError(state, Precision.of("float32"))


@pytest.mark.parametrize("of_tau", [0.9, 1.1, 1.9, 1.999])
def test_a_weight_below_twice_the_smallest_normal_number_may_be_lost(of_tau):
    state, allowed = weighed(of_tau * TAU)
    weight = state["weights"][0, 0, 0, 0]
    assert weight == pytest.approx(of_tau * TAU)
    assert exponential(np.log(of_tau * TAU)) == 0.0
    for name, lost in (
        ("weights", weight),
        ("heads", weight * 2.0**100),
        ("output", weight * 2.0**100),
        ("gradients.bias", state["d_bias"][0, 0, 0, 0]),
    ):
        assert allowed[name].flat[0] >= abs(lost) > 0.0, name


def test_a_larger_weight_may_not_be_lost():
    state, allowed = weighed(2.1 * TAU)
    assert exponential(np.log(2.1 * TAU)) == pytest.approx(2.1 * TAU, rel=1e-6)
    assert allowed["weights"][0, 0, 0, 0] < state["weights"][0, 0, 0, 0]
    assert allowed["gradients.bias"][0, 0, 0, 0] < abs(state["d_bias"][0, 0, 0, 0])


@pytest.mark.parametrize(
    ("dtype", "lost"), [("float64", 2.0**-1021), ("float32", 2.0**-125), ("float16", 2.0**-24), ("bfloat16", 2.0**-125)]
)
def test_what_may_be_lost_of_a_weight_follows_from_storage_and_softmax(dtype, lost):
    assert Precision.of(dtype).lost_weight == lost
