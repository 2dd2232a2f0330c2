"""What the commands list keeps to 80 columns: no row is wrapped in a table, no name or description is cut."""

import io
import re

import pytest
from click.testing import CliRunner
from rich.console import Console

from mha.cli.common import show_rows
from mha.cli.main import GROUPS, main

LISTS = {
    "check --list": "nan-in-padding",
    "bugs": "q-proj-weight-transposed",
    "deviations": "linen-mha-empty-row-is-uniform",
    "convert --families": "xlm-roberta-xl",
    "convert --layouts": "canonical",
    "learn list": "masked-softmax",
    "check --installed": "torch",
    "--help": "attention into MODEL",
}


def output(words, columns="80"):
    done = CliRunner(env={"COLUMNS": columns, "MHA_WORKERS": "0"}).invoke(main, words.split())
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("words", LISTS)
def test_lists_keep_to_80_columns(words):
    said = output(words)
    assert LISTS[words] in said
    # What is longer is one word, such as a link.
    assert [line for line in said.splitlines() if len(line) > 80 and " " in line.strip().partition(": ")[2]] == []
    assert "│" not in said
    assert "…" not in said


def test_the_help_names_each_command_once_in_its_group_and_cuts_no_sentence():
    said = output("--help")
    assert [name for name in GROUPS if f"\n{name}:\n" in said] == list(GROUPS)
    commands = [one for group in GROUPS.values() for one in group]
    assert sorted(one.name for one in commands) == sorted(main.commands)
    flat = " ".join(said.split())
    for one in commands:
        assert f"{one.name} {one.get_short_help_str(limit=1000)}" in flat
    assert "..." not in said.replace("[ARGS]...", "")


@pytest.mark.parametrize("name", main.commands)
def test_the_help_of_each_command_fits_cuts_nothing_and_ends_with_examples(name):
    said = output(f"{name} --help")
    assert all(len(row) <= 80 for row in said.splitlines())
    assert "\\b" not in said
    assert re.search(r"\w\.\.\.$", said, re.M) is None
    examples = getattr(main.commands[name], "examples", ())
    assert all(f"\n    {one}\n" in said for one in examples)
    assert all(one.split()[1] == name for one in examples)


def shown(columns, *rows):
    console = Console(width=columns, record=True, file=io.StringIO())
    show_rows(console, ("name", "size", "what"), rows)
    return console.export_text()


ROWS = ("[red]a", "2", "it is short"), ("longer", "", "it is not so short")


def test_rows_that_fit_are_a_line_each_and_others_a_paragraph():
    assert shown(40, *ROWS) == ("name    size  what\n[red]a  2     it is short\nlonger        it is not so short\n")
    assert shown(20, *ROWS) == ("[red]a\n  size: 2\n  what: it is short\nlonger\n  what: it is not so\n    short\n")
    assert re.fullmatch(r"name +size +what\n", shown(40))
