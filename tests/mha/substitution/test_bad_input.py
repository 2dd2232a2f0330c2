"""Bad input of `mha.where`: a line for what can't be judged, the other modules judged, and never "equal" for it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mha
from mha_core import SpecError

X = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)


@dataclass(frozen=True)
class Frozen:
    hidden: Any
    more: Any = None


GIVES: dict[str, Any] = {
    "dict": (lambda y: {"h": y, 3: [None, "text"]}, lambda o, x: o["h"]),
    "dataclass": (lambda y: Frozen(y, {"k": 1}), lambda o, x: o.hidden),
    "None": (lambda y: None, lambda o, x: x),
    "generator": (lambda y: (y[i] for i in range(3)), lambda o, x: torch.stack(list(o))),
    "iterator": (lambda y: map(torch.neg, [y]), lambda o, x: next(o)),
    "sparse": (lambda y: y.to_sparse(), lambda o, x: o.to_dense()),
    "nested": (lambda y: torch.nested.as_nested_tensor([y[:2], y]), lambda o, x: o[1]),
    "empty": (lambda y: y[:0], lambda o, x: x + o.sum()),
    "NaN": (lambda y: y * float("nan"), lambda o, x: torch.where(torch.isnan(o), x, o)),
    "too deep": (lambda y: [[[[[[[[[y]]]]]]]]], lambda o, x: o[0][0][0][0][0][0][0][0][0]),
}
"""What a module gives -> how, and how the model around it goes on."""

JUDGED = ("dict", "dataclass")


class Inner(nn.Module):
    def __init__(self, gives: str):
        super().__init__()
        self.linear, self.gives = nn.Linear(6, 6), GIVES[gives][0]

    def forward(self, x):
        return self.gives(self.linear(x))


class Model(nn.Module):
    def __init__(self, gives: str, eps: float = 1e-5):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.norm, self.goes_on = Inner(gives), nn.LayerNorm(6, eps=eps), GIVES[gives][1]

    def forward(self, x):
        return self.norm(self.goes_on(self.inner(x), x))


@pytest.fixture
def where(tmp_path):
    """A function of an original and a port to the report; recording leaves what the port gives as it was."""

    def report(original, port, **options):
        x, path = torch.from_numpy(X), tmp_path / "port.safetensors"
        with torch.no_grad():
            before = port.eval()(x)
            with mha.capture(port, path, modules=True, overwrite=True):
                assert torch.equal(port(x), before)
        return mha.where(original.eval(), path, **options)

    return report


def reasons(report):
    return {one.name: one.reason for one in report.results if one.status == "not judged"}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("gives", GIVES)
def test_what_a_module_gives_changes_nothing_for_the_others(gives, where):
    report = where(Model(gives), Model(gives, eps=1e-1))
    assert report.wrong == ("norm",)
    assert tuple(reasons(report)) == (() if gives in JUDGED else ("inner",))
    said = {
        "NaN": "no finite number",
        "sparse": "layout sparse_coo",
        "generator": "builtins.generator",
        "nested": "a nested tensor",
    }
    assert said.get(gives, "") in reasons(report).get("inner", "")


class Consumer(nn.Module):
    """A module that is given a generator."""

    def __init__(self, eps: float = 1e-5):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.norm = Summing(), nn.LayerNorm(6, eps=eps)

    def forward(self, x):
        return self.norm(self.inner(x * factor for factor in (1, 2)))


class Summing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, parts):
        return self.linear(sum(parts))


def test_a_generator_that_a_module_is_given_is_not_consumed(where):
    report = where(Consumer(), Consumer(1e-1))
    assert report.wrong == ("norm",)
    assert "can't be run on it" in reasons(report)["inner"]


class Raising(nn.Module):
    """It raises in float64, where an original is judged."""

    def __init__(self, error: BaseException | None = None):
        super().__init__()
        self.linear, self.error = nn.Linear(6, 6), error

    def forward(self, x):
        if self.error is not None and x.dtype == torch.float64:
            raise self.error
        return self.linear(x)


def raising(error: BaseException | None = None, eps: float = 1e-5) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Raising(error), nn.LayerNorm(6, eps=eps)).eval()


@pytest.mark.parametrize(
    "error", [ValueError("no\nlines"), SystemExit(3), KeyError("k"), MemoryError(), StopIteration()]
)
def test_an_original_that_raises_is_a_line_for_its_module(error, where):
    report = where(raising(error), raising(eps=1e-1))
    assert report.wrong == ("1",)
    assert tuple(reasons(report)) == ("", "0")
    assert all(type(error).__name__ in one and "\n" not in one for one in reasons(report).values())
    with pytest.raises(SpecError, match="can't be run on the inputs: "):
        where(raising(error), raising(), inputs=[X.astype(np.float64)])


@pytest.mark.parametrize("place", ["original", "unused in the original", "unused in the port"])
def test_parameters_without_numbers(place, where):
    """PyTorch computes with a weight on the meta device as if there were numbers in it."""
    original, port = raising(), raising(eps=1e-1)
    if place == "original":
        original[0].linear.weight = nn.Parameter(torch.empty(6, 6, device="meta"))
    else:
        (original if "original" in place else port)[0].spare = nn.Linear(2, 2, device="meta")
    report = where(original, port)
    assert "1" not in report.judged or "1" in report.wrong  # what it is given may be anything, and not steady
    if place == "unused in the port":
        assert (report.wrong, reasons(report)) == (("1",), {})
    else:
        assert {"", "0"} <= reasons(report).keys()
        assert "has no numbers: it is on the meta device" in reasons(report)[""]


def test_models_on_the_meta_device_are_refused(where, tmp_path):
    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(6, 5), nn.GELU()).eval()
    for original in (empty, nn.Sequential(nn.LazyLinear(5))):
        with pytest.raises(SpecError, match=r"0\.weight has no numbers"):
            where(original, nn.Sequential(nn.Linear(6, 5), nn.GELU()))
    target = tmp_path / "none.safetensors"
    with pytest.raises(SpecError, match="on the meta device"), mha.capture(empty, target, modules=True):
        empty(torch.empty(2, 6, device="meta"))
    assert not target.exists()


class Often(nn.Module):
    """One module called often, and one that shares its weight."""

    def __init__(self, calls: int = 3, eps: float = 1e-5):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm, self.tied = nn.Linear(6, 6), nn.LayerNorm(6, eps=eps), nn.Linear(6, 6)
        self.tied.weight, self.alias, self.calls = self.linear.weight, self.linear, calls

    def forward(self, x):
        for turn in range(self.calls):
            x = self.norm(self.linear(x) * (turn + 1))
        return self.alias(self.tied(x))


def test_shared_modules(where):
    assert where(Often(), Often()).equal
    assert where(Often(), Often(eps=1e-1)).wrong == ("norm",)
    report = where(Often(), Often(2))
    assert not report.equal
    (norm,) = (one for one in report.results if one.name == "norm")
    assert norm.reason == "the original calls it 3 times and the port 2 times"
    assert norm.status == "equal"  # in those that both make
    assert report.wrong == ("",)
    assert "tied" in report.judged


@pytest.mark.parametrize("both", [True, False])
def test_hooks_that_change_outputs_are_part_of_the_model(both, where):
    models = [raising(), raising()]
    for model in models[0 if both else 1 :]:
        model[0].register_forward_hook(lambda module, args, output: output * 2)
    report = where(*models)
    assert (report.wrong, report.equal) == (() if both else ("0",), both)


def test_another_model_is_not_equal(where):
    another = where(raising(), nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 4)))
    assert not another.equal
    assert not another.judged


class Keeping(nn.Module):
    """A recurrent module keeps its parameters in a list of its own too; and of one part only the weight is used."""

    def __init__(self, eps: float = 1e-5):
        super().__init__()
        torch.manual_seed(0)
        self.recurrent, self.tied = nn.LSTM(6, 6, batch_first=True), nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6, eps=eps)

    def forward(self, x):
        hidden = self.recurrent(x[None])[0]
        return self.norm(nn.functional.linear(hidden, self.tied.weight) + next(self.parameters()).dtype.itemsize)


def test_parameters_are_found_wherever_a_module_keeps_them(where):
    assert where(Keeping(), Keeping()).unjudged == ()
    original = Keeping()
    before = [(name, parameter, parameter.clone()) for name, parameter in original.named_parameters()]
    assert where(original, Keeping(1e-1)).wrong == ("norm",)
    for (name, parameter, numbers), (own, now) in zip(before, original.named_parameters(), strict=True):
        assert (name, parameter is now, torch.equal(numbers, now)) == (own, True, True)


def test_a_model_that_calls_other_modules_each_time(where):
    class Turning(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.parts, self.turn = nn.ModuleList(nn.Linear(6, 6) for _ in range(4)), 0

        def forward(self, x):
            self.turn += 1
            return self.parts[self.turn % 4](x)

    report = where(Turning(), nn.Sequential(nn.Linear(6, 6)), inputs=[X])
    assert not report.equal
    assert "something else when the model runs again" in reasons(report)[""]
