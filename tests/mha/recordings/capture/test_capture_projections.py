"""Capture of classes that are not listed: by their projections, and only if the reference confirms what was read."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import mha
from mha.cli.suite.diagnose import diagnose
from mha.coverage import UnreadWarning
from mha.recordings.replay import judge_recording
from mha_core import SpecError
from tests.mha.recordings.capture.live_calls import refused

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.same_on_newest  # PyTorch's release is the same there
nn = torch.nn


class Nano(nn.Module):
    """nanoGPT's CausalSelfAttention with a softmax of its own: a packed c_attn, thirds one after the other."""

    def __init__(self, width: int, n_head: int, factor: float = 1.0) -> None:
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width)
        self.n_head, self.factor = n_head, factor

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = self.c_attn(x).split(width, dim=2)
        q, k, v = (y.view(batch, length, self.n_head, -1).transpose(1, 2) for y in (q, k, v))
        scores = self.factor * q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        y = scores.masked_fill(~causal, -math.inf).softmax(dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))


class Timm(nn.Module):
    """timm's Attention."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv, self.proj, self.proj_drop = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        weights = ((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1)
        return self.proj_drop(self.proj((weights @ v).transpose(1, 2).reshape(batch, length, width)))


class Annotated(nn.Module):
    """The annotated transformer's MultiHeadedAttention: four linears in a list, and a mask of 0 for keys to ignore."""

    def __init__(self, h: int, d_model: int) -> None:
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])

    def forward(self, query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        given = zip(self.linears, (query, key, value), strict=False)
        q, k, v = (lin(x).view(len(x), -1, self.h, self.d_k).transpose(1, 2) for lin, x in given)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        x = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(len(query), -1, self.h * self.d_k)
        return self.linears[-1](x)


class Grouped(nn.Module):
    """Fewer heads of keys, one packed projection of keys and values head by head, arrays (length, batch, width)."""

    def __init__(self, returned: float = 1.0) -> None:
        super().__init__()
        self.to_q, self.to_kv, self.to_out = nn.Linear(10, 12), nn.Linear(7, 12), nn.Sequential(nn.Linear(12, 5))
        self.heads, self.returned = 6, returned

    def forward(self, x: Any, context: Any) -> Any:
        q, kv = self.to_q(x).unflatten(-1, (6, 2)), self.to_kv(context).unflatten(-1, (3, 2, 2))
        q, k, v = (y.permute(1, 2, 0, 3) for y in (q, kv[..., 0, :], kv[..., 1, :]))
        k, v = (y.repeat_interleave(2, dim=1) for y in (k, v))
        y = (q @ k.transpose(-2, -1) / math.sqrt(2)).softmax(dim=-1) @ v
        return self.returned * self.to_out(y.permute(2, 0, 1, 3).flatten(2))


def drawn(*shape: int) -> Any:
    return torch.from_numpy(np.random.default_rng(len(shape)).normal(size=shape)).float()


def made(layer: Any) -> Any:
    torch.manual_seed(3)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer.eval()


def equal(recording: Any) -> bool:
    return all(result.status == "equal" for result in judge_recording(recording))


def test_classes_with_known_names_are_recorded_of_themselves_with_what_they_do_to_the_mask() -> None:
    model = made(nn.Sequential(nn.Sequential(nn.LayerNorm(12), Nano(12, 3)), Timm(12, 4)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with mha.capture(model, layers=None, strict=True) as seen:
            model(drawn(2, 5, 12))
    nano, timm = seen.recording.layers
    assert (nano.name, nano.config.num_heads, timm.name, timm.config.num_heads) == ("0.1", 3, "1", 4)
    assert [call.inputs.mask.causal for call in seen.recording.calls] == [True, False]
    assert seen.recording.unread == ()
    assert np.array_equal(nano.weights["k_proj.weight"], model[0][1].c_attn.weight[12:24].detach().numpy())
    assert equal(seen.recording)


def test_an_argument_of_the_call_is_taken_for_the_mask_that_it_is() -> None:
    layer, x, memory = made(Annotated(3, 12)), drawn(2, 4, 12), drawn(2, 6, 12)
    kept = torch.arange(6)[None, None] < torch.tensor([6, 4])[:, None, None]
    with mha.capture(layer) as seen:
        layer(x, memory, memory, kept)
        layer(x, x, x, torch.ones(4, 4).tril().int()[None])
    first, second = (call.inputs.mask for call in seen.recording.calls)
    assert np.array_equal(np.broadcast_to(first.allowed, (2, 1, 1, 6))[:, 0, 0], kept[:, 0].numpy())
    assert second.causal
    assert equal(seen.recording)


def test_rows_head_by_head_fewer_heads_of_keys_and_arrays_with_the_length_first_are_recognized() -> None:
    layer = made(Grouped())
    said = mha.Projections("to_q", "to_kv", "to_kv", "to_out.0")
    for layers in ({"": said}, ["*"]):
        with mha.capture(layer, layers=layers) as seen:
            layer(drawn(4, 2, 10), drawn(6, 2, 7))
        (recorded,) = seen.recording.layers
        assert (recorded.config.num_heads, recorded.config.num_kv_heads, recorded.config.output_dim) == (6, 3, 5)
        assert np.array_equal(recorded.weights["v_proj.weight"][:2], layer.to_kv.weight[2:4].detach().numpy())
        assert equal(seen.recording)


def test_the_conv1d_of_transformers_is_read_as_in_by_out() -> None:
    modules = pytest.importorskip("transformers.pytorch_utils")
    layer = Nano(12, 4)
    layer.c_attn, layer.c_proj = modules.Conv1D(36, 12), modules.Conv1D(12, 12)
    with mha.capture(made(layer)) as seen:
        layer(drawn(3, 5, 12))
    assert np.array_equal(seen.recording.layers[0].weights["q_proj.weight"].T, layer.c_attn.weight[:, :12].detach())
    assert equal(seen.recording)


def test_a_class_that_computes_something_else_is_recorded_as_that_if_its_projections_are_said() -> None:
    layer = made(Nano(12, 3, factor=1.1))
    said = mha.Projections("c_attn", "c_attn", "c_attn", "c_proj", num_heads=3, order="qkv", causal=True)
    words = r"Nano at the top is recorded, but it differs from its own weights: .*differs in \d+ of 120"
    with pytest.warns(UnreadWarning, match=words), mha.capture(layer, layers={"": said}) as wrong:
        layer(drawn(2, 5, 12))
    assert not equal(wrong.recording)
    said = (
        r"nothing to record: a call .* can't be recorded: it does not compute the definition from these projections: "
        r".*differs in \d+ of.*\. To record it as it is, say that .*mha\.Projections\(query="
    )
    refused(said, layer, lambda: layer(drawn(2, 5, 12)))
    with mha.capture(layer, layers={"": mha.Projections(*3 * ["c_attn"], "c_proj", scale=1.1 / 2)}) as seen:
        layer(drawn(2, 5, 12))
    assert seen.recording.layers[0].config.scale == 1.1 / 2

    beside = nn.Sequential(made(Timm(12, 4)), layer).eval()
    with pytest.warns(UnreadWarning, match=r"read 1 of 2 .*; not: 1 \(.*Nano.*differs in"), mha.capture(beside) as seen:
        beside(drawn(2, 5, 12))
    assert [(one.name, one.why) for one in seen.recording.unread] == [("1", "unknown")]


def test_a_refused_class_is_recorded_by_the_line_that_the_refusal_says(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    model = made(nn.ModuleList(nn.ModuleDict({"attn": Nano(12, 3, factor)}) for factor in (1.0, 1.1, 1.1)))
    model.forward = lambda x: [block["attn"](x) for block in model]
    line = (
        'mha.capture(model, "calls.safetensors", layers={\'*.attn\': mha.Projections(query="c_attn", key="c_attn", '
        'value="c_attn", output="c_proj", num_heads=3)})'
    )
    with pytest.warns(UnreadWarning) as said, mha.capture(model):
        model(drawn(2, 5, 12))
    told = str(said[0].message)
    assert told.count("say that these are its projections") == 1
    assert f"To record 1.attn as it is, say that these are its projections: {line}; then `mha diagnose" in told
    assert "looks for the cause, best with causal= and by_head= said too" in told
    differs = "differs from its own weights: .*; `mha diagnose FILE` looks for"
    with pytest.warns(UnreadWarning, match=differs), eval(line):
        model(drawn(2, 5, 12))
    assert len(mha.Recording.load("calls.safetensors").layers) == 3

    assert line.replace("*.attn", "") in refused(".", model[1]["attn"], lambda: model[1]["attn"](drawn(2, 5, 12)))
    model[2]["attn"].n_head = 4  # then one line would be wrong of the other
    with pytest.warns(UnreadWarning, match=r"layers=\{'1.attn': .*num_heads=3\)"), mha.capture(model):
        model(drawn(2, 5, 12))


def test_a_pattern_that_fits_no_layer_is_named_with_the_layers_there_are() -> None:
    model = nn.Sequential(made(Timm(12, 4)), made(Timm(12, 4)))
    said = mha.Projections(*3 * ["qkv"], "proj")
    words = r"layers=\['attn\.\*'\] must name attention layers \(there are: '0', '1'\)"
    for layers in (["attn.*"], {"attn.*": said}):
        refused(words, model, lambda: None, layers=layers)
    refused(r"was asked for by layers=\['attn'\]\.", nn.Linear(2, 3), lambda: None, layers=["attn"])


def test_what_one_call_can_not_tell_and_what_stands_after_the_projection_is_said() -> None:
    layer = made(Timm(12, 4))
    alike = drawn(2, 5, 12)[:, :1].expand(2, 5, 12)  # equal rows: causal or not gives the same
    said = {"": mha.Projections(*3 * ["qkv"], "proj")}
    refused("fits more than one reading .*causal=False.* and causal=True", layer, lambda: layer(alike), layers=said)
    with mha.capture(layer, layers={"": mha.Projections(*3 * ["qkv"], "proj", causal=False)}):
        layer(alike)

    doubled = made(Grouped(returned=2.0))
    with pytest.warns(UnreadWarning, match="up to the output projection"), mha.capture(doubled):
        doubled(drawn(4, 2, 10), drawn(6, 2, 7))
    given = drawn(4, 2, 10), drawn(6, 2, 7)
    refused("up to the output projection", doubled, lambda: doubled(*given), strict=True)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"query": "q"}, "has no projection 'q' .*it has: 'qkv', 'proj'"),
        ({"num_heads": 5}, "5 does not divide|num_heads=5"),
        ({"mask": "padding"}, "no argument 'padding' .*it has: x"),
        ({"num_heads": True}, "num_heads must be a positive integer. Got True"),
        ({"order": "qk"}, "order must be the letters"),
        ({"causal": "yes"}, "causal must be True, False or None"),
        ({"scale": -1.0}, "scale must be a positive number"),
    ],
)
def test_what_is_said_wrongly_is_refused(said: dict[str, Any], words: str) -> None:
    layer = made(Timm(12, 4))
    names = {"query": "qkv", "key": "qkv", "value": "qkv", "output": "proj"}
    with pytest.raises(SpecError, match=words), mha.capture(layer, layers={"": mha.Projections(**{**names, **said})}):
        layer(drawn(2, 5, 12))


