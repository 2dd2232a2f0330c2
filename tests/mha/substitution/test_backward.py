"""`mha.where` backward: the modules whose gradients are wrong, in five APIs, and recordings that have gradients."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import mha
from mha.substitution.reports.text import findings, last_line, tree
from mha_core import SpecError
from tests.mha.substitution.backward_ports import FAULTS, IDS, PORTS, WEIGHTS, original, state_of
from tests.mha.substitution.encoder import models, ports
from tests.mha.substitution.encoder.apis import each, skip_unless_asked
from tests.mha.substitution.encoder.training import train

WRONG = {"residual": "block", "gelu": "block", "variance": "block.norm", "embedding": "words", "bias": "block.dense"}

ENCODER = {"torch": lambda state: models.original(), **ports.PORTS}


@pytest.mark.nightly("the wrong module is named, in each framework", every=4)
@pytest.mark.parametrize("api", each(PORTS))
@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_the_module_that_is_wrong_backward_is_named_and_no_other(tmp_path, api, fault, request):
    skip_unless_asked(api, request)
    model, path = original(), tmp_path / "port.safetensors"
    port = PORTS[api](state_of(model), fault)
    train(api, port, [IDS], WEIGHTS, mha.capture(port, path, modules=True, gradients=True))
    report = mha.where(model, path)
    assert all(one.status == "equal" for one in report.results)
    wrong = tuple(one.removeprefix("model/").replace("/", ".") for one in report.wrong)
    assert wrong == ((WRONG[fault],) if fault else ())
    assert report.equal is not bool(fault)
    assert last_line(report).startswith("Wrong: " if fault else "Equal: ")
    assert sum("is wrong backward" in line for line in findings(report)) == bool(fault)
    assert all("backward" in line for line in tree(report))
    if not fault:
        assert all(one.backward.status == "equal" and one.backward.compared for one in report.results)


@pytest.mark.nightly("right ports are right, in each framework", but=("gluon",))
@pytest.mark.parametrize("api", each(ENCODER))
def test_a_right_encoder_is_equal_and_what_it_computes_is_the_same_to_the_bit(tmp_path, api, request):
    skip_unless_asked(api, request)
    model, path = models.original(), tmp_path / "port.safetensors"
    port = ENCODER[api](models.state_of(model))
    given = list(models.batch().values())
    weights = np.cos(np.arange(120, dtype=np.float32)).reshape(2, 5, 12)
    without = train(api, port, given, weights, nullcontext())
    found = train(api, port, given, weights, mha.capture(port, path, modules=True, gradients=True))
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

    port = PORTS["linen"](state_of(original()), "")
    module, variables = port.unbind()
    path = tmp_path / "port.safetensors"
    with pytest.raises(SpecError, match="that JAX traces"), mha.capture(port, path, modules=True, gradients=True):
        jax.jit(jax.grad(lambda own: module.apply(own, IDS).sum()))(variables)


def test_a_recording_without_gradients_is_judged_forward_alone(tmp_path):
    model = original()
    with mha.capture(model, tmp_path / "port.safetensors", modules=True):
        model(torch.from_numpy(IDS))
    report = mha.where(model, tmp_path / "port.safetensors")
    assert report.equal
    assert all(one.backward is None for one in report.results)
    assert not any("backward" in line for line in tree(report))
