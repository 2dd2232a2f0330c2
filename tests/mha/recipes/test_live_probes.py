"""Live layers that compute something else than their recipe reads are found by running them on probes."""

import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


from mha.recipes import attention_layers  # noqa: E402
from mha.recipes.adapter import ADAPTERS  # noqa: E402
from mha_core import SpecError  # noqa: E402
from tests.mha.recipes.hf_models import EXPECTED_LAYERS, NAMES, model_of  # noqa: E402

pytestmark = pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there


def with_hook(site):
    site.out.register_forward_hook(lambda module, args, output: output * 1.01)


def with_pre_hook(site):
    nothing = dict.fromkeys({"attention_mask", site.recipe.other_mask} if "cross" in site.name else {"attention_mask"})
    site.core.register_forward_pre_hook(lambda module, args, given: (args, {**given, **nothing}), with_kwargs=True)


def with_patched_forward(site):
    own = site.core.forward
    site.core.forward = lambda hidden_states, **given: own(hidden_states.flip(1), **given)


def with_lora(site):
    """A module of another class under the same name, as loralib has it."""
    added = torch.nn.Linear(site.out.weight.shape[0], site.out.weight.shape[0], bias=False)
    torch.nn.init.constant_(added.weight, 0.01)
    own = site.out.forward
    site.out.forward = lambda x: own(x) + added.to(x.dtype)(x)


def with_function(site):
    """A softmax of its own, where the model looks for its attention."""
    home = sys.modules[type(site.core).__module__]
    own = home.eager_attention_forward

    def sharper(module, query, *args, **kwargs):
        return own(module, query * 1.5, *args, **kwargs)

    return home, "eager_attention_forward", sharper


TRICKS = {
    with_hook: "no mask, output[",
    with_pre_hook: "in a probe of 2 x",
    with_patched_forward: "no mask, weights[",
    with_lora: "no mask, output[",
    with_function: "no mask, weights[",
}


@pytest.mark.nightly("each family is read as it computes", every=4)
@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("name", ["bert-cross", "gpt2-cross", "vit", "bart", "whisper"])
def test_a_live_layer_that_computes_something_else_is_refused(name, trick):
    model = model_of(name, "eager")
    site = attention_layers(model)[-1]
    with pytest.MonkeyPatch().context() as patch:
        patched = trick(site)
        if patched is not None:
            patch.setattr(*patched)
        with pytest.raises(SpecError) as error:
            attention_layers(model)
        adapter = next(adapter for adapter in ADAPTERS if adapter.matches(site.module))
        with pytest.raises(SpecError, match="does not compute what its weights say"):
            adapter.probe(site.module)
    name = attention_layers(model, probe=False)[0].name if trick is with_function else site.name
    assert f"Attention at {name} does not compute what its weights say: in a probe of " in str(error.value)
    assert TRICKS[trick] in str(error.value)
    assert attention_layers(model, probe=False)[-1].module is site.module


@pytest.mark.nightly("each family is read as it computes", every=4)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", NAMES)
def test_an_untouched_model_is_read_in_half_precision_too(name, implementation, dtype):
    assert [site.name for site in attention_layers(model_of(name, implementation, dtype))] == EXPECTED_LAYERS[name]


def test_a_probe_leaves_a_model_as_it_was():
    model = model_of("gpt2").train()
    model.h[0].attn.resid_dropout.eval()
    modes, state = [module.training for module in model.modules()], torch.get_rng_state()
    seen = []
    model.h[1].attn.register_forward_hook(lambda module, args, output: seen.append(module.training))
    attention_layers(model)
    assert seen
    assert not any(seen)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_can_not_be_run_is_refused_with_the_switch():
    model = model_of("vit")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(SpecError, match="'flash_attention_2' is not understood .*probe=False hands"):
        attention_layers(model)
    assert len(attention_layers(model, probe=False)) == 2