class Often(Nano):
    """Its packed projection is called twice in one call."""

    def forward(self, x: Any) -> Any:
        self.c_attn(x)
        return super().forward(x)


def test_a_projection_that_is_called_twice_is_said_without_what_does_not_help() -> None:
    layer = made(Often(12, 3))
    said = "'c_attn' was called 2 times with one array, not once. Call it once for each call of the layer"
    assert "mha.Projections" not in refused(said, layer, lambda: layer(drawn(2, 5, 12)))


def test_a_layer_that_gives_nan_is_recorded_as_it_is_and_one_that_can_not_run_is_named() -> None:
    class Nan(Nano):
        def forward(self, x: Any) -> Any:
            self.c_attn(x)
            heads = x.clone()
            heads[:, 0] = float("nan")  # as of a row of -inf
            return self.c_proj(heads)

    layer = made(Nan(12, 3))
    said = mha.Projections(*3 * ["c_attn"], "c_proj", causal=True, by_head=False)
    with pytest.warns(UnreadWarning, match="is recorded, but"), mha.capture(layer, layers={"": said}) as seen:
        layer(drawn(2, 5, 12))
    assert np.isnan(seen.recording.calls[0].outputs["output"][:, 0]).all()
    refused("ModuleList has no method forward", nn.ModuleList([nn.Linear(2, 2)]), lambda: None)


