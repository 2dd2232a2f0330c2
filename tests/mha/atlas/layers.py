"""Attention layers of other packages, asked as engines are: `python -m tests.mha.atlas.layers JSON PAGE [LAYER...]`.

A layer is given projections that pick queries, keys and values out of one wide input, and pass its heads on: head h of
the input has 3 d channels, [queries, keys, values]. So it computes attention of any queries, keys and values, and its
own code does all of it. Layers of one input take as many keys as queries.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import update_wrapper
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from conformance.subjects.ask import CannotExpress
from conformance.workers.interpreters import Settings
from mha.atlas.engine import named
from mha.atlas.page import page
from mha.atlas.questions import arrays, plain
from mha.atlas.run import Entry, entry_of, whole
from mha_core.errors import one_line
from mha_core.files.writing import write_json, write_whole
from tests.mha.atlas import FOOT, HEAD
from tests.mha.seam.packages import _torch

PARTS = 3
"""Queries, keys and values."""


class Layer:
    """A function of tensors as one of arrays, and the packages whose versions count.

    A layer whose bool mask hides where it is True has a `bias` alone.
    """

    def __init__(self, attend: Callable[..., Any], packages: tuple[str, ...], call: str, grouped: bool) -> None:
        self.packages, self.line, self._grouped, self._attend = packages, call, grouped, attend
        update_wrapper(self, attend)

    def __call__(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        _torch()
        if q.shape[1] != k.shape[1] and not self._grouped:
            raise CannotExpress("grouped heads")
        given = [torch.from_numpy(np.array(one)) for one in (q, k, v)]
        made = {n: torch.from_numpy(np.array(o)) if isinstance(o, np.ndarray) else o for n, o in options.items()}
        with torch.no_grad():
            return self._attend(*given, **made).numpy()


def of(*packages: str, call: str, grouped: bool = False) -> Callable[[Callable[..., Any]], Layer]:
    """Return a decorator that makes a function a Layer; `call`: the one-line call that its users write."""
    return lambda attend: Layer(attend, packages, call, grouped)


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


def halved(layer: Any, q: Any, more: Mapping[str, Any] | None = None) -> Any:
    """Return the layer, whose keys and values have one matrix, as lucidrains' layers have."""
    matrices = picking(q.shape[1], q.shape[3])
    both = torch.cat([matrices["k"], matrices["v"]])
    weights = {"to_q.weight": matrices["q"], "to_kv.weight": both, "to_out.weight": matrices["o"]}
    return filled(layer, {**weights, **(more or {})})


def keys_of(k: Any, allowed: Any, lengths: Any) -> Any:
    """Return a mask of keys (B, Lk), for a layer that has no other; None for no mask."""
    if allowed is not None and not (allowed == allowed[:, :1, :1]).all():
        raise CannotExpress("a mask of pairs: it takes one of keys")
    if lengths is not None:
        return torch.arange(k.shape[2]) < lengths[:, None]
    return None if allowed is None else allowed[:, 0, 0]


def pairs_of(mask: Any, *, heads: bool = False) -> Any:
    """Return a mask (B, Lq, Lk), for a layer that has one for all heads; (Lq, Lk) with `heads`."""
    if mask is None:
        return None
    if not (mask == mask[:, :1]).all() or (heads and not (mask == mask[:1]).all()):
        raise CannotExpress("a mask for each item or head: it takes one for all")
    return mask[0, 0] if heads else mask[:, 0]


def width_of(q: Any) -> tuple[int, int]:
    """Return the number of heads, and of all channels."""
    return q.shape[1], q.shape[1] * q.shape[3] * PARTS


@of("torch", call="nn.MultiheadAttention(E, H)(q, k, v, attn_mask=)")
def torch_mha(q, k, v, *, bias=None):
    count, width = width_of(q)
    layer = torch.nn.MultiheadAttention(width, count, batch_first=True)
    layer = fused(layer, q, "in_proj_weight", "out_proj.weight")
    mask = None if bias is None else bias.expand(len(q), count, -1, -1).flatten(0, 1)
    return heads(layer(packed(q), packed(k=k), packed(v=v), attn_mask=mask)[0], count)


@of("timm", call="timm.layers.Attention(E, H)(x, attn_mask=)")
def timm(q, k, v, *, mask=None):
    from timm.layers import Attention

    count, width = width_of(q)
    return heads(fused(Attention(width, count), q, "qkv.weight", "proj.weight")(packed(q, k, v), attn_mask=mask), count)


