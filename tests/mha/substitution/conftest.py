"""`judged`, which records a port and judges it."""

import pytest


@pytest.fixture
def judged(tmp_path):
    """A function of an original, a port and what the port is called with, to the report of `mha.where`."""
    import torch

    import mha

    def report(model, port, *given, inputs=None, **named):
        path = tmp_path / "port.safetensors"
        with torch.no_grad(), mha.capture(port, path, modules=True, overwrite=True):
            port(*given, **named)
        return mha.where(model, path, inputs=inputs)

    return report
