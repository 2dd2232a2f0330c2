"""The APIs in which a module is ported: which of them are asked for, and which are the same on the newest releases."""

from collections.abc import Iterable
from typing import Any

import pytest

API_OF = {"tf": ("keras",), "jax": ("linen", "nnx"), "mxnet": ("gluon",), "torch": ("torch",)}


def each(apis: Iterable[str]) -> list[Any]:
    """What a test is parametrized with. The releases of PyTorch and Keras are the same there; NumPy is ours, and other
    ports have it.
    """
    same = {name: [pytest.mark.same_on_newest] for name in ("keras", "torch")}
    return [pytest.param(api, marks=same.get(api, ())) for api in apis]


def skip_unless_asked(api: str, request: pytest.FixtureRequest) -> None:
    if not any(api in API_OF[name] for name in request.config.getoption("--backends").split(",")):
        pytest.skip(f"the framework of {api} is not asked for")
