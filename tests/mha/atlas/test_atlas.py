"""`mha atlas` with made engines: what each answer is called, what is judged, and what one that goes wrong costs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.workers.interpreters import Settings
from mha.atlas import engine as engines
from mha.atlas import run
from mha.atlas.page import page
from mha.atlas.questions import QUESTIONS, RAISES, plain
from mha.cli.main import main
from mha.tolerances.tolerance import tolerance
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError
from tests.mha.schemas.test_schemas import check_form

ENGINE = """
import os
import time

import numpy as np

from mha.atlas.questions import plain


def right(q, k, v, *, mask=None, causal=False, softcap=None, window=None, sinks=None, lengths=None):
    if mask is not None and mask.dtype == np.int32:
        raise TypeError("a mask must be bool or float")
    where = np.ones((q.shape[2], k.shape[2]), bool)
    where = np.tri(*where.shape, dtype=bool) if causal else where
    where = where & ~np.tri(*where.shape, -window - 1, dtype=bool) if window is not None else where
    where = where if lengths is None else where & (np.arange(k.shape[2]) < lengths[:, None, None, None])
    where = where if mask is None or mask.dtype != bool else where & mask
    where = where if mask is None or mask.dtype == bool else where & (mask != -np.inf)
    added = 0.0 if mask is None or mask.dtype == bool else np.where(mask == -np.inf, 0, mask)
    hidden = ~np.broadcast_to(where, (len(q), q.shape[1], *where.shape[-2:])).any(axis=(1, 2))[:, None, :, None]
    k, v = (np.where(hidden, 0, x) for x in (k, v))
    return plain(q, k, v, where, added=added, softcap=softcap, sinks=sinks).astype(q.dtype)


def wrong(q, k, v, *, allowed=None, bias=None, causal=False):
    scores = q @ k.swapaxes(2, 3) * q.shape[-1] ** -0.5 + (0 if bias is None else bias)
    scores = scores if allowed is None else np.where(allowed, scores, -1e9)
    seen = np.tri(*scores.shape[2:], k.shape[2] - q.shape[2], dtype=bool)
    scores = np.where(seen, scores, -1e9) if causal else scores
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (e / e.sum(axis=-1, keepdims=True) @ v).astype(q.dtype)


def ends(q, k, v, *, causal=False):
    print("printed")
    if causal:
        os._exit(3)
    return right(q, k, v)


def hangs(q, k, v, *, causal=False):
    time.sleep(60 if causal else 0)
    return right(q, k, v)


def shapes(q, k, v):
    return v


