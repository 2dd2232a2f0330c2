"""The parts of `mha heads --speed` that do not depend on how fast this machine is; and the page in a browser."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mha.heads import run as runs  # noqa: E402
from mha.heads import speed  # noqa: E402
from mha.heads.page.page import write_page  # noqa: E402
from mha.heads.speed import compared, products  # noqa: E402
from mha.heads.subject import of_recording  # noqa: E402
from mha.schemas import schema  # noqa: E402
from mha_core import AttentionConfig  # noqa: E402
from tests.mha.heads.test_prune import recording_of  # noqa: E402

pytestmark = pytest.mark.same_on_newest  # it is about times, and a page

CONFIG = AttentionConfig(24, 4, num_kv_heads=2, bias=True)


def sample_report():
    """A report with curves, times and a cut, of made-up numbers."""
    return json.loads((Path(__file__).parent / "sample.json").read_text(encoding="utf-8"))


def test_a_model_with_fewer_heads_is_what_arithmetic_says(monkeypatch):
    pytest.importorskip("transformers")
    from mha.heads.subject import of_encoder
    from mha.port.encoder import load_encoder

    monkeypatch.setattr(speed, "SIZES", ((1, 4), (1, 10**6)))  # the model has no such positions
    threads = torch.get_num_threads()
    subject = of_encoder(load_encoder("minilm"), ["A cat sleeps."])
    found = speed.measure_speed(subject, np.random.default_rng(0).random((6, 12)), seconds=1e-6)
    assert torch.get_num_threads() == threads
    (row,) = found["rows"]
    assert [entry["name"] for entry in row["entries"]] == ["0", "12", "24", "36", "48"]
    assert row["entries"][0]["ratio"] == row["entries"][0]["predicted"] == 1.0
    predicted = [entry["predicted"] for entry in row["entries"]]
    assert predicted == sorted(predicted)
    assert all(entry["time"]["samples"] >= 3 for entry in row["entries"])
    assert subject.live.sites[0].config.num_heads == 12  # copies were cut


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


def test_sample_has_the_form_of_the_schema():
    jsonschema.validate(sample_report(), schema("heads"))
    empty = runs.measure_heads(of_recording("r", recording_of(CONFIG)), None, ["leave-one-out"])
    jsonschema.validate(empty, schema("heads"))


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
