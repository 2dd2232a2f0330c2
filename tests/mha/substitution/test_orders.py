"""`mha.where` of parameters in another order, which it says, and of right ports whose parts are written otherwise."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import mha
from mha.recordings.modules.numbers import numbers_of, order_of
from mha.recordings.modules.recording import Parameter
from mha.substitution.orders import in_which_order
from mha.substitution.reports.text import findings

HEADS, WIDTH, EMBED = 3, 4, 12


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads = HEADS
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(EMBED, HEADS * WIDTH) for _ in range(3))
        self.o_proj = nn.Linear(HEADS * WIDTH, EMBED)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, EMBED)
        self.packed = nn.MultiheadAttention(EMBED, HEADS, batch_first=True)
        self.ln, self.attn, self.up = nn.LayerNorm(EMBED), Attention(), nn.Linear(EMBED, 30)

    def forward(self, ids):
        x = self.words(ids)
        x = x + self.packed(x, x, x, need_weights=False)[0]
        return self.up(x + self.attn(self.ln(x)))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = Model().eval()
    for one in (made.ln.weight, made.packed.in_proj_bias):
        nn.init.normal_(one)
    return made


def report_of(model, change, path):
    port = copy.deepcopy(model)
    with torch.no_grad():
        change(port)
    ids = torch.arange(14).view(2, 7)
    with mha.capture(port, path, modules=True):
        moved = (port(ids) - model(ids)).abs().max().item()
    return mha.where(model, path), moved


def by_head(port):
    for one in (port.packed.in_proj_weight, port.packed.in_proj_bias):
        one.copy_(one.clone().unflatten(0, (3, HEADS, WIDTH)).transpose(0, 1).flatten(0, 2))


def exchanged(port):
    q, k, v = port.packed.in_proj_weight.clone().chunk(3)
    port.packed.in_proj_weight.copy_(torch.cat([q, v, k]))


def heads(one, order=(1, 2, 0)):
    one.copy_(one.clone().unflatten(0, (HEADS, WIDTH))[list(order)].flatten(0, 1))


REORDERED = {
    "packed by head": ("packed", by_head, "in_proj_weight packed by head, of 3 heads, and not by part"),
    "keys and values": ("packed", exchanged, "in_proj_weight with its thirds as first, third, second"),
    "transposed inside": (
        "packed",
        lambda port: port.packed.out_proj.weight.copy_(port.packed.out_proj.weight.clone().T),
        "out_proj.weight transposed",
    ),
    "transposed": (
        "attn.v_proj",
        lambda port: port.attn.v_proj.weight.copy_(port.attn.v_proj.weight.clone().T),
        "weight transposed",
    ),
    "its memory": (
        "up",
        lambda port: port.up.weight.copy_(port.up.weight.clone().T.reshape(30, EMBED)),
        "weight in the memory order of its transpose",
    ),
    "heads rolled": (
        "attn.q_proj",
        lambda port: heads(port.attn.q_proj.weight),
        "weight with its thirds as second, third, first",
    ),
    "heads exchanged": (
        "attn.q_proj",
        lambda port: heads(port.attn.q_proj.weight, (1, 0, 2)),
        "weight with its thirds as second, first, third",
    ),
    "columns": (
        "attn.k_proj",
        lambda port: port.attn.k_proj.weight.copy_(port.attn.k_proj.weight.clone()[:, [1, 0, *range(2, EMBED)]]),
        "weight with its columns in another order",
    ),
    "rotary rows": (
        "attn.k_proj",
        lambda port: port.attn.k_proj.weight.copy_(
            port.attn.k_proj.weight.clone().unflatten(0, (HEADS, 2, 2)).transpose(1, 2).flatten(0, 2)
        ),
        "weight with the halves of each of 3 heads interleaved",
    ),
    "norm": ("ln", lambda port: port.ln.weight.copy_(port.ln.weight.clone().flip(0)), "weight reversed"),
    "bias": ("up", lambda port: port.up.bias.copy_(port.up.bias.clone().roll(2)), "bias rolled by 2"),
    "words": (
        "words",
        lambda port: port.words.weight.copy_(port.words.weight.clone()[[0, 2, 1, *range(3, 20)]]),
        "weight with its rows in another order",
    ),
}


@pytest.mark.nightly("parameters in another order are said to be that", every=4)
@pytest.mark.parametrize("name", REORDERED)
def test_parameters_in_another_order_are_not_said_to_be_the_originals(model, tmp_path, name):
    module, change, order = REORDERED[name]
    report, moved = report_of(model, change, tmp_path / "port.safetensors")
    assert moved > 1e-4
    assert report.wrong == (module,)
    (one,) = (one for one in report.results if one.name == module)
    assert (one.parameters, one.order.partition(",")[0]) == ("reordered", order.partition(",")[0])
    text = "\n".join(findings(report))
    assert f"in another order: {order}" in text
    assert "so what it computes is wrong" not in text
    assert "its settings or its mask are not the original's" not in text


def test_parameters_that_are_the_originals_are_said_to_be_so(model, tmp_path):
    def change(port):
        port.ln.eps = 0.5

    report, _ = report_of(model, change, tmp_path / "port.safetensors")
    assert report.wrong == ("ln",)
    assert "Its parameters are the original's, so what it computes is wrong." in "\n".join(findings(report))


class Lines(nn.Module):
    """Two linear layers, the activation between them in its own lines, or inside the first layer."""

    def __init__(self, inside: bool, slope: float) -> None:
        super().__init__()
        torch.manual_seed(3)
        first = nn.Linear(5, 7)
        self.first, self.second, self.slope = first, nn.Linear(7, 5), slope
        self.inside = inside
        if inside:
            first.forward = lambda x: torch.relu(nn.functional.linear(x, first.weight, first.bias))

    def forward(self, x):
        between = self.first(x)
        return self.second(between if self.inside else torch.relu(between)) + self.slope * x


def test_of_a_part_of_a_wrong_module_it_is_said_that_lines_may_stand_in_it(tmp_path):
    model, port = nn.Sequential(Lines(False, 1.0)).eval(), nn.Sequential(Lines(True, 2.0)).eval()
    with mha.capture(port, tmp_path / "port.safetensors", modules=True):
        port(torch.randn(2, 3, 5))
    report = mha.where(model, tmp_path / "port.safetensors")
    assert report.wrong == ("0", "0.first")
    text = "\n".join(findings(report))
    assert "is wrong, unless what differs stands in lines of 0 in the other model." in text
    assert "so what it computes is wrong." not in text


def value_bias(a):
    a.o_proj.bias += a.o_proj.weight @ a.v_proj.bias
    a.v_proj.bias.zero_()


def all_heads(a):
    for one in (a.q_proj, a.k_proj, a.v_proj):
        heads(one.weight), heads(one.bias)
    a.o_proj.weight.copy_(a.o_proj.weight.clone().unflatten(1, (HEADS, WIDTH))[:, [1, 2, 0]].flatten(1))


def scaled(a):
    for one, factor in ((a.q_proj, 2.0), (a.k_proj, 0.5)):
        one.weight *= factor
        one.bias *= factor


def value_channels(a):
    order = torch.arange(EMBED).view(HEADS, WIDTH)[:, [2, 0, 3, 1]].flatten()
    a.v_proj.weight.copy_(a.v_proj.weight.clone()[order]), a.v_proj.bias.copy_(a.v_proj.bias.clone()[order])
    a.o_proj.weight.copy_(a.o_proj.weight.clone()[:, order])


def key_channels(a):
    order = torch.arange(EMBED).view(HEADS, WIDTH)[:, [1, 3, 2, 0]].flatten()
    for one in (a.q_proj, a.k_proj):
        one.weight.copy_(one.weight.clone()[order]), one.bias.copy_(one.bias.clone()[order])


RIGHT = (value_bias, all_heads, scaled, value_channels, key_channels)


@pytest.mark.nightly("right ports are right, in each way to write one", every=2)
@pytest.mark.parametrize("change", RIGHT)
def test_a_right_port_whose_parts_are_written_otherwise_is_right(model, tmp_path, change):
    report, moved = report_of(model, lambda port: change(port.attn), tmp_path / "port.safetensors")
    assert moved < 1e-5
    assert report.equal
    assert report.wrong == ()
    divided = [one for one in report.results if one.status == "divided otherwise"]
    assert len(divided) > 1
    assert all("attn is right with them" in one.reason for one in divided)


@pytest.mark.nightly("a wrong part is named in each way to write a port", every=3)
@pytest.mark.parametrize("change", RIGHT)
def test_what_is_wrong_beside_it_is_still_found(model, tmp_path, change):
    def both(port):
        change(port.attn)
        port.up.bias += 0.25

    report, _ = report_of(model, both, tmp_path / "port.safetensors")
    assert report.wrong == ("up",)


@pytest.mark.nightly("a wrong part is named in each way to write a port", every=2)
@pytest.mark.parametrize("part", ["q_proj", "k_proj", "v_proj", "o_proj"])
def test_two_parts_that_do_not_mend_each_other_are_wrong(model, tmp_path, part):
    def change(port):
        getattr(port.attn, part).weight *= 1.5
        port.attn.v_proj.bias += 0.5

    report, _ = report_of(model, change, tmp_path / "port.safetensors")
    assert set(report.wrong) == {f"attn.{part}", "attn.v_proj"}


TORCH, KERAS = "torch.nn.modules.linear.Linear", "keras.src.layers.core.dense.Dense"
SQUARE, TALL = (np.random.default_rng(5).normal(size=shape) for shape in ((4, 4), (6, 4)))


@pytest.mark.parametrize(
    ("own", "port", "kinds", "found"),
    [
        (SQUARE, SQUARE.T, (TORCH, KERAS), ("same", "")),
        (SQUARE, SQUARE, (TORCH, KERAS), ("reordered", "kernel as it stands, and not transposed")),
        (SQUARE, SQUARE, (TORCH, "mine.Dense"), ("unseen", "")),
        (SQUARE, SQUARE.T, (TORCH, "mine.Dense"), ("unseen", "")),
        (SQUARE, SQUARE[::-1], (TORCH, "mine.Dense"), ("reordered", "kernel reversed")),
        (TALL, TALL.T, (TORCH, "mine.Dense"), ("same", "")),
        (TALL, TALL.reshape(4, 6), (TORCH, KERAS), ("reordered", "kernel as it stands, and not transposed")),
        (TALL[:, 0], TALL[:, 0], (TORCH, KERAS), ("same", "")),
        (TALL, TALL.reshape(3, 8), (TORCH, KERAS), ("unseen", "")),
        (TALL, TALL.reshape(2, 3, 4), (TORCH, "mine.Dense"), ("unseen", "")),
    ],
)
def test_the_order_that_is_meant_depends_on_the_classes(own, port, kinds, found):
    given = {"weight": Parameter(own.shape, numbers_of(own))}
    recorded = {"kernel": Parameter(port.shape, numbers_of(port), order_of(port))}
    assert in_which_order(given, lambda name: own, recorded, kinds, "float64") == found


@pytest.mark.parametrize(("name", "as_it_stands"), [("weight", "same"), ("kernel", "unseen")])
def test_classes_of_one_framework_mean_the_same_by_a_shape_of_one_name(name, as_it_stands):
    given = {"weight": Parameter(SQUARE.shape, numbers_of(SQUARE))}
    kinds = (TORCH, "mine.Projection")
    for port, found in ((SQUARE, as_it_stands), (SQUARE.T, "unseen"), (SQUARE[::-1], "reordered")):
        recorded = {name: Parameter(port.shape, numbers_of(port), order_of(port))}
        seen = in_which_order(given, lambda name: SQUARE, recorded, kinds, "float64", one_framework=True)
        assert seen[0] == found


def test_every_order_of_a_long_table_is_told_apart():
    x = np.random.default_rng(3).normal(size=(1500, 1100))
    seen = {order_of(one).sequence for one in (x, x[::-1], x[:, ::-1], np.roll(x, 1, axis=0), np.roll(x, 1, axis=1))}
    assert len(seen) == 5
    assert order_of(x).rows == order_of(np.roll(x, 700, axis=0)).rows != order_of(np.roll(x, 1, axis=1)).rows
    assert order_of(x).columns == order_of(x[:, ::-1]).columns != order_of(x[::-1]).columns


X, Y = np.random.default_rng(4).normal(size=(2, 4))


@pytest.mark.parametrize(
    ("own", "port", "found"),
    [
        ({"weight": X, "bias": Y}, {"scale": X, "bias": Y}, ("same", "")),
        ({"weight": X, "bias": Y}, {"scale": Y, "bias": X}, ("reordered", "scale has the numbers of bias")),
        ({"wq": X, "wk": Y}, {"wq": Y, "wk": X}, ("reordered", "wq has the numbers of wk")),
        ({"wq": X, "wk": Y}, {"query": X, "key": Y}, ("unseen", "")),
    ],
)
def test_a_parameter_in_the_place_of_another_is_said(own, port, found):
    given = {name: Parameter(one.shape, numbers_of(one)) for name, one in own.items()}
    recorded = {name: Parameter(one.shape, numbers_of(one), order_of(one)) for name, one in port.items()}
    kinds = ("torch.nn.LayerNorm", "flax.linen.LayerNorm")
    seen, words = in_which_order(given, own.__getitem__, recorded, kinds, "float64")
    assert (seen, words.partition(",")[0]) == found
