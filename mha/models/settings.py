"""Which keys of a config.json leave attention as the classes of its model type compute it.

transformers reads the keys that its class knows, and passes over all others: a fork that computes something else by a
key of its own has the same `model_type`. So a key is taken if transformers' class has it (`mha.models.table`), or if it
stands here, with the reason why it changes nothing. Any other is refused.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mha.models.config import DEPTH_KEYS, HEAD_KEYS, SIDES, WIDTH_KEYS
from mha.models.table import generation_settings, model_type
from mha_core.errors import shown

Fits = Callable[[Any, Mapping[str, Any]], bool]
"""(value, the whole config) -> whether this value changes nothing."""


@dataclass(frozen=True)
class Reviewed:
    """A set of config keys that change nothing in attention, although transformers' config class lacks them.

    Attributes:
        keys: the keys, separated by spaces.
        why: the reason. If only some values are harmless, `why` names these values, as the end of a message.
        fits: (value, config) -> whether the value is harmless. Default: every value is.
    """

    keys: str
    why: str
    fits: Fits = lambda value, config: True


def one_of(*values: Any) -> Fits:
    """Return a function (value, config) -> whether the value is one of `values`, of the same type: True is not 1."""
    return lambda value, config: any(type(value) is type(one) and value == one for one in values)


def _is_text(value: Any, _: Mapping[str, Any]) -> bool:
    return value is None or isinstance(value, str)


def _is_heads(value: Any, config: Mapping[str, Any]) -> bool:
    return {value} == _heads(config) if isinstance(value, int) else value is None


def _is_head_width(value: Any, config: Mapping[str, Any]) -> bool:
    widths = {config[key] for key in WIDTH_KEYS if isinstance(config.get(key), int)}
    if value is None or not isinstance(value, int):
        return value is None
    return bool(widths) and all(width == value * heads for width in widths for heads in _heads(config))


def _heads(config: Mapping[str, Any]) -> set[Any]:
    """Every number of heads in a config."""
    keys = (*HEAD_KEYS, *(f"{side}_attention_heads" for side in SIDES))
    return {config[key] for key in keys if isinstance(config.get(key), int)}


DECODERS = (
    *("bart", "blenderbot", "blenderbot-small", "gpt2", "m2m_100", "marian", "mbart", "opt", "pegasus", "plbart"),
    "whisper",
)
"""Model types whose decoders attend causally, and to an encoder, by their class."""


def _is_no_switch(value: Any, config: Mapping[str, Any]) -> bool:
    return value in (None, False) or (value is True and config.get("model_type") in DECODERS)


REVIEWED = (
    Reviewed(
        """
        name_or_path _commit_hash tokenizer_class processor_class language languages name finetuning_task task
        task_id task_specific_params num_labels _num_labels base_model_prefix sentence_transformers license
        author created_date sbert_ce_default_activation_function model_max_length max_seq_length torch_dtype
        keys_to_ignore_at_inference do_lower_case model_name unsloth_version unsloth_fixed custom_pipelines
        enable_recompute fuse paddlenlp_version adapter_transformers_version sentence_transformers_version
        peft_version
        """,
        "names, tasks and where the model came from",
    ),
    Reviewed(
        """
        cls_token_id sep_token_id mask_token_id unk_token_id bos_token_id eos_token_id pad_token_id
        prev_sot_token_id decoder_start_token_id no_timestamps_token_id forced_decoder_ids
        force_bos_token_to_be_generated lang_to_id task_to_id is_multilingual max_initial_timestamp_index
        return_timestamps alignment_heads max_new_tokens save_step
        """,
        "numbers of tokens, and how a text is generated from the model's outputs",
    ),
    Reviewed("prefix", "only a text is what stands before every prompt", _is_text),
    Reviewed(
        "temperature top_p typical_p",
        "only 1 is the usual value of generation, and forks use the name for their softmax",
        one_of(None, 1.0, 1),
    ),
    Reviewed(
        "top_k",
        "only 50 or 0 is usual in generation, and forks use the name for a sparse softmax",
        one_of(None, 50, 0),
    ),
    Reviewed(
        """
        initializer_range initializer_scale initializer_factor init_std gradient_checkpointing use_bfloat16
        xla_device torchscript tf_legacy_loss label_smoothing pre_trained training tie_word_embeddings
        tie_weights_ tie_encoder_decoder summary_first_dropout classif_dropout classifier_dropout
        replacing_rate activation_dropout attention_dropout dropout hidden_dropout layerdrop encoder_layerdrop
        decoder_layerdrop qa_dropout student_encoder_layers student_decoder_layers
        attention_probs_dropout_prob hidden_dropout_prob embd_pdrop resid_pdrop attn_pdrop
        """,
        "how it was initialised and trained: dropout and layers left out act in training alone",
    ),
    Reviewed(
        """
        pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
        pool_act output_past predict_special_tokens use_return_dict summary_type summary_use_proj
        summary_activation summary_proj_to_labels summary_last_dropout
        """,
        "what is made of the last hidden states: Google's multilingual and Chinese BERT have such keys",
    ),
    Reviewed(
        """
        normalize_before normalize_embedding add_final_layer_norm extra_layer_norm variant layernorm_variant
        do_blenderbot_90_layernorm add_bias_logits layer_norm_epsilon
        """,
        "LayerNorms and the logits' bias in earlier releases' one class for BART and its kin; now the class says it",
    ),
    Reviewed(
        """
        static_position_embeddings extra_pos_embeddings type_vocab_size emb_size embedding_size n_special
        n_ctx use_cache vocab_size_or_config_json_file max_position_embeddings interpolate_antialias
        interpolate_offset video_size enable_cls
        """,
        "embeddings before the first layer, and the most positions",
    ),
    Reviewed("is_decoder add_cross_attention", "only false is what the class computes", _is_no_switch),
    Reviewed("directionality", "only 'bidi' attends both ways", one_of("bidi")),
    Reviewed(
        "cell structure",
        "only an empty one is the remark of TinyBERT's training",
        one_of({}, [], None, ""),
    ),
    Reviewed("cross_attention_hidden_size", "only null is the width of the class", one_of(None)),
    Reviewed("position_embedding_type", "only 'absolute' leaves the scores alone", one_of(None, "absolute")),
    Reviewed("num_key_value_heads", "only as many as query heads is what the class has", _is_heads),
    Reviewed(
        "head_dim attention_head_size",
        "only what follows from the other sizes is what the class has",
        _is_head_width,
    ),
    Reviewed(
        " ".join((*HEAD_KEYS, *WIDTH_KEYS, *DEPTH_KEYS)),
        "a size under another name: `contradiction` compares them",
    ),
    Reviewed(
        "attn_implementation _attn_implementation _attn_implementation_internal",
        "only these kernels are known: eager, sdpa, flash_attention_2, flash_attention_3, flex_attention",
        one_of(None, "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"),
    ),
    Reviewed("_attn_implementation_autoset", "whether transformers chose the kernel"),
    Reviewed("auto_map quantization_config pruned_heads", "each has a check and a message of its own"),
)
"""Keys that transformers' classes need not have, and that change nothing."""

