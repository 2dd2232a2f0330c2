"""PyTorch's own layers: their weights to the bit both ways, and how a mask is told to them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from backends.torch import from_weights
from backends.torch.native import live_probe
from backends.torch.native.convert import from_native, to_native
from backends.torch.native.d2l import D2lMultiHeadAttention
from backends.torch.native.subjects import ignored_keys, only_causal
from conformance.cases.parts import every_source
from conformance.cases.table import select
from mha_core import AttentionConfig, AttentionMask, SpecError, init_weights
from mha_core.call.arguments import CallSizes
from mha_core.call.masks import allowed_keys

pytestmark = pytest.mark.same_on_newest  # PyTorch's release is the same there

# Weights --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sizes", [{}, {"kdim": 5}, {"kdim": 5, "vdim": 7}])
def test_a_live_layer_comes_back_to_the_bit(sizes, bias):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(6, 3, bias=bias, dropout=0.25, batch_first=True, **sizes)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)  # biases are 0 in a new layer
    config, weights = from_native(layer)
    again = to_native(config, weights)
    assert again.state_dict().keys() == layer.state_dict().keys()
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in layer.state_dict().items())
    assert (again.kdim, again.vdim, again.dropout, again.batch_first) == (layer.kdim, layer.vdim, 0.25, True)
    x = torch.randn(2, 4, 6), torch.randn(2, 5, layer.kdim), torch.randn(2, 5, layer.vdim)
    ours = from_weights(config, weights).eval()
    torch.testing.assert_close(ours(*x), layer.eval()(*x)[0])


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.MultiheadAttention(6, 2, add_bias_kv=True), "bias_k (add_bias_kv=True)"),
        (nn.MultiheadAttention(6, 2, add_zero_attn=True), "add_zero_attn=True"),
        (nn.Linear(6, 6), "Linear is no layer that can be read here"),
        (D2lMultiHeadAttention(6, 2, 0.0), "W_q.weight has no size yet: call the layer once"),
    ],
)
def test_what_can_not_be_read_is_refused(layer, message):
    with pytest.raises(SpecError) as error:
        from_native(layer)
    assert message in str(error.value)


# Live layers that compute something else ------------------------------------------------------------------


class Doubled(nn.MultiheadAttention):
    """A forward of its own, under weights that say nothing of it."""

    def forward(self, *args, **kwargs):
        output, weights = super().forward(*args, **kwargs)
        return 2.0 * output, weights


class LoraLinear(nn.Linear):
    """As loralib has it: the weight is still `weight`, and what is trained is added in the forward."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.merged = False

    def train(self, mode=True):
        if not mode and not self.merged:
            self.weight.data += self.delta()
            self.merged = True
        return super().train(mode)

    def delta(self):
        return 0.05 * torch.outer(torch.arange(1.0, 7.0), torch.linspace(-1.0, 1.0, self.weight.shape[1])).to(
            self.weight
        )

    def forward(self, x):
        return super().forward(x) if self.merged else super().forward(x) + x @ self.delta().T


def with_class(layer):
    layer.__class__ = Doubled


def with_hook(layer):
    layer.register_forward_hook(lambda module, args, output: (output[0] * 1.001, output[1]))


def with_pre_hook(layer):
    layer.register_forward_pre_hook(lambda module, args: (args[0], args[1] * 0.5, *args[2:]))


def with_patched_forward(layer):
    own = layer.forward
    layer.forward = lambda *args, attn_mask=None, key_padding_mask=None, is_causal=False, **told: own(*args, **told)


def with_other_weights(layer):
    """Normalised per head, as no weight says."""
    own = layer.forward
    layer.forward = lambda query, *args, **told: own(query / query.norm(dim=-1, keepdim=True), *args, **told)


def with_failure(layer):
    layer.forward = lambda query: query


