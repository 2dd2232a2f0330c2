"""What the attention of a wrong module shows as a layer."""

import numpy as np
import pytest
import torch
from torch import nn

import mha
from backends.torch.layers import MultiHeadAttention
from mha.coverage import UnreadWarning
from mha.recordings.modules.diagnosed import OTHERWISE
from mha.substitution.reports.text import findings
from mha_core import SpecError


class Unscaled(MultiHeadAttention):
    """Scores are not divided by the root of the width."""

    def _project(self, call, mask):
        queries, keys, values = super()._project(call, mask)
        return queries * 3**0.5, keys, values


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers = nn.ModuleList(kind(12, 4, query_dim=12, key_dim=12, value_dim=12) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            gave = layer(x, x, x)
            x = x + (gave[0] if isinstance(gave, tuple) else gave)
        return x


class Own(nn.Module):
    """Attention of a class that nothing knows."""

    def forward(self, x):
        return torch.softmax(x @ x.mT, -1) @ x


@pytest.fixture
def original():
    torch.manual_seed(0)
    return Model(MultiHeadAttention).eval()


@pytest.fixture
def report_of(judged):
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32))
    return lambda original, port: judged(original, port.eval(), x)


@pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning")
def test_a_fault_of_a_layer_is_named_once(original, report_of):
    port = Model(Unscaled)
    port.load_state_dict(original.state_dict())
    report = report_of(original, port)
    assert report.wrong == ("layers.0", "layers.1")
    assert list(report.diagnosed) == ["layers.0"]
    told = report.diagnosed["layers.0"]
    assert told.startswith("As a layer it does not follow the definition of its own weights: output differs")
    assert "scores: Scores are not scaled." in told
    assert told.endswith("And 1 more alike: layers.1.")
    assert report.to_dict()["diagnosed"] == report.diagnosed


def test_a_layer_that_is_right_by_its_own_weights_is_held_beside_the_originals(report_of):
    def stock(width, heads, **widths):
        return nn.MultiheadAttention(width, heads, batch_first=True)

    original, port = Model(stock).eval(), Model(stock)
    port.load_state_dict(original.state_dict())
    with torch.no_grad():
        port.layers[1].in_proj_weight[:24] = port.layers[1].in_proj_weight[:24].roll(12, 0)
    report = report_of(original, port)
    assert report.diagnosed == {"layers.1": f"layers.1 {OTHERWISE}: the weights of q_proj and k_proj are exchanged."}
    told = next(findings(report))
    assert told.splitlines()[1] == f"  {report.diagnosed['layers.1']}"
    assert "whether in the order" not in told


class Parts(nn.Module):
    """Attention that forgets the causal mask, with the numbers of nn.MultiheadAttention in four linear layers."""

    def __init__(self, original):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(12, 12) for _ in range(4))
        self.num_heads = 4
        with torch.no_grad():
            for index, part in enumerate((self.q_proj, self.k_proj, self.v_proj)):
                part.weight.copy_(original.in_proj_weight.chunk(3)[index])
                part.bias.copy_(original.in_proj_bias.chunk(3)[index])
            self.out_proj.load_state_dict(original.out_proj.state_dict())

    def forward(self, x):
        heads = (part(x).unflatten(-1, (4, 3)).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))


class Causal(nn.MultiheadAttention):
    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return super().forward(x, x, x, attn_mask=mask)[0]


def test_parameters_that_have_the_originals_numbers_are_not_said_to_be_others(report_of):
    torch.manual_seed(0)
    original = nn.Sequential(Causal(12, 4, batch_first=True)).eval()
    nn.init.normal_(original[0].in_proj_bias)
    report = report_of(original, nn.Sequential(Parts(original[0])))
    (one,) = (one for one in report.results if one.name == "0")
    assert one.parameters == "unseen"
    assert "so the order of its parameters, its settings or its mask is not the original's." in report.diagnosed["0"]


@pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning")
def test_what_was_not_recorded_is_said(report_of):
    class Attention(Own):
        def forward(self, x):
            return 2 * super().forward(x)

    report = report_of(nn.Sequential(Own()).eval(), nn.Sequential(Attention()))
    assert report.wrong == ("0",)
    assert report.diagnosed["0"].startswith("Its attention was not recorded: nothing here knows its class")


def test_a_layer_that_fails_its_probe_is_recorded_beside_modules_and_said(tmp_path):
    class Doubled(nn.MultiheadAttention):
        def forward(self, query, key, value, **rest):
            return super().forward(2 * query, key, value, **rest)

    layer, x = Doubled(12, 4, batch_first=True).eval(), torch.randn(1, 3, 12)
    said = "is recorded, but: Doubled does not compute what its weights say"
    with pytest.warns(UnreadWarning, match=said), mha.capture(layer, tmp_path / "calls.safetensors", modules=True):
        layer(x, x, x)
    assert len(mha.Recording.load(tmp_path / "calls.safetensors").calls) == 1


@pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning")
def test_of_a_module_of_flax_linen_no_capture_by_projections_is_advised(judged):
    """Its projections are made in the call; capture refuses them, so `where` must not send one there."""
    linen, jnp = pytest.importorskip("flax.linen"), pytest.importorskip("jax.numpy")

    class Attention(linen.Module):
        @linen.compact
        def __call__(self, x):
            q, k, v = (linen.Dense(12, name=f"{name}_proj")(x).reshape(2, 5, 4, 3) for name in "qkv")
            weights = linen.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))  # which is not scaled
            return linen.Dense(12, name="out_proj")(jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape))

    class Block(linen.Module):
        @linen.compact
        def __call__(self, x):
            return Attention(name="attn")(x)

    original = nn.ModuleDict({"attn": Parts(nn.MultiheadAttention(12, 4))}).eval()
    original.forward = original["attn"].forward
    params = {
        name: {"kernel": jnp.asarray(part.weight.detach().numpy().T), "bias": jnp.asarray(part.bias.detach().numpy())}
        for name, part in original["attn"].named_children()
    }
    port = Block().bind({"params": {"attn": params}})
    x = np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32)
    (told,) = judged(original, port, jnp.asarray(x)).diagnosed.values()
    assert told.startswith("Nothing here knows its class. Modules of Flax linen are made in the call, and can't be")
    assert "`mha check --new mine.py --framework jax`" in told
    assert "Projections" not in told
    said = mha.Projections("q_proj", "k_proj", "v_proj", "out_proj", num_heads=4)
    words = "Attention at attn can't be read so. Modules of Flax linen are made in"
    with pytest.raises(SpecError, match=words), mha.capture(port, layers={"attn": said}):
        port(jnp.asarray(x))


def test_a_bias_that_a_port_lacks_is_named(report_of):
    torch.manual_seed(0)
    original, port = (nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12, bias=bias)) for bias in (True, False))
    port.load_state_dict({name: one for name, one in original.state_dict().items() if name != "1.bias"})
    text = next(findings(report_of(original.eval(), port)))
    assert "Its parameters are not the original's: it lacks bias, which the original has." in text
