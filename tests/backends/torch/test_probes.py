"""Each probe sees what it says on the installed PyTorch, and nothing in a layer that follows the definition."""

import inspect

import pytest
import torch
from torch import nn

from backends.torch import from_weights
from mha_core import AttentionConfig, init_weights
from tests.backends.torch import probes

pytestmark = pytest.mark.same_on_newest  # PyTorch's release is the same there

PROBES = sorted(
    name
    for name, found in vars(probes).items()
    if inspect.isfunction(found) and found.__module__ == probes.__name__ and not name.startswith("_")
)


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_sees_what_happens_and_leaves_no_trace(name):
    state = torch.get_rng_state()
    seen = getattr(probes, name)()
    assert isinstance(seen, str)
    assert any(character.isdigit() for character in seen) or name == "mha_nan_in_padding" or "raises" in seen
    assert seen == getattr(probes, name)()
    assert torch.equal(torch.get_rng_state(), state)


class Conforming:
    """What nn.MultiheadAttention would be if it followed the definition: ours, called as that one is."""

    batch_first = True

    def __init__(self, embed_dim=8, num_heads=2, dropout=0.0, bias=False, **options):
        config = AttentionConfig(embed_dim, num_heads, bias=bias, dropout=dropout)
        weights = init_weights(config, seed=0, bias_scale=1.0)
        self.layer = from_weights(config, weights, dtype=torch.float32).eval()
        self.out_proj = self.layer.out_proj
        self.in_proj_weight = self.q_proj_weight = self.layer.q_proj.weight

    def eval(self):
        return self

    train = eval

    def __call__(
        self, queries, keys, values, key_padding_mask=None, need_weights=True, attn_mask=None, is_causal=False, **_
    ):
        allowed = torch.ones((), dtype=torch.bool)
        if key_padding_mask is not None:
            allowed = allowed & ~key_padding_mask.bool()[:, None, None]
        if attn_mask is not None:
            allowed = allowed & (attn_mask if attn_mask.any() else ~attn_mask)
        return self.layer(queries, keys, values, allowed=allowed, causal=is_causal, return_weights=True)


@pytest.mark.parametrize("name", [name for name in PROBES if name.startswith("mha_") and "hint" not in name])
def test_a_probe_of_a_layer_that_follows_the_definition_sees_nothing(name, monkeypatch):
    monkeypatch.setattr(probes, "_layer", Conforming)
    monkeypatch.setattr(probes, "_fresh", lambda embed_dim, **sizes: Conforming(embed_dim, 8))
    assert getattr(probes, name)() is None


def test_the_probe_of_the_hint_sees_nothing_where_it_is_ignored(monkeypatch):
    class Deaf(Conforming):
        def __call__(self, *args, is_causal=False, **options):
            return super().__call__(*args, **options)

    monkeypatch.setattr(probes, "_layer", Deaf)
    assert probes.mha_causal_hint_replaces_mask() is None


def test_probes_of_d2l_see_nothing_in_a_softmax_that_excludes(monkeypatch):
    def excluding(scores, valid_lens):
        padded = torch.arange(scores.shape[-1]) >= valid_lens[:, None, None]
        return torch.softmax(scores.masked_fill(padded, -torch.inf), dim=-1).nan_to_num(0.0)

    monkeypatch.setattr(probes, "masked_softmax", excluding)
    for name in PROBES:
        assert not name.startswith("d2l_") or getattr(probes, name)() is None


def test_probes_of_the_operator_see_nothing_where_it_does_as_documented(monkeypatch):
    original = nn.functional.scaled_dot_product_attention

    def strict(queries, keys, values, attn_mask=None, dropout_p=0.0, is_causal=False):
        if attn_mask is not None and is_causal:
            raise RuntimeError("both")
        return original(queries, keys, values, attn_mask, is_causal=is_causal)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", strict)
    assert probes.sdpa_mask_beside_causal() is None
    assert probes.sdpa_dropout_in_evaluation() is None
    monkeypatch.setattr(probes, "causal_lower_right", lambda query_len, key_len: None)
    assert probes.sdpa_lower_right_warns_of_nan() is None
