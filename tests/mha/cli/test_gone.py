"""A word that left is answered in one line with what to use."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from mha.cli.main import GONE, main

pytestmark = pytest.mark.same_on_newest  # it is about the command line


@pytest.mark.parametrize("word", GONE)
def test_a_word_that_is_gone_says_in_one_line_what_to_use(word):
    result = CliRunner().invoke(main, [*word.split(), "--json", "report.json"])
    assert result.exit_code == 2
    assert result.output == f"Error: mha {word} is no longer there; use {GONE[word]}\n"
    assert word.split()[0] not in main.commands or "--" in word