@pytest.mark.parametrize(
    ("trick", "said"),
    [
        (
            with_class,
            "Doubled does not compute what its weights say: in a probe of 2 x 5 queries and 7 keys, no mask, out",
        ),
        (with_hook, "allowed (60 of 60 elements differ). probe=False hands its weights out all the same"),
        (with_pre_hook, "no mask, weights["),
        (with_patched_forward, "in a probe of 2 x 17 queries and 64 keys, valid_lens, weights["),
        (with_other_weights, "no mask, weights["),
        (with_failure, "no mask ended with TypeError: with_failure.<locals>.<lambda>() "),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_live_layer_that_computes_something_else_is_refused(trick, said, dtype):
    if trick is with_hook and "16" in dtype:
        return  # a thousandth is less than such numbers have digits
    config = AttentionConfig(6, 2, bias=True)
    weights = init_weights(config, seed=1, bias_scale=1.0)
    layer = to_native(config, weights, dtype=getattr(torch, dtype))
    from_native(layer)
    trick(layer)
    with pytest.raises(SpecError) as error:
        from_native(layer)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert from_native(layer, probe=False)[0] == config


def test_a_table_that_ends_is_said_with_the_call_that_it_ends():
    class Ending(nn.MultiheadAttention):
        def forward(self, query, *args, **told):
            return super().forward(query + torch.zeros(128, 12)[torch.arange(query.shape[1])], *args, **told)

    with pytest.raises(SpecError, match=r"a probe of 1 x 300 queries and 277 keys, causal ended with IndexError"):
        from_native(Ending(12, 3, batch_first=True))


def test_an_adapter_that_is_added_at_run_time_is_refused_until_it_is_merged():
    """A probe must not merge it either: it does not call train()."""
    config = AttentionConfig(6, 2)
    layer = to_native(config, init_weights(config, seed=1), "d2l-torch").train()
    from_native(layer)
    lora = LoraLinear(6, 6, bias=False, dtype=torch.float64)
    lora.weight.data.copy_(layer.W_v.weight)
    layer.W_v = lora
    with pytest.raises(SpecError, match="D2lMultiHeadAttention does not compute what its weights say: .* output"):
        from_native(layer)
    assert layer.training
    assert not lora.merged
    before = lora.weight.detach().clone()
    _, weights = from_native(layer.eval())
    np.testing.assert_array_equal(weights["v_proj.weight"], (before + lora.delta()).numpy())


def test_a_weight_that_is_made_of_others_is_refused():
    layer = nn.MultiheadAttention(6, 2, kdim=5)
    nn.utils.parametrize.register_parametrization(layer, "q_proj_weight", nn.Tanh())
    with pytest.raises(SpecError, match="q_proj_weight"):
        from_native(layer)
    seed = to_native(AttentionConfig(6, 2), init_weights(AttentionConfig(6, 2), seed=1), "d2l-torch")
    nn.utils.parametrizations.weight_norm(seed.W_q)
    with pytest.raises(SpecError, match="W_q"):
        from_native(seed)


def test_a_layer_that_can_not_be_run_is_refused_with_the_switch():
    with pytest.raises(SpecError, match="on the meta device, where arrays have no numbers. probe=False hands"):
        live_probe.check_runs(nn.MultiheadAttention(6, 2, device="meta"))
    mixed = nn.MultiheadAttention(6, 2)
    mixed.out_proj.double()
    with pytest.raises(SpecError, match="have not one dtype but float32, float64. probe=False hands"):
        from_native(mixed, probe=True)


@pytest.mark.parametrize("mode", [True, False])
def test_a_probe_leaves_everything_as_it_was(mode):
    config = AttentionConfig(6, 2, dropout=0.5)
    layer = to_native(config, init_weights(config, seed=1), "d2l-torch").train(mode)
    layer.attention.eval()
    layer.register_buffer("calls", torch.zeros(3), persistent=False)
    layer.register_forward_hook(lambda module, args, output: (module.calls.add_(torch.rand(())), None)[1])
    layer.attention.attention_weights = kept = torch.ones(2)
    modes = [module.training for module in layer.modules()]
    of_torch, of_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()
    from_native(layer)
    assert [module.training for module in layer.modules()] == modes
    assert layer.attention.attention_weights is kept
    assert not layer.calls.any()
    assert torch.equal(torch.get_rng_state(), of_torch)
    assert (np.random.get_state()[1] == of_numpy).all()
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None and parameter.requires_grad for parameter in layer.parameters())


def test_a_probe_is_in_the_dtype_of_the_layer_also_within_autocast():
    layer = nn.MultiheadAttention(6, 2)
    with torch.autocast("cpu"):
        from_native(layer)


# Masks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_bias", [False, True])
def test_masks_are_translated_whole(with_bias):
    case = replace(select(("every-source",))[0], mask=every_source)
    mask = case.build().inputs.mask
    mask = replace(mask, valid_lens=np.array([6, 3]), bias=mask.bias if with_bias else None)
    sizes = CallSizes(case.batch, case.query_len, case.key_len)
    allowed = allowed_keys(mask, sizes, 3)
    bias = None if mask.bias is None else torch.from_numpy(mask.bias)
    told = ignored_keys(mask, sizes, 3, bias)
    assert told["attn_mask"].shape == (6, 5, 7)
    assert told["key_padding_mask"].shape == (2, 7)
    together = told["attn_mask"].unflatten(0, (2, 3)), told["key_padding_mask"][:, None, None]
    if with_bias:
        added = (together[0] + together[1]).numpy()
        assert (np.isneginf(added) == ~allowed).all()
        assert (added == np.where(allowed, mask.bias, -np.inf)).all()
    else:
        assert ((together[0] | together[1]).numpy() == ~allowed).all()


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (AttentionMask(), set()),
        (AttentionMask(valid_lens=np.array([3, 6])), {"key_padding_mask"}),
        (AttentionMask(valid_lens=np.full((2, 5), 3)), {"attn_mask"}),
        (AttentionMask(causal=True), {"attn_mask"}),
    ],
)
def test_a_mask_goes_where_it_belongs_and_no_mask_nowhere(mask, names):
    assert set(ignored_keys(mask, CallSizes(2, 5, 7), 3, None)) == names


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (AttentionMask(causal=True), None),
        (AttentionMask(causal=True, query_offset=2), None),
        (AttentionMask(), "anything but a causal mask"),
        (AttentionMask(causal=True, query_offset=1), "a causal mask with an offset"),
        (AttentionMask(causal=True, query_offset=np.array([0, 2])), "a causal mask with an offset"),
        (AttentionMask(causal=True, window=(1, None)), "window beside a causal mask"),
        (AttentionMask(causal=True, valid_lens=np.array([3])), "valid_lens beside a causal mask"),
    ],
)
def test_is_causal_says_one_mask_alone(mask, reason):
    assert only_causal(mask, 0, 2) == reason
