"""docs/convert.md, from "Load what it wrote" on: its commands and examples are run, section by section."""

import re
import shlex
from pathlib import Path

import pytest

from mha_core.layouts import LAYOUTS
from tests.mha.convert.weight_files import mha

PAGE = (Path(__file__).parents[3] / "docs" / "convert.md").read_text()
SECTIONS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
FIRST = "Load what it wrote"
OTHERS = [name for name in list(SECTIONS)[list(SECTIONS).index(FIRST) + 1 :] if name != "From Python"]
BLOCKS = re.compile(r"```(python)?\n(.*?)```", re.DOTALL)
NEEDS = {"torch": "torch", "keras": "tf", "flax": "jax", "mxnet": "mxnet"}
"""What an example imports -> the backend that must be under test."""


def run(text, names):
    for language, block in BLOCKS.findall(text):
        if language:
            exec(compile(block, "docs/convert.md", "exec"), names)
        else:
            for line in block.splitlines():
                program, command, *arguments = shlex.split(line.removeprefix("$ "))
                assert (program, command) == ("mha", "convert")
                result = mha(*arguments)
                assert result.exit_code == 0, result.output
                assert arguments[arguments.index("--to") + 1] in LAYOUTS


@pytest.mark.parametrize("section", OTHERS)
def test_every_section_runs_as_it_stands(section, tmp_path, monkeypatch, backend_names):
    wanted = {
        backend for package, backend in NEEDS.items() if re.search(rf"(import|from) .*\b{package}\b", SECTIONS[section])
    }
    if not wanted <= set(backend_names):
        pytest.skip(f"needs {', '.join(wanted)}, which is not among the backends under test")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    run(SECTIONS[FIRST], names)
    run(SECTIONS[section], names)


def test_every_section_has_a_command_and_a_check():
    for section in OTHERS:
        assert "$ mha convert" in SECTIONS[section]
        assert "assert" in SECTIONS[section]
