"""The backends under test: all four, unless `--backends` names fewer. One that cannot load is a failure."""

from __future__ import annotations

import os

import pytest

# TensorFlow writes to stderr on import unless it is told not to beforehand.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backends",
        default="jax,mxnet,tf,torch",
        help="the backends under test, separated by commas (default: %(default)s)",
    )


def _names(config: pytest.Config) -> list[str]:
    return config.getoption("--backends").split(",")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend_name" in metafunc.fixturenames:
        metafunc.parametrize("backend_name", _names(metafunc.config))


@pytest.fixture(scope="session")
def backend_names(request: pytest.FixtureRequest) -> list[str]:
    return _names(request.config)


@pytest.fixture
def backend(backend_name: str):
    """One loaded backend."""
    from mha_core.backend import load

    return load(backend_name)
