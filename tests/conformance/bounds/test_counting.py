"""Counting equal digits, and products with numbers around the smallest normal one: faster ways, the same numbers."""

import numpy as np
import pytest

from conformance.bounds.bounded import DISTINCT, RAISED, _matmul, copies, total_copies


def counted(row):
    """The definition, number by number."""
    digits = [0 if np.isnan(x) else int(min(np.frexp(abs(x))[0] * DISTINCT, 2 * DISTINCT)) for x in row]
    return [digits.count(digit) for digit in digits]


@pytest.mark.parametrize("distinct", [1, 2, 3, 1000])
@pytest.mark.parametrize("shape", [(5,), (4, 7), (2, 3, 11), (3, 1), (0, 4)])
def test_copies_are_the_numbers_with_equal_digits(shape, distinct):
    rng = np.random.default_rng(0)
    x = rng.choice(rng.normal(size=distinct), shape) * 2.0 ** rng.integers(-3, 3, shape) * rng.choice([-1, 1], shape)
    wanted = np.array([counted(row) for row in x.reshape(-1, shape[-1])], dtype=np.int64).reshape(shape)
    np.testing.assert_array_equal(copies(x), wanted)
    np.testing.assert_array_equal(total_copies(x), wanted.sum(axis=-1))


def test_what_is_no_number_is_counted_too():
    x = np.array([[0.0, np.nan, 1.0, np.inf, -np.inf, 2.0], [1.0, 1.1, 1.2, 1.3, 1.4, np.nan]])
    np.testing.assert_array_equal(copies(x), [counted(row) for row in x])
    np.testing.assert_array_equal(total_copies(x), [sum(counted(row)) for row in x])


def test_a_product_with_tiny_numbers_has_the_same_bits_where_they_are_normal():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(40, 40)), rng.normal(size=(40, 30))
    a[3, 5], a[7] = 2.0**-1022, 2.0**-1000  # the sum of row 3 is large, that of row 7 is small
    found, plain = _matmul(a, b), a @ b
    assert np.abs(found).min() > 2.0**-1022
    assert found.tobytes() == plain.tobytes()


def test_a_product_that_is_not_normal_is_off_by_less_than_the_smallest_numbers():
    rng = np.random.default_rng(2)
    a, b = rng.random((40, 40)) * 2.0**-1030, rng.random((40, 30))
    exact = np.array((a * 2.0**500) @ b)  # normal, and so right to 2^-50
    np.testing.assert_allclose(_matmul(a, b) * 2.0**500, exact, rtol=0, atol=2.0 ** (500 - 1074))


@pytest.mark.parametrize("large", [np.nan, np.inf, RAISED, 1e300])
@pytest.mark.parametrize("where", ["first", "second"])
def test_a_product_with_large_numbers_does_not_overflow(large, where):
    a, b = np.full((40, 40), 2.0**-1022), np.ones((40, 30))
    (a if where == "first" else b)[0, 0] = large
    with np.errstate(invalid="ignore"):  # an infinite factor may raise the flag, as some products of NumPy 2 do
        np.testing.assert_array_equal(_matmul(a, b), a @ b)
