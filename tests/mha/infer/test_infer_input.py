"""What is refused of a record, of arrays, and of their files."""

import numpy as np
import pytest

from mha.infer import Observed, infer
from mha_core import SpecError
from tests.mha.infer.recorded_layers import CONFIG, drawn

X = np.ones((2, 5, 12))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"queries": X}, "a record needs 'output'"),
        ({"queries": X, "output": X, "mask": X}, "a record has no array 'mask' (it may have: queries, keys"),
        ({"queries": X, "output": X[:, :3]}, "output must have shape (B, Lq, Do) with (B, Lq)=(2, 5), as queries."),
        ({"queries": X, "output": X * np.nan}, "output must have a row of finite numbers. Got none."),
        ({"queries": X, "output": X, "keys": X[:1]}, "keys must have the batch size of queries."),
        ({"queries": X, "output": X.astype(int)}, "output must be floating-point"),
        ({"queries": X, "output": X, "valid_lens": np.array([6, 1])}, "valid_lens must lie in 0..5"),
    ],
)
def test_a_record_that_is_none(record, message):
    with pytest.raises(SpecError) as caught:
        Observed.of(record)
    assert message in str(caught.value)


def test_arrays_that_can_be_no_layer():
    x = np.random.default_rng(0).normal(size=X.shape)
    record = {"queries": x, "output": x}
    with pytest.raises(SpecError, match="no array has an axis as wide as an input or the output of the record"):
        infer({"a": np.ones((3, 4))}, record)
    with pytest.raises(SpecError, match="no arrays have shapes of queries, keys, values and output together"):
        infer({"a": np.ones((12, 5))}, record)
    with pytest.raises(SpecError, match="a record needs a query with a key that it may attend to."):
        infer(dict(drawn(CONFIG)), {**record, "valid_lens": np.array([0, 0])})
    with pytest.raises(SpecError, match="with num_heads=5"):
        infer(dict(drawn(CONFIG)), record, num_heads=5)
