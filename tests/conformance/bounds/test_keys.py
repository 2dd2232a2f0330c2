"""Every step of the reference has a bound under its own name, or a reason why it has none."""

import numpy as np
import pytest

from conformance.bounds.backward import BACKWARD_BOUNDS
from conformance.bounds.bounded import Bounded, Bounds, Rounding
from conformance.bounds.forward import FORWARD_BOUNDS, WITHOUT_BOUND
from conformance.bounds.precision import Precision
from conformance.bounds.tolerance import of_all
from conformance.cases.table import all_cases
from mha_core.reference import BACKWARD, FORWARD
from mha_core.reference import pipeline as reference

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

CASES = [case for case in all_cases() if not case.expensive]


def test_every_forward_step_has_a_bound_or_a_reason_to_have_none():
    assert set(FORWARD_BOUNDS) | set(WITHOUT_BOUND) == set(FORWARD)
    assert not set(FORWARD_BOUNDS) & set(WITHOUT_BOUND)
    assert all(WITHOUT_BOUND.values())


def test_every_backward_step_has_a_bound():
    assert set(BACKWARD_BOUNDS) == set(BACKWARD)


@pytest.mark.parametrize("bounds", [FORWARD_BOUNDS, BACKWARD_BOUNDS], ids=["forward", "backward"])
def test_bounds_stand_in_the_order_of_the_steps(bounds):
    assert list(bounds) == [name for name in (*FORWARD, *BACKWARD) if name in bounds]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_bound_has_the_form_of_what_its_step_gives(case):
    """The shape and, up to the order of a sum, the numbers of the reference."""
    problem = case.build()
    state = reference.run_state(problem.config, problem.weights, problem.inputs)
    with np.errstate(all="ignore"):
        bounds = of_all(Bounds(state, Rounding(Precision.of("float64"), probabilistic=False)))
    for name in (*FORWARD_BOUNDS, *BACKWARD_BOUNDS):
        _compare(name, bounds[name], state[name], state)


def _compare(name, bound, given, state):
    if given is None:
        assert bound is None, name
    elif isinstance(given, dict):
        assert bound.keys() == given.keys(), name
        for key, array in given.items():
            _compare(f"{name}[{key}]", bound[key], array, state)
    else:
        assert isinstance(bound, Bounded), name
        assert bound.v.shape == bound.e.shape == given.shape, name
        finite = np.isfinite(bound.v) & np.isfinite(given)
        if given.shape == state["allowed"].shape:
            finite &= state["allowed"]  # excluded places count for nothing
        size = np.abs(given[finite]).max(initial=1.0)
        np.testing.assert_allclose(bound.v[finite], given[finite], rtol=1e-9, atol=1e-9 * size, err_msg=name)
