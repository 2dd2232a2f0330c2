"""Keys that weigh nothing, as a bias of finfo.min makes them, leave the bounds of what the others give as they are."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.bounds.precision import Precision
from conformance.cases.table import select
from conformance.judging.expected import answer

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

LEAST = float(np.finfo(np.float32).min)


def with_bias(number):
    """A call in which three of its keys have this bias, and the others some."""
    (case,) = select(("grouped-heads",))
    problem = case.build()
    bias = np.random.default_rng(0).normal(size=(1, 1, 1, case.key_len))
    bias[..., 1:3] = number
    return problem.with_inputs(mask=replace(problem.inputs.mask, bias=bias))


@pytest.mark.parametrize("number", [LEAST, -1e9, -1e5])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_least_number_is_bounded_as_an_excluded_key(dtype, number):
    """But for the gradients of the inputs, which an excluded key does not reach at all."""
    excluded, weightless = (answer(with_bias(one), Precision.of(dtype)) for one in (-np.inf, number))
    np.testing.assert_allclose(weightless.trace.output, excluded.trace.output, rtol=1e-12)
    assert (weightless.allowed_error["weights"][..., 1:3] < 1e-30).all()
    for name in ("heads", "output", "gradients.queries", "gradients.q_proj.weight"):
        assert (weightless.allowed_error[name] <= 2.0 * excluded.allowed_error[name]).all(), name


def test_a_key_that_may_weigh_something_after_all_counts():
    """Large scores are off by more than what parts them."""
    found = answer(with_bias(1e9), Precision.of("float32"))
    assert found.allowed_error["weights"][..., 1:3].min() > 0.5
