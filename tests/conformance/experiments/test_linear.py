"""Least squares of what is not finite: what NumPy gives, and nothing printed by LAPACK."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.experiments.linear import least_squares, pseudo_inverse

pytestmark = pytest.mark.same_on_newest  # no framework takes part

A = np.random.default_rng(0).normal(size=(5, 3))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_nothing_is_printed_of_what_is_not_finite(wrong, capfd):
    one, several = A[:, 0].copy(), A[:, :2].copy()
    one[2], several[2, 1] = wrong, wrong
    assert np.isnan(least_squares(A, one)[0]).all()
    found, rank = least_squares(A, several)
    assert rank == 3
    np.testing.assert_allclose(found[:, 0], [1.0, 0.0, 0.0], atol=1e-12)
    assert np.isnan(found[:, 1]).all()
    with pytest.raises(np.linalg.LinAlgError):
        least_squares(several, A[:, 0])
    if np.isnan(wrong):
        with pytest.raises(np.linalg.LinAlgError):
            pseudo_inverse(several)
    else:
        np.testing.assert_array_equal(pseudo_inverse(several), np.zeros((2, 5)))
    assert capfd.readouterr() == ("", "")


def test_finite_numbers_give_what_numpy_gives():
    np.testing.assert_array_equal(
        least_squares(A, A @ [1.0, 2.0, 3.0])[0], np.linalg.lstsq(A, A @ [1.0, 2.0, 3.0], None)[0]
    )
    np.testing.assert_array_equal(pseudo_inverse(A), np.linalg.pinv(A))
