"""Recipes of families that turn queries and keys, and whose projections are fused or called otherwise than Llama's."""

from dataclasses import replace

from mha.recipes.recipe import Norms
from mha.recipes.rows.decoders import LLAMA, like_llama
from mha.recipes.rows.plain import BERT
from mha.recipes.turns import OwnTables, SinusoidalTurn, Turn
from mha_core import QueryKeyNorm

LAYER = Norms(QueryKeyNorm("layer"), "q_layernorm", "k_layernorm", "eps", "qk_layernorm")

ROFORMER = replace(
    BERT,
    family="roformer",
    models=("RoFormer",),
    summary="BERT's projections; pairs (2 k, 2 k + 1) turn by one table of sines and cosines",
    classes=("RoFormerSelfAttention",),
    model_types=("roformer",),
    heads="num_attention_heads",
    other_states="",
    only="eager",
    turn=SinusoidalTurn(),
    refused={"rotary_value": False},
    scale_of=lambda core: float(core.attention_head_size**-0.5),
)

GPTJ = like_llama(
    "gptj",
    ("GPTJ",),
    "pairs (2 k, 2 k + 1) of a share of each head; the tables are the module's own; eager alone",
    models=("GPT-J",),
    layouts=("canonical",),
    heads="num_attention_heads",
    dropout_key="attn_pdrop",
    out="out_proj",
    cache="layer_past",
    only="eager",
    turn=OwnTables(),
    scale_of=lambda core: 1.0 / float(core.scale_attn),
)

OTHERS = (
    like_llama(
        "phi",
        ("Phi",),
        "a share of each head turns; the output projection is `dense`; LayerNorm of each head, if qk_layernorm",
        models=("Phi-1, 1.5, 2",),
        layouts=("phi",),
        out="dense",
        norms=LAYER,
    ),
    like_llama(
        "phi3",
        ("Phi3",),
        "one matrix of all queries, all keys, all values",
        models=("Phi-3", "Phi-4-mini"),
        layouts=("phi3",),
    ),
    like_llama(
        "dbrx",
        ("Dbrx",),
        "as Phi-3, with other names; clip_qkv of attn_config, where it is set, is refused",
        models=("DBRX",),
        layouts=("dbrx",),
        heads="num_heads",
        out="out_proj",
        refused={"clip_qkv": None},
        turn=Turn(share=""),
    ),
    like_llama(
        "gpt_neox",
        ("GPTNeoX",),
        "one matrix, head by head (query, key, value); a share of each head turns",
        models=("GPT-NeoX, Pythia",),
        layouts=("gpt-neox",),
        out="dense",
        cache="layer_past",
    ),
    like_llama(
        "persimmon",
        ("Persimmon",),
        "as GPT-NeoX, with a LayerNorm of each head, if qk_layernorm",
        models=("Persimmon",),
        layouts=("gpt-neox",),
        heads="num_heads",
        out="dense",
        norms=LAYER,
    ),
    like_llama(
        "falcon",
        ("Falcon",),
        "one matrix, group by group (queries, key, value), for one key head, for several, or for each query; no alibi",
        models=("Falcon 7B, 40B",),
        layouts=("gpt-neox",),
        heads="num_heads",
        out="dense",
        cache="layer_past",
        repeated=lambda core: bool(core.new_decoder_architecture),
        needs_mask=True,
        softmax_in_float32=False,
        refused={"alibi": False},
        scale_of=lambda core: float(core.inv_norm_factor),
    ),
    like_llama(
        "modernbert",
        ("ModernBert",),
        "one matrix (3, H, d rows); windows on both sides, as masks; layers with and without have tables of their own",
        models=("ModernBERT",),
        layouts=("modernbert",),
        out="Wo",
        scale_of=lambda core: float(core.head_dim**-0.5),
    ),
    GPTJ,
    replace(
        GPTJ,
        family="codegen",
        models=("CodeGen",),
        summary="as GPT-J, with one matrix of four blocks (queries, values, keys); a mask is added before the scale",
        classes=("CodeGenAttention",),
        model_types=("codegen",),
        layouts=("codegen",),
        scales_mask=True,
    ),
    like_llama(
        "nanochat",
        ("NanoChat",),
        "turns by the negative angles; RMS norm of each head without a weight, after the rotation",
        models=("nanochat",),
        turn=Turn(backwards=True, in_config=False),
        norms=Norms(QueryKeyNorm("rms", order="after", weight="none"), eps="eps"),
    ),
    replace(
        LLAMA,
        family="dinov3_vit",
        models=("DINOv3",),
        summary="patches alone turn, by their row and column; keys may have no bias",
        classes=("DINOv3ViTAttention",),
        model_types=("dinov3_vit",),
        softmax_in_float32=False,
        scale="",
        turn=Turn(patches_alone=True, share="", in_config=False),
    ),
    replace(
        ROFORMER,
        family="esm",
        models=("ESM-2",),
        summary="BERT's projections; the scale is applied to the queries before they turn",
        classes=("EsmSelfAttention",),
        model_types=("esm",),
        only="",
        refused={"is_decoder": False},
        turn=Turn(acts=lambda core: core.position_embedding_type == "rotary", share="", in_config=False),
    ),
    ROFORMER,
)
"""Every recipe of this kind."""
