"""A layer that holds the weights of another model is told in one line."""

import numpy as np

from mha.substitution.recorded.weights import OF_ANOTHER_MODEL, _are_others


def drawn(seed):
    rng = np.random.default_rng(seed)
    return {f"{name}_proj.weight": rng.normal(size=(6, 5)).astype(np.float32) for name in ("q", "k", "v", "out")}


def test_only_matrices_that_have_nothing_in_common_are_of_another_model():
    own, other = drawn(0), drawn(1)
    assert OF_ANOTHER_MODEL.startswith("all its matrices hold other numbers")
    assert _are_others(own, other, list(own))
    assert not _are_others(own, other, list(own)[:3])  # one is the original's
    assert not _are_others(own, {name: array * np.float32(1.5) for name, array in own.items()}, list(own))
    assert not _are_others(own, {name: array + 0.01 for name, array in own.items()}, list(own))
    assert not _are_others(own, {name: array[::-1] for name, array in own.items()}, list(own))
    assert not _are_others(own, {name: array[:4] for name, array in other.items()}, list(own))
