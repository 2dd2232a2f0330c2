"""Calls of layers with rotary positions and a query-key norm that do not fit: one line, the same in every backend."""

from dataclasses import replace

import numpy as np
import pytest

from mha_core import AttentionConfig, AttentionInputs, AttentionMask, RotaryInputs, SpecError, init_weights
from mha_core.weights import check_weights

ROTARY = AttentionConfig(30, 3, head_dim=10, rotary={"width": 6})
PLAIN = AttentionConfig(30, 3, head_dim=10)
AXES = AttentionConfig(30, 3, head_dim=10, rotary={"width": 6, "sections": (2, 1)})
SHORT = AttentionConfig(30, 3, head_dim=10, rotary={"width": 6, "max_positions": 8})
RNG = np.random.default_rng(0)


def table(*shape, dtype="float64"):
    return RNG.normal(size=shape).astype(dtype)


TWO = RotaryInputs(np.arange(4), np.arange(5))
BAD = {
    "no such layer": (PLAIN, TWO, r"^positions and rotary tables belong to a layer with rotary positions\."),
    "both": (ROTARY, replace(TWO, cos=table(4, 3), sin=table(4, 3)), "positions or rotary tables, not both"),
    "no sine": (ROTARY, RotaryInputs(cos=table(4, 3)), "cos and sin belong together. sin is missing"),
    "keys alone": (ROTARY, RotaryInputs(key_positions=np.arange(5)), "belongs to positions, which is missing"),
    "one for both": (ROTARY, RotaryInputs(np.arange(4)), "Got 4 queries and 5 new keys: give a pair"),
    "another length": (
        ROTARY,
        replace(TWO, key_positions=np.arange(6)),
        r"key_positions must have shape .* Got \(6,\)",
    ),
    "another batch": (ROTARY, replace(TWO, positions=np.zeros((3, 4), int)), r"positions must have shape .* \(3, 4\)"),
    "floats": (ROTARY, replace(TWO, positions=np.arange(4.0)), "positions must be integers. Got dtype float64"),
    "bools": (ROTARY, replace(TWO, positions=np.ones(4, bool)), "positions must be integers. Got dtype bool"),
    "negative": (ROTARY, replace(TWO, positions=np.arange(4) - 1), "positions must be at least 0. Got -1"),
    "beyond the last": (SHORT, replace(TWO, positions=np.arange(4) + 5), r"positions must be in 0\.\.7 .* Got 8"),
    "one axis": (AXES, TWO, r"positions must have shape \(axes, B, L\)=\(2, 2, 4\)\. Got \(4,\)"),
    "whole width": (
        ROTARY,
        RotaryInputs(None, None, table(4, 6), table(4, 6), table(5, 3), table(5, 3)),
        r"cos must have shape .*=\(4, 3\).* Got \(4, 6\)",
    ),
    "another dtype": (
        ROTARY,
        RotaryInputs(None, None, table(4, 3, dtype="float32"), table(4, 3), table(5, 3), table(5, 3)),
        "cos must have the dtype of queries, float64. Got float32",
    ),
    "rows of another length": (
        ROTARY,
        RotaryInputs(None, None, table(4, 3), table(4, 3), table(4, 3), table(4, 3)),
        r"key_cos must have shape .* Got \(4, 3\)",
    ),
}


def call(rotary, **mask):
    x, y = RNG.normal(size=(2, 4, 30)), RNG.normal(size=(2, 5, 30))
    return AttentionInputs(x, y, y, AttentionMask(**mask), rotary=rotary)


@pytest.mark.parametrize("name", BAD)
def test_a_call_that_does_not_fit_is_refused_in_the_same_words(name, backend):
    config, rotary, message = BAD[name]
    inputs = call(rotary)
    with pytest.raises(SpecError, match=message) as said:
        inputs.check(config)
    assert "\n" not in str(said.value)
    layer = backend.prepare(config, init_weights(config, seed=0))
    with pytest.raises(SpecError) as of_backend:
        layer(inputs)
    assert str(of_backend.value) == str(said.value)


def test_a_negative_query_offset_needs_positions(backend):
    """Counted positions would begin before 0."""
    inputs = call(None, causal=True, query_offset=-1)
    layer = backend.prepare(ROTARY, init_weights(ROTARY, seed=0))
    for run in (layer, lambda inputs: inputs.check(ROTARY)):
        with pytest.raises(SpecError, match="positions must be at least 0. Got -1"):
            run(inputs)


@pytest.mark.parametrize(
    ("name", "shape"), [("q_norm.weight", (30,)), ("k_norm.weight", (1, 10)), ("k_norm.bias", (9,))]
)
def test_weights_of_a_norm_of_another_shape_are_refused(name, shape, backend):
    config = AttentionConfig(30, 3, query_key_norm={"bias": True})
    weights = {**init_weights(config, seed=0), name: np.ones(shape)}
    with pytest.raises(SpecError, match=f"{name} must have shape") as said:
        check_weights(config, weights)
    with pytest.raises(SpecError) as of_backend:
        backend.prepare(config, weights)
    assert str(of_backend.value) == str(said.value)
