"""Which arrays of a file have a place in a model of a known type; any other may change what attention computes.

Forks put relative position biases, rotary frequencies, adapters and gates beside the arrays of the class that their
config names, and transformers passes over them. So an array is taken if transformers' classes of the model type have
it (`mha.models.table`), or if it stands here, with the reason why no attention layer reads it.
"""

import re
from collections.abc import Mapping
from typing import Literal

import numpy as np

from mha.formats.checkpoint import Entry
from mha.models.table import model_type

Kind = Literal["body", "head", "buffer", ""]
"""Of an array: in the main model, in a head behind it, a constant, or without a place."""

WRAPPERS = ("module", "_orig_mod", "model", "0", "auto_model")
"""What names may begin with besides the class's own prefix.

Of DataParallel, torch.compile, trainers that hold a `model`, and sentence-transformers, whose first module is "0".
"""

HEADS = (
    *("classifier", "pre_classifier", "classification_head", "cls", "score", "qa_outputs", "lm_head", "pooler"),
    *("discriminator_predictions", "generator_predictions", "generator_lm_head", "final_logits_bias", "crf"),
    *("vocab_transform", "vocab_layer_norm", "vocab_projector", "text_projection", "visual_projection"),
    *("sequence_summary", "multiple_choice_head", "proj_out"),
)
"""Modules at the top of a model that read the hidden states after its last attention layer."""

MORE_HEADS: Mapping[str, tuple[str, ...]] = {"vit_mae": ("decoder",)}
"""Model type -> further such modules: earlier releases had other names in the decoder of ViTMAE's pretraining."""

BUFFERS: Mapping[str, tuple[str, ...]] = {
    "embeddings": ("embeddings.position_ids", "embeddings.token_type_ids"),
    "h.#.attn": ("h.#.attn.bias", "h.#.attn.masked_bias"),
    "h.#.crossattention": ("h.#.crossattention.bias", "h.#.crossattention.masked_bias"),
    "encoder.layers.#.self_attn": ("encoder.version", "encoder.embed_positions.weights"),
    "decoder.layers.#.self_attn": ("decoder.version", "decoder.embed_positions.weights"),
}
"""Module that a model must have -> constants that earlier releases saved for it.

Numbers of positions, the causal mask and the number for later keys, a version of fairseq, sinusoids.
"""

IN_OTHER_FRAMEWORKS = {
    **dict.fromkeys(("kernel", "embeddings", "embedding", "gamma", "scale"), "weight"),
    "beta": "bias",
}
"""Last part of a name in TensorFlow and Flax -> in PyTorch."""

TF_CLASS = re.compile(r"tf[a-z0-9_]*")
"""The name that Keras gives a model of transformers in TensorFlow: TFBertModel is tf_bert_model."""


def dotted(name: str) -> str:
    """Return the name that an array of TensorFlow or Flax would have in PyTorch: its components, joined by ".".

    >>> dotted("encoder/layer_._0/attention"), dotted("mlm___cls/predictions")
    ('encoder.layer.0.attention', 'cls.predictions')
    """
    if "/" not in name:
        return name
    return ".".join(part.rpartition("___")[2] for part in name.replace("_._", "/").split("/"))


def kind_of(name: str, of: str) -> Kind:
    """Return the part of a model that an array belongs to: "body", "head" or "buffer"; "" if the model lacks it.

    Args:
        name: the array's name in the file, of any framework.
        of: the model's `model_type`, one of `mha.models.families.MODEL_TYPES`.

    >>> kind_of("bert.encoder.layer.3.attention.self.query.weight", "bert"), kind_of("score.weight", "bert")
    ('body', 'head')
    >>> kind_of("bert.embeddings.LayerNorm.beta", "bert"), kind_of("mine.embeddings.LayerNorm.beta", "bert")
    ('body', '')
    >>> kind_of("bert/tf_bert_model/bert/encoder/layer_._3/attention/self/query/kernel", "bert")
    'body'
    """
    known = model_type(of)
    parts = _parts(name)
    buffers = {
        name
        for module, names in BUFFERS.items()
        if any(own.startswith(f"{module}.") for own in known.body)
        for name in names
    }
    for start in range(len(parts)):
        own = ".".join("#" if part.isdigit() else part for part in parts[start:])
        if own in known.body:
            return "body"
        if own in known.heads or parts[start] in (*HEADS, *MORE_HEADS.get(of, ())):
            return "head"
        if own in buffers:
            return "buffer"
        if parts[start] not in (*WRAPPERS, *known.prefixes):
            break
    return ""


def is_constant(name: str, entry: Entry) -> bool:
    """Return whether the buffer `entry` holds what transformers saves under `name`: positions, or a causal mask."""
    last = _parts(name)[-1]
    if last == "position_ids":
        numbers = entry.load().reshape(-1)
        return bool(np.array_equal(numbers, np.arange(len(numbers))))
    if last == "bias" and len(entry.shape) == 4:
        mask = entry.load()
        return bool(np.array_equal(mask.astype(bool), np.tril(np.ones(mask.shape, dtype=bool)))) and mask.max() == 1
    return last != "bias"


def strange_arrays(entries: Mapping[str, Entry], of: str) -> list[str]:
    """Return the names, in the file's order, of the arrays that a model of type `of` does not have."""
    found = []
    for name, entry in entries.items():
        kind = kind_of(name, of)
        if not kind or (kind == "buffer" and not is_constant(name, entry)):
            found.append(name)
    return found


def _parts(name: str) -> list[str]:
    """The parts of a name as in PyTorch, without what Keras puts before a model's own name."""
    parts = dotted(name.replace("model.shared/model.shared", "model.shared")).split(".")
    if "/" in name:
        of_class = [index for index, part in enumerate(parts[:2]) if TF_CLASS.fullmatch(part)]
        parts = parts[of_class[-1] + 1 :] if of_class else parts
        return [*parts[:-1], IN_OTHER_FRAMEWORKS.get(parts[-1], parts[-1])]
    if len(parts) > 1 and parts[-2] == "LayerNorm" and parts[-1] in ("gamma", "beta"):
        return [*parts[:-1], IN_OTHER_FRAMEWORKS[parts[-1]]]
    return parts
