"""`mha.where` of parameters that stand in no part, of numbers in fewer bits, and of parts in another order together."""

import copy

import pytest
import torch
from torch import nn

import mha
from mha.substitution.reports.text import findings
from tests.mha.substitution.test_orders import EMBED, HEADS, Attention


class Placed(nn.Module):
    """A model with a table of positions of its own."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(20, EMBED), nn.Parameter(torch.randn(9, EMBED))
        self.ln, self.attn, self.up = nn.LayerNorm(EMBED), Attention(), nn.Linear(EMBED, 30)
        self.times = 1.0

    def forward(self, ids):
        x = self.words(ids) + self.places[: ids.shape[1]]
        return self.up(self.times * x + self.attn(self.ln(x)))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Placed().eval()


def judged(model, change, path):
    """The names of wrong modules, and what is said."""
    port = copy.deepcopy(model)
    with torch.no_grad():
        change(port)
        with mha.capture(port, path, modules=True):
            port(torch.arange(14).view(2, 7))
    report = mha.where(model, path)
    return report.wrong, "\n".join(findings(report))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x.flip(0), "parameters of its own have the original's numbers in another order: places reversed"),
        (lambda x: 1.1 * x, "parameters of its own are not the original's: places"),
        (lambda x: x.half().float(), "the original's: places has the numbers of places rounded to float16"),
    ],
    ids=("reversed", "scaled", "rounded"),
)
def test_of_wrong_lines_it_is_said_that_a_parameter_beside_the_parts_is_another(model, tmp_path, change, said):
    wrong, text = judged(
        model, lambda port: port.places.copy_(change(port.places.clone())), tmp_path / "port.safetensors"
    )
    assert wrong == ("",)
    assert said in text


def test_of_wrong_lines_whose_parameters_are_right_nothing_is_said_of_them(model, tmp_path):
    def change(port):
        port.times = 1.5
        port.attn.q_proj.weight.copy_(1.1 * port.attn.q_proj.weight)

    wrong, text = judged(model, change, tmp_path / "port.safetensors")
    assert "" in wrong
    assert "parameters of its own" not in text


def test_what_is_rounded_in_all_modules_is_wrong_in_each_and_not_made_up_for(model, tmp_path):
    def change(port):
        for one in port.parameters():
            one.copy_(one.half().float())

    wrong, text = judged(model, change, tmp_path / "port.safetensors")
    assert {"", "words", "attn.q_proj", "up"} <= {*wrong}
    assert "weight has the numbers of weight rounded to float16, bias has the numbers of bias rounded" in text
    assert "not known" not in text


def of_rows(weight):
    step = weight.abs().amax(1, keepdim=True) / 7
    return torch.round(weight / step) * step


def of_all(weight):
    step = weight.abs().max() / 127
    return torch.round(weight / step) * step


@pytest.mark.parametrize(
    ("rounded", "said"),
    [
        (of_rows, "weight has the numbers of weight rounded to 4-bit integers times a scale of each row."),
        (of_all, "weight has the numbers of weight rounded to 8-bit integers times a scale of the matrix."),
    ],
    ids=("rows", "matrix"),
)
def test_weights_on_a_grid_of_the_originals_are_said_to_be_that(model, tmp_path, rounded, said):
    wrong, text = judged(
        model, lambda port: port.up.weight.copy_(rounded(port.up.weight)), tmp_path / "port.safetensors"
    )
    assert wrong == ("up",)
    assert said in text


def test_the_order_of_parts_of_which_one_or_more_are_wrong_is_said(model, tmp_path):
    def change(port):
        for one in (port.attn.q_proj, port.attn.k_proj):
            one.weight.copy_(one.weight.clone().unflatten(0, (HEADS, 2, 2)).transpose(1, 2).flatten(0, 2))

    wrong, text = judged(model, change, tmp_path / "port.safetensors")
    assert wrong == ("attn",)
    assert text.count("in another order: weight with the halves of each of 3 heads interleaved") == 1
    assert "Whether attn.q_proj (and 1 alike) is right is not known yet" in text
