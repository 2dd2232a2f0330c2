"""Query scale where a compiler traces positions: the factors are computed in its graph, so no table is needed."""

from __future__ import annotations

import numpy as np
import pytest

from mha_core import AttentionConfig, AttentionInputs, AttentionMask, RotaryInputs, init_weights
from mha_core.reference import run

CONFIG = AttentionConfig(12, 3, num_kv_heads=1, query_scale={"rule": "llama4", "beta": 0.6, "length": 4})
WEIGHTS = init_weights(CONFIG, seed=1)
RNG = np.random.default_rng(2)
QUERIES, KEYS = RNG.normal(size=(2, 5, 12)), RNG.normal(size=(2, 7, 12))
POSITIONS = np.array([[0, 3, 4, 7, 9000], [2, 6, 11, 12, 40]])
OFFSET = np.array([2, 6])


def expected(rotary=None, **mask):
    return run(CONFIG, WEIGHTS, AttentionInputs(QUERIES, KEYS, KEYS, AttentionMask(**mask), rotary=rotary)).output


def check(by_positions, by_offset):
    np.testing.assert_allclose(by_positions, expected(RotaryInputs(POSITIONS)), rtol=0, atol=1e-13)
    np.testing.assert_allclose(by_offset, expected(query_offset=OFFSET), rtol=0, atol=1e-13)
    assert np.abs(by_positions - by_offset).max() > 1e-2


def test_torch_compiles_traced_positions():
    torch = pytest.importorskip("torch")
    from backends.torch import from_weights

    layer = from_weights(CONFIG, WEIGHTS)
    q, k, places, offset = map(torch.tensor, (QUERIES, KEYS, POSITIONS, OFFSET))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        check(compiled(q, k, k, positions=places).numpy(), compiled(q, k, k, query_offset=offset).numpy())


def test_jax_compiles_traced_positions():
    jax = pytest.importorskip("jax")
    from backends.jax import from_weights
    from backends.jax.ops.framework import device_of, scope

    with scope("float64", device_of("cpu")):
        layer, variables = from_weights(CONFIG, WEIGHTS)
        compiled = jax.jit(lambda q, k, **given: layer.apply(variables, q, k, k, **given))
        check(compiled(QUERIES, KEYS, positions=POSITIONS), compiled(QUERIES, KEYS, query_offset=OFFSET))


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_tensorflow_traces_positions_of_unknown_length(jit_compile):
    tf = pytest.importorskip("tensorflow")
    from backends.tf import from_weights

    layer, x = from_weights(CONFIG, WEIGHTS), tf.TensorSpec((None, None, 12), tf.float64)
    placed = tf.function(
        lambda q, k, places: layer(q, k, k, positions=places), [x, x, tf.TensorSpec((None, None), tf.int32)]
    )
    counted = tf.function(
        lambda q, k, offset: layer(q, k, k, query_offset=offset), [x, x, tf.TensorSpec((None,), tf.int64)]
    )
    check(placed(QUERIES, KEYS, POSITIONS.astype("int32")).numpy(), counted(QUERIES, KEYS, OFFSET).numpy())
