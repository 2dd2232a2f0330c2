"""`mha.where` backward: the modules whose gradients are wrong, and recordings that have gradients, in five APIs."""

from collections import OrderedDict
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import mha
from mha.substitution.reports.text import findings, last_line, tree
from mha_core import SpecError
from tests.mha.substitution.encoder import models, ports
from tests.mha.substitution.encoder.apis import each, skip_unless_asked
from tests.mha.substitution.encoder.training import train

WORDS, WIDTH = 7, 6
IDS = torch.tensor([[1, 2, 3, 3], [0, 6, 5, 4]])
FAULTS = {"residual": "block", "gelu": "block", "variance": "block.norm", "embedding": "words", "bias": "block.dense"}
"""A residual that is detached; a GELU straight through; a norm's variance without gradient; an embedding's gradient
halved; a bias detached: and the module that is wrong backward."""

ENCODER = {"torch": lambda state: models.original(), **ports.PORTS}
WEIGHTS = np.cos(np.arange(120, dtype=np.float32)).reshape(2, 5, 12)
"""The loss is the sum of these times what the encoder gives."""


class Words(nn.Embedding):
    fault = ""

    def forward(self, ids):
        found = super().forward(ids)
        return found.detach() + 0.5 * (found - found.detach()) if self.fault == "embedding" else found


class Norm(nn.LayerNorm):
    fault = ""

    def forward(self, x):
        variance = x.var(-1, keepdim=True, unbiased=False)
        variance = variance.detach() if self.fault == "variance" else variance
        return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(variance + self.eps) * self.weight + self.bias


class Dense(nn.Linear):
    fault = ""

    def forward(self, x):
        return x @ self.weight.T + (self.bias.detach() if self.fault == "bias" else self.bias)


class Block(nn.Module):
    fault = ""

    def __init__(self):
        super().__init__()
        self.dense, self.norm = Dense(WIDTH, WIDTH), Norm(WIDTH)

    def forward(self, x):
        inner = self.dense(x)
        given = nn.functional.gelu(inner)
        given = inner + (given - inner).detach() if self.fault == "gelu" else given
        return self.norm(given + (x.detach() if self.fault == "residual" else x))


def model_of(fault=""):
    """Words and a block, of which one has this fault."""
    torch.manual_seed(0)
    made = nn.Sequential(OrderedDict(words=Words(WORDS, WIDTH), block=Block())).eval()
    for one in made.modules():
        one.fault = fault
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_the_module_that_is_wrong_backward_is_named_and_no_other(tmp_path, fault):
    model, port, path = model_of(), model_of(fault), tmp_path / "port.safetensors"
    weights = np.cos(np.arange(2 * 4 * WIDTH, dtype=np.float32)).reshape(2, 4, WIDTH)
    train("torch", port, [IDS.numpy()], weights, mha.capture(port, path, modules=True, gradients=True))
    report = mha.where(model, path)
    assert all(one.status == "equal" for one in report.results)
    assert report.wrong == ((FAULTS[fault],) if fault else ())
    assert report.equal is not bool(fault)
    assert last_line(report).startswith("Wrong: " if fault else "Equal: ")
    assert sum("is wrong backward" in line for line in findings(report)) == bool(fault)
    assert all("backward" in line for line in tree(report))
    if not fault:
        assert all(one.backward.status == "equal" and one.backward.compared for one in report.results)


@pytest.mark.nightly("the wrong module is named, in each framework", but=("keras", "linen", "nnx"))
@pytest.mark.parametrize("api", each(ports.PORTS))
def test_a_gradient_that_is_stopped_in_any_framework_is_named(tmp_path, api, request):
    skip_unless_asked(api, request)
    model, path = models.original(), tmp_path / "port.safetensors"
    port = ENCODER[api](models.state_of(model), "detached")
    given = list(models.batch().values())
    train(api, port, given, WEIGHTS, mha.capture(port, path, modules=True, gradients=True))
    report = mha.where(model, path, inputs=models.batch())
    assert report.wrong == (models.FAULTS["residual"][api],)
    assert all(one.status != "wrong" for one in report.results)


