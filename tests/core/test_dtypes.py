import numpy as np
import pytest

from mha_core import SpecError
from mha_core.dtypes import check_dtype, round_to, storage_dtype


def test_bfloat16_rounds_to_nearest_even():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="an independent bfloat16; tensorflow and jax bring it")
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=4000) * 10.0 ** rng.integers(-38, 38, size=4000), [0.0, -0.0, 3.39e38]])
    values = np.append(values.astype(np.float32), np.float32([np.inf, -np.inf, np.nan, 1.00390625, 1.01171875]))
    np.testing.assert_array_equal(round_to(values, "bfloat16"), values.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_rounding_keeps_what_the_dtype_can_hold():
    values = np.array([1.0, -0.5, 3.0])
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        rounded = round_to(values, dtype)
        assert rounded.dtype == storage_dtype(dtype)
        np.testing.assert_array_equal(rounded, values)


def test_numbers_beyond_the_range_become_infinite():
    assert round_to(np.array([1e5]), "float16") == np.inf


def test_unknown_dtype_is_refused():
    with pytest.raises(SpecError, match="'float8' is not known .*float64, float32, float16, bfloat16"):
        check_dtype("float8")
