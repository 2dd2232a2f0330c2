"""`mha.where` of parameters in another order, in fewer bits, and of those that stand in no part: it says which."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

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
    """A model with a table of positions of its own."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.times = nn.Embedding(20, EMBED), nn.Parameter(torch.randn(9, EMBED)), 1.0
        self.packed = nn.MultiheadAttention(EMBED, HEADS, batch_first=True)
        self.ln, self.attn, self.up = nn.LayerNorm(EMBED), Attention(), nn.Linear(EMBED, 30)

    def forward(self, ids):
        x = self.words(ids) + self.places[: ids.shape[1]]
        x = self.times * x + self.packed(x, x, x, need_weights=False)[0]
        return self.up(x + self.attn(self.ln(x)))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = Model().eval()
    for one in (made.ln.weight, made.packed.in_proj_bias):
        nn.init.normal_(one)
    return made


@pytest.fixture
def report_of(judged):
    """A function of a model, and what is changed in a copy of it, to the report, and how far the copy is from it."""

    def report(model, change):
        port, ids = copy.deepcopy(model), torch.arange(14).view(2, 7)
        with torch.no_grad():
            change(port)
            moved = (port(ids) - model(ids)).abs().max().item()
        return judged(model, port, ids), moved

    return report


def at(path, change):
    """What changes one parameter of a port."""
    return lambda port: port.get_parameter(path).copy_(change(port.get_parameter(path).clone()))


def by_head(port):
    for one in (port.packed.in_proj_weight, port.packed.in_proj_bias):
        one.copy_(one.clone().unflatten(0, (3, HEADS, WIDTH)).transpose(0, 1).flatten(0, 2))


def thirds(*order):
    return lambda weight: weight.unflatten(0, (3, -1))[[*order]].flatten(0, 1)


def transposed(weight):
    return weight.T


def interleaved(weight):
    return weight.unflatten(0, (HEADS, 2, 2)).transpose(1, 2).flatten(0, 2)


PACKED, QUERY, KEY = "packed.in_proj_weight", "attn.q_proj.weight", "attn.k_proj.weight"
REORDERED = {
    "packed by head": ("packed", by_head, "in_proj_weight packed by head, of 3 heads, and not by part"),
    "keys and values": (
        "packed",
        at(PACKED, thirds(0, 2, 1)),
        "in_proj_weight with its thirds as first, third, second",
    ),
    "transposed inside": ("packed", at("packed.out_proj.weight", transposed), "out_proj.weight transposed"),
    "transposed": ("attn.v_proj", at("attn.v_proj.weight", transposed), "weight transposed"),
    "its memory": (
        "up",
        at("up.weight", lambda w: w.T.reshape(30, EMBED)),
        "weight in the memory order of its transpose",
    ),
    "heads rolled": ("attn.q_proj", at(QUERY, thirds(1, 2, 0)), "weight with its thirds as second, third, first"),
    "heads exchanged": ("attn.q_proj", at(QUERY, thirds(1, 0, 2)), "weight with its thirds as second, first, third"),
    "columns": (
        "attn.k_proj",
        at(KEY, lambda w: w[:, [1, 0, *range(2, EMBED)]]),
        "weight with its columns in another order",
    ),
    "rotary rows": ("attn.k_proj", at(KEY, interleaved), "weight with the halves of each of 3 heads interleaved"),
    "norm": ("ln", at("ln.weight", lambda weight: weight.flip(0)), "weight reversed"),
    "bias": ("up", at("up.bias", lambda bias: bias.roll(2)), "bias rolled by 2"),
    "words": (
        "words",
        at("words.weight", lambda w: w[[0, 2, 1, *range(3, 20)]]),
        "weight with its rows in another order",
    ),
}


@pytest.mark.nightly("parameters in another order are said to be that", every=4)
@pytest.mark.parametrize("name", REORDERED)
def test_parameters_in_another_order_are_not_said_to_be_the_originals(model, report_of, name):
    module, change, order = REORDERED[name]
    report, moved = report_of(model, change)
    assert moved > 1e-4
    assert report.wrong == (module,)
    (one,) = (one for one in report.results if one.name == module)
    assert (one.parameters, one.order.partition(",")[0]) == ("reordered", order.partition(",")[0])
    text = "\n".join(findings(report))
    assert f"in another order: {order}" in text
    assert "so what it computes is wrong" not in text
    assert "its settings or its mask are not the original's" not in text


def test_parameters_that_are_the_originals_are_said_to_be_so(model, report_of):
    report, _ = report_of(model, lambda port: setattr(port.ln, "eps", 0.5))
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


