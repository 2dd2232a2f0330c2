"""Faults in ports whose parts are written otherwise: no right part is named, and what is not named is open."""

from __future__ import annotations

import flax.linen as nn_linen
import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn

import mha
from mha.substitution.reports.text import findings
from tests.mha.substitution.structures.linen_port import Attention, parameters_of
from tests.mha.substitution.structures.original import HEADS, HIDDEN, LONGEST, VOCABULARY, WIDTH, batch, original
from tests.mha.substitution.structures.otherwise import WAYS


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
    def forward(self, x, mask):
        q, k, v = (one(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        weights = (q @ k.mT).masked_fill(~mask, -1e9).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))

    return forward


def less(kind):
    return lambda self, x: kind.feed(self, x) - 0.5 * x


def tanh(kind):
    return lambda self, x: nn.functional.gelu(x, approximate="tanh")


def rolled(port):
    port.pos.weight.copy_(port.pos.weight.roll(1, 0))
    return "pos"


def report_of(way, changes, path):
    torch.manual_seed(5)
    given = {name: torch.tensor(array) for name, array in batch().items()}
    model = original()
    with torch.no_grad():
        port = WAYS[way](model, False)
        true = {change(port) for change in changes}
        real = given["mask"].bool()
        assert (port(**given) - model(**given))[real].abs().max() > 1e-4, "the port is wrong"
        with mha.capture(port, path, modules=True):
            port(**given)
    return mha.where(model, path, inputs=batch()), true


def holds(outer, inner):
    return outer in ("", inner) or inner.startswith(f"{outer}.")


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
def test_the_wrong_part_or_the_module_around_it_is_named_alone(way, change, wrong, tmp_path):
    report, (true,) = report_of(way, [change], tmp_path / "port.safetensors")
    assert report.wrong == (wrong,)
    assert holds(wrong, true)


def test_the_parts_of_which_one_is_wrong_are_told(tmp_path):
    report, _ = report_of("channels_mixed", [column("blocks.0.attn.k")], tmp_path / "port.safetensors")
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
def test_of_two_faults_each_is_named_or_said_to_be_open(way, first, second, tmp_path):
    report, true = report_of(way, [first, second], tmp_path / "port.safetensors")
    assert report.wrong
    assert all(any(holds(named, one) for one in true) for named in report.wrong), "no right part is named"
    status = {one.name: one.status for one in report.results}
    for one in true:
        assert any(holds(named, one) for named in report.wrong) or status[one] == "not judged"


class LinenBlock(nn_linen.Module):
    """A block whose norms, mask and folds are asked for."""

    epsilon: float = 1e-5
    inverted: bool = False

    @nn_linen.compact
    def __call__(self, x, mask):
        first, second = (nn_linen.LayerNorm(epsilon=e, name=n) for e, n in ((self.epsilon, "ln1"), (1e-5, "ln2")))
        up, down = nn_linen.Dense(HIDDEN, name="fc1"), nn_linen.Dense(WIDTH, name="fc2")
        mask = ~mask | jnp.eye(mask.shape[-1], dtype=bool) if self.inverted else mask
        x = x + Attention(name="attention")(first(x), mask)
        return x + down(jax.nn.gelu(up(second(x)), approximate=False))


class LinenPort(nn_linen.Module):
    epsilons: tuple
    inverted: tuple

    @nn_linen.compact
    def __call__(self, ids, mask):
        at = jnp.arange(ids.shape[1])
        x = nn_linen.Embed(VOCABULARY, WIDTH, name="wte")(ids) + nn_linen.Embed(LONGEST, WIDTH, name="wpe")(at)
        allowed = mask[:, None, None, :].astype(bool) & (at[:, None] >= at)
        for i, (epsilon, inverted) in enumerate(zip(self.epsilons, self.inverted, strict=True)):
            x = LinenBlock(epsilon, inverted, name=f"h_{i}")(x, allowed)
        return nn_linen.Dense(VOCABULARY, name="lm")(nn_linen.LayerNorm(epsilon=1e-5, name="ln_f")(x))


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
    ("epsilons", "inverted", "wrong"),
    [
        ((1e-5, 1e-5), (False, False), ()),
        ((1e-3, 1e-3), (False, False), ("h_0/ln1", "h_1/ln1")),
        ((1e-5, 1e-5), (False, True), ("h_1",)),
        ((1e-3, 1e-5), (False, True), ("h_0/ln1", "h_1")),
    ],
)
def test_folded_norms_in_another_framework_hide_no_fault(fold, epsilons, inverted, wrong, tmp_path):
    model, path = original(), tmp_path / "port.safetensors"
    port = LinenPort(epsilons, inverted).bind({"params": fold(parameters_of(model))})
    with mha.capture(port, path, modules=True):
        port(*map(jnp.asarray, batch().values()))
    assert mha.where(model, path, inputs=batch()).wrong == wrong
