"""Recorded calls of layers, and their arrays under names that say nothing."""

from itertools import count

import numpy as np
import pytest

from mha.infer import describe
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights
from mha_core.reference import pipeline as reference

CONFIG = AttentionConfig(12, 3, bias=True)
BARE = AttentionConfig(12, 3)


def call(config, weights, *, lengths=(5, 5), mask=None, seed=1):
    """One call: its inputs, by the names of a record, and its output."""
    rng = np.random.default_rng(seed)
    own = lengths[0] == lengths[1] and config.query_dim == config.key_dim == config.value_dim
    queries = rng.normal(size=(2, lengths[0], config.query_dim))
    keys = queries if own else rng.normal(size=(2, lengths[1], config.key_dim))
    values = keys if config.value_dim == config.key_dim else rng.normal(size=(2, lengths[1], config.value_dim))
    mask = mask or AttentionMask()
    output = reference.run(config, weights, AttentionInputs(queries, keys, values, mask)).output
    record = {"queries": queries, "output": output}
    if keys is not queries:
        record["keys"] = keys
    if values is not keys:
        record["values"] = values
    return record


def drawn(config, seed=0):
    return init_weights(config, seed=seed, bias_scale=0.5)


def scrambled(arrays, distractors=()):
    """Under names that say nothing, in another order."""
    numbers = count()
    everything = [*arrays.values(), *distractors]
    order = np.random.default_rng(7).permutation(len(everything))
    return {f"blob_{next(numbers)}": np.ascontiguousarray(everything[i]) for i in order}


def norms(width, n=2, seed=5):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=width) for _ in range(n)]


def assert_is(found, config, weights):
    """The mapping is unique, and it is this layer; the key bias has no influence."""
    assert found.verdict == "unique", describe(found)
    got_config, got = found.weights()
    assert (got_config.num_heads, got_config.num_kv_heads) == (config.num_heads, config.num_kv_heads)
    assert got_config.softmax_scale == pytest.approx(config.softmax_scale, rel=1e-15)
    for name, array in weights.items():
        if name != "k_proj.bias":
            np.testing.assert_array_equal(got[name], array, err_msg=name)
