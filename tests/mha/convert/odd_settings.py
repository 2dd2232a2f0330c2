"""Models with settings that few have: what is known or proved of their layers, against what these gave.

The canonical file counts positions by itself: no table of the model's is used.
"""

import json

import numpy as np
import torch
import transformers as hf

import mha
from mha.convert.convert import convert
from mha.convert.verify import VerificationFailed
from mha.formats import open_checkpoint
from mha.formats.layer import read_layer
from mha.recipes import recipe_for
from mha_core import AttentionInputs, AttentionMask, RotaryInputs, SpecError
from mha_core.layouts import get
from mha_core.reference import pipeline as reference
from tests.mha.convert import known_models
from tests.mha.recipes.test_decoders import SIZES

NEITHER = (
    *("llama of a share", "hunyuan dynamic", "olmo clipped", "dbrx", "falcon alibi", "nanochat", "nanochat base"),
    *("qwen2-vl text", "qwen3-vl text", "bert relative", "dinov3"),
)
REFUSED = {"known": (*NEITHER, "modernbert"), "proved": NEITHER}
"""How it is asked -> those that are refused."""

BASE = {"rope_type": "default", "rope_theta": 700.0}


def decoder_of(model_type, changes):
    said = {**SIZES, **changes}
    config = hf.AutoConfig.for_model(model_type, **said)
    kind = hf.AutoModel if model_type.endswith("_text") and "vl_" in model_type else hf.AutoModelForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(len(str(changes)))
        config._experts_implementation = "eager"
        model = kind.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.add_(torch.randn_like(parameter) * (0.4 if "norm" in name else 0.2))
    return model


def written(model, folder):
    """The model in a folder, and a config of keys that its class declares."""
    model.save_pretrained(folder)
    declared = type(model.config)().to_dict()
    said = json.loads((folder / "config.json").read_text())
    foreign = ("num_key_value_heads", "intermediate_size")
    (folder / "config.json").write_text(
        json.dumps({k: v for k, v in said.items() if k not in foreign or k in declared})
    )


def calls(model, batch):
    """Name of each attention module -> what it was given, its mask, and what its output projection gave."""
    found, handles = {}, []
    for name, module in model.named_modules():
        recipe = recipe_for(module)
        if recipe is None:
            continue
        out = module.get_submodule(recipe.out) if recipe.out else module
        core = module.get_submodule(recipe.core) if recipe.core else module

        def given(_module, args, kwargs, name=name, recipe=recipe):
            states = args[0] if args else kwargs["hidden_states"]
            others = kwargs.get(recipe.other_states)
            found.setdefault(name, {})["states"] = states.numpy(), (states if others is None else others).numpy()
            mask = kwargs.get("attention_mask" if others is None else recipe.other_mask)
            found[name]["mask"] = None if mask is None else mask.numpy()
            if recipe.sees is not None:
                found[name]["sees"] = recipe.sees(_module, states.shape[1], states.shape[1])

        def gave(_module, _args, output, name=name):
            found[name]["output"] = output.numpy()

        handles += [core.register_forward_pre_hook(given, with_kwargs=True), out.register_forward_hook(gave)]
    with torch.no_grad():
        model(**batch)
    for handle in handles:
        handle.remove()
    return found


def off(config, weights, call):
    """How far a canonical layer that counts positions is from what the module gave, over its largest number."""
    states, others = call["states"]
    allowed = np.ones((len(states), 1, states.shape[1], others.shape[1]), bool)
    if call["mask"] is not None:
        mask = call["mask"]
        allowed &= mask if mask.dtype == bool else mask > -1e30
    elif call.get("causal"):
        allowed &= np.tri(*allowed.shape[2:], dtype=bool)
    allowed &= call.get("sees", True)
    rotary = None if config.rotary is None else RotaryInputs(positions=np.arange(states.shape[1]))
    states, others = states.astype(np.float64), others.astype(np.float64)
    inputs = AttentionInputs(states, others, others, AttentionMask(allowed=allowed), rotary=rotary)
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    output = reference.run(config, wide, inputs).output
    has_key = allowed.any(axis=(1, 3))
    return float(np.abs(output - call["output"])[has_key].max() / np.abs(call["output"]).max())


def said_of(folder, recorded=None):
    """The word for each layer of a folder and its canonical layer; or why it is refused."""
    out = folder.parent / "canonical.safetensors"
    try:
        done = convert(folder, to_layout="canonical", out=out, every=True, force=True, recorded=recorded or ())
    except (SpecError, VerificationFailed) as error:
        return str(error)
    with open_checkpoint(out) as checkpoint:
        return {
            one.to_prefix: (one.standing.word, *read_layer(checkpoint, get("canonical"), one.to_prefix)[:2])
            for one in done.layers
        }


def check(name, model, batch, folder, causal):
    """Every layer that is known or proved gives what its module gave; no more are refused than are listed."""
    written(model, folder)
    found = calls(model, batch)
    recording, refused = folder.parent / "calls.safetensors", {}
    try:
        with torch.no_grad(), mha.capture(model, recording, overwrite=True):
            model(**batch)
    except SpecError as error:
        refused["proved"] = str(error)
    for way, recorded in (("known", None), ("proved", recording)):
        if way in refused:
            continue
        said = said_of(folder, recorded)
        if isinstance(said, str):
            refused[way] = said
            continue
        for index, (prefix, (word, config, weights)) in enumerate(said.items()):
            assert word == way
            call = found.get(prefix) or list(found.values())[index]  # some are renamed when they are saved
            assert off(config, weights, {**call, "causal": causal}) < 1e-4, (way, prefix, config)
    assert {way for way in REFUSED if name in REFUSED[way]} == set(refused), refused


def check_decoder(name, model_type, changes, folder):
    model = decoder_of(model_type, changes)
    batch = {"input_ids": torch.arange(2 * 18).reshape(2, 18) * 7 % 29 + 1, "use_cache": False}
    check(name, model, batch, folder / "model", causal=True)


def check_encoder(name, model_type, changes, folder):
    model = known_models.model_of(model_type, **changes)
    batch = known_models.batch_of(model_type, model)
    batch |= {"use_cache": False} if hasattr(model.config, "use_cache") else {}
    check(name, model, batch, folder / "model", causal=model_type == "gpt2")
