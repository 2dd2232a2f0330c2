"""`mha.where`: the wrong modules of ports in five APIs, and of one whose original is Keras."""

import dataclasses
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import mha
from mha.substitution.reports.report import ModuleResult, WhereReport
from mha.substitution.reports.text import findings, last_line, tree, unseen
from mha_core import SpecError
from tests.mha.substitution.encoder.apis import each, skip_unless_asked
from tests.mha.substitution.encoder.models import FAULTS, batch, original, state_of
from tests.mha.substitution.encoder.ports import PORTS, call


@pytest.fixture(scope="module")
def model():
    return original()


def report_of(model, port, path, api):
    with mha.capture(port, path, modules=True, overwrite=True):
        call(api, port)
    return mha.where(model, path, inputs=batch())


@pytest.mark.nightly("the wrong module is named, in each framework", every=7)
@pytest.mark.parametrize("api", each(PORTS))
@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_the_wrong_module_is_named_and_no_other(model, tmp_path, api, fault, request):
    skip_unless_asked(api, request)
    report = report_of(model, PORTS[api](state_of(model), fault), tmp_path / "port.safetensors", api)
    assert report.wrong == ((FAULTS[fault][api],) if fault else ())
    assert report.equal is not bool(fault)
    assert not report.uncovered
    assert all(one.status == "not judged" or one.ratio <= 8 for one in report.results if one.status == "equal")
    expected = "Wrong: " if fault else "Equal: "
    assert last_line(report).startswith(expected)
    assert len(list(tree(report))) == len(report.results)
    assert len(list(findings(report))) == bool(fault)


