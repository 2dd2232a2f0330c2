"""What a folder may hold for its layers to be known: keys, classes, arrays and files, by lists of what is allowed."""

import json
import re

import numpy as np
import pytest
from safetensors.numpy import save_file

from mha.convert.convert import convert
from mha.models.settings import REVIEWED
from mha.port.model import check_readable
from mha_core import AttentionConfig, SpecError, init_weights, load_weights, save_weights
from tests.mha.convert.weight_files import arrays_of, verify_in_numpy

PREFIX = "bert.encoder.layer.0.attention"
CONFIG = {"model_type": "bert", "num_attention_heads": 3, "hidden_size": 12, "num_hidden_layers": 1}
GPT2 = {"model_type": "gpt2", "n_head": 3, "n_embd": 12, "n_layer": 1, "n_positions": 7}

OLDER = {
    **{"_name_or_path": "bert", "attention_probs_dropout_prob": 0.1, "transformers_version": "4.17.0"},
    **{"use_cache": True, "is_decoder": False, "tie_encoder_decoder": False},
}
"""Keys that transformers 4 wrote; folders.json has others."""

FORKED = (
    *({"soft_cap": 30.0}, {"pos_emb_type": "alibi"}, {"pe_type": "rotary"}, {"layer_types": ["sliding_attention"]}),
    *({"local_context": 128}, {"cosine_sim": True}, {"entmax_alpha": 1.5}, {"temperature": 0.5}, {"top_k": 8}),
    *({"prefix": 16}, {"head_dim": 6}, {"num_key_value_heads": 1}, {"directionality": "left"}, {"norm_q": None}),
    *({"per_layer_config": {"0": {}}}, {"attn_implementation": "softpick"}, {"vision_config": {}}),
)
"""One key each that BertConfig does not have, or not with this value."""


@pytest.fixture(autouse=True)
def without_frameworks(monkeypatch):
    verify_in_numpy(monkeypatch)


def folder_of(folder, changes=None, config=CONFIG, more=None, layout="bert", at=PREFIX, name="model.safetensors"):
    """A folder with a model of one attention layer, `more` arrays beside it, and a config with `changes`."""
    folder.mkdir(exist_ok=True, parents=True)
    save_file({**arrays_of(layout, prefix=at), **(more or {})}, folder / name)
    (folder / "config.json").write_text(json.dumps({**config, **(changes or {})}))
    return folder


def standing_of(source, out, **options):
    """The word for the one layer, or the message of the refusal."""
    try:
        done = convert(source, to_layout="canonical", out=out / "o.safetensors", force=True, **options)
    except SpecError as error:
        return str(error)
    return done.layers[0].standing.word


# Keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.nightly("the table of models is the installed release's")
@pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there
def test_the_table_is_that_of_the_installed_release():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from mha.models import table
    from tests.mha.models import make_table

    made, kept = make_table.table(), json.loads(table.FILE.read_text())
    assert made["transformers"] == kept["transformers"], "python -m tests.mha.models.make_table"
    for name, row in made["models"].items():
        assert row == kept["models"][name], f"{name}: python -m tests.mha.models.make_table"
    assert made == kept


def test_a_key_that_the_class_does_not_have_is_named_first(tmp_path):
    """Whatever else is wrong: here also the class, which is code of its own, and an array."""
    for changes in FORKED:
        (key,) = changes
        more = {"architectures": ["MineModel"], "auto_map": {"AutoModel": "mine.Model"}, **changes}
        folder = folder_of(tmp_path / "m", more, more={"alibi.slopes": np.ones(3, "float32")})
        said = f"{folder}/config.json: {key}="
        assert f"neither proved nor known: {said}" in standing_of(folder, tmp_path), changes
        with pytest.raises(SpecError, match=f"^{said}"):
            check_readable(folder)


def test_keys_that_change_nothing_are_taken(tmp_path):
    for changes in (OLDER, {"head_dim": 4, "num_key_value_heads": 3}, {"initializer_scale": 0.02}):
        folder = folder_of(tmp_path / "m", changes)
        assert standing_of(folder, tmp_path) == "known", changes
        check_readable(folder)


def test_the_other_sizes_of_a_class_agree_with_its_own(tmp_path):
    folder = folder_of(tmp_path / "m", {"d_model": 24})
    assert "hidden_size=12 and d_model=24 contradict" in standing_of(folder, tmp_path)


