"""Attention layers of other packages, asked as engines are: `mha atlas tests.mha.atlas.layers:timm`.

A layer is given projections that pick queries, keys and values out of one wide input, and pass its heads on: head h of
the input has 3 d channels, [queries, keys, values]. So it computes attention of any queries, keys and values, and its
own code does all of it. Layers of one input take as many keys as queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from conformance.subjects.ask import CannotExpress
from tests.mha.seam.packages import _torch

PARTS = 3
"""Queries, keys and values."""


def of(*packages: str, grouped: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator: the packages whose versions count, and arrays in place of tensors.

    A layer whose bool mask hides where it is True has a `bias` alone.
    """

    def decorate(attend: Callable[..., Any]) -> Callable[..., Any]:
        from functools import wraps

        @wraps(attend)
        def call(q: Any, k: Any, v: Any, **options: Any) -> Any:
            _torch()
            if q.shape[1] != k.shape[1] and not grouped:
                raise CannotExpress("grouped heads")
            given = [torch.from_numpy(np.array(one)) for one in (q, k, v)]
            made = {n: torch.from_numpy(np.array(o)) if isinstance(o, np.ndarray) else o for n, o in options.items()}
            with torch.no_grad():
                return attend(*given, **made).numpy()

        call.packages = packages  # type: ignore[attr-defined]
        return call

    return decorate


def packed(q: Any = None, k: Any = None, v: Any = None) -> Any:
    """Return (B, L, H * 3 d): what is given, side by side in each head, and 0 for what is not."""
    given = [one for one in (q, k, v) if one is not None]
    if len({one.shape[2] for one in given}) > 1 or len({one.shape[1] for one in given}) > 1:
        raise CannotExpress("as many keys as queries, and no groups: it has one input")
    if len(given) > 1 and not all(one.isfinite().all() for one in given):
        raise CannotExpress("a NaN in an input of several makes all of them NaN")
    zero = torch.zeros_like(given[0])
    x = torch.cat([zero if one is None else one for one in (q, k, v)], dim=-1)
    return x.transpose(1, 2).flatten(2)


