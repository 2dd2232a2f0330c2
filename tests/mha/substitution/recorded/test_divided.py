"""Two recordings of all modules: a line inside a module in one model, and beside it in the other, is no fault."""

import pytest

import mha
from tests.mha.substitution.recorded.three_layers import said_of

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class With(nn.Linear):
    """A linear layer with something more inside."""

    def __init__(self, sizes, behind):
        super().__init__(*sizes)
        self.behind = behind

    def forward(self, x):
        return self.behind(super().forward(x))


class Block(nn.Module):
    def __init__(self, inside, outside, end, last):
        super().__init__()
        self.fc1, self.fc2, self.outside, self.end = With((8, 16), inside), With((16, 8), last), outside, end

    def forward(self, x):
        return self.end(x, self.fc2(self.outside(self.fc1(x))))


def nothing(x):
    return x


def residual(x, y):
    return x + y


def norm(x, epsilon=1e-5):
    return F.layer_norm(x, x.shape[-1:], eps=epsilon)


class Model(nn.Module):
    """Two blocks of two layers; each has functions inside its layers (`inside`, `last`), between, and at its end."""

    def __init__(self, inside, outside, end=residual, last=nothing):
        super().__init__()
        self.blocks = nn.ModuleList(Block(inside, outside, end, last) for _ in range(2))

    def forward(self, x):
        return self.blocks[1](self.blocks[0](x))


@pytest.fixture
def compared(tmp_path):
    """What records two such models with the same numbers, and compares them."""

    def compared(original, port, blocks=2):
        paths, given = [], torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
        for name, functions in (("original", original), ("port", port)):
            torch.manual_seed(0)
            model = Model(*functions).eval()
            for block in model.blocks[blocks:]:
                block.fc1.behind = nothing
            paths.append(tmp_path / f"{name}.safetensors")
            with mha.capture(model, paths[-1], modules=True, overwrite=True), torch.no_grad():
                model(given)
        return mha.where(*paths)

    return compared


@pytest.mark.parametrize("line", [torch.relu, F.gelu, norm, lambda x: 3.0 * x], ids=["relu", "gelu", "norm", "factor"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_line_inside_or_beside_a_module_is_divided_otherwise(compared, line, turned):
    sides = (nothing, line), (line, nothing)
    found = compared(*(sides[::-1] if turned else sides))
    said = said_of(found)
    assert {one.name: one.status for one in found.results} == {
        **dict.fromkeys(("", "blocks.0", "blocks.1", "blocks.0.fc2", "blocks.1.fc2"), "equal"),
        **dict.fromkeys(("blocks.0.fc1", "blocks.1.fc1"), "divided otherwise"),
    }
    assert (found.equal, found.wrong, found.first) == (True, (), None)
    assert said == (
        "Equal: 5 pairs agree, in inputs, masks, settings, weights and outputs. "
        "Divided otherwise, and right with the lines around: blocks.0.fc1, blocks.1.fc1."
    )


@pytest.mark.parametrize(
    "original",
    [(nothing, F.gelu), (lambda x: F.gelu(x, approximate="tanh"), nothing), (nothing, nothing)],
    ids=["beside", "tanh", "none"],
)
def test_another_line_is_a_fault(compared, original):
    found = compared(original, (torch.relu, nothing))
    assert not found.equal
    assert "blocks.0.fc1" in found.wrong


@pytest.mark.parametrize(
    ("last", "end"),
    [
        (lambda x: norm(x, 1e-4), lambda x, y: x + 1e-3 * y),
        (lambda x: torch.cat([norm(x[:, :1]), 2.0 * norm(x[:, 1:])], 1), lambda x, y: y[:, :1] + 0.0 * x),
    ],
    ids=["small", "one position"],
)
def test_a_fault_that_the_module_around_hides_is_no_division(compared, last, end):
    """The outputs of the block are equal, but for rounding."""
    found = compared((nothing, nothing, end, norm), (nothing, nothing, end, last))
    assert [one.status for one in found.results if one.name == "blocks.0"] == ["equal"]
    assert found.wrong[0] == "blocks.0.fc2"
    assert not found.equal


@pytest.mark.parametrize("blocks", [1, 2])
def test_what_a_wrong_module_is_followed_by_is_no_division(compared, blocks):
    """The second layer differs too, and the block drops both."""
    found = compared((torch.relu, nothing, lambda x, y: x), (nothing, nothing, lambda x, y: x), blocks)
    assert found.wrong == ("blocks.0.fc1", "blocks.1.fc1")[:blocks]
    assert not found.equal


class Between(nn.Module):
    """Two layers with a dropout between them, and an activation before or behind that."""

    def __init__(self, inside, before, behind):
        super().__init__()
        self.fc1, self.drop, self.fc2 = With((8, 16), inside), nn.Dropout(), nn.Linear(16, 8)
        self.before, self.behind = before, behind

    def forward(self, x):
        return self.fc2(self.behind(self.drop(self.before(self.fc1(x)))))


@pytest.mark.parametrize(
    ("port", "divided"),
    [((nothing, torch.relu, nothing), ("drop",)), ((torch.relu, nothing, nothing), ("fc1", "drop"))],
    ids=["line", "inside"],
)
def test_a_module_between_that_is_given_something_else_is_divided_too(tmp_path, port, divided):
    paths = [tmp_path / "original.safetensors", tmp_path / "port.safetensors"]
    for path, functions in zip(paths, ((nothing, nothing, torch.relu), port), strict=True):
        torch.manual_seed(0)
        model, x = Between(*functions).eval(), torch.randn(2, 5, 8)
        with mha.capture(model, path, modules=True), torch.no_grad():
            model(x)
    found = mha.where(*paths)
    assert tuple(one.name for one in found.results if one.status == "divided otherwise") == divided
    assert found.equal
