"""A word that is no command, or that belongs to no option, is answered in one line with what to use."""

import pytest
from click.testing import CliRunner

from mha.cli.main import ELSEWHERE, NEVER, main

pytestmark = pytest.mark.same_on_newest  # it is about the command line


@pytest.mark.parametrize("word", NEVER)
def test_an_option_of_other_programs_says_in_one_line_what_there_is(word):
    for value in ([*word.split(), "1e-3"], [f"{word}=1e-3".split()[0], f"{word.split()[1]}=1e-3"]):
        result = CliRunner().invoke(main, value)
        assert (result.exit_code, result.output) == (2, f"Error: mha {word} is not there: {NEVER[word]}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    {
        "diagnose mine:attention": "mine:attention is code, and no recording: mha diagnose --subject mine:attention",
        "where a.safetensors models:original": "ORIGINAL comes first: mha where models:original a.safetensors",
        "where models:original mine:port": "the port must be a recording, not mine:port: with mha.capture(port, ",
        "bugs no-scale": "bug 'no-scale' is not known; `mha bugs` lists them; did you mean scale-missing?",
    }.items(),
)
def test_what_was_meant_is_said_in_one_line(words, said):
    result = CliRunner().invoke(main, words.split())
    assert result.exit_code == 2
    assert result.output.startswith(f"Error: {said}")
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(
    ("word", "hint"),
    {
        "mine:attention": "Did you mean --subject mine:attention?",
        "mine.py": "Did you mean --subject mine:NAME?",
        "torch": "Did you mean --backend torch?",
        "call.safetensors": "A recording, which mha.capture wrote, is judged by `mha diagnose call.safetensors` and ",
        "mine": "A subject is --subject MODULE:NAME.",
    }.items(),
)
def test_a_word_that_check_does_not_take_is_answered_with_what_does(word, hint):
    result = CliRunner().invoke(main, ["check", word])
    assert result.exit_code == 2
    assert result.output.startswith(f"Error: Got unexpected extra argument ({word}). {hint}")
    assert ("`mha check --help` lists what there is." in result.output) == (word == "mine")
    assert result.output.count("\n") == 1


def test_a_file_with_the_class_of_a_layer_is_not_called_a_subject(tmp_path, monkeypatch):
    """Such a class is refused by `mha check --subject`: it must not be what the next command names."""
    monkeypatch.chdir(tmp_path)
    record = 'with mha.capture(model, "calls.safetensors"): model(x)'
    of = {
        "replay rec.py": f"it is code, of the layer Original; a recording is written in Python: {record}",
        "diagnose rec.py": f"{record}; then mha diagnose calls.safetensors",
        "diagnose rec:Original": f"{record}; then mha diagnose calls.safetensors",
        "check rec.py": "A class around the layer Original is judged: `mha check --new FILE.py --framework NAME`",
    }
    (tmp_path / "rec.py").write_text("class Original:\n    def forward(self, x): ...\n")
    for words, said in of.items():
        result = CliRunner().invoke(main, words.split())
        assert result.exit_code == 2
        assert said in result.output
    (tmp_path / "rec.py").write_text("class Original:\n    def prepare(self, config, weights): ...\n")
    assert "Did you mean --subject rec:Original?" in CliRunner().invoke(main, ["check", "rec.py"]).output
    (tmp_path / "rec.py").write_text("class One:\n    def forward(self, x): ...\n\n\nclass Two:\n    prepare = None\n")
    assert "Did you mean --subject rec:Two?" in CliRunner().invoke(main, ["check", "rec.py"]).output


@pytest.mark.parametrize("word", ELSEWHERE)
def test_a_word_that_is_no_command_is_answered_with_what_does_it(word):
    result = CliRunner().invoke(main, [word, "more"])
    assert (result.exit_code, result.output) == (2, f"Error: mha {word} is not there: {ELSEWHERE[word]}\n")
    assert word not in main.commands


@pytest.mark.parametrize(
    ("words", "said"),
    {
        "where": "ORIGINAL is missing: mha where ORIGINAL RECORDING, such as\n  mha where models:original ",
        "invariants": "MODULE:NAME is missing: mha invariants MODULE:NAME, such as\n  mha invariants mine:make",
        "learn start": "FOLDER is missing: mha learn start FOLDER. `mha learn start --help` lists what there is.",
        "cheque": "No such command 'cheque'. Did you mean `mha check`?",
        "xyzzy": "No such command 'xyzzy'. `mha --help` lists what there is.",
        "diagnose calls.safetensors --details": "--details belongs to --subject: a recording can't be asked more, ",
        "diagnose --subject mine:attention --weights a.pt": "--weights belongs to a recording: a subject is given its ",
        "check --subject": "Option '--subject' requires an argument. `mha check --help` lists what there is.",
        "cache --clear": "No such option '--clear'. Did you mean `mha cache clear`?",
        "replay calls.safetensors --weights a.pt": "No such option '--weights'. `mha diagnose` has one; ",
        "check --time-limit abc": "--time-limit must be a number, such as 60. Got abc.",
        "check --workers -1": "--workers must be a whole number from 0. Got -1.",
        "check --import-limit 0": "--import-limit must be a number above 0 to 1e+06, such as 60. Got 0.0.",
        "check --random x": "--random must be a whole number from 1. Got x.",
        "vectors torch": "Got unexpected extra argument (torch): it takes options alone. `mha vectors --help` lists ",
        "check --subject mine:attention --device cuda": "--device is for a backend: name one too, such as --backend ",
    }.items(),
)
def test_wrong_words_are_answered_with_what_may_stand_there(words, said, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def attention(weights, queries, keys, values, mask): ...")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, words.split())
    assert result.exit_code == 2
    assert result.output.startswith(f"Error: {said}")


def test_a_bug_is_shown_by_its_name():
    result = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["bugs", "scale-embed-dim"])
    assert result.exit_code == 0
    assert result.output.startswith("scale-embed-dim\n  what is wrong: Scores are divided by the root of")
    assert "\n  what to change: " in result.output
    nearly = CliRunner().invoke(main, ["bugs", "scale-embed-dm"])
    assert (nearly.exit_code, nearly.output.count("did you mean scale-embed-dim?")) == (2, 1)
