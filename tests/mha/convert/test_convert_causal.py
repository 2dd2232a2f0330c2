"""A layer that its model calls causally is said to be that, and its target's check is causal; transformers agrees."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from mha.convert import verify
from mha.convert.causal import CALLS
from mha.convert.convert import convert
from mha.convert.report import lines, to_dict
from mha.models.families import MODEL_TYPES, place_of
from mha_core import AttentionInputs, AttentionMask, reference
from tests.mha.convert.weight_files import CONFIG, arrays_of, mha, weights_of

BART = {
    **{"model_type": "bart", "d_model": 12, "encoder_layers": 1, "decoder_layers": 1},
    **{"encoder_attention_heads": 3, "decoder_attention_heads": 3},
}


def bart_folder(folder):
    names = ("encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.encoder_attn")
    parts = [arrays_of("canonical", prefix=name, seed=seed) for seed, name in enumerate(names)]
    save_file({name: array for part in parts for name, array in part.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(BART))
    return folder


@pytest.mark.usefixtures("without_frameworks")
def test_the_table_the_lines_the_json_and_the_file_say_it(tmp_path, monkeypatch):
    source, out = bart_folder(tmp_path), tmp_path / "o" / "k.safetensors"
    out.parent.mkdir()
    asked, ask = [], verify.ask
    monkeypatch.setattr(verify, "ask", lambda subject, given: asked.append(given.inputs) or ask(subject, given))
    done = convert(source, to_layout="keras", out=out, every=True)
    assert [layer.standing.causal for layer in done.layers] == [False, True, False]
    assert [layer.causal_call for layer in done.layers] == ["", "use_causal_mask=True", ""]
    assert [inputs.mask.causal for inputs in asked] == [False, False, True, True, False, False]  # source and target
    assert [row["causal"] for row in to_dict(done)["layers"]] == [False, True, False]
    assert to_dict(done)["layers"][1]["causal_call"] == "use_causal_mask=True"
    assert any(line.startswith("1 x causal: ") and line.endswith(": use_causal_mask=True") for line in lines(done))
    again = convert(out, to_layout="nnx", out=tmp_path / "o" / "n.safetensors", from_layout="keras", every=True)
    assert [layer.standing.causal for layer in again.layers] == [False, True, False]
    assert again.layers[1].causal_call == CALLS["nnx"]
    shown = mha(source, "--to", "torch", "--out", tmp_path / "o" / "t.pt", "--all").output
    assert "causal" in shown.splitlines()[0]
    assert sum("yes" in line for line in shown.splitlines()) == 1


def test_a_recorded_call_says_it_too(tmp_path):
    save_file(arrays_of("torch"), tmp_path / "t.safetensors")
    x = np.random.default_rng(0).normal(size=(2, 5, 12))
    for mask, said in (
        ({"causal": True}, True),
        ({"allowed": np.tril(np.ones((5, 5), bool))}, True),
        ({"allowed": np.tril(np.ones((5, 5), bool), 1)}, None),
        ({"causal": False}, None),
        ({}, True),  # the record does not say: the causal mask fits
    ):
        of = AttentionMask(causal=True) if not mask else AttentionMask(**mask)
        output = reference.run(CONFIG, weights_of(CONFIG, 0), AttentionInputs(x, x, x, of)).output
        np.savez(tmp_path / "call.npz", queries=x, output=output, **mask)
        options = {"num_heads": 3, "recorded": tmp_path / "call.npz", "force": True}
        (layer,) = convert(tmp_path / "t.safetensors", to_layout="keras", out=tmp_path / "o.npz", **options).layers
        assert layer.standing.word == "proved"
        assert layer.standing.causal is said, mask


# Keras itself converts TensorFlow's variables so while it saves, which NumPy 2 deprecates.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_a_keras_archive_says_it_by_its_call(tmp_path):
    keras = pytest.importorskip("keras")
    x = keras.Input((5, 12))
    plain, causal, both = (keras.layers.MultiHeadAttention(3, 4) for _ in range(3))
    y = both(both(causal(plain(x, x), x, use_causal_mask=True), x), x, use_causal_mask=True)
    path = tmp_path / "m.keras"
    keras.Model(x, y).save(path)
    done = convert(path, to_layout="torch", out=tmp_path / "o.npz", every=True)
    assert [layer.standing.causal for layer in done.layers] == [False, True, None]


@pytest.mark.nightly("each family is read as it computes", every=4)
@pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_earlier_outputs_stay_where_a_later_token_changes(model_type):
    """Just where the family says that a layer is causal."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.mha.convert.known_models import batch_of, model_of

    family = MODEL_TYPES[model_type]
    switch = family.name == "bert"
    for changes in ({"is_decoder": True, "add_cross_attention": True}, {}) if switch else ({},):
        model = model_of(model_type, **changes)
        batch = batch_of(model_type, model)
        batch.pop("attention_mask", None)
        if changes:
            batch["encoder_hidden_states"] = torch.randn(2, 4, 12, generator=torch.Generator().manual_seed(2))
        said = {
            name: bool(family.causal and family.causal(model.config.to_dict(), name))
            for name, _ in model.named_modules()
            if place_of(family, name)
        }
        assert said
        has_causal = family.causal is not None and (bool(changes) or not switch) and "vision" not in model_type
        assert any(said.values()) == has_causal
        for name, is_causal in said.items():
            assert _is_causal(model, model.get_submodule(name), batch) == is_causal, name


def _is_causal(model, module, batch):
    """Whether the first outputs of an attention layer stay where its last input, and key, is another one."""
    import torch

    outputs = []
    for change in (0.0, 1.0):

        def changed(_, args, kwargs, change=change):
            given = [*args, *kwargs.values()]
            states = [one for one in given if isinstance(one, torch.Tensor) and one.ndim == 3]
            for tensor in {id(one): one for one in states}.values():
                tensor[:, -1] += change

        def seen(_, args, output):
            outputs.append((output[0] if isinstance(output, tuple) else output)[:, :2].clone())

        handles = [module.register_forward_pre_hook(changed, with_kwargs=True), module.register_forward_hook(seen)]
        with torch.no_grad():
            model(**{key: one.clone() if isinstance(one, torch.Tensor) else one for key, one in batch.items()})
        for handle in handles:
            handle.remove()
    return bool(torch.equal(*outputs))
