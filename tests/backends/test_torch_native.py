"""PyTorch's own layers: their weights to the bit both ways, and how a mask is told to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from backends.torch import from_weights
from backends.torch.native import from_native, to_native
from backends.torch.native_seed import SeedMultiHeadAttention
from backends.torch.native_subjects import ignored_keys, only_causal
from conformance.case_parts import every_source
from conformance.cases import select
from mha_core import AttentionConfig, AttentionMask, SpecError, init_weights
from mha_core.checks import CallSizes
from mha_core.masks import allowed_keys

WIDTHS = AttentionConfig(28, 4, key_dim=11, value_dim=13, bias=True)


# Weights --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("layout", ["torch", "d2l-torch"])
@pytest.mark.parametrize(
    "config",
    [AttentionConfig(6, 3), AttentionConfig(6, 2, bias=True, dropout=0.3), WIDTHS, replace(WIDTHS, value_dim=28)],
    ids=["plain", "bias", "widths", "key-width"],
)
def test_canonical_weights_go_in_and_come_out_to_the_bit(config, layout, dtype):
    weights = {name: array.astype(dtype) for name, array in init_weights(config, seed=1, bias_scale=1.0).items()}
    state = torch.get_rng_state()
    layer = to_native(config, weights, layout)
    back_config, back = from_native(layer)
    assert back_config == config
    assert list(back) == list(weights)
    assert all(back[name].dtype == dtype and (back[name] == weights[name]).all() for name in weights)
    assert all(parameter.requires_grad for parameter in layer.parameters())
    assert torch.equal(torch.get_rng_state(), state)


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


def test_a_live_seed_layer_comes_back_and_agrees():
    torch.manual_seed(0)
    layer = SeedMultiHeadAttention(6, 3, 0.5, bias=True)
    x = torch.randn(2, 4, 5), torch.randn(2, 7, 8), torch.randn(2, 7, 9)
    lens = torch.tensor([3, 7])
    expected = layer.eval()(*x, lens)
    config, weights = from_native(layer)
    assert (config.query_dim, config.key_dim, config.value_dim, config.dropout) == (5, 8, 9, 0.5)
    torch.testing.assert_close(to_native(config, weights, "d2l-torch").eval()(*x, lens), expected)
    torch.testing.assert_close(from_weights(config, weights).eval()(*x, lens), expected)


def test_one_switch_for_all_biases_is_filled_with_zeros():
    config = AttentionConfig(6, 2, bias={"q_proj": True})
    layer = to_native(config, init_weights(config, seed=0, bias_scale=1.0))
    assert layer.in_proj_bias[:6].all()
    assert not layer.in_proj_bias[6:].any()
    assert not layer.out_proj.bias.any()


def test_bfloat16_parameters_are_read_exactly():
    config = AttentionConfig(6, 2, bias=True)
    layer = to_native(config, init_weights(config, seed=0), dtype=torch.bfloat16)
    _, weights = from_native(layer)
    assert torch.equal(torch.from_numpy(weights["v_proj.weight"].copy()).bfloat16(), layer.in_proj_weight[12:])


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.MultiheadAttention(6, 2, add_bias_kv=True), "bias_k (add_bias_kv=True)"),
        (nn.MultiheadAttention(6, 2, add_zero_attn=True), "add_zero_attn=True"),
        (nn.Linear(6, 6), "Linear is no layer that can be read here"),
        (SeedMultiHeadAttention(6, 2, 0.0), "W_q.weight has no size yet: call the layer once"),
    ],
)
def test_what_can_not_be_read_is_refused(layer, message):
    with pytest.raises(SpecError) as error:
        from_native(layer)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("config", "layout", "message"),
    [
        (AttentionConfig(6, 2), "keras", "layout 'keras' is of no layer in PyTorch (there are: torch, "),
        (AttentionConfig(8, 4, num_kv_heads=2), "torch", "num_kv_heads=4"),
        (AttentionConfig(6, 2, output_dim=8), "torch", "output_dim=6"),
        (AttentionConfig(6, 2, query_dim=8), "torch", "needs head_dim * num_heads=8 (query_dim=8). Got 6."),
        (AttentionConfig(6, 2, scale=2.0), "torch", "scale=2.0"),
        (
            AttentionConfig(8, 4, num_kv_heads=2),
            "d2l-torch",
            "needs num_kv_heads=4 (num_heads=4, head_dim=2)",
        ),
        (AttentionConfig(8, 4, output_dim=6), "d2l-torch", "needs output_dim=8 (num_heads=4, head_dim=2). Got 6."),
        (
            AttentionConfig(8, 4, value_head_dim=3),
            "d2l-torch",
            "needs value_head_dim=2 (num_heads=4, head_dim=2)",
        ),
    ],
)
def test_what_a_layer_can_not_hold_is_refused(config, layout, message):
    with pytest.raises(SpecError) as error:
        to_native(config, init_weights(config, seed=0), layout)
    assert message in str(error.value)


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
