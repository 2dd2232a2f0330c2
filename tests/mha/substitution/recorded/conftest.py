"""The recording that the tests of this folder compare others with."""

import pytest

from tests.mha.substitution.recorded.three_layers import layers_of, model


@pytest.fixture(scope="module")
def original():
    return model(layers_of())
