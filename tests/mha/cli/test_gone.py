"""A word that left, or that belongs to no option, is answered in one line with what to use."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from mha.cli.main import GONE, NEVER, main

pytestmark = pytest.mark.same_on_newest  # it is about the command line


@pytest.mark.parametrize("word", GONE)
def test_a_word_that_is_gone_says_in_one_line_what_to_use(word):
    result = CliRunner().invoke(main, [*word.split(), "--json", "report.json"])
    assert result.exit_code == 2
    assert result.output == f"Error: mha {word} is no longer there; use {GONE[word]}\n"
    assert word.split()[0] not in main.commands or "--" in word


@pytest.mark.parametrize("word", NEVER)
def test_an_option_of_other_programs_says_in_one_line_what_there_is(word):
    for value in ([*word.split(), "1e-3"], [f"{word}=1e-3".split()[0], f"{word.split()[1]}=1e-3"]):
        result = CliRunner().invoke(main, value)
        assert (result.exit_code, result.output) == (2, f"Error: mha {word} is not there: {NEVER[word]}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    {
        "diagnose mine:attention": "mine:attention is no file, but a subject: mha diagnose --subject mine:attention",
        "where a.safetensors models:original": "ORIGINAL comes first: mha where models:original a.safetensors",
        "where models:original mine:port": "the port must be a recording, not mine:port: with mha.capture(port, "
        '"port.safetensors", modules=True): port(x), and then mha where models:original port.safetensors',
        "view a.safetensors": "--html FILE is missing, the page to write: mha view a.safetensors --html heads.html",
        "bugs no-scale": "bug 'no-scale' is not known; `mha bugs` lists them; did you mean scale-missing?",
    }.items(),
)
def test_what_was_meant_is_said_in_one_line(words, said):
    result = CliRunner().invoke(main, words.split())
    assert (result.exit_code, result.output) == (2, f"Error: {said}\n")


@pytest.mark.parametrize(
    ("word", "hint"),
    {
        "mine:attention": "Did you mean --subject mine:attention?",
        "mine.py": "Did you mean --subject mine:NAME, with the name of what is in it?",
        "torch": "Did you mean --backend torch?",
        "call.safetensors": "A recording, which mha.capture wrote, is judged by `mha diagnose call.safetensors` and "
        "`mha replay call.safetensors`.",
        "mine": "A subject is --subject MODULE:NAME.",
    }.items(),
)
def test_a_word_that_check_does_not_take_is_answered_with_what_does(word, hint):
    result = CliRunner().invoke(main, ["check", word])
    assert result.exit_code == 2
    assert result.output.endswith(f"\nError: Got unexpected extra argument ({word}). {hint}\n")


def test_a_bug_is_shown_by_its_name():
    result = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["bugs", "scale-embed-dim"])
    assert result.exit_code == 0
    assert result.output.startswith("scale-embed-dim\n  what is wrong: Scores are divided by the root of")
    assert "\n  what to change: " in result.output
    nearly = CliRunner().invoke(main, ["bugs", "scale-embed-dm"])
    assert (nearly.exit_code, nearly.output.count("did you mean scale-embed-dim?")) == (2, 1)
