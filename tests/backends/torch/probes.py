"""Probes: what PyTorch's own layers do otherwise than the definition, where no case of the suite can show it.

Each probe is called without arguments and does the thing on the installed version. It returns what was
seen, in a sentence with its numbers, or None if it does not happen (any more).
"""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from backends.torch.native.convert import to_native
from backends.torch.native.d2l import masked_softmax
from mha_core.config import AttentionConfig
from mha_core.weights import init_weights

# torch.nn.MultiheadAttention: rows without a key, padding -------------------------------------------------


def mha_fast_path_empty_row() -> str | None:
    """An item without valid keys is NaN on the fast path, and 0 as soon as the call leaves it."""
    layer, x = _layer(bias=True).eval(), _normal(2, 3, 8)
    ignored = torch.tensor([[False, False, True], [True, True, True]])
    with torch.no_grad():
        fast, _ = layer(x, x, x, key_padding_mask=ignored, need_weights=False)
        slow, _ = layer(x, x.clone(), x, key_padding_mask=ignored, need_weights=False)
    if not fast[1].isnan().any():
        return None
    return (
        f"the item without valid keys is NaN in {_share(fast[1].isnan())} of its output on the fast path; "
        f"with key=x.clone() it is the output bias to within {_worst(slow[1] - layer.out_proj.bias):.1g}"
    )


def encoder_fast_path_padding() -> str | None:
    """Padded rows of a TransformerEncoder, on the fast path and without it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        part = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
        encoder = nn.TransformerEncoder(part, 2).eval()
    x, ignored = _normal(2, 3, 8), torch.tensor([[False, False, True], [False, False, False]])
    with torch.no_grad(), warnings.catch_warnings():
        # Said once a process, by whichever test comes first, of a prototype that TransformerEncoder itself uses.
        warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors", category=UserWarning)
        fast = encoder(x, src_key_padding_mask=ignored)
    slow = encoder(x, src_key_padding_mask=ignored)
    if fast[0, 2].abs().max() > 0.0:
        return None
    return f"the padded row is 0 on the fast path, and up to {slow[0, 2].abs().max():.2g} large without it"


def mha_nan_in_padding() -> str | None:
    """A NaN in keys and values that key_padding_mask excludes reaches the output, on every path."""
    layer, x = _layer(bias=True).eval(), _normal(1, 3, 8)
    x[0, 2] = torch.nan
    ignored = torch.tensor([[False, False, True]])
    leaking = []
    with torch.no_grad():
        for path, key, need_weights in (
            ("need_weights=True", x.clone(), True),
            ("need_weights=False", x.clone(), False),
            ("the fast path", x, False),
        ):
            output, _ = layer(x, key, key, key_padding_mask=ignored, need_weights=need_weights)
            if output[0, :2].isnan().any():
                leaking.append(path)
    return f"queries that may not attend to the NaN give NaN with {', '.join(leaking)}" if leaking else None


def mha_gradients_of_other_items() -> str | None:
    """With weights, one item without valid keys makes every weight's gradient NaN, though no loss looks at it."""
    layer, x = _layer(), _normal(2, 3, 8)
    ignored = torch.tensor([[False, False, True], [True, True, True]])
    poisoned = {}
    for need_weights in (True, False):
        output, _ = layer(x, x, x, key_padding_mask=ignored, need_weights=need_weights)
        (gradient,) = torch.autograd.grad(output[0].sum(), [layer.in_proj_weight])
        poisoned[need_weights] = gradient.isnan()
    if not poisoned[True].any():
        return None
    return (
        f"the loss is of item 0 alone, item 1 has no valid key: {_share(poisoned[True])} of the gradient of "
        f"in_proj_weight is NaN with need_weights=True, {_share(poisoned[False])} with need_weights=False"
    )


# torch.nn.MultiheadAttention: what its arguments mean -----------------------------------------------------


def mha_mask_polarity() -> str | None:
    """In its bool masks True means "ignore"; scaled_dot_product_attention's mean "attend", as here."""
    layer, x = _layer(num_heads=1), _normal(1, 1, 8)
    keys, allowed = _normal(1, 3, 8), torch.tensor([[True, True, False]])
    _, weights = layer(x, keys, keys, attn_mask=allowed, average_attn_weights=False)
    if weights[0, 0, 0, 2] < 0.5:
        return None
    return f"attn_mask [True, True, False] gives the weights {_numbers(weights[0, 0, 0])}"


def mha_float_mask_is_added() -> str | None:
    """A float 0/1 key_padding_mask is added to the scores: nothing is excluded, and nothing is said."""
    layer, x = _layer(num_heads=1), _normal(1, 1, 8)
    keys, padding = _normal(1, 3, 8), torch.tensor([[0.0, 0.0, 1.0]])
    calls = [{}, {"key_padding_mask": padding}]
    before, after = (layer(x, keys, keys, average_attn_weights=False, **call)[1][0, 0, 0, 2].item() for call in calls)
    if after <= before:
        return None
    return f"key_padding_mask [0., 0., 1.] raises the weight of the padded key from {before:.3f} to {after:.3f}"


