"""Parts of one block alone are written otherwise: that is right, and beside what is wrong nothing false is said."""

import copy

import jax.numpy as jnp
import pytest
import torch
from torch import nn

from mha.substitution.reports.text import findings
from tests.mha.substitution.structures.linen_port import Port, given, parameters_of
from tests.mha.substitution.structures.original import (
    HEADS,
    HIDDEN,
    WIDTH,
    attended,
    batch,
    difference,
    original,
    tensors,
)
from tests.mha.substitution.structures.otherwise import bias_moved, fold, reorder
from tests.mha.substitution.test_rewritten import column, epsilon, lines, shift, unscaled


def norm_folded(block):
    fold(block.n1, block.attn.q, block.attn.k, block.attn.v)
    block.n1.weight.fill_(1.0), block.n1.bias.zero_()


def scale_folded(block):
    for one in (block.attn.q, block.attn.k, block.attn.v):
        one.weight *= block.n1.weight
    block.n1.bias /= block.n1.weight
    block.n1.weight.fill_(1.0)


def values_without_bias(block):
    bias_moved(block.attn)


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
    reorder(order, block.attn.q, block.attn.k, block.attn.v, behind=block.attn.o)


def channels_in_another_order(block):
    within = torch.arange(WIDTH).view(HEADS, -1)
    reorder(within[:, [2, 0, 3, 1]].flatten(), block.attn.v, behind=block.attn.o)
    keys = within[:, [1, 3, 2, 0]].flatten()
    for one in (block.attn.q, block.attn.k):
        one.weight.copy_(one.weight[keys].clone()), one.bias.copy_(one.bias[keys].clone())


def values_scaled(block):
    factor = torch.linspace(0.5, 2.0, WIDTH)
    block.attn.v.weight *= factor[:, None]
    block.attn.v.bias *= factor
    block.attn.o.weight /= factor


def hidden_in_another_order(block):
    reorder(torch.arange(HIDDEN).roll(7), block.up, behind=block.down)


def both(*changes):
    return lambda block: [change(block) for change in changes]


def tanh(block):
    block.act.approximate = "tanh"


def relu(block):
    block.act = nn.ReLU()


def scale(block):
    block.n1.weight[2] *= 1.4


FOLDS = (norm_folded, values_without_bias, queries_doubled, heads_in_another_order, channels_in_another_order)
FOLDS = (*FOLDS, values_scaled, hidden_in_another_order)
CASES = [
    (norm_folded, epsilon("n1"), "n1"),
    (norm_folded, scale, ""),
    (norm_folded, column("attn.q"), "attn.q"),
    (scale_folded, epsilon("n1"), "n1"),
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
    (values_without_bias, shift("down"), "down"),
]


@pytest.fixture
def report_of(judged):
    """A function of what is written otherwise in a block, and what is wrong there, to the report."""

    def report(fold, fault=None, number=0):
        model = original()
        port = copy.deepcopy(model)
        with torch.no_grad():
            fold(port.blocks[number])
            assert difference(port, model) < 1e-4, "the port is right"
            if fault is not None:
                fault(port.blocks[number])
                assert difference(port, model) > 1e-4, "and wrong now"
        return judged(model, port, inputs=batch(), **tensors())

    return report


@pytest.mark.nightly("right ports are right, in each way to write one", every=4)
@pytest.mark.parametrize("fold", [*FOLDS, both(*FOLDS)])
@pytest.mark.parametrize("number", [0, 1])
def test_what_is_written_otherwise_is_right(fold, number, report_of):
    report = report_of(fold, number=number)
    assert (report.wrong, report.equal) == ((), True)
    divided = [one for one in report.results if one.status == "divided otherwise"]
    assert len(divided) > 1
    assert all(f"blocks.{number}" in one.reason and "right with them" in one.reason for one in divided)


@pytest.mark.nightly("a wrong part is named in each way to write a port", every=6)
@pytest.mark.parametrize(("fold", "fault", "wrong"), CASES)
def test_the_fault_or_the_module_around_it_and_the_parts_is_named_alone(fold, fault, wrong, report_of):
    report = report_of(fold, fault)
    assert report.wrong == (f"blocks.0.{wrong}".rstrip("."),)
    (named,) = (one for one in report.results if one.status == "wrong")
    assert bool(named.among) == (wrong in ("", "attn"))


def test_lines_that_may_make_up_for_a_part_are_said_with_it(report_of):
    report = report_of(scale_in_queries, column("attn.q"))
    assert report.wrong == ("blocks.0.attn",)
    text = "\n".join(findings(report))
    assert "is wrong in its own lines (errors of its parts are taken out), or in blocks.0.attn.q, for which" in text
    assert "Whether blocks.0.attn.q is right is not known yet" in text


class Fused(nn.Module):
    """Attention with one projection of queries, keys and values, and the norm before it inside."""

    def __init__(self, block):
        super().__init__()
        self.norm, self.qkv, self.out = block.n1, nn.Linear(WIDTH, 3 * WIDTH), block.attn.o
        parts = block.attn.q, block.attn.k, block.attn.v
        self.qkv.load_state_dict(
            {name: torch.cat([getattr(one, name) for one in parts]) for name in ("weight", "bias")}
        )

    def forward(self, x, mask):
        return x + self.out(attended(*self.qkv(self.norm(x)).chunk(3, dim=-1), mask))


class Rebuilt(nn.Module):
    """A block of other parts: fused attention with its norm and residual inside; the activation with its product."""

    def __init__(self, block):
        super().__init__()
        self.mix, self.second = Fused(block), block.n2
        self.mlp = nn.Sequential(nn.Sequential(block.up, nn.GELU()), block.down)

    def forward(self, x, mask):
        x = self.mix(x, mask)
        return x + self.mlp(self.second(x))


@pytest.mark.nightly("right ports are right, in each way to write one", every=3)
@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("wrong", [False, True])
def test_blocks_of_other_parts_are_right_and_what_is_wrong_in_them_is_found(judged, which, wrong):
    model = original()
    port = copy.deepcopy(model)
    with torch.no_grad():
        for one in which:
            port.blocks[one] = Rebuilt(port.blocks[one]).eval()
        port.blocks[which[-1]].mlp.get_submodule("1").bias[0] += (
            0.1 * wrong
        )  # of all channels, a norm would take it out
    report = judged(model, port, **tensors())
    assert report.wrong == ((f"blocks.{which[-1]}.mlp.1",) if wrong else ())
    assert report.equal is not wrong


@pytest.mark.nightly("right ports are right, in each way to write one", every=6)
@pytest.mark.parametrize("pre", [True, False])
@pytest.mark.parametrize("change", ["value bias", "heads", "none"])
def test_folds_in_a_port_to_another_framework_are_right(judged, pre, change):
    model = original(pre=pre)
    params = parameters_of(model)
    for name in ("h_0", "h_1"):
        parts = params[name]["attention"]
        if change == "value bias":
            parts["out"]["bias"] = parts["out"]["bias"] + parts["value"]["bias"] @ parts["out"]["kernel"]
            parts["value"]["bias"] = jnp.zeros_like(parts["value"]["bias"])
        if change == "heads":
            order = jnp.arange(WIDTH).reshape(HEADS, -1)[jnp.array([1, 2, 0])].reshape(-1)
            for one in ("query", "key", "value"):
                parts[one] = {"kernel": parts[one]["kernel"][:, order], "bias": parts[one]["bias"][order]}
            parts["out"]["kernel"] = parts["out"]["kernel"][order]
    report = judged(model, Port(pre=pre).bind({"params": params}), *given(), inputs=batch())
    assert (report.wrong, report.equal) == ((), True)
