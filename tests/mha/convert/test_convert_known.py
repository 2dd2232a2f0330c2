"""What `mha convert` knows by a config.json: every family is run, and what changes its arithmetic is refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import mha as mha_tools  # noqa: E402
from mha.convert.convert import convert  # noqa: E402
from mha.models.families import FAMILIES, MODEL_TYPES  # noqa: E402
from mha.recipes import RECIPES  # noqa: E402
from mha_core import SpecError, load_weights  # noqa: E402
from tests.mha.convert.known_models import model_of, run  # noqa: E402
from tests.mha.convert.weight_files import arrays_of, mha, refused  # noqa: E402
from tests.mha.recipes import hf_models  # noqa: E402

pytestmark = [
    pytest.mark.same_on_newest,  # the releases of transformers and PyTorch are the same there
    pytest.mark.usefixtures("without_frameworks"),
]


@pytest.mark.nightly("each family is read as it computes", every=8)
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_family_that_is_known_computes_what_its_layout_says(model_type, tmp_path):
    model = model_of(model_type)
    model.save_pretrained(tmp_path)
    calls = run(model_type, model, tmp_path / "calls.safetensors")
    asked = {"to_layout": "canonical", "out": tmp_path / "o.safetensors", "every": True}
    known = convert(tmp_path / "model.safetensors", **asked)
    assert {layer.standing.word for layer in known.layers} == {"known"}
    assert f"names model type {model_type}" in known.layers[0].standing.why
    proved = convert(tmp_path / "model.safetensors", **asked, recorded=calls, force=True)
    assert {layer.standing.word for layer in proved.layers} == {"proved"}
    assert [layer.config for layer in proved.layers] == [layer.config for layer in known.layers]


@pytest.mark.nightly("each family is read as it computes", every=3)
@pytest.mark.parametrize("name", ["bert-cross", "gpt2-cross"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_cross_attention_is_known_and_proved_too(name, implementation, tmp_path):
    known, proved = _known_and_proved(hf_models.model_of(name, implementation), name, tmp_path)
    assert {layer.standing.word for layer in known.layers} == {"known"}
    assert {layer.standing.word for layer in proved.layers} == {"proved"}


def test_a_call_in_half_precision_that_can_not_tell_is_made_in_float32(tmp_path):
    """The bound of bfloat16 lets half the scale pass for small layers. The same numbers in float32 prove them."""
    model = hf_models.model_of("bert", dtype="bfloat16")
    with pytest.raises(SpecError, match="proves nothing: .* the bound of bfloat16.* weights in float32 are the same"):
        _known_and_proved(model, "bert", tmp_path)
    model.save_pretrained(tmp_path)
    _, proved = _known_and_proved(model.float(), "bert", tmp_path, save=False)
    assert {(layer.standing.word, layer.dtype) for layer in proved.layers} == {("proved", "bfloat16")}


def _known_and_proved(model, name, folder, save=True):
    """What comes of its file without a recorded call, and with one."""
    if save:
        model.save_pretrained(folder)
    with torch.no_grad(), mha_tools.capture(model, folder / "calls.safetensors", overwrite=True):
        model(**hf_models.batch_of(name, str(model.dtype).removeprefix("torch.")))
    source = folder / "model.safetensors"
    arguments = {"to_layout": "canonical", "out": folder / "o.safetensors", "every": True, "force": True}
    return convert(source, **arguments), convert(source, **arguments, recorded=folder / "calls.safetensors")


def test_the_families_are_those_of_the_recipes_and_some_more():
    names = {family.name: family for family in FAMILIES}
    for name in ("bert", "gpt2", "vit", "bart", "whisper", "distilbert", "opt"):
        assert names.pop(name).model_types == RECIPES[name].model_types
    assert list(names) == ["clip"]  # a text or a vision model by itself
    assert set(names["clip"].model_types) < set(RECIPES["clip"].model_types)


CONFIG = {"model_type": "bert", "num_attention_heads": 3, "hidden_size": 12, "num_hidden_layers": 2}


def model_file(folder, layout="bert", prefix="bert.encoder.layer.1.attention", **changes):
    """A file with a config beside it."""
    save_file(arrays_of(layout, prefix=prefix), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder / "model.safetensors"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type=relative_key may change what attention"),
        ({"auto_map": {"AutoModel": "modeling.Mine"}}, "auto_map says that code of its own computes this model"),
        ({"architectures": ["JinaBertModel"]}, "architectures names JinaBertModel, which is no class of"),
        ({"quantization_config": {"bits": 4}}, "quantization_config says that its arrays are not those"),
        ({"pruned_heads": {"1": [0]}}, "pruned_heads says that its arrays are not those"),
        ({"rope_theta": 10000.0}, "rope_theta=10000.0 is no setting of BertConfig in transformers"),
        ({"hidden_size": 24}, "says hidden_size=24 and num_attention_heads=3, and the projection of queries is 12x12"),
        ({"num_attention_heads": 5}, "says hidden_size=12 and num_attention_heads=5, and the projection"),
        ({"num_hidden_layers": 1}, "says num_hidden_layers=1, and 'bert.encoder.layer.1.attention' is layer 1"),
        ({"num_attention_heads": None, "n_head": 3}, "'bert' call their heads num_attention_heads, and not n_head"),
        ({"encoder_attention_heads": 3}, "encoder_attention_heads=3 is no setting of BertConfig"),
        ({"n_heads": 6}, "num_attention_heads=3 and n_heads=6 contradict each other"),
        ({"head_dim": 6}, "head_dim=6 may change what attention computes; only what follows from the"),
        ({"num_attention_heads": None}, "does not say how many heads there are"),
        ({"model_type": "mpt"}, "names model type 'mpt', which can't be expressed: a bias by distance (ALiBi)"),
        ({"model_type": "gemma4_text"}, "which can't be expressed: some layers read the keys and values of another"),
        ({"model_type": "roformer"}, "names model type 'roformer', which is none of those that are known"),
        ({"model_type": ["bert"]}, "names no model_type"),
        ({"model_type": "gpt2"}, "gpt2-cross-flax at ...h.N.(attn|crossattention); 'bert.encoder"),
    ],
)
def test_a_setting_that_changes_what_is_computed_is_not_known(changes, message, tmp_path):
    source, out = model_file(tmp_path, **changes), tmp_path / "o.npz"
    result = mha(source, "--to", "torch", "--out", out)
    assert (result.exit_code, out.exists()) == (2, False), result.output
    assert "neither proved nor known" in result.output
    assert message in result.output
    turns = "turns queries and keys" in result.output  # no recording would help
    again = f"mha convert {source} --to torch --out {out} --recorded calls.safetensors"
    for line in ("mha.capture(model, ", again):
        assert (line in result.output) is not turns
    heads = [] if changes.get("num_attention_heads", 3) == 3 and "model_type" not in changes else ["--num-heads", 3]
    if changes.get("num_attention_heads") != 5:
        moved = mha(source, "--to", "torch", "--out", out, "--moved", *heads)
        assert moved.exit_code == 0, moved.output
        assert "1 x bert to torch, moved: " in moved.output
        assert message in moved.output


@pytest.mark.parametrize(
    ("layout", "prefix", "changes", "message"),
    [
        ("gpt2", "h.0.attn", {"n_head": 3, "num_attention_heads": 6}, "=6 and n_head=3 contradict each other"),
        ("gpt2", "h.0.attn", {"num_heads": 3}, "call their heads n_head or num_attention_heads, and not num_heads"),
        (
            *("canonical", "decoder.layers.0.self_attn"),
            *({"encoder_attention_heads": 3, "num_attention_heads": 3}, "decoder_attention_heads, and not num_attent"),
        ),
    ],
)
def test_a_number_of_heads_that_the_family_does_not_read_is_not_known(layout, prefix, changes, message, tmp_path):
    """transformers takes its default where the key of the class is absent."""
    model_type = "gpt2" if layout == "gpt2" else "bart"
    model_file(tmp_path, layout, prefix, **{"model_type": model_type, "num_attention_heads": None, **changes})
    refused(tmp_path, f"neither proved nor known: .*{message}", to_layout="torch")


def test_two_models_in_a_file_are_not_known_by_the_config_of_one(tmp_path):
    arrays = {
        name: array
        for root in ("bert", "teacher")
        for name, array in arrays_of("bert", prefix=f"{root}.encoder.layer.1.attention").items()
    }
    save_file(arrays, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    said = r"is of one model, and the file has 2 layers at \.\.\.layer\.1\.attention"
    refused(tmp_path, said, to_layout="torch", every=True)


def test_a_list_of_heads_stops_no_bits(tmp_path):
    """Swin has a number for each stage, so that the config says none for a layer."""
    source = model_file(tmp_path, model_type="swin", num_attention_heads=None, num_heads=[3, 6])
    done = convert(source, to_layout="torch", out=tmp_path / "o.npz", num_heads=3, moved=True)
    assert done.layers[0].standing.why.startswith(f"{tmp_path}/config.json names model type 'swin'")


@pytest.mark.parametrize("text", ["{", "[3]", '{"a": 1' + "0" * 5000 + "}", '{"a":' * 90000 + "1" + "}" * 90000])
def test_a_config_that_is_none_makes_nothing_known_and_stops_no_bits(text, tmp_path):
    source = model_file(tmp_path)
    (tmp_path / "config.json").write_text(text)
    refused(source, r"neither proved nor known: .*config.json", to_layout="torch")
    assert convert(source, to_layout="torch", out=tmp_path / "o.npz", num_heads=3, moved=True).layers


def test_an_array_that_the_family_does_not_have_makes_it_unknown(tmp_path):
    prefix = "bert.encoder.layer.1.attention"
    model_file(tmp_path)
    extra = {f"{prefix}.output.LayerNorm.weight": np.ones(12, "float32"), f"{prefix}.rel.weight": np.ones(3, "float32")}
    save_file({**arrays_of("bert", prefix=prefix), **extra}, tmp_path / "model.safetensors")
    arguments = {"to_layout": "torch", "out": tmp_path / "o.npz"}
    refused(tmp_path / "model.safetensors", "no part of its layout: rel.weight; with them", **arguments)
    with pytest.raises(SpecError, match="neither proved nor known: it has rel.weight, which such layers do not have"):
        convert(tmp_path / "model.safetensors", **arguments, leave=["rel.*"])
    (layer,) = convert(tmp_path / "model.safetensors", **arguments, leave=["rel.*"], moved=True).layers
    assert layer.notes == ("left behind, no part of the layout: output.LayerNorm.weight, rel.weight",)


def test_self_attention_whose_values_are_of_another_width_is_not_known(tmp_path):
    model_file(tmp_path)
    arrays = arrays_of("bert", prefix="bert.encoder.layer.1.attention")
    value = next(name for name in arrays if name.endswith("value.weight"))
    save_file({**arrays, value: arrays[value][:, :10].copy()}, tmp_path / "model.safetensors")
    with pytest.raises(SpecError, match="a projection takes 10 channels, that of the queries 12: this is no self"):
        convert(tmp_path / "model.safetensors", to_layout="torch", out=tmp_path / "o.npz")


@pytest.mark.parametrize("moved", [False, True])
def test_num_heads_that_contradicts_the_config_is_an_error(moved, tmp_path):
    source = model_file(tmp_path)
    said = r"num_heads of .* must be 3, as the model's config says \(num_attention_heads in"
    refused(source, said, to_layout="torch", num_heads=6, moved=moved)
    assert convert(source, to_layout="torch", out=tmp_path / "o.npz", num_heads=3).layers[0].config.num_heads == 3


def test_each_side_has_its_own_heads_also_of_a_family_that_is_not_known(tmp_path):
    content = {"model_type": "mine", "encoder_attention_heads": 3, "decoder_attention_heads": 2, "d_model": 12}
    arrays = {
        name: array
        for side in ("encoder", "decoder")
        for name, array in arrays_of("canonical", prefix=f"{side}.layers.0.self_attn").items()
    }
    save_file(arrays, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(content))
    arguments = {"to_layout": "torch", "out": tmp_path / "o.npz", "every": True, "moved": True}
    done = convert(tmp_path / "model.safetensors", **arguments)
    assert {layer.prefix.split(".")[0]: layer.config.num_heads for layer in done.layers} == {"encoder": 3, "decoder": 2}
    with pytest.raises(SpecError, match=r"must be 2, as the model's config says \(decoder_attention_heads in"):
        convert(tmp_path / "model.safetensors", **arguments, num_heads=3, force=True)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("by_layer", [True, False])
def test_gpt2s_switches_become_the_layers_scale(weighted, by_layer, tmp_path):
    switches = {"scale_attn_weights": weighted, "scale_attn_by_inverse_layer_idx": by_layer}
    model = model_of("gpt2", **switches)
    model.save_pretrained(tmp_path)
    calls = run("gpt2", model, tmp_path / "calls.safetensors")
    source, out = tmp_path / "model.safetensors", tmp_path / "o.safetensors"
    arguments = {"to_layout": "canonical", "prefix": "h.1.attn"}
    (layer,) = convert(source, out=out, **arguments).layers
    assert layer.standing.word == "known"
    assert layer.standing.causal
    assert layer.causal_call == "causal=True, in this project's layers"
    scale = (5**-0.5 if weighted else 1.0) / (2 if by_layer else 1)
    assert load_weights(out)[0].scale == (None if weighted and not by_layer else scale)
    assert convert(source, out=out, recorded=calls, force=True, **arguments).layers[0].config == layer.config
    if not weighted or by_layer:
        with pytest.raises(SpecError, match=f"layout 'torch' belongs to layers that scale by .* Got scale={scale}"):
            convert(source, out=tmp_path / "o.npz", to_layout="torch", prefix="h.1.attn")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "scale_attn_weights": "no"}))
    refused(source, "scale_attn_weights must be true or false. Got no", out=out, force=True, **arguments)


@pytest.mark.parametrize(("num_heads", "asked"), [(None, " --moved --num-heads H, since"), (3, " --moved (docs/")])
def test_without_a_config_nothing_is_known_and_what_moves_the_bits_is_said(num_heads, asked, tmp_path):
    save_file(arrays_of("torch"), tmp_path / "a.safetensors")
    said = f"(?s)neither proved nor known: there is no config.json beside it.*of what they compute:{re.escape(asked)}"
    refused(tmp_path / "a.safetensors", said, to_layout="bert", num_heads=num_heads)


def test_the_page_lists_every_family():
    rows = [
        f"| {family.name} | {', '.join(f'`{name}`' for name in family.model_types)} | "
        f"{', '.join(f'`{name}`' for name in family.layouts)} | {family.settings} |"
        for family in FAMILIES
    ]
    page = (Path(__file__).parents[3] / "docs" / "convert.md").read_text()
    assert "\n".join(rows) in page
