"""What a layer does behind its output projection, up to which it is recorded, is compared or said not to be judged."""

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import mha
from mha.cli.main import main
from mha.recordings.recording import Recording
from tests.mha.substitution.recorded.three_layers import said_of

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning")


class Attention(nn.Module):  # type: ignore[misc,name-defined]
    """A layer of projections, with something behind them."""

    def __init__(self, behind):
        super().__init__()
        self.num_heads, self.behind = 2, behind
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (2, 3)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.behind(self.out_proj(y.transpose(1, 2).flatten(2)), x)


BEHIND = {
    "nothing": lambda y, x: y,
    "residual": lambda y, x: y + x,
    "minus": lambda y, x: y - x,
    "length first": lambda y, x: y.transpose(0, 1),
    "flat": lambda y, x: y.flatten(0, 1),
    "named": lambda y, x: {"weights": torch.ones(2, 2, 5, 5), "hidden": y},
    "nothing known": lambda y, x: {"attention": object()},
}
GIVEN = torch.from_numpy(np.random.default_rng(3).normal(size=(2, 5, 6))).float()


def made(*behind):
    torch.manual_seed(1)
    return nn.Sequential(*(Attention(BEHIND[one]) for one in behind)).eval()


def recorded(model, tmp_path=None):
    with mha.capture(model) as seen:
        model(GIVEN)
    if tmp_path is None:
        return seen.recording
    seen.recording.save(tmp_path / "one.safetensors", overwrite=True)
    return Recording.load(tmp_path / "one.safetensors")


def said(original, port, **changed):
    found = mha.where(*(replace(recorded(made(one)[0]), **changed) for one in (original, port)))
    return found, said_of(found)


@pytest.mark.parametrize(
    ("original", "port"), [("nothing", "residual"), ("residual", "nothing"), ("residual", "minus")]
)
def test_another_residual_is_a_difference(original, port):
    found, text = said(original, port)
    assert not found.equal
    assert "layer (" in text
    assert "differs in outputs: behind its output projection (such as a residual" in text
    alone = {"nothing": "port", "residual": "original"}[original]
    assert (f"where the {alone}'s layer alone does something" in text) == ("nothing" in (original, port))
    assert text.endswith("Wrong: layer is the first of 2 pairs to differ, in outputs.")


@pytest.mark.parametrize(
    ("original", "port"),
    [
        ("residual", "residual"),
        ("nothing", "length first"),
        ("nothing", "flat"),
        ("nothing", "named"),
        ("named", "named"),
        ("length first", "nothing"),
    ],
)
def test_what_is_the_same_behind_the_projection_is_equal(original, port):
    found, text = said(original, port)
    assert found.equal
    assert text.endswith("Equal: 2 pairs agree, in inputs, masks, settings, weights and outputs.")


def test_what_can_not_be_compared_is_said_and_is_no_equality_where_one_layer_alone_has_it():
    found, text = said("nothing", "nothing known")
    assert not found.equal
    assert text.endswith("Open: 1 pair agree, and what layer does behind its output projection has no partner.")
    found, text = said("nothing known", "nothing known")
    assert found.equal
    line = "Not judged: what layer does behind its output projection, where both do something."
    assert text.endswith(f"Equal: 1 pair agree, in inputs, masks, settings, weights and outputs of projections. {line}")


def test_of_an_older_file_nobody_knows_what_its_layers_do_behind():
    layers = [recorded(made(one)[0]) for one in ("nothing", "residual")]
    found = mha.where(replace(layers[0], behind=None), layers[1])
    assert not found.equal
    assert not found.wrong
    assert mha.where(*[replace(layers[0], behind=None)] * 2).equal


def test_later_layers_are_given_something_else_by_it(tmp_path):
    original, port = recorded(made("nothing", "nothing"), tmp_path), recorded(made("residual", "nothing"), tmp_path)
    assert port.behind == ("0",)
    assert original.behind == ()
    found = mha.where(original, port)
    assert found.wrong == ("0",)
    assert [one.status for one in found.results] == ["equal", "wrong", "caused upstream", "caused upstream"]


def test_replay_and_diagnose_say_that_it_is_not_judged(tmp_path):
    file, own = str(tmp_path / "port.safetensors"), str(tmp_path / "original.safetensors")
    recorded(made("residual")[0]).save(file)
    recorded(made("nothing")[0]).save(own)
    line = "Not judged: what the layer does behind the output projection (such as a residual or a norm)"
    for command in (["replay", file, "--backend", "torch"], ["diagnose", file, "--no-unseen"]):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0
        assert line in result.output.replace("\n", " ")
    result = CliRunner().invoke(main, ["diagnose", file, "--weights", own])
    assert result.exit_code == 1
    assert "the port's layer alone does something" in " ".join(result.output.split())
    assert line not in CliRunner().invoke(main, ["replay", own, "--backend", "torch"]).output
