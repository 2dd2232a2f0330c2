"""PyTorch: scaled_dot_product_attention by kernel and exported, and flex_attention."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from conformance.subjects.ask import CannotExpress

DTYPES = ("float64", "float32", "bfloat16", "float16")


def of(array, dtype):
    made = torch.from_numpy(array.copy())
    return made.to(getattr(torch, dtype)) if made.is_floating_point() else made


def computed(attend, leaves, cotangent):
    leaves = [leaf.requires_grad_(cotangent is not None) for leaf in leaves]
    output = attend(*leaves)
    return [output, *(() if cotangent is None else torch.autograd.grad(output, leaves, cotangent))]


def back(tensor):
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()


def sdpa(q, k, v, *, mask=None, causal=False, scale=None):
    grouped = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=grouped)


def sdpa_math(q, k, v, *, mask=None, causal=False, scale=None):
    with sdpa_kernel(SDPBackend.MATH):
        return sdpa(q, k, v, mask=mask, causal=causal, scale=scale)


def sdpa_flash(q, k, v, *, mask=None, causal=False, scale=None):
    if v.shape[3] != q.shape[3]:
        raise CannotExpress("values of another width")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return sdpa(q, k, v, mask=mask, causal=causal, scale=scale)


def sdpa_exported(q, k, v, *, mask=None, causal=False, scale=None):
    module = torch.nn.Module()
    module.forward = lambda q, k, v, mask: sdpa(q, k, v, mask=mask, causal=causal, scale=scale)
    return torch.export.export(module, (q, k, v, mask)).module()(q, k, v, mask)


def flex(q, k, v, *, allowed=None, bias=None, scale=None, softcap=None):
    """Return the output of flex_attention, with the mask as mask_mod, and softcap and bias as score_mod."""

    def score(s, b, h, i, j):
        s = s if softcap is None else softcap * torch.tanh(s / softcap)
        return s if bias is None else s + bias[b, h, i, j]

    block = None
    if allowed is not None:
        sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        block = create_block_mask(lambda b, h, i, j: allowed[b, h, i, j], *sizes, device="cpu")
    grouped = q.shape[1] != k.shape[1]
    plain = bias is None and softcap is None
    return flex_attention(q, k, v, None if plain else score, block, scale=scale, enable_gqa=grouped)