class Parts(nn.Module):
    """Three heads of width 4 by projections of four names, in the order in which they are made."""

    def __init__(self, fault: str = "", names: Sequence[str] = "qkvo", order: str = "qkvo", **attributes: int) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(12, 12))
        self.by_role = dict(zip(order, names, strict=True))
        vars(self).update(attributes, fault=fault)

    def forward(self, x: Any) -> Any:
        return self.attend(x, lambda scores: scores / 2.0)

    def attend(self, x: Any, masked: Callable[[Any], Any]) -> Any:
        q, k, v = (self.split(getattr(self, self.by_role[one])(x)) for one in "qkv")
        return getattr(self, self.by_role["o"])(self.merged(masked(q @ k.mT).softmax(-1) @ v))

    def split(self, y: Any) -> Any:
        return y.unflatten(-1, (3, 4)).transpose(1, 2)

    def merged(self, heads: Any) -> Any:
        return heads.transpose(1, 2).flatten(2)


class Unscaled(Parts):
    """Scores that are not scaled, with a mask of the keys that are attended to."""

    def forward(self, x: Any, keep: Any) -> Any:
        allowed = keep[:, None, None] & torch.ones(5, 5, dtype=torch.bool).tril(0 if self.fault == "and causal" else 5)
        return self.attend(x, lambda scores: scores.masked_fill(~allowed, -1e9))

    def merged(self, heads: Any) -> Any:
        return heads.reshape(2, 5, 12) if self.fault == "and merged" else super().merged(heads)


