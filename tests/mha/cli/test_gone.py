"""A word that left is answered in one line with what to use."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from mha.cli.main import GONE, main

pytestmark = pytest.mark.same_on_newest  # it is about the command line


@pytest.mark.parametrize("words", GONE)
def test_a_word_that_left_says_what_to_use(words):
    result = CliRunner().invoke(main, [*words.split(), "any"])
    assert result.exit_code == 2
    assert f"`mha {words}` is gone. Use {GONE[words]}" in result.output
    assert not set(words.split()) <= set(main.commands)
