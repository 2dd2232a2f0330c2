"""Reads a file, or the text of its refusal."""

from __future__ import annotations

import pytest

from mha.formats import open_checkpoint
from mha_core import SpecError


def read(path):
    with open_checkpoint(path) as checkpoint:
        return {name: checkpoint.array(name) for name in checkpoint.entries}


def refusal(path):
    """What is said of the file; nothing else than a SpecError of one bounded line may come."""
    with pytest.raises(SpecError) as caught:
        read(path)
    text = str(caught.value)
    assert len(text) < 1000
    assert text.isprintable()
    return text