_BY_KEY: Mapping[str, Reviewed] = {key: row for row in reversed(REVIEWED) for key in row.keys.split()}


def strange_setting(config: Mapping[str, Any], name: str) -> str:
    """Return a sentence about the first key of a config that may change what attention computes; "" if none does.

    Args:
        config: the content of config.json. In the second example, only head_dim=4 would be harmless, which is 12 / 3.
        name: its `model_type`, one of `mha.models.families.MODEL_TYPES`.

    >>> strange_setting({"hidden_size": 12, "pooler_type": "first", "soft_cap": 30.0}, "bert")
    'soft_cap=30.0 is no setting of BertConfig in transformers, and may change what attention computes'
    >>> strange_setting({"hidden_size": 12, "num_attention_heads": 3, "head_dim": 6}, "bert")
    'head_dim=6 may change what attention computes; only what follows from the other sizes is what the class has'
    """
    known = model_type(name)
    found = (strange_key(key, value, config, known.settings, known.config) for key, value in config.items())
    return next(filter(None, found), "")


def strange_key(key: str, value: Any, config: Mapping[str, Any], settings: Collection[str], kind: str) -> str:
    """Return a sentence about one key of a config, if it may change what attention computes; else "".

    Args:
        key, value, config: the key, its value, and the whole config.
        settings: the keys of transformers' class.
        kind: the name of that class.
    """
    row = _BY_KEY.get(key)
    if key in settings:
        return ""
    if row is None and key not in generation_settings():
        said = f"is no setting of {kind} in transformers, and may change what attention computes"
        return f"{shown(key)}={shown(value)} {said}"
    if row is not None and not row.fits(value, config):
        return f"{shown(key)}={shown(value)} may change what attention computes; {row.why}"
    return ""
