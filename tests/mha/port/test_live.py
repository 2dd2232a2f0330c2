"""`mha port MODULE:NAME`: a live model of PyTorch, with arrays."""

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("transformers")

from conformance.judging.compare import Mismatch
from mha.cli.main import main
from mha.recipes.judge import Judgement
from mha.recordings.at_seam import prove

pytestmark = pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there

CODE = """
import numpy as np
import torch


class Attention(torch.nn.Module):
    def __init__(self, seen=True):
        super().__init__()
        self.one, self.last, self.seen = torch.nn.Linear(12, 36), torch.nn.Linear(12, 12), seen

    def forward(self, x):
        q, k, v = self.one(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        attend = torch.nn.functional.scaled_dot_product_attention
        heads = attend(q, k, v) if self.seen else (q @ k.mT / 2.0).softmax(-1) @ v
        return self.last(heads.transpose(1, 2).flatten(2))


def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(Attention(), Attention()), {"input": np.cos(np.arange(120.0)).reshape(2, 5, 12)}


def unseen():
    return torch.nn.Sequential(Attention(seen=False))
"""


@pytest.fixture
def port(tmp_path, monkeypatch):
    """Runs the command in a folder with such models and arrays."""
    (tmp_path / "live_mine.py").write_text(CODE)
    np.savez(tmp_path / "x.npz", input=np.ones((2, 5, 12), np.float32))
    np.savez(tmp_path / "other.npz", hidden=np.ones((2, 5, 12), np.float32))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda *words: CliRunner().invoke(main, ["port", *words, "--backend", "torch", "--no-unseen"])


def test_a_live_model_is_ported_with_its_own_inputs_and_others(port):
    for more, dtype in (((), "float64"), (("--inputs", "x.npz"), "float32")):
        ended = port("live_mine:make", "--dtype", dtype, *more)
        assert ended.exit_code == 0, ended.output
        assert f"live_mine:make: 2 attention layers of 3 heads, arrays, {dtype}\nread 2 of 2 modules" in ended.stdout
        assert "Not judged: projections, norms and rotations, which stay the model's own" in ended.stdout
        assert "Equal: the model's own attention, 2 ported calls, and the outputs through torch." in ended.stdout


def test_the_wider_bound_of_a_fused_kernel_is_computed_only_of_calls_that_need_it(port, monkeypatch):
    monkeypatch.setattr("mha.port.port.prove", lambda *_, **__: pytest.fail("it computed a second bound"))
    assert port("live_mine:make", "--inputs", "x.npz").exit_code == 0
    asked = []
    monkeypatch.setattr("mha.port.port.prove", lambda *given, **more: asked.append(prove(*given, **more)) or asked[-1])
    monkeypatch.setattr("mha.port.port.judge_original", lambda *_: Judgement({}, 0.0, (Mismatch("output", ""),)))
    assert port("live_mine:make", "--inputs", "x.npz").exit_code == 0
    assert [one.equal for one in asked] == [True, True]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["live_mine:unseen", "--inputs", "x.npz"], "its attention (Attention) has a softmax of its own, or its"),
        (["live_mine:unseen"], "live_mine:unseen takes arrays, by the names of its arguments: np.savez("),
        (["live_mine:make", "--inputs", "other.npz"], "Sequential takes no 'hidden' (it takes: input)"),
        (["live_mine:made"], "live_mine has no 'made'"),
    ],
)
def test_what_can_not_be_ported_is_refused(port, words, message):
    ended = port(*words)
    assert ended.exit_code == 2, ended.output
    assert message in ended.output
    assert "Traceback" not in ended.output
