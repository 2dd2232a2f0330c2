"""`mha heads` on a live model: its measures, its curves, the form of what it writes, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from mha.cli.learning.heads import heads as command  # noqa: E402
from mha.heads.curve import Judge, nearest  # noqa: E402
from mha.heads.gates import embed  # noqa: E402
from mha.heads.importance import MEASURES, gradient, order_of  # noqa: E402
from mha.heads.live import cut_live, prune_live  # noqa: E402
from mha.heads.page.page import render  # noqa: E402
from mha.heads.prune import kept_in, removed_first  # noqa: E402
from mha.heads.subject import of_encoder, of_recording  # noqa: E402
from mha.port.encoder import load_encoder  # noqa: E402
from mha.schemas import schema  # noqa: E402
from mha_core import AttentionConfig, SpecError  # noqa: E402
from tests.mha.heads.test_prune import GROUPED, recording_of  # noqa: E402

pytestmark = pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there

TEXTS = (
    "The national executive of the party met last night and said nothing.",
    "A bank has bought shares of another bank, and both are smaller now.",
    "Rain is expected in the north, and the south stays dry and warm.",
    "The team won its first game in a year, with a goal in the last minute.",
)


@pytest.fixture(scope="module")
def minilm():
    return load_encoder("minilm")


@pytest.fixture(scope="module")
def subject(minilm):
    return of_encoder(minilm, TEXTS[:2])


def mha_heads(*arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_gradient_agrees_with_leave_one_out(subject):
    """The one needs a backward pass, the other one pass for each of 72 heads."""
    slopes, left_out = gradient(subject, directions=24), MEASURES["leave-one-out"].function(subject)
    assert slopes.shape == left_out.shape == (6, 12)
    ranks = [scores.ravel().argsort().argsort() for scores in (slopes, left_out)]
    assert np.corrcoef(ranks)[0, 1] > 0.9
    assert order_of(left_out)[-1][0] == 5  # the last layer has the most important head


def on(subject, texts):
    """The model on other texts, in batches of their own; its layers are not read again."""
    return replace(subject, batches=tuple(batch for _, batch in subject.live.batches(texts)))


def test_fixed_seeds_give_fixed_numbers(subject):
    assert np.array_equal(gradient(subject), gradient(on(subject, TEXTS[:2])))


def test_a_live_head_that_adds_nothing_has_importance_0(subject):
    out = subject.live.sites[2].out
    before = out.weight.detach().clone()
    try:
        with torch.no_grad():
            out.weight[:, 4 * 32 : 5 * 32] = 0.0
        dead = on(subject, TEXTS[:1])
        for name in MEASURES:
            scores = MEASURES[name].function(dead)
            assert scores[2, 4] == 0.0
            assert (np.delete(scores[2], 4) > 0.0).all()
        removed = np.zeros((6, 12), np.bool_)
        removed[2, 4] = True
        assert np.array_equal(embed(dead.live, dead.batches, removed), embed(dead.live, dead.batches))
    finally:
        with torch.no_grad():
            out.weight.copy_(before)


def test_a_cut_model_gives_what_a_masked_one_gives_and_is_whole_again(subject):
    removed = removed_first(subject, order_of(np.random.default_rng(0).random((6, 12))), 30)
    live, kept = subject.live, kept_in(subject, removed)
    whole = embed(live, subject.batches)
    masked = embed(live, subject.batches, removed)
    with cut_live(live.sites, kept):
        smaller = embed(live, subject.batches)
        assert live.sites[0].config.num_heads == len(kept[0])
        assert live.sites[0].module.self.query.weight.shape == (32 * len(kept[0]), 384)
    assert np.abs(masked - smaller).max() < 1e-6
    assert np.abs(masked - whole).max() > 1e-3
    assert np.array_equal(embed(live, subject.batches), whole)


def test_a_cut_that_fails_changes_nothing(subject):
    live = subject.live
    whole = embed(live, subject.batches)
    with pytest.raises(SpecError, match="there is no head 12"):
        prune_live(live.sites, [[0], [12], *([0],) * 4])
    assert np.array_equal(embed(live, subject.batches), whole)


def test_curves_begin_at_1_and_see_other_texts(subject):
    judge = Judge(subject, TEXTS)
    start = judge.without(np.zeros((6, 12), np.bool_))
    assert start["fidelity"] == pytest.approx(1.0)
    none = judge.without(subject.there)
    assert (none["removed"], none["neighbours"]) == (72, None)  # so few texts have no neighbours to lose
    assert none["fidelity"] < 0.9


def test_neighbours_are_others():
    rng = np.random.default_rng(0)
    embeddings = rng.standard_normal((9, 4))
    embeddings /= np.linalg.norm(embeddings, axis=-1, keepdims=True)
    found = nearest(embeddings)
    assert found.shape == (9, 5)
    assert all(row not in own for row, own in enumerate(found.tolist()))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What one run of the command gives: its text, its JSON, its page and its file."""
    folder = tmp_path_factory.mktemp("heads")
    (folder / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    files = {"json": folder / "heads.json", "html": folder / "heads.html", "out": folder / "cut.safetensors"}
    options = [part for name, path in files.items() for part in (f"--{name}", path)]
    result = mha_heads("minilm", "--texts", folder / "texts.txt", "-b", "torch", "--prune", 24, *options)
    assert result.exit_code == 0, result.output
    return result.output, files


def test_command_says_where_it_was_proved(written):
    output, files = written
    assert "Equal: proved in torch, the live model." in output
    assert "Cut 24 of 72 heads, in the order of gradient." in output
    assert f"Written: {files['out']}" in output


def test_json_has_the_form_of_its_schema(written):
    found = json.loads(written[1]["json"].read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema("heads"))
    jsonschema.validate(found, schema("heads"))
    assert sum(map(len, found["pruned"]["kept"].values())) == 48
    assert not any(text in json.dumps(found) for text in TEXTS)


def test_mha_convert_takes_what_was_cut(written, tmp_path):
    from mha.convert.convert import convert

    out = tmp_path / "again.safetensors"
    found = convert(written[1]["out"], to_layout="canonical", out=out, every=True)
    assert sum(layer.config.num_heads for layer in found.layers) == 48
    assert {layer.config.head_dim for layer in found.layers} == {32}


def test_page_needs_nothing_else(written):
    page = written[1]["html"].read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert page.count("<svg") == 1  # four texts have no neighbours
    assert "var(--c0)" in page
    assert "#0a0b" not in page
    found = json.loads(written[1]["json"].read_text(encoding="utf-8"))
    assert "&lt;script&gt;" in render({**found, "model": "<script>"})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["minilm", "-m", "sharp"], "measure 'sharp' is not known (known: gradient, leave-one-out)"),
        (["minilm", "--prune", "67"], "at most 66 of 72 heads of minilm can be cut"),
        (["minilm", "--documents", "151"], "--documents must be 1 to 150"),
        (["minilm", "--out", "OUT"], "--out needs --prune N"),
        (["minilm", "--texts", "ONE"], "--texts needs two lines or more"),
        (["minilm", "--texts", "nowhere.txt"], "--texts nowhere.txt can't be read: No such file"),
        (["nothing-of-this-name"], "model 'nothing-of-this-name' is not known"),
        (["BARE"], "has no weights: without projections its heads are its inputs"),
        (["GROUPED", "--prune", "3"], "can be cut by whole groups of 2 alone. Got 3"),
        (["GROUPED", "-m", "confidence"], "measure 'confidence' is not known (known: gradient, leave-one-out)"),
        (["GROUPED", "--texts", "ONE"], "--texts is not for a recording"),
        (["GROUPED", "--speed"], "GROUPED is a recording, and --speed times a whole model"),
    ],
)
def test_bad_input_is_one_line(arguments, says, tmp_path, monkeypatch):
    def never(*_given, **_more):
        raise AssertionError("work began")

    monkeypatch.setattr("mha.heads.run.measure_heads", never)
    plain = AttentionConfig(6, 2, projections=False)
    recording_of(plain).save(tmp_path / "BARE")
    recording_of(GROUPED).save(tmp_path / "GROUPED")
    (tmp_path / "ONE").write_text("One text alone.\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = mha_heads(*arguments)
    assert result.exit_code == 2
    assert says in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_without_gensim_a_line_says_what_to_do(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = mha_heads("minilm")
    assert result.exit_code == 2
    assert "the texts come with the package 'gensim', which is not installed: pip install 'mha-parity[heads]'" in (
        result.output
    )


def test_a_recording_of_layers_with_different_heads(tmp_path):
    smaller = AttentionConfig(20, 2, head_dim=3, output_dim=7)
    path = tmp_path / "calls.safetensors"
    recording_of(AttentionConfig(20, 4, head_dim=3, output_dim=7), smaller).save(path)
    result = mha_heads(
        path, "-m", "leave-one-out", "-m", "all", "--prune", 2, "-b", "torch", "--json", tmp_path / "r.json"
    )
    assert result.exit_code == 0, result.output
    assert "Equal: proved in torch." in result.output
    found = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert [len(row) for row in found["importance"]["leave-one-out"]] == [4, 2]
    assert found["curves"] is None
    assert of_recording("r", recording_of(smaller)).total == 2


def test_the_example_of_the_page_runs():
    page = (Path(__file__).parents[3] / "docs" / "heads.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    found: dict = {}
    exec(code, found)  # it stands in this repository
    assert sum(site.config.num_heads for site in found["subject"].live.sites) == 48


def test_the_committed_result_has_the_form_of_the_schema():
    """And the command that the page names is one of this program."""
    docs = Path(__file__).parents[3] / "docs"
    found = json.loads((docs / "_data" / "heads-minilm.json").read_text(encoding="utf-8"))
    jsonschema.validate(found, schema("heads"))
    (line,) = re.findall(r"^mha heads (.*)$", (docs / "importance.md").read_text(encoding="utf-8"), re.MULTILINE)
    asked = command.make_context("heads", line.replace("docs/_data/", "").split()).params
    assert (asked["model"], asked["prune"], asked["measures"]) == (
        "minilm",
        found["pruned"]["removed"],
        ("gradient", "all"),
    )
    assert set(found["importance"]) == set(MEASURES)
