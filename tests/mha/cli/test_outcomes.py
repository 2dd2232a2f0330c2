"""JUnit, SARIF and the badge say what the exit status says: no file passes where the command does not."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
from click.testing import CliRunner

from conformance.judging.result import Result
from mha.cli.common import DIFFERENT, EQUAL, status_by
from mha.cli.main import main
from mha.cli.outcomes import Outcome, Reported, badge, junit, of_modules, of_results, sarif
from mha.substitution.reports.report import Backward, ModuleResult, WhereReport
from tests.mha.convert.test_convert_recorded import record
from tests.mha.schemas.test_schemas import mine  # noqa: F401  # a fixture

pytestmark = pytest.mark.same_on_newest  # what is written has the same form there

TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
RULE = {"type": "object", "required": ["id", "shortDescription"], "properties": {"shortDescription": TEXT}}
NAMED = {"type": "object", "required": ["name", "fullyQualifiedName"]}
RESULT = {
    "type": "object",
    "required": ["ruleId", "ruleIndex", "level", "message", "locations"],
    "properties": {
        "level": {"enum": ["error", "note"]},
        "message": TEXT,
        "locations": {"items": {"properties": {"logicalLocations": {"items": NAMED, "minItems": 1}}}, "minItems": 1},
    },
}
DRIVER = {"required": ["name", "rules"], "properties": {"rules": {"items": RULE}}}
RUN = {
    "required": ["tool", "results"],
    "properties": {"tool": {"properties": {"driver": DRIVER}, "required": ["driver"]}, "results": {"items": RESULT}},
}
SARIF = {
    "required": ["version", "runs"],
    "properties": {"version": {"const": "2.1.0"}, "runs": {"items": RUN, "minItems": 1}},
}
"""What SARIF 2.1.0 requires of the parts that are written here."""

FILES = ("--junit", "out.xml", "--sarif", "out.sarif")


def mha(*arguments: object) -> int:
    return CliRunner().invoke(main, [*map(str, arguments)]).exit_code


def counts() -> tuple[int, int, int]:
    """(tests, failures and errors, results in the SARIF) of the files that were written."""
    suites = list(ElementTree.parse("out.xml").getroot())
    for suite in suites:
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.attrib[name]) == len(suite.findall(f"testcase/{tag}"))
    found = json.loads(Path("out.sarif").read_text())
    jsonschema.validate(found, SARIF)
    (run,) = found["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert all(rules[one["ruleIndex"]]["id"] == one["ruleId"] for one in run["results"])
    bad = sum(int(suite.attrib[name]) for suite in suites for name in ("failures", "errors"))
    return sum(int(suite.attrib["tests"]) for suite in suites), bad, len(run["results"])


def test_check(mine):  # noqa: F811  # it is the fixture
    chosen = (*FILES, "--badge", "badge.json", "--case", "prime", "--workers", 0, "--no-diagnosis")
    assert mha("check", "--subject", f"{mine}:right", *chosen) == 0
    assert counts() == (2, 0, 0)
    shown = {"schemaVersion": 1, "label": "mha parity", "message": "2 equal", "color": "brightgreen"}
    assert json.loads(Path("badge.json").read_text()) == shown
    assert mha("check", "--subject", f"{mine}:wrong", *chosen) == 1
    assert counts() == (2, 2, 2)
    assert json.loads(Path("badge.json").read_text()) == {**shown, "message": "2 different", "color": "red"}
    assert "rerun" not in Path("out.xml").read_text()
    assert f"mha check --subject {mine}:wrong --case prime" in Path("out.xml").read_text()


def test_a_badge_of_an_earlier_run_does_not_stay_green(mine):  # noqa: F811  # it is the fixture
    chosen = ("--badge", "badge.json", "--workers", 0)
    for arguments in (("--subject", f"{mine}:absent"), ("--subject", f"{mine}:right", "--case", "nothing")):
        Path("badge.json").write_text('{"color": "brightgreen"}')
        assert mha("check", *arguments, *chosen) == 2
        assert json.loads(Path("badge.json").read_text())["color"] == "lightgrey"


def result(status, **more):
    return Result("prime", "layer", "float32", "cpu", status, message="why", **more)


@pytest.mark.parametrize(
    ("results", "failed", "message", "colour"),
    [
        ([], False, "nothing judged", "lightgrey"),
        ([result("unsupported")], False, "nothing judged", "lightgrey"),
        ([result("equal")], True, "not all could run, 1 equal", "lightgrey"),
        ([result("equal"), result("failed")], False, "1 failed, 1 equal", "lightgrey"),
        ([result("equal"), result("different")], True, "1 different, 1 equal", "red"),
        ([result("equal"), result("deviates")], False, "1 equal, 1 as listed", "brightgreen"),
    ],
)
def test_nothing_passes_where_the_command_does_not(results, failed, message, colour, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status = status_by(results, failed=failed)
    assert badge(results, status)["message"] == message
    assert (
        badge(results, status)["color"] == colour == {EQUAL: "brightgreen", DIFFERENT: "red"}.get(status, "lightgrey")
    )
    asked = Reported(junit_path=tmp_path / "out.xml", sarif_path=tmp_path / "out.sarif")
    asked.write_outcomes(lambda: of_results(results), status)
    assert (counts()[1] > 0) is (status != EQUAL)


def test_replay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = record("wrong.safetensors", ("a", 0), wrong=0.5)
    assert mha("replay", wrong, "-b", "torch", "--no-unseen", *FILES) == 1
    assert counts()[1:] == (1, 1), "what was recorded differs, and the backend is right"


def module(name, status, **more):
    return ModuleResult(name, "a.Kind", 0, "theirs", "the same numbers", status, **more)


def test_the_outcomes_of_modules():
    worst = {"ratio": 300.0, "place": "output", "index": (0, 1), "got": 1.0, "expected": 2.0}
    parts = (
        module("", "through its parts", ratio=9.0),
        module("a", "wrong", **worst),
        module("b", "wrong", own_lines=True, **worst),
        module("c", "not judged", reason="no module of the original is known to be it"),
        module("d", "not judged"),
        module("e", "equal", ratio=1.0),
        module("f", "divided otherwise", ratio=1e6),
        module("g", "equal", ratio=1.0, backward=Backward("wrong", 50.0, "the gradient of x", (0,), 3.0, 4.0)),
    )
    found = of_modules(WhereReport(parts, ("d",), "float32", {}))
    assert [(one.name, one.status, one.rule) for one in found] == [
        ("the model", "skipped", "through-its-parts"),
        ("a", "failure", "wrong-by-itself"),
        ("b", "failure", "wrong-in-its-own-lines"),
        ("c", "skipped", "not-judged"),
        ("d", "failure", "uncovered"),
        ("e", "passed", ""),
        ("f", "passed", ""),
        ("g", "failure", "wrong-backward"),
    ]
    assert "50 times what rounding does\nworst at the gradient of x [0]: got 3.0, expected 4.0" in found[7].message
    assert "3e+02 times what rounding does\nworst at output [0, 1]: got 1.0, expected 2.0" in found[1].message
    beyond = replace(module("", "wrong", **worst), ratio=float("inf"), original="")
    (whole,) = of_modules(WhereReport((beyond,), (), "float32", {}))
    assert "Its original is the model.\nmore than any rounding does\nworst at" in whole.message
    (unjudged,) = of_modules(WhereReport((module("", "not judged"),), (), "float32", {}))
    assert unjudged.status == "error", "a model that was not judged has not passed"
    jsonschema.validate(sarif(found), SARIF)


def test_names_from_outside_can_not_break_the_xml():
    text = junit([Outcome("<a&b>\x00", '"\x1b[31m', "failure", "different", "]]>\ud800")])
    (suite,) = ElementTree.fromstring(text)
    assert suite.attrib["name"] == "<a&b>?"
    assert suite[0][0].text == "]]>?"
