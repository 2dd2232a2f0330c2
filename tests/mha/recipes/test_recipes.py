"""Recipes: every family's live modules and checkpoints say what they compute, and compute what they say."""

import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

from conformance.bounds.precision import Precision  # noqa: E402
from conformance.judging.expected import answer  # noqa: E402
from mha.recipes import RECIPES, attention_layers, recipe_for, record  # noqa: E402
from mha.recipes.judge import judge_original, judge_trace  # noqa: E402
from mha_core import AttentionConfig, SpecError, backend  # noqa: E402
from tests.mha.recipes.hf_models import BATCH, EXPECTED_LAYERS, NAMES, batch_of, model_of  # noqa: E402

DTYPES = ("float32", "float64")


@cache  # every backend is given the same calls
def recorded(name, implementation="sdpa", dtype="float32", **changes):
    """The layers of a model, and the one call of each in one run."""
    model = model_of(name, implementation, dtype)
    layers = attention_layers(model)
    with torch.no_grad():
        _, calls = record(layers, lambda: model(**{**batch_of(name, dtype), **changes}))
    assert all(len(found) == 1 for found in calls.values())
    return layers, {layer: found[0] for layer, found in calls.items()}


@pytest.mark.nightly("each family is read as it computes", every=4)
@pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", NAMES)
def test_what_a_model_computes_is_the_definition(name, implementation, dtype):
    layers, calls = recorded(name, implementation, dtype)
    assert [site.name for site in layers] == EXPECTED_LAYERS[name]
    for site in layers:
        problem = calls[site.name]
        found = judge_original(problem, site.precision(dtype))
        assert found.equal, (site.name, found.mismatches)
        assert found.rows_without_key == 0
        assert set(found.ratios) == {"heads", "output"} | ({"weights"} if implementation == "eager" else set())


# The releases of transformers, PyTorch and TensorFlow are the same there.
@pytest.mark.nightly("each family is read as it computes", every=4)
@pytest.mark.same_on_newest_of("torch", "tf")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["bert-cross", "gpt2-cross", "gpt2-scaled", "vit-no-bias", "bart", "whisper"])
def test_every_backend_computes_the_same_from_the_same_inputs(name, dtype, backend_name):
    target = backend.load(backend_name)
    layers, calls = recorded(name, dtype=dtype)
    for site in layers:
        problem = calls[site.name]
        wanted = answer(problem, Precision.of(dtype))
        run = target.prepare(site.config, site.weights, dtype=dtype)
        found = judge_trace(run(wanted.problem.inputs), wanted, dtype)
        assert found.equal, (site.name, found.mismatches)
        assert found.worst > 0.0


@pytest.mark.nightly("weights go in and come out exactly", every=3)
@pytest.mark.parametrize("name", NAMES)
def test_weights_go_out_and_back_bit_for_bit(name):
    source, target = model_of(name, seed=0), model_of(name, seed=1)
    arrays = dict(source.named_parameters())
    for site, empty in zip(attention_layers(source), attention_layers(target), strict=True):
        empty.put(site.weights)
        own = {key: value for key, value in empty.module.named_parameters() if ".LayerNorm." not in f".{key}"}
        assert own
        for key, value in own.items():
            assert torch.equal(value, arrays[f"{site.name}.{key}"]), key
        for key, array in site.weights.items():
            assert array.dtype == np.float32
            assert not array.flags.writeable
            assert np.array_equal(array, empty.weights[key])


def test_bfloat16_weights_go_out_and_back_bit_for_bit():
    source, target = model_of("gpt2", dtype="bfloat16"), model_of("gpt2", dtype="bfloat16", seed=1)
    site, empty = attention_layers(source)[0], attention_layers(target)[0]
    empty.put(site.weights)
    assert torch.equal(empty.module.c_attn.weight, site.module.c_attn.weight)
    assert empty.module.c_attn.weight.dtype == torch.bfloat16


def test_configs_say_what_is_special():
    config = {name: [site.config for site in attention_layers(model_of(name), probe=False)] for name in NAMES}
    assert config["bert"][0] == AttentionConfig(12, 3, bias=True, dropout=0.1)
    assert [c.num_heads for c in config["bart"]] == [3, 2, 2]
    assert [c.softmax_scale for c in config["gpt2-scaled"]] == [5**-0.5, 5**-0.5 / 2]
    assert [c.scale for c in config["gpt2"]] == [None, None]
    assert [c.scale for c in config["gpt2-unscaled"]] == [1.0, 1.0]
    no_key_bias = {"q_proj": True, "v_proj": True, "out_proj": True}
    assert config["whisper"][0] == AttentionConfig(12, 3, bias=no_key_bias)
    assert config["vit-no-bias"][0] == AttentionConfig(12, 3, bias={"out_proj": True})


def test_vit_in_float64_has_its_softmax_in_float32_where_it_is_eager():
    for implementation in ("eager", "sdpa"):
        layers, calls = recorded("vit", implementation, "float64")
        found = judge_original(calls[layers[0].name], Precision.of("float64"))
        assert found.equal == (implementation == "sdpa")
        assert layers[0].precision("float64").softmax == ("float32" if implementation == "eager" else "float64")