class Blocks(nn.Module):
    """Two linear layers and a norm; `factor`: in its lines."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 5), nn.Linear(5, 4), nn.LayerNorm(4)
        self.factor = factor

    def forward(self, x):
        return self.last(self.first(x)[:, :4] + self.factor * self.second(torch.tanh(self.first(x))))


def test_errors_of_a_module_and_of_the_lines_around_it_are_both_found(judged):
    torch.manual_seed(0)
    model, port = Blocks().eval(), Blocks(factor=1.5).eval()
    port.load_state_dict(model.state_dict())
    with torch.no_grad():
        port.second.bias[0] += 0.1
    report = judged(model, port, torch.randn(3, 6))
    assert report.wrong == ("", "second")
    own = {one.name: one for one in report.results}
    assert own[""].own_lines
    assert own["second"].parameters == "other"
    assert own["first"].status == own["last"].status == "equal"


def test_the_original_is_left_as_it_was(model, tmp_path):
    before = state_of(model)
    report_of(model, PORTS["linen"](before), tmp_path / "port.safetensors", "linen")
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert all(np.array_equal(array, before[name]) for name, array in state_of(model).items())


def test_a_map_pairs_what_the_search_cannot(judged, tmp_path):
    torch.manual_seed(0)
    names = ("ab", "xy")
    first, second = (nn.Sequential(OrderedDict((name, nn.Linear(5, 5)) for name in both)).eval() for both in names)
    for new, old in zip(second, first, strict=True):
        new.load_state_dict(old.state_dict())
    judged(first, second, torch.randn(2, 5))
    path = tmp_path / "port.safetensors"
    crossed = mha.where(first, path, pairs={"a": "y", "b": "x"})
    assert [one.status for one in crossed.results if one.how == "the map"] == ["divided otherwise"] * 2
    assert crossed.equal  # what both do together is right, whatever the map says of each
    for pairs, message in (
        ({"a": "z"}, "no module of the port that was called has that name"),
        ({"a": "y", "b": "y"}, "contradicts another"),
    ):
        with pytest.raises(SpecError, match=message):
            mha.where(first, path, pairs=pairs)


@pytest.mark.parametrize(
    ("original", "inputs", "words"),
    [
        (nn.Sequential(nn.Dropout(0.5)), None, "drops out"),
        (Blocks().eval(), {"z": np.ones((3, 6))}, r'own names: np.savez\("inputs.npz", x=...\), and --inputs'),
    ],
)
def test_what_can_not_be_run_is_refused(judged, original, inputs, words):
    with pytest.raises(SpecError, match=words):
        judged(original, Blocks().eval(), torch.randn(3, 6), inputs=inputs)


def test_what_the_inputs_could_not_show_is_said(model, judged, tmp_path):
    report = report_of(model, PORTS["linen"](state_of(model)), tmp_path / "port.safetensors", "linen")
    said = {(one.bug, one.module) for one in report.unseen}
    assert ("an epsilon of 0.001", "norm") not in said  # 1e-12 in the model
    assert not any(bug in ("no mask", "a bias lost") for bug, _ in said)
    whole = {"ids": batch()["ids"][:1], "mask": np.ones((1, 5), np.int64)}
    unpadded = judged(model, PORTS["linen"](state_of(model)), *whole.values(), inputs=whole)
    assert unpadded.equal
    assert {one.module for one in unpadded.unseen if one.bug == "no mask"} >= {"layers_0/attend", "layers_1"}
    assert any(line.strip().startswith("no mask, in") for line in unseen(unpadded))
    assert len(unpadded.to_dict()["unseen"]) == len(unpadded.unseen)


def test_an_original_whose_float64_is_nan_is_not_believed(judged):
    """Eager decoders of transformers: finfo(float64).min becomes -inf in their float32 softmax."""
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 12, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 3}
    models = {}
    for name in ("eager", "sdpa"):
        config = LlamaConfig(vocab_size=11, num_key_value_heads=3, **sizes)
        torch.manual_seed(0)
        models[name] = LlamaModel._from_config(config, attn_implementation=name).eval()
    models["eager"].load_state_dict(models["sdpa"].state_dict())
    given = {"input_ids": torch.arange(10).reshape(2, 5), "attention_mask": torch.tensor([[1] * 5, [0, 0, 1, 1, 1]])}
    believed, report = (judged(models[name], models["sdpa"], **given, use_cache=False) for name in ("sdpa", "eager"))
    assert believed.equal
    assert not believed.unjudged
    results = {one.name: one for one in report.results}
    assert report.unjudged == ("",)
    assert not report.equal
    assert "attn_implementation='sdpa'" in results[""].reason
    # In one layer, only what padding itself gets is NaN.
    assert {results[name].padding for name in ("layers.0", "layers.1", "layers.0.self_attn")} == {2}


class Shifted(nn.Module):
    """A linear module, and a parameter beside it."""

    def __init__(self, repeats=1):
        super().__init__()
        self.inner, self.token, self.repeats = nn.Linear(6, 5), nn.Parameter(torch.linspace(0.1, 0.5, 5)), repeats

    def forward(self, x):
        return (self.inner(x) + self.token).repeat(self.repeats, 1)


class Model(nn.Module):
    def __init__(self, repeats=1, factor=1.0, width=5):
        super().__init__()
        self.first, self.last = Shifted(repeats), nn.LayerNorm(5)
        self.factor, self.width = factor, width

    def forward(self, x):
        return (self.factor * self.last(self.first(x)[: len(x)]))[:, : self.width]


@pytest.fixture
def report_on(judged):
    """A function of what is otherwise in a port: the report on it."""

    def report(**otherwise):
        torch.manual_seed(0)
        model, port = Model().eval(), Model(**otherwise).eval()
        port.load_state_dict(model.state_dict())
        return judged(model, port, torch.randn(3, 6))

    return report


def test_nothing_is_equal_where_the_model_itself_was_not_judged(report_on):
    """Its modules are right; a line around them is wrong, and what it gives has another shape."""
    report = report_on(factor=2.0, width=4)
    assert report.unjudged == ("",)
    assert not report.wrong
    assert not report.uncovered
    assert not report.equal
    assert last_line(report).endswith("but the model itself was not: what stands between its modules may be wrong.")


def test_a_parameter_beside_judged_parts_is_covered_by_the_model_alone(report_on):
    report = report_on(repeats=2)
    assert report.unjudged == ("first",)
    assert report.uncovered == ("first",)
    assert report.equal
    assert "Judged by the model alone, which is equal: first." in [*findings(report)]
    twice = report_on(repeats=2, factor=1.5)
    assert (twice.wrong, twice.uncovered, twice.equal) == (("",), ("first",), False)


def test_a_recording_must_hold_one_call_of_the_model(tmp_path):
    port = nn.Sequential(nn.Linear(6, 5), nn.Tanh()).eval()
    with mha.capture(port, tmp_path / "twice.safetensors", modules=True):
        port(torch.randn(3, 6))
        port(torch.randn(3, 6))
    with pytest.raises(SpecError, match="holds 2 calls of the model: record one"):
        mha.where(port, tmp_path / "twice.safetensors")
    for arguments in ((port, port), (tmp_path / "twice.safetensors", port)):
        with pytest.raises(SpecError, match="must be a recording of the port. Got a .*Sequential: with mha.capture"):
            mha.where(*arguments)
    with mha.capture(port, tmp_path / "part.safetensors", modules=True):
        port[0](torch.randn(3, 6))
    with pytest.raises(SpecError, match="no call of the model itself, of '0'"):
        mha.where(port, tmp_path / "part.safetensors")


def test_long_names_in_the_tree_are_cut_in_the_middle_and_a_reason_without_room_stands_below():
    long = "model.encoder.layers.12.a_part_with_quite_a_long_name.self_attention_of_the_encoder"
    one = ModuleResult(long, "Attention", 0, f"other.{long}", "the same numbers", "wrong", ratio=3.0)
    two = dataclasses.replace(one, name="short", original="short", status="not judged", ratio=None, reason="no " * 30)
    first, second, third = tree(WhereReport((one, two, dataclasses.replace(two, reason="no")), (), "float32", {}))
    own, other = "model.encoder.laye ... on_of_the_encoder", "other.model.encode ... on_of_the_encoder"
    assert " ".join(first.split()) == f"{own} wrong 3 {other} (the same numbers)"
    assert [line.strip() for line in second.split("\n")] == ["short" + " " * 36 + "not judged", ("no " * 30).strip()]
    assert third.endswith("not judged  no")


class Dropping(nn.Module):
    """Two layers, and a Dropout that may stand after each."""

    def __init__(self, places):
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(6, 5), nn.Linear(5, 6), nn.Dropout(0.1)
        self.places = places

    def forward(self, x):
        inner = self.first(x)
        inner = self.second(torch.tanh(self.drop(inner) if "first" in self.places else inner))
        return x + (self.drop(inner) if "second" in self.places else inner)


@pytest.mark.parametrize("places", [("second",), ("first",), (), ("first", "second")])
def test_an_idle_dropout_that_is_called_less_often_makes_nothing_wrong(judged, places):
    torch.manual_seed(0)
    model = nn.Sequential(Dropping(("first", "second")), nn.Linear(6, 4)).eval()
    port = nn.Sequential(Dropping(places), nn.Linear(6, 4)).eval()
    port.load_state_dict(model.state_dict())
    for wrong in (False, True):
        port[0].second.bias.data += 0.3 * wrong
        assert judged(model, port, torch.randn(2, 7, 6)).wrong == (("0.second",) if wrong else ())
