"""The examples of subjects, and the code in docs/subjects.md, are right."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.cases.table import all_cases, select_asked
from conformance.subjects.function import known_options
from conformance.subjects.load import load_subject
from mha.cli.main import main
from tests.conformance.running import run_all

pytestmark = pytest.mark.same_on_newest  # NumPy alone, and PyTorch, whose release is the same there

ROOT = Path(__file__).parents[3]


EXAMPLES = {
    "subject_numpy:attention": ("grouped-heads", "additive bias", {"output"}),
}


@pytest.mark.nightly("pages show what is right", but=("float64-subject_numpy:attention",))
@pytest.mark.parametrize("spec", EXAMPLES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_examples_are_right_and_say_what_they_cannot_express(spec, dtype, monkeypatch):
    monkeypatch.chdir(ROOT / "examples")
    unsupported, reason, judged = EXAMPLES[spec]
    subject = load_subject(spec, dtype)
    sequences = select_asked(("sequence-*",))
    results = {result.case: result for result in run_all([*all_cases(), *sequences], [subject])}
    assert {result.status for result in results.values()} == {"equal", "unsupported"}
    assert results[unsupported].status == "unsupported"
    assert reason in {
        message.removeprefix("cannot express: ").split(" (")[0] for message in (r.message for r in results.values())
    }
    assert judged <= set(results["prime"].judged)
    assert sum(result.status == "equal" for result in results.values()) >= 30


DOCUMENT = (ROOT / "docs" / "subjects.md").read_text()


def test_the_document_names_every_option():
    assert set(re.findall(r"^\| `(\w+)` \|", DOCUMENT, re.MULTILINE)) >= set(known_options())


def test_the_code_of_the_document_is_right(module):
    function, subject = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    module(function)
    results = list(run_all(all_cases(), [load_subject("mine:attention", "float32")]))
    assert {result.status for result in results} == {"equal", "unsupported"}, results
    template = (ROOT / "mha" / "adapters" / "templates" / "in_torch.py").read_text()
    assert all(part in template for part in subject.split("\n\n\n"))


def test_the_screen_that_readme_shows_is_what_the_command_prints(module):
    readme = (ROOT / "README.md").read_text()
    found = re.search(r"```python\n(.*?def attention.*?)```.*?```\n(attention .*?)```", readme, re.DOTALL)
    assert found is not None
    module("")
    (Path.cwd() / "mine.py").write_text(found[1])  # the line of what raises is that of the file
    said = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["check", "--subject", "mine:attention"])
    assert (said.exit_code, said.stdout) == (1, found[2])
    assert len(found[2].splitlines()) <= 25
