"""`mha port FOLDER` of decoders with experts: made offline, with random weights."""

import json
import shutil

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file

from mha.cli.main import main
from mha.port.model import load_trained
from mha_core import SpecError
from tests.mha.convert.test_convert_decoders import saved
from tests.mha.port.test_decoder_folders import save_tokenizer
from tests.mha.recipes.test_decoders import SIZES

pytestmark = pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there

TEXTS = ("w3 w9 w4 w17 w5 w28 w6 w11 w7", "w8 w3 w21 w14 w5 w9")
"""Texts of 9 and 6 words: one is padded on the left by 3 tokens."""


def folder_of(model_type, where):
    """A model of random weights and a tokenizer of words, as save_pretrained writes them."""
    save_tokenizer(where, ["[PAD]", "[UNK]", "[EOS]", *(f"w{number}" for number in range(3, SIZES["vocab_size"]))])
    saved(model_type, where)
    return where


def ported(folder, backend, out):
    """The report of `mha port` of both texts, written to `out`."""
    texts = [part for text in TEXTS for part in ("--text", text)]
    asked = ["port", str(folder), "--backend", backend, "--no-unseen", "--json", str(out), *texts]
    ended = CliRunner().invoke(main, asked)
    assert ended.exit_code == 0, ended.output
    report = json.loads(out.read_text())
    assert report["tokens"] == [9, 6]
    assert len(set(map(tuple, report["continued"].values()))) == 1
    return report


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    """Folders of models with experts, whose matrices transformers joins when it loads them."""
    return {name: folder_of(name, tmp_path_factory.mktemp(name)) for name in ("mixtral", "qwen3_moe")}


@pytest.mark.parametrize(
    ("model_type", "expert"),
    [
        ("mixtral", "model.layers.0.block_sparse_moe.experts.1.w3.weight"),
        ("qwen3_moe", "model.layers.0.mlp.experts.1.up_proj.weight"),
    ],
)
def test_a_model_with_experts_goes_through_a_backend(experts, model_type, expert, tmp_path):
    report = ported(experts[model_type], "torch", tmp_path / "report.json")
    (layer,) = {one["layer"] for one in report["layers"]}
    assert layer.endswith(".0.self_attn")
    assert (report["arrays"]["held"][expert], report["arrays"]["unused"]) == (expert, [])
    assert set(report["arrays"]["held"].values()) == set(load_file(experts[model_type] / "model.safetensors"))


def test_a_missing_and_a_strange_expert_are_refused(experts, tmp_path):
    arrays = load_file(experts["mixtral"] / "model.safetensors")
    own = {name: array for name, array in arrays.items() if ".experts.1." in name}
    lacking = {name: array for name, array in arrays.items() if name not in own}
    strange = {name.replace(".experts.1.", ".experts.2."): array + 1.0 for name, array in own.items()}
    for number, (changed, words) in enumerate(
        [
            (lacking, r"lacks model\.layers\.0\.block_sparse_moe\.experts\.1\.w\d\.weight"),
            ({**arrays, **strange}, r"holds model\.layers\.0\.block_sparse_moe\.experts\.2\.w\d\.weight, for which"),
            ({**lacking, min(own): own[min(own)]}, "could not be loaded"),  # one matrix of the second expert alone
        ]
    ):
        there = tmp_path / str(number)
        shutil.copytree(experts["mixtral"], there)
        save_file(changed, there / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(SpecError, match=words):
            load_trained(str(there))
