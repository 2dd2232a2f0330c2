"""Ports in other ways: right ones pass; of faults in them no right part is named, and what is not named is open."""

import jax.numpy as jnp
import pytest
import torch
from torch import nn

from mha.substitution.reports.text import findings
from tests.mha.substitution.structures.linen_port import Port, given, parameters_of
from tests.mha.substitution.structures.original import attended, batch, difference, original, tensors
from tests.mha.substitution.structures.otherwise import WAYS

NO_BLOCKS = ("text_by_text_without_padding",)
"""Ways in which the model alone can be judged."""


def epsilon(path):
    def change(port):
        port.get_submodule(path).eps = 1e-2
        return path

    return change


def column(path):
    def change(port):
        port.get_submodule(path).weight[..., 2] *= 1.5
        return path

    return change


def shift(path):
    def change(port):
        port.get_submodule(path).bias[1] += 0.3
        return path

    return change


def lines(path, **methods):
    """Other lines of a module, whose class keeps its name."""

    def change(port):
        module = port.get_submodule(path)
        kind = type(module)
        module.__class__ = type(kind.__name__, (kind,), {name: make(kind) for name, make in methods.items()})
        return path

    return change


def inverted(kind):
    return lambda self, x, mask: kind.forward(self, x, ~mask | torch.eye(mask.shape[-1]).bool())


def unscaled(kind):
    return lambda self, x, mask: self.o(attended(self.q(x), self.k(x), self.v(x), mask, scale=1.0))


def less(kind):
    return lambda self, x: kind.feed(self, x) - 0.5 * x


def tanh(kind):
    return lambda self, x: nn.functional.gelu(x, approximate="tanh")


def rolled(port):
    port.pos.weight.copy_(port.pos.weight.roll(1, 0))
    return "pos"


@pytest.fixture
def report_of(judged):
    """A function of a way, and what is wrong besides, to the report and the wrong parts."""

    def report(way, *changes, wrong=False):
        torch.manual_seed(5)
        model = original()
        with torch.no_grad():
            port = WAYS[way](model, wrong)
            true = {change(port) for change in changes}
            off = difference(port, model)
        assert off > 1e-5 if wrong or changes else off < 1e-4, "the port is wrong, or right"
        return judged(model, port, inputs=batch(), **tensors()), true

    return report


def holds(outer, inner):
    return outer in ("", inner) or inner.startswith(f"{outer}.")


@pytest.mark.nightly("right ports are right, in each way to write one", every=5)
@pytest.mark.parametrize("way", WAYS)
def test_a_right_port_passes(way, report_of):
    report, _ = report_of(way)
    assert (report.wrong, report.equal) == ((), True)


@pytest.mark.nightly("a wrong part is named in each way to write a port", every=5)
@pytest.mark.parametrize("way", WAYS)
def test_with_a_wrong_line_that_alone_is_named(way, report_of):
    report, _ = report_of(way, wrong=True)
    assert report.wrong == (("" if way in NO_BLOCKS else "blocks.1"),)


REWRITTEN = ("channels_mixed", "everything_in_another_order", "interpreted", "a_module_for_each_head")
"""Ways that have other numbers in the projection that is wrong in the test below."""


@pytest.mark.nightly("a wrong part is named in each way to write a port", every=4)
@pytest.mark.parametrize("way", [way for way in WAYS if way not in (*NO_BLOCKS, *REWRITTEN, "sums_in_the_norms")])
def test_with_a_wrong_parameter_that_alone_is_named(way, report_of):
    report, (true,) = report_of(way, column("blocks.0.attn.o"))
    assert report.wrong == (true,)


@pytest.mark.nightly("a wrong part is named in each way to write a port", every=12)
@pytest.mark.parametrize(
    ("way", "change", "wrong"),
    [
        ("norms_folded", epsilon("blocks.0.n1"), "blocks.0.n1"),
        ("norms_folded", epsilon("blocks.1.n2"), "blocks.1.n2"),
        ("norms_folded", column("blocks.0.up"), "blocks.0.up"),
        ("interpreted", epsilon("norm"), "norm"),
        ("interpreted", epsilon("blocks.0.n2"), "blocks.0.n2"),
        ("interpreted", column("blocks.0.attn.v"), "blocks.0.attn"),
        ("interpreted", lines("blocks.0", active=tanh), "blocks.0"),
        ("everything_in_another_order", column("blocks.1.attn.q"), "blocks.1.attn"),
        ("everything_in_another_order", shift("blocks.0.up"), "blocks.0"),
        ("channels_mixed", shift("blocks.0.attn.o"), "blocks.0.attn"),
        ("sums_in_the_norms", column("blocks.0.attn.q"), "blocks.0.attn.q"),
        ("sums_in_the_norms", column("blocks.1.attn.o"), "blocks.1.attn.o"),
        ("sums_in_the_norms", lines("blocks.0", active=tanh), "blocks.0"),
    ],
)
def test_the_wrong_part_or_the_module_around_it_is_named_alone(way, change, wrong, report_of):
    report, (true,) = report_of(way, change)
    assert report.wrong == (wrong,)
    assert holds(wrong, true)