def test_of_a_part_of_a_wrong_module_it_is_said_that_lines_may_stand_in_it(judged):
    model, port = nn.Sequential(Lines(False, 1.0)).eval(), nn.Sequential(Lines(True, 2.0)).eval()
    report = judged(model, port, torch.randn(2, 3, 5))
    assert report.wrong == ("0", "0.first")
    text = "\n".join(findings(report))
    assert "is wrong, unless what differs stands in lines of 0 in the other model." in text
    assert "so what it computes is wrong." not in text


@pytest.mark.nightly("a wrong part is named in each way to write a port", every=2)
@pytest.mark.parametrize("part", ["q_proj", "k_proj", "v_proj", "o_proj"])
def test_two_parts_that_do_not_mend_each_other_are_wrong(model, report_of, part):
    def change(port):
        getattr(port.attn, part).weight *= 1.5
        port.attn.v_proj.bias += 0.5

    report, _ = report_of(model, change)
    assert set(report.wrong) == {f"attn.{part}", "attn.v_proj"}


def times_and_query(port):
    port.times = 1.5
    port.attn.q_proj.weight.mul_(1.1)


def of_rows(weight):
    step = weight.abs().amax(1, keepdim=True) / 7
    return torch.round(weight / step) * step


def of_all(weight):
    step = weight.abs().max() / 127
    return torch.round(weight / step) * step


@pytest.mark.parametrize(
    ("change", "wrong", "words"),
    [
        (
            at("places", lambda x: x.flip(0)),
            "",
            "parameters of its own have the original's numbers in another order: places reversed",
        ),
        (at("places", lambda x: 1.1 * x), "", "parameters of its own are not the original's: places"),
        (
            at("places", lambda x: x.half().float()),
            "",
            "the original's: places has the numbers of places rounded to float16",
        ),
        (at("up.weight", of_rows), "up", "numbers of weight rounded to 4-bit integers times a scale of each row."),
        (at("up.weight", of_all), "up", "numbers of weight rounded to 8-bit integers times a scale of the matrix."),
    ],
    ids=("reversed", "scaled", "rounded", "grid of rows", "grid of the matrix"),
)
def test_what_a_parameter_holds_is_said_of_lines_and_of_parts(model, report_of, change, wrong, words):
    report, _ = report_of(model, change)
    assert report.wrong == (wrong,)
    assert words in "\n".join(findings(report))


def test_of_wrong_lines_whose_parameters_are_right_nothing_is_said_of_them(model, report_of):
    report, _ = report_of(model, times_and_query)
    assert "" in report.wrong
    assert "parameters of its own" not in "\n".join(findings(report))


def test_what_is_rounded_in_all_modules_is_wrong_in_each_and_not_made_up_for(model, report_of):
    report, _ = report_of(model, lambda port: [one.copy_(one.half().float()) for one in port.parameters()])
    assert {"", "words", "attn.q_proj", "up"} <= {*report.wrong}
    text = "\n".join(findings(report))
    assert "weight has the numbers of weight rounded to float16, bias has the numbers of bias rounded" in text
    assert "not known" not in text


def test_the_order_of_parts_of_which_one_or_more_are_wrong_is_said(model, report_of):
    report, _ = report_of(model, lambda port: [at(f"attn.{one}_proj.weight", interleaved)(port) for one in "qk"])
    assert report.wrong == ("attn",)
    text = "\n".join(findings(report))
    assert text.count("in another order: weight with the halves of each of 3 heads interleaved") == 1
    assert "Whether attn.q_proj (and 1 alike) is right is not known yet" in text


def parameters(arrays):
    return {name: Parameter(one.shape, numbers_of(one), order_of(one)) for name, one in arrays.items()}


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
    given, recorded = parameters({"weight": own}), parameters({"kernel": port})
    assert in_which_order(given, lambda name: own, recorded, kinds, "float64") == found


@pytest.mark.parametrize(("name", "as_it_stands"), [("weight", "same"), ("kernel", "unseen")])
def test_classes_of_one_framework_mean_the_same_by_a_shape_of_one_name(name, as_it_stands):
    given, kinds = parameters({"weight": SQUARE}), (TORCH, "mine.Projection")
    for port, found in ((SQUARE, as_it_stands), (SQUARE.T, "unseen"), (SQUARE[::-1], "reordered")):
        recorded = parameters({name: port})
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
    kinds = ("torch.nn.LayerNorm", "flax.linen.LayerNorm")
    seen, words = in_which_order(parameters(own), own.__getitem__, parameters(port), kinds, "float64")
    assert (seen, words.partition(",")[0]) == found
