"""What a wrong module computes between its projections is read from its recorded parts, without its weights."""

import pytest

import mha
from mha.recordings.modules.arrays import open_modules
from mha.substitution.cores import of_cores
from mha.substitution.original import Original

torch = pytest.importorskip("torch")
nn = torch.nn


class Heads(nn.Module):
    """Causal self-attention; `fault`: what it does otherwise."""

    def __init__(self, fault="", *, packed=True):
        super().__init__()
        self.num_heads, self.fault = 4, fault
        for name in ("c_attn",) if packed else ("q_proj", "k_proj", "v_proj"):
            self.add_module(name, nn.Linear(12, 36 if packed else 12))
        self.packed, self.c_proj = packed, nn.Linear(12, 12)

    def forward(self, x):
        if self.fault == "packed":
            q, k, v = self.c_attn(x).unflatten(-1, (4, 3, 3)).permute(3, 0, 2, 1, 4)
        else:
            arrays = self.c_attn(x).chunk(3, -1) if self.packed else (self.q_proj(x), self.k_proj(x), self.v_proj(x))
            q, k, v = (one.unflatten(-1, (4, 3)).transpose(1, 2) for one in arrays)
        scores = q @ k.transpose(2, 3) * (1.0 if self.fault == "scale" else 3**-0.5)
        ahead = {"off": 2, "open": x.shape[1]}.get(self.fault, 1)
        weights = scores.masked_fill(torch.ones(scores.shape[2:], dtype=torch.bool).triu(ahead), -1e30).softmax(-1)
        return self.c_proj((weights @ v).transpose(1, 2).flatten(2) * (weights.sum() if self.fault == "odd" else 1.0))


HEAD = "the original computes attention of 4 heads, causal"


def recorded(fault, packed, path):
    """The original, and what it was called with; its port with a fault is recorded in the file."""
    torch.manual_seed(0)
    original, port = (nn.Sequential(Heads(one, packed=packed)).eval() for one in ("", fault))
    port.load_state_dict(original.state_dict())
    x = torch.randn(2, 6, 12)
    with mha.capture(port, path, modules=True):
        port(x)
    return original, x.numpy()


@pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning")
@pytest.mark.parametrize(
    ("fault", "packed", "said"),
    [
        ("off", True, f"Between c_attn and c_proj {HEAD}, where c_attn gives all of q, then of k, then of v. The port"),
        ("off", True, "(causal-one-ahead"),
        ("scale", False, f"Between q_proj, k_proj, v_proj and c_proj {HEAD}. The port does not:\nCause, at the scores"),
        ("packed", True, "it takes what c_attn gives as q, k, v of head 0, then of head 1, ...: that gives all its "),
        ("open", False, "So does the port, but it is not causal: that gives all its numbers."),
        ("odd", True, ""),  # nothing explains it
        ("", True, ""),
    ],
)
def test_what_is_between_projections_is_read_from_recorded_modules(fault, packed, said, tmp_path):
    path = tmp_path / "port.safetensors"
    original, x = recorded(fault, packed, path)
    told = of_cores(Original(original, [x], "float32"), open_modules(path), {"0": "0"}).get("0", "")
    assert said in told
    assert bool(said) == bool(told)


@pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning")
def test_it_is_said_in_place_of_how_the_port_is_recorded_once_more(tmp_path):
    original, _ = recorded("off", True, tmp_path / "port.safetensors")
    told = mha.where(original, tmp_path / "port.safetensors").diagnosed["0"]
    assert told.startswith("Between c_attn and c_proj ")
    assert "record the port once more" not in told
