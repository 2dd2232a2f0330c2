"""Arrays and checks for the tests of captured calls."""

import numpy as np
import pytest

import mha
from mha.recordings.replay import judge_recording
from mha_core import SpecError

B, LQ, LK = 2, 3, 5


def numbers(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def some(*shape):
    """Bools, neither all alike."""
    found = np.random.default_rng(11).random(shape) < 0.6
    found[..., 0] = True  # no row without any
    return found


def assert_equal(recording):
    """Every recorded call is what the definition gives."""
    for result in judge_recording(recording):
        assert result.status == "equal", result
    return recording


def each_of(convert, values):
    """The keywords with every array converted."""
    return {name: convert(value) if isinstance(value, np.ndarray) else value for name, value in values.items()}


def masks(recording):
    return [call.inputs.mask for call in recording.calls]


def refused(message, model, call=lambda: pytest.fail("it ran"), path=None, **options):
    """What is said of a call that can't be recorded, or of a model before it is called."""
    with pytest.raises(SpecError, match=message) as caught, mha.capture(model, path, **options):
        call()
    return str(caught.value)