def test_every_reviewed_key_has_a_reason_and_stands_once():
    keys = [key for row in REVIEWED for key in row.keys.split()]
    twice = {key for key in keys if keys.count(key) > 1}
    assert not twice
    assert all(row.why for row in REVIEWED)


def test_classes_of_other_frameworks_and_of_the_family_are_taken(tmp_path):
    for right in ("TFBertForMaskedLM", "FlaxBertModel", "BertLMHeadModel", "RobertaModel"):
        folder = folder_of(tmp_path / "m", {"architectures": [right]})
        assert standing_of(folder, tmp_path) == "known", right
        check_readable(folder)


# Arrays -------------------------------------------------------------------------------------------------------

ONES = np.ones((2, 3), "float32")
STRANGE = (
    *("bert.encoder.relative_attention_bias.weight", "relative_attention_bias.weight", "rotary_emb.inv_freq"),
    *("bert.alibi_slopes", "bert.encoder.layer.0.lora_A.weight", "linear.weight", "bert.encoder.layer.0.gate.weight"),
    *("bert.encoder.layer.0.attn_ln.weight", "mine.bert.embeddings.word_embeddings.weight", "logit_scale"),
)
"""Arrays beside the attention layers, or at the top, that no BERT of transformers has."""

KNOWN_ARRAYS = (
    *("score.weight", "classifier.bias", "classifier.dense.weight", "cls.predictions.bias", "lm_head.dense.weight"),
    *("bert.pooler.dense.weight", "qa_outputs.weight", "bert.embeddings.LayerNorm.gamma", "crf.transitions"),
    *("bert.encoder.layer.0.attention.output.LayerNorm.beta", "bert.encoder.layer.0.intermediate.dense.bias"),
)


def test_an_array_without_a_place_in_the_model_stops_every_layer(tmp_path):
    for name in STRANGE:
        found = standing_of(folder_of(tmp_path / "m", more={name: ONES}), tmp_path)
        assert f"model.safetensors has {name}" in found, found
        assert "for which no model of type bert has a place" in found, found


def test_heads_and_old_names_have_a_place(tmp_path):
    buffer = {"bert.embeddings.position_ids": np.arange(7)[None]}
    folder = folder_of(tmp_path / "m", more={**dict.fromkeys(KNOWN_ARRAYS, ONES), **buffer})
    assert standing_of(folder, tmp_path) == "known"
    other = {"bert.embeddings.position_ids": np.arange(7)[None, ::-1].copy()}
    assert "has bert.embeddings.position_ids" in standing_of(folder_of(tmp_path / "m", more=other), tmp_path)


def test_wrappers_of_a_model_have_a_place_and_other_roots_have_none(tmp_path):
    for root in ("module.", "_orig_mod.", "0.auto_model.", ""):
        prefix = root + PREFIX.removeprefix("bert." if root == "0.auto_model." else "")
        assert standing_of(folder_of(tmp_path / "m", at=prefix), tmp_path) == "known", root
    found = standing_of(folder_of(tmp_path / "m", at="nezha.encoder.layer.0.attention"), tmp_path)
    assert "has nezha.encoder.layer.0.attention." in found


def test_gpt2s_mask_is_the_causal_one(tmp_path):
    def found(mask):
        more = {"h.0.attn.bias": mask[None, None].copy(), "h.0.attn.masked_bias": np.array(-1e4, "float32")}
        return standing_of(folder_of(tmp_path / "m", None, GPT2, more, "gpt2", "h.0.attn"), tmp_path)

    mask = np.tril(np.ones((7, 7), "float32"))
    assert found(mask) == "known"
    assert "has arrays that are no part of its layout: bias" in found(mask - np.tril(mask, -3))  # a window


def test_leave_names_what_no_attention_layer_reads(tmp_path):
    folder = folder_of(tmp_path / "m", more={"linear.weight": ONES})
    assert "If no attention layer reads it: --leave 'linear.*'" in standing_of(folder, tmp_path)
    done = convert(folder, to_layout="canonical", out=tmp_path / "o.npz", leave=["linear.*"])
    assert done.layers[0].standing.word == "known"
    assert "; left at your word that no attention layer reads it: linear.weight" in done.layers[0].standing.why
    folder = folder_of(tmp_path / "m", more={"relative_attention_bias.weight": ONES})
    found = standing_of(folder, tmp_path, leave=["relative*"])
    assert "has relative_attention_bias.weight (a relative position bias), whoever leaves it out" in found
    found = standing_of(folder_of(tmp_path / "m"), tmp_path, leave=["linear.*"])
    assert "leave 'linear.*' fits no array" in found


