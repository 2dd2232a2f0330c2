"""What README shows is true: its examples run, its commands are what CI runs, its tables match the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.cases import all_cases
from mha_core import STAGES, AttentionConfig, weight_shapes

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_run(number, backend_names, tmp_path):
    needs = set(re.findall(r"backends\.(\w+)", EXAMPLES[number]))
    if not needs <= set(backend_names):
        pytest.skip(f"needs {', '.join(needs)}, which is not among the backends under test")
    command = [sys.executable, "-c", EXAMPLES[number]]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]


def test_there_is_an_example_for_every_framework():
    assert {name for text in EXAMPLES for name in re.findall(r"backends\.(\w+)", text)} >= {
        "torch",
        "tf",
        "jax",
        "mxnet",
    }


@pytest.mark.parametrize(("name", "last"), [("check", ".venv/bin/mha check"), ("test", ".venv/bin/pytest -q -n 2")])
def test_ci_finds_the_readme_commands(name, last):
    command = subprocess.run(
        [sys.executable, ROOT / ".ci" / "readme_command.py", name], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert command.endswith(last)
    assert "\n" not in command


def test_the_tables_name_every_stage_and_weight():
    assert re.findall(r"^\| `(\w+)` \| \(B", README, re.MULTILINE) == list(STAGES)
    names = set(weight_shapes(AttentionConfig(4, 2, bias=True, score="additive")))
    assert names <= set(re.findall(r"`([\w.]+)`", README))


def test_the_shown_run_is_one_of_the_present_cases():
    """Four backends, their usual path and the fast one, two dtypes, every case."""
    assert f"All {4 * 2 * 2 * len(all_cases())} results are equal to the reference." in README
