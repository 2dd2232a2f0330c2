"""Recipes of encoders of texts, images and sounds that are no family of hf_models: what a model computes is judged."""

import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

from mha.recipes import RECIPES, attention_layers, record  # noqa: E402
from mha.recipes.judge import judge_original  # noqa: E402
from mha_core import AttentionConfig, Rotary  # noqa: E402

SIZES = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 10}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": 31}
TEXTS = {**SIZES, **IDS, "max_position_embeddings": 40}
IMAGES = {**SIZES, "image_size": 6, "patch_size": 2}
SOUNDS = {
    **SIZES,
    **{"conv_dim": (8, 8), "conv_kernel": (3, 2), "conv_stride": (2, 2), "num_feat_extract_layers": 2},
    **{"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer"},
    **{"do_stable_layer_norm": False, "vocab_size": 31},
}
FAMILIES = {
    "distilbert": {"dim": 24, "n_heads": 3, "n_layers": 2, "hidden_dim": 10, **IDS, "max_position_embeddings": 40},
    "clip_text_model": TEXTS,
    "clip_vision_model": IMAGES,
    "siglip_text_model": TEXTS,
    "siglip_vision_model": {**IMAGES, "vision_use_head": False},
    "wav2vec2": SOUNDS,
    "hubert": SOUNDS,
    "data2vec-audio": {**SOUNDS, "conv_pos_kernel_size": 5, "num_conv_pos_embeddings": 2},
    "sew": {**SOUNDS, "squeeze_factor": 2},
    "unispeech": SOUNDS,
    "unispeech-sat": SOUNDS,
    "modernbert": {
        **TEXTS,
        "local_attention": 4,
        "global_attn_every_n_layers": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
    "dinov3_vit": {**IMAGES, "num_register_tokens": 2},
    "esm": {**TEXTS, "position_embedding_type": "rotary", "mask_token_id": 30, "token_dropout": False},
    "esm:absolute": {**TEXTS, "position_embedding_type": "absolute", "mask_token_id": 30, "token_dropout": False},
    "roformer": {**TEXTS, "embedding_size": 24},
}
"""model_type, a colon and a variant -> its config."""


def model_of(name, implementation="eager", dtype="float32"):
    """A model whose weights are large, and whose norms are not 1."""
    config = hf.AutoConfig.for_model(name.split(":")[0], **FAMILIES[name])
    with torch.random.fork_rng():
        torch.manual_seed(len(name))
        make = hf.SiglipTextModel._from_config if name == "siglip_text_model" else hf.AutoModel.from_config
        model = make(config, attn_implementation=implementation).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.to(getattr(torch, dtype))


def batch_of(name, dtype="float32"):
    """Two texts, of which one is padded on the left; or two images or sounds."""
    random = torch.Generator().manual_seed(3)
    if FAMILIES[name].get("image_size"):
        return {"pixel_values": torch.randn(2, 3, 6, 6, generator=random).to(getattr(torch, dtype))}
    if FAMILIES[name].get("conv_dim"):
        mask = torch.ones(2, 40, dtype=torch.long)
        mask[0, 23:] = 0
        return {"input_values": torch.randn(2, 40, generator=random).to(getattr(torch, dtype)), "attention_mask": mask}
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :3] = 0
    return {"input_ids": torch.randint(3, 29, (2, 9), generator=random), "attention_mask": mask}


@pytest.mark.nightly("each family is read as it computes", every=4)
@pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there
@pytest.mark.parametrize("name", FAMILIES)
def test_what_an_encoder_computes_is_the_definition(name):
    recipe = next(one for one in RECIPES.values() if name.split(":")[0] in one.model_types)
    for implementation in ("eager", "sdpa") if recipe.only != "eager" else ("eager",):
        model = model_of(name, implementation)
        layers = attention_layers(model)
        assert len(layers) == 2
        with torch.no_grad():
            _, calls = record(layers, lambda model=model: model(**batch_of(name)))
        for site in layers:
            assert site.recipe is recipe
            (problem,) = calls[site.name]
            found = judge_original(problem, site.precision("float32"))
            assert found.equal, (implementation, site.name, found.mismatches)
            assert found.worst > 0.0


def test_configs_say_what_is_special():
    config = {name: attention_layers(model_of(name))[0].config for name in ("dinov3_vit", "esm", "esm:absolute")}
    assert config["dinov3_vit"] == AttentionConfig(
        24, 3, bias={"q_proj": True, "v_proj": True, "out_proj": True}, rotary=Rotary(8)
    )
    assert (config["esm"].rotary, config["esm"].scale) == (Rotary(8), None)
    assert config["esm:absolute"].rotary is None


def test_only_the_patches_of_an_image_turn():
    model = model_of("dinov3_vit")
    layers = attention_layers(model)
    with torch.no_grad():
        _, calls = record(layers, lambda: model(**batch_of("dinov3_vit")))
    cos = calls[layers[0].name][0].inputs.rotary.cos
    assert cos.shape == (1 + 2 + 9, 4)
    assert (cos[:3] == 1.0).all()
    assert (cos[3:] != 1.0).any(axis=1).sum() == 8  # all but the patch in the middle, which stands at 0, 0


def test_windows_of_modernbert_are_masks():
    model = model_of("modernbert")
    layers = attention_layers(model)
    with torch.no_grad():
        _, calls = record(layers, lambda: model(**batch_of("modernbert")))
    seen = [calls[site.name][0].inputs.mask.allowed[1, 0].sum(axis=1).tolist() for site in layers]
    assert seen == [[9] * 9, [3, 4, 5, 5, 5, 5, 5, 4, 3]]  # the first layer sees all, the second two on each side
