"""`mha.where` of ports that are built otherwise: exchanged norms, masks of the model, layers that are scanned."""

import copy

import jax
import pytest
import torch
from torch import nn

from mha.substitution.reports.text import findings, last_line
from tests.mha.substitution.structures.linen_port import Port, given, parameters_of
from tests.mha.substitution.structures.original import batch, original, tensors


@pytest.fixture
def report_of(judged):
    """A function of a port's settings and parameters, to the report on it."""

    def report(*, pre=True, eager=False, change=lambda params: None, **settings):
        model = original(pre=pre)
        params = parameters_of(model, scanned=settings.get("scanned", False))
        change(params)
        port = Port(pre=pre, **settings).bind({"params": params})
        with jax.disable_jit(eager):
            return judged(model, port, *given(), inputs=batch())

    return report


def said_of(report, name):
    (one,) = (one for one in report.results if one.name == name)
    (text,) = (text for text in findings(report) if text.startswith(f"{name or 'the model'} ("))
    return one, text


@pytest.mark.nightly("a wrong part is named in each way to write a port", every=2)
@pytest.mark.parametrize("pre", [True, False])
@pytest.mark.parametrize("where", ["in its lines", "in its parameters"])
def test_norms_in_each_others_places_are_named_with_whose_parameters_they_have(report_of, pre, where):
    def change(params):
        layer = params["h_1"]
        layer["ln1"], layer["ln2"] = layer["ln2"], layer["ln1"]

    if where == "in its lines":
        report = report_of(pre=pre, fault="norms")
        wrong = {f"h_{i}/ln{j}" for i in range(2) for j in (1, 2)}
        first, mine, other = "h_0/ln1", "blocks.0.n2", "blocks.0.n1"
    else:
        report = report_of(pre=pre, change=change)
        first, mine, other = "h_1/ln1", "blocks.1.n1", "blocks.1.n2"
        wrong = {"h_1/ln1", "h_1/ln2"}
    assert set(report.wrong) == wrong
    one, text = said_of(report, first)
    assert (one.original, one.parameters_of) == (mine, other)
    assert f"Its parameters are those of {other}." in text
    assert text.endswith("\n  So is 1 more: h_1/ln1.") == (where == "in its lines")


class Renamed(nn.Module):
    """A block of the names of the original, which calls its norms in the other order."""

    def __init__(self, block):
        super().__init__()
        self.attn, self.n1, self.n2, self.drop = block.attn, block.n1, block.n2, block.drop
        self.up, self.act, self.down = block.up, block.act, block.down

    def forward(self, x, mask):
        x = x + self.drop(self.attn(self.n2(x), mask))
        return x + self.drop(self.down(self.act(self.up(self.n1(x)))))


def test_a_block_that_calls_parts_of_the_originals_names_in_another_order_is_wrong_itself(judged):
    model = original()
    port = copy.deepcopy(model)
    port.blocks[0] = Renamed(port.blocks[0]).eval()
    report = judged(model, port, **tensors())
    assert report.wrong == ("blocks.0",)
    text = said_of(report, "blocks.0")[1]
    assert "it calls blocks.0.n2, blocks.0.n1 in another order than the original: with them exchanged, it is" in text
    assert "Its original is blocks.0, found by: name." in text


def test_whole_blocks_in_each_others_places_are_said(report_of):
    def change(params):
        params["h_0"], params["h_1"] = params["h_1"], params["h_0"]

    report = report_of(change=change)
    assert report.wrong == ("",)
    order = "h_1 has the parameters of blocks.0, h_0 has the parameters of blocks.1"
    assert f"the original calls these in another order: {order}" in said_of(report, "")[1]


@pytest.mark.parametrize(("act", "said"), [("Tanh", " (torch.nn.modules.activation.ReLU)"), ("ReLU", "")])
def test_both_classes_are_printed_where_a_pair_differs_in_kind(judged, act, said):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)).eval()
    kind = type(f"My{act}" if act == "ReLU" else act, (nn.Module,), {"forward": lambda self, x: torch.tanh(x)})
    port = nn.Sequential(model[0], kind(), model[2]).eval()
    report = judged(model, port, torch.randn(3, 6))
    assert report.wrong == ("1",)
    assert f"Its original is 1{said}, found by: name." in "\n".join(findings(report))


