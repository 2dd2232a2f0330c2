"""The parts of `mha heads --speed` that do not depend on how fast this machine is; and the page in a browser."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import jsonschema
import pytest

torch = pytest.importorskip("torch")

from conformance.workers.process import WorkerProcess  # noqa: E402
from mha.bench.contestants.contestant import load  # noqa: E402
from mha.heads import run as runs  # noqa: E402
from mha.heads import speed  # noqa: E402
from mha.heads.importance import leave_one_out  # noqa: E402
from mha.heads.page.page import write_page  # noqa: E402
from mha.heads.speed import Request, _layer, compared, products  # noqa: E402
from mha.heads.subject import of_recording  # noqa: E402
from mha_core import AttentionConfig, SpecError  # noqa: E402
from tests.mha.heads.test_prune import recording_of  # noqa: E402

pytestmark = pytest.mark.same_on_newest  # it is about times, and a page

CONFIG = AttentionConfig(24, 4, num_kv_heads=2, bias=True)


def sample_report():
    """A report with curves, times and a cut, of made-up numbers."""
    return json.loads((Path(__file__).parent / "sample.json").read_text(encoding="utf-8"))


def test_a_layer_with_fewer_heads_is_what_arithmetic_says():
    request = Request("torch", CONFIG, [4, 2], [(2, 5)], 0.001)
    row = _layer(request, load("torch"), 2, 5)
    assert [entry["name"] for entry in row["entries"]] == ["4", "2"]
    assert [entry["predicted"] for entry in row["entries"]] == [1.0, 2.0]
    assert row["entries"][0]["ratio"] == 1.0
    assert all(entry["time"]["samples"] >= 3 for entry in row["entries"])


def test_ratio_is_of_the_first():
    calls = {0: lambda: sum(range(20_000)), 6: lambda: sum(range(200))}
    whole, half = compared(calls, {0: 100, 6: 50}, 0.01)
    assert whole["ratio"] == 1.0
    assert half["predicted"] == 2.0
    assert half["ratio"] > 5.0
    assert half["ratio_lower"] <= half["ratio"] <= half["ratio_upper"]


def test_share_of_attention_in_minilm():
    """37 % of the multiplications at 128 tokens: four projections, scores and sums; the rest is 2 x 384 x 1536."""
    pytest.importorskip("transformers")
    from mha.port.encoder import load_encoder

    model = load_encoder("minilm").model
    attention, rest = 4 * 384**2 + 2 * 128 * 384, 2 * 384 * 1536
    assert products(model, 128) == 6 * (attention + rest)
    assert attention / (attention + rest) == pytest.approx(0.37, abs=0.005)


def test_a_framework_that_does_not_run_is_a_line(monkeypatch):
    subject = of_recording("small", recording_of(CONFIG))

    def broken(request):
        if request.framework != "torch":
            raise SpecError(f"{request.framework} was not timed")
        return {"rows": [{"of": "layer"}], "versions": {"torch": "2"}}

    monkeypatch.setattr(speed, "_ask", broken)
    monkeypatch.setattr(speed, "installed", lambda names: (["mxnet", "torch"], []))
    found = speed.measure_speed(subject, leave_one_out(subject))
    assert found["problems"] == ["mxnet was not timed"]
    monkeypatch.setattr(speed, "installed", lambda names: (["mxnet"], []))
    with pytest.raises(SpecError, match="nothing could be timed: mxnet was not timed"):
        speed.measure_speed(subject, leave_one_out(subject))


def test_what_goes_wrong_in_its_process_is_said():
    request = Request("torch", CONFIG, [4, 2], [(1, 2)], 0.001)
    assert [entry["name"] for entry in speed._ask(request)["rows"][0]["entries"]] == ["4", "2"]
    with pytest.raises(SpecError, match="torch was not timed: num_heads must be a positive integer. Got 0."):
        speed._ask(replace(request, heads=[0]))


def test_a_process_that_ends_says_so(monkeypatch):
    monkeypatch.setattr(speed, "rows_of", partial(eval, "__import__('os')._exit(3)"))
    monkeypatch.setattr(WorkerProcess, "call", lambda self, function, request: CALL(self, function, {}))
    with pytest.raises(SpecError, match="torch was not timed: its process ended itself with status 3"):
        speed._ask(Request("torch", CONFIG, [4]))


CALL = WorkerProcess.call


def test_sample_has_the_form_of_the_schema():
    schema = json.loads(Path(runs.__file__).with_name("schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(sample_report(), schema)
    empty = runs.measure_heads(of_recording("r", recording_of(CONFIG)), None, ["leave-one-out"])
    jsonschema.validate(empty, schema)


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1400, "light")])
def test_the_page_in_a_browser(browser, tmp_path, width, scheme):
    page = tmp_path / "heads.html"
    write_page(page, sample_report())
    browser.open(page, width, scheme, scripts=False)
    asked = browser.requests()
    browser.open(page, width, scheme)
    assert browser.console() == []
    assert asked == [page.resolve().as_uri()]
    assert browser.overflowing() == []
    assert browser.low_contrasts() == {}
    assert browser.run("return document.querySelectorAll('figure svg[role=img][aria-label]').length") == 3
    # Lines have colours of their own, which are not the page's.
    strokes = "return [...new Set([...document.querySelectorAll('#frontier-axes_1 [id*=line2d] > path')]"
    drawn = browser.run(f"{strokes}.map(e => getComputedStyle(e).stroke))].length")
    assert drawn > 2
    ids = browser.run("return [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
