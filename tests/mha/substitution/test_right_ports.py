"""Right ports that are written otherwise: `mha.where` calls none of their modules wrong."""

import copy

import jax.numpy as jnp
import pytest
import torch
from torch import nn

import mha
from tests.mha.substitution.structures.linen_port import Port, parameters_of
from tests.mha.substitution.structures.original import HEADS, WIDTH, batch, original


def folded_norm(block):
    """The scale and the shift of a norm stand in the projections behind it."""
    with torch.no_grad():
        for one in (block.attn.q, block.attn.k, block.attn.v):
            one.bias += one.weight @ block.n1.bias
            one.weight *= block.n1.weight
        block.n1.weight.fill_(1.0)
        block.n1.bias.zero_()


def heads_permuted(block):
    order = torch.arange(WIDTH).view(HEADS, -1)[[2, 0, 1]].flatten()
    with torch.no_grad():
        for one in (block.attn.q, block.attn.k, block.attn.v):
            one.weight.copy_(one.weight[order].clone())
            one.bias.copy_(one.bias[order].clone())
        block.attn.o.weight.copy_(block.attn.o.weight[:, order].clone())


def value_bias_folded(block):
    with torch.no_grad():
        block.attn.o.bias += block.attn.o.weight @ block.attn.v.bias
        block.attn.v.bias.zero_()


def scale_moved(block):
    with torch.no_grad():
        for one, factor in ((block.attn.q, 2.0), (block.attn.k, 0.5)):
            one.weight *= factor
            one.bias *= factor


def hidden_permuted(block):
    order = torch.arange(20).flip(0)
    with torch.no_grad():
        block.up.weight.copy_(block.up.weight[order].clone())
        block.up.bias.copy_(block.up.bias[order].clone())
        block.down.weight.copy_(block.down.weight[:, order].clone())


class Fused(nn.Module):
    """Attention with one projection of queries, keys and values, and the norm before it inside."""

    def __init__(self, block):
        super().__init__()
        self.norm, self.qkv, self.out = block.n1, nn.Linear(WIDTH, 3 * WIDTH), block.attn.o
        with torch.no_grad():
            parts = block.attn.q, block.attn.k, block.attn.v
            self.qkv.weight.copy_(torch.cat([one.weight for one in parts]))
            self.qkv.bias.copy_(torch.cat([one.bias for one in parts]))

    def forward(self, x, mask):
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, dim=-1))
        scores = (q @ k.mT / (WIDTH / HEADS) ** 0.5).masked_fill(~mask, -1e9)
        return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Feed(nn.Module):
    """The activation in the module of the first projection, and the residual beside."""

    def __init__(self, block):
        super().__init__()
        self.inner, self.outer = nn.Sequential(block.up, nn.GELU()), block.down

    def forward(self, x):
        return self.outer(self.inner(x))


class Rebuilt(nn.Module):
    """A block of other parts: fused attention with its norm and residual inside, and a module for the rest."""

    def __init__(self, block):
        super().__init__()
        self.mix, self.second, self.mlp = Fused(block), block.n2, Feed(block)

    def forward(self, x, mask):
        x = self.mix(x, mask)
        return x + self.mlp(self.second(x))


FOLDS = (folded_norm, heads_permuted, value_bias_folded, scale_moved, hidden_permuted)


def report_of(model, port, path):
    given = {name: torch.tensor(array) for name, array in batch().items()}
    with torch.no_grad():
        real = given["mask"].bool()
        assert (port(**given) - model(**given))[real].abs().max() < 1e-4, "the port is right"
        with mha.capture(port, path, modules=True):
            port(**given)
    return mha.where(model, path)


@pytest.mark.nightly("right ports are right, in each way to write one", every=7)
@pytest.mark.parametrize("change", [*FOLDS, FOLDS])
@pytest.mark.parametrize("first", [True, False])
def test_folds_and_orders_are_right(tmp_path, change, first):
    model = original()
    port = copy.deepcopy(model)
    for one in change if isinstance(change, tuple) else (change,):
        one(port.blocks[0 if first else 1])
    report = report_of(model, port, tmp_path / "port.safetensors")
    assert report.wrong == ()
    assert report.equal


@pytest.mark.nightly("right ports are right, in each way to write one", every=3)
@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("wrong", [False, True])
def test_blocks_of_other_parts_are_right_and_what_is_wrong_in_them_is_found(tmp_path, which, wrong):
    model = original()
    port = copy.deepcopy(model)
    for one in which:
        port.blocks[one] = Rebuilt(port.blocks[one]).eval()
    if not wrong:
        report = report_of(model, port, tmp_path / "port.safetensors")
        assert report.wrong == ()
        assert report.equal
        return
    with torch.no_grad():
        port.blocks[which[-1]].mlp.outer.bias[0] += 0.1  # of all channels, a norm would take it out
    with mha.capture(port, tmp_path / "port.safetensors", modules=True):
        port(**{name: torch.tensor(array) for name, array in batch().items()})
    report = mha.where(model, tmp_path / "port.safetensors")
    assert report.wrong == (f"blocks.{which[-1]}.mlp.outer",)


@pytest.mark.nightly("right ports are right, in each way to write one", every=6)
@pytest.mark.parametrize("pre", [True, False])
@pytest.mark.parametrize("change", ["value bias", "heads", "none"])
def test_folds_in_a_port_to_another_framework_are_right(tmp_path, pre, change):
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
    with mha.capture(port := Port(pre=pre).bind({"params": params}), tmp_path / "port.safetensors", modules=True):
        port(*map(jnp.asarray, batch().values()))
    report = mha.where(model, tmp_path / "port.safetensors", inputs=batch())
    assert report.wrong == ()
    assert report.equal