def test_grouped_heads_are_not_those_of_a_family_that_has_none(tmp_path):
    opt = {"model_type": "opt", "num_attention_heads": 3, "hidden_size": 12, "num_hidden_layers": 1}
    at = "decoder.layers.0.self_attn"
    arrays = arrays_of("canonical", AttentionConfig(12, 3, bias=True), at)
    folder = folder_of(tmp_path / "m", config=opt, layout="canonical", at=at)
    assert standing_of(folder, tmp_path) == "known"
    grouped = {name: array[:4] if ".k_" in name or ".v_" in name else array for name, array in arrays.items()}
    save_file(grouped, folder / "model.safetensors")
    assert "a projection has 4 rows, that of the queries 12" in standing_of(folder, tmp_path)


# Files --------------------------------------------------------------------------------------------------------


def test_the_config_speaks_for_the_file_that_transformers_loads(tmp_path):
    folder = folder_of(tmp_path / "m")
    for name in ("ema.safetensors", "model-old.safetensors", "model.safetensors.bak.safetensors"):
        save_file(arrays_of("bert", prefix=PREFIX, seed=1), folder / name)
        found = standing_of(folder / name, tmp_path)
        assert f"{name} is not what transformers loads: the config.json beside it belongs to model.safetensors" in found
        assert standing_of(folder, tmp_path) == "known"
    save_file(arrays_of("bert", prefix=PREFIX), folder / "model.fp16.safetensors")
    assert standing_of(folder / "model.fp16.safetensors", tmp_path) == "known"
    alone = folder_of(tmp_path / "alone", name="mine.safetensors")
    assert standing_of(alone, tmp_path) == "known"  # whatever its name, there is no other that it could be of
    save_file(arrays_of("bert", prefix=PREFIX), alone / "other.safetensors")
    found = standing_of(alone / "mine.safetensors", tmp_path)
    assert "belongs to one of model.safetensors, pytorch_model.bin, " in found


def test_the_config_speaks_for_the_shards_that_its_index_names(tmp_path):
    folder = folder_of(tmp_path / "m", name="model-00001-of-00002.safetensors")
    save_file(arrays_of("bert", prefix=PREFIX, seed=1), folder / "model-00009-of-00009.safetensors")
    names = dict.fromkeys(arrays_of("bert", prefix=PREFIX), "model-00001-of-00002.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    assert standing_of(folder, tmp_path) == "known"
    assert standing_of(folder / "model-00001-of-00002.safetensors", tmp_path) == "known"
    found = standing_of(folder / "model-00009-of-00009.safetensors", tmp_path)
    assert "belongs to model.safetensors.index.json, and not to it" in found
    (folder / "ema.safetensors.index.json").write_text(index.read_text())
    assert "belongs to model.safetensors.index.json" in standing_of(folder / "ema.safetensors.index.json", tmp_path)
    save_file(arrays_of("bert", prefix=PREFIX, seed=2), folder / "model.safetensors")  # transformers takes this one
    assert "belongs to model.safetensors, and not to it" in standing_of(index, tmp_path)


def test_one_part_of_a_model_in_several_files_is_not_known(tmp_path):
    """What would change its layers may stand in the others."""
    parts = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    folder = folder_of(tmp_path / "m", name=parts[0])
    names = dict.fromkeys(arrays_of("bert", prefix=PREFIX), parts[0])
    more = {f"{PREFIX}.self.layer_norm_q.weight": np.ones(4, "float32")}
    save_file(more, folder / parts[1])
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {**names, **dict.fromkeys(more, parts[1])}})
    )
    said = standing_of(folder / parts[0], tmp_path)
    assert "is a part of a model in several files: give the index, model.safetensors.index.json" in said
    assert "layer_norm_q" in standing_of(folder, tmp_path)