@pytest.mark.nightly("a recording's cause is named", but=("alone", "and causal"))
@pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning")
@pytest.mark.parametrize("fault", ["alone", "and causal", "and merged"])
def test_what_is_assumed_of_a_layer_that_differs_is_said_with_its_diagnosis(fault: str, tmp_path: Any) -> None:
    layer, keep = made(Unscaled(fault)), torch.arange(5) < torch.tensor([[3], [5]])
    causal = fault == "and causal"
    told = {}
    half = {"causal": causal, "batch_first": True, "mask": "keep"}
    for name, more in {"open": {}, "half": half, "said": {**half, "mask_hides": False}}.items():
        path = tmp_path / f"{name}.safetensors"
        said = mha.Projections("q", "k", "v", "o", num_heads=3, **more)
        with pytest.warns(UnreadWarning) as heard, mha.capture(layer, path, layers={"": said}):
            layer(drawn(2, 5, 12), keep)
        of_scale = "its scores alone differ: they are not scaled, where sqrt(4) is due (if that is meant, say scale=1)"
        assert (of_scale in str(heard[0].message)) == (fault != "and merged")
        (call,) = mha.Recording.load(path).calls
        assert call.inputs.mask.causal == causal
        assert call.inputs.mask.allowed is not None
        told[name] = CliRunner().invoke(diagnose, [str(path), "--no-unseen"]).output
        assert call.assumed in told[name]
    if fault == "and merged":  # else another scale confirms the reading
        keep = "keep true where a key is attended to (mask_hides=False). It is taken so: with the cause"
        assert f"\n\nNothing said this of the layer: causal=False, batch_first=True, {keep}" in told["open"]
        assert f"\n\nNothing said this of the layer: {keep}" in told["half"]
    for name, one in told.items():
        assert "(scale-missing" in one
        assert ("Nothing said this" in one) == (fault == "and merged" and name != "said")
        assert "do not confirm" not in one, "the diagnosis gives every number"
        assert "causal" not in one.partition("\n\n")[0], "no cause"