def test_a_text_of_padding_alone_is_the_mean_of_all_values_in_eager_and_nothing_in_sdpa():
    nothing = torch.tensor([[1] * 7, [0] * 7])
    for implementation in ("eager", "sdpa"):
        layers, calls = recorded("bert", implementation, "float64", attention_mask=nothing)
        site, problem = layers[0], calls[layers[0].name]
        precision = site.precision("float64")
        found = judge_original(problem, precision)
        assert found.equal
        # One item, every head and query: eager adds the lowest number to all their scores, and sdpa has a bool mask.
        assert found.rows_without_key == (0 if implementation == "eager" else 3 * 7)
        values = problem.inputs.values[1] @ site.weights["v_proj.weight"].T + site.weights["v_proj.bias"]
        mean = values.mean(axis=0).reshape(3, 1, 4) if implementation == "eager" else 0.0
        np.testing.assert_allclose(problem.recorded["heads"][1], np.broadcast_to(mean, (3, 7, 4)), atol=1e-12)
        own = answer(problem, precision)
        bare = judge_trace(replace(own.trace, **problem.recorded, gradients=None), own, "float64")
        assert bare.equal


def test_text_padded_on_the_left_gives_gpt2_rows_without_a_key_in_sdpa_alone():
    left = torch.tensor([[1] * 7, [0] * 3 + [1] * 4])
    for implementation in ("eager", "sdpa"):
        layers, calls = recorded("gpt2", implementation, attention_mask=left)
        for site in layers:
            problem = calls[site.name]
            found = judge_original(problem, site.precision("float32"))
            assert found.equal
            assert found.rows_without_key == (0 if implementation == "eager" else 3 * 3)
            if implementation == "eager":  # the mean of all values, which the definition gives too
                np.testing.assert_allclose(problem.recorded["weights"][1, :, :3], 1 / 7, rtol=1e-6)


def test_a_model_without_a_mask_is_causal_only_where_its_implementation_is():
    for implementation in ("eager", "sdpa"):
        site = attention_layers(model_of("gpt2", implementation))[0]
        inputs = site.inputs((torch.zeros(2, 5, 15),), {})
        assert inputs.mask.causal == (implementation == "sdpa")
        alone = site.inputs((torch.zeros(2, 1, 15),), {})
        assert not alone.mask.causal
    told = site.inputs((torch.zeros(2, 5, 15),), {"is_causal": False})
    assert not told.mask.causal


def test_calls_without_a_translation_are_refused():
    model = model_of("gpt2")
    site = attention_layers(model)[0]
    states = torch.zeros(2, 5, 15)
    cache = hf.EncoderDecoderCache(hf.DynamicCache(), hf.DynamicCache())
    with pytest.raises(SpecError, match="past_key_values is a EncoderDecoderCache, .* use_cache=False"):
        site.inputs((states,), {"past_key_values": cache})
    with pytest.raises(SpecError, match="GPT2Attention was called with 'position_bias', which has no translation"):
        site.inputs((states,), {"position_bias": states})
    site.module.train()
    with pytest.raises(SpecError, match=re.escape("is in training mode, where it drops weights; call model.eval()")):
        site.inputs((states,), {})


def test_weights_of_another_size_are_refused_and_nothing_is_written():
    site = attention_layers(model_of("gpt2"))[0]
    before = site.module.c_attn.weight.clone()
    with pytest.raises(SpecError, match=re.escape("q_proj.weight must have shape (15, 15). Got (12, 12).")):
        site.put(attention_layers(model_of("bert"))[0].weights)
    assert torch.equal(site.module.c_attn.weight, before)


def test_a_model_without_a_recipe_and_a_class_derived_from_one_are_not_taken():
    with pytest.raises(
        SpecError, match=re.escape("Linear has no attention layer of a family with a recipe (families: bert, ")
    ):
        attention_layers(torch.nn.Linear(2, 2))
    module = attention_layers(model_of("bart"))[0].module

    class Own(type(module)):
        pass

    assert recipe_for(module) is RECIPES["bart"]
    module.__class__ = Own
    assert recipe_for(module) is None


def test_a_module_that_computes_something_else_is_found_out():
    model = model_of("bert")
    site = attention_layers(model)[0]
    site.core.scaling *= 1.01
    honest, problem = site.config, None
    with torch.no_grad():
        _, calls = record([site], lambda: model(**batch_of("bert")))
    problem = calls[site.name][0]
    assert honest.scale is not None  # the recipe reads the scale that the module uses
    assert judge_original(problem, Precision.of("float32")).equal
    wrong = replace(problem, config=replace(honest, scale=None))
    found = judge_original(wrong, Precision.of("float32"))
    assert not found.equal
    assert found.mismatches[0].stage == "heads"
    assert found.worst > 1.0
    assert len(problem.inputs.queries) == BATCH


def test_importing_recipes_imports_no_framework():
    frameworks = {"torch", "transformers", "jax"}
    code = f"import mha.port.port, mha.recipes, sys; assert not {frameworks} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
