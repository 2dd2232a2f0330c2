"""The HTML report without a browser: everything is in it, as text, and nothing comes from elsewhere."""

from __future__ import annotations

import json
import re
from functools import cache
from html.parser import HTMLParser

import jsonschema
import pytest

from conformance.reports import text as report
from conformance.reports.html import HEAT_STEPS, ratio, render, write_html
from mha.schemas import schema
from mha_core import STAGES, SpecError
from mha_core.files.writing import jsonable, write_json
from tests.conformance.reports.sample import ATTRIBUTE, CASES, MARKUP, SUBJECTS, sample_report

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

VOID = {"meta", "wbr", "br", "hr", "img", "link", "input"}
SCHEMA = schema("check")


class Page(HTMLParser):
    """The page as a list of elements, with a check that every tag is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.problems: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        self.problems += [f"<{tag}> is never closed" for tag in self.stack]
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if len(dict(attrs)) != len(attrs):
            self.problems.append(f"an attribute of <{tag}> is there twice")
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        if not self.stack or self.stack.pop() != tag:
            self.problems.append(f"</{tag}> at {self.getpos()} closes something else")

    def handle_data(self, data):
        if not self.stack or self.stack[-1] not in ("script", "style"):
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@cache
def saved() -> dict:
    """The sample as a reader of the JSON file has it."""
    return json.loads(json.dumps(jsonable(sample_report())))


@cache
def sample_page() -> tuple[str, Page]:
    text = render(saved())
    return text, Page(text)


def one_result(**changes) -> dict:
    """A report of one result."""
    result = {
        "case": "prime",
        "subject": "mine",
        "dtype": "float32",
        "device": "cpu",
        "status": "equal",
        "ratios": {"output": 0.5},
        "recorded": {},
        "mismatches": [],
        "message": "",
        "seconds": 0.0,
        "judged": ["output"],
        "gradients_asked": True,
        "selector": "",
        "rerun": "mha check",
        "deviations": [],
        "gone": [],
        "kept": "",
        "left_out": {},
        "in_float64": [],
    }
    return {**report.to_json([], {}), "results": [{**result, **changes}]}


def test_every_tag_is_closed_in_order():
    assert sample_page()[1].problems == []


def test_ids_are_unique_and_every_link_and_label_points_to_one():
    _, page = sample_page()
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for attributes in page.all("a")]
    assert len(links) > len(saved()["results"])
    assert {link for link in links if not (link.startswith("#") and link[1:] in ids)} == set()
    labels = [attributes["aria-labelledby"] for _, attributes in page.elements if "aria-labelledby" in attributes]
    assert set(labels) <= set(ids)


def test_every_case_subject_and_version_is_there():
    _, page = sample_page()
    for text in (*CASES, *(subject.name for subject in SUBJECTS), *STAGES, "gpu:0", "15 of 33", "6 did not run"):
        assert text in page.text
    assert "a wrong axis, size or transposition anywhere" in page.text
    environment = saved()["environment"]
    assert (
        f"Python {environment['python']} NumPy {environment['numpy']} Platform {environment['platform']}" in page.text
    )
    assert f"Backend reference numpy {environment['numpy']}" in page.text


def test_the_verdict_is_what_the_terminal_says():
    from conformance.cases.table import select
    from tests.conformance.running import run_all

    results = list(run_all(select(CASES[1:3]), SUBJECTS))
    assert report.verdict(results) in Page(render(report.to_json(results, {}))).text


@pytest.mark.parametrize("position", range(len(CASES) * len(SUBJECTS)))
def test_every_result_leads_from_the_matrix_to_its_details(position):
    _, page = sample_page()
    result = saved()["results"][position]
    device = "" if result["device"] == "cpu" else f" {result['device']}"
    label = f"{result['case']}, {result['subject']} {result['dtype']}{device}: "
    (link,) = [a for a in page.all("a") if (a.get("aria-label") or "").startswith(label)]
    kinds = {"different": "failure", "failed": "failure", "unsupported": "unsupported", "equal": "result"}
    assert link["href"] == f"#{kinds[result['status']]}-{position}"


def test_a_failure_has_stage_index_values_share_message_and_rerun():
    results = saved()["results"]
    position, result = next((i, r) for i, r in enumerate(results) if r["subject"] == MARKUP and r["case"] == "prime")
    section = sample_page()[0].split(f'id="failure-{position}"')[1].split("</article>")[0]
    shown = Page(f"<div>{section.partition('>')[2]}</div>").text
    mismatch = result["mismatches"][0]
    assert "Different since scores" in shown
    assert f"[{', '.join(map(str, mismatch['index']))}]" in shown
    assert f"{mismatch['actual']!r} {mismatch['expected']!r}" in shown
    assert f"{mismatch['error']:.2f}" in shown
    assert "210 of 210 (100 %)" in shown
    assert mismatch["message"] in shown
    assert result["rerun"] in shown


def test_a_wrong_shape_and_an_error_say_why():
    _, page = sample_page()
    assert "output has shape (5, 2, 29); it must be (2, 5, 29)" in page.text
    assert f"RuntimeError: no kernel for {ATTRIBUTE} & co" in page.text


def test_what_a_subject_cannot_express_is_listed_with_its_reason():
    _, page = sample_page()
    assert "Left out" in page.text
    assert f"limited float64 cannot express: a causal mask {ATTRIBUTE}" in page.text
    assert "✓ 3/3" in page.text, "what was left out does not count against it"


def test_names_and_messages_never_become_markup():
    text, page = sample_page()
    assert MARKUP in page.text
    assert MARKUP not in text
    assert ATTRIBUTE not in text
    assert page.all("img") == []
    assert len(page.all("script")) == 1
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_names_in_json_keys_are_escaped_too():
    text = render(one_result(case=MARKUP, ratios={f"gradients.{MARKUP}.{ATTRIBUTE}": 0.1, "output": 0.5}))
    assert MARKUP not in text
    assert ATTRIBUTE not in text


def test_nothing_comes_from_elsewhere():
    text, page = sample_page()
    assert page.all("link") == []
    assert not any("src" in attributes for _, attributes in page.elements)
    assert not re.search(r"https?://|@import|url\(", text)
    (policy,) = [m["content"] for m in page.all("meta") if "http-equiv" in m]
    assert policy.startswith("default-src 'none'")


def test_tables_have_headers_with_scope():
    _, page = sample_page()
    headers = page.all("th")
    assert headers
    assert all(header.get("scope") in ("row", "col", "colgroup") for header in headers)


@pytest.mark.parametrize(
    ("value", "text", "wrong"),
    [
        (0.0, "0", False),
        (0.1, "0.10", False),
        (0.0341, "0.034", False),
        (0.00001, "1.0e-5", False),
        (0.999, "0.999", False),
        (0.99999, "0.99999", False),
        (1.0, "1.0", False),
        (1.00001, "1.00001", True),
        (3.14159, "3.1", True),
        (1234.4, "1234", True),
        (1e30, "1.0e30", True),
        ("inf", "inf", True),
        ("nan", "nan", True),
        (float("nan"), "nan", True),
        (float("inf"), "inf", True),
    ],
)
def test_a_ratio_is_short_and_on_the_right_side_of_1(value, text, wrong):
    assert (ratio(value).text, ratio(value).wrong) == (text, wrong)


def test_colours_grow_with_the_ratio():
    steps = [ratio(value).step for value in (0.0, 1e-9, 0.005, 0.02, 0.05, 0.2, 0.5, 2.0, 50.0, 1e9)]
    assert steps == list(range(len(HEAT_STEPS) + 1))
    assert ratio("nan").step == ratio("inf").step == steps[-1]


@pytest.mark.parametrize("bad", ["nan", float("nan"), "inf"])
def test_nan_is_the_worst_wherever_it_stands(bad):
    ratios = {"queries": 0.1, "output": bad, "weights": 7.0}
    mismatch = {
        "stage": "output",
        "message": "output differs",
        "index": [0, 1],
        "actual": bad,
        "expected": "-inf",
        "error": "inf",
        "allowed": 0.0,
        "wrong": 1,
        "total": 3,
    }
    page = Page(render(one_result(status="different", ratios=ratios, mismatches=[mismatch])))
    assert f"≠ {bad}" in page.text
    assert f"[0, 1] {bad} -inf inf 0 {bad} 1 of 3 (33.3 %)" in page.text


def test_a_saved_report_and_a_fresh_one_give_the_same_page():
    fresh = sample_report()
    for entry, kept in zip(fresh["results"], saved()["results"], strict=True):
        entry["seconds"] = kept["seconds"]
    assert render(fresh) == sample_page()[0]


def test_gradients_stand_in_the_order_of_the_computation():
    names = ["score.vector", "out_proj.bias", "values", "q_proj.bias", "bias", "q_proj.weight", "queries", "new.thing"]
    page = Page(render(one_result(ratios={f"gradients.{name}": 0.5 for name in names})))
    assert "inputs q_proj out_proj score new queries values bias weight bias bias vector thing" in page.text


def test_columns_of_one_subject_stand_together_in_the_order_of_their_first_results():
    whole = one_result()
    ran = [("zoe", "float32"), ("amy", "float64"), ("zoe", "float16"), ("amy", "float32")]
    results = [{**whole["results"][0], "subject": subject, "dtype": dtype} for subject, dtype in ran]
    text = Page(render({**whole, "results": results})).text
    assert "case, and what it catches zoe amy float32 float16 float64 float32 prime" in text


def test_a_cell_that_was_not_run_says_so():
    whole = one_result()
    other = {**whole["results"][0], "case": "causal", "subject": "other"}
    text = Page(render({**whole, "results": [*whole["results"], other]})).text
    assert text.replace("did not run", "").count("not run") == 2
    assert "All 2 results are equal to the reference." in text


def test_no_results_is_not_a_success():
    text, page = (lambda text: (text, Page(text)))(render(report.to_json([], {})))
    assert "Nothing could be judged." in page.text
    assert 'class="verdict failed"' in text
    assert page.problems == []


def test_writing_replaces_the_old_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    write_html(path, saved())
    assert path.read_text().startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("wrong", [{}, {"schema": 99}, {**one_result(), "schema": "1"}])
def test_another_schema_is_refused_and_the_old_file_stays(tmp_path, wrong):
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(SpecError, match="a report of schema .* can't be shown; it must be 1"):
        write_html(path, wrong)
    assert path.read_text() == "old"


def test_a_written_report_fits_the_schema(tmp_path):
    path = tmp_path / "report.json"
    write_json(path, sample_report())
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(json.loads(path.read_text()), SCHEMA)
    assert SCHEMA["properties"]["schema"]["const"] == report.SCHEMA_VERSION
    assert {entry["status"] for entry in saved()["results"]} == {"equal", "different", "failed", "unsupported"}


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "great"},
        {"ratios": {"output": None}},
        {"ratios": {"outputs": 0.5}},
        {"ratios": {"output": "NaN"}},
        {"status": "different"},
        {"seconds": -1.0},
        {"dtype": "float8"},
    ],
)
def test_the_schema_refuses(changes):
    jsonschema.validate(one_result(), SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(one_result(**changes), SCHEMA)


def test_the_schema_and_its_document_name_every_property(request):
    """A new property must be written down before it goes out."""
    document = (request.config.rootpath / "docs" / "check.md").read_text()
    parts = SCHEMA["$defs"]
    differing = next(entry for entry in saved()["results"] if entry["mismatches"])
    for found, declared in (
        (saved(), SCHEMA),
        (saved()["environment"], parts["environment"]),
        (differing, parts["result"]),
        (differing["mismatches"][0], parts["mismatch"]),
    ):
        assert set(found) == set(declared["properties"]) == set(declared["required"])
        assert [name for name in found if f"`{name}`" not in document] == []
