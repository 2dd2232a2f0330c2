"""`mha view`: one clear line for what can't be shown, before any work, and nothing half-written."""

import json

import pytest
from click.testing import CliRunner

from mha.cli.learning.view import view
from tests.mha.view.sample import cross, perturbed, two_layers

pytestmark = pytest.mark.same_on_newest  # no framework takes part


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    two_layers(tokens=None).save("two.safetensors")

    def command(*arguments: str):
        return CliRunner(env={"COLUMNS": "300"}).invoke(view, [*arguments, "--html", "view.html"])

    return command


def test_the_size_is_said_before_the_page_is_written(run, tmp_path):
    done = run("two.safetensors")
    assert done.exit_code == 0, done.output
    first, line, last = done.output.strip().splitlines()
    assert "view.html will take at most" in first
    assert line.startswith("What you see is what the layers used")
    assert last.startswith("Wrote ")
    assert (tmp_path / "view.html").read_text().startswith("<!doctype html>")


def test_a_page_without_a_name_is_called_after_the_recording(run, tmp_path):
    done = CliRunner().invoke(view, ["two.safetensors"])
    assert done.exit_code == 0, done.output
    assert "Wrote two-heads.html: " in done.output
    assert (tmp_path / "two-heads.html").read_text().startswith("<!doctype html>")


def test_what_was_not_used_is_exit_status_1(run):
    perturbed(two_layers()).save("wrong.safetensors")
    done = run("wrong.safetensors")
    assert done.exit_code == 1
    assert "What you see is NOT what the layers used" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.safetensors"], "no such file, and no model: nowhere.safetensors (models: minilm"),
        (["two.safetensors", "--tokens", "few.txt"], "few.txt: 2 tokens, and a.first has 7 keys"),
        (["two.safetensors", "--tokens", "none.txt"], "none.txt can't be read: No such file"),
        (["two.safetensors", "--tokens", "bad.json"], "bad.json has no tokens: it is no JSON"),
        (["two.safetensors", "--tokens", "empty.txt"], "empty.txt has no tokens: tokens must be a list"),
        (["two.safetensors", "--layers", "c"], "no layer is named or numbered 'c'"),
        (["two.safetensors", "--heads", "9"], "a.first has heads 0 to 2"),
        (["two.safetensors", "--text", "Hello."], "a recording has its inputs already"),
        (["two.safetensors", "-b", "torch", "--compare", "two.safetensors"], "choose one"),
        (["two.safetensors", "-b", "torch", "-b", "jax", "-b", "tf"], "two at most"),
        (
            ["two.safetensors", "--compare", "cross.safetensors"],
            "a.first has weights of shape (2, 3, 7, 7), its partner",
        ),
        (["few.txt"], "few.txt"),
    ],
)
def test_what_cannot_be_shown_is_one_line_and_no_file(run, tmp_path, arguments, message):
    (tmp_path / "few.txt").write_text("one\ntwo\n")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "bad.json").write_text("[")
    cross().save("cross.safetensors")
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    (line,) = done.output.strip().splitlines()
    assert message in line
    assert not (tmp_path / "view.html").exists()


def test_tokens_of_a_file_stand_in_the_page(run, tmp_path):
    (tmp_path / "names.json").write_text(json.dumps([[f"left{i}" for i in range(7)], [f"right{i}" for i in range(7)]]))
    done = run("two.safetensors", "--tokens", "names.json", "--compare", "two.safetensors")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "view.html").read_text()
    assert "left6" in page
    assert "right0" in page
    assert "the other recording" in page
