"""Inference where a record can not tell hypotheses apart, or no hypothesis fits, and what is refused at once."""

from dataclasses import replace

import numpy as np
import pytest

from mha.infer import Observed, describe, infer
from mha_core import AttentionConfig, AttentionInputs, SpecError
from mha_core.dtypes import round_to
from mha_core.layouts import get
from mha_core.reference import pipeline as reference
from tests.mha.infer.recorded_layers import BARE, CONFIG, assert_is, call, drawn, norms, scrambled

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

# What can't be known ------------------------------------------------------------------------------


def test_the_key_bias_is_undetermined():
    config = AttentionConfig(12, 3, bias={"q_proj": True, "k_proj": True})
    weights = drawn(config)
    arrays = {**weights, **{f"norm{i}": norm for i, norm in enumerate(norms(12))}}
    found = infer(scrambled(arrays), call(config, weights))
    assert found.key_bias[0] is None
    assert "k_proj.bias      undetermined by outputs: any of" in describe(found)


def test_one_row_is_refused_and_one_of_each_item_is_enough():
    weights = drawn(CONFIG)
    record = call(CONFIG, weights, lengths=(1, 6))
    assert_is(infer(scrambled(weights), record, num_heads=3), CONFIG, weights)
    with pytest.raises(SpecError, match="a record needs two query rows of different outputs"):
        infer(scrambled(weights), {name: array[:1] for name, array in record.items()}, num_heads=3)


@pytest.mark.nightly("layouts are inferred or said to be open", every=2)
@pytest.mark.parametrize("equal_keys", [False, True])
def test_keys_that_are_alike_say_nothing_of_queries_and_keys(equal_keys):
    """One key, or all alike: the layer fits, and so do others."""
    weights = drawn(CONFIG)
    rng = np.random.default_rng(1)
    keys = np.repeat(rng.normal(size=(2, 1, 12)), 5 if equal_keys else 1, axis=1)
    queries = rng.normal(size=(2, 4, 12)) if equal_keys else keys
    output = reference.run(CONFIG, weights, AttentionInputs(queries, keys, keys)).output
    arrays = scrambled(get("torch-separate").write(CONFIG, weights), norms(12))
    found = infer(arrays, {"queries": queries, "keys": keys, "output": output})
    assert found.verdict == "ambiguous"
    assert found.more
    assert f"Ambiguous: {len(found.fits)} or more" in describe(found)
    assert ("has one key only" in describe(found)) is not equal_keys
    with pytest.raises(SpecError, match="the mapping must be unique to be used. It is ambiguous; the report says why."):
        found.weights()


def test_that_time_ran_out_is_said_whatever_was_found():
    weights = drawn(CONFIG)
    arrays = scrambled(get("torch").write(CONFIG, weights))
    found = replace(infer(arrays, call(CONFIG, weights), num_heads=3), exhausted=False)
    assert found.verdict == "unique"
    assert "stopped by the time limit before all were tried" in describe(found)


def test_zero_queries_say_little():
    weights = {**drawn(BARE), "q_proj.weight": np.zeros((12, 12))}
    found = infer(scrambled(weights), call(BARE, weights))
    assert found.verdict == "ambiguous"
    assert found.more or len(found.fits) > 5
    assert "All zeros" in describe(found)


def test_the_key_bias_is_known_by_its_place_in_a_pack():
    weights = drawn(CONFIG)
    found = infer(scrambled(get("torch").write(CONFIG, weights), norms(12)), call(CONFIG, weights), num_heads=3)
    np.testing.assert_array_equal(found.weights()[1]["k_proj.bias"], weights["k_proj.bias"])
    assert "chosen by its place between the biases of queries and values" in describe(found)


def test_equal_arrays_are_one():
    weights = drawn(CONFIG)
    arrays = {**scrambled(weights), "copy": np.array(weights["v_proj.weight"])}
    found = infer(arrays, call(CONFIG, weights))
    assert_is(found, CONFIG, weights)
    assert "or the equal 'copy'" in describe(found)


def test_another_layers_output_fits_nothing():
    weights = drawn(CONFIG)
    record = call(CONFIG, drawn(CONFIG, seed=9))
    found = infer(scrambled(weights), record, num_heads=3)
    assert found.verdict == "none"
    assert "No mapping fits" in describe(found)
    assert "The closest is off by" in describe(found)
    assert "one vector" not in describe(found)


def test_a_bias_that_no_array_is_is_named():
    weights = drawn(CONFIG)
    found = infer(scrambled(weights), call(CONFIG, weights) | {"output": call(CONFIG, weights)["output"] + 1})
    assert "\nThe closest does with one vector more in every row: no array is that bias" in describe(found)


def test_numbers_that_are_off_by_more_than_the_bound_do_not_fit():
    weights = drawn(CONFIG)
    record = call(CONFIG, weights)
    record["output"] = record["output"] + 1e-9 * np.sin(np.arange(record["output"].size)).reshape(2, 5, 12)
    found = infer(scrambled(weights), record, num_heads=3)
    assert found.verdict == "none"
    assert found.closest.error < 2e-9


def test_numbers_that_the_stated_dtype_lacks_are_refused():
    """Else a layer that is off by 2 % would be one in bfloat16."""
    x = np.random.default_rng(0).normal(size=(1, 3, 4)).astype(np.float32)
    for dtype in ("bfloat16", "float16"):
        with pytest.raises(SpecError, match=f"queries must hold numbers of {dtype}, its dtype"):
            Observed.of({"queries": x, "output": x, "dtype": dtype})
        rounded = round_to(x, dtype).astype(np.float64)
        assert Observed.of({"queries": rounded, "output": rounded, "dtype": dtype}).dtype == dtype


# What is refused -----------------------------------------------------------------------------------

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
