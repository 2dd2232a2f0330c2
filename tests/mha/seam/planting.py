"""Small models of transformers with random weights, and ways to plant one fault in them (`faults.py`)."""

import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import transformers as hf

SIZES = {"hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = {**SIZES, "vocab_size": 41, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 32}
DECODER |= {"pad_token_id": 0, "eos_token_id": 1}
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 10, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 6}
DEEPSEEK = {**DECODER, **LATENT, "num_key_value_heads": 4, "first_k_dense_replace": 2, "head_dim": 4}
WINDOW = {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
GEMMA = {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 10}
T5 = {"d_model": 24, "d_kv": 6, "d_ff": 18, "num_layers": 2, "num_heads": 4, "vocab_size": 41}

MODELS: dict[str, tuple[type, Any]] = {
    "llama": (hf.LlamaForCausalLM, lambda: hf.LlamaConfig(**DECODER)),
    "qwen3": (hf.Qwen3ForCausalLM, lambda: hf.Qwen3Config(**DECODER)),
    "gpt_oss": (hf.GptOssForCausalLM, lambda: hf.GptOssConfig(**DECODER, **EXPERTS, **WINDOW)),
    "gemma2": (hf.Gemma2ForCausalLM, lambda: hf.Gemma2Config(**DECODER, **GEMMA, **WINDOW)),
    "vaultgemma": (hf.VaultGemmaForCausalLM, lambda: hf.VaultGemmaConfig(**DECODER)),
    "diffllama": (hf.DiffLlamaForCausalLM, lambda: hf.DiffLlamaConfig(**DECODER)),
    "deepseek_v3": (hf.DeepseekV3ForCausalLM, lambda: hf.DeepseekV3Config(**DEEPSEEK)),
    "t5": (hf.T5EncoderModel, lambda: hf.T5Config(**T5)),
}


def model_of(family: str, implementation: str = "eager", dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A model of that family, every parameter of it random."""
    made, config = MODELS[family]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        settings = config()
        settings._attn_implementation = implementation
        settings._experts_implementation = "eager"  # the others do not run in float64
        model = made(settings).eval().to(dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def inputs_of(left: bool = False) -> dict[str, torch.Tensor]:
    """Two items, one of them padded: on the right, or on the left, where a padded query sees no key."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        ids = torch.randint(3, 41, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, slice(0, 2) if left else slice(5, 7)] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


class Steps(torch.nn.Module):
    """A decoder that reads the text in three steps, the later ones with a cache."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        kept, logits = None, []
        for start, stop in ((0, 5), (5, 6), (6, 7)):
            found = self.model(
                input_ids[:, start:stop], attention_mask=attention_mask[:, :stop], past_key_values=kept, use_cache=True
            )
            kept = found.past_key_values
            logits.append(found.logits)
        return torch.cat(logits, dim=1)


@dataclass(frozen=True)
class Row:
    """A fault of a kind in a family: on which side of the function, in which module, and how it is planted."""

    kind: str
    family: str
    side: str  # "in", "before", "behind"; "port": it is right; "padding": only rows of padding differ
    target: str
    plant: Callable[[torch.nn.Module, str], Any]
    steps: bool = False
    left: bool = False


def modeling_of(module: torch.nn.Module) -> Any:
    """Return the file of transformers in which the class of that module stands."""
    return importlib.import_module(type(module).__module__)


def edited(function: Any, globals_: Any, edits: tuple[str, ...]) -> Any:
    """Return that function with texts of its source replaced: old, new, old, new."""
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        if old not in source:
            raise ValueError(f"{function.__name__} has no {old!r}")
        source = source.replace(old, new)
    names: dict[str, Any] = {}
    exec("from __future__ import annotations\n" + source, vars(globals_), names)
    return names[function.__name__]


def line(*edits: str) -> Callable[[torch.nn.Module, str], Any]:
    """A change of `forward` of the target alone."""

    @contextmanager
    def planted(model: torch.nn.Module, target: str) -> Iterator[None]:
        module = model.get_submodule(target)
        own = type(module)
        forward = edited(own.forward, modeling_of(module), edits)
        module.__class__ = type(own.__name__, (own,), {"forward": forward, "__module__": own.__module__})
        yield

    return planted


def function(*edits: str) -> Callable[[torch.nn.Module, str], Any]:
    """A change of the attention function, where the target calls it."""

    @contextmanager
    def planted(model: torch.nn.Module, target: str) -> Iterator[None]:
        module = model.get_submodule(target)
        modeling = modeling_of(module)
        own = modeling.eager_attention_forward
        wrong = edited(own, modeling, edits)

        def eager_attention_forward(caller: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
            return (wrong if caller is module else own)(caller, *arguments, **options)

        with mock.patch.object(modeling, "eager_attention_forward", eager_attention_forward):
            yield

    return planted


def setting(change: Callable[[Any], Any]) -> Callable[[torch.nn.Module, str], Any]:
    """A change of the target itself: an attribute, a parameter."""

    @contextmanager
    def planted(model: torch.nn.Module, target: str) -> Iterator[None]:
        with torch.no_grad():
            change(model.get_submodule(target))
        yield

    return planted
