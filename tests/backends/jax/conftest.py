"""The layer that the tests of this folder call."""

import pytest

from backends.jax import from_weights
from tests.backends.jax.example_calls import CONFIG, WEIGHTS


@pytest.fixture
def layer_and_variables():
    return from_weights(CONFIG, WEIGHTS)
