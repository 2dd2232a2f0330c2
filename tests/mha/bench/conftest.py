"""What the tests that measure share."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def frozen() -> None:
    """Python collects garbage before each thing that is measured: not among the hundreds of thousands of objects of
    frameworks, which stay.
    """
    gc.collect()
    gc.freeze()
