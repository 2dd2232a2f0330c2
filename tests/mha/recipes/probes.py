"""Probes: show where attention modules of Hugging Face transformers differ from the definition or from expectation.

Each is called without arguments and tries one difference on the installed version. It returns a sentence with the
numbers that it saw, or None if there is no difference (any more).
"""

from typing import Any


def eager_empty_row() -> str | None:
    """A text of padding alone attends to all of it evenly in eager, and to nothing in sdpa."""
    import torch

    lens = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    heads = {}
    for implementation in ("eager", "sdpa"):
        model = _small("Bert", implementation)
        seen: list[Any] = []
        attention = model.encoder.layer[0].attention.self
        with attention.register_forward_hook(lambda _m, _a, output, seen=seen: seen.append(output[0])), torch.no_grad():
            model(input_ids=torch.arange(10).reshape(2, 5), attention_mask=lens)
        heads[implementation] = seen[0][1]
    spread = float((heads["eager"] - heads["eager"][:1]).abs().max())
    size, other = float(heads["eager"].abs().max()), float(heads["sdpa"].abs().max())
    if size == other:
        return None
    return (
        f"every query of a text of padding alone gets the same vector (they differ by {spread:.1g}), up to {size:.2g} "
        f"large, with attn_implementation='eager'; with 'sdpa' the largest number is {other:.2g}"
    )


def eager_without_a_mask_is_not_causal() -> str | None:
    """A GPT-2 attention that is given no mask looks ahead in eager, and not in sdpa."""
    import torch

    moved = {}
    for implementation in ("eager", "sdpa"):
        module = _small("GPT2", implementation).h[0].attn
        states = torch.linspace(-1.0, 1.0, 60).sin().reshape(1, 5, 12)
        later = states.clone()
        later[:, 4] += 1.0
        with torch.no_grad():
            moved[implementation] = float((module(states)[0] - module(later)[0])[:, :4].abs().max())
    if moved["eager"] == moved["sdpa"]:
        return None
    return (
        f"changing the last of 5 tokens moves the outputs before it by {moved['eager']:.2g} with "
        f"attn_implementation='eager', by {moved['sdpa']:.2g} with 'sdpa'"
    )


def eager_adds_a_bool_mask() -> str | None:
    """A bool mask given to an attention module is added to the scores as 0 and 1 in eager: nothing is masked."""
    import torch

    allowed = torch.tensor([True, True, True, False, False]).reshape(1, 1, 1, 5)
    weight = {}
    for mask in (allowed, torch.where(allowed, 0.0, torch.finfo(torch.float32).min)):
        module = _small("Bert", "eager").encoder.layer[0].attention.self
        with torch.no_grad():
            _, weights = module(torch.linspace(-1.0, 1.0, 60).sin().reshape(1, 5, 12), attention_mask=mask)
        weight[mask.dtype] = float(weights[..., 3:].sum(-1).max())
    if weight[torch.bool] == 0.0:
        return None
    return (
        f"two keys that a bool mask excludes get up to {weight[torch.bool]:.2g} of a query's weight, "
        f"and {weight[torch.float32]:.2g} with the same mask as float"
    )


def vit_softmax_in_float32() -> str | None:
    """A ViT in float64 has its softmax in float32 in eager."""
    import torch

    outputs = {}
    for implementation in ("eager", "sdpa"):
        module = _small("ViT", implementation).double().layers[0].attention
        with torch.no_grad():
            outputs[implementation] = module(torch.linspace(-1.0, 1.0, 60).double().sin().reshape(1, 5, 12))[0]
    error = float((outputs["eager"] - outputs["sdpa"]).abs().max())
    if error < 1e-13:
        return None
    return f"in float64 the output with attn_implementation='eager' is {error:.1g} away from that with 'sdpa'"


_SIZES = {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 1, "intermediate_size": 8}
_MODELS: dict[str, dict[str, Any]] = {
    "Bert": {"vocab_size": 10, **_SIZES},
    "GPT2": {"vocab_size": 10, "bos_token_id": 1, "eos_token_id": 2, "n_embd": 12, "n_head": 3, "n_layer": 1},
    "ViT": {"image_size": 4, "patch_size": 2, **_SIZES},
}


def _small(name: str, implementation: str) -> Any:
    """A model with the same large random weights each time; the global random state stays as it is."""
    import torch
    import transformers

    kind = getattr(transformers, f"{name}Model")
    config = getattr(transformers, f"{name}Config")(**_MODELS[name])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind._from_config(config, attn_implementation=implementation).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.4)
    return model
