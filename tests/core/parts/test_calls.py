"""Calls of layers with rotary positions and a query-key norm that do not fit: one line, the same in every backend."""

from __future__ import annotations

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


SCALED = AttentionConfig(30, 3, head_dim=10, query_scale={"rule": "llama4", "beta": 0.1, "length": 3})
BY_CALL = AttentionConfig(30, 3, head_dim=10, query_scale=True)
BOTH = AttentionConfig(30, 3, head_dim=10, rotary={"width": 6}, query_scale=SCALED.query_scale)

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
    "no query scale": (PLAIN, RotaryInputs(query_scale=table(4)), "^query_scale belongs to a layer with a query scale"),
    "factors missing": (BY_CALL, None, r"query_scale must be given, \(Lq,\)=\(4,\) or \(B, Lq\)=\(2, 4\): .* no rule"),
    "positions without a rule": (
        BY_CALL,
        replace(TWO, query_scale=table(4)),
        "belong to a layer with rotary positions",
    ),
    "factors of keys": (BY_CALL, RotaryInputs(query_scale=table(5)), r"query_scale must have shape .* Got \(5,\)"),
    "factors of heads": (
        BY_CALL,
        RotaryInputs(query_scale=table(2, 3, 4)),
        r"query_scale must have shape \(Lq,\)=\(4,\) or \(B, Lq\)=\(2, 4\)\. Got \(2, 3, 4\)",
    ),
    "factors of another dtype": (
        SCALED,
        RotaryInputs(query_scale=table(4, dtype="float32")),
        "query_scale must have the dtype of queries, float64. Got float32",
    ),
    "factors of integers": (
        SCALED,
        RotaryInputs(query_scale=np.arange(4)),
        "query_scale must have the dtype of queries, float64. Got int64",
    ),
    "negative places of queries": (SCALED, RotaryInputs(np.arange(4) - 2), "positions must be at least 0. Got -2"),
    "tables tell no positions": (
        BOTH,
        RotaryInputs(None, None, table(4, 3), table(4, 3), table(5, 3), table(5, 3)),
        "query_scale must be given, .*: rotary tables don't say where queries stand",
    ),
}


def call(rotary, **mask):
    x, y = RNG.normal(size=(2, 4, 30)), RNG.normal(size=(2, 5, 30))
    return AttentionInputs(x, y, y, AttentionMask(**mask), rotary=rotary)


CHUNKED = AttentionConfig(30, 3, head_dim=10, chunked_mask=3)
BAD_STARTS = {
    "no chunks": (PLAIN, 1, "^chunk_start belongs to a layer with a chunked mask"),
    "of queries": (
        CHUNKED,
        np.arange(4),
        r"chunk_start must be an integer, or integers of shape \(B,\)=\(2,\).*int64 \(4,\)",
    ),
    "floats": (CHUNKED, np.array([0.0, 1.0]), r"chunk_start must be an integer, .* Got float64 \(2,\)"),
    "bool": (CHUNKED, True, "chunk_start must be an "),
    "too far": (CHUNKED, 2**31, r"chunk_start must lie in -2147483648\.\.2147483647\. Got 2147483648"),
}


@pytest.mark.parametrize("name", BAD_STARTS)
def test_a_start_of_chunks_that_does_not_fit_is_refused_in_the_same_words(name, backend):
    config, start, message = BAD_STARTS[name]
    inputs = call(None, causal=True, chunk_start=start)
    with pytest.raises(SpecError, match=message) as said:
        inputs.check(config)
    assert "\n" not in str(said.value)
    layer = backend.prepare(config, init_weights(config, seed=0))
    with pytest.raises(SpecError) as of_backend:
        layer(inputs)
    assert str(of_backend.value) == str(said.value)


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
    layers = [backend.prepare(config, init_weights(config, seed=0)) for config in (ROTARY, SCALED)]
    for run in (*layers, lambda inputs: inputs.check(ROTARY), lambda inputs: inputs.check(SCALED)):
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
