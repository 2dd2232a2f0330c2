"""Frameworks for the tests of captured calls, where they are under test."""

import pytest


def _needs(name, backend_names):
    if name not in backend_names:
        pytest.skip(f"{name} is not under test")


@pytest.fixture
def torch(backend_names):
    _needs("torch", backend_names)
    import torch

    torch.manual_seed(0)
    return torch


@pytest.fixture
def layer(torch):
    return torch.nn.MultiheadAttention(12, 4, batch_first=True).eval()


@pytest.fixture
def jax(backend_names):
    _needs("jax", backend_names)
    import jax

    return jax


@pytest.fixture
def keras(backend_names):
    _needs("tf", backend_names)
    import keras

    keras.utils.set_random_seed(0)
    return keras
