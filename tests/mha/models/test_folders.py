"""Public folders of listed model types: forks, which are never known, and right ones, which always are.

`folders.json` has a row for each: what its config, its arrays beside the attention layers and its files have beyond a
standard model of the type, as the public code or folder has it. Arrays have the names alone, and numbers of our own.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mha.models.families import MODEL_TYPES
from mha.models.places import kind_of
from mha.port.model import check_readable
from mha_core import SpecError
from tests.mha.convert.weight_files import arrays_of, verify_in_numpy
from tests.mha.models.test_allowed import standing_of

ROWS: dict[str, list[dict[str, Any]]] = json.loads(Path(__file__).with_name("folders.json").read_text("utf-8"))

HEADS = {"num_attention_heads": 3, "hidden_size": 12, "num_hidden_layers": 1}
SIDES = {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "d_model": 12}
SIDES |= {"encoder_layers": 1, "decoder_layers": 1}
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_head": 3, "n_embd": 12, "n_layer": 1, "n_positions": 7},
    "distilbert": {"n_heads": 3, "dim": 12, "n_layers": 1},
    **dict.fromkeys(("bart", "whisper"), SIDES),
}
"""Family -> the sizes in the config of its small model; HEADS for the others."""

AT = {"gpt2": "h.0.attn", "distilbert": "transformer.layer.0.attention", "opt": "decoder.layers.0.self_attn"}
AT |= {**dict.fromkeys(("bart", "whisper", "clip"), "encoder.layers.0.self_attn")}
"""Family -> the prefix of its layer; "encoder.layer.0.attention" for the others."""


def folder_of(row: dict[str, Any], folder: Path) -> Path:
    """A model of one attention layer, changed as the row says."""
    folder.mkdir()
    family = MODEL_TYPES[row["type"]]
    sizes = SIZES.get(family.name, HEADS)
    layer = row.get("layer") or AT.get(family.name, "encoder.layer.0.attention")
    arrays = arrays_of(family.layouts[0], prefix=layer)
    arrays = {
        name: array for name, array in arrays.items() if kind_of(name, row["type"])
    }  # Whisper has no bias of keys
    save_file({**arrays, **{name: array_of(name) for name in row.get("arrays", ())}}, folder / "model.safetensors")
    for name, names in row.get("tensors", {}).items():
        save_file({one: np.ones((2, 3), "float32") for one in names}, folder / name)
    for name, text in row.get("files", {}).items():
        (folder / name).write_text(text)
    config = {"model_type": row["type"], **sizes, **row.get("config", {})}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def array_of(name: str) -> np.ndarray:
    """Constants of earlier releases, and numbers for all other names."""
    if name.endswith("position_ids"):
        return np.arange(7)[None]
    if name.endswith("attn.bias"):
        return np.tril(np.ones((7, 7), "float32"))[None, None]
    return np.full((2, 3), 0.5, "float32")


@pytest.fixture(autouse=True)
def without_frameworks(monkeypatch):
    verify_in_numpy(monkeypatch)


def test_no_fork_is_known(tmp_path):
    wrong = {}
    for number, row in enumerate(ROWS["forks"]):
        folder = folder_of(row, tmp_path / str(number))
        said = standing_of(folder, tmp_path, every=True)
        if said in ("known", "proved"):
            wrong[row["name"]] = row["what"]
        if not row.get("arrays") and MODEL_TYPES[row["type"]].name == "bert":
            with pytest.raises(SpecError):
                check_readable(folder)
    assert not wrong


def test_no_right_folder_is_refused(tmp_path):
    found = {}
    for number, row in enumerate(ROWS["right"]):
        folder = folder_of(row, tmp_path / str(number))
        found[row["name"]] = standing_of(folder, tmp_path)
        if MODEL_TYPES[row["type"]].name == "bert":
            check_readable(folder)
    assert {name: said for name, said in found.items() if said != "known"} == {}


def test_a_folder_without_a_config_is_told_what_reads_weights(tmp_path):
    """One file: of a folder with several, `mha convert --list` asks which."""
    with pytest.raises(
        SpecError, match=r"has no config\.json; it must be a model's folder as save_pretrained writes it$"
    ):
        check_readable(tmp_path)
    [(tmp_path / name).touch() for name in ("b.safetensors", "a.pt")]
    with pytest.raises(SpecError, match=r"; weights alone are read by `mha convert \S+/a\.pt --list`$"):
        check_readable(tmp_path)
