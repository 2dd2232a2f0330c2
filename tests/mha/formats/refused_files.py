"""Reads a file, or the text of its refusal."""

import pytest

from mha_core import SpecError
from tests.mha.formats.some_files import read


def refusal(path):
    """What is said of the file; nothing else than a SpecError of one bounded line may come."""
    with pytest.raises(SpecError) as caught:
        read(path)
    text = str(caught.value)
    assert len(text) < 1000
    assert text.isprintable()
    return text
