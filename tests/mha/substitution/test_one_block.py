"""Parts of one block alone are written otherwise, and something in the same block is wrong: nothing false is said."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mha
from mha.substitution.reports.text import findings
from tests.mha.substitution.structures.original import HEADS, HIDDEN, WIDTH, batch, original
from tests.mha.substitution.test_rewritten import lines, unscaled


def norm_folded(block):
    for one in (block.attn.q, block.attn.k, block.attn.v):
        one.bias += one.weight @ block.n1.bias
        one.weight *= block.n1.weight
    block.n1.weight.fill_(1.0), block.n1.bias.zero_()


def scale_folded(block):
    for one in (block.attn.q, block.attn.k, block.attn.v):
        one.weight *= block.n1.weight
    block.n1.bias /= block.n1.weight
    block.n1.weight.fill_(1.0)


def values_without_bias(block):
    block.attn.o.bias += block.attn.o.weight @ block.attn.v.bias
    block.attn.v.bias.zero_()


def queries_doubled(block):
    for one, factor in ((block.attn.q, 2.0), (block.attn.k, 0.5)):
        one.weight *= factor
        one.bias *= factor


def scale_in_queries(block):
    block.attn.q.weight *= (WIDTH // HEADS) ** -0.5
    block.attn.q.bias *= (WIDTH // HEADS) ** -0.5
    lines("attn", forward=unscaled)(block)


def heads_in_another_order(block):
    order = torch.arange(WIDTH).view(HEADS, -1)[[1, 2, 0]].flatten()
    for one in (block.attn.q, block.attn.k, block.attn.v):
        one.weight.copy_(one.weight[order].clone()), one.bias.copy_(one.bias[order].clone())
    block.attn.o.weight.copy_(block.attn.o.weight[:, order].clone())


def values_scaled(block):
    factor = torch.linspace(0.5, 2.0, WIDTH)
    block.attn.v.weight *= factor[:, None]
    block.attn.v.bias *= factor
    block.attn.o.weight /= factor


def hidden_in_another_order(block):
    order = torch.arange(HIDDEN).roll(7)
    block.up.weight.copy_(block.up.weight[order].clone()), block.up.bias.copy_(block.up.bias[order].clone())
    block.down.weight.copy_(block.down.weight[:, order].clone())


def both(*changes):
    return lambda block: [change(block) for change in changes]


def column(path):
    return lambda block: block.get_submodule(path).weight[:, 2].mul_(1.5)


def shift(path):
    return lambda block: block.get_submodule(path).bias[1].add_(0.3)


def epsilon(block):
    block.n1.eps = 1e-2


def tanh(block):
    block.act.approximate = "tanh"


def relu(block):
    block.act = nn.ReLU()


def scale(block):
    block.n1.weight[2] *= 1.4


CASES = [
    (norm_folded, epsilon, "n1"),
    (norm_folded, scale, ""),
    (norm_folded, column("attn.q"), "attn.q"),
    (scale_folded, epsilon, "n1"),
    (values_without_bias, shift("attn.v"), "attn"),
    (values_without_bias, column("attn.v"), "attn.v"),
    (values_without_bias, column("attn.o"), "attn.o"),
    (values_without_bias, tanh, "act"),
    (queries_doubled, column("attn.k"), "attn"),
    (queries_doubled, column("attn.v"), "attn.v"),
    (queries_doubled, shift("attn.o"), "attn.o"),
    (heads_in_another_order, column("attn.q"), "attn"),
    (values_scaled, column("attn.o"), "attn"),
    (values_scaled, column("attn.q"), "attn.q"),
    (hidden_in_another_order, relu, "act"),
    (hidden_in_another_order, shift("up"), ""),
    (hidden_in_another_order, shift("down"), ""),
    (both(norm_folded, values_without_bias), shift("attn.o"), "attn"),
]


def report_of(fold, fault, path):
    given = {name: torch.tensor(array) for name, array in batch().items()}
    model, port = original(), original()
    with torch.no_grad():
        fold(port.blocks[0])
        real = given["mask"].bool()
        assert (port(**given) - model(**given))[real].abs().max() < 1e-4, "the port is right"
        fault(port.blocks[0])
        assert (port(**given) - model(**given))[real].abs().max() > 1e-4, "and wrong now"
        with mha.capture(port, path, modules=True):
            port(**given)
    return mha.where(model, path, inputs=batch())


@pytest.mark.nightly("a wrong part is named in each way to write a port", every=6)
@pytest.mark.parametrize(("fold", "fault", "wrong"), CASES)
def test_the_fault_or_the_module_around_it_and_the_parts_is_named_alone(fold, fault, wrong, tmp_path):
    report = report_of(fold, fault, tmp_path / "port.safetensors")
    assert report.wrong == (f"blocks.0.{wrong}".rstrip("."),)
    (named,) = (one for one in report.results if one.status == "wrong")
    assert bool(named.among) == (wrong in ("", "attn"))


def test_lines_that_may_make_up_for_a_part_are_said_with_it(tmp_path):
    report = report_of(scale_in_queries, column("attn.q"), tmp_path / "port.safetensors")
    assert report.wrong == ("blocks.0.attn",)
    text = "\n".join(findings(report))
    assert "is wrong in its own lines (errors of its parts are taken out), or in blocks.0.attn.q, for which" in text
    assert "Whether blocks.0.attn.q is right is not known yet" in text