@pytest.mark.nightly("a wrong part is named in each way to write a port", every=4)
@pytest.mark.parametrize("pre", [True, False])
@pytest.mark.parametrize("fault", ["strict", "future", "padding", "positions"])
def test_a_mask_or_positions_that_the_model_makes_name_the_model_alone(report_of, pre, fault):
    report = report_of(pre=pre, fault=fault)
    assert report.wrong == ("",)
    (text,) = findings(report)
    given = "the indices that it gives to wpe.inputs" if fault == "positions" else "the mask that it gives to h_0.mask"
    assert given in text


@pytest.mark.nightly("scanned layers are read", every=2)
@pytest.mark.parametrize("pre", [True, False])
@pytest.mark.parametrize("again", [False, True])
def test_a_right_port_with_scanned_layers_and_padding_is_right_and_it_is_said_what_was_not_recorded(
    report_of, pre, again
):
    report = report_of(pre=pre, scanned=True, again=again)
    assert report.equal
    assert report.results[0].padding == 2
    (note,) = findings(report)
    assert note.startswith("Not recorded: the layers in layers (2,368 parameters), which JAX traces (nn.scan, nn.remat")
    assert last_line(report).startswith("Equal: 5 of 5 modules")


@pytest.mark.parametrize("fault", ["gelu", "padding"])
def test_what_is_wrong_in_scanned_layers_is_said_to_be_in_lines_of_the_model_or_in_them(report_of, fault):
    report = report_of(scanned=True, fault=fault)
    assert report.wrong == ("",)
    text = next(findings(report))
    assert "wrong in its own lines, or in those of layers (not recorded), which have no original" in text


@pytest.mark.nightly("scanned layers are read")
@pytest.mark.parametrize("pre", [True, False])
def test_each_turn_of_a_scan_is_recorded_where_jax_does_not_trace_it(report_of, pre):
    right = report_of(pre=pre, scanned=True, eager=True)
    assert right.equal
    assert not list(findings(right))
    assert {right.pairs[f"blocks.{i}.up"] for i in range(2)} == {f"layers/{i}/block/fc1" for i in range(2)}
    wrong = report_of(pre=pre, scanned=True, eager=True, fault="gelu")
    assert wrong.wrong == ("layers/0/block", "layers/1/block")


def test_stacked_parameters_in_another_order_are_named_by_their_layers(report_of):
    def change(params):
        kernel = params["layers"]["block"]["fc1"]
        kernel["kernel"] = kernel["kernel"][::-1]

    report = report_of(scanned=True, eager=True, change=change)
    assert report.wrong == ("layers/0/block/fc1", "layers/1/block/fc1")
    one, text = said_of(report, "layers/0/block/fc1")
    assert one.original == "blocks.0.up"
    assert "Its parameters are not the original's: kernel has the numbers of blocks.1.up.weight." in text


@pytest.mark.nightly("scanned layers are read")
@pytest.mark.parametrize("wrong", [False, True])
def test_a_scanned_original_has_its_layers_too(judged, wrong):
    port = original()
    scanned = Port(scanned=True).bind({"params": parameters_of(port, scanned=True)})
    with torch.no_grad():
        port.blocks[1].up.bias += 0.1 * wrong
    report = judged(scanned, port, **tensors())
    assert (report.wrong, report.equal) == (("blocks.1.up",) if wrong else (), not wrong)


class Places(nn.Module):
    """Words and positions, whose table stands in a module of its own, or in the model."""

    def __init__(self, table, *, inside):
        super().__init__()
        self.words, self.last = nn.Embedding(11, 6), nn.Linear(6, 5)
        self.table = nn.Embedding.from_pretrained(table, freeze=False) if inside else nn.Parameter(table.clone())

    def forward(self, ids):
        places = self.table(torch.arange(ids.shape[1])) if callable(self.table) else self.table[: ids.shape[1]]
        return self.last(self.words(ids) + places)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("wrong", [True, False])
def test_a_table_of_positions_may_stand_in_a_module_of_one_model_and_in_the_other_itself(judged, inside, wrong):
    torch.manual_seed(0)
    table = torch.randn(9, 6)
    model, port = Places(table, inside=inside).eval(), Places(table.roll(int(wrong), 0), inside=not inside).eval()
    for name in ("words", "last"):
        getattr(port, name).load_state_dict(getattr(model, name).state_dict())
    report = judged(model, port, torch.arange(8).view(2, 4))
    assert (report.wrong, report.equal, report.uncovered) == (("",) if wrong else (), not wrong, ())
