"""Recipes of families whose attention has no rotary positions."""

from collections.abc import Iterator
from dataclasses import replace

from mha.recipes.recipe import Recipe


def attentions(*models: str, kinds: tuple[str, ...] = ("",)) -> Iterator[str]:
    """Yield the names of the attention classes of these models."""
    return (f"{model}{kind}Attention" for model in models for kind in kinds)


BERT = Recipe(
    family="bert",
    models=("BERT, RoBERTa, ELECTRA, XLM-R",),
    summary="output.dense stands outside the self-attention, before dropout, residual and LayerNorm",
    classes=(
        *attentions("Bert", "BertGeneration", "Camembert", "Data2VecText", "Electra", kinds=("Self", "Cross")),
        *attentions("Ernie", "RoCBert", "Roberta", "RobertaPreLayerNorm", kinds=("Self", "Cross")),
        *attentions("XLMRoberta", "XLMRobertaXL", kinds=("Self", "Cross")),
    ),
    model_types=(
        *("bert", "bert-generation", "camembert", "data2vec-text", "electra", "ernie", "roc_bert", "roberta"),
        *("roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl"),
    ),
    layouts=("bert",),
    heads="num_attention_heads",
    dropout_key="attention_probs_dropout_prob",
    out="output.dense",
    core="self",
)

GPT2 = Recipe(
    family="gpt2",
    models=("GPT-2",),
    summary="one packed, transposed matrix; causal inside the module; the scale may be 1 or depend on the layer",
    classes=("GPT2Attention",),
    model_types=("gpt2",),
    layouts=("gpt2", "gpt2-cross"),
    heads="num_heads",
    dropout_key="attn_pdrop",
    out="c_proj",
    other_mask="encoder_attention_mask",
    scale="scale_attn_weights, scale_attn_by_inverse_layer_idx",
)

VIT = Recipe(
    family="vit",
    models=("ViT, DeiT, DINOv2",),
    summary="qkv_bias=False leaves a bias in o_proj alone; eager has its softmax in float32, also in float64",
    classes=(
        *attentions("AST", "DeiT", "Dinov2", "Dinov2WithRegisters", "IJepa", "Pixio", "ViT", "ViTMAE", "ViTMSN"),
        "VivitAttention",
    ),
    model_types=(
        *("audio-spectrogram-transformer", "deit", "dinov2", "dinov2_with_registers", "ijepa", "pixio"),
        *("vit", "vit_mae", "vit_msn", "vivit"),
    ),
    layouts=("llama",),  # the same four names; before transformers 5 they had BERT's
    heads="num_attention_heads",
    dropout_key="attention_probs_dropout_prob",
    out="o_proj",
    softmax_in_float32=True,
)

BART = Recipe(
    family="bart",
    models=("BART, mBART, Pegasus, M2M100",),
    summary="encoder, decoder (causal) and cross-attention are one class, told apart by the call",
    classes=(
        *attentions("Bart", "Blenderbot", "BlenderbotSmall", "M2M100"),
        *attentions("MBart", "Marian", "Pegasus", "PLBart"),
    ),
    model_types=("bart", "blenderbot", "blenderbot-small", "m2m_100", "marian", "mbart", "pegasus", "plbart"),
    layouts=("canonical",),
    heads="num_heads",
    dropout_key="attention_dropout",
    out="out_proj",
    other_states="key_value_states",
)

WHISPER = replace(  # it scales the queries before they are split: its stage "queries" is before the scale
    BART,
    family="whisper",
    models=("Whisper",),
    summary="no bias in k_proj; the scale is applied to the queries, not to the scores",
    classes=("WhisperAttention",),
    model_types=("whisper",),
)

DISTILBERT = replace(
    BERT,
    family="distilbert",
    models=("DistilBERT",),
    summary="its self-attention holds the output projection",
    classes=("DistilBertSelfAttention",),
    model_types=("distilbert",),
    layouts=("distilbert",),
    heads="n_heads",
    dropout_key="attention_dropout",
    out="out_lin",
    core="",
)

OPT = replace(
    BART,
    family="opt",
    models=("OPT",),
    summary="causal; the scale is applied to the queries, not to the scores",
    classes=("OPTAttention",),
    model_types=("opt",),
    other_states="",
    softmax_in_float32=True,
)

CLIP = replace(
    OPT,
    family="clip",
    models=("CLIP",),
    summary="images without a mask, texts causal; the scale is called `scale`",
    classes=tuple(attentions("AltCLIP", "ChineseCLIPVision", "CLIP", "CLIPSeg", "MetaClip2", "XCLIP")),
    model_types=(
        *("altclip_vision_model", "chinese_clip_vision_model", "clip_text_model", "clip_vision_model"),
        *("clipseg_text_model", "clipseg_vision_model", "metaclip_2_text_model", "metaclip_2_vision_model"),
        *("xclip_text_model", "xclip_vision_model"),
    ),
    scale_of=lambda core: float(core.scale),
)

SIGLIP = replace(
    CLIP,
    family="siglip",
    models=("SigLIP",),
    summary="as CLIP; its pooling head is a torch.nn.MultiheadAttention, which no recipe reads",
    classes=tuple(attentions("Siglip", "Siglip2")),
    model_types=("siglip2_text_model", "siglip2_vision_model", "siglip_text_model", "siglip_vision_model"),
)

WAV2VEC2 = replace(
    BART,
    family="wav2vec2",
    models=("Wav2Vec2, HuBERT",),
    summary="positions come from a convolution before the layers",
    classes=tuple(attentions("Data2VecAudio", "Hubert", "SEW", "UniSpeech", "UniSpeechSat", "Wav2Vec2")),
    model_types=("data2vec-audio", "hubert", "sew", "unispeech", "unispeech-sat", "wav2vec2"),
)

GPT_BIGCODE = replace(
    GPT2,
    family="gpt_bigcode",
    models=("GPT-BigCode, StarCoder 1",),
    summary="one matrix, not transposed: one key head for all queries, or head by head; self-attention alone",
    classes=("GPTBigCodeAttention",),
    model_types=("gpt_bigcode",),
    layouts=("gpt-bigcode",),
    other_states="",
    other_mask="attention_mask",
    cache="layer_past",
    softmax_in_float32=True,
    refused={"is_cross_attention": False},
    scale="scale_attn_weights",
)

GPT_NEO = replace(
    OPT,
    family="gpt_neo",
    models=("GPT-Neo",),
    summary="a scale of 1; masks of its own: causal, in local layers a window; no other implementation than eager",
    classes=("GPTNeoSelfAttention",),
    model_types=("gpt_neo",),
    cache="layer_past",
    place="layer_id",
    only="eager",
    sees=lambda core, queries, keys: core.bias[0, 0, keys - queries : keys, :keys].cpu().numpy(),
    scale="none: 1",
    scale_of=lambda core: 1.0,
)

PLAIN = (BERT, GPT2, VIT, BART, WHISPER, DISTILBERT, OPT, CLIP, SIGLIP, WAV2VEC2, GPT_BIGCODE, GPT_NEO)
"""Every recipe of this kind."""