@pytest.mark.nightly("right ports are right, in each framework", but=("gluon",))
@pytest.mark.parametrize("api", each(ENCODER))
def test_a_right_encoder_is_equal_and_what_it_computes_is_the_same_to_the_bit(tmp_path, api, request):
    skip_unless_asked(api, request)
    model, path = models.original(), tmp_path / "port.safetensors"
    port = ENCODER[api](models.state_of(model))
    given = list(models.batch().values())
    without = train(api, port, given, WEIGHTS, nullcontext())
    found = train(api, port, given, WEIGHTS, mha.capture(port, path, modules=True, gradients=True))
    np.testing.assert_array_equal(found[0], without[0])
    assert len(found[1]) == len(without[1]) > 20
    for one, other in zip(found[1], without[1], strict=True):
        np.testing.assert_array_equal(one, other)
    report = mha.where(model, path, inputs=models.batch())
    assert report.equal
    judged = [one for one in report.results if one.status != "not judged"]
    assert all(one.backward.status == "equal" and one.backward.ratio < 4 for one in judged)
    assert sum(one.backward.compared for one in report.results) > 80


class Twice(nn.Module):
    """One module that is called twice, and a parameter that is used beside it."""

    def __init__(self, detached=False):
        super().__init__()
        self.inner, self.detached = nn.Linear(5, 5), detached

    def forward(self, x):
        first = self.inner(x)
        return self.inner(torch.tanh(first.detach() if self.detached else first)) * self.inner.bias


def twice(path, **options):
    torch.manual_seed(0)
    model, port = Twice().eval(), Twice(**options).eval()
    port.load_state_dict(model.state_dict())
    with mha.capture(port, path, modules=True, gradients=True):
        port(torch.randn(3, 5)).square().sum().backward()
    return mha.where(model, path)


def test_each_call_of_a_module_has_gradients_of_its_own(tmp_path):
    right = twice(tmp_path / "right.safetensors")
    assert right.equal
    assert {one.name: one.backward.compared for one in right.results}["inner"] == 6
    wrong = twice(tmp_path / "wrong.safetensors", detached=True)
    assert wrong.wrong == ("",)
    (inner,) = (one for one in wrong.results if one.name == "inner")
    assert inner.backward.status == "equal"
    assert inner.backward.reason == "no gradient came back to it"


def test_a_frozen_parameter_is_wrong_unless_it_is_the_originals_too(tmp_path):
    for frozen in (False, True):
        torch.manual_seed(0)
        model, port = nn.Sequential(nn.Linear(5, 4), nn.Tanh()).eval(), nn.Sequential(nn.Linear(5, 4), nn.Tanh()).eval()
        port.load_state_dict(model.state_dict())
        port[0].bias.requires_grad_(False)
        model[0].bias.requires_grad_(not frozen)
        path = tmp_path / f"{frozen}.safetensors"
        with mha.capture(port, path, modules=True, gradients=True):
            port(torch.randn(3, 5)).square().sum().backward()
        report = mha.where(model, path)
        assert report.wrong == (() if frozen else ("0",))
        if not frozen:
            assert report.results[1].backward.place == "the gradient of bias (frozen in the port)"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("forward", "no gradient came back"),
        ("no_grad", "no gradient came back"),
        ("outside", "no gradient came back"),
        ("twice", "ran twice"),
    ],
)
def test_a_recording_needs_one_backward_pass(tmp_path, how, message):
    port, x, path = nn.Sequential(nn.Linear(5, 4)).eval(), torch.randn(3, 5), tmp_path / "port.safetensors"

    def record():
        with mha.capture(port, path, modules=True, gradients=True), torch.set_grad_enabled(how != "no_grad"):
            loss = port(x).square().sum()
            if how == "twice":
                loss.backward(retain_graph=True)
                loss.backward()
        loss.backward()

    with pytest.raises(SpecError, match=message):
        record()
    assert not path.exists()


def test_gradients_are_those_of_modules(tmp_path):
    with (
        pytest.raises(SpecError, match="say modules=True too"),
        mha.capture(nn.Linear(2, 2), tmp_path / "port.safetensors", gradients=True),
    ):
        pass


def test_a_compiled_backward_pass_is_refused(tmp_path, request):
    skip_unless_asked("linen", request)
    import jax

    port = ENCODER["linen"](models.state_of(models.original()))
    (module, variables), given = port.unbind(), models.batch().values()
    path = tmp_path / "port.safetensors"
    with pytest.raises(SpecError, match="that JAX traces"), mha.capture(port, path, modules=True, gradients=True):
        jax.jit(jax.grad(lambda own: module.apply(own, *given).sum()))(variables)


def test_a_recording_without_gradients_is_judged_forward_alone(judged):
    model = model_of()
    report = judged(model, model, IDS)
    assert report.equal
    assert all(one.backward is None for one in report.results)
    assert not any("backward" in line for line in tree(report))
