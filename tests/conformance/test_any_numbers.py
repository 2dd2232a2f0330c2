"""Arithmetic with numbers of any kind: no warning inside, and NumPy's setting as before outside."""

import threading

import numpy as np
import pytest

from conformance.any_numbers import any_numbers

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def test_no_number_is_a_reason_to_warn_inside():
    before = np.geterr()
    with any_numbers:
        with any_numbers:
            assert np.isinf(np.float64(1.0) / 0.0)
        assert np.isnan(np.float64(np.inf) - np.inf)  # an inner block does not end it
    assert np.geterr() == before
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        np.float64(1.0) / 0.0


def test_the_setting_is_as_before_after_an_error():
    before = np.geterr()
    with pytest.raises(ZeroDivisionError), any_numbers, any_numbers:
        raise ZeroDivisionError
    assert np.geterr() == before


def test_a_block_in_one_thread_is_none_in_another():
    found = []
    with any_numbers:
        thread = threading.Thread(target=lambda: found.append(np.geterr()["divide"]))
        thread.start()
        thread.join()
        assert np.geterr()["divide"] == "ignore"
    assert found == ["warn"]