BESIDE = {
    **dict.fromkeys(
        ("README.md", "vocab.txt", "training_args.bin", "tf_model.onnx", "run_glue.py", "metadata.json"), "x"
    ),
    "modules.json": '[{"type": "sentence_transformers.models.Transformer"}]',
    "tokenizer_config.json": '{"model_max_length": 1000000000000000019884624838656}',
    "ds_config.json": '{"fp16": {"enabled": true}, "train_batch_size": 8}',
    "bert_config.json": '{"hidden_size": 12, "directionality": "bidi"}',
}
"""Files of public folders that say nothing of attention."""

STRANGE_FILES = {
    **{"modeling_bert.py": "x", "run.yaml": "alibi: true", "open_clip_config.json": "{}", "mine.json": "{}"},
    "modules.json": '[{"type": "custom_st.Transformer"}]',
    "ds_config.json": '{"sparse_attention": {"mode": "fixed"}}',
    "bert_config.json": '{"hidden_size": 12, "soft_cap": 30.0}',
}
"""Files by which a fork's own program computes something else."""


def test_files_beside_the_config_are_passed_over_only_if_they_say_nothing_of_attention(tmp_path):
    folder = folder_of(tmp_path / "m")
    for name, text in BESIDE.items():
        (folder / name).write_text(text)
    save_file({"weight": ONES}, folder / "colbert_linear.safetensors")
    save_file(arrays_of("bert", prefix=PREFIX, seed=1), folder / "epoch-2.safetensors")
    assert standing_of(folder, tmp_path) == "known"
    check_readable(folder)
    for name, text in STRANGE_FILES.items():
        folder = folder_of(tmp_path / "strange" / name)
        (folder / name).write_text(text)
        said = f"{folder}/config.json: {name} beside it (may say|says with .*) that the model computes something else"
        assert re.search(f"known: {said}", found := standing_of(folder, tmp_path)), found
        with pytest.raises(SpecError, match=f"^{said}.*--leave '{name}'"):
            check_readable(folder)
        done = convert(folder, to_layout="canonical", out=tmp_path / "o.npz", force=True, leave=[name])
        assert done.layers[0].standing.why.endswith(f"left at your word that no attention layer reads it: {name}")
        check_readable(folder, [name])
    save_file({"layer.0.lora_A": ONES}, folder / "low_rank.safetensors")
    assert "low_rank.safetensors beside it may say" in standing_of(folder, tmp_path, leave=[name])


# Moved stays moved --------------------------------------------------------------------------------------------


def test_a_layer_that_was_moved_stays_so_through_load_and_save(tmp_path):
    config = AttentionConfig(12, 3, bias=True)
    save_file(arrays_of("torch"), tmp_path / "nobody_knows.safetensors")
    moved, again = tmp_path / "moved.safetensors", tmp_path / "again.safetensors"
    convert(tmp_path / "nobody_knows.safetensors", to_layout="canonical", out=moved, num_heads=3, moved=True)

    def saved(weights):
        save_weights(again, config, weights)
        return standing_of(again, tmp_path)

    _, weights = load_weights(moved)
    assert "mha convert wrote it and says: moved" in saved(weights)
    assert "says: moved" in saved({name: np.array(array) for name, array in weights.items()})
    assert "says: moved" in saved({name: array.astype("float64") for name, array in weights.items()})
    _, weights = load_weights(again)
    assert "says: moved" in saved(weights)
    assert saved(init_weights(config, seed=5, bias_scale=1.0)) == "known"  # another layer, in terms of the definition
    for layout, name in (("bert", "model.safetensors"), ("canonical", "c.safetensors")):
        convert(moved, to_layout=layout, out=tmp_path / name, moved=True)
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
        assert "says: moved" in standing_of(tmp_path / name, tmp_path)


@pytest.mark.parametrize("name", ["torch", "jax", "tf", "mxnet"])
def test_a_moved_layer_stays_so_through_a_frameworks_layer(name, tmp_path):
    backend = pytest.importorskip(f"backends.{name}")
    save_file(arrays_of("torch"), tmp_path / "nobody_knows.safetensors")
    moved = tmp_path / "moved.safetensors"
    convert(tmp_path / "nobody_knows.safetensors", to_layout="canonical", out=moved, num_heads=3, moved=True)
    config, weights = load_weights(moved)
    layer = backend.from_weights(config, weights)
    held = backend.to_weights(layer[1] if isinstance(layer, tuple) else layer)
    save_weights(tmp_path / "again.safetensors", config, held)
    assert "says: moved" in standing_of(tmp_path / "again.safetensors", tmp_path)