def mha_causal_hint_replaces_mask() -> str | None:
    """`is_causal=True` drops attn_mask without weights, and is itself dropped with them."""
    layer, x = _layer(), _normal(1, 3, 8)
    nothing_masked = torch.zeros((3, 3), dtype=torch.bool)
    plain, _ = layer(x, x, x, attn_mask=nothing_masked, need_weights=False)
    hinted, _ = layer(x, x, x, attn_mask=nothing_masked, need_weights=False, is_causal=True)
    with_weights, _ = layer(x, x, x, attn_mask=nothing_masked, is_causal=True)
    if _worst(hinted - plain) < 1e-3:
        return None
    return (
        f"with a mask that excludes nothing, is_causal=True changes the output by {_worst(hinted - plain):.2f} "
        f"with need_weights=False and by {_worst(with_weights - plain):.1g} with need_weights=True"
    )


def mha_causal_needs_a_mask() -> str | None:
    """`is_causal=True` alone is refused: it is a hint about attn_mask and no mask itself."""
    layer, x = _layer(), _normal(1, 3, 8)
    try:
        layer(x, x, x, is_causal=True)
    except RuntimeError as error:
        return f"is_causal=True without attn_mask raises RuntimeError: {str(error).split('. ')[0]}"
    return None


def mha_time_major() -> str | None:
    """Without batch_first=True the first axis is time: (B, L, E) runs too, and mixes the items of a batch."""
    default = nn.MultiheadAttention(8, 2, device="meta").batch_first
    layer, x = _layer(batch_first=default), _normal(2, 3, 8)
    changed = x.clone()
    changed[1] = 0.0
    moved = _worst(layer(changed, changed, changed)[0][0] - layer(x, x, x)[0][0])
    if moved == 0.0:
        return None
    return f"as built by default, changing item 1 of a batch (B, L, E) moves the output of item 0 by {moved:.2f}"


# torch.nn.MultiheadAttention: what it returns, and how it starts ------------------------------------------


def mha_weights_are_averaged() -> str | None:
    """Returned weights are the mean over the heads, unless average_attn_weights=False."""
    layer, x = _layer(), _normal(2, 3, 8)
    _, averaged = layer(x, x, x)
    _, per_head = layer(x, x, x, average_attn_weights=False)
    if averaged.shape == per_head.shape:
        return None
    return (
        f"as called by default the weights have shape {tuple(averaged.shape)}, the mean of {tuple(per_head.shape)} "
        f"over the heads to within {_worst(averaged - per_head.mean(dim=1)):.1g}"
    )