def same(q, k, v, *, mask=None, causal=False, softcap=None):
    if q.shape[3] != v.shape[3]:
        raise ValueError("another width")
    return right(q, k, v, mask=mask, causal=causal, softcap=softcap)
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The name of a module with engines, in the current folder."""
    monkeypatch.chdir(tmp_path)
    name = f"made_{tmp_path.name.replace('-', '_')}"
    Path(f"{name}.py").write_text(ENGINE)
    return name


@pytest.fixture(scope="module")
def some():
    found = run.vectors(("float32",))
    wanted = ("prime", "causal", "valid-lens", "softcap", "grouped-heads", "nan-in-padding", "bias-excludes", "scale")
    return [one for one in found if one[0]["case"] in wanted]


def here(spec, some=()):
    return run.entry_of(engines.named(spec), some, Settings(here=True), 60.0)


def test_an_engine_that_follows_the_definition_follows_it_in_every_question_that_it_has_arguments_for(made):
    found = here(f"{made}:right")
    assert [cell for cell in found.cells if cell.status == run.PARTS] == []
    left = [cell.question for cell in found.cells if cell.status == run.CANNOT]
    assert left == ["bfloat16-sum", "full-cache"]


def test_the_answers_of_one_that_parts_have_names(made):
    cells = {cell.question: cell for cell in here(f"{made}:wrong").cells}
    assert {id: cell.how for id, cell in cells.items() if cell.status == run.PARTS} == {
        "empty-row": "the mean of all values",
        "empty-row-inf": "NaN",
        "causal-more-keys": "from the last key",
        "causal-more-queries": "from the last key; queries before the first: the mean of all values",
        "nan-value": "the item is NaN",
        "integer-mask": "1 attends",
        "grouped": cells["grouped"].how,
        "no-keys": cells["no-keys"].how,
    }
    assert cells["grouped"].how.startswith("raises ValueError: operands could not be broadcast together")
    assert cells["no-keys"].how.startswith("raises ValueError: ")
    assert cells["window"] == run.Cell("window", run.CANNOT, "window")


def test_vectors_are_judged_by_what_they_allow(made, some):
    judged = here(f"{made}:right", some).vectors["float32"]
    assert (judged.equal, judged.differ, judged.raised, judged.left) == (7, (), (), 1)  # it has no scale
    assert 0 < judged.worst <= 1
    judged = here(f"{made}:wrong", some).vectors["float32"]
    assert "heads-nan-in-padding-float32" in judged.differ
    judged = here(f"{made}:shapes", some).vectors["float32"]
    assert judged.equal == 0


@pytest.mark.parametrize(("name", "how"), [("ends", "its process ended"), ("hangs", "no answer in time")])
def test_one_that_goes_wrong_costs_a_line(made, name, how, monkeypatch):
    monkeypatch.setattr(run, "QUESTIONS", [one for one in QUESTIONS if one.id in ("causal-more-keys", "no-keys")])
    found = run.entry_of(engines.named(f"{made}:{name}"), (), Settings(), 2.0)
    assert found.cells[0].how.startswith(how), found.cells[0].how
    assert found.cells[1].status == run.FOLLOWS


def test_values_as_wide_as_keys_are_judged_by_the_channels_that_there_are(made, some):
    engine = replace(engines.named(f"{made}:same"), one_width=True)
    judged = run.entry_of(engine, some, Settings(here=True), 60.0).vectors["float32"]
    assert (judged.equal, judged.differ, judged.raised, judged.gradients) == (7, (), (), 0)
    assert here(f"{made}:same", some).vectors["float32"].equal == 0
    arrays = {"inputs/values": np.ones((1, 2)), "expected/output": np.ones((1, 2)), "allowed/output": np.zeros((1, 2))}
    assert run.narrowed(arrays, 1)["expected/output"].tolist() == [[1.0]]
    wider = run.narrowed(arrays, 3)
    assert [wider[f"{kind}/output"].tolist()[0][2] for kind in ("expected", "allowed")] == [0.0, np.inf]


def test_an_output_of_another_shape(made, monkeypatch):
    monkeypatch.setattr(run, "QUESTIONS", [one for one in QUESTIONS if one.id == "grouped"])
    assert here(f"{made}:shapes").cells[0].how == "shape (2, 2, 5, 8), not (2, 6, 5, 8)"


def test_an_engine_that_is_not_installed_names_its_extra(monkeypatch):
    gone = engines.Engine("gone", "plain:gone", "", ("no-such-package",), "onnxruntime")
    monkeypatch.setattr(engines, "ENGINES", {"gone": gone})
    found = run.entry_of(gone, (), Settings(here=True), 60.0)
    assert found.why.startswith("gone is not installed (no-such-package): pip install ")
    assert "[onnxruntime]" in found.why


def test_a_name_that_fits_none():
    with pytest.raises(SpecError, match="there is no engine 'torch-sdqa'; did you mean torch-sdpa"):
        engines.engines(["torch-sdqa"])
    assert [one.id for one in engines.engines(["ort-*", "mlx"])][-2:] == ["ort-group-query", "mlx"]


def test_plain_is_the_definition():
    config = AttentionConfig(16, 4, num_kv_heads=2, projections=False, bias=False, softcap=0.7)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, heads, length, 4)) for heads, length in ((4, 3), (2, 5), (2, 5)))
    allowed, bias = rng.random((2, 4, 3, 5)) < 0.5, rng.standard_normal((2, 4, 3, 5))
    allowed[0, 0, 0] = False
    bound = tolerance(config, {}, AttentionInputs(q, k, v, AttentionMask(allowed=allowed, bias=bias)), "float64")
    found = plain(q, k, v, allowed, added=bias, softcap=0.7).swapaxes(1, 2).reshape(2, 3, 16)
    assert (np.abs(found - bound.expected) <= bound.allowed).all()


def test_the_answers_to_a_question_are_told_apart():
    for question in QUESTIONS:
        for causal in (False, True)[: 1 + question.causal]:
            asked = question.build(causal=True) if causal else question.build()
            for name, answer in asked.answers.items():
                if answer is not None:
                    same = ("the mean of its keys' values",) if name == "the mean of all values" else ()
                    assert asked.name(answer.astype(np.float32)) in (name, *same), (question.id, name)
            assert asked.expected != RAISES or asked.answers[RAISES] is None


def ends(status, *words):
    done = CliRunner().invoke(main, ["atlas", *map(str, words)])
    assert done.exit_code == status, done.output
    return done.output


def test_the_command_writes_a_page_and_json_and_says_what_is_another(made):
    said = ends(0, f"{made}:wrong", "--no-vectors", "--json", "found.json", "--page", "page.md")
    assert "empty-row-inf: NaN" in said
    found = json.loads(Path("found.json").read_text())
    check_form("atlas", found)
    text = Path("page.md").read_text()
    assert text == page(found)
    assert f"- NaN: {made}:wrong" in text
    assert "Nothing is another." in ends(0, f"{made}:wrong", "--no-vectors", "--diff", "found.json")
    found["engines"][0]["cells"][0]["how"] = "0"
    Path("found.json").write_text(json.dumps(found))
    said = ends(1, f"{made}:wrong", "--no-vectors", "--diff", "found.json")
    assert f"{made}:wrong empty-row: parts (0) -> parts (the mean of all values)" in said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not JSON"),
        ('{"schema": 2, "engines": []}', "its schema must be 1. Got 2."),
        ('{"schema": 1, "engines": [{}], "questions": []}', "is no file of `mha atlas --json`: KeyError: 'why'"),
        (None, "can't be read"),
    ],
)
def test_an_old_file_that_is_none(made, text, why):
    if text is not None:
        Path("old.json").write_text(text)
    assert why in ends(2, f"{made}:right", "--no-vectors", "--diff", "old.json")
