"""What README and the pages beside it show is true: examples run, commands are what CI runs, tables match the code."""

import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from conformance.cases.table import all_cases, all_sequences
from conformance.plan import Plan
from conformance.subjects.backend import BackendSubject
from mha_core import STAGES, AttentionConfig, weight_shapes
from mha_core.backend import load

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCS = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
EXAMPLES = {
    f"{name}:{number}": text
    for name, page in {
        "README.md": README,
        **{name: DOCS[name] for name in ("layers.md", "port.md", "view.md")},
    }.items()
    for number, text in enumerate(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
}


def also_on_newest(text: str) -> bool:
    """Examples with JAX, or NumPy alone: the releases of the other frameworks and transformers are the same there."""
    return "jax" in text or not re.search(r"torch|keras|tensorflow|mxnet|mha\.", text)


RUN = """
import gc, json, os, sys, traceback
gc.disable()
failed = {}
for name, text in json.load(sys.stdin).items():
    os.mkdir(name)
    os.chdir(name)
    try:
        exec(compile(text, name, "exec"), {"__name__": "__main__"})
    except BaseException:
        failed[name] = traceback.format_exc()
    os.chdir("..")
print("failed:", json.dumps(failed))
gc.freeze()
"""
"""Runs examples one after the other, each with names and a folder of its own. It does not look for cycles among the
objects of frameworks: at the end as well, that takes a third of the time.
"""


def framework_of(text: str) -> str:
    """The framework that an example imports; "" for NumPy alone."""
    found = re.search(r"^(?:import|from) .*?\b(torch|tensorflow|keras|jax|mxnet)\b", text, re.MULTILINE)
    return "" if found is None else found[1].replace("keras", "tensorflow")


@cache
def failed(framework: str) -> dict[str, str]:
    """Name -> error of a framework's examples that fail, in one process: most of the time goes into importing it."""
    given = json.dumps({name: text for name, text in EXAMPLES.items() if framework_of(text) == framework})
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-c", RUN]
        result = subprocess.run(command, cwd=folder, input=given, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout.rpartition("failed: ")[2])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if also_on_newest(text) else [pytest.mark.same_on_newest])
        for name, text in EXAMPLES.items()
    ],
)
def test_examples_run(name, backend_names):
    needs = set(re.findall(r"backends\.(\w+)", EXAMPLES[name]))
    if not needs <= set(backend_names):
        pytest.skip(f"needs {', '.join(needs)}, which is not among the backends under test")
    assert failed(framework_of(EXAMPLES[name])).get(name) is None


def test_there_is_an_example_for_every_framework():
    assert {name for text in EXAMPLES.values() for name in re.findall(r"backends\.(\w+)", text)} >= {
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


NEEDS = {"sphinx-build": "site", "minilm": "hf", ".h5": "convert", "pytest -q": "test"}
"""What stands in a command of README -> the extra without which it does not run."""


def extras_of(names: str) -> set[str]:
    """These extras, and those that they bring: "smollm2" brings "hf"."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = set(names.split(","))
    for name in names.split(","):
        for requirement in known[name]:
            if requirement.startswith("mha-parity["):
                found |= extras_of(requirement.removeprefix("mha-parity[").partition("]")[0])
    return found


def lacking(readme: str) -> list[tuple[str, str]]:
    """Section and extra of each command whose extra was installed neither in its section nor before."""
    there: set[str] = set()
    missing = []
    for section in readme.split("\n## "):
        for names in re.findall(r"'\.\[([\w,]+)\]'", section):
            there |= extras_of(names)
        commands = " ".join(re.findall(r"`[^`]+`|^```(?:sh)?\n.*?^```", section, re.MULTILINE | re.DOTALL))
        missing += [(section[:20], extra) for words, extra in NEEDS.items() if words in commands and extra not in there]
    return missing


def test_install_lines_have_the_extras_that_commands_need():
    assert lacking(README) == []
    assert ("Learn it", "site") in [
        (name.split("\n")[0], extra) for name, extra in lacking(README.replace(",site]", "]"))
    ]


def test_the_tables_name_every_stage_and_weight():
    assert re.findall(r"^\| `(\w+)` \| \(B", DOCS["definition.md"], re.MULTILINE) == list(STAGES)
    names = set(weight_shapes(AttentionConfig(4, 2, bias=True, score="additive")))
    assert names <= set(re.findall(r"`([\w.]+)`", DOCS["layers.md"]))


def test_the_shown_run_is_one_of_the_present_cases():
    """Four backends, their usual path and the fast one, in two dtypes, as a run without `--all` asks them."""
    backend, paths, dtypes = load("torch"), (None, "fast"), ("float64", "float32")
    subjects = tuple(BackendSubject(backend, dtype, "cpu", path) for path in paths for dtype in dtypes)
    plan = Plan(subjects)
    count = 4 * sum(len(plan.asked(subject, (*all_cases(), *all_sequences()))) for subject in subjects)
    assert f"All {count} results are equal to the reference." in README


def test_every_link_leads_somewhere():
    """That every page is found stands in tests/docs: the site's list of pages has them all."""
    for folder, page in ((ROOT, README), *((ROOT / "docs", page) for page in DOCS.values())):
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)", page):
            assert (folder / target).exists(), target


def test_the_readme_stays_short():
    assert len(README) <= 12_000, "README says what this is and where the rest is; details belong on a page of docs"