def mha_weights_after_dropout() -> str | None:
    """In training, returned weights are those after dropout: their rows do not add up to 1."""
    layer, x = _layer(dropout=0.5).train(), _normal(1, 4, 8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _, weights = layer(x, x, x, average_attn_weights=False)
    sums = weights.sum(dim=-1).flatten()
    if _worst(sums - 1.0) < 1e-3:
        return None
    return f"with dropout 0.5 in training, rows of the returned weights add up to {_numbers(sums[:4])}"


def mha_packed_initialisation() -> str | None:
    """in_proj_weight is drawn as one (3E, E) matrix, so narrower than the same matrices apart, with kdim or vdim."""
    packed, separate = _fresh(512), _fresh(512, kdim=511)
    there, here = packed.in_proj_weight.std().item(), separate.q_proj_weight.std().item()
    if abs(there / here - 1.0) < 0.02:
        return None
    return f"at E = 512 the query weights start with standard deviation {there:.4f} packed and {here:.4f} separate"


def mha_output_initialisation() -> str | None:
    """out_proj.weight keeps what nn.Linear draws, which is not Glorot's as for the other three."""
    drawn, wanted = _fresh(512).out_proj.weight.std().item(), (2.0 / (512 + 512)) ** 0.5
    if abs(drawn / wanted - 1.0) < 0.02:
        return None
    return f"at E = 512 out_proj.weight starts with standard deviation {drawn:.4f}; Glorot's is {wanted:.4f}"


# scaled_dot_product_attention -----------------------------------------------------------------------------


def sdpa_mask_beside_causal() -> str | None:
    """attn_mask beside is_causal=True: an error in the math kernel, both of them in the fused one, in silence."""
    x, mask = _normal(1, 2, 3, 4), torch.tensor([[True, True, True], [False, True, True], [True, True, False]])
    with sdpa_kernel(SDPBackend.MATH):
        try:
            F.scaled_dot_product_attention(x, x, x, mask, is_causal=True)
            refused = False
        except RuntimeError:
            refused = True
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        try:
            both = F.scaled_dot_product_attention(x, x, x, mask, is_causal=True)
        except RuntimeError:
            return None
    combined = F.scaled_dot_product_attention(x, x, x, mask & torch.ones(3, 3, dtype=torch.bool).tril())
    return (
        f"the fused CPU kernel computes mask AND causal (to within {_worst(both - combined):.1g}), where the "
        f"documentation promises an error; the math kernel {'raises it' if refused else 'does so too'}"
    )


def sdpa_lower_right_warns_of_nan() -> str | None:
    """causal_lower_right warns that rows without a key become NaN where Lq > Lk; they are 0."""
    queries, keys = _normal(1, 1, 4, 2), _normal(1, 1, 3, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        output = F.scaled_dot_product_attention(queries, keys, keys, causal_lower_right(4, 3))
    texts = [str(warning.message) for warning in caught if "NaN" in str(warning.message)]
    if not texts or output.isnan().any():
        return None
    return f"it warns {texts[0]!r}; the first row, which has no key, is {_numbers(output[0, 0, 0])}"


def sdpa_dropout_in_evaluation() -> str | None:
    """dropout_p acts whatever mode a layer is in: the operator knows of none."""
    x = _normal(1, 2, 3, 4)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        dropped = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    moved = _worst(dropped - F.scaled_dot_product_attention(x, x, x))
    return f"dropout_p=0.5 moves the output by {moved:.2f}, in eval() and under no_grad too" if moved else None


# d2l.ai's layer -----------------------------------------------------------


def d2l_fill_in_half_precision() -> str | None:
    """-1e6 is -inf in float16, so a row with no valid key is NaN there, where it is uniform in float32."""
    rows = {
        dtype: masked_softmax(torch.zeros((1, 1, 4), dtype=dtype), torch.tensor([0]))[0, 0]
        for dtype in (torch.float16, torch.float32)
    }
    if not rows[torch.float16].isnan().any():
        return None
    return (
        f"valid_lens 0 gives the weights {_numbers(rows[torch.float16])} in float16 "
        f"and {_numbers(rows[torch.float32])} in float32"
    )


def d2l_fill_is_a_number() -> str | None:
    """Valid keys that score below -1e6 lose against the padding that is filled with it."""
    weights = masked_softmax(torch.tensor([[[-2e6, -2e6, 0.0, 0.0]]]), torch.tensor([2]))[0, 0]
    if weights[2:].sum() == 0.0:
        return None
    return f"two valid keys that score -2e6 and two padded ones get the weights {_numbers(weights)}"


def d2l_writes_into_scores() -> str | None:
    """The fill is written into the scores that masked_softmax is given, not into a copy."""
    scores = torch.zeros((1, 1, 4))
    masked_softmax(scores, torch.tensor([2]))
    return f"scores of zeros are {_numbers(scores[0, 0])} afterwards" if scores.any() else None


# What code beside scaled_dot_product_attention does with its masks -----------------------------------------


def softmax_of_lowest_float64() -> str | None:
    """float64 scores whose mask holds finfo(float64).min give NaN in a softmax that is told to give float32."""
    scores = _normal(1, 4).double() + torch.finfo(torch.float64).min
    weights = F.softmax(scores, dim=-1, dtype=torch.float32)
    if not weights.isnan().any():
        return None
    own = F.softmax(scores.float().clamp(min=torch.finfo(torch.float32).min), dim=-1)
    return f"the weights of a query without a key are {_numbers(weights[0])}; of float32 scores, {_numbers(own[0])}"


def bool_mask_is_added() -> str | None:
    """A boolean mask that is added to scores excludes nothing."""
    scores, allowed = _normal(1, 4), torch.tensor([[True, True, False, False]])
    weights = F.softmax(scores + allowed, dim=-1)
    excluded = weights[~allowed].sum().item()
    return f"the keys that it excludes have {excluded:.0%} of the weights" if excluded > 0.01 else None


# What the probes share ------------------------------------------------------------------------------------


def _layer(*, num_heads: int = 2, bias: bool = False, dropout: float = 0.0, batch_first: bool = True) -> Any:
    """nn.MultiheadAttention, 8 wide, float32, the same numbers each time."""
    config = AttentionConfig(8, num_heads, bias=bias, dropout=dropout)
    weights = init_weights(config, seed=0, bias_scale=1.0)
    return to_native(config, weights, dtype=torch.float32, batch_first=batch_first)


def _fresh(embed_dim: int, **sizes: int) -> Any:
    """nn.MultiheadAttention as it draws its own weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.MultiheadAttention(embed_dim, 8, **sizes)


def _normal(*shape: int) -> Tensor:
    """Standard normal float32 numbers, the same ones each time."""
    return torch.from_numpy(np.random.default_rng(0).normal(size=shape).astype(np.float32))


def _worst(difference: Tensor) -> float:
    return difference.abs().max().item()


def _share(condition: Tensor) -> str:
    return f"{100 * condition.float().mean().item():.3g} %"


def _numbers(row: Tensor) -> str:
    return f"[{', '.join(f'{number:.3g}' for number in row.tolist())}]"