def heads(x: Any, count: int) -> Any:
    """Return the output of every head, (B, H, L, d), from (B, L, H * 3 d)."""
    x = x.unflatten(-1, (count, -1)).transpose(1, 2)
    return x[..., : x.shape[-1] // PARTS]


def picking(count: int, width: int, *, scaled: bool = True) -> dict[str, Any]:
    """Return the matrices (out, in) of "q", "k", "v" and "o" for so many heads of 3 * width channels.

    Queries are multiplied by the root of 3, since a layer divides by the root of 3 * width.
    """
    size = PARTS * width
    found = {}
    for part, name in enumerate("qkv"):
        block = torch.zeros(size, size)
        block[range(width), range(part * width, part * width + width)] = PARTS**0.5 if name == "q" and scaled else 1.0
        found[name] = torch.block_diag(*[block] * count)
    return {**found, "o": torch.eye(count * size)}


def filled(layer: Any, weights: Mapping[str, Any]) -> Any:
    """Return the layer in evaluation mode with these matrices, by parameter, and biases of 0."""
    parameters = dict(layer.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name in weights:
                parameter.copy_(weights[name].reshape(parameter.shape))
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                raise CannotExpress(f"a parameter {name}")
    return layer.eval()


def separate(layer: Any, q: Any, names: str, *, scaled: bool = True) -> Any:
    """Return the layer with the matrices of `names`, which are those of queries, keys, values and output."""
    matrices = picking(q.shape[1], q.shape[3], scaled=scaled)
    return filled(layer, {name: matrices[key] for key, name in zip("qkvo", names.split(), strict=True)})


def fused(layer: Any, q: Any, qkv: str, out: str) -> Any:
    """Return the layer with one matrix for queries, keys and values."""
    matrices = picking(q.shape[1], q.shape[3])
    return filled(layer, {qkv: torch.cat([matrices[name] for name in "qkv"]), out: matrices["o"]})


def width_of(q: Any) -> tuple[int, int]:
    """Return the number of heads, and of all channels."""
    return q.shape[1], q.shape[1] * q.shape[3] * PARTS


@of("torch")
def torch_mha(q, k, v, *, bias=None):
    count, width = width_of(q)
    layer = torch.nn.MultiheadAttention(width, count, batch_first=True)
    layer = fused(layer, q, "in_proj_weight", "out_proj.weight")
    mask = None if bias is None else bias.expand(len(q), count, -1, -1).flatten(0, 1)
    return heads(layer(packed(q), packed(k=k), packed(v=v), attn_mask=mask)[0], count)


@of("timm")
def timm(q, k, v, *, mask=None):
    from timm.layers import Attention

    count, width = width_of(q)
    return heads(fused(Attention(width, count), q, "qkv.weight", "proj.weight")(packed(q, k, v), attn_mask=mask), count)


@of("x-transformers")
def x_transformers(q, k, v, *, allowed=None, bias=None):
    from x_transformers.x_transformers import Attention

    count, width = width_of(q)
    layer = Attention(width, heads=count, dim_head=width // count)
    layer = separate(layer, q, "to_q.weight to_k.weight to_v.weight to_out.weight")
    return heads(layer(packed(q), context=packed(None, k, v), attn_mask=allowed, attn_bias=bias), count)


@of("openai-whisper")
def whisper(q, k, v, *, bias=None):
    from whisper.model import MultiHeadAttention

    count, width = width_of(q)
    layer = separate(MultiHeadAttention(width, count), q, "query.weight key.weight value.weight out.weight")
    return heads(layer(packed(q), packed(None, k, v), mask=bias)[0], count)


@of("monai")
def monai(q, k, v, *, mask=None):
    from monai.networks.blocks.selfattention import SABlock

    count, width = width_of(q)
    layer = fused(SABlock(width, count), q, "qkv.weight", "out_proj.weight")
    return heads(layer(packed(q, k, v), attn_mask=mask), count)


@of("kornia")
def kornia(q, k, v, *, allowed=None):
    from kornia.feature.loftr.loftr_module.linear_attention import FullAttention

    if allowed is not None and not (allowed == allowed[:, :1, :1]).all():
        raise CannotExpress("a mask of pairs: it takes one of queries and one of keys")
    given = (one.transpose(1, 2) for one in (q, k, v))
    rows = None if allowed is None else torch.ones(len(q), q.shape[2], dtype=bool)
    found = FullAttention().eval()(*given, rows, None if allowed is None else allowed[:, 0, 0])
    return found.transpose(1, 2)


@of("vit-pytorch")
def vit_pytorch(q, k, v, *, allowed=None):
    from vit_pytorch.na_vit import Attention

    count, width = width_of(q)
    layer = Attention(width, heads=count, dim_head=width // count)
    raise CannotExpress("it normalises queries and keys") if layer else None


@of("diffusers")
def diffusers(q, k, v, *, mask=None):
    from diffusers.models.attention_processor import Attention

    count, width = width_of(q)
    layer = separate(
        Attention(width, heads=count, dim_head=width // count, cross_attention_dim=width),
        q, "to_q.weight to_k.weight to_v.weight to_out.0.weight",
    )  # fmt: skip
    given = None if mask is None else mask.expand(len(q), count, -1, -1).flatten(0, 1)
    return heads(layer(packed(q), encoder_hidden_states=packed(None, k, v), attention_mask=given), count)


@of("open_clip_torch")
def open_clip(q, k, v, *, bias=None):
    from open_clip.transformer import Attention

    count, width = width_of(q)
    layer = fused(Attention(width, count), q, "in_proj_weight", "out_proj.weight")
    mask = None if bias is None else bias.expand(len(q), count, -1, -1).flatten(0, 1)
    return heads(layer(packed(q, k, v), attn_mask=mask), count)


@of("perceiver-pytorch")
def perceiver(q, k, v, *, allowed=None):
    from perceiver_pytorch.perceiver_pytorch import Attention

    if allowed is not None and not (allowed == allowed[:, :1, :1]).all():
        raise CannotExpress("a mask of pairs: it takes one of keys")
    count, width = width_of(q)
    matrices = picking(count, q.shape[3])
    layer = Attention(width, heads=count, dim_head=width // count)
    kv = torch.cat([matrices["k"], matrices["v"]])
    layer = filled(layer, {"to_q.weight": matrices["q"], "to_kv.weight": kv, "to_out.weight": matrices["o"]})
    return heads(layer(packed(q), packed(None, k, v), None if allowed is None else allowed[:, 0, 0]), count)


@of("memory-efficient-attention-pytorch")
def memory_efficient(q, k, v, *, allowed=None, bias=None, causal=False):
    from memory_efficient_attention_pytorch import Attention

    if allowed is not None and not (allowed == allowed[:, :1, :1]).all():
        raise CannotExpress("a mask of pairs: it takes one of keys")
    count, width = width_of(q)
    matrices = picking(count, q.shape[3])
    layer = Attention(dim=width, heads=count, dim_head=width // count, causal=causal, memory_efficient=True)
    kv = torch.cat([matrices["k"], matrices["v"]])
    layer = filled(layer, {"to_q.weight": matrices["q"], "to_kv.weight": kv, "to_out.weight": matrices["o"]})
    keys = None if allowed is None else allowed[:, 0, 0]
    return heads(layer(packed(q), packed(None, k, v), mask=keys, attn_bias=bias), count)


@of("segment-anything")
def segment_anything(q, k, v):
    from segment_anything.modeling.transformer import Attention

    count, width = width_of(q)
    layer = separate(Attention(width, count), q, "q_proj.weight k_proj.weight v_proj.weight out_proj.weight")
    return heads(layer(packed(q), packed(k=k), packed(v=v)), count)


@of("fair-esm")
def esm(q, k, v, *, bias=None, lengths=None):
    from esm.multihead_attention import MultiheadAttention

    count, width = width_of(q)
    names = "q_proj.weight k_proj.weight v_proj.weight out_proj.weight"
    layer = separate(MultiheadAttention(width, count), q, names)
    if bias is not None and not (bias == bias[:1, :1]).all():
        raise CannotExpress("a mask for each item: it takes one for all")
    padding = None if lengths is None else torch.arange(k.shape[2]) >= lengths[:, None]
    given = (x.transpose(0, 1) for x in (packed(q), packed(k=k), packed(v=v)))
    masks = {"attn_mask": None if bias is None else bias[0, 0], "key_padding_mask": padding}
    return heads(layer(*given, **masks, need_weights=True)[0].transpose(0, 1), count)


@of("espnet")
def espnet(q, k, v, *, allowed=None):
    from espnet.nets.pytorch_backend.transformer.attention import MultiHeadedAttention

    count, width = width_of(q)
    names = "linear_q.weight linear_k.weight linear_v.weight linear_out.weight"
    layer = separate(MultiHeadedAttention(count, width, 0.0), q, names)
    if allowed is not None and not (allowed == allowed[:, :1]).all():
        raise CannotExpress("a mask for each head: it takes one for all")
    return heads(layer(packed(q), packed(k=k), packed(v=v), None if allowed is None else allowed[:, 0]), count)


@of("joeynmt")
def joeynmt(q, k, v, *, allowed=None):
    from joeynmt.transformer_layers import MultiHeadedAttention

    count, width = width_of(q)
    names = "q_layer.weight k_layer.weight v_layer.weight output_layer.weight"
    layer = separate(MultiHeadedAttention(count, width, 0.0), q, names)
    if allowed is not None and not (allowed == allowed[:, :1]).all():
        raise CannotExpress("a mask for each head: it takes one for all")
    found = layer(packed(k=k), packed(v=v), packed(q), None if allowed is None else allowed[:, 0])
    return heads(found[0], count)


@of("speechbrain")
def speechbrain(q, k, v, *, bias=None):
    from speechbrain.nnet.attention import MultiheadAttention

    count, width = width_of(q)
    layer = fused(MultiheadAttention(count, width), q, "att.in_proj_weight", "att.out_proj.weight")
    mask = None if bias is None else bias.expand(len(q), count, -1, -1).flatten(0, 1)
    return heads(layer(packed(q), packed(k=k), packed(v=v), attn_mask=mask)[0], count)


@of("torchscale")
def torchscale(q, k, v, *, bias=None):
    from torchscale.architecture.config import EncoderConfig
    from torchscale.component.multihead_attention import MultiheadAttention

    count, width = width_of(q)
    layer = MultiheadAttention(EncoderConfig(multiway=False), width, count, self_attention=True)
    layer = separate(layer, q, "q_proj.weight k_proj.weight v_proj.weight out_proj.weight")
    if bias is not None and not (bias == bias[:1, :1]).all():
        raise CannotExpress("a mask for each item: it takes one for all")
    masks = {"attn_mask": None if bias is None else bias[0, 0]}
    return heads(layer(packed(q), packed(k=k), packed(v=v), **masks)[0], count)


@of("tsai")
def tsai(q, k, v, *, mask=None):
    from tsai.models.layers import MultiheadAttention

    count, width = width_of(q)
    layer = MultiheadAttention(width, count, qkv_bias=False)
    layer = separate(layer, q, "W_Q.weight W_K.weight W_V.weight to_out.0.weight")
    if mask is not None and not (mask == mask[:1, :1]).all():
        raise CannotExpress("a mask for each item: it takes one for all")
    return heads(layer(packed(q), packed(k=k), packed(v=v), attn_mask=None if mask is None else mask[0, 0])[0], count)


@of("denoising-diffusion-pytorch")
def denoising_diffusion(q, k, v):
    from denoising_diffusion_pytorch.attend import Attend

    return Attend(flash=False).eval()(q, k, v)


@of("conformer")
def conformer(q, k, v, *, allowed=None):
    from conformer.conformer import Attention

    count, width = width_of(q)
    matrices = picking(count, q.shape[3])
    layer = Attention(width, heads=count, dim_head=width // count)
    kv = torch.cat([matrices["k"], matrices["v"]])
    position = torch.zeros_like(layer.rel_pos_emb.weight)
    weights = {"to_q.weight": matrices["q"], "to_kv.weight": kv, "to_out.weight": matrices["o"]}
    layer = filled(layer, {**weights, "rel_pos_emb.weight": position})
    if allowed is not None and not (allowed == allowed[:, :1, :1]).all():
        raise CannotExpress("a mask of pairs: it takes one of keys")
    keys = None if allowed is None else allowed[:, 0, 0]
    rows = None if keys is None else torch.ones(len(q), q.shape[2], dtype=bool)
    return heads(layer(packed(q), packed(None, k, v), mask=rows, context_mask=keys), count)


@of("transformers")
def bert_eager(q, k, v, *, bias=None, scale=None):
    from transformers.models.bert.modeling_bert import eager_attention_forward

    module = torch.nn.Module().eval()
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return eager_attention_forward(module, q, k, v, bias, scaling=scale)[0].transpose(1, 2)


@of("transformers", grouped=True)
def llama_eager(q, k, v, *, bias=None, scale=None):
    from transformers.models.llama.modeling_llama import eager_attention_forward

    module = torch.nn.Module().eval()
    module.num_key_value_groups = q.shape[1] // k.shape[1]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return eager_attention_forward(module, q, k, v, bias, scaling=scale)[0].transpose(1, 2)


@of("transformers", grouped=True)
def transformers_sdpa(q, k, v, *, mask=None, scale=None):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    module = torch.nn.Module().eval()
    module.num_key_value_groups, module.is_causal = q.shape[1] // k.shape[1], False
    return sdpa_attention_forward(module, q, k, v, mask, scaling=scale)[0].transpose(1, 2)


@of("pytorch-forecasting")
def pytorch_forecasting(q, k, v, *, allowed=None):
    from pytorch_forecasting.layers import FullAttention

    given = (one.transpose(1, 2) for one in (q, k, v))
    layer = FullAttention(mask_flag=allowed is not None, attention_dropout=0.0)
    return layer.eval()(*given, allowed, None, None)[0].transpose(1, 2)


@of("neuralforecast")
def neuralforecast(q, k, v, *, allowed=None):
    from neuralforecast.common._modules import FullAttention

    raise CannotExpress("its own mask") if allowed is not None and FullAttention else None


@of("torch")
def torch_quantizable(q, k, v, *, mask=None):
    from torch.ao.nn.quantizable import MultiheadAttention

    count, width = width_of(q)
    layer = MultiheadAttention(width, count, batch_first=True)
    names = "linear_Q.weight linear_K.weight linear_V.weight out_proj.weight"
    layer = separate(layer, q, names)
    if mask is not None and not (mask == mask[:1, :1]).all():
        raise CannotExpress("a mask for each item: it takes one for all")
    return heads(layer(packed(q), packed(k=k), packed(v=v), attn_mask=None if mask is None else mask[0, 0])[0], count)