class Padded(Parts):
    """A mask that is true where a key is hidden; channels that are split as (d, h), or causal scores that see all."""

    def forward(self, x: Any, pad: Any) -> Any:
        hidden = torch.zeros(7, 7).masked_fill(pad[:, None, None], -torch.inf) + torch.full((7, 7), -torch.inf).triu(1)
        return self.attend(x, lambda scores: scores / 2.0 + hidden)

    def split(self, y: Any) -> Any:
        return y.unflatten(-1, (4, 3)).mT.transpose(1, 2)

    def merged(self, heads: Any) -> Any:
        return super().merged(heads.sin() if self.fault == "unknown" else heads)


@pytest.mark.nightly("a recording's cause is named", but=("split",))
@pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning")
@pytest.mark.parametrize("fault", ["split", "unknown"])
def test_what_is_said_of_a_mask_is_what_the_diagnosis_takes_it_for(fault: str, tmp_path: Any) -> None:
    """The other way round, no query of an item would have a key; a diagnosis that gives every number confirms it."""
    layer, pad = made(Padded(fault)), torch.arange(7) >= torch.tensor([[5], [7]])
    said = mha.Projections("q", "k", "v", "o", num_heads=3, causal=True, mask="pad", batch_first=True)
    path = tmp_path / "calls.safetensors"
    hidden, allowed = "pad true where a key is hidden (mask_hides=True)", (~pad).numpy()
    with pytest.warns(UnreadWarning) as heard, mha.capture(layer, path, layers={"": said}):
        layer(drawn(2, 7, 12), pad)
    assert f"(assumed: {hidden}; say it" in str(heard[0].message)
    assert np.array_equal(np.squeeze(mha.Recording.load(path).calls[0].inputs.mask.allowed), allowed)
    told = CliRunner().invoke(diagnose, [str(path), "--no-unseen"]).output
    assert ("(split-d-h)" in told) == (fault == "split")
    if fault == "split":
        assert f"\n\nNothing said this of the layer: {hidden}. It is taken so: with the cause above" in told
    else:
        assert told.startswith(f"Assumed of the layer: {hidden}. Nothing said it, and the numbers do not confirm it")
    for hides in (True, False):
        with mha.capture(layer, layers={"": replace(said, mask_hides=hides)}) as seen:
            layer(drawn(2, 7, 12), pad)
        (call,) = seen.recording.calls
        assert call.assumed == ""
        assert np.array_equal(np.squeeze(call.inputs.mask.allowed), allowed == hides)


@pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning")
@pytest.mark.parametrize(("attributes", "heads"), [({"num_heads": 3}, 3), ({"nheads": 3}, 3), ({}, 6)])
@pytest.mark.parametrize("names", ["first second third fourth", "tokeys toqueries tovalues unifyheads"])
def test_the_line_that_is_printed_names_no_projection_for_another(
    names: str, attributes: dict[str, int], heads: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that contain query, key and value tell; others stay open, since keys may be made before queries."""
    monkeypatch.chdir(tmp_path)
    own = tuple(names.split())
    model = made(Parts("", own, "kqvo", **attributes))
    told = refused(".", model, lambda: model(drawn(2, 5, 12)))
    key, query, value, output = own if "key" in names else 4 * ["..."]
    roles = f'query="{query}", key="{key}", value="{value}", output="{output}", num_heads={heads}'
    line = f"mha.capture(model, \"calls.safetensors\", layers={{'': mha.Projections({roles})}})"
    each = "each name" if "key" in names else "each of 'first', 'second', 'third', 'fourth'"
    lacks = f"{each} where it belongs{' and its own number of heads' * (not attributes)} ("
    assert f"{line}, with {lacks}" in told
    if "key" not in names:
        with pytest.raises(SpecError, match=r"no projection '\.\.\.'"), eval(line):
            pass
        for role, one in zip(("key", "query", "value", "output"), own, strict=True):
            line = line.replace(f'{role}="..."', f'{role}="{one}"')
    with eval(line):
        model(drawn(2, 5, 12))
    assert equal(mha.Recording.load("calls.safetensors")) == (heads == 3)


class OverQueries(Nano):
    """Weights that are a softmax over the queries."""

    def forward(self, x: Any) -> Any:
        q, k, v = self.c_attn(x).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        weights = (q @ k.mT / math.sqrt(k.shape[-1])).masked_fill(~causal, -math.inf).softmax(dim=-2)
        return self.c_proj((weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning")
def test_layers_of_a_class_that_nothing_confirms_are_taken_to_have_one_layout() -> None:
    """Each by itself, one of six was taken to have the length first, and two to be packed head by head."""
    torch.manual_seed(1)
    model = nn.Sequential(*(OverQueries(48, 4) for _ in range(6))).eval()
    said = mha.Projections(*3 * ["c_attn"], "c_proj", causal=True)
    with mha.capture(model, layers={"?": said}) as seen:
        for layer in model:
            layer(drawn(2, 9, 48))
    assert len({call.assumed for call in seen.recording.calls}) == 1
    assert {len(call.inputs.queries) for call in seen.recording.calls} == {2}


def test_a_wildcard_stops_at_dots_where_projections_are_said() -> None:
    block = nn.ModuleDict({"attn": Timm(12, 4), "adapter": nn.ModuleDict({"attn": Nano(12, 3)})})
    model = made(nn.ModuleDict({"blocks": nn.ModuleList([block])}))
    model.forward = lambda x: block["adapter"]["attn"](block["attn"](x))
    with mha.capture(model, layers={"blocks.*.attn": mha.Projections(*3 * ["qkv"], "proj")}) as seen:
        model(drawn(2, 5, 12))
    assert [one.name for one in seen.recording.layers] == ["blocks.0.attn"]


@pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning")
def test_a_refusal_that_ends_in_a_dot_gets_no_second_one() -> None:
    layer, memory = made(Annotated(3, 12)), drawn(1, 6, 12)  # one item of keys for both of queries
    said = r"Got keys \(1, 6, 12\) beside .*\)\. A class"
    assert ".." not in refused(said, layer, lambda: layer(drawn(2, 4, 12), memory, memory))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            nn.Sequential(nn.Linear(12, 12), nn.Sequential(nn.ReLU(), Parts("", "abcd", "kqvo"))),
            r"\{'1.1': mha\.Projections\(query=.*'a', 'b'.*docs/recordings\.md",
        ),
        (nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), r"by its projections, and it has '1' alone \("),
        (nn.Sequential(nn.ReLU()), r"by its projections, and it has none \("),
    ],
)
def test_the_line_for_a_model_without_attention_by_name_says_what_was_found(model: Any, words: str) -> None:
    refused(words, model, lambda: None)
    x = torch.ones(1, 2, 12 if len(model) == 2 and isinstance(model[0], nn.Linear) else 2)
    assert "NAME" not in refused(words, model, lambda: model(x))