@of("x-transformers", call="Attention(E)(x, context, attn_mask=, attn_bias=)")
def x_transformers(q, k, v, *, allowed=None, bias=None):
    from x_transformers.x_transformers import Attention

    count, width = width_of(q)
    layer = Attention(width, heads=count, dim_head=width // count)
    layer = separate(layer, q, "to_q.weight to_k.weight to_v.weight to_out.weight")
    return heads(layer(packed(q), context=packed(None, k, v), attn_mask=allowed, attn_bias=bias), count)


@of("openai-whisper", call="whisper.model.MultiHeadAttention(E, H)(x, xa, mask)")
def whisper(q, k, v, *, bias=None):
    from whisper.model import MultiHeadAttention

    count, width = width_of(q)
    layer = separate(MultiHeadAttention(width, count), q, "query.weight key.weight value.weight out.weight")
    return heads(layer(packed(q), packed(None, k, v), mask=bias)[0], count)


@of("monai", call="SABlock(E, H)(x, attn_mask=)")
def monai(q, k, v, *, allowed=None, lengths=None):
    from monai.networks.blocks.selfattention import SABlock

    count, width = width_of(q)
    layer = fused(SABlock(width, count), q, "qkv.weight", "out_proj.weight")
    return heads(layer(packed(q, k, v), attn_mask=keys_of(k, allowed, lengths)), count)


@of("kornia", call="FullAttention()(q, k, v, q_mask, kv_mask)")
def kornia(q, k, v, *, allowed=None, lengths=None):
    from kornia.feature.loftr.loftr_module.linear_attention import FullAttention

    keys = keys_of(k, allowed, lengths)
    rows = None if keys is None else torch.ones(len(q), q.shape[2], dtype=torch.bool)
    return FullAttention().eval()(*(one.transpose(1, 2) for one in (q, k, v)), rows, keys).transpose(1, 2)


@of("vit-pytorch", call="vit_pytorch.cct.Attention(E, H)(x)")
def vit_pytorch(q, k, v):
    from vit_pytorch.cct import Attention

    count, width = width_of(q)
    return heads(fused(Attention(width, count), q, "qkv.weight", "proj.weight")(packed(q, k, v)), count)


@of("diffusers", call="Attention(E)(x, context, attention_mask)")
def diffusers(q, k, v, *, mask=None):
    from diffusers.models.attention_processor import Attention

    count, width = width_of(q)
    layer = separate(
        Attention(width, heads=count, dim_head=width // count, cross_attention_dim=width),
        q, "to_q.weight to_k.weight to_v.weight to_out.0.weight",
    )  # fmt: skip
    given = None if mask is None else mask.expand(len(q), count, -1, -1).flatten(0, 1)
    return heads(layer(packed(q), encoder_hidden_states=packed(None, k, v), attention_mask=given), count)


@of("open_clip_torch", call="open_clip.transformer.Attention(E, H)(x, attn_mask=)")
def open_clip(q, k, v, *, bias=None):
    from open_clip.transformer import Attention

    count, width = width_of(q)
    layer = fused(Attention(width, count), q, "in_proj_weight", "out_proj.weight")
    mask = None if bias is None else bias.expand(len(q), count, -1, -1).flatten(0, 1)
    return heads(layer(packed(q, k, v), attn_mask=mask), count)


@of("perceiver-pytorch", call="Attention(E)(x, context, mask)")
def perceiver(q, k, v, *, allowed=None, lengths=None):
    from perceiver_pytorch.perceiver_pytorch import Attention

    count, width = width_of(q)
    layer = halved(Attention(width, heads=count, dim_head=width // count), q)
    return heads(layer(packed(q), packed(None, k, v), keys_of(k, allowed, lengths)), count)


@of("memory-efficient-attention-pytorch", call="Attention(memory_efficient=True)(x, context, mask=, attn_bias=)")
def memory_efficient(q, k, v, *, allowed=None, bias=None, causal=False, lengths=None):
    from memory_efficient_attention_pytorch import Attention

    count, width = width_of(q)
    sizes = {"heads": count, "dim_head": width // count}
    layer = halved(Attention(dim=width, causal=causal, memory_efficient=True, **sizes), q)
    return heads(layer(packed(q), packed(None, k, v), mask=keys_of(k, allowed, lengths), attn_bias=bias), count)


@of("segment-anything", call="Attention(E, H)(q, k, v)")
def segment_anything(q, k, v):
    from segment_anything.modeling.transformer import Attention

    count, width = width_of(q)
    layer = separate(Attention(width, count), q, "q_proj.weight k_proj.weight v_proj.weight out_proj.weight")
    return heads(layer(packed(q), packed(k=k), packed(v=v)), count)


@of("fair-esm", call="esm.multihead_attention.MultiheadAttention(E, H)(q, k, v, attn_mask=)")
def esm(q, k, v, *, bias=None, lengths=None):
    from esm.multihead_attention import MultiheadAttention

    count, width = width_of(q)
    names = "q_proj.weight k_proj.weight v_proj.weight out_proj.weight"
    layer = separate(MultiheadAttention(width, count), q, names)
    padding = None if lengths is None else ~keys_of(k, None, lengths)
    given = (x.transpose(0, 1) for x in (packed(q), packed(k=k), packed(v=v)))
    masks = {"attn_mask": pairs_of(bias, heads=True), "key_padding_mask": padding}
    return heads(layer(*given, **masks)[0].transpose(0, 1), count)


@of("espnet", call="MultiHeadedAttention(H, E, 0)(q, k, v, mask)")
def espnet(q, k, v, *, allowed=None):
    from espnet.nets.pytorch_backend.transformer.attention import MultiHeadedAttention

    count, width = width_of(q)
    names = "linear_q.weight linear_k.weight linear_v.weight linear_out.weight"
    layer = separate(MultiHeadedAttention(count, width, 0.0), q, names)
    return heads(layer(packed(q), packed(k=k), packed(v=v), pairs_of(allowed)), count)


@of("joeynmt", call="MultiHeadedAttention(H, E, 0)(k, v, q, mask)")
def joeynmt(q, k, v, *, allowed=None):
    from joeynmt.transformer_layers import MultiHeadedAttention

    count, width = width_of(q)
    names = "q_layer.weight k_layer.weight v_layer.weight output_layer.weight"
    layer = separate(MultiHeadedAttention(count, width, 0.0), q, names)
    return heads(layer(packed(k=k), packed(v=v), packed(q), pairs_of(allowed))[0], count)


@of("speechbrain", call="speechbrain.nnet.attention.MultiheadAttention(H, E)(q, k, v, attn_mask=)")
def speechbrain(q, k, v, *, bias=None):
    from speechbrain.nnet.attention import MultiheadAttention

    count, width = width_of(q)
    layer = fused(MultiheadAttention(count, width), q, "att.in_proj_weight", "att.out_proj.weight")
    mask = None if bias is None else bias.expand(len(q), count, -1, -1).flatten(0, 1)
    return heads(layer(packed(q), packed(k=k), packed(v=v), attn_mask=mask)[0], count)


@of("torchscale", call="MultiheadAttention(args, E, H)(q, k, v, attn_mask=)")
def torchscale(q, k, v, *, bias=None, lengths=None):
    from torchscale.architecture.config import EncoderConfig
    from torchscale.component.multihead_attention import MultiheadAttention

    count, width = width_of(q)
    layer = MultiheadAttention(EncoderConfig(multiway=False), width, count, self_attention=True)
    layer = separate(layer, q, "q_proj.weight k_proj.weight v_proj.weight out_proj.weight")
    padding = None if lengths is None else ~keys_of(k, None, lengths)
    masks = {"attn_mask": pairs_of(bias, heads=True), "key_padding_mask": padding}
    return heads(layer(packed(q), packed(k=k), packed(v=v), **masks)[0], count)


@of("tsai", call="tsai.models.layers.MultiheadAttention(E, H)(q, k, v, attn_mask=)")
def tsai(q, k, v, *, bias=None, lengths=None):
    from tsai.models.layers import MultiheadAttention

    count, width = width_of(q)
    layer = MultiheadAttention(width, count, qkv_bias=False)
    layer = separate(layer, q, "W_Q.weight W_K.weight W_V.weight to_out.0.weight")
    padding = None if lengths is None else ~keys_of(k, None, lengths)
    masks = {"attn_mask": pairs_of(bias, heads=True), "key_padding_mask": padding}
    return heads(layer(packed(q), packed(k=k), packed(v=v), **masks)[0], count)


@of("denoising-diffusion-pytorch", call="Attend(flash=False)(q, k, v)")
def denoising_diffusion(q, k, v):
    from denoising_diffusion_pytorch.attend import Attend

    return Attend(flash=False).eval()(q, k, v)


@of("conformer", call="conformer.conformer.Attention(E)(x, context, mask=, context_mask=)")
def conformer(q, k, v, *, allowed=None, lengths=None):
    from conformer.conformer import Attention

    if q.shape[2] != k.shape[2]:
        raise CannotExpress("as many keys as queries: its positions are relative")
    count, width = width_of(q)
    layer = Attention(width, heads=count, dim_head=width // count)
    layer = halved(layer, q, {"rel_pos_emb.weight": torch.zeros_like(layer.rel_pos_emb.weight)})
    keys = keys_of(k, allowed, lengths)
    rows = None if keys is None else torch.ones(len(q), q.shape[2], dtype=torch.bool)
    return heads(layer(packed(q), packed(None, k, v), mask=rows, context_mask=keys), count)


@of("transformers", call="bert's eager_attention_forward(module, q, k, v, mask)")
def bert_eager(q, k, v, *, bias=None, scale=None):
    from transformers.models.bert.modeling_bert import eager_attention_forward

    module = torch.nn.Module().eval()
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return eager_attention_forward(module, q, k, v, bias, scaling=scale)[0].transpose(1, 2)


@of("transformers", call="llama's eager_attention_forward(module, q, k, v, mask)", grouped=True)
def llama_eager(q, k, v, *, bias=None, scale=None):
    from transformers.models.llama.modeling_llama import eager_attention_forward

    module = torch.nn.Module().eval()
    module.num_key_value_groups = q.shape[1] // k.shape[1]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return eager_attention_forward(module, q, k, v, bias, scaling=scale)[0].transpose(1, 2)


@of("transformers", call="sdpa_attention_forward(module, q, k, v, mask)", grouped=True)
def transformers_sdpa(q, k, v, *, mask=None, scale=None):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    module = torch.nn.Module().eval()
    module.num_key_value_groups, module.is_causal = q.shape[1] // k.shape[1], False
    return sdpa_attention_forward(module, q, k, v, mask, scaling=scale)[0].transpose(1, 2)


@of("pytorch-forecasting", call="FullAttention()(q, k, v, mask)")
def pytorch_forecasting(q, k, v, *, allowed=None):
    return _forecasting(q, k, v, allowed, use_efficient_attention=False)


@of("pytorch-forecasting", call="FullAttention(use_efficient_attention=True)(q, k, v, mask)")
def pytorch_forecasting_efficient(q, k, v, *, allowed=None):
    return _forecasting(q, k, v, allowed, use_efficient_attention=True)


def _forecasting(q, k, v, allowed, **settings):
    from pytorch_forecasting.layers import FullAttention

    mask = None if allowed is None else SimpleNamespace(mask=~allowed)
    layer = FullAttention(mask_flag=allowed is not None, attention_dropout=0.0, **settings).eval()
    return layer(*(one.transpose(1, 2) for one in (q, k, v)), mask)[0].transpose(1, 2)


@of("neuralforecast", call="neuralforecast.common._modules.FullAttention()(q, k, v, mask)")
def neuralforecast(q, k, v, *, allowed=None):
    from neuralforecast.common._modules import FullAttention

    mask = None if allowed is None else SimpleNamespace(mask=~allowed)
    layer = FullAttention(mask_flag=allowed is not None, attention_dropout=0.0, output_attention=True).eval()
    return layer(*(one.transpose(1, 2) for one in (q, k, v)), mask)[0].transpose(1, 2)


@of("tab-transformer-pytorch", call="Attention(E)(x)")
def tab_transformer(q, k, v):
    from tab_transformer_pytorch.tab_transformer_pytorch import Attention

    count, width = width_of(q)
    layer = Attention(width, heads=count, dim_head=width // count)
    return heads(fused(layer, q, "to_qkv.weight", "to_out.weight")(packed(q, k, v))[0], count)


@of("pytorch-tabular", call="MultiHeadedAttention(E, H)(x)")
def pytorch_tabular(q, k, v):
    from pytorch_tabular.models.common.layers.transformers import MultiHeadedAttention

    count, width = width_of(q)
    layer = MultiHeadedAttention(width, count, width // count, 0.0)
    return heads(fused(layer, q, "to_qkv.weight", "to_out.weight")(packed(q, k, v)), count)


@of("unimol-tools", call="SelfMultiheadAttention(E, H)(x, key_padding_mask, attn_bias)")
def unimol(q, k, v, *, bias=None, lengths=None):
    from unimol_tools.models.transformers import SelfMultiheadAttention

    count, width = width_of(q)
    layer = fused(SelfMultiheadAttention(width, count, dropout=0.0), q, "in_proj.weight", "out_proj.weight")
    padding = None if lengths is None else ~keys_of(k, None, lengths)
    bias = None if bias is None else bias.expand(len(q), count, -1, -1).flatten(0, 1)
    return heads(layer(packed(q, k, v), padding, bias), count)


@of("uni2ts", call="uni2ts.module.attention.MultiHeadAttention(E, H)(q, k, v, attn_mask)")
def uni2ts(q, k, v, *, mask=None):
    from uni2ts.module.attention import MultiHeadAttention

    count, width = width_of(q)
    names = "q_proj.weight k_proj.weight v_proj.weight out_proj.weight"
    layer = separate(MultiHeadAttention(width, count, norm_layer=None), q, names)
    return heads(layer(packed(q), packed(k=k), packed(v=v), attn_mask=pairs_of(mask)), count)


@of("torch", call="torch.ao.nn.quantizable.MultiheadAttention(E, H)(q, k, v, attn_mask=)")
def torch_quantizable(q, k, v, *, bias=None):
    from torch.ao.nn.quantizable import MultiheadAttention

    count, width = width_of(q)
    layer = MultiheadAttention(width, count, batch_first=True)
    layer.in_proj_weight = layer.in_proj_bias = None  # its class's, which it does not use
    layer = separate(layer, q, "linear_Q.weight linear_K.weight linear_V.weight out_proj.weight")
    return heads(layer(packed(q), packed(k=k), packed(v=v), attn_mask=pairs_of(bias, heads=True))[0], count)


@of("axial-attention", call="axial_attention.SelfAttention(E, H)(x, kv)")
def axial(q, k, v):
    from axial_attention import SelfAttention

    count, width = width_of(q)
    return heads(halved(SelfAttention(width, count), q)(packed(q), packed(None, k, v)), count)


@of("torch", call="nn.MultiheadAttention(E, H)(q, k, v, need_weights=False)")
def torch_decoder_style(q, k, v, *, bias=None, lengths=None):
    """Return what nn.MultiheadAttention gives without weights, where it takes its fast path."""
    count, width = width_of(q)
    layer = torch.nn.MultiheadAttention(width, count, batch_first=True)
    layer = fused(layer, q, "in_proj_weight", "out_proj.weight")
    masks = {"attn_mask": None if bias is None else bias.expand(len(q), count, -1, -1).flatten(0, 1)}
    masks["key_padding_mask"] = None if lengths is None else ~keys_of(k, None, lengths)
    return heads(layer(packed(q), packed(k=k), packed(v=v), need_weights=False, **masks)[0], count)


@of("chronos-forecasting", call="chronos.chronos2.layers.MHA(config)(x, mask)")
def chronos(q, k, v, *, bias=None):
    from chronos.chronos2.config import Chronos2CoreConfig
    from chronos.chronos2.layers import MHA

    count, width = width_of(q)
    config = Chronos2CoreConfig(d_model=width, d_kv=width // count, num_heads=count, dropout_rate=0.0)
    layer = separate(MHA(config, use_rope=False), q, "q.weight k.weight v.weight o.weight", scaled=False)
    given = {"hidden_states": packed(q, k, v) * (q.shape[3] ** -0.25), "mask": bias}
    return heads(layer(**given).hidden_states * (q.shape[3] ** 0.25), count)


def layers() -> dict[str, Layer]:
    """Return name -> layer, in the order of the page."""
    return {name: one for name, one in globals().items() if isinstance(one, Layer)}


def main() -> None:
    """Ask the layers, all in this process, and write what they answer."""
    json_path, page_path, *names = sys.argv[1:]
    entries = []
    for name in names or layers():
        given = arrays(5, 5)
        try:
            off = np.abs(layers()[name](*given) - plain(*given)).max()
        except (CannotExpress, ImportError, OSError) as error:
            sys.stdout.write(f"{name}: not asked: {one_line(error)}\n")
            continue
        engine = named(f"tests.mha.atlas.layers:{name}")
        entry = entry_of(engine, (), Settings(here=True), 60.0)
        if not off < 1e-3:
            why = f"off by {off:.2g} without a mask, so no other answer says what it is about"
            entry = Entry(engine.id, engine.call, entry.date, why, entry.versions, entry.python)
        entries.append(replace(entry, id=name.replace("_", "-"), call=layers()[name].line))
        sys.stdout.write(
            f"{name}: {entry.why or [f'{one.question}: {one.how}' for one in entry.cells if one.status == 'parts']}\n"
        )
        sys.stdout.flush()
        found = whole(entries)
        write_json(json_path, found)
        write_whole(Path(page_path), page(found, HEAD, FOOT).encode())


if __name__ == "__main__":
    main()
