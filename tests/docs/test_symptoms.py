"""What SKILL.md and the page by symptom show is what their commands print, run step for step in an empty folder."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from runpy import run_path
from shutil import copy

import click
import jsonschema
import pytest
from click.testing import CliRunner

import mha.schemas
from conformance.workers.answering import own_subject
from mha.cli.main import main
from tests.docs.conftest import ROOT
from tests.mha.cli.test_where import shape_of

SKILL = (ROOT / "SKILL.md").read_text()
PAGE = (ROOT / "docs" / "symptoms.md").read_text()

pytestmark = pytest.mark.same_on_newest  # PyTorch's release is the same there

torch = pytest.importorskip("torch")


def programs(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def shown(text: str) -> list[tuple[str, str]]:
    """(command, what is shown of it) of each line that begins with a dollar, in the order of the page."""
    blocks = re.findall(r"```\n(\$ .*?)```", text, re.DOTALL)
    return [
        (command, output)
        for block in blocks
        for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An empty folder, and `mha` on the path."""
    place = tmp_path_factory.mktemp("empty")
    script = place / "bin" / "mha"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from mha.cli.main import run; run()" "$@"\n')
    script.chmod(0o755)
    return place


def in_a_shell(folder: Path, command: str) -> tuple[int, str, str]:
    """Exit status, what is printed, and what is said on stderr."""
    path = f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "MHA_WORKERS": "0"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def in_this_process(folder: Path, command: str) -> tuple[int, str, str]:
    """The same of one `mha`, or `python` and a file: PyTorch is here already. The folder's modules are read anew, as by
    a new process.
    """
    words = shlex.split(command)
    with pytest.MonkeyPatch.context() as patch, chdir(folder):
        own = [str(folder)] if words[0] == "python" else []  # `mha` has its own way to the current folder
        patch.setattr(sys, "path", [*own, *(path for path in sys.path if path)])
        patch.setenv("MHA_WORKERS", "0")
        own_subject.cache_clear()
        for path in folder.glob("*.py"):
            sys.modules.pop(path.stem, None)
        program = click.Command("python", callback=lambda: run_path(words[1], run_name="__main__"))
        done = CliRunner().invoke(*((main, words[1:]) if words[0] == "mha" else (program, ())))
        for path in folder.glob("*.py"):
            sys.modules.pop(path.stem, None)
        own_subject.cache_clear()
    return done.exit_code, done.stdout, done.stderr


def check(folder: Path, command: str, output: str) -> None:
    """Run a command: it must end as the page says, and print what it shows but for numbers; "..." are any lines."""
    printed = said = ""
    for part in command.split(" && "):
        alone = re.match(r"(mha|python) [^|&;<>]*$", part)
        status, *more = (in_this_process if alone else in_a_shell)(folder, part)
        printed, said = printed + more[0], said + more[1]
        if status:
            break
    output, _, shown_status = output.partition("(exit status ")
    assert status == int(shown_status[:1] or 0), printed + said
    parts = [re.escape(shape_of(part).strip()) for part in re.split(r"^\.\.\.$", output, flags=re.MULTILINE)]
    assert re.fullmatch(r".*?".join(parts), shape_of(printed).strip(), re.DOTALL), printed


def test_the_skill_leads_from_a_recording_to_a_right_port(folder):
    (folder / "models.py").write_text(programs(SKILL)[0])
    steps = shown(SKILL)
    assert len(steps) == 5
    for command, output in steps:
        check(folder, command, output)
    assert "(exit status 0)" in steps[-1][1], "the mended port is equal"


def test_the_skill_names_schemas_fields_and_commands_that_there_are():
    assert re.match(r"---\nname: [\w-]+\ndescription: .{40,}\n---\n", SKILL)
    assert SKILL.count("\n") <= 130
    rows = re.findall(r"^\| `mha (\w+)[^|]*\|[^|]*\|([^|]*)\| `mha/schemas/(\w+)\.json` \|$", SKILL, re.MULTILINE)
    assert len(rows) >= 5
    for command, fields, name in rows:
        assert command == name
        assert command in main.commands
        assert (ROOT / "mha" / "schemas" / f"{name}.json").is_file()
        known = {field for part in objects(mha.schemas.schema(name)) for field in part.get("properties", ())}
        assert set(re.findall(r"`(\w+)`", fields)) <= known
    jsonschema.Draft202012Validator.check_schema(mha.schemas.schema("where"))


def objects(value):
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(part)


@pytest.mark.nightly("pages show what commands print")
def test_each_symptom_is_found_by_its_command(folder):
    (folder / "models.py").write_text(programs(SKILL)[0])
    for program in (ROOT / "examples" / "symptoms").glob("*.py"):
        copy(program, folder)
    steps = shown(PAGE)
    assert len(re.findall(r"^## ", PAGE, re.MULTILINE)) >= 8
    assert len(steps) >= PAGE.count("\n## ")
    for command, output in steps:
        check(folder, command, output)