def test_the_parts_of_which_one_is_wrong_are_told(report_of):
    report, _ = report_of("channels_mixed", column("blocks.0.attn.k"))
    (named,) = (one for one in report.results if one.status == "wrong")
    assert named.among == tuple(f"blocks.0.attn.{one}" for one in "qkvo")
    text = "\n".join(findings(report))
    assert "is wrong in one or more of its parts blocks.0.attn.q, blocks.0.attn.k" in text
    assert "Whether blocks.0.attn.q (and 3 alike) is right is not known yet" in text


PAIRS = [
    ("as_it_is", epsilon("blocks.0.n1"), lines("blocks.1.attn", forward=inverted)),
    ("as_it_is", column("blocks.0.up"), lines("blocks.0", active=tanh)),
    ("norms_folded", epsilon("blocks.0.n1"), lines("blocks.1.attn", forward=inverted)),
    ("norms_folded", epsilon("blocks.0.n2"), epsilon("blocks.1.n1")),
    ("interpreted", epsilon("blocks.0.n1"), lines("blocks.1", active=tanh)),
    ("interpreted", column("blocks.1.attn.o"), lines("blocks.0.attn", forward=unscaled)),
    ("sums_in_the_norms", column("blocks.0.attn.q"), column("blocks.1.up")),
    ("channels_mixed", column("blocks.0.attn.q"), lines("blocks.1", feed=less)),
    ("everything_in_another_order", shift("blocks.0.attn.v"), lines("blocks.0", active=tanh)),
    ("everything_in_another_order", column("blocks.0.up"), column("blocks.1.attn.k")),
    ("centred", rolled, lines("blocks.1.attn", forward=unscaled)),
    ("a_module_for_each_head", epsilon("blocks.1.n2"), lines("blocks.0", active=tanh)),
]


@pytest.mark.nightly("a wrong part is named in each way to write a port", every=12)
@pytest.mark.parametrize(("way", "first", "second"), PAIRS)
def test_of_two_faults_each_is_named_or_said_to_be_open(way, first, second, report_of):
    report, true = report_of(way, first, second)
    assert report.wrong
    assert all(any(holds(named, one) for one in true) for named in report.wrong), "no right part is named"
    status = {one.name: one.status for one in report.results}
    for one in true:
        assert any(holds(named, one) for named in report.wrong) or status[one] == "not judged"


def folded(params):
    """Scale and shift of each norm stand in the projections behind it."""
    for block in (params["h_0"], params["h_1"]):
        attention = block["attention"]
        for norm, behind in (("ln1", [attention[name] for name in ("query", "key", "value")]), ("ln2", [block["fc1"]])):
            scale, shift = block[norm]["scale"], block[norm]["bias"]
            for one in behind:
                one["bias"] = one["bias"] + shift @ one["kernel"]
                one["kernel"] = scale[:, None] * one["kernel"]
            block[norm] = {"scale": jnp.ones_like(scale), "bias": jnp.zeros_like(shift)}
    return params


@pytest.mark.nightly("a wrong part is named in each way to write a port", every=8)
@pytest.mark.parametrize("fold", [folded, dict])
@pytest.mark.parametrize(
    ("faults", "wrong"),
    [
        (("", ""), ()),
        (("ln1", "ln1"), ("h_0/ln1", "h_1/ln1")),
        (("", "inverted"), ("h_1",)),
        (("ln1", "inverted"), ("h_0/ln1", "h_1")),
    ],
)
def test_folded_norms_in_another_framework_hide_no_fault(fold, faults, wrong, judged):
    model = original()
    port = Port(faults=faults).bind({"params": fold(parameters_of(model))})
    assert judged(model, port, *given(), inputs=batch()).wrong == wrong
